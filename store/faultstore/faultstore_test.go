package faultstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/faultstore"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/store/storetest"
)

const ttl = 15 * time.Second

// bubble runs a test on a store with faults, in a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T, f *faultstore.Store, mem *memstore.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		test(t, faultstore.New(mem), mem)
	})
}

func claim(name string, a store.Attempt) store.Claim {
	return store.Claim{Name: name, Holder: "h", Attempt: a, TTL: ttl}
}

// grant acquires without faults.
func grant(t *testing.T, mem *memstore.Store, name string) store.Lease {
	t.Helper()
	l, err := mem.Acquire(t.Context(), claim(name, store.Attempt("grant-"+name)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got the error %v, want %v", got, want)
	}
}

func wantRenewals(t *testing.T, mem *memstore.Store, name string, want int64) {
	t.Helper()
	rec, err := mem.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Renewal != want {
		t.Fatalf("%q is at renewal %d, want %d", name, rec.Renewal, want)
	}
}

// TestTransparent holds a wrapper without rules to all that the wrapped store
// must do.
func TestTransparent(t *testing.T) {
	for _, c := range storetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New(nil)
				err := c.Run(t.Context(), storetest.Harness{
					Open: func(context.Context) (store.Store, func() error, error) {
						s := mem.Share()
						return faultstore.New(s), s.Close, nil
					},
				})
				var skip *storetest.SkipError
				if err != nil && !errors.As(err, &skip) {
					t.Error(err)
				}
			})
		})
	}
}

func TestFail(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		boom := errors.New("boom")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Fault: faultstore.Fail(boom)})
		_, err := f.Renew(t.Context(), l, "r1")
		wantErr(t, err, boom)
		wantRenewals(t, mem, "a", 0)
		f.Clear()
		if _, err := f.Renew(t.Context(), l, "r1"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFailWithoutAnError(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, _ *memstore.Store) {
		f.Add(faultstore.Rule{Fault: faultstore.Fail(nil)})
		_, err := f.Get(t.Context(), "a")
		wantErr(t, err, store.ErrUnreachable)
	})
}

func TestRules(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		for _, name := range []string{"a", "b"} {
			grant(t, mem, name)
		}
		second, third := errors.New("second"), errors.New("third")
		f.Add(
			faultstore.Rule{Op: faultstore.Get, Name: "a", Nth: 2, Fault: faultstore.Fail(second)},
			faultstore.Rule{Op: faultstore.Get, Nth: 4, Fault: faultstore.Fail(third)},
		)
		var got []error
		for _, name := range []string{"b", "a", "a", "a", "b"} {
			_, err := f.Get(t.Context(), name)
			got = append(got, err)
		}
		if want := []error{nil, nil, second, third, nil}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if err := f.Abandon(t.Context(), "a", "x"); err != nil {
			t.Errorf("a rule for another operation struck: %v", err)
		}
	})
}

func TestTheFirstRuleWins(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, _ *memstore.Store) {
		boom := errors.New("boom")
		f.Add(
			faultstore.Rule{Op: faultstore.Get, Name: "spared", Fault: faultstore.Fault{}},
			faultstore.Rule{Fault: faultstore.Fail(boom)},
		)
		_, err := f.Get(t.Context(), "spared")
		wantErr(t, err, store.ErrNoRecord)
		_, err = f.Get(t.Context(), "another")
		wantErr(t, err, boom)
	})
}

func TestDelay(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Fault: faultstore.Delay(4 * time.Second)})
		began := time.Now()
		if _, err := f.Renew(t.Context(), l, "r1"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("the call took %v", took)
		}
		began = time.Now()
		_, err := f.Renew(within(t, time.Second), l, "r2")
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Second {
			t.Errorf("the call whose context ended after a second took %v", took)
		}
		wantRenewals(t, mem, "a", 1)
	})
}

func TestHang(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Fault: faultstore.Hang()})
		began := time.Now()
		_, err := f.Renew(within(t, 3*time.Second), l, "r1")
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the call took %v", took)
		}
		if !store.OutcomeUnknown(err) {
			t.Error("the caller cannot know the outcome, and the error says that it can")
		}
		wantRenewals(t, mem, "a", 0)
	})
}

