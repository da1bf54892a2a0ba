package tenure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/store/row"
)

// The tests named B.. and S.. replay failures that were reported of other
// systems, with the behaviour that would have been right.

// bubble runs a test in a synctest bubble with a memory store in it.
func bubble(t *testing.T, f func(t *testing.T, s *memstore.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		defer s.Close()
		f(t, s)
	})
}

func mustElector(t *testing.T, s store.Store, name string, set func(*Options)) *Elector {
	t.Helper()
	e, err := NewElector(s, name, quiet(set))
	if err != nil {
		t.Fatal(err)
	}
	e.clock = bubbleClock{}
	return e
}

// exclusive is a job body that fails the test when two of it run at once.
type exclusive struct {
	t      *testing.T
	in     atomic.Int32
	starts atomic.Int32
	tokens []int64
	mu     sync.Mutex
}

func (x *exclusive) enter(term *Term) func() {
	x.starts.Add(1)
	x.mu.Lock()
	if n := len(x.tokens); n > 0 && x.tokens[n-1] >= int64(term.Info().Token) {
		x.t.Errorf("token %d after %d", term.Info().Token, x.tokens[n-1])
	}
	x.tokens = append(x.tokens, int64(term.Info().Token))
	x.mu.Unlock()
	if n := x.in.Add(1); n != 1 {
		x.t.Errorf("%d jobs at once", n)
	}
	return func() { x.in.Add(-1) }
}

// untilDone works until told to stop, then takes its time.
func (x *exclusive) untilDone(after time.Duration) func(context.Context, *Term) error {
	return func(ctx context.Context, term *Term) error {
		defer x.enter(term)()
		<-ctx.Done()
		time.Sleep(after)
		return nil
	}
}

// start runs e until the returned function is called, which waits for its end.
func start(t *testing.T, e *Elector, job func(context.Context, *Term) error) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, job) }()
	return func() error {
		cancel()
		return <-done
	}
}

// Cut off without a reset, the leader is done by its own timer no later than
// step-down after the sending of its last good renewal; no reply is needed. The
// next one starts later.
func TestB01_CutOffLeaderStopsByItself(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		cut := &hooked{Store: s}
		x := &exclusive{t: t}
		events := new(recorder)
		a := mustElector(t, cut, "job", func(o *Options) { o.Observer = events })
		b := mustElector(t, s, "job", nil)
		var stopped time.Time
		stopA := start(t, a, func(ctx context.Context, term *Term) error {
			defer x.enter(term)()
			<-ctx.Done()
			stopped = time.Now()
			if err := context.Cause(ctx); !errors.Is(err, ErrExpired) {
				t.Errorf("cause %v", err)
			}
			return nil
		})
		synctest.Wait()
		stopB := start(t, b, x.untilDone(0))
		time.Sleep(31 * time.Second)
		renewed := of[Renewed](events)
		last := time.Now().Add(-time.Second) // renewals go out at 5, 10, …, 30 s
		cut.partition(true)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(renewed) != 6 {
			t.Fatalf("%d renewals before the cut", len(renewed))
		}
		if d := stopped.Sub(last); d > 10*time.Second {
			t.Errorf("stopped %v after the last good renewal was sent", d)
		}
		if lost := of[Lost](events); len(lost) != 1 || Reason(lost[0].Err.Cause) != "expired" {
			t.Errorf("losses: %+v", lost)
		}
		if n := x.starts.Load(); n != 2 {
			t.Errorf("%d terms, want the successor's too", n)
		}
		stopA()
		stopB()
	})
}

