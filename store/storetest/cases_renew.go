package storetest

import (
	"errors"
	"sync"

	"github.com/tenure-go/tenure/store"
)

var renewCases = []Case{
	{
		"renew/receipts",
		"A receipt that stays the same lets both copies of a cloned leader renew for ever.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			seen := map[store.Receipt]bool{l.Receipt: true}
			for i := range int64(5) {
				a := e.attempt()
				r := e.renewBy(e.s, l, a)
				e.check(!seen[r.Receipt] && r.Receipt != "", "renewal %d has a receipt that was given before: %q", i+1, r.Receipt)
				seen[r.Receipt] = true
				e.check(r.Renewal == l.Renewal+1, "renewal %d was followed by %d", l.Renewal, r.Renewal)
				e.check(r.Name == l.Name && r.TermID == l.TermID && r.Token == l.Token && r.TTL == l.TTL && !r.Replayed,
					"a renewal must keep name, term, token and ttl\nfrom %+v\nto   %+v", l, r)
				rec := e.get(e.s, l.Name)
				e.check(rec.Renewal == r.Renewal && rec.Token == l.Token && rec.TermID == l.TermID, "the record does not show the renewal %+v: %+v", r, rec)
				l = r
			}
		},
	},
	{
		"renew/extends",
		"A renewal that does not move the expiry ends a healthy leader; the expiry counts from the store's now.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			e.advance(l.TTL / 60)
			before := e.get(e.s, l.Name)
			e.renew(e.s, l)
			after := e.get(e.s, l.Name)
			if e.caps.Clock != store.ClockObserver {
				e.check(after.Remaining > before.Remaining, "the expiry did not move: %v ahead, and %v after the renewal", before.Remaining, after.Remaining)
			}
			e.check(after.Remaining <= l.TTL, "a lease of %v stands for %v after a renewal", l.TTL, after.Remaining)
		},
	},
	{
		"renew/outlives-ttl",
		"The holder that renews in time must keep the election past the first expiry.",
		func(e *env) {
			e.beforeExpiry(func(c store.Claim) error {
				l := e.grant(e.s, c)
				for range 4 {
					e.advance(l.TTL / 2)
					var err error
					if l, err = e.s.Renew(e.ctx, l, e.attempt()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	},
	{
		"renew/replay",
		"A renewal whose reply was lost is asked again; the answer must be the same, and move nothing.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			a := e.attempt()
			first := e.renewBy(e.s, l, a)
			e.tick()
			before := e.get(e.s, l.Name)
			for _, s := range []store.Store{e.s, e.open()} {
				again := e.renewBy(s, l, a)
				e.check(again.Replayed, "the same attempt on the receipt it consumed must be answered as replayed: %+v", again)
				e.check(again.Receipt == first.Receipt && again.Renewal == first.Renewal && again.Token == first.Token && again.TermID == first.TermID && again.TTL == first.TTL,
					"the replay differs from the answer\nfrom %+v\nto   %+v", first, again)
				e.unchanged(e.s, before, "a replayed renewal")
				first = again
			}
			e.renew(e.s, first)
		},
	},
	{
		"renew/replay-of-an-older-one",
		"Only the last answer is given again: an older one would put a holder back onto a receipt long consumed.",
		func(e *env) {
			l0 := e.grant(e.s, e.claim(e.name("a")))
			a := e.attempt()
			l1 := e.renewBy(e.s, l0, a)
			l2 := e.renew(e.s, l1)
			before := e.get(e.s, l0.Name)
			e.notRenewed(e.s, l0, a, store.ErrReceipt, "replaying the renewal before the last")
			e.unchanged(e.s, before, "replaying the renewal before the last")
			e.renew(e.s, l2)
		},
	},
	{
		"renew/older-receipt",
		"A late duplicate carries an old receipt: it proves nothing, so it must harm nobody.",
		func(e *env) {
			l0 := e.grant(e.s, e.claim(e.name("a")))
			l3 := e.renew(e.s, e.renew(e.s, e.renew(e.s, l0)))
			before := e.get(e.s, l0.Name)
			err := e.notRenewed(e.s, l0, e.attempt(), store.ErrReceipt, "renewing on a receipt consumed long ago")
			var receipt *store.ReceiptError
			e.check(errors.As(err, &receipt), "the error %T is no *store.ReceiptError", err)
			e.check(receipt.Name == l0.Name && receipt.Token == l0.Token && receipt.Presented == 0 && receipt.Current == 3,
				"want renewal 0 presented and 3 current, got %+v", receipt)
			e.unchanged(e.s, before, "renewing on a receipt consumed long ago")
			e.renew(e.s, l3)
		},
	},
	{
		"renew/made-up-receipt",
		"A renewal that ignores the receipt is a renewal by name.",
		func(e *env) {
			l := e.renew(e.s, e.grant(e.s, e.claim(e.name("a"))))
			before := e.get(e.s, l.Name)
			for _, receipt := range []store.Receipt{"", "made-up", l.Receipt + " ", l.Receipt + "0"} {
				forged := l
				forged.Receipt = receipt
				e.notRenewed(e.s, forged, e.attempt(), store.ErrReceipt, "renewing on a receipt that was never given")
				e.unchanged(e.s, before, "renewing on a receipt that was never given")
			}
			e.renew(e.s, l)
		},
	},
	{
		"renew/first-receipt-made-up",
		"Before the first renewal nothing was consumed: an empty or made-up receipt must not pass for the consumed one.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			for _, receipt := range []store.Receipt{"", "made-up"} {
				forged := l
				forged.Receipt = receipt
				e.notRenewed(e.s, forged, e.attempt(), store.ErrReceipt, "renewing a fresh term on a receipt that was never given")
				e.unchanged(e.s, before, "renewing a fresh term on a receipt that was never given")
			}
			e.renew(e.s, l)
		},
	},
	{
		"renew/other-term-id",
		"A store that was rolled back hands a token out twice; the term id tells its two terms apart.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			other := l
			other.TermID = e.attempt()
			e.notRenewed(e.s, other, e.attempt(), store.ErrSuperseded, "renewing under the same token and another term id")
			e.unchanged(e.s, before, "renewing under another term id")
			other = l
			other.Token++
			e.notRenewed(e.s, other, e.attempt(), store.ErrSuperseded, "renewing under the same term id and another token")
			e.unchanged(e.s, before, "renewing under another token")
			e.renew(e.s, l)
		},
	},
	{
		"renew/released",
		"A renewal that was under way when the term was released must not revive it.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			a := e.attempt()
			r := e.renewBy(e.s, l, a)
			e.release(e.s, r, "")
			before := e.inState(e.s, l.Name, store.Vacant, "after the release")
			e.notRenewed(e.s, r, e.attempt(), store.ErrReleased, "renewing a released term")
			e.notRenewed(e.s, l, a, store.ErrReleased, "replaying a renewal of a released term")
			e.notRenewed(e.s, l, e.attempt(), store.ErrReleased, "renewing a released term on the consumed receipt")
			e.unchanged(e.s, before, "renewing a released term")
		},
	},
	{
		"renew/expired",
		"Between its expiry and the next grant a lease belongs to nobody: whoever revives it may already have stopped counting.",
		func(e *env) {
			if e.caps.Clock == store.ClockObserver {
				e.skip("this store cannot judge an expiry itself")
			}
			l := e.grant(e.s, e.short(e.name("a")))
			before := e.dead(e.s, l.Name)
			e.notRenewed(e.s, l, e.attempt(), store.ErrExpired, "renewing an expired term")
			e.unchanged(e.s, before, "renewing an expired term")
		},
	},
	{
		"renew/expired-replay",
		"The reply to a lost renewal must not come again once the lease has run out.",
		func(e *env) {
			if e.caps.Clock == store.ClockObserver {
				e.skip("this store cannot judge an expiry itself")
			}
			var l store.Lease
			a := e.attempt()
			e.beforeExpiry(func(c store.Claim) error {
				l = e.grant(e.s, c)
				_, err := e.s.Renew(e.ctx, l, a)
				return err
			})
			before := e.dead(e.s, l.Name)
			e.notRenewed(e.s, l, a, store.ErrExpired, "replaying a renewal of an expired term")
			e.unchanged(e.s, before, "replaying a renewal of an expired term")
		},
	},
	{
		"renew/B02-superseded",
		"A past holder that thaws and renews must change nothing of its successor's record.",
		func(e *env) {
			old := e.grant(e.s, e.short(e.name("a")))
			other := e.open()
			next := e.acquireAfter(other, e.claim(old.Name))
			before := e.get(e.s, old.Name)
			e.notRenewed(e.s, old, e.attempt(), store.ErrSuperseded, "renewing a term that was superseded")
			e.unchanged(e.s, before, "a past holder's late renewal")
			e.renew(other, next)
		},
	},
	{
		"renew/no-record",
		"A record that is gone is not the same as a lease that is lost to another, and is told to people differently.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			l.Name = e.name("never")
			e.notRenewed(e.s, l, e.attempt(), store.ErrNoRecord, "renewing what was never granted")
			_, err := e.s.Get(e.ctx, l.Name)
			e.refused(err, store.ErrNoRecord, "reading it afterwards")
		},
	},
}

