package storetest

import (
	"context"
	"errors"

	"github.com/tenure-go/tenure/store"
)

var releaseCases = []Case{
	{
		"release/frees",
		"A clean hand-over must not wait for the expiry, and must not lose the token.",
		func(e *env) {
			l := e.renew(e.s, e.grant(e.s, e.claim(e.name("a"))))
			e.release(e.s, l, "")
			rec := e.inState(e.open(), l.Name, store.Vacant, "after the release")
			e.check(rec.Token == l.Token && rec.Remaining == 0, "a released term's record must keep its token %d and stand for nothing: %+v", l.Token, rec)
			next := e.grant(e.open(), e.claim(l.Name))
			e.above(next.Token, l.Token, "after a release")
		},
	},
	{
		"release/repeated",
		"A release whose reply was lost is asked again; an error there looks like a lease that still stands.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			e.release(e.s, l, "")
			before := e.inState(e.s, l.Name, store.Vacant, "after the release")
			e.release(e.s, l, "")
			e.release(e.open(), l, "")
			e.unchanged(e.s, before, "releasing again")
		},
	},
	{
		"release/pending-carried-out",
		"The reply to the last renewal was lost: the holder has the consumed receipt only, and its attempt is its proof.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			a := e.attempt()
			e.renewBy(e.s, l, a)
			e.release(e.s, l, a)
			e.inState(e.s, l.Name, store.Vacant, "after the release")
			e.release(e.s, l, a)
		},
	},
	{
		"release/pending-not-carried-out",
		"The last renewal never arrived: the receipt is current, and a late delivery must not revive the term.",
		func(e *env) {
			l := e.renew(e.s, e.grant(e.s, e.claim(e.name("a"))))
			a := e.attempt()
			e.release(e.s, l, a)
			before := e.inState(e.s, l.Name, store.Vacant, "after the release")
			e.notRenewed(e.s, l, a, store.ErrReleased, "delivering the pending renewal after the release")
			e.unchanged(e.s, before, "delivering the pending renewal after the release")
		},
	},
	{
		"release/consumed-receipt",
		"A copy with a consumed receipt must not free the election under the one that renewed.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			r := e.renew(e.s, l)
			before := e.get(e.s, l.Name)
			for _, pending := range []store.Attempt{"", e.attempt()} {
				err := e.s.Release(e.ctx, l, pending)
				e.refused(err, store.ErrReceipt, "releasing on the consumed receipt with the pending attempt %q", pending)
				var receipt *store.ReceiptError
				e.check(errors.As(err, &receipt), "the error %T is no *store.ReceiptError", err)
				e.unchanged(e.s, before, "releasing on the consumed receipt")
			}
			e.renew(e.s, r)
		},
	},
	{
		"release/made-up-receipt",
		"A release by name frees the election under whoever holds it.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			for _, receipt := range []store.Receipt{"", "made-up"} {
				forged := l
				forged.Receipt = receipt
				e.refused(e.s.Release(e.ctx, forged, ""), store.ErrReceipt, "releasing on the receipt %q, which was never given", receipt)
				e.refused(e.s.Release(e.ctx, forged, e.attempt()), store.ErrReceipt, "releasing on the receipt %q with a pending attempt", receipt)
				e.unchanged(e.s, before, "releasing on a receipt that was never given")
			}
			e.renew(e.s, l)
		},
	},
	{
		"release/B02-superseded",
		"A past holder's clean-up must not free its successor's lease.",
		func(e *env) {
			old := e.grant(e.s, e.short(e.name("a")))
			a := e.attempt()
			other := e.open()
			next := e.acquireAfter(other, e.claim(old.Name))
			before := e.get(e.s, old.Name)
			e.refused(e.s.Release(e.ctx, old, ""), store.ErrSuperseded, "releasing a term that was superseded")
			e.refused(e.s.Release(e.ctx, old, a), store.ErrSuperseded, "releasing a term that was superseded, with a pending attempt")
			e.must(e.s.Abandon(e.ctx, old.Name, old.TermID), "abandoning a term that was superseded")
			e.unchanged(e.s, before, "a past holder's late release")
			e.held(e.open(), e.claim(old.Name), "acquiring after a past holder's late release")
			e.renew(other, next)
		},
	},
	{
		"release/of-the-released",
		"A release that is repeated after somebody else has acquired must not free the new term.",
		func(e *env) {
			old := e.grant(e.s, e.claim(e.name("a")))
			e.release(e.s, old, "")
			next := e.grant(e.open(), e.claim(old.Name))
			before := e.get(e.s, old.Name)
			e.refused(e.s.Release(e.ctx, old, ""), store.ErrSuperseded, "releasing again after the next grant")
			e.unchanged(e.s, before, "releasing again after the next grant")
			e.renew(e.s, next)
		},
	},
	{
		"release/other-term-id",
		"The token alone does not name a term: a store that was rolled back hands it out twice.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			other := l
			other.TermID = e.attempt()
			e.refused(e.s.Release(e.ctx, other, ""), store.ErrSuperseded, "releasing under another term id")
			e.unchanged(e.s, before, "releasing under another term id")
		},
	},
	{
		"release/no-record",
		"A record that is gone is not a lease that was given back.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			l.Name = e.name("never")
			e.refused(e.s.Release(e.ctx, l, ""), store.ErrNoRecord, "releasing what was never granted")
		},
	},
	{
		"abandon/frees",
		"An acquire that nobody waits for any more must not block the election for a TTL.",
		func(e *env) {
			c := e.claim(e.name("a"))
			l := e.grant(e.s, c)
			e.must(e.open().Abandon(e.ctx, c.Name, c.Attempt), "abandoning")
			rec := e.inState(e.s, c.Name, store.Vacant, "after abandoning")
			e.check(rec.Token == l.Token, "the record must keep token %d, it has %d", l.Token, rec.Token)
			e.must(e.s.Abandon(e.ctx, c.Name, c.Attempt), "abandoning again")
			e.notRenewed(e.s, l, e.attempt(), store.ErrReleased, "renewing an abandoned grant")
			next := e.grant(e.s, e.claim(c.Name))
			e.above(next.Token, l.Token, "after an abandoned grant")
		},
	},
	{
		"abandon/renewed",
		"A term that was renewed has a holder: a late duplicate of the giving back must not take it away.",
		func(e *env) {
			c := e.claim(e.name("a"))
			l := e.renew(e.s, e.grant(e.s, c))
			before := e.get(e.s, c.Name)
			e.must(e.s.Abandon(e.ctx, c.Name, c.Attempt), "abandoning a renewed term")
			e.unchanged(e.s, before, "abandoning a renewed term")
			e.renew(e.s, l)
		},
	},
	{
		"abandon/nothing-there",
		"Whoever gives back does not know whether there is anything; that must be no error, and change nothing.",
		func(e *env) {
			unknown := e.name("never")
			e.must(e.s.Abandon(e.ctx, unknown, e.attempt()), "abandoning where there is no record")
			_, err := e.s.Get(e.ctx, unknown)
			e.refused(err, store.ErrNoRecord, "reading it afterwards")

			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			e.must(e.s.Abandon(e.ctx, l.Name, e.attempt()), "abandoning an attempt that was refused")
			e.unchanged(e.s, before, "abandoning another attempt")
			e.renew(e.s, l)
		},
	},
}