// A leader that slept for two TTLs touches nothing of its successor's.
func TestB02_LateRenewAndReleaseChangeNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		var stolen store.Lease
		h := &hooked{Store: s}
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			stolen = l
			return s.Renew(ctx, l, a)
		}
		a := mustElector(t, h, "job", nil)
		old, err := a.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h.set(func(h *hooked) { h.batch = nil })
		if err := old.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.partition(true)
		time.Sleep(30 * time.Second)
		b := mustElector(t, s, "job", nil)
		next, err := b.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before, _ := s.Get(t.Context(), "job")
		if _, err := s.Renew(t.Context(), stolen, "late"); !errors.Is(err, store.ErrSuperseded) {
			t.Errorf("late renewal: %v", err)
		}
		if err := s.Release(t.Context(), stolen, "late"); !errors.Is(err, store.ErrSuperseded) {
			t.Errorf("late release: %v", err)
		}
		if err := s.Abandon(t.Context(), "job", stolen.TermID); err != nil {
			t.Errorf("late abandon: %v", err)
		}
		if after, _ := s.Get(t.Context(), "job"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the record changed:\n%v\n%v", before, after)
		}
		if err := old.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("old term: %v", err)
		}
		if err := next.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The last good renewal was answered late: the leader's time counts from its
// sending, not from the answer.
func TestB01_LastReplyWasSlow(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		const late = 1400 * time.Millisecond // a request may take 1.67 s
		h := &hooked{Store: s}
		var sent time.Time
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			sent = time.Now()
			l, err := s.Renew(ctx, l, a)
			time.Sleep(late)
			h.partition(true)
			return l, err
		}
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		<-term.Done()
		if d := time.Since(sent); d > 10*time.Second {
			t.Errorf("stopped %v after the last good renewal was sent", d)
		}
		if n := term.Info().Renewal; n != 1 {
			t.Errorf("the late answer was not taken: %d renewals", n)
		}
	})
}

// edit changes a record as somebody with a database console might.
func edit(s *memstore.Store, name string, change func(*row.Row)) {
	snap := s.Snapshot()
	r := snap[name]
	change(&r)
	snap[name] = r
	s.Restore(snap)
}

// Another holder's record is written over a running leader's. The leader is lost
// at its first renewal, and neither that nor what it does at its end changes the
// record; nor does anybody get in before it expires.
func TestB02_RecordOverwritten(t *testing.T) {
	for name, token := range map[string]fence.Token{"higher token": 9, "same token": 1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				x := &exclusive{t: t}
				events := new(recorder)
				a := mustElector(t, s, "job", func(o *Options) { o.Observer = events })
				stopA := start(t, a, x.untilDone(0))
				synctest.Wait()
				stopC := start(t, mustElector(t, s, "job", nil), x.untilDone(0))
				synctest.Wait()
				edit(s, "job", func(r *row.Row) {
					r.TermID, r.Token, r.Receipt, r.Holder = "another", token, "0.another", "B"
					r.Expires += 45 * time.Second
				})
				before := s.Snapshot()["job"]
				time.Sleep(5*time.Second + 100*time.Millisecond) // one renewal interval
				synctest.Wait()
				lost := of[Lost](events)
				if len(lost) != 1 || Reason(lost[0].Err.Cause) != "superseded" {
					t.Fatalf("losses: %+v", lost)
				}
				time.Sleep(50 * time.Second)
				if after := s.Snapshot()["job"]; !reflect.DeepEqual(after, before) {
					t.Errorf("the record changed from\n%+v to\n%+v", before, after)
				}
				if n := x.starts.Load(); n != 1 {
					t.Errorf("%d jobs began beside the record's holder", n-1)
				}
				stopA()
				stopC()
				if after := s.Snapshot()["job"]; !reflect.DeepEqual(after, before) {
					t.Errorf("at the end the record changed from\n%+v to\n%+v", before, after)
				}
			})
		})
	}
}

// The record is deleted under a leader: it ends, and says why, before another
// can start.
func TestB05_RecordRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		events := new(recorder)
		e := mustElector(t, s, "job", func(o *Options) { o.Observer = events; o.Floor = 41 })
		term, err := e.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Delete("job")
		began := time.Now()
		<-term.Done()
		synctest.Wait()
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("noticed after %v, want within one renewal interval", d)
		}
		if err := term.Err(); !errors.Is(err, ErrRecordGone) || !errors.Is(err, store.ErrNoRecord) {
			t.Errorf("got %v", err)
		}
		if lost := of[Lost](events); len(lost) != 1 || Reason(lost[0].Err.Cause) != "record_gone" {
			t.Errorf("losses: %v", lost)
		}
	})
}

