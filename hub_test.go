package tenure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

// lead makes n terms on s and returns them with what their observers hear.
func lead(t *testing.T, s store.Store, n int, set func(i int, o *Options)) ([]*Term, []*recorder) {
	t.Helper()
	terms, heard := make([]*Term, n), make([]*recorder, n)
	for i := range terms {
		heard[i] = new(recorder)
		terms[i] = mustCampaign(t, mustElector(t, s, fmt.Sprintf("job-%d", i), func(o *Options) {
			o.Observer = heard[i]
			if set != nil {
				set(i, o)
			}
		}))
	}
	return terms, heard
}

func resign(terms []*Term) {
	for _, term := range terms {
		_ = term.Resign(context.Background())
	}
}

// A row that the client breaks on ends its own term, not those it shares a
// request with.
func TestBreakInABatchEndsOneTerm(t *testing.T) {
	for name, brk := range breaks {
		t.Run(name, func(t *testing.T) { breakInABatch(t, brk.do) })
	}
}

func breakInABatch(t *testing.T, brk func(string)) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		bad := func(l store.Lease) {
			if l.Name == "job-3" {
				brk("cannot decode the row")
			}
		}
		h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
			for _, r := range batch {
				bad(r.Lease)
			}
			return s.RenewBatch(ctx, batch)
		}
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			bad(l)
			return s.Renew(ctx, l, a)
		}
		terms, _ := lead(t, h, 10, nil)
		time.Sleep(time.Minute)
		for i, term := range terms {
			if err := term.Err(); (err != nil) != (i == 3) || i == 3 && !errors.Is(err, ErrPanicked) {
				t.Errorf("job-%d: %v", i, err)
			}
		}
		if h.count("batch") == 0 {
			t.Error("nothing was shared")
		}
		resign(terms)
	})
}

// A store whose batches are answered wrongly costs requests, not terms.
func TestWrongBatchAnswers(t *testing.T) {
	for name, spoil := range map[string]func([]store.Renewed) []store.Renewed{
		"none":      func([]store.Renewed) []store.Renewed { return nil },
		"too few":   func(a []store.Renewed) []store.Renewed { return a[:1] },
		"too many":  func(a []store.Renewed) []store.Renewed { return append(a, a...) },
		"in a turn": func(a []store.Renewed) []store.Renewed { return append(a[1:], a[0]) },
		"empty":     func(a []store.Renewed) []store.Renewed { return make([]store.Renewed, len(a)) },
		"the same": func(a []store.Renewed) []store.Renewed {
			for i := range a {
				a[i] = a[0]
			}
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *memstore.Store) {
				h := &hooked{Store: s}
				h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
					return spoil(s.RenewBatch(ctx, batch))
				}
				terms, heard := lead(t, h, 5, nil)
				time.Sleep(5 * time.Minute)
				for i, term := range terms {
					if err := term.Err(); err != nil {
						t.Errorf("job-%d: %v", i, err)
					}
					if n := len(of[Renewed](heard[i])); n < 55 {
						t.Errorf("job-%d: %d renewals", i, n)
					}
				}
				resign(terms)
			})
		})
	}
}

// A term with a short lease does not cut short the request it shares with
// patient ones.
func TestShortLeaseDoesNotHurryOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
			answers := s.RenewBatch(context.Background(), batch)
			select {
			case <-time.After(150 * time.Millisecond):
			case <-ctx.Done():
				for i := range answers {
					answers[i] = store.Renewed{Err: ctx.Err()}
				}
			}
			return answers
		}
		terms, heard := lead(t, h, 5, func(i int, o *Options) {
			if i == 0 {
				o.TTL = time.Second // a request has 97 ms
			}
		})
		time.Sleep(5 * time.Minute)
		for i, term := range terms {
			if err := term.Err(); err != nil {
				t.Errorf("job-%d: %v", i, err)
			}
			if failed := of[RenewFailed](heard[i]); i > 0 && len(failed) != 0 {
				t.Errorf("job-%d: %d failed renewals, the first with %v", i, len(failed), failed[0].Err)
			}
		}
		resign(terms)
	})
}

// The term that opened a round ends before the round does: the others get their
// answers.
func TestOpenerLeavesDuringItsRound(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var opener atomic.Pointer[Term]
		h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
			if term := opener.Swap(nil); term != nil {
				go func() { _ = term.Resign(context.Background()) }()
				time.Sleep(time.Second)
			}
			return s.RenewBatch(ctx, batch)
		}
		terms, heard := lead(t, h, 5, nil)
		time.Sleep(3 * time.Second)
		opener.Store(terms[0])
		if err := terms[0].Confirm(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("confirming a term that is given up: %v", err)
		}
		time.Sleep(time.Minute)
		for i, term := range terms[1:] {
			if err := term.Err(); err != nil || len(of[RenewFailed](heard[i+1])) != 0 {
				t.Errorf("job-%d: %v, %d failed renewals", i+1, err, len(of[RenewFailed](heard[i+1])))
			}
		}
		resign(terms)
	})
}

// valueStore cannot be a key of a map, whatever its type says.
type valueStore struct {
	store.Store
	more any
}

func (v valueStore) Unwrap() store.Store { return v.Store }