func TestStick(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Nth: 1, Fault: faultstore.Stick()})
		ctx := within(t, time.Second)
		done := make(chan error)
		go func() {
			_, err := f.Renew(ctx, l, "r1")
			done <- err
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("a stuck call came back by itself: %v", err)
		default:
		}
		f.Free()
		wantErr(t, <-done, faultstore.ErrStuck)
		wantRenewals(t, mem, "a", 0)
	})
}

func TestLoseReply(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		f.Add(faultstore.Rule{Op: faultstore.Acquire, Nth: 1, Fault: faultstore.LoseReply()})
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the request is on its way all the same
		_, err := f.Acquire(ctx, claim("a", "c1"))
		wantErr(t, err, faultstore.ErrReplyLost)
		if !store.OutcomeUnknown(err) {
			t.Error("the caller cannot know the outcome, and the error says that it can")
		}
		l, err := f.Acquire(t.Context(), claim("a", "c1"))
		if err != nil || !l.Replayed {
			t.Errorf("asked again by the same attempt: got %+v, %v, want the grant replayed", l, err)
		}
	})
}

func TestHangReply(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Add(faultstore.Rule{Op: faultstore.Release, Fault: faultstore.HangReply()})
		began := time.Now()
		wantErr(t, f.Release(within(t, 2*time.Second), l, ""), context.DeadlineExceeded)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the call took %v", took)
		}
		if rec, _ := mem.Get(t.Context(), "a"); rec.State != store.Vacant {
			t.Errorf("the release was not carried out: %v", rec.State)
		}
	})
}

func TestDuplicate(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Nth: 1, Fault: faultstore.Duplicate()})
		r, err := f.Renew(t.Context(), l, "r1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Renew(t.Context(), r, "r2"); err != nil {
			t.Fatal(err)
		}
		late := f.Deliver()
		if len(late) != 1 || late[0].Op != faultstore.Renew || late[0].Attempt != "r1" {
			t.Fatalf("delivered %+v, want the first renewal", late)
		}
		wantErr(t, late[0].Err, store.ErrReceipt)
		wantRenewals(t, mem, "a", 2)
		if again := f.Deliver(); len(again) != 0 {
			t.Errorf("delivered twice: %+v", again)
		}
	})
}

func TestLate(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		f.Add(faultstore.Rule{Op: faultstore.Acquire, Nth: 1, Fault: faultstore.Late()})
		_, err := f.Acquire(within(t, time.Second), claim("a", "c1"))
		wantErr(t, err, context.DeadlineExceeded)
		if _, err := mem.Get(t.Context(), "a"); !errors.Is(err, store.ErrNoRecord) {
			t.Fatalf("the request arrived at once: %v", err)
		}
		if late := f.Deliver(); len(late) != 1 || late[0].Err != nil {
			t.Fatalf("delivered %+v", late)
		}
		if rec, err := mem.Get(t.Context(), "a"); err != nil || rec.TermID != "c1" {
			t.Errorf("the late request was not carried out: %+v, %v", rec, err)
		}
	})
}

func TestPanic(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Nth: 1, Fault: faultstore.Panic("boom")})
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v, want boom", got)
				}
			}()
			f.Renew(t.Context(), l, "r1")
		}()
		if calls := f.Calls(); len(calls) != 1 || !calls[0].Done {
			t.Errorf("the call that panicked is not done: %+v", calls)
		}
		if _, err := f.Renew(t.Context(), l, "r1"); err != nil {
			t.Errorf("the rule was for one call: %v", err)
		}
	})
}

func TestCut(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		f.Cut()
		for name, call := range map[string]func(context.Context) error{
			"acquire": func(ctx context.Context) error { _, err := f.Acquire(ctx, claim("b", "c1")); return err },
			"renew":   func(ctx context.Context) error { _, err := f.Renew(ctx, l, "r1"); return err },
			"release": func(ctx context.Context) error { return f.Release(ctx, l, "") },
			"abandon": func(ctx context.Context) error { return f.Abandon(ctx, "a", l.TermID) },
			"get":     func(ctx context.Context) error { _, err := f.Get(ctx, "a"); return err },
		} {
			began := time.Now()
			if err := call(within(t, time.Second)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s on a store that is cut off: %v", name, err)
			}
			if took := time.Since(began); took != time.Second {
				t.Errorf("%s on a store that is cut off came back after %v", name, took)
			}
		}
		wantRenewals(t, mem, "a", 0)

		hung := make(chan error)
		go func() {
			_, err := f.Get(within(t, time.Minute), "a")
			hung <- err
		}()
		synctest.Wait()
		f.Heal()
		if _, err := f.Renew(t.Context(), l, "r1"); err != nil {
			t.Errorf("after it healed: %v", err)
		}
		wantErr(t, <-hung, context.DeadlineExceeded)
	})
}