// Losing and winning again in quick succession: starts and stops alternate, and
// the next job waits for the last one's end.
func TestB08_LoseAndWinAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		x := &exclusive{t: t}
		var last atomic.Int64
		h := &hooked{Store: s}
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			c.Floor = fence.Token(last.Load()) // the store lost its counter with the record
			return s.Acquire(ctx, c)
		}
		events := new(recorder)
		e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
		stop := start(t, e, func(ctx context.Context, term *Term) error {
			defer x.enter(term)()
			last.Store(int64(term.Token()))
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return nil
		})
		for i := range 20 {
			synctest.Wait()
			s.Delete("job")
			time.Sleep(10 * time.Second) // the next renewal finds it; the job ends; the election is free at once
			if n := int(x.starts.Load()); n != i+2 {
				t.Fatalf("round %d: %d terms", i, n)
			}
			if n := len(of[Lost](events)); n != i+1 {
				t.Fatalf("round %d: %d losses", i, n)
			}
		}
		stop()
	})
}

// The lease is renewed while the job ends, and released only then.
func TestB09_DrainsBeforeRelease(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		x := &exclusive{t: t}
		a := mustElector(t, s, "job", nil)
		b := mustElector(t, s, "job", nil)
		stopA := start(t, a, x.untilDone(40*time.Second)) // far longer than a TTL
		synctest.Wait()
		var began time.Time
		stopB := start(t, b, func(ctx context.Context, term *Term) error {
			defer x.enter(term)()
			began = time.Now()
			<-ctx.Done()
			return nil
		})
		time.Sleep(10 * time.Second)
		stopA() // returns when the release is settled
		freed := time.Now()
		time.Sleep(time.Minute)
		synctest.Wait()
		if d := began.Sub(freed); d > 100*time.Millisecond {
			t.Errorf("the hand-over took %v", d)
		}
		stopB()
		if n := x.starts.Load(); n != 2 {
			t.Errorf("%d terms", n)
		}
	})
}

// A job that ignores its end gets a hard deadline, which is told before the
// lease can expire.
func TestB10_DeadlineIsKnownAndTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		events := new(recorder)
		var told time.Time
		e := mustElector(t, h, "job", func(o *Options) {
			o.Observer = Observers(events, ObserverFunc(func(e Event) {
				if _, ok := e.(Overdue); ok {
					told = time.Now()
				}
			}))
		})
		release := make(chan struct{})
		var asked time.Time
		var remaining time.Duration
		done := make(chan error, 1)
		begun := time.Now()
		go func() {
			done <- e.RunOnce(context.Background(), func(ctx context.Context, term *Term) error {
				h.partition(true)
				<-ctx.Done()
				asked, remaining = time.Now(), term.Remaining()
				<-release
				return nil
			})
		}()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if d := asked.Sub(begun); d != 10*time.Second {
			t.Errorf("told to stop after %v", d)
		}
		if remaining <= 0 || remaining > 5*time.Second {
			t.Errorf("had %v to be gone", remaining)
		}
		if d := told.Sub(begun); d >= 15*time.Second || d < 14*time.Second {
			t.Errorf("Overdue came after %v, the lease could expire after 15s", d)
		}
		close(release)
		if err := <-done; !errors.Is(err, ErrExpired) {
			t.Error(err)
		}
	})
}

// However the job ends, the lease is released at once.
func TestB11_JobEndsReleaseFollows(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name string
		job  func() error
		want error
	}{
		{"returns nil", func() error { return nil }, nil},
		{"fails", func() error { return boom }, boom},
		{"panics", func() error { panic(boom) }, boom},
		{"goexit", func() error { runtime.Goexit(); return nil }, ErrGoexit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				began := time.Now()
				events := new(recorder)
				err := func() (err error) {
					defer func() {
						p := recover()
						if panics := tc.name == "panics"; (p != nil) != panics {
							t.Errorf("panicked with %v", p)
						}
						if p != nil {
							err = p.(*PanicError)
							if !strings.Contains(string(p.(*PanicError).Stack), "TestB11") {
								t.Error("the stack is not the job's")
							}
						}
					}()
					e := mustElector(t, s, "job", func(o *Options) { o.Observer = events })
					return e.RunOnce(t.Context(), func(context.Context, *Term) error { return tc.job() })
				}()
				if ended := of[JobEnded](events); len(ended) != 1 || !errors.Is(ended[0].Err, tc.want) {
					t.Errorf("told of %v", ended)
				}
				if !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Vacant {
					t.Errorf("record %+v, %v", rec, err)
				}
				if d := time.Since(began); d > time.Second {
					t.Errorf("took %v", d)
				}
			})
		})
	}
}

