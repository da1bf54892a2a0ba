package tenure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

// Nobody who does not want to lead any more makes a request for it.
func TestContendingWithAnEndedContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		e := mustElector(t, h, "job", nil)
		why := errors.New("shut down before it began")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		job := func(context.Context, *Term) error {
			t.Error("the job started")
			return nil
		}
		for name, f := range map[string]func() error{
			"Run":      func() error { return e.Run(ctx, job) },
			"RunOnce":  func() error { return e.RunOnce(ctx, job) },
			"TryRun":   func() error { return e.TryRun(ctx, job) },
			"Campaign": func() error { _, err := e.Campaign(ctx); return err },
		} {
			if err := f(); err != why {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := h.count("acquire"); n != 0 {
			t.Errorf("%d claims", n)
		}
	})
}

// The context ends while the claim is on its way: whatever is granted is given
// back, and no term begins.
func TestContextEndsAtTheElection(t *testing.T) {
	why := errors.New("enough")
	for _, slow := range []time.Duration{0, time.Millisecond, time.Second} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				for _, after := range []time.Duration{0, slow / 2, slow} {
					h := &hooked{Store: s}
					h.acquire = func(_ context.Context, c store.Claim) (store.Lease, error) {
						l, err := s.Acquire(context.Background(), c)
						time.Sleep(slow) // deaf to its context
						return l, err
					}
					events := new(recorder)
					e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(after, func() { cancel(why) })
					term, err := e.Campaign(ctx)
					switch {
					case err == nil: // won the race
						if err := term.Err(); err != nil {
							t.Error(err)
						}
						_ = term.Resign(t.Context())
					case err != why:
						t.Error(err)
					case len(of[Acquired](events)) != 0:
						t.Error("a term was begun and not returned")
					}
					if rec, err := s.Get(t.Context(), "job"); err == nil && rec.State != store.Vacant {
						t.Errorf("stopped after %v: the record is %v", after, rec.State)
					}
					cancel(nil)
				}
			})
		})
	}
}

// To stop is no failure of the store, and is not told as one.
func TestStoppingIsNoFailure(t *testing.T) {
	for _, run := range []string{"RunOnce", "TryRun"} {
		bubble(t, func(t *testing.T, s *memstore.Store) {
			why := errors.New("enough")
			h := &hooked{Store: s}
			h.partition(true)
			events := new(recorder)
			e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
			defer cancel()
			f := map[string]func(context.Context, func(context.Context, *Term) error) error{"RunOnce": e.RunOnce, "TryRun": e.TryRun}[run]
			if err := f(ctx, func(context.Context, *Term) error { return nil }); err != why {
				t.Errorf("%s: %v", run, err)
			}
			if failed := of[AskFailed](events); len(failed) != 0 {
				t.Errorf("%s: told %v", run, failed)
			}
		})
	}
}

// A store that hangs, and a client that never returns, keep TryRun for a bounded
// time, and the error is the store's.
func TestTryRunOnAHangingStore(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *memstore.Store) {
			h := &hooked{Store: s}
			free := make(chan struct{})
			h.acquire = func(ctx context.Context, _ store.Claim) (store.Lease, error) {
				if !deaf {
					<-ctx.Done()
					return store.Lease{}, fmt.Errorf("%w: no reply", store.ErrUnreachable)
				}
				<-free
				return store.Lease{}, errors.New("never mind")
			}
			began := time.Now()
			err := mustElector(t, h, "job", nil).TryRun(t.Context(), func(context.Context, *Term) error {
				t.Error("the job started")
				return nil
			})
			if err == nil || errors.Is(err, ErrHeld) || !deaf && !errors.Is(err, store.ErrUnreachable) {
				t.Errorf("deaf %v: %v", deaf, err)
			}
			if d := time.Since(began); d > 9*time.Second { // five request time-outs, and the pauses between tries
				t.Errorf("deaf %v: took %v", deaf, d)
			}
			close(free)
		})
	}
}

// B19, with another answer to the second try: "refused" says nothing of the
// first, which was granted. The attempt is not forgotten, so the candidate does
// not wait for a lease of its own.
func TestB19_RefusedAfterALostReply(t *testing.T) {
	for name, refusal := range map[string]error{
		"connection refused": store.Undone(store.ErrUnreachable),
		"permission":         fmt.Errorf("%w: for a moment", store.ErrDenied),
		"read-only":          store.ErrReadOnly,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				var tries atomic.Int32
				h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
					switch tries.Add(1) {
					case 1:
						_, _ = s.Acquire(ctx, c)
						return store.Lease{}, errors.New("connection reset by peer")
					case 2, 3:
						return store.Lease{}, refusal
					}
					return s.Acquire(ctx, c)
				}
				began := time.Now()
				term := mustCampaign(t, mustElector(t, h, "job", nil))
				if d := time.Since(began); term.Token() != 1 || d > 2*time.Second {
					t.Errorf("token %d after %v", term.Token(), d)
				}
				_ = term.Resign(t.Context())
			})
		})
	}
}

