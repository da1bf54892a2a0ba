package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

var silent = slog.New(slog.DiscardHandler)

// quiet returns options without logs, and with whatever set changes.
func quiet(set func(*Options)) *Options {
	o := &Options{Logger: silent}
	if set != nil {
		set(o)
	}
	return o
}

// recorder is an observer that keeps what it hears.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) Observe(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// of returns the events of one type.
func of[T Event](r *recorder) []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ts []T
	for _, e := range r.events {
		if t, ok := e.(T); ok {
			ts = append(ts, t)
		}
	}
	return ts
}

func mustCampaign(t *testing.T, e *Elector) *Term {
	t.Helper()
	term, err := e.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func TestRunOnceLeadsAndReleases(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		want := errors.New("done badly")
		err := mustElector(t, s, "job", nil).RunOnce(t.Context(), func(ctx context.Context, term *Term) error {
			if term.Token() != 1 || term.Err() != nil || ctx.Err() != nil {
				t.Errorf("token %d, err %v, ctx %v", term.Token(), term.Err(), ctx.Err())
			}
			time.Sleep(time.Hour) // renewed all the while
			if err := term.Err(); err != nil {
				t.Errorf("after an hour: %v", err)
			}
			return want
		})
		if err != want {
			t.Errorf("got %v, want %v", err, want)
		}
		rec, err := s.Get(t.Context(), "job")
		if err != nil || rec.State != store.Vacant || rec.Renewal < 700 {
			t.Errorf("record %+v, %v", rec, err)
		}
	})
}

func TestRunLeadsAgainAfterEachEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		events := new(recorder)
		stop := start(t, mustElector(t, s, "job", func(o *Options) { o.Observer = events }), func(_ context.Context, term *Term) error {
			return fmt.Errorf("failed under token %d", term.Token())
		})
		time.Sleep(time.Minute)
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		n := len(of[Acquired](events))
		if n < 8 || n > 13 { // one at once, then one after each pause of 5 s and an eighth
			t.Errorf("%d terms in a minute", n)
		}
		if ended := of[JobEnded](events); len(ended) != n || ended[1].Err.Error() != "failed under token 2" {
			t.Errorf("ends: %+v", ended)
		}
		if rel := of[Released](events); len(rel) != n || !rel[0].Free {
			t.Errorf("releases: %+v", rel)
		}
	})
}

func TestWrongUse(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		if _, err := NewElector(nil, "job", nil); err == nil {
			t.Error("a nil store was taken")
		}
		e := mustElector(t, s, "job", nil)
		for _, f := range []func(context.Context, func(context.Context, *Term) error) error{e.Run, e.RunOnce, e.TryRun} {
			if err := f(t.Context(), nil); err == nil {
				t.Error("a nil job was taken")
			}
		}
		term := mustCampaign(t, e)
		if _, err := e.Campaign(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("contending twice: %v", err)
		}
		if err := e.Run(t.Context(), func(context.Context, *Term) error { return nil }); !errors.Is(err, ErrBusy) {
			t.Errorf("contending twice: %v", err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestContendingEndsWhenItMakesNoSense(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		e := mustElector(t, s, "job", nil)
		s.Close()
		job := func(context.Context, *Term) error { return nil }
		for name, run := range map[string]func(context.Context, func(context.Context, *Term) error) error{"Run": e.Run, "RunOnce": e.RunOnce, "TryRun": e.TryRun} {
			if err := run(t.Context(), job); !errors.Is(err, store.ErrStoreClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestCampaignStopsWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		holder := mustCampaign(t, mustElector(t, s, "job", nil))
		defer holder.Resign(context.Background())
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, why)
		defer cancel()
		began := time.Now()
		if _, err := mustElector(t, s, "job", nil).Campaign(ctx); err != why {
			t.Errorf("got %v", err)
		}
		if d := time.Since(began); d != time.Minute {
			t.Errorf("waited %v", d)
		}
	})
}

func TestCampaignTermOutlivesItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		term, err := mustElector(t, s, "job", nil).Campaign(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Hour)
		if err := term.Err(); err != nil {
			t.Error(err)
		}
		if term.Context().Err() != nil {
			t.Error("the term's context ended")
		}
		_ = term.Resign(t.Context())
	})
}

