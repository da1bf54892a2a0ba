package tenure

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

// fakeClock is a clock that a test sets, on top of the bubble's.
type fakeClock struct {
	machineClock
	wall, boot atomic.Int64 // added to the readings, ns
}

func (c *fakeClock) glance() core.Reading {
	r := c.machineClock.glance()
	r.Wall += time.Duration(c.wall.Load())
	return r
}

func (c *fakeClock) read() core.Reading {
	r := c.glance()
	r.Boot = r.Mono + time.Hour + time.Duration(c.boot.Load())
	return r
}

func campaign1(t *testing.T, set func(*Options), more ...func(*Elector)) (*memstore.Store, *Elector, *Term) {
	t.Helper()
	s := memstore.New(nil)
	t.Cleanup(func() { s.Close() })
	e, err := NewElector(s, "job", quiet(set))
	if err != nil {
		t.Fatal(err)
	}
	e.clock = bubbleClock{}
	for _, f := range more {
		f(e)
	}
	term, err := e.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s, e, term
}

// A wall clock that jumps forward ends a term at once: the jump may be the only
// trace of a pause. One that jumps back lengthens nothing.
func TestB28_WallClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := new(fakeClock)
		_, _, term := campaign1(t, nil, func(e *Elector) { e.clock = clock })
		clock.wall.Store(-int64(time.Hour))
		time.Sleep(time.Hour)
		if err := term.Err(); err != nil {
			t.Errorf("after a step back: %v", err)
		}
		if left := term.Remaining(); left > 15*time.Second {
			t.Errorf("a step back lengthened the term: %v left", left)
		}
		clock.wall.Store(int64(time.Hour))
		if err := term.Err(); !errors.Is(err, ErrExpired) || !errors.Is(err, ErrLost) {
			t.Errorf("after a step forward: %v", err)
		}
		if token := term.Token(); token != 0 {
			t.Errorf("an ended term gave the token %d", token)
		}
		<-term.Done()
		// Whatever the clock says later, the term stays over.
		clock.wall.Store(-int64(time.Hour))
		if err := term.Err(); err == nil {
			t.Error("an ended term came back")
		}
	})
}

// A suspend moves the boot clock alone; the loop's next look finds it.
func TestSuspendEndsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := new(fakeClock)
		_, _, term := campaign1(t, nil, func(e *Elector) { e.clock = clock })
		clock.boot.Store(int64(time.Minute))
		<-term.Done()
		if err := context.Cause(term.Context()); !errors.Is(err, ErrExpired) {
			t.Errorf("cause: %v", err)
		}
	})
}

func TestTermAnswersAllocateNothing(t *testing.T) {
	s := memstore.New(nil)
	defer s.Close()
	e, err := NewElector(s, "job", quiet(nil))
	if err != nil {
		t.Fatal(err)
	}
	term, err := e.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		for name, f := range map[string]func(){
			"Err": func() { _ = term.Err() }, "Token": func() { _ = term.Token() }, "Remaining": func() { _ = term.Remaining() },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s %s allocates %v times", name, when, n)
			}
		}
	}
	check("while valid")
	if err := term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("after the end")
}

func BenchmarkTerm(b *testing.B) {
	s := memstore.New(nil)
	defer s.Close()
	e, err := NewElector(s, "job", quiet(nil))
	if err != nil {
		b.Fatal(err)
	}
	term, err := e.Campaign(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer term.Resign(context.Background())
	b.Run("Err", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if term.Err() != nil {
				b.Fatal("lost")
			}
		}
	})
	b.Run("Token", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if term.Token() == 0 {
				b.Fatal("lost")
			}
		}
	})
	// For comparison within one run: what reading the clock alone costs.
	b.Run("time.Now", func(b *testing.B) {
		for b.Loop() {
			_ = time.Now()
		}
	})
}

// Questions to a term whose loop is stuck, or that ends meanwhile, are answered
// at the latest when the term ends.
func TestConfirmIsAlwaysAnswered(t *testing.T) {
	stuck := func(events ...Event) (func(*Options), func()) {
		hold := make(chan struct{})
		return func(o *Options) {
			o.Observer = ObserverFunc(func(e Event) {
				for _, on := range events {
					if reflect.TypeOf(e) == reflect.TypeOf(on) {
						<-hold
					}
				}
			})
		}, func() { close(hold) }
	}
	t.Run("stuck loop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			set, free := stuck(Renewed{})
			_, _, term := campaign1(t, set)
			if err := term.Confirm(t.Context()); err != nil { // answered, then the loop is stuck
				t.Error(err)
			}
			began := time.Now()
			if err := term.Confirm(t.Context()); !errors.Is(err, ErrExpired) || !errors.Is(err, ErrLost) {
				t.Error(err)
			}
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("answered after %v", d)
			}
			free()
		})
	})
	t.Run("inside an observer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var observed atomic.Pointer[Term]
			asked := make(chan error, 1)
			_, _, term := campaign1(t, func(o *Options) {
				o.Observer = ObserverFunc(func(e Event) {
					if _, ok := e.(Renewed); ok {
						asked <- observed.Load().Confirm(context.Background())
					}
				})
			})
			observed.Store(term)
			if err := <-asked; !errors.Is(err, ErrExpired) {
				t.Error(err)
			}
		})
	})
	t.Run("beside everything", func(t *testing.T) {
		for name, end := range map[string]func(*Term){
			"resigned": func(term *Term) { _ = term.Resign(context.Background()) },
			"revoked":  func(term *Term) { term.Revoke(nil) },
		} {
			synctest.Test(t, func(t *testing.T) {
				_, _, term := campaign1(t, nil)
				answers := make(chan error, 20)
				for range cap(answers) {
					go func() { answers <- term.Confirm(context.Background()) }()
				}
				ended := make(chan struct{})
				go func() {
					end(term)
					close(ended)
				}()
				for range cap(answers) {
					if err := <-answers; err != nil && !errors.Is(err, ErrLost) {
						t.Errorf("%s: %v", name, err)
					}
				}
				<-ended
				if err := term.Confirm(context.Background()); !errors.Is(err, ErrLost) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	})
	t.Run("while draining", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(nil)
			defer s.Close()
			ctx, cancel := context.WithCancel(t.Context())
			err := mustElector(t, s, "job", nil).RunOnce(ctx, func(ctx context.Context, term *Term) error {
				cancel()
				<-ctx.Done()
				time.Sleep(time.Minute)
				return term.Confirm(context.Background())
			})
			if err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("own time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			set, free := stuck(Renewed{})
			_, _, term := campaign1(t, set)
			_ = term.Confirm(t.Context())
			why := errors.New("no patience")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
			defer cancel()
			if err := term.Confirm(ctx); err != why {
				t.Error(err)
			}
			free()
			_ = term.Resign(t.Context())
		})
	})
}