// A store's client that does not return ends the term, never the renewals alone.
func TestB11_StoreClientBreaks(t *testing.T) {
	for name, brk := range breaks {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				h.renew = func(context.Context, store.Lease, store.Attempt) (store.Lease, error) {
					brk.do("client bug")
					return store.Lease{}, nil
				}
				term, err := mustElector(t, h, "job", nil).Campaign(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				<-term.Done()
				if d := time.Since(began); d > 10*time.Second {
					t.Errorf("ended after %v", d)
				}
				if err := term.Err(); !errors.Is(err, ErrPanicked) || !strings.Contains(err.Error(), brk.says("client bug")) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// Every candidate that lost stands again.
func TestB12_LosersStandAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		x := &exclusive{t: t}
		var stores [3]*hooked
		var leader atomic.Int32
		led := make(map[int32]int)
		for i := range stores {
			stores[i] = &hooked{Store: s}
			e := mustElector(t, stores[i], "job", nil)
			defer start(t, e, func(ctx context.Context, term *Term) error {
				defer x.enter(term)()
				leader.Store(int32(i + 1))
				<-ctx.Done()
				leader.Store(0)
				return nil
			})()
		}
		for round := range 10 {
			time.Sleep(20 * time.Second)
			synctest.Wait()
			n := leader.Load()
			if n == 0 {
				t.Fatalf("round %d: nobody leads", round)
			}
			led[n]++
			stores[n-1].partition(true)
			time.Sleep(30 * time.Second)
			if leader.Load() == 0 {
				t.Fatalf("round %d: nobody took over", round)
			}
			stores[n-1].partition(false)
		}
		if len(led) < 2 {
			t.Errorf("only %v led", led)
		}
	})
}

// Short trouble ends no healthy term; long trouble does.
func TestB13_ShortTroubleIsSurvived(t *testing.T) {
	const ttl = 12 * time.Second
	fail := errors.New("store election")
	for _, tc := range []struct {
		name  string
		renew func(n int, since time.Duration) error // nil: answer; errHang: no reply
		lost  bool
	}{
		{"one hangs", func(n int, _ time.Duration) error {
			if n == 1 {
				return context.DeadlineExceeded
			}
			return nil
		}, false},
		{"two fail fast", func(n int, _ time.Duration) error {
			if n <= 2 {
				return fail
			}
			return nil
		}, false},
		{"4 s outage", func(_ int, since time.Duration) error {
			if since < 4*time.Second {
				return fail
			}
			return nil
		}, false},
		{"13 s outage", func(_ int, since time.Duration) error {
			if since < 13*time.Second {
				return fail
			}
			return nil
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				events := new(recorder)
				e := mustElector(t, h, "job", func(o *Options) { o.TTL, o.RenewEvery, o.Observer = ttl, 3*time.Second, events })
				var mu sync.Mutex
				var n int
				var first time.Time
				h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
					mu.Lock()
					n++
					if first.IsZero() {
						first = time.Now()
					}
					err := tc.renew(n, time.Since(first))
					mu.Unlock()
					if err == context.DeadlineExceeded {
						<-ctx.Done()
					}
					if err != nil {
						return store.Lease{}, err
					}
					return s.Renew(ctx, l, a)
				}
				term, err := e.Campaign(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if lost := term.Err() != nil; lost != tc.lost {
					t.Errorf("lost: %v (%v)", lost, term.Err())
				}
				failed := of[RenewFailed](events)
				if len(failed) == 0 || failed[0].Left <= 0 || failed[0].Left > 8*time.Second {
					t.Errorf("no warning with the time left: %+v", failed)
				}
				if term.Err() == nil {
					_ = term.Resign(t.Context())
				}
			})
		})
	}
}

