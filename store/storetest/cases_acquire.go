package storetest

import (
	"sync"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

var acquireCases = []Case{
	{
		"acquire/grant",
		"A grant that lacks its token or receipt, or stands for less than was asked, makes every later check wrong.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.Holder, c.Meta = "h1", "m1"
			l := e.grant(e.s, c)
			e.check(l.Name == c.Name && l.TermID == c.Attempt, "want the claim's name and its attempt as term id, got %+v", l)
			e.check(l.Token.Valid(), "token is %d: want 1 to %d", l.Token, fence.MaxToken)
			e.check(l.Receipt != "", "the lease has no receipt")
			e.check(l.Renewal == 0 && !l.Replayed, "want a first answer of renewal 0, got %+v", l)
			e.check(l.TTL >= c.TTL && l.TTL <= c.TTL+e.caps.Precision, "asked %v at a precision of %v, got %v", c.TTL, e.caps.Precision, l.TTL)
			rec := e.inState(e.s, c.Name, store.Live, "after the grant")
			e.check(rec.Name == c.Name && rec.Token == l.Token && rec.TermID == l.TermID && rec.Holder == "h1" && rec.Meta == "m1" &&
				rec.Renewal == 0 && rec.TTL == l.TTL && !rec.FencedOnly && rec.Evicted == "" && !rec.Burnt(),
				"the record does not show the grant %+v: %+v", l, rec)
			e.check(rec.Remaining > 0 && rec.Remaining <= l.TTL, "remaining is %v of %v", rec.Remaining, l.TTL)
		},
	},
	{
		"acquire/held",
		"A candidate that is turned away must learn by whom and for how long, or it can only poll.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.Holder = "h1"
			l := e.grant(e.s, c)
			other := e.open()
			before := e.get(e.s, c.Name)
			held := e.held(other, e.claim(c.Name), "acquiring what another process holds")
			e.check(held.Name == c.Name && held.Holder == "h1" && held.Token == l.Token && !held.Burnt, "want holder h1 with token %d, got %+v", l.Token, held)
			e.check(held.Remaining > 0 && held.Remaining <= l.TTL, "remaining is %v of %v", held.Remaining, l.TTL)
			e.unchanged(e.s, before, "a refused acquire")
			e.renew(e.s, l)
		},
	},
	{
		"acquire/identity",
		"A name that grants a lease lets a restarted or copied process in beside its former self.",
		func(e *env) {
			c := e.claim(e.name("a"))
			e.grant(e.s, c)
			again := c
			again.Attempt = e.attempt()
			e.held(e.s, again, "acquiring again under the same holder by the same connection")
		},
	},
	{
		"acquire/after-release",
		"The record must outlive the term: a token that starts anew lets an old leader's writes pass.",
		func(e *env) {
			name := e.name("a")
			first := e.grant(e.s, e.claim(name))
			e.release(e.s, first, "")
			second := e.grant(e.open(), e.claim(name))
			e.above(second.Token, first.Token, "after a release")
			e.check(second.Receipt != first.Receipt, "two terms have the receipt %q", second.Receipt)
		},
	},
	{
		"acquire/not-before-expiry",
		"Whoever gets in early leads beside a leader that is within its rights.",
		func(e *env) {
			c := e.claim(e.name("a"))
			l := e.grant(e.s, c)
			passed := l.TTL / 60
			e.advance(passed)
			held := e.held(e.open(), e.claim(c.Name), "acquiring before the expiry")
			rec := e.inState(e.s, c.Name, store.Live, "before the expiry")
			if e.caps.Clock != store.ClockObserver {
				for _, remaining := range []time.Duration{held.Remaining, rec.Remaining} {
					e.check(remaining <= l.TTL-passed+e.caps.Precision, "%v after a grant of %v, %v remain", passed, l.TTL, remaining)
				}
			}
		},
	},
	{
		"acquire/after-expiry",
		"A lease that does not end when its holder is silent blocks the work for ever.",
		func(e *env) {
			c := e.short(e.name("a"))
			l := e.grant(e.s, c)
			other := e.open()
			e.held(other, e.claim(c.Name), "acquiring at once")
			rec := e.dead(other, c.Name)
			e.check(rec.Token == l.Token && rec.TermID == l.TermID && rec.Remaining == 0, "a dead term's record must still name it: %+v", rec)
			next := e.acquireAfter(other, e.claim(c.Name))
			e.above(next.Token, l.Token, "after an expiry")
			e.inState(e.s, c.Name, store.Live, "after the takeover")
		},
	},
	{
		"acquire/tokens-rise",
		"The fence stops the past only if every acquisition raises the token, however the last term ended.",
		func(e *env) {
			name := e.name("a")
			last := e.grant(e.s, e.claim(name))
			next := func(how string) {
				l := e.acquireAfter(e.s, e.short(name))
				e.above(l.Token, last.Token, "after "+how)
				last = l
			}
			e.release(e.s, last, "")
			next("a release")
			next("an expiry")
			last = e.renew(e.s, last)
			next("an expiry of a renewed term")
			e.must(e.s.Abandon(e.ctx, name, last.TermID), "abandoning")
			next("an abandoned grant")
			if evictor, ok := store.As[store.Evictor](e.s); ok {
				_, err := evictor.Evict(e.ctx, store.Eviction{Name: name, Reason: "test", Now: true})
				e.must(err, "evicting at once")
				next("an eviction")
			}
		},
	},
	{
		"acquire/rounds",
		"Tokens that repeat or fall now and then are found by the one write that mattered.",
		func(e *env) {
			const rounds = 500
			name := e.name("a")
			stores := []store.Store{e.s, e.open()}
			var last fence.Token
			for i := range rounds {
				s := stores[i%len(stores)]
				l := e.grant(s, e.claim(name))
				e.above(l.Token, last, "acquiring again and again")
				last = l.Token
				e.release(s, l, "")
			}
		},
	},
	{
		"acquire/one-winner",
		"Two winners of one election are what all of this is there to prevent.",
		func(e *env) {
			const processes, each, rounds = 4, 4, 5
			name := e.name("a")
			var stores []store.Store
			for range processes {
				stores = append(stores, e.open())
			}
			var last fence.Token
			for range rounds {
				type answer struct {
					l   store.Lease
					err error
				}
				answers := make([]answer, processes*each)
				var all sync.WaitGroup
				start := make(chan struct{})
				for i := range answers {
					all.Go(func() {
						<-start
						c := e.claim(name)
						// A store under load may give no answer; then a candidate asks again by the
						// same attempt.
						for range 20 {
							answers[i].l, answers[i].err = stores[i%processes].Acquire(e.ctx, c)
							if !store.OutcomeUnknown(answers[i].err) {
								return
							}
						}
					})
				}
				close(start)
				all.Wait()
				var won []store.Lease
				for _, a := range answers {
					if a.err == nil {
						won = append(won, a.l)
						continue
					}
					e.refused(a.err, store.ErrHeld, "acquiring beside %d others", len(answers)-1)
				}
				e.check(len(won) == 1, "%d of %d candidates won: %+v", len(won), len(answers), won)
				e.above(won[0].Token, last, "in the next round")
				last = won[0].Token
				e.release(e.s, won[0], "")
			}
		},
	},
	{
		"acquire/floor",
		"After a store lost its counter, or on moving between stores, tokens must start above what the resources have seen.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.Floor = 1000
			first := e.grant(e.s, c)
			e.above(first.Token, 1000, "with a floor of 1000")
			e.release(e.s, first, "")
			c = e.claim(c.Name)
			c.Floor = first.Token + 5000
			second := e.grant(e.s, c)
			e.above(second.Token, c.Floor, "with a floor above the record's token")
			e.release(e.s, second, "")
			c = e.claim(c.Name)
			c.Floor = 7
			third := e.grant(e.s, c)
			e.above(third.Token, second.Token, "with a floor below the record's token")
		},
	},
	{
		"acquire/out-of-tokens",
		"A token that wraps around is below every one before it.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.Floor = fence.MaxToken - 1
			l := e.grant(e.s, c)
			e.check(l.Token == fence.MaxToken, "with a floor of %d want token %d, got %d", c.Floor, fence.MaxToken, l.Token)
			l = e.renew(e.s, l)
			e.release(e.s, l, "")
			_, err := e.s.Acquire(e.ctx, e.claim(c.Name))
			e.refused(err, store.ErrTokens, "acquiring after the largest token")
			rec := e.inState(e.s, c.Name, store.Vacant, "after the refusal")
			e.check(rec.Token == fence.MaxToken, "the record's token is %d, want %d", rec.Token, fence.MaxToken)
		},
	},
	{
		"acquire/B19-replay",
		"An acquire whose reply was lost is asked again; without a replay the candidate is locked out by its own grant.",
		func(e *env) {
			c := e.claim(e.name("a"))
			first := e.grant(e.s, c)
			e.tick()
			before := e.get(e.s, c.Name)
			for _, s := range []store.Store{e.s, e.open()} {
				again := e.grant(s, c)
				e.check(again.Replayed, "the same attempt again must be answered as replayed: %+v", again)
				e.check(again.Token == first.Token && again.TermID == first.TermID && again.Receipt == first.Receipt && again.Renewal == 0 && again.TTL == first.TTL,
					"the replay differs from the grant\nfrom %+v\nto   %+v", first, again)
				e.unchanged(e.s, before, "a replayed grant")
				first = again
			}
			e.renew(e.s, first)
		},
	},
	{
		"acquire/spent-by-renewal",
		"A late duplicate of the first request must not hand a copy of the lease to whoever sent it.",
		func(e *env) {
			c := e.claim(e.name("a"))
			l := e.renew(e.s, e.grant(e.s, c))
			e.spent(c, "of a renewed term")
			e.renew(e.s, l)
		},
	},
	{
		"acquire/spent-by-release",
		"A late duplicate of the first request must not bring a released term back to life.",
		func(e *env) {
			c := e.claim(e.name("a"))
			e.release(e.s, e.grant(e.s, c), "")
			e.spent(c, "of a released term")
		},
	},
	{
		"acquire/spent-by-abandon",
		"A duplicate that arrives after the grant was given back must not take it again for nobody.",
		func(e *env) {
			c := e.claim(e.name("a"))
			e.grant(e.s, c)
			e.must(e.s.Abandon(e.ctx, c.Name, c.Attempt), "abandoning")
			e.spent(c, "of an abandoned grant")
		},
	},
	{
		"acquire/spent-by-expiry",
		"One attempt must name one term: a term that expired is over for good.",
		func(e *env) {
			c := e.short(e.name("a"))
			e.grant(e.s, c)
			e.dead(e.s, c.Name)
			e.spent(c, "of an expired term")
		},
	},
}

// spent acquires c, whose attempt must be used up, and looks that nothing came
// of it.
func (e *env) spent(c store.Claim, step string) {
	before := e.get(e.s, c.Name)
	l, err := e.s.Acquire(e.ctx, c)
	e.refused(err, store.ErrSpent, "acquiring by the attempt %s", step)
	e.check(l == store.Lease{}, "acquiring by the attempt %s: a lease came with the refusal: %+v", step, l)
	e.unchanged(e.s, before, "acquiring by the attempt "+step)
}