// The same, and contending then ends: what was granted is given back.
func TestB19_HopelessAfterALostReply(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var tries atomic.Int32
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			if tries.Add(1) == 1 {
				_, _ = s.Acquire(ctx, c)
				return store.Lease{}, errors.New("connection reset by peer")
			}
			return store.Lease{}, store.ErrFormat
		}
		err := mustElector(t, h, "job", nil).Run(t.Context(), func(context.Context, *Term) error { return nil })
		if !errors.Is(err, store.ErrFormat) {
			t.Error(err)
		}
		if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Vacant {
			t.Errorf("record %v, %v", rec.State, err)
		}
	})
}

// A claim that was given up is granted late, after it was given back: it is given
// back again, instead of keeping everybody out for a lease's time.
func TestLateGrantIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var tries atomic.Int32
		var granted time.Time
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			if tries.Add(1) == 1 {
				time.Sleep(18 * time.Second) // held up on its way, deaf to its context
				granted = time.Now()
				return s.Acquire(context.Background(), c)
			}
			return store.Lease{}, fmt.Errorf("%w: no reply", store.ErrUnreachable)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			_ = mustElector(t, h, "job", nil).Run(ctx, func(context.Context, *Term) error {
				t.Error("the job started")
				return nil
			})
		}()
		time.Sleep(18*time.Second + time.Millisecond)
		synctest.Wait()
		if granted.IsZero() {
			t.Fatal("was not granted")
		}
		if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Vacant {
			t.Errorf("record %v, %v", rec.State, err)
		}
		<-ctx.Done()
		time.Sleep(time.Minute)
	})
}

// Waiting for a campaign that winds up is bounded by one's own context, whoever
// else waits.
func TestContendingWhileWindingUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		hold := make(chan struct{})
		e := mustElector(t, s, "job", func(o *Options) {
			o.Observer = ObserverFunc(func(e Event) {
				if _, ok := e.(Lost); ok {
					<-hold
				}
			})
		})
		term := mustCampaign(t, e)
		term.Revoke(errors.New("restored"))
		patient := make(chan error, 1)
		go func() {
			next, err := e.Campaign(context.Background())
			if err == nil {
				_ = next.Resign(context.Background())
			}
			patient <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := e.Campaign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("waited %v", d)
		}
		close(hold)
		if err := <-patient; err != nil {
			t.Error(err)
		}
	})
}

// Whoever sees the end of a term may contend anew: it is never "busy".
func TestContendingAtTheEndOfATerm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		hold := make(chan struct{})
		e := mustElector(t, s, "job", func(o *Options) {
			o.Observer = ObserverFunc(func(e Event) {
				if _, ok := e.(Draining); ok {
					<-hold
				}
			})
		})
		term := mustCampaign(t, e)
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		if err := term.Resign(dead); !errors.Is(err, context.Canceled) { // the loop is stuck
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { close(hold) })
		next := mustCampaign(t, e)
		if next.Token() != 2 {
			t.Errorf("token %d", next.Token())
		}
		_ = next.Resign(t.Context())
	})
}

// Evicted or stalled, a term of Campaign is released when its caller says that
// it has stopped, by resigning or by contending again; never under its work.
func TestLostCampaignTermIsReleasedByItsCaller(t *testing.T) {
	evict := func(t *testing.T, s *memstore.Store, term *Term) {
		if _, err := s.Evict(t.Context(), store.Eviction{Name: "job", Reason: "maintenance"}); err != nil {
			t.Fatal(err)
		}
		<-term.Done()
	}
	for _, tc := range []struct {
		name  string
		cause error
		end   func(*testing.T, *memstore.Store, *Term)
	}{
		{"evicted", ErrEvicted, evict},
		{"stalled", ErrStalled, func(_ *testing.T, _ *memstore.Store, term *Term) { <-term.Done() }},
	} {
		state := func(t *testing.T, s *memstore.Store) store.State {
			synctest.Wait()
			rec, err := s.Get(t.Context(), "job")
			if err != nil {
				t.Fatal(err)
			}
			return rec.State
		}
		set := func(o *Options) {
			if tc.cause == ErrStalled {
				o.StallAfter = 7 * time.Second
			}
		}
		t.Run(tc.name+", resigns", func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				term := mustCampaign(t, mustElector(t, s, "job", set))
				tc.end(t, s, term)
				if err := term.Err(); !errors.Is(err, tc.cause) {
					t.Error(err)
				}
				time.Sleep(time.Second)
				if st := state(t, s); st != store.Live {
					t.Errorf("%v while the caller's work may go on", st)
				}
				if err := term.Resign(t.Context()); err != nil {
					t.Error(err)
				}
				if st := state(t, s); st != store.Vacant {
					t.Errorf("%v after the caller has resigned", st)
				}
			})
		})
		t.Run(tc.name+", contends", func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				e := mustElector(t, s, "job", set)
				term := mustCampaign(t, e)
				tc.end(t, s, term)
				began := time.Now()
				next := mustCampaign(t, e)
				if d := time.Since(began); d > time.Second {
					t.Errorf("waited %v for its own lease", d)
				}
				_ = next.Resign(t.Context())
			})
		})
		t.Run(tc.name+", goes away", func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				events := new(recorder)
				term := mustCampaign(t, mustElector(t, h, "job", func(o *Options) { set(o); o.Observer = events }))
				tc.end(t, s, term)
				time.Sleep(time.Minute) // the bubble fails if the loop stays for ever
				if n := h.count("release"); n != 0 {
					t.Errorf("%d releases", n)
				}
				if n := len(of[Overdue](events)); n != 0 {
					t.Error("told of a job that nobody knows of")
				}
			})
		})
	}
}

