package storetest_test

import (
	"context"
	"fmt"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/store/storetest"
)

// nameOnly is a store as one sees them: it renews whoever has the right name.
type nameOnly struct{ *memstore.Store }

func (s nameOnly) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	rec, err := s.Store.Get(ctx, l.Name)
	if err != nil || rec.State != store.Live {
		return s.Store.Renew(ctx, l, a)
	}
	return l, nil
}

func ExampleRun() {
	mem := memstore.New(nil)
	harness := storetest.Harness{
		Open: func(context.Context) (store.Store, func() error, error) {
			s := mem.Share()
			return nameOnly{s}, s.Close, nil
		},
	}
	for r := range storetest.Run(context.Background(), harness, "renew/receipts", "release/repeated") {
		switch {
		case r.Skipped != "":
			fmt.Println("skip", r.Case.Name, r.Skipped)
		case r.Err != nil:
			fmt.Println("FAIL", r.Case.Name)
			fmt.Println("    ", r.Case.Why)
		default:
			fmt.Println("ok  ", r.Case.Name)
		}
	}
	// Output:
	// FAIL renew/receipts
	//      A receipt that stays the same lets both copies of a cloned leader renew for ever.
	// ok   release/repeated
}
