package fence_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/tenure-go/tenure/fence"
)

func TestMemoryKeepsNothingOfAFailedWrite(t *testing.T) {
	var f fence.Memory
	ctx := t.Context()
	broken := errors.New("disk full")
	s := fence.Stamp{Resource: "r", Token: 5, TermID: "a", Position: 1, Digest: "d1"}

	if replayed, err := f.Do(s, func() error { return broken }); !errors.Is(err, broken) || replayed {
		t.Fatalf("got %v, %v, want the write's error", replayed, err)
	}
	if l, err := f.Last(ctx, "r", ""); err != nil || l != (fence.LaneMark{}) {
		t.Errorf("the lane is at %+v, %v: the failed write moved it", l, err)
	}
	// The mark did not move either: a lower token still gets in.
	if err := f.Enter(ctx, fence.Stamp{Resource: "r", Token: 4}); err != nil {
		t.Errorf("the failed write raised the mark: %v", err)
	}
	// The same stamp is not taken for a replay of the write that failed.
	ran := false
	if replayed, err := f.Do(s, func() error { ran = true; return nil }); err != nil || replayed || !ran {
		t.Errorf("sent again: replayed %v, ran %v, %v", replayed, ran, err)
	}
	if replayed, err := f.Do(s, func() error { t.Error("the replay was written"); return nil }); err != nil || !replayed {
		t.Errorf("sent a third time: replayed %v, %v", replayed, err)
	}
}

func TestMemoryEntersByItself(t *testing.T) {
	var f fence.Memory
	successor := fence.Stamp{Resource: "r", Token: 6, TermID: "b"}
	if err := f.Enter(t.Context(), successor); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Do(successor, func() error { return errors.New("rolled back") }); err == nil {
		t.Fatal("the write's error was swallowed")
	}
	_, err := f.Do(fence.Stamp{Resource: "r", Token: 5, TermID: "a"}, func() error { t.Error("the late write landed"); return nil })
	if !errors.Is(err, fence.ErrStale) {
		t.Errorf("the late write got %v", err)
	}
	if err := f.Enter(t.Context(), fence.Stamp{Resource: "r", Token: 5, TermID: "a"}); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the late entry got %v", err)
	}
}

func TestMemoryPanickingWriteFreesTheFence(t *testing.T) {
	var f fence.Memory
	s := fence.Stamp{Resource: "r", Token: 5, Position: 1, Digest: "d"}
	func() {
		defer func() { _ = recover() }()
		_, _ = f.Do(s, func() error { panic("oh") })
	}()
	if replayed, err := f.Do(s, func() error { return nil }); err != nil || replayed {
		t.Errorf("after a panic: replayed %v, %v", replayed, err)
	}
}

// Terms overtake each other while every one of them writes from several
// goroutines. What lands, in the order in which it landed, never goes back.
func TestMemoryConcurrent(t *testing.T) {
	var f fence.Memory
	const terms, writers, writes = 8, 4, 50
	var landed []fence.Token // guarded by f: only written inside Do
	var wg sync.WaitGroup
	for token := fence.Token(1); token <= terms; token++ {
		for range writers {
			wg.Go(func() {
				s := fence.Stamp{Resource: "r", Token: token, TermID: string(rune('a' + token))}
				if err := f.Enter(context.Background(), s); err != nil {
					return // a later term was faster
				}
				for range writes {
					if _, err := f.Do(s, func() error { landed = append(landed, token); return nil }); err != nil && !errors.Is(err, fence.ErrStale) {
						t.Errorf("token %d: %v", token, err)
					}
				}
			})
		}
	}
	wg.Wait()
	if !slices.IsSorted(landed) {
		t.Errorf("a token landed after a higher one: %v", landed)
	}
	// The last term has no successor, so every one of its writes landed.
	if n := len(landed) - slices.Index(landed, terms); n != writers*writes {
		t.Errorf("the last term landed %d of %d writes", n, writers*writes)
	}
}

// Many copies of one leader race for the same positions, each with its own
// writes. At each position exactly one lands, and the others hear of the fork.
func TestMemoryConcurrentTwins(t *testing.T) {
	var f fence.Memory
	const twins, positions = 8, 50
	for pos := int64(1); pos <= positions; pos++ {
		var landed, forked int // landed is guarded by f
		var mu sync.Mutex      // guards forked
		var wg sync.WaitGroup
		for twin := range twins {
			wg.Go(func() {
				s := fence.Stamp{
					Resource: "r", Token: 3, TermID: "a", Lane: "l", Position: pos,
					Digest: fence.NewDigest("w", []byte{byte(twin)}),
				}
				replayed, err := f.Do(s, func() error { landed++; return nil })
				if errors.Is(err, fence.ErrForked) {
					mu.Lock()
					forked++
					mu.Unlock()
				} else if err != nil || replayed {
					t.Errorf("twin %d at position %d: replayed %v, %v", twin, pos, replayed, err)
				}
			})
		}
		wg.Wait()
		if landed != 1 || forked != twins-1 {
			t.Fatalf("position %d: %d landed and %d were refused as forks, want 1 and %d", pos, landed, forked, twins-1)
		}
	}
}