// Resigning from wherever one hears of the end.
func TestResignFromAnywhere(t *testing.T) {
	t.Run("the end of the context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, _, term := campaign1(t, nil)
			resigned := make(chan error, 1)
			context.AfterFunc(term.Context(), func() { resigned <- term.Resign(context.Background()) })
			if _, err := s.Evict(t.Context(), store.Eviction{Name: "job", Reason: "x"}); err != nil {
				t.Fatal(err)
			}
			if err := <-resigned; err != nil {
				t.Error(err)
			}
			if rec, err := s.Get(t.Context(), "job"); err != nil || rec.State != store.Vacant {
				t.Errorf("record %v, %v", rec.State, err)
			}
		})
	})
	t.Run("an observer, in a job", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(nil)
			defer s.Close()
			var term atomic.Pointer[Term]
			err := mustElector(t, s, "job", func(o *Options) {
				o.Observer = ObserverFunc(func(e Event) {
					if _, ok := e.(Renewed); ok {
						_ = term.Load().Resign(context.Background())
					}
				})
			}).RunOnce(t.Context(), func(ctx context.Context, own *Term) error {
				term.Store(own)
				<-ctx.Done()
				return own.Err()
			})
			if err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("many at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, e, term := campaign1(t, nil)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if err := term.Resign(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			next, err := e.Campaign(t.Context())
			if err != nil || next.Token() != 2 {
				t.Fatal(err)
			}
			_ = term.Resign(context.Background()) // the old one
			if err := next.Err(); err != nil {
				t.Error(err)
			}
			_ = next.Resign(context.Background())
			_ = s
		})
	})
	t.Run("a closed store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, _, term := campaign1(t, nil)
			s.Close()
			if err := term.Resign(context.Background()); !errors.Is(err, store.ErrStoreClosed) {
				t.Error(err)
			}
			if err := term.Err(); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	})
}

// Resigning takes MinHold into account: until it is over the term stands.
func TestResignDuringMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e, term := campaign1(t, func(o *Options) { o.MinHold = time.Minute })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := term.Resign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := term.Err(); err != nil {
			t.Error(err)
		}
		next, err := e.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < time.Minute || d > 61*time.Second {
			t.Errorf("free after %v", d)
		}
		_ = next.Resign(t.Context())
		_ = s
	})
}

// Whatever happens at once, a term that has ended stays ended, its token is 0,
// and nothing is granted beyond step-down.
func TestEndIsFinal(t *testing.T) {
	for i := range 30 {
		synctest.Test(t, func(t *testing.T) {
			_, _, term := campaign1(t, func(o *Options) { o.TTL = time.Second })
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for term.Err() == nil {
						_ = term.Confirm(context.Background())
						time.Sleep(20 * time.Millisecond)
					}
					for range 20 {
						if term.Err() == nil || term.Token() != 0 || term.Stamp("r").Token != 0 {
							t.Error("an ended term answered")
						}
						if err := term.Confirm(context.Background()); !errors.Is(err, ErrLost) {
							t.Errorf("an ended term was confirmed: %v", err)
						}
					}
				})
			}
			time.Sleep(time.Duration(i) * 50 * time.Millisecond)
			switch i % 3 {
			case 0:
				term.Revoke(nil)
			case 1:
				_ = term.Resign(context.Background())
			case 2:
				go term.Revoke(nil)
				_ = term.Resign(context.Background())
			}
			wg.Wait()
			<-term.Done()
			first := term.Err()
			term.Revoke(errors.New("again"))
			_ = term.Resign(context.Background())
			if err := term.Err(); err != first {
				t.Errorf("%v became %v", first, err)
			}
		})
	}
}

// Writers that confirm before each write do not make each other's stamps stale:
// of one term no write is refused.
func TestStampsOfConcurrentWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, term := campaign1(t, nil)
		var resource fence.Memory
		write := func(st fence.Stamp) error {
			_, err := resource.Do(st, func() error { return nil })
			return err
		}
		saved := term.Stamp("r") // by a snapshot
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for range 1000 {
					if err := term.Confirm(context.Background()); err != nil {
						t.Error(err)
					}
					st := term.Stamp("r")
					time.Sleep(time.Duration(1+w) * 5 * time.Millisecond) // on its way
					if err := write(st); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if n := term.Info().Renewal; n < 1000 {
			t.Errorf("%d renewals", n)
		}
		// The number rises all the same, so that the past is told from the present.
		if n := term.Stamp("r").Renewal; n < 3 || n > 4 {
			t.Errorf("stamps show renewal %d after %v", n, 20*time.Second)
		}
		if err := write(saved); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a stamp from 20 s ago: %v", err)
		}
		_ = term.Resign(context.Background())
	})
}
