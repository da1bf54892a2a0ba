//go:build linux

package tenuresqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/storetest"
)

// TestStore runs the cases that every store must pass, in a file of the store's
// own in both journal modes.
func TestStore(t *testing.T) {
	for _, journal := range []Journal{WAL, Rollback} {
		t.Run(string(journal), func(t *testing.T) {
			t.Parallel()
			runStoreCases(t, harness(t, filepath.Join(t.TempDir(), "tenure.db"), journal))
		})
	}
}

func runStoreCases(t *testing.T, h storetest.Harness) {
	for _, c := range storetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			err := c.Run(t.Context(), h)
			var skip *storetest.SkipError
			if errors.As(err, &skip) {
				t.Log(skip)
				return
			}
			if err != nil {
				t.Fatalf("%v\nwhy this matters: %s", err, c.Why)
			}
		})
	}
}

func harness(t *testing.T, path string, journal Journal) storetest.Harness {
	exec := func(ctx context.Context, query string, args ...any) error {
		db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(10000)")
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, query, args...)
		return errors.Join(err, db.Close())
	}
	return storetest.Harness{
		Open: func(ctx context.Context) (store.Store, func() error, error) {
			s, err := Open(ctx, path, &Options{Journal: journal})
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		},
		Remove: func(ctx context.Context, name string) error {
			// The second statement removes what the first left behind, see
			// TestB05_RowRemoved.
			return errors.Join(
				exec(ctx, "delete from tenure_lease where name = ?", []byte(name)),
				exec(ctx, "delete from tenure_removed where name = ?", []byte(name)))
		},
		Upgrade: func(ctx context.Context, name string) error {
			return exec(ctx, "update tenure_lease set format = ? where name = ?", store.Format+1, []byte(name))
		},
	}
}