var recordCases = []Case{
	{
		"record/three-answers",
		"Owned by a live owner, owned by a dead one, not owned: whoever mixes them up starts work twice or never.",
		func(e *env) {
			name := e.name("a")
			_, err := e.s.Get(e.ctx, name)
			e.refused(err, store.ErrNoRecord, "reading what was never granted")
			l := e.grant(e.s, e.short(name))
			e.dead(e.s, name)
			l2 := e.acquireAfter(e.s, e.claim(name))
			e.above(l2.Token, l.Token, "after an expiry")
			e.inState(e.s, name, store.Live, "after a grant")
			e.release(e.s, l2, "")
			e.inState(e.s, name, store.Vacant, "after a release")
		},
	},
	{
		"record/reading-changes-nothing",
		"Looking at an election must not create, extend or end anything.",
		func(e *env) {
			name := e.name("a")
			for range 2 {
				_, err := e.s.Get(e.ctx, name)
				e.refused(err, store.ErrNoRecord, "reading what was never granted")
			}
			l := e.grant(e.s, e.claim(name))
			before := e.get(e.s, name)
			e.tick()
			e.unchanged(e.open(), before, "reading")
			e.renew(e.s, l)
		},
	},
	{
		"record/next-term-starts-clean",
		"What is said of one term must not stick to the next: its holder, renewals, eviction or fencing.",
		func(e *env) {
			c := e.claim(e.name("a"))
			c.Holder, c.Meta, c.FencedOnly = "h1", "m1", true
			e.release(e.s, e.renew(e.s, e.grant(e.s, c)), "")
			next := e.claim(c.Name)
			next.Holder = "h2"
			l := e.grant(e.s, next)
			rec := e.get(e.s, c.Name)
			e.check(rec.Holder == "h2" && rec.Meta == "" && !rec.FencedOnly && rec.Renewal == 0 && rec.Evicted == "" && rec.TermID == l.TermID,
				"the record shows something of the last term: %+v", rec)
		},
	},
	{
		"record/B05-removed",
		"Somebody deletes the record by hand: the holder must be told at its next renewal, and told that.",
		func(e *env) {
			if e.h.Remove == nil {
				e.skip("the harness cannot remove records")
			}
			l := e.renew(e.s, e.grant(e.s, e.claim(e.name("a"))))
			e.must(e.h.Remove(e.ctx, l.Name), "removing the record")
			e.notRenewed(e.s, l, e.attempt(), store.ErrNoRecord, "renewing after the record was removed")
			e.refused(e.s.Release(e.ctx, l, ""), store.ErrNoRecord, "releasing after the record was removed")
			_, err := e.s.Get(e.ctx, l.Name)
			e.refused(err, store.ErrNoRecord, "reading after the record was removed")
		},
	},
	{
		"record/B05-removed-then-acquired",
		"The store lost its counter with the record: a floor puts it above, and the old term stays out.",
		func(e *env) {
			if e.h.Remove == nil {
				e.skip("the harness cannot remove records")
			}
			l := e.renew(e.s, e.grant(e.s, e.claim(e.name("a"))))
			e.must(e.h.Remove(e.ctx, l.Name), "removing the record")
			c := e.claim(l.Name)
			c.Floor = l.Token
			next := e.grant(e.s, c)
			e.above(next.Token, l.Token, "with the removed record's token as floor")
			e.notRenewed(e.s, l, e.attempt(), store.ErrSuperseded, "renewing a term whose record was removed and replaced")
			e.renew(e.s, next)
		},
	},
	{
		"record/B02-overwritten",
		"The record was replaced under a running leader by a term with the very same token: the term id must tell.",
		func(e *env) {
			if e.h.Remove == nil {
				e.skip("the harness cannot remove records")
			}
			l := e.grant(e.s, e.claim(e.name("a")))
			e.must(e.h.Remove(e.ctx, l.Name), "removing the record")
			c := e.claim(l.Name)
			c.Floor = l.Token - 1
			next := e.grant(e.s, c)
			before := e.get(e.s, l.Name)
			e.notRenewed(e.s, l, e.attempt(), store.ErrSuperseded, "renewing a term whose token another term has now")
			e.refused(e.s.Release(e.ctx, l, ""), store.ErrSuperseded, "releasing it")
			e.must(e.s.Abandon(e.ctx, l.Name, l.TermID), "abandoning it")
			e.unchanged(e.s, before, "an overwritten term's late requests")
			e.renew(e.s, next)
		},
	},
	{
		alone,
		"A program that guesses at a newer format breaks what it does not know; it must refuse, and change nothing.",
		func(e *env) {
			if e.h.Upgrade == nil || e.h.Remove == nil {
				e.skip("the harness cannot write a newer format and remove it again")
			}
			c := e.claim(e.name("a"))
			l := e.grant(e.s, c)
			defer func() { e.must(e.h.Remove(context.WithoutCancel(e.ctx), c.Name), "removing the newer record") }()
			e.must(e.h.Upgrade(e.ctx, c.Name), "rewriting the record in a newer format")
			_, err := e.s.Get(e.ctx, c.Name)
			e.refused(err, store.ErrFormat, "reading")
			_, err = e.s.Acquire(e.ctx, c)
			e.refused(err, store.ErrFormat, "replaying the grant")
			_, err = e.s.Acquire(e.ctx, e.claim(c.Name))
			e.refused(err, store.ErrFormat, "acquiring")
			e.notRenewed(e.s, l, e.attempt(), store.ErrFormat, "renewing")
			e.refused(e.s.Release(e.ctx, l, ""), store.ErrFormat, "releasing")
			e.refused(e.s.Abandon(e.ctx, c.Name, c.Attempt), store.ErrFormat, "abandoning")
			if evictor, ok := store.As[store.Evictor](e.s); ok {
				_, err = evictor.Evict(e.ctx, store.Eviction{Name: c.Name, Reason: "test"})
				e.refused(err, store.ErrFormat, "evicting")
			}
		},
	},
}