// A store that cannot be compared is renewed term by term.
func TestStoreThatCannotBeCompared(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		terms, _ := lead(t, valueStore{h, map[string]int{}}, 3, nil)
		time.Sleep(time.Minute)
		for _, term := range terms {
			if err := term.Err(); err != nil {
				t.Error(err)
			}
		}
		if h.count("batch") != 0 || h.count("renew") < 33 {
			t.Errorf("%d batches, %d renewals", h.count("batch"), h.count("renew"))
		}
		resign(terms)
	})
}

// A process with thousands of elections renews them in few requests of bounded size, and
// loses none.
func TestManyElections(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		const n = 2500
		var mu sync.Mutex
		largest, renewed := 0, make(map[string]int)
		h := &hooked{Store: s}
		h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
			mu.Lock()
			largest = max(largest, len(batch))
			for _, r := range batch {
				renewed[r.Lease.Name]++
			}
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			return s.RenewBatch(ctx, batch)
		}
		terms := make([]*Term, n)
		var wg sync.WaitGroup
		for i := range terms {
			wg.Go(func() { terms[i] = mustCampaign(t, mustElector(t, h, fmt.Sprintf("job-%d", i), nil)) })
		}
		wg.Wait()
		time.Sleep(20 * time.Second)
		for i, term := range terms {
			if err := term.Err(); err != nil {
				t.Fatalf("job-%d: %v", i, err)
			}
		}
		mu.Lock()
		if largest > batchMax {
			t.Errorf("%d renewals in a request", largest)
		}
		if len(renewed) != n {
			t.Errorf("%d of %d were renewed in batches", len(renewed), n)
		}
		mu.Unlock()
		if per := float64(h.count("batch")+h.count("renew")) / 20; per > 10 {
			t.Errorf("%.1f requests a second", per)
		}
		for _, term := range terms {
			wg.Go(func() { _ = term.Resign(context.Background()) })
		}
		wg.Wait()
	})
}

// Waiting candidates take part in no round, and hold up none.
func TestWaitersDoNotRenew(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		leader := mustCampaign(t, mustElector(t, h, "job", nil))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := mustElector(t, h, "job", nil).Campaign(ctx); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if h.count("batch") != 0 || h.count("renew") > 12 {
			t.Errorf("%d batches, %d renewals", h.count("batch"), h.count("renew"))
		}
		cancel()
		wg.Wait()
		_ = leader.Resign(t.Context())
	})
}

// A store that was slow for a moment is not rushed at by hundreds of terms.
func TestSecondTriesAreShared(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		const n = 500
		terms, _ := lead(t, h, n, nil)
		time.Sleep(time.Minute) // they share one round by now
		var slow atomic.Bool
		h.set(func(h *hooked) {
			h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
				if slow.CompareAndSwap(true, false) {
					<-ctx.Done()
					answers := make([]store.Renewed, len(batch))
					for i := range answers {
						answers[i].Err = ctx.Err()
					}
					return answers
				}
				return s.RenewBatch(ctx, batch)
			}
		})
		slow.Store(true)
		before := h.count("batch") + h.count("renew")
		time.Sleep(6 * time.Second) // one round, whose first try is lost
		if slow.Load() {
			t.Fatal("no round in 6 s")
		}
		// A round of all, circles of about √500 terms, and the next round.
		if made := h.count("batch") + h.count("renew") - before; made > 2*23+2 {
			t.Errorf("%d requests after one that was slow", made)
		}
		for i, term := range terms {
			if err := term.Err(); err != nil {
				t.Errorf("job-%d: %v", i, err)
			}
		}
		resign(terms)
	})
}

// An election whose renewals get no answer costs the others one round and one
// circle's second try. It stays alone, over its terms, until one was answered.
func TestStuckElectionStaysAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *memstore.Store) {
		h := &hooked{Store: s}
		var stuck atomic.Bool
		var spoilt, shared atomic.Int32
		h.batch = func(ctx context.Context, batch []store.Renewal) []store.Renewed {
			for _, r := range batch {
				if r.Lease.Name != "stuck" {
					continue
				}
				shared.Add(1)
				if stuck.Load() {
					spoilt.Add(1)
					<-ctx.Done()
					answers := make([]store.Renewed, len(batch))
					for i := range answers {
						answers[i].Err = ctx.Err()
					}
					return answers
				}
			}
			return s.RenewBatch(ctx, batch)
		}
		h.renew = func(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if l.Name == "stuck" && stuck.Load() {
				<-ctx.Done()
				return store.Lease{}, ctx.Err()
			}
			return s.Renew(ctx, l, a)
		}
		events := new(recorder)
		defer start(t, mustElector(t, h, "stuck", func(o *Options) { o.Observer = events }), func(ctx context.Context, _ *Term) error {
			<-ctx.Done()
			return nil
		})()
		terms, _ := lead(t, h, 49, nil)
		stuck.Store(true)
		time.Sleep(5 * time.Minute)
		if n, lost := spoilt.Load(), len(of[Lost](events)); n != 2 || lost < 10 {
			t.Errorf("%d shared requests had no answer in %d lost terms, want 2", n, lost)
		}
		if n := h.count("renew"); n > 4*len(of[Lost](events))+2*7 {
			t.Errorf("%d renewals went alone, %d terms were lost", n, len(of[Lost](events)))
		}
		stuck.Store(false)
		before := shared.Load()
		time.Sleep(time.Minute)
		if n := shared.Load() - before; n < 5 {
			t.Errorf("shared %d requests in the minute after it was well", n)
		}
		for i, term := range terms {
			if err := term.Err(); err != nil {
				t.Errorf("job-%d: %v", i, err)
			}
		}
		resign(terms)
	})
}