// A waiter asks when it is told to, not all the time; a release wakes it at once.
func TestWaitersAreCheapAndQuick(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		leader := mustCampaign(t, mustElector(t, s, "job", nil))
		h := &hooked{Store: s}
		elected := make(chan time.Time)
		go func() {
			term, err := mustElector(t, h, "job", nil).Campaign(t.Context())
			if err != nil {
				t.Error(err)
			}
			elected <- time.Now()
			_ = term.Resign(context.Background())
		}()
		time.Sleep(time.Hour)
		if n := h.count("acquire"); n > 32 { // one in 120 s, and two to begin with
			t.Errorf("a waiter asked %d times in an hour", n)
		}
		if err := leader.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		freed := time.Now()
		if d := (<-elected).Sub(freed); d > 50*time.Millisecond {
			t.Errorf("noticed the release after %v", d)
		}
	})
}

// A leader that is gone is followed as soon as its lease has run out.
func TestTakeoverFollowsExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		if _, err := s.Acquire(t.Context(), store.Claim{Name: "job", Holder: "dead", Attempt: "a", TTL: 15 * time.Second}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		term := mustCampaign(t, mustElector(t, s, "job", nil))
		if d := time.Since(began); d < 15*time.Second || d > 15*time.Second+100*time.Millisecond {
			t.Errorf("took over after %v", d)
		}
		_ = term.Resign(t.Context())
	})
}

// Terms on one store share renewals.
func TestRenewalsAreShared(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		const n = 500
		terms := make([]*Term, n)
		for i := range terms {
			terms[i] = mustCampaign(t, mustElector(t, h, fmt.Sprintf("job-%d", i), nil))
			time.Sleep(17 * time.Millisecond) // out of step
		}
		time.Sleep(time.Minute) // fall into step
		before := h.count("batch") + h.count("renew")
		time.Sleep(10 * time.Minute)
		if per := float64(h.count("batch")+h.count("renew")-before) / 600; per > 0.3 {
			t.Errorf("%.2f requests a second for %d terms", per, n)
		}
		seen := make(map[fence.Stamp]bool)
		for _, term := range terms {
			if err := term.Err(); err != nil {
				t.Fatal(err)
			}
			seen[term.Stamp("r")] = true
			_ = term.Resign(t.Context())
		}
		if len(seen) != n {
			t.Errorf("%d different stamps of %d terms", len(seen), n)
		}
	})
}