// A term that a copy of this process may hold is not released, however soon its
// caller resigns.
func TestRevokedTermIsNotReleased(t *testing.T) {
	for name, end := range map[string]func(*Term){
		"revoked": func(term *Term) { term.Revoke(nil) },
		"fenced":  func(term *Term) { _ = term.Fenced(&fence.StaleError{Resource: "r", Token: 1, Seen: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				e := mustElector(t, h, "job", nil)
				term := mustCampaign(t, e)
				end(term)
				if err := term.Resign(t.Context()); err != nil {
					t.Error(err)
				}
				if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Live || h.count("release") != 0 {
					t.Errorf("record %v, %v, after %d releases", rec.State, err, h.count("release"))
				}
				began := time.Now()
				next := mustCampaign(t, e)
				if d := time.Since(began); d < 14*time.Second {
					t.Errorf("in again after %v", d)
				}
				end(next)
				// The same by contending at once.
				began = time.Now()
				next = mustCampaign(t, e)
				if d := time.Since(began); d < 14*time.Second {
					t.Errorf("in again after %v", d)
				}
				_ = next.Resign(t.Context())
			})
		})
	}
}

// What becomes of the lease after the job has returned does not change what the
// job came to.
func TestLossAfterTheJobIsNotTheJobs(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		events := new(recorder)
		e := mustElector(t, h, "job", func(o *Options) { o.MinHold, o.Observer = time.Minute, events })
		err := e.RunOnce(t.Context(), func(context.Context, *Term) error {
			h.partition(true)
			return nil
		})
		if err != nil {
			t.Errorf("the job returned nil, RunOnce %v", err)
		}
		if len(of[Lost](events)) != 1 {
			t.Error("the loss of the minimum hold was not told")
		}
	})
	// A job that returns after the end is told of it, also if it is the first to notice.
	bubble(t, func(t *testing.T, s *memstore.Store) {
		clock := new(fakeClock)
		e := mustElector(t, s, "job", nil)
		e.clock = clock
		err := e.RunOnce(t.Context(), func(context.Context, *Term) error {
			clock.wall.Store(int64(time.Hour))
			return nil
		})
		if !errors.Is(err, ErrExpired) {
			t.Errorf("got %v", err)
		}
		if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Live {
			t.Errorf("record %v, %v", rec.State, err)
		}
	})
}

// breaks are the ways in which what is called may not return: each gets a text
// that the error should show.
var breaks = map[string]struct {
	do   func(text string)
	says func(text string) string
}{
	"panic":  {func(text string) { panic(text) }, func(text string) string { return text }},
	"Goexit": {func(string) { runtime.Goexit() }, func(string) string { return "runtime.Goexit" }},
}

// An observer, a logger, a nonce and a watch that do not return end nothing.
func TestBreaksBesideTheTerm(t *testing.T) {
	for name, brk := range breaks {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				other, err := NewElector(s, "job", quiet(nil))
				if err != nil {
					t.Fatal(err)
				}
				holder := mustCampaign(t, other)
				time.AfterFunc(time.Second, func() { _ = holder.Resign(context.Background()) })

				var log bytes.Buffer
				events := new(recorder)
				e, err := NewElector(broken{s, brk.do}, "job", &Options{
					Logger:   slog.New(slog.NewTextHandler(&log, nil)),
					Observer: Observers(events, ObserverFunc(func(e Event) { brk.do(fmt.Sprintf("on %T", e)) })),
				})
				if err != nil {
					t.Fatal(err)
				}
				err = e.RunOnce(t.Context(), func(_ context.Context, term *Term) error {
					time.Sleep(time.Minute)
					return term.Err()
				})
				if err != nil {
					t.Error(err)
				}
				if len(of[Renewed](events)) < 11 || len(of[Released](events)) != 1 {
					t.Errorf("events: %v", events.events)
				}
				if !strings.Contains(log.String(), brk.says("on tenure.Acquired")) || !strings.Contains(log.String(), "event=tenure.Acquired") || !strings.Contains(log.String(), "released") {
					t.Errorf("the log says:\n%s", log.String())
				}
			})
			bubble(t, func(t *testing.T, s *memstore.Store) {
				e, err := NewElector(s, "job", &Options{Logger: slog.New(brokenHandler{do: brk.do})})
				if err != nil {
					t.Fatal(err)
				}
				if err := e.RunOnce(t.Context(), func(context.Context, *Term) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A store's client that does not return from an ask is asked again.
func TestClientBreaksInAnAsk(t *testing.T) {
	for name, brk := range breaks {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				var asked atomic.Int32
				h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
					if asked.Add(1) == 1 {
						brk.do("client bug")
					}
					return s.Acquire(ctx, c)
				}
				events := new(recorder)
				e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
				term := mustCampaign(t, e)
				if failed := of[AskFailed](events); len(failed) != 1 || !errors.Is(failed[0].Err, ErrPanicked) || !strings.Contains(failed[0].Err.Error(), brk.says("client bug")) {
					t.Errorf("told of %v", failed)
				}
				_ = term.Resign(t.Context())
			})
		})
	}
}

