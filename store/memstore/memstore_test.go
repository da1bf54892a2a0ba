package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/store/row"
)

// The cases of storetest hold this store to the contract; they run in package
// storetest. Here is what no other store has.

const ttl = 15 * time.Second

func claim(name string, a store.Attempt) store.Claim {
	return store.Claim{Name: name, Holder: "h", Attempt: a, TTL: ttl}
}

func grant(t *testing.T, s *memstore.Store, name string, a store.Attempt) store.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), claim(name, a))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func renew(t *testing.T, s *memstore.Store, l store.Lease, a store.Attempt) store.Lease {
	t.Helper()
	l, err := s.Renew(t.Context(), l, a)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got the error %v, want %v", got, want)
	}
}

func TestClock(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := memstore.New(&memstore.Options{Clock: func() time.Time { return now }})
	l := grant(t, s, "a", "c1")
	if rec, _ := s.Get(t.Context(), "a"); !rec.AcquiredAt.Equal(now) {
		t.Errorf("acquired at %v, want %v", rec.AcquiredAt, now)
	}
	now = now.Add(ttl - 1)
	if rec, _ := s.Get(t.Context(), "a"); rec.State != store.Live || rec.Remaining != 1 {
		t.Errorf("just before the expiry: %+v", rec)
	}
	now = now.Add(1)
	if rec, _ := s.Get(t.Context(), "a"); rec.State != store.Dead {
		t.Errorf("at the expiry: %+v", rec)
	}
	_, err := s.Renew(t.Context(), l, "r1")
	wantErr(t, err, store.ErrExpired)
}

// TestStoreNowIsNeverZero: a lease's StoreNow of zero says that there is no
// clock, also where no time has passed since New.
func TestStoreNowIsNeverZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if l := grant(t, memstore.New(nil), "a", "c1"); l.StoreNow <= 0 {
			t.Errorf("the store's clock shows %v", l.StoreNow)
		}
	})
}

func TestShare(t *testing.T) {
	s := memstore.New(nil)
	other := s.Share()
	l := grant(t, s, "a", "c1")
	_, err := other.Acquire(t.Context(), claim("a", "c2"))
	wantErr(t, err, store.ErrHeld)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Renew(t.Context(), l, "r1")
	wantErr(t, err, store.ErrStoreClosed)
	renew(t, other, l, "r1")
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestClosed(t *testing.T) {
	s := memstore.New(nil)
	l := grant(t, s, "a", "c1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, a := range s.RenewBatch(t.Context(), []store.Renewal{{Lease: l, Attempt: "r1"}}) {
		wantErr(t, a.Err, store.ErrStoreClosed)
	}
	_, err := s.Watch(t.Context(), "a")
	wantErr(t, err, store.ErrStoreClosed)
	_, err = s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test"})
	wantErr(t, err, store.ErrStoreClosed)
	_, err = s.History(t.Context(), "a", 1)
	wantErr(t, err, store.ErrStoreClosed)
	for _, err := range s.List(t.Context()) {
		wantErr(t, err, store.ErrStoreClosed)
	}
	if s.Caps().Store != "memory" {
		t.Error("a closed store no longer says what it is")
	}
}

// TestWatch says exactly which changes are announced, and how.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		ctx, cancel := context.WithCancel(t.Context())
		hints, err := s.Share().Watch(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		want := func(step, want string) {
			t.Helper()
			got := "nothing"
			select {
			case h := <-hints:
				got = map[store.HintKind]string{store.HintChanged: "changed", store.HintVacant: "vacant", store.HintRenewed: "renewed"}[h.Kind]
				if h.Remaining != 0 {
					got += " " + h.Remaining.String()
				}
			default:
			}
			if got != want {
				t.Errorf("%s: hinted %s, want %s", step, got, want)
			}
		}
		evict := func(name string, now bool) {
			if _, err := s.Evict(ctx, store.Eviction{Name: name, Reason: "test", Now: now}); err != nil {
				t.Fatal(err)
			}
		}

		l0 := grant(t, s, "a", "c1")
		want("a grant", "renewed 15s")
		grant(t, s, "a", "c1")
		want("a replayed grant", "nothing")
		s.Acquire(ctx, claim("a", "c2"))
		want("a refusal", "nothing")
		l1 := renew(t, s, l0, "r1")
		want("a renewal", "renewed 15s")
		renew(t, s, l0, "r1")
		want("a replayed renewal", "nothing")
		s.Get(ctx, "a")
		want("a read", "nothing")
		grant(t, s, "b", "c3")
		want("a grant of another election", "nothing")
		evict("a", false)
		want("an eviction", "changed")
		s.Release(ctx, l1, "")
		want("a release", "vacant")
		s.Release(ctx, l1, "")
		want("a repeated release", "nothing")

		short := claim("a", "c4")
		short.TTL = time.Second
		l, err := s.Acquire(ctx, short)
		if err != nil {
			t.Fatal(err)
		}
		want("a grant whose end comes before the last one's", "renewed 1s")
		evict("a", true)
		want("an eviction at once", "vacant")
		grant(t, s, "a", "c5")
		want("the next grant", "renewed 15s")
		s.Abandon(ctx, "a", l.TermID)
		want("a term's late abandoning", "nothing")
		s.Abandon(ctx, "a", "c5")
		want("an abandoned grant", "vacant")

		l0 = grant(t, s, "a", "c6")
		want("a grant", "renewed 15s")
		snap := s.Snapshot()
		renew(t, s, l0, "r2")
		want("a renewal", "renewed 15s")
		s.Renew(ctx, l0, "r3")
		want("the proof of a twin", "changed")
		s.Restore(snap)
		s.Delete("a")
		want("what happens behind the store's back", "nothing")

		cancel()
		synctest.Wait()
		if _, open := <-hints; open {
			t.Error("the watch outlived its context")
		}
	})
}