// TestCutLosesTheReply cuts the store off while a request is on its way.
func TestCutLosesTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(nil)
		slow := slowStore{Store: mem, arrived: make(chan struct{}), answer: make(chan struct{})}
		f := faultstore.New(slow)
		done := make(chan error)
		go func() {
			_, err := f.Acquire(within(t, time.Second), claim("a", "c1"))
			done <- err
		}()
		<-slow.arrived
		f.Cut()
		close(slow.answer)
		wantErr(t, <-done, context.DeadlineExceeded)
		if rec, err := mem.Get(t.Context(), "a"); err != nil || rec.State != store.Live {
			t.Errorf("the request had arrived: %+v, %v", rec, err)
		}
	})
}

type slowStore struct {
	store.Store
	arrived, answer chan struct{}
}

func (s slowStore) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	l, err := s.Store.Acquire(ctx, c)
	close(s.arrived)
	<-s.answer
	return l, err
}

func TestCalls(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		l := grant(t, mem, "a")
		boom := errors.New("boom")
		f.Add(faultstore.Rule{Op: faultstore.Renew, Nth: 1, Fault: faultstore.Fail(boom)})
		f.Renew(t.Context(), l, "r1")
		f.Renew(t.Context(), l, "r1")
		f.Abandon(t.Context(), "b", "x1")
		f.Release(t.Context(), l, "r1")
		f.Cut()
		f.Get(within(t, time.Second), "a")
		var got []string
		for _, c := range f.Calls() {
			got = append(got, fmt.Sprintf("%s %s %s [%v] cut=%v done=%v %v", c.Op, c.Name, c.Attempt, c.Fault, c.Cut, c.Done, c.Err))
		}
		want := []string{
			"renew a r1 [fail: boom] cut=false done=true boom",
			"renew a r1 [none] cut=false done=true <nil>",
			"abandon b x1 [none] cut=false done=true <nil>",
			"release a r1 [none] cut=false done=true <nil>",
			"get a  [none] cut=true done=true context deadline exceeded",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
		if n := f.Count(faultstore.Renew); n != 2 {
			t.Errorf("counted %d renewals, want 2", n)
		}
	})
}

// onlyStore has nothing but what every store has.
type onlyStore struct{ store.Store }

func TestOptionalInterfaces(t *testing.T) {
	mem := memstore.New(nil)
	for _, test := range []struct {
		what  string
		inner store.Store
		want  bool
	}{
		{"memory has them", mem, true},
		{"memory behind another wrapper has them", faultstore.New(mem), true},
		{"a store that hides them has not", onlyStore{mem}, false},
	} {
		f := faultstore.New(test.inner)
		_, batch := store.As[store.BatchRenewer](f)
		_, watch := store.As[store.Watcher](f)
		_, evict := store.As[store.Evictor](f)
		_, list := store.As[store.Lister](f)
		_, history := store.As[store.Historian](f)
		if got := []bool{batch, watch, evict, list, history}; slices.Contains(got, !test.want) {
			t.Errorf("%s: found %v", test.what, got)
		}
		if _, ok := store.As[store.Noncer](f); ok {
			t.Errorf("%s: memory is no Noncer", test.what)
		}
	}
	if got, ok := store.As[*memstore.Store](faultstore.New(mem)); !ok || got != mem {
		t.Error("the wrapped store is out of reach")
	}
}