// broken is a store whose optional calls do not return.
type broken struct {
	store.Store
	do func(string)
}

func (b broken) Nonce() string { b.do("nonce"); return "" }

func (b broken) Watch(context.Context, string) (<-chan store.Hint, error) {
	b.do("watch")
	return nil, nil
}

type brokenHandler struct {
	slog.Handler
	do func(string)
}

func (h brokenHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h brokenHandler) Enabled(context.Context, slog.Level) bool { h.do("log"); return false }

// watching is a store whose hints a test gives.
type watching struct {
	store.Store
	watch func(context.Context, string) (<-chan store.Hint, error)
	n     atomic.Int32
}

func (w *watching) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	w.n.Add(1)
	return w.watch(ctx, name)
}

// A watch that does not work costs a few tries and leaves nothing behind. The
// vacancy is found at the expiry or by asking.
func TestBrokenWatches(t *testing.T) {
	closed := make(chan store.Hint)
	close(closed)
	for name, watch := range map[string]func(context.Context, string) (<-chan store.Hint, error){
		"fails":         func(context.Context, string) (<-chan store.Hint, error) { return nil, errors.New("no LISTEN here") },
		"is over":       func(context.Context, string) (<-chan store.Hint, error) { return closed, nil },
		"is nothing":    func(context.Context, string) (<-chan store.Hint, error) { return nil, nil },
		"never closes":  func(context.Context, string) (<-chan store.Hint, error) { return make(chan store.Hint), nil },
		"never returns": func(ctx context.Context, _ string) (<-chan store.Hint, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				holder := mustCampaign(t, mustElector(t, s, "job", nil))
				h := &hooked{Store: s}
				w := &watching{Store: h, watch: watch}
				time.AfterFunc(time.Hour, func() { _ = holder.Resign(context.Background()) })
				began := time.Now()
				term := mustCampaign(t, mustElector(t, w, "job", nil))
				if d := time.Since(began) - time.Hour; d < 0 || d > 15*time.Second {
					t.Errorf("noticed the release after %v", d)
				}
				if n := w.n.Load(); n > 721 {
					t.Errorf("%d watches in an hour", n)
				}
				if n := h.count("acquire"); n > 1500 {
					t.Errorf("%d claims in an hour", n)
				}
				_ = term.Resign(t.Context())
			})
		})
	}
}

// Hints are never proof: neither lies nor storms make a waiter miss a vacancy for
// long, or ask as fast as the store answers.
func TestBadHints(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hint  store.Hint
		every time.Duration
		asks  float64 // a second, at most
		late  time.Duration
	}{
		{"renewed for hours", store.Hint{Kind: store.HintRenewed, Remaining: 10 * time.Hour}, time.Second, 0.02, 120 * time.Second},
		{"renewed for ever", store.Hint{Kind: store.HintRenewed, Remaining: math.MaxInt64}, time.Second, 0.02, 120 * time.Second},
		{"renewed for less than nothing", store.Hint{Kind: store.HintRenewed, Remaining: math.MinInt64}, 5 * time.Millisecond, 65, time.Second},
		{"storm of vacancies", store.Hint{Kind: store.HintVacant}, 5 * time.Millisecond, 65, time.Second},
		{"unknown kind", store.Hint{Kind: 99}, 5 * time.Millisecond, 65, time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				holder := mustCampaign(t, mustElector(t, s, "job", nil))
				h := &hooked{Store: s}
				w := &watching{Store: h, watch: func(ctx context.Context, _ string) (<-chan store.Hint, error) {
					hints := make(chan store.Hint, 1)
					go func() {
						defer close(hints)
						tick := time.NewTicker(tc.every)
						defer tick.Stop()
						for ctx.Err() == nil {
							select {
							case <-tick.C:
								select {
								case hints <- tc.hint:
								default:
								}
							case <-ctx.Done():
							}
						}
					}()
					return hints, nil
				}}
				const hold = 3 * time.Minute
				time.AfterFunc(hold, func() { _ = holder.Resign(context.Background()) })
				began := time.Now()
				term := mustCampaign(t, mustElector(t, w, "job", nil))
				if d := time.Since(began) - hold; d < 0 || d > tc.late {
					t.Errorf("noticed the release after %v", d)
				}
				if per := float64(h.count("acquire")) / time.Since(began).Seconds(); per > tc.asks {
					t.Errorf("%.3f claims a second", per)
				}
				_ = term.Resign(t.Context())
			})
		})
	}
}

