package tenuresqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/fence/fencetest"
)

// TestFence runs the cases that every fence must pass, in both journal modes and
// both ways of use: the fence opens the transaction, or the caller does.
func TestFence(t *testing.T) {
	for _, journal := range []Journal{WAL, Rollback} {
		for _, own := range []bool{false, true} {
			name := string(journal) + "/fence's transaction"
			if own {
				name = string(journal) + "/caller's transaction"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "job.db")
				if _, err := openJob(t, path, journal).Exec("create table written (resource text, value text)"); err != nil {
					t.Fatal(err)
				}
				runFenceCases(t, path, own)
			})
		}
	}
}

// openJob opens the job's own database, as a job would. An empty journal leaves
// the file's journal mode as it is.
func openJob(t testing.TB, path string, journal Journal) *sql.DB {
	t.Helper()
	dsn := path + "?_pragma=busy_timeout(10000)&_txlock=immediate"
	if journal != "" {
		dsn += "&_pragma=journal_mode(" + string(journal) + ")"
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func runFenceCases(t *testing.T, path string, own bool) {
	h := fencetest.Harness{
		Open: func(context.Context) (fencetest.Fence, func() error, error) {
			patient, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(10000)")
			if err != nil {
				return nil, nil, err
			}
			hasty, err := sql.Open("sqlite", path)
			if err != nil {
				return nil, nil, err
			}
			return &fencedList{db: patient, fence: NewFence(hasty), own: own}, func() error { return errors.Join(patient.Close(), hasty.Close()) }, nil
		},
		Transaction: func(ctx context.Context, f fencetest.Fence, s fence.Stamp, value string, inside func() error) error {
			_, err := f.(*fencedList).write(ctx, s, value, inside)
			return err
		},
	}
	for _, c := range fencetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			err := c.Run(t.Context(), h)
			var skip *fencetest.SkipError
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

// fencedList is a table behind the fence.
type fencedList struct {
	db    *sql.DB // waits for locks by itself
	fence *Fence  // on a database that does not: the fence must
	own   bool    // the caller opens the transaction
}

func (l *fencedList) Enter(ctx context.Context, s fence.Stamp) error { return l.fence.Enter(ctx, s) }

func (l *fencedList) Write(ctx context.Context, s fence.Stamp, value string) (bool, error) {
	return l.write(ctx, s, value, func() error { return nil })
}

func (l *fencedList) write(ctx context.Context, s fence.Stamp, value string, inside func() error) (bool, error) {
	insert := func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "insert into written values (?, ?)", s.Resource, value); err != nil {
			return err
		}
		return inside()
	}
	if !l.own {
		return l.fence.Do(ctx, s, insert)
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	replayed, err := Check(ctx, tx, s)
	if err != nil {
		return false, err
	}
	if !replayed {
		if err := insert(tx); err != nil {
			return false, err
		}
	}
	return replayed, tx.Commit()
}

func (l *fencedList) Written(ctx context.Context, resource string) ([]string, error) {
	rows, err := l.db.QueryContext(ctx, "select value from written where resource = ? order by rowid", resource)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var values []string
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, rows.Err()
}

func (l *fencedList) Last(ctx context.Context, resource, lane string) (fence.LaneMark, error) {
	return l.fence.Last(ctx, resource, lane)
}