// The job has taken every connection of the client that it shares with the lease:
// the term is not lost in silence. There are warnings with the time left, and the
// loss says what the client said.
func TestB14_JobHoldsAllConnections(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		var held atomic.Bool
		h := &hooked{Store: s}
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if held.Load() {
				<-ctx.Done()
				return store.Lease{}, fmt.Errorf("no free connection in a pool of 4: %w", ctx.Err())
			}
			return s.Renew(ctx, l, a)
		}
		events := new(recorder)
		e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
		err := e.RunOnce(t.Context(), func(ctx context.Context, _ *Term) error {
			held.Store(true)
			defer held.Store(false)
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, ErrExpired) || !strings.Contains(err.Error(), "no free connection in a pool of 4") {
			t.Errorf("lost with %v", err)
		}
		failed := of[RenewFailed](events)
		if len(failed) < 2 {
			t.Fatalf("%d warnings before the loss, want one for each try", len(failed))
		}
		for _, f := range failed {
			if f.Left <= 0 || !strings.Contains(f.Err.Error(), "no free connection") {
				t.Errorf("a warning with %v left: %v", f.Left, f.Err)
			}
		}
	})
}

// One stuck election among fifty of one process is the only one lost.
func TestB15_OneStuckElectionHarmsNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		stuck := func(ctx context.Context, name string) error {
			if name == "job-7" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		// As with a locked row: whatever request it is part of waits.
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if err := stuck(ctx, l.Name); err != nil {
				return store.Lease{}, err
			}
			return s.Renew(ctx, l, a)
		}
		h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
			for _, r := range batch {
				if err := stuck(ctx, r.Lease.Name); err != nil {
					answers := make([]store.Renewed, len(batch))
					for i := range answers {
						answers[i].Err = err
					}
					return answers
				}
			}
			return s.RenewBatch(ctx, batch)
		}
		terms := make([]*Term, 50)
		for i := range terms {
			term, err := mustElector(t, h, fmt.Sprintf("job-%d", i), nil).Campaign(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			terms[i] = term
		}
		time.Sleep(5 * time.Minute)
		for i, term := range terms {
			if lost := term.Err() != nil; lost != (i == 7) {
				t.Errorf("job-%d: %v", i, term.Err())
			}
		}
		began := time.Now()
		for _, term := range terms {
			_ = term.Resign(t.Context())
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("resigning took %v", d)
		}
	})
}

// The grant's reply is lost: the candidate recognises its own attempt and leads
// with one token, or gives it back. It never locks itself out.
func TestB19_GrantReplyLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var lose atomic.Int32
		lose.Store(1)
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := s.Acquire(ctx, c)
			if lose.Add(-1) >= 0 {
				<-ctx.Done()
				return store.Lease{}, ctx.Err()
			}
			return l, err
		}
		began := time.Now()
		term, err := mustElector(t, h, "job", nil).Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); term.Token() != 1 || d > 5*time.Second {
			t.Errorf("token %d after %v", term.Token(), d)
		}
		// The right counts from the first sending.
		if left := term.Remaining(); left > 15*time.Second-time.Since(began) {
			t.Errorf("%v left %v after the first sending", left, time.Since(began))
		}
		_ = term.Resign(t.Context())

		// Every reply is lost: what was granted is given back, nobody waits for it.
		lose.Store(1 << 30)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := mustElector(t, h, "job", nil).Campaign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		rec, err := s.Get(t.Context(), "job")
		if err != nil || rec.State != store.Vacant {
			t.Errorf("left behind: %+v, %v", rec, err)
		}
	})
}