// A store that answers nonsense about the holder's time is not asked in a loop,
// nor forgotten.
func TestBadHeldAnswers(t *testing.T) {
	for name, remaining := range map[string]time.Duration{"ever": math.MaxInt64, "hours": 5 * time.Hour, "nothing": 0, "less": math.MinInt64} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				const hold = 3 * time.Minute
				began := time.Now()
				h := &hooked{Store: s}
				h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
					if time.Since(began) < hold {
						return store.Lease{}, &store.HeldError{Name: c.Name, Holder: "x", Token: 1, Remaining: remaining}
					}
					return s.Acquire(ctx, c)
				}
				term := mustCampaign(t, mustElector(t, &watching{Store: h, watch: func(context.Context, string) (<-chan store.Hint, error) {
					return make(chan store.Hint), nil
				}}, "job", nil))
				if d := time.Since(began) - hold; d > 120*time.Second {
					t.Errorf("in %v after the vacancy", d)
				}
				if per := float64(h.count("acquire")) / time.Since(began).Seconds(); per > 65 {
					t.Errorf("%.0f claims a second", per)
				}
				_ = term.Resign(t.Context())
			})
		})
	}
}

// The leader releases between the store's "held" and the arrival of that answer:
// the hint comes first, and is not forgotten when the older answer arrives.
func TestVacancyDuringAClaim(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		holder := mustCampaign(t, mustElector(t, s, "job", nil))
		var claims atomic.Int32
		h := &hooked{Store: s}
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := s.Acquire(ctx, c)
			if claims.Add(1) == 3 { // the first, the one after the watch began, and this
				if err := holder.Resign(context.Background()); err != nil {
					t.Error(err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			return l, err
		}
		began := time.Now()
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		if d := time.Since(began); d > 121*time.Second { // the third claim comes after 120 s
			t.Errorf("noticed the release after %v", d)
		}
		if n := claims.Load(); n != 4 {
			t.Errorf("%d claims", n)
		}
		_ = term.Resign(t.Context())
	})
}

// Refused at first, then not answered at all: the term did not end for the
// refusal.
func TestDeniedThenNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		free := make(chan struct{})
		var n atomic.Int32
		h.renew = func(context.Context, store.Lease, store.Attempt) (store.Lease, error) {
			if n.Add(1) == 1 {
				return store.Lease{}, store.ErrDenied
			}
			<-free
			return store.Lease{}, errors.New("never mind")
		}
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		<-term.Done()
		if err := term.Err(); !errors.Is(err, ErrExpired) || errors.Is(err, ErrDenied) {
			t.Errorf("got %v", err)
		}
		close(free)
	})
}

// Values nobody sets, and values nobody should.
func TestOddValues(t *testing.T) {
	s := memstore.New(nil)
	defer s.Close()
	if _, err := NewElector(nil, "job", nil); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("nil store: %v", err)
	}
	e, err := NewElector(s, "job", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Run(t.Context(), nil); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("nil job: %v", err)
	}
	for name, set := range map[string]func(*Options){
		"RenewEvery is":     func(o *Options) { o.RenewEvery = math.MaxInt64 },
		"RequestTimeout is": func(o *Options) { o.RequestTimeout = math.MaxInt64 },
		"StepDown is":       func(o *Options) { o.StepDown = math.MaxInt64 },
		"KillAfter is":      func(o *Options) { o.KillAfter = math.MaxInt64 },
		"Margin is":         func(o *Options) { o.Margin = math.MaxInt64 },
		"MinHold is":        func(o *Options) { o.MinHold = math.MaxInt64 },
		"Rejoin is":         func(o *Options) { o.Rejoin = math.MaxInt64 },
	} {
		if _, err := NewElector(s, "job", quiet(set)); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s the largest: %v", name, err)
		}
	}
	if _, err := NewElector(s, "job", quiet(func(o *Options) { o.StallAfter = math.MaxInt64 })); err != nil {
		t.Error(err)
	}
	// All faults at once, those of the timing too.
	_, err = NewElector(s, "", quiet(func(o *Options) { o.RenewEvery = time.Hour }))
	for _, part := range []string{"name is empty", "RenewEvery"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v lacks %q", err, part)
		}
	}
	// Errors that nobody made.
	for _, err := range []error{&LostError{}, &LostError{Err: errors.New("x")}, &PanicError{}, &HeldError{}} {
		if err.Error() == "" || errors.Is(err, ErrExpired) {
			t.Errorf("%T: %q", err, err)
		}
	}
	if got := Reason(nil); got != "other" {
		t.Errorf("no cause is %q", got)
	}
	Observers().Observe(Renewed{})
	Observers(nil, nil).Observe(Renewed{})
}

// What was said beside a cause does not rename it.
func TestReasonOfALoss(t *testing.T) {
	lost := &LostError{Cause: ErrDisrupted, Err: fmt.Errorf("seen: %w", ErrCloned)}
	for _, err := range []error{lost, fmt.Errorf("leading: %w", lost), errors.Join(errors.New("x"), lost)} {
		if got := Reason(err); got != "disrupted" {
			t.Errorf("%v is %q", err, got)
		}
	}
	for _, target := range []error{ErrLost, ErrDisrupted, ErrCloned} {
		if !errors.Is(lost, target) {
			t.Errorf("is not %v", target)
		}
	}
}

