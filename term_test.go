package tenure

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/internal/core"
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
