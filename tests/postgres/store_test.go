package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/storetest"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// schema returns a database with the schema.
func schema(t testing.TB) *servers.Database {
	t.Helper()
	d := servers.Postgres(t)
	migrate(t, d)
	return d
}

func migrate(t testing.TB, d *servers.Database) {
	t.Helper()
	if _, err := tenurepg.Migrate(t.Context(), servers.Connect(t, d.URL())); err != nil {
		t.Fatal(err)
	}
}

// open opens a store that is closed when the test ends.
func open(t testing.TB, url string, o *tenurepg.Options) *tenurepg.Store {
	t.Helper()
	s, err := tenurepg.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// execer returns a function that runs statements as the superuser.
func execer(t testing.TB, d *servers.Database) func(ctx context.Context, sql string, args ...any) error {
	t.Helper()
	return func(ctx context.Context, sql string, args ...any) error {
		c, err := pgx.Connect(ctx, d.URL())
		if err != nil {
			return err
		}
		_, err = c.Exec(ctx, sql, args...)
		return errors.Join(err, c.Close(context.WithoutCancel(ctx)))
	}
}

// way is a way to a store.
type way struct {
	name string
	open func(ctx context.Context, url string) (*tenurepg.Store, func() error, error)
}

var (
	byURL = way{"url", func(ctx context.Context, url string) (*tenurepg.Store, func() error, error) {
		s, err := tenurepg.Open(ctx, url, nil)
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	}}
	byPool = way{"pool", func(ctx context.Context, url string) (*tenurepg.Store, func() error, error) {
		p, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		s, err := tenurepg.New(p, nil)
		return s, func() error { err := s.Close(); p.Close(); return err }, err
	}}
	byDB = way{"database-sql", func(ctx context.Context, url string) (*tenurepg.Store, func() error, error) {
		db, err := sql.Open("pgx", url)
		if err != nil {
			return nil, nil, err
		}
		s, err := tenurepg.NewSQL(db, nil)
		return s, func() error { return errors.Join(s.Close(), db.Close()) }, err
	}}
)

// TestStore runs the cases that every store must pass: over each kind of client, and
// through a pooler that shares few connections among all.
func TestStore(t *testing.T) {
	d := schema(t)
	b := servers.Bouncer(t, d, 5)
	for _, on := range []struct {
		place, url string
		way        way
	}{
		{"direct", d.URL(), byURL},
		{"direct", d.URL(), byDB},
		{"pooled", b.URL(), byURL},
		{"pooled", b.URL(), byPool},
	} {
		t.Run(on.place+"/"+on.way.name, func(t *testing.T) {
			t.Parallel()
			runCases(t, storetest.Harness{
				Parallel: 4,
				TTL:      3 * time.Second, // room for a slow machine
				Open:     func(ctx context.Context) (store.Store, func() error, error) { return on.way.open(ctx, on.url) },
				Remove: func(ctx context.Context, name string) error {
					return execer(t, d)(ctx, "delete from tenure.lease where name = $1", name)
				},
				Upgrade: func(ctx context.Context, name string) error {
					return execer(t, d)(ctx, "update tenure.lease set format = $2 where name = $1", name, store.Format+1)
				},
			})
		})
	}
}

func runCases(t *testing.T, h storetest.Harness) {
	for r := range storetest.Run(t.Context(), h) {
		t.Run(r.Case.Name, func(t *testing.T) {
			switch {
			case r.Err != nil:
				t.Errorf("%v\nwhy this matters: %s", r.Err, r.Case.Why)
			case r.Skipped != "":
				t.Log(r.Skipped)
			}
		})
	}
}