func TestBurnsAreAnnouncedAlsoWhenTheRecordIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		hints, err := s.Watch(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for i := range store.BurnsMax + 2 {
			c := claim("a", store.Attempt(fmt.Sprintf("c%d", i)))
			c.FencedOnly = true
			l, err := s.Acquire(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			renew(t, s, l, store.Attempt(fmt.Sprintf("r%d", i)))
			<-hints
			_, err = s.Renew(t.Context(), l, store.Attempt(fmt.Sprintf("s%d", i)))
			wantErr(t, err, store.ErrCloned)
			select {
			case h := <-hints:
				if h.Kind != store.HintChanged {
					t.Errorf("burnt term %d: hinted %+v", i+1, h)
				}
			default:
				t.Errorf("burnt term %d was not announced", i+1)
			}
		}
	})
}

func TestCloseEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		other := s.Share()
		mine, err := s.Watch(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		others, err := other.Watch(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if _, open := <-mine; open {
			t.Error("the watch outlived its store")
		}
		grant(t, other, "a", "c1")
		if h, open := <-others; !open || h.Kind != store.HintRenewed {
			t.Errorf("the other store's watch ended too: %+v, %v", h, open)
		}
		cancel()
		synctest.Wait()
		other.Close()
	})
}

// TestWatchRaces ends watches from all sides at once; the race detector and the
// bubble judge.
func TestWatchRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		var all sync.WaitGroup
		for i := range 50 {
			other := s.Share()
			ctx, cancel := context.WithCancel(t.Context())
			hints, err := other.Watch(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				for range hints {
				}
			})
			all.Go(cancel)
			all.Go(func() { other.Close() })
			all.Go(func() {
				c := claim("a", store.Attempt(fmt.Sprintf("c%d", i)))
				if l, err := s.Acquire(ctx, c); err == nil {
					s.Release(ctx, l, "")
				}
			})
		}
		all.Wait()
	})
}