// Confirm says yes on an answer to a renewal drawn after the question.
func TestConfirm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		var mu sync.Mutex
		var renewals int
		var gate chan struct{}
		replay := false
		h := &hooked{Store: s}
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			mu.Lock()
			renewals++
			wait, lose := gate, replay
			replay = false
			mu.Unlock()
			if wait != nil {
				<-wait
			}
			l, err := s.Renew(ctx, l, a)
			if lose {
				return store.Lease{}, errors.New("reply lost")
			}
			return l, err
		}
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		defer func() { _ = term.Resign(context.Background()) }()
		count := func() int { mu.Lock(); defer mu.Unlock(); return renewals }

		if err := term.Confirm(t.Context()); err != nil || count() != 1 {
			t.Errorf("%v after %d renewals", err, count())
		}

		// Concurrent questions share one renewal, but none that was drawn before.
		mu.Lock()
		gate = make(chan struct{})
		open := gate
		mu.Unlock()
		time.Sleep(5 * time.Second) // the regular renewal is out
		synctest.Wait()
		answers := make(chan error, 10)
		for range cap(answers) {
			go func() { answers <- term.Confirm(t.Context()) }()
		}
		synctest.Wait()
		mu.Lock()
		gate = nil
		mu.Unlock()
		close(open)
		for range cap(answers) {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		if n := count(); n != 3 {
			t.Errorf("%d renewals, want the first, the pending and one for all who asked", n)
		}

		// An answer given again is no fresh one.
		mu.Lock()
		replay = true
		mu.Unlock()
		if err := term.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		if n := count(); n != 6 {
			t.Errorf("%d renewals, want 3 more: lost, replayed, fresh", n)
		}

		// No answer is no yes.
		h.partition(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := term.Confirm(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := term.Confirm(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}

// A copy of this process renewed first: the term ends with the proof.
func TestClonedTermEnds(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		var twin store.Lease
		h := &hooked{Store: s}
		h.acquire = func(ctx context.Context, c store.Claim) (l store.Lease, err error) {
			twin, err = s.Acquire(ctx, c)
			return twin, err
		}
		e := mustElector(t, h, "job", nil)
		term := mustCampaign(t, e)
		if _, err := s.Renew(t.Context(), twin, "the-copys-attempt"); err != nil {
			t.Fatal(err)
		}
		err := term.Confirm(t.Context())
		var proof *store.ClonedError
		if !errors.Is(err, ErrCloned) || !errors.As(err, &proof) || proof.Burn.First != "the-copys-attempt" {
			t.Errorf("got %v", err)
		}
		// Nobody gets in before the burnt term's expiry: the copy may be valid.
		began := time.Now()
		next := mustCampaign(t, e)
		if d := time.Since(began); d < 14*time.Second {
			t.Errorf("in after %v", d)
		}
		if next.Token() != 2 {
			t.Errorf("token %d", next.Token())
		}
		_ = next.Resign(t.Context())
	})
}

func TestTermEndsForCause(t *testing.T) {
	refusal := &fence.StaleError{Resource: "invoices", Token: 1, Seen: 2, Why: "a higher token was seen"}
	seen := errors.New("boot id changed")
	for _, tc := range []struct {
		name   string
		cause  error
		set    func(*Options)
		do     func(ctx context.Context, s *memstore.Store, term *Term) error
		freed  bool // released once the job is over, so that nobody waits for the expiry
		within time.Duration
	}{
		{
			name: "revoked", cause: ErrDisrupted,
			do: func(_ context.Context, _ *memstore.Store, term *Term) error { term.Revoke(seen); return nil },
		},
		{
			name: "fenced", cause: ErrFenced,
			do: func(_ context.Context, _ *memstore.Store, term *Term) error { return term.Fenced(refusal) },
		},
		{
			name: "job returns a refusal", cause: ErrFenced,
			do: func(context.Context, *memstore.Store, *Term) error { return fmt.Errorf("writing: %w", refusal) },
		},
		{
			name: "evicted", cause: ErrEvicted, freed: true, within: 5 * time.Second,
			do: func(ctx context.Context, s *memstore.Store, _ *Term) error {
				_, err := s.Evict(ctx, store.Eviction{Name: "job", Reason: "maintenance"})
				return err
			},
		},
		{
			name: "stalled", cause: ErrStalled, freed: true, within: 3 * time.Second,
			set: func(o *Options) { o.StallAfter = 3 * time.Second },
			do:  func(context.Context, *memstore.Store, *Term) error { return nil },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				events := new(recorder)
				e := mustElector(t, s, "job", func(o *Options) {
					o.Observer = events
					if tc.set != nil {
						tc.set(o)
					}
				})
				err := e.RunOnce(t.Context(), func(ctx context.Context, term *Term) error {
					if err := tc.do(ctx, s, term); err != nil {
						return err
					}
					began := time.Now()
					<-ctx.Done()
					if d := time.Since(began); d > tc.within {
						t.Errorf("ended after %v", d)
					}
					if err := context.Cause(ctx); !errors.Is(err, tc.cause) {
						t.Errorf("the job's context ended with %v", err)
					}
					if err := term.Err(); !errors.Is(err, tc.cause) {
						t.Errorf("Err is %v", err)
					}
					return nil
				})
				var lost *LostError
				if !errors.Is(err, ErrLost) || !errors.Is(err, tc.cause) || !errors.As(err, &lost) || lost.Term.Token != 1 {
					t.Errorf("got %v", err)
				}
				if n := len(of[Lost](events)); n != 1 {
					t.Errorf("%d losses told", n)
				}
				rec, err := s.Get(t.Context(), "job")
				if err != nil {
					t.Fatal(err)
				}
				if freed := rec.State == store.Vacant; freed != tc.freed {
					t.Errorf("record is %v", rec.State)
				}
			})
		})
	}
}

// A job that reports progress is not stalled.
func TestProgressKeepsTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		e := mustElector(t, s, "job", func(o *Options) { o.StallAfter = 3 * time.Second })
		err := e.RunOnce(t.Context(), func(_ context.Context, term *Term) error {
			for range 20 {
				time.Sleep(2 * time.Second)
				term.Progress()
			}
			return term.Err()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The store refuses permission in mid-term: the reason is named when the term
// ends, not "expired".
func TestDeniedUntilStepDown(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		denied := fmt.Errorf("%w: UPDATE on tenure_lease", store.ErrDenied)
		h.renew = func(context.Context, store.Lease, store.Attempt) (store.Lease, error) { return store.Lease{}, denied }
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		began := time.Now()
		<-term.Done()
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("ended after %v", d)
		}
		if err := term.Err(); !errors.Is(err, ErrDenied) || !errors.Is(err, denied) || errors.Is(err, ErrExpired) {
			t.Errorf("got %v", err)
		}
	})
}

