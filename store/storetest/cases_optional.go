package storetest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenure-go/tenure/store"
)

// hintWait is how long a hint may take to arrive; a store that pushes hints
// needs a fraction of it.
const hintWait = 10 * time.Second

var optionalCases = []Case{
	{
		"watch/vacant",
		"Followers that are not told of a vacancy find it only when they next ask, two minutes later.",
		func(e *env) {
			for _, free := range []struct {
				how string
				do  func(s store.Store, l store.Lease) error
			}{
				{"a release", func(s store.Store, l store.Lease) error { return s.Release(e.ctx, l, "") }},
				{"an abandoned grant", func(s store.Store, l store.Lease) error { return s.Abandon(e.ctx, l.Name, l.TermID) }},
			} {
				other := e.open()
				l := e.grant(other, e.claim(e.name(free.how)))
				hints := e.watch(e.ctx, e.s, l.Name)
				e.must(free.do(other, l), "freeing by %s", free.how)
				e.hinted(hints, "vacancy after "+free.how, func(h store.Hint) bool { return h.Kind == store.HintVacant || h.Kind == store.HintChanged })
			}
		},
	},
	{
		"watch/renewed",
		"A follower that hears of renewals need not ask; one told of more than is left would wait too long.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			hints := e.watch(e.ctx, e.open(), l.Name)
			e.renew(e.s, l)
			h := e.hinted(hints, "a renewal", func(h store.Hint) bool { return h.Kind == store.HintRenewed || h.Kind == store.HintChanged })
			if h.Kind == store.HintRenewed {
				e.check(h.Remaining > 0 && h.Remaining <= l.TTL, "after the renewal of a lease of %v the hint says that %v remain", l.TTL, h.Remaining)
			}
		},
	},
	{
		"watch/before-the-first-grant",
		"Watching what has no record yet is how every first candidate begins.",
		func(e *env) {
			name := e.name("a")
			hints := e.watch(e.ctx, e.s, name)
			l := e.grant(e.open(), e.claim(name))
			e.release(e.open(), l, "")
			e.hinted(hints, "vacancy", func(h store.Hint) bool { return h.Kind == store.HintVacant || h.Kind == store.HintChanged })
		},
	},
	{
		"watch/newest",
		"A receiver that was busy may miss hints, but not the one that says that it is free.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			hints := e.watch(e.ctx, e.open(), l.Name)
			for range 50 {
				l = e.renew(e.s, l)
			}
			e.release(e.s, l, "")
			e.tick() // whatever is dropped for want of room is dropped now
			e.hinted(hints, "the vacancy that came last", func(h store.Hint) bool { return h.Kind == store.HintVacant || h.Kind == store.HintChanged })
		},
	},
	{
		"watch/ends",
		"A watch that outlives its context leaks a connection for each follower that gave up.",
		func(e *env) {
			ctx, cancel := context.WithCancel(e.ctx)
			hints := e.watch(ctx, e.s, e.name("a"))
			cancel()
			end := time.NewTimer(hintWait)
			defer end.Stop()
			for {
				select {
				case _, open := <-hints:
					if !open {
						return
					}
				case <-end.C:
					e.failf("%v after its context ended the watch's channel is still open", hintWait)
				}
			}
		},
	},
	{
		"list/all",
		"A list that lacks an election, or shows it otherwise than a read does, hides a leader from its operator.",
		func(e *env) {
			lister := optional[store.Lister](e)
			names := e.oddNames()
			for i, name := range names {
				l := e.grant(e.s, e.claim(name))
				if i%3 == 0 {
					e.release(e.s, l, "")
				}
			}
			var listed []string
			last := ""
			for rec, err := range lister.List(e.ctx) {
				e.must(err, "listing")
				e.check(rec.Name > last, "%q is listed after %q: want the order of the names' bytes, and each once", rec.Name, last)
				last = rec.Name
				if !strings.HasPrefix(rec.Name, e.prefix) {
					continue
				}
				listed = append(listed, rec.Name)
				e.unchangedButTime(rec, e.get(e.s, rec.Name))
			}
			slices.Sort(names)
			e.check(slices.Equal(listed, names), "listed %q\nwant   %q", listed, names)
		},
	},
	{
		"list/stops",
		"A caller that has seen enough, or whose context has ended, must not be kept.",
		func(e *env) {
			lister := optional[store.Lister](e)
			for i := range 3 {
				e.grant(e.s, e.claim(e.name(strconv.Itoa(i))))
			}
			for _, err := range lister.List(e.ctx) {
				e.must(err, "listing")
				break
			}
			ctx, cancel := context.WithCancel(e.ctx)
			cancel()
			var last error
			for _, err := range lister.List(ctx) {
				last = err
			}
			e.check(errors.Is(last, context.Canceled), "listing with a context that has ended: want the error %q, got: %v", context.Canceled, last)
			e.grant(e.s, e.claim(e.name("after")))
		},
	},
	{
		"batch/renews",
		"Many elections in one request must each be renewed as they would be alone, in the order asked.",
		func(e *env) {
			renewer := optional[store.BatchRenewer](e)
			var batch []store.Renewal
			for i := range 20 {
				batch = append(batch, store.Renewal{Lease: e.grant(e.s, e.claim(e.name(strconv.Itoa(i)))), Attempt: e.attempt()})
			}
			first := renewer.RenewBatch(e.ctx, batch)
			e.check(len(first) == len(batch), "%d renewals got %d answers", len(batch), len(first))
			again := renewer.RenewBatch(e.ctx, batch)
			e.check(len(again) == len(batch), "%d replayed renewals got %d answers", len(batch), len(again))
			for i, b := range batch {
				e.must(first[i].Err, "renewing entry %d", i)
				e.must(again[i].Err, "replaying entry %d", i)
				l, r := first[i].Lease, again[i].Lease
				e.check(l.Name == b.Lease.Name && l.TermID == b.Lease.TermID && l.Token == b.Lease.Token && l.Renewal == 1 && l.Attempt == b.Attempt && !l.Replayed &&
					l.Receipt != b.Lease.Receipt, "entry %d of %+v was answered with %+v", i, b, l)
				e.check(r.Replayed && r.Receipt == l.Receipt && r.Renewal == 1 && r.Attempt == b.Attempt, "entry %d was replayed as %+v, first was %+v", i, r, l)
				e.renew(e.s, l)
			}
			e.check(len(renewer.RenewBatch(e.ctx, nil)) == 0, "no renewals got answers")
		},
	},
	{
		"batch/one-harms-no-other",
		"One lost, cloned or broken entry must not end the leaderships that stand beside it.",
		func(e *env) {
			renewer := optional[store.BatchRenewer](e)
			good := func(name string) store.Renewal {
				return store.Renewal{Lease: e.grant(e.s, e.claim(e.name(name))), Attempt: e.attempt()}
			}
			twin := good("twin")
			e.renew(e.s, twin.Lease)
			superseded := good("superseded")
			e.release(e.s, superseded.Lease, "")
			e.grant(e.s, e.claim(superseded.Lease.Name))
			released := good("released")
			e.release(e.s, released.Lease, "")
			madeUp := good("made-up")
			madeUp.Lease.Receipt = "made-up"
			unknown := good("known")
			unknown.Lease.Name = e.name("unknown")
			odd := good("odd")
			odd.Attempt = ""
			badName := good("good-name")
			badName.Lease.Name = "new\nline"
			replay := good("replay")
			e.renewBy(e.s, replay.Lease, replay.Attempt)

			entries := []struct {
				r    store.Renewal
				want error
			}{
				{good("good-1"), nil},
				{twin, store.ErrCloned},
				{good("good-2"), nil},
				{superseded, store.ErrSuperseded},
				{released, store.ErrReleased},
				{madeUp, store.ErrReceipt},
				{good("good-3"), nil},
				{unknown, store.ErrNoRecord},
				{odd, store.ErrInvalid},
				{badName, store.ErrInvalid},
				{replay, nil},
				{good("good-4"), nil},
			}
			var batch []store.Renewal
			for _, entry := range entries {
				batch = append(batch, entry.r)
			}
			answers := renewer.RenewBatch(e.ctx, batch)
			e.check(len(answers) == len(batch), "%d renewals got %d answers", len(batch), len(answers))
			for i, entry := range entries {
				if entry.want != nil {
					e.refused(answers[i].Err, entry.want, "renewing entry %d, %q", i, entry.r.Lease.Name)
					e.check(answers[i].Lease == store.Lease{}, "entry %d: a lease came with the refusal: %+v", i, answers[i].Lease)
					continue
				}
				e.must(answers[i].Err, "renewing entry %d, %q", i, entry.r.Lease.Name)
				e.check(answers[i].Lease.Name == entry.r.Lease.Name && answers[i].Lease.Renewal == 1, "entry %d, %q, was answered with %+v", i, entry.r.Lease.Name, answers[i].Lease)
				e.renew(e.s, answers[i].Lease)
			}
			e.check(e.get(e.s, twin.Lease.Name).Burnt(), "the twin in the batch did not burn its term")
		},
	},
	{
		"batch/cancelled",
		"Every entry of a batch whose context has ended must get that answer: none may look renewed.",
		func(e *env) {
			renewer := optional[store.BatchRenewer](e)
			var batch []store.Renewal
			for i := range 3 {
				batch = append(batch, store.Renewal{Lease: e.grant(e.s, e.claim(e.name(strconv.Itoa(i)))), Attempt: e.attempt()})
			}
			ctx, cancel := context.WithCancel(e.ctx)
			cancel()
			answers := renewer.RenewBatch(ctx, batch)
			e.check(len(answers) == len(batch), "%d renewals got %d answers", len(batch), len(answers))
			for i, a := range answers {
				e.check(errors.Is(a.Err, context.Canceled), "entry %d: want the error %q, got: %v", i, context.Canceled, a.Err)
				e.renewBy(e.s, batch[i].Lease, batch[i].Attempt)
			}
		},
	},
	{
		"evict/asks-the-holder",
		"An operator's wish must reach the holder at its next renewal, and let nobody in before it has gone.",
		func(e *env) {
			evictor := optional[store.Evictor](e)
			c := e.claim(e.name("a"))
			l := e.renew(e.s, e.grant(e.s, c))
			rec, err := evictor.Evict(e.ctx, store.Eviction{Name: l.Name, TermID: l.TermID, Reason: "drain host 7"})
			e.must(err, "evicting")
			e.check(rec.Name == l.Name && rec.Token == l.Token && rec.State == store.Live && rec.Evicted == "drain host 7", "want the live term marked with the reason, got %+v", rec)
			e.check(e.get(e.s, l.Name).Evicted == "drain host 7", "the record does not show the reason")
			e.held(e.open(), e.claim(l.Name), "acquiring before the evicted holder has gone")
			err = e.notRenewed(e.s, l, e.attempt(), store.ErrEvicted, "renewing an evicted term")
			var evicted *store.EvictedError
			e.check(errors.As(err, &evicted) && evicted.Reason == "drain host 7" && evicted.Name == l.Name, "the holder must learn the reason, got: %v", err)
			e.held(e.open(), e.claim(l.Name), "acquiring before the evicted holder has acknowledged")
			e.release(e.s, l, "")
			next := e.grant(e.open(), e.claim(l.Name))
			e.above(next.Token, l.Token, "after an eviction")
			e.check(e.get(e.s, l.Name).Evicted == "", "the eviction stuck to the next term")
			e.renew(e.s, next)
		},
	},
	{
		"evict/replay-of-the-grant",
		"A holder that never got its grant must not receive it after an operator asked it to go.",
		func(e *env) {
			evictor := optional[store.Evictor](e)
			c := e.claim(e.name("a"))
			e.grant(e.s, c)
			_, err := evictor.Evict(e.ctx, store.Eviction{Name: c.Name, Reason: "test"})
			e.must(err, "evicting")
			e.spent(c, "of an evicted term")
		},
	},
	{
		"evict/now",
		"For fenced work the next term may start at once; the evicted one must not renew itself back.",
		func(e *env) {
			evictor := optional[store.Evictor](e)
			l := e.grant(e.s, e.claim(e.name("a")))
			rec, err := evictor.Evict(e.ctx, store.Eviction{Name: l.Name, Reason: "hangs", Now: true})
			e.must(err, "evicting at once")
			e.check(rec.State != store.Live && rec.Remaining == 0, "want nobody to hold it, got %+v", rec)
			e.notRenewed(e.s, l, e.attempt(), store.ErrEvicted, "renewing a term that was evicted at once")
			next := e.grant(e.open(), e.claim(l.Name))
			e.above(next.Token, l.Token, "after an eviction")
			e.notRenewed(e.s, l, e.attempt(), store.ErrSuperseded, "renewing it after the next grant")
			e.renew(e.s, next)
		},
	},
	{
		"evict/which-term",
		"An eviction meant for one term must not hit the next.",
		func(e *env) {
			evictor := optional[store.Evictor](e)
			old := e.grant(e.s, e.claim(e.name("a")))
			e.release(e.s, old, "")
			l := e.grant(e.s, e.claim(old.Name))
			before := e.get(e.s, l.Name)
			_, err := evictor.Evict(e.ctx, store.Eviction{Name: l.Name, TermID: old.TermID, Reason: "test", Now: true})
			e.refused(err, store.ErrSuperseded, "evicting a term that is over")
			e.unchanged(e.s, before, "evicting a term that is over")
			e.renew(e.s, l)
		},
	},
	{
		"evict/nobody",
		"An eviction that finds nobody must say so, and not wait for the next holder.",
		func(e *env) {
			evictor := optional[store.Evictor](e)
			name := e.name("a")
			_, err := evictor.Evict(e.ctx, store.Eviction{Name: name, Reason: "test"})
			e.refused(err, store.ErrNoRecord, "evicting where there is no record")
			e.release(e.s, e.grant(e.s, e.claim(name)), "")
			_, err = evictor.Evict(e.ctx, store.Eviction{Name: name, Reason: "test"})
			e.refused(err, store.ErrVacant, "evicting from a vacant election")
			e.grant(e.s, e.short(name))
			e.dead(e.s, name)
			_, err = evictor.Evict(e.ctx, store.Eviction{Name: name, Reason: "test"})
			e.refused(err, store.ErrVacant, "evicting a term that has expired")
			e.release(e.s, e.acquireAfter(e.s, e.claim(name)), "")
			l := e.grant(e.s, e.claim(name))
			for _, reason := range []string{"", "new\nline", strings.Repeat("r", store.ReasonMax+1)} {
				_, err = evictor.Evict(e.ctx, store.Eviction{Name: name, Reason: reason})
				e.refused(err, store.ErrInvalid, "evicting for a reason of %d bytes", len(reason))
			}
			e.renew(e.s, l)
		},
	},
	{
		"evict/watch",
		"Followers must hear of a term that was ended at once.",
		func(e *env) {
			evictor := optional[store.Evictor](e)
			l := e.grant(e.s, e.claim(e.name("a")))
			hints := e.watch(e.ctx, e.open(), l.Name)
			_, err := evictor.Evict(e.ctx, store.Eviction{Name: l.Name, Reason: "test", Now: true})
			e.must(err, "evicting at once")
			e.hinted(hints, "vacancy after an eviction", func(h store.Hint) bool { return h.Kind == store.HintVacant || h.Kind == store.HintChanged })
		},
	},
	{
		"history/lines",
		"After an incident people ask who led when, and what ended it.",
		func(e *env) {
			historian := optional[store.Historian](e)
			name := e.name("a")
			c := e.claim(name)
			c.Holder = "h1"
			first := e.grant(e.s, c)
			first = e.renew(e.s, first)
			e.release(e.s, first, "")
			c = e.claim(name)
			c.Holder = "h2"
			t := e.twins(c)
			e.notRenewed(e.s, t.renewed, e.attempt(), store.ErrCloned, "renewing a burnt term")
			all, err := historian.History(e.ctx, name, 100)
			e.must(err, "reading the history")
			var got []string
			for i := len(all) - 1; i >= 0; i-- {
				line := all[i]
				e.check(line.Name == name, "a line of %q in the history of %q", line.Name, name)
				e.check(!line.At.IsZero(), "a line without a time: %+v", line)
				got = append(got, line.What+" "+line.Holder+" "+strconv.FormatInt(int64(line.Token), 10)+" "+string(line.TermID))
			}
			line := func(what, holder string, l store.Lease) string {
				return what + " " + holder + " " + strconv.FormatInt(int64(l.Token), 10) + " " + string(l.TermID)
			}
			want := []string{line("granted", "h1", first), line("released", "h1", first), line("granted", "h2", t.lease), line("burnt", "h2", t.lease)}
			e.check(slices.Equal(got, want), "oldest first, the history says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			newest, err := historian.History(e.ctx, name, 1)
			e.must(err, "reading the newest line")
			e.check(len(newest) == 1 && newest[0].What == "burnt", "want the newest line only, got %+v", newest)
			none, err := historian.History(e.ctx, e.name("never"), 10)
			e.must(err, "reading the history of what was never granted")
			e.check(len(none) == 0, "there is a history of what was never granted: %+v", none)
		},
	},
	{
		"init/again",
		"Setting up what is set up must change nothing: operators run it twice.",
		func(e *env) {
			init := optional[store.Initializer](e)
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			_, err := init.Init(e.ctx)
			e.must(err, "setting up again")
			e.unchanged(e.s, before, "setting up again")
			e.renew(e.s, l)
		},
	},
	{
		"nonce/differs",
		"Two copies of a process draw equal random numbers for a while; the server's nonce is what tells them apart.",
		func(e *env) {
			optional[store.Noncer](e)
			seen := map[string]bool{}
			for range 3 {
				s := e.open()
				e.grant(s, e.claim(e.name(string(e.attempt()))))
				n, _ := store.As[store.Noncer](s)
				e.check(n.Nonce() != "", "after a request there is no nonce")
				e.check(!seen[n.Nonce()], "two connections have the nonce %q", n.Nonce())
				seen[n.Nonce()] = true
			}
		},
	},
}