// TestEveryInterfaceFails looks that no way to the wrapped store goes past the
// faults.
func TestEveryInterfaceFails(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		grant(t, mem, "a")
		batch, _ := store.As[store.BatchRenewer](f)
		watch, _ := store.As[store.Watcher](f)
		evict, _ := store.As[store.Evictor](f)
		list, _ := store.As[store.Lister](f)
		history, _ := store.As[store.Historian](f)
		boom := errors.New("boom")
		f.Add(faultstore.Rule{Fault: faultstore.Fail(boom)})
		ctx := t.Context()

		for _, r := range batch.RenewBatch(ctx, make([]store.Renewal, 2)) {
			wantErr(t, r.Err, boom)
		}
		_, err := watch.Watch(ctx, "a")
		wantErr(t, err, boom)
		_, err = evict.Evict(ctx, store.Eviction{Name: "a", Reason: "test"})
		wantErr(t, err, boom)
		_, err = history.History(ctx, "a", 1)
		wantErr(t, err, boom)
		for _, err := range list.List(ctx) {
			wantErr(t, err, boom)
		}
		for _, s := range []any{batch, watch, evict, list, history} {
			_, err := s.(store.Store).Get(ctx, "a")
			wantErr(t, err, boom)
		}
	})
}

func TestHintsAreLost(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		w, _ := store.As[store.Watcher](f)
		ctx, cancel := context.WithCancel(t.Context())
		hints, err := w.Watch(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		hinted := func() bool {
			synctest.Wait()
			select {
			case _, open := <-hints:
				return open
			default:
				return false
			}
		}
		l := grant(t, mem, "a")
		if !hinted() {
			t.Error("without faults the hint of a grant was lost")
		}
		f.Add(faultstore.Rule{Op: faultstore.Hint, Nth: 1, Fault: faultstore.Fail(nil)})
		l, _ = mem.Renew(ctx, l, "r1")
		if hinted() {
			t.Error("the hint that a rule struck arrived")
		}
		l, _ = mem.Renew(ctx, l, "r2")
		if !hinted() {
			t.Error("the hint after it was lost too")
		}
		f.Add(faultstore.Rule{Fault: faultstore.Fail(nil)})
		l, _ = mem.Renew(ctx, l, "r2b")
		if !hinted() {
			t.Error("a rule for every operation lost a hint, which is none")
		}
		f.Cut()
		l, _ = mem.Renew(ctx, l, "r3")
		if hinted() {
			t.Error("a hint arrived although the store was cut off")
		}
		f.Heal()
		if err := mem.Release(ctx, l, ""); err != nil {
			t.Fatal(err)
		}
		if !hinted() {
			t.Error("after it healed a hint was lost")
		}
		cancel()
		synctest.Wait()
		if _, open := <-hints; open {
			t.Error("the watch outlived its context")
		}
	})
}

// TestHintsNobodyReads: only the newest is kept, and nothing waits for a reader;
// the bubble finds whatever does.
func TestHintsNobodyReads(t *testing.T) {
	bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
		w, _ := store.As[store.Watcher](f)
		ctx, cancel := context.WithCancel(t.Context())
		hints, err := w.Watch(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		l := grant(t, mem, "a")
		synctest.Wait()
		if err := mem.Release(ctx, l, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if h := <-hints; h.Kind != store.HintVacant {
			t.Errorf("the newest hint was lost, there is %+v", h)
		}
		for i := range 3 {
			l, err := mem.Acquire(ctx, claim("a", store.Attempt(fmt.Sprintf("c%d", i))))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			mem.Release(ctx, l, "")
			synctest.Wait()
		}
		cancel()
	})
}

// watched remembers the channel that a watch was given.
type watched struct {
	*memstore.Store
	hints <-chan store.Hint
}

func (s *watched) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	hints, err := s.Store.Watch(ctx, name)
	s.hints = hints
	return hints, err
}

// TestWatchWithALostReply ends with its context all the same.
func TestWatchWithALostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &watched{Store: memstore.New(nil)}
		f := faultstore.New(inner)
		f.Add(faultstore.Rule{Op: faultstore.Watch, Fault: faultstore.LoseReply()})
		w, _ := store.As[store.Watcher](f)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := w.Watch(ctx, "a")
		wantErr(t, err, faultstore.ErrReplyLost)
		cancel()
		synctest.Wait()
		select {
		case _, open := <-inner.hints:
			if open {
				t.Error("a hint without a cause")
			}
		default:
			t.Error("the watch outlived its context")
		}
	})
}

