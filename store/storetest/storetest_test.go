package storetest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/store/storetest"
)

// memory is the harness of the reference store, seen through wrap.
func memory(wrap func(store.Store) store.Store) storetest.Harness {
	mem := memstore.New(nil)
	return storetest.Harness{
		Open: func(context.Context) (store.Store, func() error, error) {
			s := mem.Share()
			return wrap(s), s.Close, nil
		},
		Remove: func(_ context.Context, name string) error {
			mem.Delete(name)
			return nil
		},
		Upgrade: func(_ context.Context, name string) error {
			snap := mem.Snapshot()
			r := snap[name]
			r.Format = store.Format + 1
			snap[name] = r
			mem.Restore(snap)
			return nil
		},
	}
}

func plain(s store.Store) store.Store { return s }

func TestMemory(t *testing.T) {
	for _, c := range storetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := c.Run(t.Context(), memory(plain))
				var skip *storetest.SkipError
				if errors.As(err, &skip) {
					if !slices.Contains([]string{"init/again", "nonce/differs"}, c.Name) {
						t.Errorf("memory can do all but that: %v", err)
					}
					return
				}
				if err != nil {
					t.Errorf("%v\nwhy it matters: %s", err, c.Why)
				}
			})
		})
	}
}