// The renewals are wedged for ever, by an observer that never returns or by a
// client that does not: the term ends all the same, in time.
func TestWedgedLoopEndsTerm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		hold := make(chan struct{})
		e := mustElector(t, s, "job", func(o *Options) {
			o.Observer = ObserverFunc(func(e Event) {
				if _, ok := e.(Renewed); ok {
					<-hold
				}
			})
		})
		term := mustCampaign(t, e)
		time.Sleep(5 * time.Second) // the first renewal: from here the loop is stuck
		began := time.Now()
		<-term.Done()
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("ended after %v", d)
		}
		if err := term.Err(); !errors.Is(err, ErrExpired) {
			t.Errorf("got %v", err)
		}
		close(hold)
	})
	bubble(t, func(t *testing.T, s *memstore.Store) {
		hold := make(chan struct{})
		h := &hooked{Store: s}
		h.renew = func(context.Context, store.Lease, store.Attempt) (store.Lease, error) {
			<-hold // ignores its context
			return store.Lease{}, errors.New("never mind")
		}
		events := new(recorder)
		term := mustCampaign(t, mustElector(t, h, "job", func(o *Options) { o.Observer = events }))
		began := time.Now()
		<-term.Done()
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("ended after %v", d)
		}
		if len(of[RenewFailed](events)) == 0 {
			t.Error("nobody was warned")
		}
		close(hold)
	})
}

// The same before the first renewal was answered.
func TestWedgedLoopEndsYoungTerm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		hold := make(chan struct{})
		h := &hooked{Store: s}
		h.renew = func(context.Context, store.Lease, store.Attempt) (store.Lease, error) {
			return store.Lease{}, errors.New("not now")
		}
		term := mustCampaign(t, mustElector(t, h, "job", func(o *Options) {
			o.Observer = ObserverFunc(func(e Event) {
				if _, ok := e.(RenewFailed); ok {
					<-hold
				}
			})
		}))
		began := time.Now()
		<-term.Done()
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("ended after %v", d)
		}
		close(hold)
	})
}

// A late answer does not bring an ended term back.
func TestLateAnswerAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		h.renew = func(_ context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			l, err := s.Renew(context.Background(), l, a)
			time.Sleep(8 * time.Second) // past step-down, within the lease
			return l, err
		}
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		<-term.Done()
		time.Sleep(time.Minute)
		if err := term.Err(); !errors.Is(err, ErrExpired) {
			t.Errorf("got %v", err)
		}
	})
}

// A slow answer lengthens the term by nothing: the right counts from the drawing.
func TestSlowAnswerDoesNotLengthenTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := s.Acquire(ctx, c)
			time.Sleep(1200 * time.Millisecond)
			return l, err
		}
		began := time.Now()
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		if d := time.Since(began); d != 1200*time.Millisecond {
			t.Fatalf("elected after %v", d)
		}
		if got, want := term.StepDownIn(), 8800*time.Millisecond; got != want {
			t.Errorf("steps down in %v, want %v", got, want)
		}
		_ = term.Resign(t.Context())
	})
}

func TestResignInsideAJob(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		err := mustElector(t, s, "job", nil).RunOnce(t.Context(), func(ctx context.Context, term *Term) error {
			if err := term.Resign(ctx); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrClosed) || term.Err() != nil {
				t.Errorf("cause %v, err %v", context.Cause(ctx), term.Err())
			}
			time.Sleep(time.Minute) // renewed while it drains
			return term.Err()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A stop cuts a minimum hold short without giving the slot away.
func TestStopDuringMinHold(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := mustElector(t, s, "job", func(o *Options) { o.MinHold = time.Hour }).RunOnce(ctx, func(context.Context, *Term) error { return nil })
		if err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("held on for %v", d)
		}
		if rec, _ := s.Get(t.Context(), "job"); rec.State != store.Live {
			t.Errorf("record is %v", rec.State)
		}
	})
}

func TestReasonsAreDistinct(t *testing.T) {
	seen := make(map[string]error)
	for _, cause := range []error{
		ErrExpired, ErrSuperseded, ErrCloned, ErrEvicted, ErrDenied, ErrRecordGone, ErrDisrupted, ErrStalled, ErrFenced, ErrPanicked, ErrClosed,
	} {
		name := Reason(fmt.Errorf("wrapped: %w", cause))
		if other, dup := seen[name]; dup || name == "other" {
			t.Errorf("%v and %v are both %q", cause, other, name)
		}
		seen[name] = cause
	}
	if Reason(errors.New("x")) != "other" {
		t.Error("an unknown cause has a name")
	}
}