// TestBatch strikes one entry of three, and says what becomes of the others.
func TestBatch(t *testing.T) {
	boom := errors.New("boom")
	for _, test := range []struct {
		what      string
		rule      faultstore.Rule
		want      []error // per entry
		renewals  []int64 // what the store has then
		delivered int
	}{
		{
			"fail one entry",
			faultstore.Rule{Op: faultstore.Renew, Name: "b", Fault: faultstore.Fail(boom)},
			[]error{nil, boom, nil},
			[]int64{1, 0, 1},
			0,
		},
		{
			"lose one reply",
			faultstore.Rule{Op: faultstore.Renew, Name: "b", Fault: faultstore.LoseReply()},
			[]error{nil, faultstore.ErrReplyLost, nil},
			[]int64{1, 1, 1},
			0,
		},
		{
			"hang one entry",
			faultstore.Rule{Op: faultstore.Renew, Name: "b", Fault: faultstore.Hang()},
			[]error{context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded},
			[]int64{0, 0, 0},
			0,
		},
		{
			"hang one reply",
			faultstore.Rule{Op: faultstore.Renew, Name: "b", Fault: faultstore.HangReply()},
			[]error{context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded},
			[]int64{1, 1, 1},
			0,
		},
		{
			"duplicate one entry",
			faultstore.Rule{Op: faultstore.Renew, Name: "b", Fault: faultstore.Duplicate()},
			[]error{nil, nil, nil},
			[]int64{1, 1, 1},
			1,
		},
		{
			"the second renewal of all",
			faultstore.Rule{Op: faultstore.Renew, Nth: 2, Fault: faultstore.Fail(boom)},
			[]error{nil, boom, nil},
			[]int64{1, 0, 1},
			0,
		},
		{
			"fail the batch",
			faultstore.Rule{Op: faultstore.RenewBatch, Fault: faultstore.Fail(boom)},
			[]error{boom, boom, boom},
			[]int64{0, 0, 0},
			0,
		},
		{
			"lose the batch's reply",
			faultstore.Rule{Op: faultstore.RenewBatch, Fault: faultstore.LoseReply()},
			[]error{faultstore.ErrReplyLost, faultstore.ErrReplyLost, faultstore.ErrReplyLost},
			[]int64{1, 1, 1},
			0,
		},
		{
			"the batch arrives late",
			faultstore.Rule{Op: faultstore.RenewBatch, Fault: faultstore.Late()},
			[]error{context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded},
			[]int64{0, 0, 0},
			1,
		},
		{
			"fail a batch with b in it",
			faultstore.Rule{Op: faultstore.RenewBatch, Name: "b", Fault: faultstore.Fail(boom)},
			[]error{boom, boom, boom},
			[]int64{0, 0, 0},
			0,
		},
		{
			"fail a batch with z in it",
			faultstore.Rule{Op: faultstore.RenewBatch, Name: "z", Fault: faultstore.Fail(boom)},
			[]error{nil, nil, nil},
			[]int64{1, 1, 1},
			0,
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *faultstore.Store, mem *memstore.Store) {
				renewer, _ := store.As[store.BatchRenewer](f)
				names := []string{"a", "b", "c"}
				var batch []store.Renewal
				for _, name := range names {
					batch = append(batch, store.Renewal{Lease: grant(t, mem, name), Attempt: "r1"})
				}
				f.Add(test.rule)
				answers := renewer.RenewBatch(within(t, time.Second), batch)
				for i, a := range answers {
					if !errors.Is(a.Err, test.want[i]) {
						t.Errorf("entry %d: got the error %v, want %v", i, a.Err, test.want[i])
					}
					if got := a.Lease.Name; (a.Err == nil) != (got == names[i]) {
						t.Errorf("entry %d: got the lease of %q with the error %v", i, got, a.Err)
					}
					wantRenewals(t, mem, names[i], test.renewals[i])
				}
				if got := f.Deliver(); len(got) != test.delivered {
					t.Errorf("delivered %d late, want %d", len(got), test.delivered)
				}
				if test.rule.Op == faultstore.RenewBatch && test.delivered == 1 {
					wantRenewals(t, mem, "b", 1)
				}
				if n, entries := f.Count(faultstore.RenewBatch), f.Count(faultstore.Renew); n != 1 || entries != 3 {
					t.Errorf("counted %d batches of %d renewals, want 1 of 3", n, entries)
				}
			})
		})
	}
}