// No job starts without a confirmed token, whatever the store says instead.
func TestB25_ErrorIsNotAGrant(t *testing.T) {
	for name, answer := range map[string]func(store.Claim) (store.Lease, error){
		"down":    func(store.Claim) (store.Lease, error) { return store.Lease{}, store.Undone(store.ErrUnreachable) },
		"reset":   func(store.Claim) (store.Lease, error) { return store.Lease{}, errors.New("connection reset by peer") },
		"nothing": func(store.Claim) (store.Lease, error) { return store.Lease{}, nil },
		"another's": func(c store.Claim) (store.Lease, error) {
			return store.Lease{Name: c.Name, TermID: "x", Token: 9, Attempt: "x", TTL: c.TTL}, nil
		},
		"no token": func(c store.Claim) (store.Lease, error) {
			return store.Lease{Name: c.Name, TermID: c.Attempt, Attempt: c.Attempt, TTL: c.TTL}, nil
		},
		"negative token": func(c store.Claim) (store.Lease, error) {
			return store.Lease{TermID: c.Attempt, Attempt: c.Attempt, Token: -1, TTL: c.TTL}, nil
		},
		"shorter": func(c store.Claim) (store.Lease, error) {
			return store.Lease{TermID: c.Attempt, Attempt: c.Attempt, Token: 9, TTL: c.TTL - 1}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s, acquire: func(_ context.Context, c store.Claim) (store.Lease, error) { return answer(c) }}
				events := new(recorder)
				e := mustElector(t, h, "job", func(o *Options) { o.Observer = events })
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				err := e.RunOnce(ctx, func(context.Context, *Term) error {
					t.Error("the job started")
					return nil
				})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if len(of[AskFailed](events)) == 0 {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// Lifetimes at the edges are refused with what is allowed.
func TestB31_Lifetimes(t *testing.T) {
	s := memstore.New(nil)
	defer s.Close()
	for _, ttl := range []time.Duration{-1, 1, -time.Second, -1 << 63, 1<<63 - 1, time.Duration(1) << 62, time.Millisecond, memstore.TTLMin - 1, memstore.TTLMax + 1, time.Second << 31} {
		_, err := NewElector(s, "job", quiet(func(o *Options) { o.TTL = ttl }))
		if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), ttl.String()) || !strings.Contains(err.Error(), "allow") {
			t.Errorf("ttl %v: %v", ttl, err)
		}
	}
}

// A lifetime that is allowed is the record's, to the nanosecond; 0 stands for the
// default. The holder's own time is over before it.
func TestB31_GrantedAsAsked(t *testing.T) {
	for _, ttl := range []time.Duration{0, 400 * time.Millisecond, 999 * time.Millisecond, time.Second, 1500 * time.Millisecond, 9 * time.Second, 24 * time.Hour, memstore.TTLMax} {
		t.Run(ttl.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				term := mustCampaign(t, mustElector(t, s, "job", func(o *Options) { o.TTL = ttl }))
				want := cmp.Or(ttl, DefaultTTL)
				rec, err := s.Get(t.Context(), "job")
				if err != nil || rec.TTL != want || rec.Remaining != want {
					t.Errorf("the record has a ttl of %v, %v left (%v); want %v", rec.TTL, rec.Remaining, err, want)
				}
				if left := term.Remaining(); left <= 0 || left != want-want/500-50*time.Millisecond {
					t.Errorf("%v until the job must be gone", left)
				}
				if left := term.StepDownIn(); left <= 0 || left > 2*want/3 {
					t.Errorf("%v until step-down", left)
				}
				_ = term.Resign(t.Context())
			})
		})
	}
}

// A store that grants more than was asked, as one that knows whole seconds only,
// does not lengthen the holder's time: it may have rounded the answer alone.
func TestB31_GrantedLonger(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		longer := func(l store.Lease, err error) (store.Lease, error) { l.TTL = 10 * l.TTL; return l, err }
		h.acquire = func(ctx context.Context, c store.Claim) (store.Lease, error) { return longer(s.Acquire(ctx, c)) }
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			return longer(s.Renew(ctx, l, a))
		}
		term := mustCampaign(t, mustElector(t, h, "job", nil))
		time.Sleep(6 * time.Second) // one renewal
		if left := term.Remaining(); left > 14*time.Second {
			t.Errorf("%v until the job must be gone", left)
		}
		h.partition(true)
		began := time.Now()
		<-term.Done()
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("ended %v after the store was cut off", d)
		}
	})
}

