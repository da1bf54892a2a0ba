package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

// Two processes contend; the first renews, gives back, and the second gets in
// with a higher token.
func Example() {
	ctx := context.Background()
	first := memstore.New(nil)
	second := first.Share() // as another process would open it

	lease, err := first.Acquire(ctx, store.Claim{Name: "nightly", Holder: "one", Attempt: "a1", TTL: time.Minute})
	fmt.Println("one: token", lease.Token, err)

	_, err = second.Acquire(ctx, store.Claim{Name: "nightly", Holder: "two", Attempt: "a2", TTL: time.Minute})
	var held *store.HeldError
	fmt.Println("two: held by", errors.As(err, &held), held.Holder)

	lease, err = first.Renew(ctx, lease, "a3")
	fmt.Println("one: renewal", lease.Renewal, err)
	fmt.Println("one: released", first.Release(ctx, lease, ""))

	lease, err = second.Acquire(ctx, store.Claim{Name: "nightly", Holder: "two", Attempt: "a4", TTL: time.Minute})
	fmt.Println("two: token", lease.Token, err)
	// Output:
	// one: token 1 <nil>
	// two: held by true one
	// one: renewal 1 <nil>
	// one: released <nil>
	// two: token 2 <nil>
}

// A store that is restored from a backup hands its tokens out twice; the term id
// tells the two terms apart.
func ExampleStore_Restore() {
	ctx := context.Background()
	s := memstore.New(nil)
	backup := s.Snapshot()

	claim := store.Claim{Name: "nightly", Holder: "one", Attempt: "a1", TTL: time.Minute}
	lost, _ := s.Acquire(ctx, claim)
	s.Restore(backup)
	claim.Holder, claim.Attempt = "two", "a2"
	next, _ := s.Acquire(ctx, claim)

	_, err := s.Renew(ctx, lost, "a3")
	fmt.Println("tokens", lost.Token, next.Token)
	fmt.Println("superseded:", errors.Is(err, store.ErrSuperseded))
	// Output:
	// tokens 1 1
	// superseded: true
}
