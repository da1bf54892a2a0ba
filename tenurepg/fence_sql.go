package tenurepg

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure/fence"
)

// SQLFence is [Fence] for a job that writes through package database/sql. Each
// check is a statement of its own, so a fenced transaction has one round trip more
// than with [Fence], and entering, once for each renewal, is another.
//
// Any driver will do whose errors tell their SQLSTATE, by a method SQLState() string,
// as pgx's and lib/pq's do.
type SQLFence struct {
	db      *sql.DB
	opts    FenceOptions
	entered entries
}

// NewSQLFence returns the fence of the database that db has open, through which the
// job writes. The caller keeps db and closes it. Nothing is asked of the database
// yet.
func NewSQLFence(db *sql.DB, opts *FenceOptions) *SQLFence {
	return &SQLFence{db: db, opts: opts.withDefaults()}
}

// Enter raises the resource's mark to s's, and commits that, see [Fence.Enter].
func (f *SQLFence) Enter(ctx context.Context, s fence.Stamp) error {
	if err := s.Validate(); err != nil {
		return err
	}
	s = entering(s)
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	err := patiently(ctx, func() error {
		_, err := f.db.ExecContext(ctx, sqlFenceEnter, append([]any{waitText(ctx)}, plainArgs(s)...)...)
		return FenceError(s, err)
	})
	if err == nil {
		f.entered.add(s)
	}
	return err
}

// Do runs write in a transaction in which s was checked, and commits both, or
// neither, see [Fence.Do].
func (f *SQLFence) Do(ctx context.Context, s fence.Stamp, write func(tx *sql.Tx) error) (replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return false, err
	}
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	if !f.entered.has(s) {
		if err := f.Enter(ctx, s); err != nil {
			return false, undone(err)
		}
	}
	var tx *sql.Tx
	err = patiently(ctx, func() (err error) {
		if tx, err = f.db.BeginTx(ctx, &sql.TxOptions{Isolation: f.isolation()}); err != nil {
			return undone(explain(err, "a fenced write"))
		}
		if replayed, err = CheckSQL(ctx, tx, s); err != nil {
			_ = tx.Rollback() // the connection is closed if it fails
		}
		return err
	})
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // after a commit it does nothing
	if !replayed {
		if err := write(tx); err != nil {
			return false, err
		}
	}
	if err := tx.Commit(); err != nil {
		return false, commitError(err)
	}
	return replayed, nil
}

func (f *SQLFence) isolation() sql.IsolationLevel {
	return map[pgx.TxIsoLevel]sql.IsolationLevel{
		pgx.ReadUncommitted: sql.LevelReadUncommitted,
		pgx.ReadCommitted:   sql.LevelReadCommitted,
		pgx.RepeatableRead:  sql.LevelRepeatableRead,
		pgx.Serializable:    sql.LevelSerializable,
	}[f.opts.Isolation]
}

// Last returns what the resource remembers of a lane, see [Fence.Last].
func (f *SQLFence) Last(ctx context.Context, resource, lane string) (l fence.LaneMark, err error) {
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	err = f.db.QueryRowContext(ctx, sqlFenceLast, resource, lane).Scan(&l.Token, &l.Position, &l.Digest)
	return l, FenceError(fence.Stamp{Resource: resource}, err)
}

// CheckSQL checks s within the caller's own transaction of package database/sql,
// see [Check].
func CheckSQL(ctx context.Context, tx *sql.Tx, s fence.Stamp) (replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return false, err
	}
	if s.Chained() {
		var wait string
		err = tx.QueryRowContext(ctx, sqlFenceReplayed, append([]any{waitText(ctx)}, chainArgs(s)...)...).Scan(&wait, &replayed)
	} else {
		_, err = tx.ExecContext(ctx, sqlFenceCheck, append([]any{waitText(ctx)}, plainArgs(s)...)...)
	}
	return replayed, undone(FenceError(s, err))
}