// Options belong to the caller again after NewElector.
func TestOptionsAreCopied(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		o := quiet(func(o *Options) { o.Holder = "a" })
		e, err := NewElector(s, "job", o)
		if err != nil {
			t.Fatal(err)
		}
		o.Holder, o.TTL, o.Observer = "b", time.Hour, ObserverFunc(func(Event) { t.Error("told") })
		term := mustCampaign(t, e)
		if rec, _ := s.Get(t.Context(), "job"); rec.Holder != "a" || rec.TTL != DefaultTTL {
			t.Errorf("record %+v", rec)
		}
		_ = term.Resign(t.Context())
	})
}

// The logger is looked up when it is needed: programs set the default one after
// their packages' variables.
func TestDefaultLoggerIsLookedUpLate(t *testing.T) {
	s := memstore.New(nil)
	defer s.Close()
	e, err := NewElector(s, "job", nil)
	if err != nil {
		t.Fatal(err)
	}
	former := slog.Default()
	defer slog.SetDefault(former)
	var log bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	if err := e.RunOnce(t.Context(), func(context.Context, *Term) error { return nil }); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "msg=leading election=job token=1") {
		t.Errorf("the log says %q", log.String())
	}
}

// A finished term answers everything, and touches nothing of the next one.
func TestUseOfAFinishedTerm(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		e := mustElector(t, s, "job", func(o *Options) { o.Rejoin = time.Millisecond })
		var old *Term
		terms := make(chan *Term)
		stop := start(t, e, func(ctx context.Context, term *Term) error {
			if old == nil {
				old = term
				return nil
			}
			terms <- term
			<-ctx.Done()
			return nil
		})
		next := <-terms
		use := func() {
			t.Helper()
			if err := old.Err(); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrLost) {
				t.Errorf("Err: %v", err)
			}
			if err := old.Confirm(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("Confirm: %v", err)
			}
			if err := old.Resign(t.Context()); err != nil {
				t.Errorf("Resign: %v", err)
			}
			old.Revoke(errors.New("late"))
			old.Progress()
			if err := old.Fenced(&fence.StaleError{}); err == nil {
				t.Error("Fenced swallowed the refusal")
			}
			if st := old.Stamp("r"); st.Token != 0 || st.Validate() == nil {
				t.Errorf("stamp %+v", st)
			}
			if info := old.Info(); info.Token != 1 || info.Name != "job" {
				t.Errorf("info %+v", info)
			}
			<-old.Done()
		}
		use()
		synctest.Wait()
		if err := next.Err(); err != nil {
			t.Errorf("the next term ended: %v", err)
		}
		if err := next.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		stop()
		use()
	})
}

// A loss and the job's own error are both told, each once.
func TestWhatATermCameTo(t *testing.T) {
	lost := &LostError{Term: Info{Name: "job", Token: 3}, Cause: ErrFenced, Err: fence.ErrStale}
	own := errors.New("disk full")
	for _, tc := range []struct {
		name string
		lost *LostError
		job  error
		want []error
		not  error
	}{
		{"nothing", nil, nil, nil, nil},
		{"failed", nil, own, []error{own}, ErrLost},
		{"cancelled", nil, context.Canceled, []error{context.Canceled}, ErrLost},
		{"lost", lost, nil, []error{ErrLost, ErrFenced}, own},
		{"lost and failed", lost, own, []error{ErrLost, ErrFenced, own}, context.Canceled},
		{"lost and cancelled", lost, fmt.Errorf("read: %w", context.Canceled), []error{ErrLost}, context.Canceled},
		{"lost and says so", lost, fmt.Errorf("stopped: %w", lost), []error{ErrLost}, own},
		{"lost by what the job returns", lost, fence.ErrStale, []error{ErrLost, fence.ErrStale}, own},
	} {
		err := verdict(tc.lost, tc.job)
		if len(tc.want) == 0 && err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		for _, want := range tc.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v is not %v", tc.name, err, want)
			}
		}
		if tc.not != nil && errors.Is(err, tc.not) {
			t.Errorf("%s: %v is %v", tc.name, err, tc.not)
		}
		if err != nil && strings.Count(err.Error(), "leadership of") > 1 {
			t.Errorf("%s: told twice: %v", tc.name, err)
		}
	}
}

// One lost reply does not make TryRun give up.
func TestTryRunTriesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var tries atomic.Int32
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			if tries.Add(1) < 3 {
				return store.Lease{}, store.ErrBusy
			}
			return s.Acquire(ctx, c)
		}
		ran := false
		err := mustElector(t, h, "job", nil).TryRun(t.Context(), func(context.Context, *Term) error { ran = true; return nil })
		if err != nil || !ran {
			t.Errorf("ran %v, %v", ran, err)
		}
	})
}

