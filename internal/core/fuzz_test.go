package core

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
)

// FuzzEvents feeds any sequence of events, also ones that no shell would make,
// and checks what must hold whatever happens.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{15, 0, 4, 0, 0, 200, 5, 0, 11, 0, 6, 0})
	f.Add([]byte{15, 0, 4, 1, 0, 255, 0, 255, 7, 0})
	f.Fuzz(func(t *testing.T, script []byte) { playEvents(t, script) })
}

// TestRandomEvents is a fixed set of what FuzzEvents looks for.
func TestRandomEvents(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	terms := 0
	for range 3000 {
		script := make([]byte, 300)
		for i := range script {
			script[i] = byte(rng.Uint32())
			if i%2 == 0 && rng.IntN(2) == 0 {
				script[i] = byte(rng.IntN(6)) // time and answers more often than the rest
			}
		}
		terms += playEvents(t, script)
		if t.Failed() {
			t.Fatalf("by %v", script)
		}
	}
	if terms < 3000 {
		t.Errorf("only %d terms began: the events lead nowhere", terms)
	}
}

// watcher knows what the core has said so far.
type watcher struct {
	t     *testing.T
	s     State
	now   Reading
	drawn int
	terms int

	open, job bool                            // a term began and did not end; its job was started
	used      map[store.Receipt]store.Attempt // receipts that were presented, and by whom
}

func playEvents(t *testing.T, script []byte) (terms int) {
	cfg := Config{TTL: 9 * time.Second}
	if len(script) > 0 && script[0]&1 == 1 {
		cfg.MinHold = 5 * time.Second
	}
	w := &watcher{
		t: t, s: New(cfg.WithDefaults(len(script)%2 == 0), 1), now: Reading{Wall: 1000 * time.Hour, Mono: time.Hour, Boot: time.Hour},
		used: make(map[store.Receipt]store.Attempt),
	}
	w.step(Contend{})
	for i := 0; i+1 < len(script) && !t.Failed(); i += 2 {
		w.event(script[i], script[i+1])
		// What is due at once must come to rest.
		for n := 0; ; n++ {
			d, ok := w.s.Next(w.now)
			if !ok || d > 0 {
				break
			}
			if n == 20 {
				t.Fatalf("wants to be woken at once for ever, in phase %v", w.s.Phase)
			}
			w.step(Wake{})
		}
	}
	return w.terms
}

func (w *watcher) event(what, arg byte) {
	some := func(of ...error) error { return of[int(arg)%len(of)] }
	attempt := w.s.Pending
	if arg&64 != 0 {
		attempt = store.Attempt("a" + strconv.Itoa(int(arg&7))) // perhaps of long ago
	}
	lease := store.Lease{Name: "e", TermID: attempt, Token: 1, TTL: w.s.Cfg.TTL, Attempt: attempt}
	lease.Receipt = store.Receipt("0." + string(attempt))
	switch what % 18 {
	default: // time passes; the shell wakes when the core wished, or late
		d := time.Duration(arg) * 50 * time.Millisecond
		if next, ok := w.s.Next(w.now); ok && next < d {
			d = next
		}
		w.pass(d, d)
	case 6:
		w.pass(time.Duration(arg)*50*time.Millisecond, 0)
	case 7:
		w.now.Wall += time.Duration(int8(arg)) * 500 * time.Millisecond
	case 2, 3:
		err := some(nil, nil, nil, &store.HeldError{Remaining: time.Duration(arg) * time.Millisecond}, store.ErrSpent, store.ErrDenied, store.Undone(store.ErrUnreachable), errors.New("?"), store.ErrFormat)
		w.step(Reply{Op: OpAcquire, Attempt: attempt, Lease: lease, Err: err})
		return
	case 4, 5:
		lease.TermID, lease.Renewal = w.s.Lease.TermID, w.s.Lease.Renewal+1
		lease.Receipt = store.Receipt(strconv.Itoa(int(lease.Renewal)) + "." + string(attempt))
		err := some(nil, nil, nil, nil, errors.New("?"), store.ErrBusy, store.ErrCloned, store.ErrEvicted, store.ErrSuperseded, store.ErrNoRecord, store.ErrDenied,
			&store.ReceiptError{Presented: 1, Current: 3}, store.ErrExpired, ErrPanicked)
		w.step(Reply{Op: OpRenew, Attempt: attempt, Lease: lease, Err: err})
		return
	case 8:
		w.step(Reply{Op: OpRelease, Attempt: w.s.Lease.TermID, Err: some(nil, errors.New("?"), store.ErrSuperseded, store.ErrDenied)})
		return
	case 9:
		w.step(Reply{Op: OpAbandon, Attempt: attempt, Err: some(nil, errors.New("?"), store.ErrSuperseded, store.ErrDenied)})
		return
	case 10:
		w.step(Hint{Hint: store.Hint{Kind: store.HintKind(arg % 3), Remaining: time.Duration(int8(arg)) * time.Second}})
		return
	case 11:
		w.step(Round{})
		return
	case 12:
		w.step(Confirm{})
		return
	case 13, 14:
		w.step(JobDone{})
		return
	case 15:
		w.step(Yield{})
		return
	case 16:
		if arg < 64 {
			w.step(Stop{})
		}
		w.step(Contend{Once: arg&1 == 1})
		return
	case 17:
		w.step(Revoke{Cause: some(ErrDisrupted, ErrStalled, ErrFenced)})
		return
	}
	w.step(Wake{})
}