// optional returns what a store need not be, or skips the case.
func optional[T any](e *env) T {
	t, ok := store.As[T](e.s)
	if !ok {
		e.skip("the %s store is no %v", e.caps.Store, reflect.TypeFor[T]())
	}
	return t
}

// watch watches an election until ctx ends, or the case does.
func (e *env) watch(ctx context.Context, s store.Store, name string) <-chan store.Hint {
	w, ok := store.As[store.Watcher](s)
	if !ok {
		e.skip("the %s store is no store.Watcher", e.caps.Store)
	}
	hints, err := w.Watch(ctx, name)
	e.must(err, "watching %q", name)
	return hints
}

// hinted waits for a hint that is wanted and passes over the others.
func (e *env) hinted(hints <-chan store.Hint, of string, wanted func(store.Hint) bool) store.Hint {
	end := time.NewTimer(hintWait)
	defer end.Stop()
	for {
		select {
		case h, open := <-hints:
			e.check(open, "the watch ended before the hint of %s", of)
			if wanted(h) {
				return h
			}
		case <-end.C:
			e.failf("no hint of %s within %v", of, hintWait)
		}
	}
}

// unchangedButTime ends the case if two views of one record differ in anything
// but the time that is left.
func (e *env) unchangedButTime(listed, read store.Record) {
	listed.Remaining, read.Remaining = 0, 0
	e.check(sameRecord(listed, read), "the list shows\n%+v\na read\n%+v", listed, read)
}