// Names are refused when the elector is made, with the rule.
func TestB32_Names(t *testing.T) {
	s := memstore.New(nil)
	defer s.Close()
	for _, name := range []string{"", "a\x00b", "a\nb", "a\x7fb", string([]byte{0xff}), strings.Repeat("x", 201), strings.Repeat("é", 101)} {
		if _, err := NewElector(s, name, quiet(nil)); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "1 to 200 bytes") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := NewElector(s, "job", quiet(func(o *Options) { o.Holder = strings.Repeat("h", 10_000) })); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("holder of 10 kB: %v", err)
	}
}

// A job shorter than the difference of two clocks runs once where MinHold asks
// for it.
func TestB40_MinHold(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		runs := 0
		hold := func(o *Options) { o.MinHold = 4 * time.Second; o.TTL = 3 * time.Second }
		tick := func(after time.Duration, done chan<- struct{}) {
			time.Sleep(after)
			err := mustElector(t, s, "cron", hold).TryRun(t.Context(), func(context.Context, *Term) error {
				runs++
				time.Sleep(50 * time.Millisecond)
				return nil
			})
			if err != nil && !errors.Is(err, ErrHeld) {
				t.Error(err)
			}
			done <- struct{}{}
		}
		const ticks = 30
		for range ticks {
			done := make(chan struct{}, 2)
			go tick(0, done)
			go tick(2*time.Second, done)
			<-done
			<-done
			time.Sleep(time.Minute)
		}
		if runs != ticks {
			t.Errorf("%d runs in %d slots", runs, ticks)
		}
	})
}

// A release does not depend on the caller's context.
func TestS02_ReleaseWithDeadContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		term, err := mustElector(t, s, "job", nil).Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		if err := term.Resign(dead); err != nil {
			t.Error(err)
		}
		if rec, _ := s.Get(t.Context(), "job"); rec.State != store.Vacant {
			t.Errorf("record is %v", rec.State)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Errorf("resigning twice: %v", err)
		}
		if err := term.Err(); !errors.Is(err, ErrClosed) {
			t.Errorf("after resigning: %v", err)
		}
	})
}

// The caller's context ends while its job runs: the election is free in a moment.
// A store that no longer answers does not keep Run for longer than a few
// requests' time.
func TestS02_ContextEndsWhileLeading(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprint("release hangs ", hangs), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				h.release = func(ctx context.Context, l store.Lease, a store.Attempt) error {
					if hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					if err := ctx.Err(); err != nil {
						t.Errorf("the release was asked for with a context that had ended: %v", err)
					}
					return s.Release(ctx, l, a)
				}
				stop := start(t, mustElector(t, h, "job", nil), (&exclusive{t: t}).untilDone(0))
				synctest.Wait()
				began := time.Now()
				if err := stop(); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				took := time.Since(began)
				if rec, _ := s.Get(t.Context(), "job"); (rec.State == store.Vacant) == hangs {
					t.Errorf("record is %v", rec.State)
				}
				if !hangs && took > time.Second || took > 15*time.Second/9*4 {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// Nothing is left of 500 terms, given up or lost, and 500 failed claims. A bubble fails by itself if
// a goroutine stays behind.
func TestS03_NothingLeftBehind(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		e := mustElector(t, s, "job", func(o *Options) { o.Rejoin = time.Millisecond })
		for i := range 500 {
			term, err := e.Campaign(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 1 {
				term.Revoke(errors.New("test"))
				continue // the lease runs out
			}
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		holder, err := e.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other := mustElector(t, s, "job", nil)
		for range 500 {
			if err := other.TryRun(t.Context(), func(context.Context, *Term) error { return nil }); !errors.Is(err, ErrHeld) {
				t.Fatal(err)
			}
		}
		_ = holder.Resign(t.Context())
	})
	hubs.Lock()
	defer hubs.Unlock()
	if len(hubs.of) != 0 {
		t.Errorf("%d hubs left", len(hubs.of))
	}
}

// A newer version's record is refused, never guessed: nobody starts beside it,
// and who led when it came stops by step-down, and says why.
func TestS12_NewerRecord(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		events := new(recorder)
		e := mustElector(t, s, "job", func(o *Options) { o.Observer = events })
		var stopped time.Time
		done := make(chan error, 1)
		go func() {
			done <- e.Run(t.Context(), func(ctx context.Context, _ *Term) error {
				<-ctx.Done()
				stopped = time.Now()
				return nil
			})
		}()
		synctest.Wait()
		edit(s, "job", func(r *row.Row) { r.Format++ })
		began := time.Now()
		if err := <-done; !errors.Is(err, store.ErrFormat) {
			t.Errorf("contending ended with %v", err)
		}
		if d := stopped.Sub(began); d > 10*time.Second {
			t.Errorf("the job was told after %v", d)
		}
		if lost := of[Lost](events); len(lost) != 1 || !errors.Is(lost[0].Err, store.ErrFormat) {
			t.Errorf("losses: %v", lost)
		}
		if n := len(of[Acquired](events)); n != 1 {
			t.Errorf("%d terms", n)
		}
		if r := s.Snapshot()["job"]; r.Format != store.Format+1 || r.Renewal != 0 || r.Released {
			t.Errorf("the newer record was changed: %+v", r)
		}
	})
}