func (w *watcher) pass(d, mono time.Duration) {
	w.now.Wall += d
	w.now.Boot += d
	w.now.Mono += mono
}

func (w *watcher) step(ev Event) {
	before := w.s
	if _, ok := ev.(JobDone); ok {
		w.job = false
	}
	next, acts := w.s.Step(w.now, ev)
	w.s = next
	ended, called := false, false
	for _, a := range acts {
		switch a := a.(type) {
		case Draw:
			if next.Pending != "" {
				w.t.Errorf("%T: draws an attempt while %s is out", ev, next.Pending)
			}
			w.drawn++
			defer w.step(Drawn{Attempt: store.Attempt("a" + strconv.Itoa(w.drawn))})
		case Ask:
			called = true
			if w.open || w.job || a.Attempt != next.Pending {
				w.t.Errorf("%T: asks with %s (pending %s) while a term is open (%v) or a job runs (%v)", ev, a.Attempt, next.Pending, w.open, w.job)
			}
		case Renew:
			called = true
			if by, ok := w.used[a.Lease.Receipt]; ok && by != a.Attempt {
				w.t.Errorf("%T: two attempts on receipt %s: %s and %s", ev, a.Lease.Receipt, by, a.Attempt)
			}
			w.used[a.Lease.Receipt] = a.Attempt
			if !w.open {
				w.t.Errorf("%T: renews a term that is over", ev)
			}
		case Release:
			called = true
			if w.open || w.job {
				w.t.Errorf("%T: releases while the term is open (%v) or its job runs (%v)", ev, w.open, w.job)
			}
		case Begin:
			if w.open || w.job {
				w.t.Errorf("%T: begins a term while one is open (%v) or a job runs (%v)", ev, w.open, w.job)
			}
			w.open, w.job = true, true
			w.terms++
		case Extend:
			if !w.open {
				w.t.Errorf("%T: extends a term that is over", ev)
			}
			if a.Anchor != before.DrawnAt {
				w.t.Errorf("%T: the deadline counts from %v, not from the drawing at %v", ev, a.Anchor, before.DrawnAt)
			}
		case End:
			if !w.open {
				w.t.Errorf("%T: ends a term that is over", ev)
			}
			if called {
				w.t.Errorf("%T: calls the store before it publishes the end", ev)
			}
			w.open, ended = false, true
		case Over:
			if w.open || w.job {
				w.t.Errorf("%T: over while the term is open (%v) or its job runs (%v)", ev, w.open, w.job)
			}
		}
	}
	if next.Valid(w.now) && !w.open {
		w.t.Errorf("%T: valid although the term is over", ev)
	}
	if next.Valid(w.now) && w.now.Since(next.Anchor) >= next.Cfg.StepDown {
		w.t.Errorf("%T: valid %v after the drawing", ev, w.now.Since(next.Anchor))
	}
	if ended && next.Alive() {
		w.t.Errorf("%T: alive after its end", ev)
	}
	if _, ok := next.Next(w.now); !ok && next.Phase != Idle && next.Phase != Stopped && !next.Drawing && (!next.Lost || !next.Job) {
		w.t.Errorf("%T: in phase %v it waits for nothing", ev, next.Phase)
	}
}
