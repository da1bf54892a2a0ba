package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/fence/fencetest"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// isolations are the levels at which the check must be right.
var isolations = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// fencedList is a table behind a fence, in one of the ways of using it.
type fencedList interface {
	fencetest.Fence
	write(ctx context.Context, s fence.Stamp, value string, inside func() error) (replayed bool, err error)
}

// fenceWay is a way to write behind the fence.
type fenceWay func(ctx context.Context, url string, iso pgx.TxIsoLevel) (fencedList, func() error, error)

func throughPgx(ctx context.Context, url string, iso pgx.TxIsoLevel) (fencedList, func() error, error) {
	p, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	l := &pgxList{pool: p, Fence: tenurepg.NewFence(p, &tenurepg.FenceOptions{Isolation: iso})}
	return l, func() error { p.Close(); return nil }, nil
}

func inOwnTransaction(ctx context.Context, url string, iso pgx.TxIsoLevel) (fencedList, func() error, error) {
	p, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	l := &pgxList{pool: p, Fence: tenurepg.NewFence(p, nil), own: true, iso: iso}
	return l, func() error { p.Close(); return nil }, nil
}

func throughSQL(_ context.Context, url string, iso pgx.TxIsoLevel) (fencedList, func() error, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, nil, err
	}
	return &sqlList{db: db, SQLFence: tenurepg.NewSQLFence(db, &tenurepg.FenceOptions{Isolation: iso})}, db.Close, nil
}

const (
	insertWritten = "insert into written (resource, value) values ($1, $2)"
	selectWritten = "select value from written where resource = $1 order by n"
	// The check and the write in one statement.
	insertChecked = "with checked as materialized (select tenure.fence($3, $4, $5, $6)) insert into written (resource, value) select $1, $2 from checked"
	createWritten = "create table written (n bigint generated always as identity, resource text, value text)"
)

// TestFence runs the cases that every fence must pass, in each way of using this
// one, at each isolation level, directly and through a pooler.
func TestFence(t *testing.T) {
	d := written(t)
	b := servers.Bouncer(t, d, 8)
	direct, pooled := d.URL(), b.URL("default_query_exec_mode=exec")
	for _, c := range []struct {
		name, url string
		way       fenceWay
		iso       pgx.TxIsoLevel
	}{
		{"pgx", direct, throughPgx, pgx.ReadCommitted},
		{"pgx", direct, throughPgx, pgx.RepeatableRead},
		{"pgx", direct, throughPgx, pgx.Serializable},
		{"pgx, own transaction", direct, inOwnTransaction, pgx.ReadCommitted},
		{"pgx, own transaction", direct, inOwnTransaction, pgx.RepeatableRead},
		{"database/sql", direct, throughSQL, pgx.ReadCommitted},
		{"database/sql", direct, throughSQL, pgx.Serializable},
		{"pgx, pooled", pooled, throughPgx, pgx.ReadCommitted},
		{"database/sql, pooled", pooled, throughSQL, pgx.ReadCommitted},
	} {
		t.Run(c.name+"/"+string(c.iso), func(t *testing.T) {
			runFenceCases(t, fencetest.Harness{
				Open: func(ctx context.Context) (fencetest.Fence, func() error, error) { return c.way(ctx, c.url, c.iso) },
				Transaction: func(ctx context.Context, f fencetest.Fence, s fence.Stamp, value string, inside func() error) error {
					_, err := f.(fencedList).write(ctx, s, value, inside)
					return err
				},
			})
		})
	}
}

func runFenceCases(t *testing.T, h fencetest.Harness) {
	for _, c := range fencetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := c.Run(t.Context(), h); err != nil {
				t.Fatalf("%v\nwhy this matters: %s", err, c.Why)
			}
		})
	}
}

// retried does again what collided with other transactions, as whoever works above
// READ COMMITTED must.
func retried(ctx context.Context, try func() (bool, error)) (bool, error) {
	for {
		replayed, err := try()
		var e interface{ SQLState() string }
		if ctx.Err() != nil || !errors.As(err, &e) || e.SQLState() != "40001" {
			return replayed, err
		}
	}
}

// pgxList writes through a pool of pgx.
type pgxList struct {
	*tenurepg.Fence
	pool *pgxpool.Pool
	own  bool // the list opens the transaction, not the fence
	iso  pgx.TxIsoLevel
}

func (l *pgxList) Write(ctx context.Context, s fence.Stamp, value string) (bool, error) {
	return l.write(ctx, s, value, func() error { return nil })
}

func (l *pgxList) write(ctx context.Context, s fence.Stamp, value string, inside func() error) (bool, error) {
	insert := func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertWritten, s.Resource, value); err != nil {
			return err
		}
		return inside()
	}
	return retried(ctx, func() (bool, error) {
		if !l.own {
			return l.Do(ctx, s, insert)
		}
		tx, err := l.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: l.iso})
		if err != nil {
			return false, err
		}
		defer tx.Rollback(ctx)
		replayed, err := tenurepg.Check(ctx, tx, s)
		if err != nil {
			return false, err
		}
		if !replayed {
			if err := insert(tx); err != nil {
				return false, err
			}
		}
		return replayed, tx.Commit(ctx)
	})
}

func (l *pgxList) Written(ctx context.Context, resource string) ([]string, error) {
	rows, err := l.pool.Query(ctx, selectWritten, resource)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// sqlList writes through package database/sql.
type sqlList struct {
	*tenurepg.SQLFence
	db *sql.DB
}

func (l *sqlList) Write(ctx context.Context, s fence.Stamp, value string) (bool, error) {
	return l.write(ctx, s, value, func() error { return nil })
}

func (l *sqlList) write(ctx context.Context, s fence.Stamp, value string, inside func() error) (bool, error) {
	return retried(ctx, func() (bool, error) {
		return l.Do(ctx, s, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, insertWritten, s.Resource, value); err != nil {
				return err
			}
			return inside()
		})
	})
}

func (l *sqlList) Written(ctx context.Context, resource string) ([]string, error) {
	rows, err := l.db.QueryContext(ctx, selectWritten, resource)
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
