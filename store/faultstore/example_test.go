package faultstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/faultstore"
	"github.com/tenure-go/tenure/store/memstore"
)

// The reply to an acquire is lost. Asked again by the same attempt, the store
// answers with the grant that it had made.
func Example() {
	ctx := context.Background()
	f := faultstore.New(memstore.New(nil))
	f.Add(faultstore.Rule{Op: faultstore.Acquire, Nth: 1, Fault: faultstore.LoseReply()})

	claim := store.Claim{Name: "nightly", Holder: "one", Attempt: "a1", TTL: time.Minute}
	_, err := f.Acquire(ctx, claim)
	fmt.Println(err, "- outcome unknown:", store.OutcomeUnknown(err))

	lease, err := f.Acquire(ctx, claim)
	fmt.Println("token", lease.Token, "replayed:", lease.Replayed, err)
	// Output:
	// faultstore: the reply was lost - outcome unknown: true
	// token 1 replayed: true <nil>
}