// After a long outage nobody resumes: every candidate wins anew first.
func TestS15_NoPrivilegeAfterAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		x := &exclusive{t: t}
		var stores [3]*hooked
		for i := range stores {
			stores[i] = &hooked{Store: s}
			defer start(t, mustElector(t, stores[i], "job", nil), x.untilDone(0))()
		}
		time.Sleep(time.Minute)
		for _, h := range stores {
			h.partition(true)
		}
		time.Sleep(75 * time.Second)
		if n := x.in.Load(); n != 0 {
			t.Errorf("%d jobs run during the outage", n)
		}
		for _, h := range stores {
			h.partition(false)
			time.Sleep(20 * time.Second)
		}
		if n := x.in.Load(); n != 1 {
			t.Errorf("%d jobs run after it", n)
		}
	})
}

// Durations that do not add up are refused with the rule.
func TestS18_DurationsMustAddUp(t *testing.T) {
	s := memstore.New(nil)
	defer s.Close()
	const ttl = 9 * time.Second
	for name, tc := range map[string]struct {
		set  func(*Options)
		want string
	}{
		"renew as long as the lease": {func(o *Options) { o.RenewEvery = ttl }, "RenewEvery + 3 RequestTimeout is 12s"},
		"renew nearly as long":       {func(o *Options) { o.RenewEvery = ttl * 9 / 10 }, "allowed is at most StepDown"},
		"step-down after the lease":  {func(o *Options) { o.StepDown = ttl + 1 }, "StepDown is 9.000000001s"},
		"step-down with the lease":   {func(o *Options) { o.StepDown = ttl }, "StepDown is 9s: allowed is less than TTL - Margin"},
		"kill with the lease":        {func(o *Options) { o.KillAfter = ttl * 9 / 10 }, "StepDown + KillAfter is 14.1s: allowed is at most TTL - Margin, 8.932s"},
		"negative kill":              {func(o *Options) { o.KillAfter = -1 }, "KillAfter is -1ns: allowed is more than 0"},
		"negative margin":            {func(o *Options) { o.Margin = -1 }, "Margin is -1ns"},
		"no margin":                  {func(o *Options) { o.Margin = 1 }, "TTL/500 + 50ms"},
		"slow requests":              {func(o *Options) { o.RequestTimeout = 2 * time.Second }, "RequestTimeout is 2s: allowed is at most a ninth of TTL, 1s"},
		"negative hold":              {func(o *Options) { o.MinHold = -1 }, "MinHold is -1ns"},
		"negative stall":             {func(o *Options) { o.StallAfter = -1 }, "StallAfter is -1ns"},
	} {
		_, err := NewElector(s, "job", quiet(func(o *Options) { o.TTL = ttl; tc.set(o) }))
		if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, tc.want)
		}
	}
	// All faults at once.
	_, err := NewElector(s, "", quiet(func(o *Options) { o.TTL, o.StallAfter = -1, -1 }))
	for _, part := range []string{"name is empty", "ttl is -1ns", "StallAfter"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v lacks %q", err, part)
		}
	}
}
