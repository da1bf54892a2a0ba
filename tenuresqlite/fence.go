package tenuresqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// Fence guards what is written to a SQLite database: the marks of package fence
// are kept in the same file, and checked and raised in the transaction that
// writes. It is safe for concurrent use and holds nothing that needs closing.
//
// Its refusals are those of package fence; [fence.Refused] tells them from a
// database that is busy ([store.ErrBusy]) or out of reach.
type Fence struct {
	db *sql.DB
}

// NewFence returns the fence of the database that db has open with the driver
// modernc.org/sqlite. The caller keeps db and closes it. The fence's tables are
// made at the first use. Nothing is asked of the database yet.
func NewFence(db *sql.DB) *Fence { return &Fence{db: db} }

// Enter raises the resource's mark to s's in a transaction of its own. A term
// enters each resource before it reads or writes there, and again after each
// renewal if it wants copies of itself refused. It waits for other writers until
// ctx ends, or [WaitDefault] if ctx has no deadline.
func (f *Fence) Enter(ctx context.Context, s fence.Stamp) error {
	if err := s.Validate(); err != nil {
		return err
	}
	s.Lane, s.Position, s.Digest = "", 0, "" // entering takes no position
	_, err := f.Do(ctx, s, func(*sql.Tx) error { return nil })
	return err
}

// Do runs write in a transaction in which s was checked, and commits both, or
// neither. Nobody else writes to the database from before the check until the
// commit, so write may read what it decides by.
//
// If s is refused, or write fails or panics, nothing is kept; an error of write
// is returned as it is. replayed is true, and write was not run, when s is the
// last chained write of its lane sent again: it is there already.
//
// Do waits for other writers until ctx ends, or [WaitDefault] if ctx has no
// deadline; then it fails with [store.ErrBusy], and nothing was written. After
// any other error of the database while committing, the outcome is unknown
// ([store.OutcomeUnknown]): send the same stamp again. write must not use the
// database but through its argument.
func (f *Fence) Do(ctx context.Context, s fence.Stamp, write func(tx *sql.Tx) error) (replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return false, err
	}
	ctx, c, done, err := f.conn(ctx)
	if err != nil {
		return false, fenceError(err)
	}
	defer done()

	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return false, fenceError(err)
	}
	defer tx.Rollback() // after a commit it does nothing
	replayed, err = Check(ctx, tx, s)
	if err != nil {
		return false, err
	}
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

// Last returns what the resource remembers of a lane: the position and digest of
// its last write, or a zero mark. A new term reads it before it does a write
// again whose outcome its predecessor never learnt. It waits for writers as Do
// does.
func (f *Fence) Last(ctx context.Context, resource, lane string) (fence.LaneMark, error) {
	ctx, c, done, err := f.conn(ctx)
	if err != nil {
		return fence.LaneMark{}, fenceError(err)
	}
	defer done()
	return Last(ctx, c, resource, lane)
}

// conn returns a connection that waits for locks until the context it returns
// ends: the caller's, bounded if that has no deadline. The caller calls done
// after its last use.
func (f *Fence) conn(ctx context.Context) (bounded context.Context, c *sql.Conn, done func(), err error) {
	cancel := func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeout(ctx, WaitDefault)
	}
	if c, err = f.db.Conn(ctx); err != nil {
		cancel()
		return nil, nil, nil, err
	}
	restore, err := patience(ctx, c)
	if err != nil {
		cancel()
		return nil, nil, nil, errors.Join(err, c.Close())
	}
	return ctx, c, func() {
		restore()
		_ = c.Close() // back to the pool
		cancel()
	}, nil
}

// Enter raises the resource's mark to s's in a transaction of its own, see
// [Fence.Enter].
func Enter(ctx context.Context, db *sql.DB, s fence.Stamp) error { return NewFence(db).Enter(ctx, s) }