// The watchdog of the job's progress keeps nothing else from being done, and
// ends with the job's duty to report.
func TestStallWatchdog(t *testing.T) {
	t.Run("longer than the lease", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *memstore.Store) {
			began := time.Now()
			term := mustCampaign(t, mustElector(t, s, "job", func(o *Options) { o.StallAfter = time.Minute }))
			<-term.Done()
			if err := term.Err(); !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "1m0s") {
				t.Error(err)
			}
			if d := time.Since(began); d != time.Minute {
				t.Errorf("ended after %v", d)
			}
			_ = term.Resign(t.Context())
		})
	})
	t.Run("while the job ends", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *memstore.Store) {
			err := mustElector(t, s, "job", func(o *Options) { o.StallAfter = 3 * time.Second }).RunOnce(t.Context(), func(_ context.Context, term *Term) error {
				_ = term.Resign(context.Background())
				time.Sleep(time.Minute)
				return term.Err()
			})
			if err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("after the job", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *memstore.Store) {
			events := new(recorder)
			e := mustElector(t, s, "job", func(o *Options) { o.StallAfter, o.MinHold, o.Observer = 3*time.Second, time.Minute, events })
			if err := e.RunOnce(t.Context(), func(context.Context, *Term) error { return nil }); err != nil {
				t.Error(err)
			}
			if lost := of[Lost](events); len(lost) != 0 {
				t.Errorf("lost: %v", lost[0].Err)
			}
		})
	})
	t.Run("slow to stop", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *memstore.Store) {
			err := mustElector(t, s, "job", func(o *Options) { o.StallAfter = 3 * time.Second }).RunOnce(t.Context(), func(ctx context.Context, _ *Term) error {
				<-ctx.Done()
				time.Sleep(time.Minute)
				return nil
			})
			if !errors.Is(err, ErrStalled) {
				t.Error(err)
			}
		})
	})
}

// A renewal that hangs does not keep whoever resigns, nor is it left behind.
func TestResignWhileARenewalHangs(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		h.renew = func(ctx context.Context, _ store.Lease, _ store.Attempt) (store.Lease, error) {
			<-ctx.Done()
			return store.Lease{}, ctx.Err()
		}
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		began := time.Now()
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("took %v", d)
		}
		if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Vacant {
			t.Errorf("record %v, %v", rec.State, err)
		}
	})
}

// A stop does not wait for the claim that is out: it ends the call and gives back
// what may have been granted.
func TestStopEndsTheClaim(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var allowed time.Duration
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			until, _ := ctx.Deadline()
			allowed = time.Until(until)
			_, _ = s.Acquire(ctx, c)
			<-ctx.Done()
			return store.Lease{}, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := mustElector(t, h, "job", nil).Campaign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("took %v", d)
		}
		if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Vacant {
			t.Errorf("record %v, %v", rec.State, err)
		}
		if most := DefaultTTL / 9; allowed > most || allowed < most/2 {
			t.Errorf("a request had %v of %v", allowed, most)
		}
	})
}

// A client that never returns costs a few goroutines, however long it goes on,
// and the operator hears why.
func TestDeafClientCostsFewCalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		free := make(chan struct{})
		h := &hooked{Store: s}
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			<-free
			return s.Acquire(ctx, c)
		}
		events := new(recorder)
		e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
		led := make(chan struct{})
		stop := start(t, e, func(ctx context.Context, _ *Term) error {
			close(led)
			<-ctx.Done()
			return nil
		})
		time.Sleep(time.Hour)
		if n := h.count("acquire"); n != callsMax {
			t.Errorf("%d calls are out", n)
		}
		told := false
		for _, failed := range of[AskFailed](events) {
			told = told || strings.Contains(failed.Err.Error(), "8 calls have not returned") && errors.Is(failed.Err, store.ErrUnreachable)
		}
		if !told {
			t.Error("nobody was told why")
		}
		close(free)
		began := time.Now()
		<-led
		if d := time.Since(began); d > 20*time.Second {
			t.Errorf("leads %v after the client is back", d)
		}
		stop()
	})
}

// The server's nonce is in the mix of every attempt.
func TestNonceIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		n := &nonced{Store: s}
		term := mustCampaign(t, mustElector(t, n, "job", nil))
		_ = term.Confirm(t.Context())
		_ = term.Resign(t.Context())
		if got := n.asked.Load(); got != 2 {
			t.Errorf("asked %d times for 2 attempts", got)
		}
	})
}

type nonced struct {
	store.Store
	asked atomic.Int32
}

func (n *nonced) Nonce() string {
	n.asked.Add(1)
	return "a"
}

// A panic ends Run, which would else contend again.
func TestRunPanicsWithTheJob(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		terms := 0
		defer func() {
			if p, ok := recover().(*PanicError); !ok || p.Value != "boom" || terms != 1 {
				t.Errorf("panicked with %v after %d terms", p, terms)
			}
			if rec, err := s.Get(context.Background(), "job"); err != nil || rec.State != store.Vacant {
				t.Errorf("record %v, %v", rec.State, err)
			}
		}()
		_ = mustElector(t, s, "job", nil).Run(t.Context(), func(context.Context, *Term) error {
			terms++
			panic("boom")
		})
	})
}

