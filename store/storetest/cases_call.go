package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/tenure-go/tenure/store"
)

var callCases = []Case{
	{
		"call/caps",
		"What a store says of itself decides the timing; a wrong word there is found by nobody else.",
		func(e *env) {
			c := e.caps
			e.check(c.Store != "" && c.Token != "" && c.Scope != "", "store, token and scope must say something: %+v", c)
			switch c.Clock {
			case store.ClockStore, store.ClockHost, store.ClockObserver:
			default:
				e.failf("clock is %q", c.Clock)
			}
			switch c.Watch {
			case store.WatchNone, store.WatchPush:
			default:
				e.failf("watch is %q", c.Watch)
			}
			e.check(c.Precision > 0, "precision is %v: want more than 0", c.Precision)
			e.check(c.TTLMin > 0 && c.TTLMax >= c.TTLMin, "ttl from %v to %v makes no range", c.TTLMin, c.TTLMax)
			e.check(c.NameMax > 0 && c.NameMax <= store.NameMax, "the longest name has %d bytes: want 1 to %d", c.NameMax, store.NameMax)
			_, watches := store.As[store.Watcher](e.s)
			e.check(watches == (c.Watch == store.WatchPush), "watch is %q, and being a store.Watcher is %v", c.Watch, watches)
			_, nonces := store.As[store.Noncer](e.s)
			e.check(nonces == c.Nonce, "nonce is %v, and being a store.Noncer is %v", c.Nonce, nonces)
			e.check(e.s.Caps() == c, "asked again it says %+v, at first %+v", e.s.Caps(), c)
		},
	},
	{
		"call/echo",
		"Two copies can share a connection for a while: an answer that does not name its attempt may be the other's.",
		func(e *env) {
			c := e.claim(e.name("a"))
			l := e.grant(e.s, c)
			e.check(l.Attempt == c.Attempt, "the grant to attempt %s names %s", c.Attempt, l.Attempt)
			l = e.grant(e.s, c)
			e.check(l.Attempt == c.Attempt, "the replayed grant to attempt %s names %s", c.Attempt, l.Attempt)
			a := e.attempt()
			r := e.renewBy(e.s, l, a)
			e.check(r.Attempt == a, "the answer to attempt %s names %s", a, r.Attempt)
			r = e.renewBy(e.s, l, a)
			e.check(r.Attempt == a, "the replayed answer to attempt %s names %s", a, r.Attempt)
			b := e.attempt()
			r = e.renewBy(e.s, r, b)
			e.check(r.Attempt == b, "the answer to attempt %s names %s", b, r.Attempt)
		},
	},
	{
		"call/store-now",
		"A process whose clocks stood still learns it from the store's clock, if that goes on and is the same for all.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			if l.StoreNow == 0 {
				e.skip("this store has no clock to show")
			}
			const passed = 100 * time.Millisecond
			e.advance(passed)
			r := e.renew(e.open(), l)
			e.check(r.StoreNow >= l.StoreNow+passed-e.caps.Precision, "%v later the store's clock went from %v to %v", passed, l.StoreNow, r.StoreNow)
			e.advance(passed)
			again := e.renewBy(e.s, l, r.Attempt)
			e.check(again.Replayed && again.StoreNow >= r.StoreNow+passed-e.caps.Precision, "a replayed answer must show the clock as of now: %v after %v", again.StoreNow, r.StoreNow)
		},
	},
	{
		"call/cancelled",
		"A request whose context has ended must end, say so, and grant nothing.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			cancelled, cancel := context.WithCancel(e.ctx)
			cancel()
			late, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Second))
			defer cancel()
			for _, ctx := range []context.Context{cancelled, late} {
				ended := func(err error, step string) {
					e.check(errors.Is(err, ctx.Err()), "%s with a context that has ended: want the error %q, got: %v", step, ctx.Err(), err)
				}
				c := e.claim(e.name("never"))
				got, err := e.s.Acquire(ctx, c)
				ended(err, "acquiring")
				e.check(got == store.Lease{}, "a lease came with the error: %+v", got)
				undone := !store.OutcomeUnknown(err)
				if _, err = e.s.Get(e.ctx, c.Name); undone {
					e.refused(err, store.ErrNoRecord, "reading what, by the error, was not acquired")
				}
				a := e.attempt()
				got, err = e.s.Renew(ctx, l, a)
				ended(err, "renewing")
				e.check(got == store.Lease{}, "a lease came with the error: %+v", got)
				if store.OutcomeUnknown(err) {
					l = e.renewBy(e.s, l, a)
					before = e.get(e.s, l.Name)
				}
				ended(e.s.Abandon(ctx, l.Name, e.attempt()), "abandoning")
				_, err = e.s.Get(ctx, l.Name)
				ended(err, "reading")
				e.unchanged(e.s, before, "requests whose context had ended")
			}
			e.renew(e.s, l)
		},
	},
	{
		"call/cancelled-release",
		"A release whose context has ended may be repeated with another one.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			ctx, cancel := context.WithCancel(e.ctx)
			cancel()
			err := e.s.Release(ctx, l, "")
			e.check(errors.Is(err, context.Canceled), "releasing with a context that has ended: want the error %q, got: %v", context.Canceled, err)
			e.release(e.s, l, "")
			e.inState(e.s, l.Name, store.Vacant, "after the release")
		},
	},
	{
		"call/closed",
		"A store that was closed must say so, not hang, panic or ask all the same.",
		func(e *env) {
			s, closeStore, err := e.h.Open(e.ctx)
			e.must(err, "opening the store once more")
			l := e.grant(s, e.claim(e.name("a")))
			e.must(closeStore(), "closing the store")
			c := e.claim(e.name("never"))
			_, err = s.Acquire(e.ctx, c)
			e.refused(err, store.ErrStoreClosed, "acquiring on a closed store")
			e.notRenewed(s, l, e.attempt(), store.ErrStoreClosed, "renewing on a closed store")
			e.refused(s.Release(e.ctx, l, ""), store.ErrStoreClosed, "releasing on a closed store")
			e.refused(s.Abandon(e.ctx, l.Name, l.TermID), store.ErrStoreClosed, "abandoning on a closed store")
			_, err = s.Get(e.ctx, l.Name)
			e.refused(err, store.ErrStoreClosed, "reading on a closed store")
			e.inState(e.s, l.Name, store.Live, "after the holder's store was closed")
			e.renew(e.s, l)
			_, err = e.s.Get(e.ctx, c.Name)
			e.refused(err, store.ErrNoRecord, "reading what was asked of the closed store")
		},
	},
}