// Check checks s within the caller's own transaction and keeps the raised marks
// in it, so that they are committed with the caller's writes or not at all. If
// replayed, the write is there already: write nothing more, commit, and report
// success. After an error, roll back.
//
// Call it before anything else in the transaction. It begins with a write, which
// takes the file's write lock, so a plain BEGIN becomes as good as a BEGIN
// IMMEDIATE. A transaction that has already read, and meanwhile was overtaken by
// another writer, cannot take the lock any more: Check then fails with
// [store.ErrBusy], and the whole transaction must be done again. It is never
// checked against old marks.
//
// Check waits for other writers as long as the connection's busy_timeout says,
// which is not at all by default, and then fails with [store.ErrBusy].
// [Fence.Do] sets it.
func Check(ctx context.Context, tx *sql.Tx, s fence.Stamp) (replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return false, err
	}
	resource, lane := []byte(s.Resource), blob(s.Lane)
	if _, err := tx.ExecContext(ctx, strings.TrimSpace(sqlFenceLock), resource); err != nil {
		if !isMissingTable(err) {
			return false, fenceError(err)
		}
		if _, err := tx.ExecContext(ctx, sqlFenceSchema); err != nil {
			return false, fenceError(err)
		}
	}

	var (
		mark   fence.Mark
		last   fence.LaneMark
		termID []byte
	)
	err = tx.QueryRowContext(ctx, strings.TrimSpace(sqlFenceMark), resource).Scan(&mark.Token, &termID, &mark.Renewal)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, fenceError(err)
	}
	mark.TermID = string(termID)
	if s.Chained() {
		if last, err = lastOf(ctx, tx, s.Resource, s.Lane); err != nil {
			return false, fenceError(err)
		}
	}

	var next fence.Mark
	if s.Chained() {
		next, last, replayed, err = fence.CheckChain(mark, last, s)
	} else {
		next, err = mark.Check(s)
	}
	if err != nil {
		return false, err
	}
	if next != mark {
		if _, err := tx.ExecContext(ctx, strings.TrimSpace(sqlFenceMarkKeep), resource, int64(next.Token), blob(next.TermID), next.Renewal); err != nil {
			return false, fenceError(err)
		}
	}
	if s.Chained() && !replayed {
		if _, err := tx.ExecContext(ctx, strings.TrimSpace(sqlFenceLaneKeep), resource, lane, int64(last.Token), last.Position, blob(last.Digest)); err != nil {
			return false, fenceError(err)
		}
	}
	return replayed, nil
}

// Querier is what [Last] reads through: a *sql.DB, *sql.Conn or *sql.Tx.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Last returns what the resource remembers of a lane, see [Fence.Last]. Outside
// a write transaction it may be stale on return.
func Last(ctx context.Context, q Querier, resource, lane string) (fence.LaneMark, error) {
	l, err := lastOf(ctx, q, resource, lane)
	if isMissingTable(err) {
		return fence.LaneMark{}, nil
	}
	if err != nil {
		return fence.LaneMark{}, fenceError(err)
	}
	return l, nil
}

func lastOf(ctx context.Context, q Querier, resource, lane string) (fence.LaneMark, error) {
	var (
		l      fence.LaneMark
		digest []byte
	)
	err := q.QueryRowContext(ctx, strings.TrimSpace(sqlFenceLane), []byte(resource), blob(lane)).Scan(&l.Token, &l.Position, &digest)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fence.LaneMark{}, err
	}
	l.Digest = string(digest)
	return l, nil
}

// patience lets SQLite wait for locks on this connection until ctx ends, and
// returns what undoes that.
func patience(ctx context.Context, c *sql.Conn) (restore func(), err error) {
	var before int64
	if err := c.QueryRowContext(ctx, "pragma busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	set := func(ctx context.Context, ms int64) error {
		_, err := c.ExecContext(ctx, fmt.Sprintf("pragma busy_timeout = %d", ms))
		return err
	}
	deadline, _ := ctx.Deadline()
	// SQLite ignores a number beyond 32 bits.
	wait := min(max(time.Until(deadline), time.Millisecond), time.Hour)
	if err := set(ctx, wait.Milliseconds()); err != nil {
		return nil, err
	}
	return func() { _ = set(context.WithoutCancel(ctx), before) }, nil
}

// isMissingTable reports whether a statement failed because the fence's tables
// were not made yet.
func isMissingTable(err error) bool {
	return sqliteCode(err) == sqlite3.SQLITE_ERROR && strings.Contains(err.Error(), "no such table: tenure_fence")
}

// fenceError is an error of the database before the commit: nothing was written.
func fenceError(err error) error {
	switch {
	case isBusy(err):
		return &failure{kind: store.ErrBusy, text: "the database is being written by another, or was since this transaction first read it", cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{kind: store.ErrBusy, text: "the database did not answer in time", cause: err}
	case sqliteCode(err)&0xff == sqlite3.SQLITE_READONLY:
		return &failure{kind: store.ErrReadOnly, text: "the database takes no writes", cause: err}
	}
	return store.Undone(err)
}

// commitError is an error of the commit. A busy one was rolled back, by the
// driver; after any other nobody knows.
func commitError(err error) error {
	if isBusy(err) {
		return &failure{kind: store.ErrBusy, text: "a reader held the database", cause: err}
	}
	return &failure{kind: store.ErrUnreachable, text: "the commit failed", cause: err, unknown: true}
}
