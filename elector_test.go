package tenure

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/internal/core"
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

func TestRunOnceLeadsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		defer s.Close()
		e, err := NewElector(s, "job", quiet(nil))
		if err != nil {
			t.Fatal(err)
		}
		want := errors.New("done badly")
		err = e.RunOnce(t.Context(), func(ctx context.Context, term *Term) error {
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
		if err != nil || rec.State.String() != "vacant" || rec.Renewal < 700 {
			t.Errorf("record %+v, %v", rec, err)
		}
	})
}

var _ = core.Idle