// The job's context ends with the job, not with the lease that is held longer.
func TestJobsContextEndsWithTheJob(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		began := time.Now()
		var left time.Duration
		err := mustElector(t, s, "job", func(o *Options) { o.MinHold = time.Minute }).RunOnce(t.Context(), func(ctx context.Context, term *Term) error {
			context.AfterFunc(ctx, func() {
				left = time.Since(began)
				if !errors.Is(context.Cause(ctx), ErrClosed) || term.Err() != nil {
					t.Errorf("cause %v, err %v", context.Cause(ctx), term.Err())
				}
			})
			return nil
		})
		if err != nil || left != 0 || time.Since(began) != time.Minute {
			t.Errorf("%v; the context ended after %v, the term after %v", err, left, time.Since(began))
		}
	})
}

// A leader does not listen for vacancies.
func TestWatchEndsWithTheWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		holder := mustCampaign(t, mustElector(t, s, "job", nil))
		var listening atomic.Int32
		w := &watching{Store: s, watch: func(ctx context.Context, _ string) (<-chan store.Hint, error) {
			listening.Add(1)
			context.AfterFunc(ctx, func() { listening.Add(-1) })
			return make(chan store.Hint), nil
		}}
		time.AfterFunc(time.Second, func() {
			if n := listening.Load(); n != 1 {
				t.Errorf("%d watches while waiting", n)
			}
			_ = holder.Resign(context.Background())
		})
		term := mustCampaign(t, mustElector(t, w, "job", nil))
		synctest.Wait()
		if n := listening.Load(); n != 0 {
			t.Errorf("%d watches while leading", n)
		}
		_ = term.Resign(t.Context())
	})
}

// Who holds an election is told by a label that an operator can find.
func TestDefaultHolder(t *testing.T) {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown-host"
	}
	if got, want := defaultHolder(), fmt.Sprintf("%s:%d", host, os.Getpid()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Time that is left is never less than nothing.
func TestTimeLeft(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		term := mustCampaign(t, mustElector(t, s, "job", nil))
		term.Revoke(nil)
		time.Sleep(time.Hour)
		if a, b := term.Remaining(), term.StepDownIn(); a != 0 || b != 0 {
			t.Errorf("%v and %v left after an hour", a, b)
		}
	})
}

// What an operator should know is in the log, once.
func TestLog(t *testing.T) {
	info := Info{Name: "job", ID: "a1", Token: 7, Holder: "me"}
	held := &HeldError{Name: "job", Holder: "other", Token: 6, Remaining: time.Second}
	for _, tc := range []struct {
		name   string
		events []Event
		want   []string // one for each line
	}{
		{"waiting", []Event{Waiting{Held: held}, Waiting{Held: held}}, []string{"holder=other token=6 remaining=1s"}},
		{
			"waiting for another",
			[]Event{Waiting{Held: held}, Waiting{Held: &HeldError{Holder: "third"}}, Acquired{Term: info}, Waiting{Held: &HeldError{Holder: "third"}}},
			[]string{"holder=other", "holder=third", "msg=leading election=job token=7 term=a1 holder=me", "holder=third"},
		},
		{
			"asking failed",
			[]Event{Waiting{Held: held}, AskFailed{Err: store.ErrBusy}, Waiting{Held: held}},
			[]string{"holder=other", "level=WARN", "holder=other"},
		},
		{"renewed", []Event{Renewed{Term: info}}, []string{"level=DEBUG"}},
		{"renewal failed", []Event{RenewFailed{Term: info, Err: store.ErrBusy, Left: 4 * time.Second}}, []string{`level=WARN.*token=7 left=4s error="tenure: store busy"`}},
		{"draining", []Event{Draining{Term: info}}, []string{"level=INFO"}},
		{"lost", []Event{Lost{Term: info, Err: &LostError{Term: info, Cause: ErrCloned}}}, []string{"level=ERROR.*token=7 reason=cloned"}},
		{"job ended", []Event{JobEnded{Term: info}}, nil},
		{"job failed", []Event{JobEnded{Term: info, Err: errors.New("boom")}}, []string{"level=ERROR.*error=boom"}},
		{"overdue", []Event{Overdue{Term: info}}, []string{"level=ERROR.*another leader may be at work"}},
		{"released", []Event{Released{Term: info, Free: true}}, []string{"level=INFO.*msg=released"}},
		{"left to run out", []Event{Released{Term: info}}, nil},
		{"release failed", []Event{Released{Term: info, Err: store.ErrUnreachable}}, []string{"level=WARN.*runs out by itself"}},
		{"nothing to release", []Event{Released{Term: info, Err: ErrSuperseded}}, []string{"level=INFO.*nothing to release"}},
	} {
		var out bytes.Buffer
		log := logTo(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), "job")
		for _, e := range tc.events {
			log(e)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if out.Len() == 0 {
			lines = nil
		}
		if len(lines) != len(tc.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", tc.name, len(lines), len(tc.want), out.String())
			continue
		}
		for i, want := range tc.want {
			if !regexp.MustCompile(want).MatchString(lines[i]) || !strings.Contains(lines[i], "election=job") {
				t.Errorf("%s: got %q, want %q in it", tc.name, lines[i], want)
			}
		}
	}
}