var twinCases = []Case{
	{
		"twin/burns",
		"Two copies of a leader show one receipt twice; nobody can tell which is the true one, so neither may go on.",
		func(e *env) {
			t := e.twins(e.claim(e.name("a")))
			e.notRenewed(e.s, t.renewed, e.attempt(), store.ErrCloned, "renewing by the copy that had renewed")
			e.notRenewed(e.s, t.lease, t.first, store.ErrCloned, "replaying the renewal that had consumed the receipt")
			e.notRenewed(e.s, t.lease, t.second, store.ErrCloned, "repeating the renewal that proved the twin")
			e.notRenewed(e.s, t.lease, e.attempt(), store.ErrCloned, "renewing by a third attempt")
		},
	},
	{
		"twin/evidence",
		"People must be able to see what was proven, by which two requests.",
		func(e *env) {
			t := e.twins(e.claim(e.name("a")))
			var cloned *store.ClonedError
			e.check(errors.As(t.err, &cloned), "the error %T is no *store.ClonedError", t.err)
			rec := e.get(e.s, t.lease.Name)
			e.check(rec.Burnt() && len(rec.Burns) == 1, "the record does not show the burnt term: %+v", rec)
			for _, b := range []store.Burn{cloned.Burn, rec.Burns[0]} {
				e.check(b.TermID == t.lease.TermID && b.Token == t.lease.Token && b.Receipt == t.lease.Receipt && b.First == t.first && b.Second == t.second,
					"want receipt %q of token %d presented by %s and again by %s, got %+v", t.lease.Receipt, t.lease.Token, t.first, t.second, b)
			}
			e.check(cloned.Name == t.lease.Name, "the error names %q, not %q", cloned.Name, t.lease.Name)
		},
	},
	{
		"twin/expiry-stands",
		"The copy that renewed may still be valid: whoever got in before the expiry would be a third beside it.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			first := e.attempt()
			e.renewBy(e.s, l, first)
			before := e.get(e.s, l.Name)
			e.notRenewed(e.s, l, e.attempt(), store.ErrCloned, "presenting a receipt that was consumed by another attempt")
			after := e.inState(e.s, l.Name, store.Live, "after the proof of a twin")
			e.check(after.Remaining <= before.Remaining, "the proof of a twin moved the expiry from %v to %v ahead", before.Remaining, after.Remaining)
			held := e.held(e.open(), e.claim(l.Name), "acquiring before the expiry of a burnt term")
			e.check(held.Burnt && held.Token == l.Token, "a candidate must learn that the term is burnt: %+v", held)
		},
	},
	{
		"twin/next-term",
		"At the expiry the election goes on, and the burnt token and its reason outlive the next grant.",
		func(e *env) {
			var t twins
			e.beforeExpiry(func(c store.Claim) (err error) {
				t, err = e.tryTwins(c)
				return err
			})
			name := t.lease.Name
			next := e.acquireAfter(e.open(), e.claim(name))
			e.above(next.Token, t.lease.Token, "after a burnt term")
			rec := e.get(e.s, name)
			e.check(!rec.Burnt() && len(rec.Burns) == 1 && rec.Burns[0].Token == t.lease.Token, "the next term's record must remember the burnt one: %+v", rec)
			e.notRenewed(e.s, t.renewed, e.attempt(), store.ErrCloned, "renewing by an old copy under the next term")
			e.notRenewed(e.s, t.lease, t.second, store.ErrCloned, "renewing by the other old copy under the next term")
			e.refused(e.s.Release(e.ctx, t.renewed, ""), store.ErrCloned, "releasing by an old copy under the next term")
			e.unchanged(e.s, rec, "the old copies' late requests")
			e.renew(e.s, next)
		},
	},
	{
		"twin/nothing-succeeds",
		"A release by one copy would free the election under the other, and a replay would keep it going.",
		func(e *env) {
			c := e.claim(e.name("a"))
			t := e.twins(c)
			before := e.get(e.s, c.Name)
			for _, l := range []store.Lease{t.lease, t.renewed} {
				for _, pending := range []store.Attempt{"", t.first, t.second} {
					e.refused(e.s.Release(e.ctx, l, pending), store.ErrCloned, "releasing renewal %d of a burnt term with the pending attempt %q", l.Renewal, pending)
				}
			}
			e.must(e.s.Abandon(e.ctx, c.Name, c.Attempt), "abandoning a burnt term")
			_, err := e.s.Acquire(e.ctx, c)
			e.refused(err, store.ErrSpent, "acquiring by the burnt term's own attempt")
			e.unchanged(e.s, before, "requests of a burnt term")
			e.held(e.s, e.claim(c.Name), "acquiring a burnt term before its expiry")
		},
	},
	{
		"twin/fenced-only",
		"Where every write is fenced the next term may start at once: the higher token stops both copies.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.FencedOnly = true
			t := e.twins(c)
			e.check(e.get(e.s, c.Name).FencedOnly, "the record does not say that the election is for fenced work only")
			next := e.claim(c.Name)
			next.FencedOnly = true
			l := e.grant(e.open(), next)
			e.above(l.Token, t.lease.Token, "after a burnt term")
			e.notRenewed(e.s, t.renewed, e.attempt(), store.ErrCloned, "renewing by an old copy")
		},
	},
	{
		"twin/fenced-only-needs-both",
		"One side's word is not enough: the old writes must be fenced and the new ones too.",
		func(e *env) {
			for _, fenced := range []bool{true, false} {
				c := e.claim(e.name("record"))
				c.FencedOnly = fenced
				if !fenced {
					c.Name = e.name("claim")
				}
				e.twins(c)
				next := e.claim(c.Name)
				next.FencedOnly = !fenced
				e.held(e.s, next, "acquiring where only one of record and claim is for fenced work")
			}
		},
	},
	{
		"twin/fenced-only-live",
		"Fenced work or not, a term that is not burnt is waited for.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.FencedOnly = true
			l := e.grant(e.s, c)
			next := e.claim(c.Name)
			next.FencedOnly = true
			e.held(e.s, next, "acquiring a live term")
			e.renew(e.s, l)
		},
	},
	{
		"twin/burns-kept",
		"Old copies come back late; the last few burnt terms must still be known, and the record must not grow without end.",
		func(e *env) {
			name := e.name("a")
			var all []twins
			for range store.BurnsMax + 2 {
				c := e.claim(name)
				c.FencedOnly = true
				all = append(all, e.twins(c))
			}
			rec := e.get(e.s, name)
			e.check(len(rec.Burns) == store.BurnsMax, "after %d burnt terms the record has %d, want %d", len(all), len(rec.Burns), store.BurnsMax)
			for i, b := range rec.Burns {
				want := all[len(all)-1-i]
				e.check(b.Token == want.lease.Token && b.TermID == want.lease.TermID, "burnt term %d, counted from the newest: want token %d, got %d", i, want.lease.Token, b.Token)
			}
			e.notRenewed(e.s, all[len(all)-store.BurnsMax].renewed, e.attempt(), store.ErrCloned, "renewing the oldest burnt term that is known")
			e.notRenewed(e.s, all[0].renewed, e.attempt(), store.ErrSuperseded, "renewing a burnt term that is forgotten")
		},
	},
	{
		"twin/at-once",
		"Two copies that renew at the same instant must not both get a yes.",
		func(e *env) {
			stores := []store.Store{e.open(), e.open()}
			for range 10 {
				l := e.grant(e.s, e.claim(e.name(string(e.attempt()))))
				attempts := []store.Attempt{e.attempt(), e.attempt()}
				errs := make([]error, len(stores))
				renewed := make([]store.Lease, len(stores))
				var both sync.WaitGroup
				for i, s := range stores {
					both.Go(func() {
						for range 20 {
							renewed[i], errs[i] = s.Renew(e.ctx, l, attempts[i])
							if !store.OutcomeUnknown(errs[i]) {
								return
							}
						}
					})
				}
				both.Wait()
				first, second := errs[0], errs[1]
				if first != nil {
					first, second = second, first
				}
				e.must(first, "renewing by two copies at once: one of them")
				e.refused(second, store.ErrCloned, "renewing by two copies at once: the other")
				for i := range renewed {
					if errs[i] == nil {
						e.notRenewed(e.s, renewed[i], e.attempt(), store.ErrCloned, "the next renewal of the copy that came first")
					}
				}
			}
		},
	},
}

// twins is a burnt term: one attempt consumed the receipt of lease, another
// presented it again.
type twins struct {
	lease, renewed store.Lease
	first, second  store.Attempt
	err            error // what the second was told
}

// twins grants c and burns it.
func (e *env) twins(c store.Claim) twins {
	t, err := e.tryTwins(c)
	e.must(err, "renewing %q", c.Name)
	return t
}

// tryTwins is twins for [env.beforeExpiry].
func (e *env) tryTwins(c store.Claim) (twins, error) {
	t := twins{lease: e.grant(e.s, c), first: e.attempt(), second: e.attempt()}
	if t.renewed, t.err = e.s.Renew(e.ctx, t.lease, t.first); t.err != nil {
		return t, t.err
	}
	_, t.err = e.s.Renew(e.ctx, t.lease, t.second)
	if errors.Is(t.err, store.ErrExpired) {
		return t, t.err
	}
	e.refused(t.err, store.ErrCloned, "presenting a receipt that was consumed by another attempt")
	return t, nil
}