func TestRestore(t *testing.T) {
	s := memstore.New(nil)
	other := s.Share()
	first := grant(t, s, "a", "c1")
	snap := s.Snapshot()
	if err := s.Release(t.Context(), first, ""); err != nil {
		t.Fatal(err)
	}
	second := grant(t, other, "a", "c2")
	grant(t, s, "b", "c3")

	s.Restore(snap)
	_, err := other.Renew(t.Context(), second, "r1")
	wantErr(t, err, store.ErrSuperseded)
	_, err = other.Get(t.Context(), "b")
	wantErr(t, err, store.ErrNoRecord)
	renew(t, s, first, "r1")

	snap["a"] = row.Row{}
	if _, err := s.Get(t.Context(), "a"); err != nil {
		t.Errorf("a change of the snapshot changed the store: %v", err)
	}
	s.Restore(nil)
	if l := grant(t, s, "a", "c4"); l.Token != 1 {
		t.Errorf("restored to nothing, token %d was handed out", l.Token)
	}
}

// TestSnapshotIsACopy looks at the one part of a row that is shared by reference.
func TestSnapshotIsACopy(t *testing.T) {
	s := memstore.New(nil)
	l := grant(t, s, "a", "c1")
	renew(t, s, l, "r1")
	_, err := s.Renew(t.Context(), l, "r2")
	wantErr(t, err, store.ErrCloned)
	snap := s.Snapshot()
	snap["a"].Burns[0].Token = 99
	if rec, _ := s.Get(t.Context(), "a"); rec.Burns[0].Token != l.Token {
		t.Errorf("a change of the snapshot's burns changed the store: %+v", rec.Burns)
	}
	s.Restore(snap)
	snap["a"].Burns[0].Token = 100
	if rec, _ := s.Get(t.Context(), "a"); rec.Burns[0].Token != 99 {
		t.Errorf("a change of the restored snapshot changed the store: %+v", rec.Burns)
	}
	rec, _ := s.Get(t.Context(), "a")
	rec.Burns[0].Token = 101
	if rec, _ := s.Get(t.Context(), "a"); rec.Burns[0].Token != 99 {
		t.Errorf("a change of a record changed the store: %+v", rec.Burns)
	}
}

func TestDelete(t *testing.T) {
	s := memstore.New(nil)
	l := grant(t, s, "a", "c1")
	s.Delete("a")
	s.Delete("a")
	_, err := s.Renew(t.Context(), l, "r1")
	wantErr(t, err, store.ErrNoRecord)
	_, err = s.Get(t.Context(), "a")
	wantErr(t, err, store.ErrNoRecord)
}

func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		for i := range memstore.HistoryMax {
			l := grant(t, s, "a", store.Attempt(fmt.Sprintf("c%d", i)))
			s.Release(t.Context(), l, "")
		}
		all, err := s.History(t.Context(), "a", 10*memstore.HistoryMax)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != memstore.HistoryMax || all[0].What != "released" || all[0].Token != memstore.HistoryMax {
			t.Errorf("%d lines, the newest %+v", len(all), all[0])
		}
		for _, n := range []int{-1, 0, 1, 3} {
			some, err := s.History(t.Context(), "a", n)
			if err != nil || !slices.Equal(some, all[:max(n, 0)]) {
				t.Errorf("asked for %d lines: got %+v, %v", n, some, err)
			}
		}
	})
}

// TestCancelledIsUndone: this store looks at the context first, so it can say
// that nothing was carried out.
func TestCancelledIsUndone(t *testing.T) {
	s := memstore.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Acquire(ctx, claim("a", "c1"))
	wantErr(t, err, context.Canceled)
	if store.OutcomeUnknown(err) {
		t.Error("the outcome is called unknown")
	}
}

// TestRefusalsKeepTheRow: proof of a twin is a refusal and a change at once.
func TestRefusalsKeepTheRow(t *testing.T) {
	s := memstore.New(nil)
	l := grant(t, s, "a", "c1")
	renewed := renew(t, s, l, "r1")
	_, err := s.Renew(t.Context(), l, "r2")
	wantErr(t, err, store.ErrCloned)
	_, err = s.Renew(t.Context(), renewed, "r3")
	wantErr(t, err, store.ErrCloned)
}
