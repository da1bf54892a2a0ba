package tenurepg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// FenceWaitDefault is how long a fence waits for others if the context has no
// deadline. It is longer than a leader that is frozen inside a fenced transaction
// can hold up its successor, which is 10 s unless the setting tenure.fence_idle
// says otherwise.
const FenceWaitDefault = 15 * time.Second

// FenceOptions change how a fence works. The zero FenceOptions, and nil, are the
// defaults.
type FenceOptions struct {
	// Isolation is the isolation level of the transactions. Empty: the database's
	// default. The check is right at each of them.
	Isolation pgx.TxIsoLevel
	// Wait bounds a call whose context has no deadline. 0: [FenceWaitDefault].
	Wait time.Duration
}

func (o *FenceOptions) withDefaults() FenceOptions {
	var v FenceOptions
	if o != nil {
		v = *o
	}
	if v.Wait <= 0 {
		v.Wait = FenceWaitDefault
	}
	return v
}

// Fence guards what is written to a PostgreSQL database: the marks of package
// fence are kept in the same database, in the schema that [Migrate] makes, and
// checked in the transaction that writes. It is safe for concurrent use and holds
// nothing that needs closing.
//
// Its refusals are those of package fence; [fence.Refused] tells them from a
// server that is busy ([store.ErrBusy]) or out of reach.
type Fence struct {
	pool    *pgxpool.Pool
	opts    FenceOptions
	entered entries
}

// NewFence returns the fence of the database that pool connects to, through which
// the job writes. The caller keeps pool and closes it. Nothing is asked of the
// database yet.
func NewFence(pool *pgxpool.Pool, opts *FenceOptions) *Fence {
	return &Fence{pool: pool, opts: opts.withDefaults()}
}

// Enter raises the resource's mark to s's, and commits that. A term enters each
// resource before it reads or writes there, and again after each renewal if it
// wants copies of itself refused; [Fence.Do] does so by itself.
//
// Under a token that is new it waits for the writes that are under way, until ctx
// ends, or [FenceOptions].Wait if ctx has no deadline; then it fails with
// [store.ErrBusy]. It may be sent again after any error.
func (f *Fence) Enter(ctx context.Context, s fence.Stamp) error {
	if err := s.Validate(); err != nil {
		return err
	}
	s = entering(s)
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	err := patiently(ctx, func() error {
		return f.withConn(ctx, func(c *pgx.Conn) error { return Enter(ctx, c, s) })
	})
	if err == nil {
		f.entered.add(s)
	}
	return err
}

// Do runs write in a transaction in which s was checked, and commits both, or
// neither. The check goes to the server together with BEGIN, and so does entering,
// if s is of a term or of a renewal that did not enter the resource through f yet.
// So it costs no round trip of its own.
//
// If s is refused, or write fails or panics, nothing is kept; an error of write
// is returned as it is. replayed is true, and write was not run, when s is the
// last chained write of its lane sent again: it is there already.
//
// Do waits for other writers until ctx ends, or [FenceOptions].Wait if ctx has no
// deadline; then it fails with [store.ErrBusy], and nothing was written. What
// collides with others before write runs is tried again; an error of the commit is
// returned. After one that leaves the outcome unknown ([store.OutcomeUnknown]),
// send the same stamp again.
//
// The server ends the transaction if it hears nothing for 10 s within it, or for
// as long as the setting tenure.fence_idle says. write must not use f.
func (f *Fence) Do(ctx context.Context, s fence.Stamp, write func(tx pgx.Tx) error) (replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return false, err
	}
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()

	enter := !f.entered.has(s)
	var c *pgxpool.Conn
	var tx pgx.Tx
	err = patiently(ctx, func() (err error) {
		if c, err = f.pool.Acquire(ctx); err != nil {
			return f.noConn(ctx, err)
		}
		tx, replayed, err = beginTx(ctx, c.Conn(), s, pgx.TxOptions{IsoLevel: f.opts.Isolation}, enter)
		if tx == nil {
			c.Release()
		}
		return err
	})
	if err != nil {
		return false, err
	}
	f.entered.add(s)
	if replayed {
		return true, nil
	}
	defer c.Release()
	defer rollback(ctx, tx) // after a commit it does nothing
	if err := write(tx); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, store.Undone(fmt.Errorf("tenure: nothing was written: %w", err))
	}
	return false, commitError(tx.Commit(ctx))
}

// Last returns what the resource remembers of a lane: the position and digest of
// its last write, or a zero mark. A new term enters the resource and then reads it,
// before it does a write again whose outcome its predecessor never learnt.
func (f *Fence) Last(ctx context.Context, resource, lane string) (l fence.LaneMark, err error) {
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	err = f.withConn(ctx, func(c *pgx.Conn) (err error) {
		l, err = Last(ctx, c, resource, lane)
		return err
	})
	return l, err
}

// FenceMark is what a resource has seen, for people.
type FenceMark struct {
	Resource string
	fence.Mark
	SeenAt time.Time // when the token was first seen, by the server's clock
	Lanes  int64     // how many lanes were ever written to
}

// List returns what resources have seen, in the order of their names: all of them,
// or the one that is named. The role needs the right to call tenure.fence_list.
func (f *Fence) List(ctx context.Context, resource string) (marks []FenceMark, err error) {
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	err = f.withConn(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlFenceList, pgx.QueryExecModeExec, resource)
		if err != nil {
			return FenceError(fence.Stamp{}, err)
		}
		marks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m FenceMark, err error) {
			err = row.Scan(&m.Resource, &m.Token, &m.TermID, &m.Renewal, &m.SeenAt, &m.Lanes)
			return m, err
		})
		return FenceError(fence.Stamp{}, err)
	})
	return marks, err
}

// Lower lowers the mark of a resource that refuses the rightful leader, because a
// token was entered that no election handed out, and returns the token that had
// been seen. What stands under a higher token is forgotten, and whoever holds one
// is let in again: make sure that nobody does. The reason is kept in the table
// tenure.audit. The role must own the schema, or have the right to call
// tenure.fence_lower.
//
// A token that is not lower than what was seen is refused with [fence.ErrInvalid].
func (f *Fence) Lower(ctx context.Context, resource string, token fence.Token, reason string) (seen fence.Token, err error) {
	ctx, cancel := bounded(ctx, f.opts.Wait)
	defer cancel()
	err = f.withConn(ctx, func(c *pgx.Conn) error {
		s := fence.Stamp{Resource: resource, Token: token}
		return FenceError(s, c.QueryRow(ctx, sqlFenceLower, pgx.QueryExecModeExec, resource, int64(token), reason).Scan(&seen))
	})
	if err == nil {
		f.entered.forget(resource)
	}
	return seen, err
}

// withConn lends a connection of the pool.
func (f *Fence) withConn(ctx context.Context, use func(c *pgx.Conn) error) error {
	c, err := f.pool.Acquire(ctx)
	if err != nil {
		return f.noConn(ctx, err)
	}
	defer c.Release()
	return use(c.Conn())
}

// noConn says why there is no connection.
func (f *Fence) noConn(ctx context.Context, err error) error {
	if st := f.pool.Stat(); ctx.Err() != nil && st.AcquiredConns() >= st.MaxConns() {
		return exhausted("a fenced write", int(st.MaxConns()), err)
	}
	return connecting(err)
}

// BeginTx begins a transaction on a connection of the caller's and checks s in it,
// in one round trip. replayed is true, and there is no transaction, when s is the
// last chained write of its lane sent again: report success and write nothing.
//
// It does not enter the resource: see [Enter]. It waits for other writers until ctx
// ends, or [FenceWaitDefault] if ctx has no deadline; then it fails with
// [store.ErrBusy]. After an error there is no transaction, and c can be used
// unless it is closed.
func BeginTx(ctx context.Context, c *pgx.Conn, s fence.Stamp, opts pgx.TxOptions) (tx pgx.Tx, replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return nil, false, err
	}
	ctx, cancel := bounded(ctx, FenceWaitDefault)
	defer cancel()
	return beginTx(ctx, c, s, opts, false)
}

// beginTx sends all that comes before a fenced write at once.
func beginTx(ctx context.Context, c *pgx.Conn, s fence.Stamp, opts pgx.TxOptions, enter bool) (tx pgx.Tx, replayed bool, err error) {
	wait := literals(sqlFenceBeginWait, []any{waitText(ctx)}) + ";\n"
	check := literals(sqlFenceBeginCheck, plainArgs(s))
	if s.Chained() {
		check = literals(sqlFenceBeginChain, chainArgs(s))
	}
	opts.BeginQuery = beginText(opts) + ";\n" + wait + check
	if enter {
		// BEGIN would take in whatever came before it, so entering is committed first.
		opts.BeginQuery = "begin;\n" + wait + literals(sqlFenceBeginEnter, plainArgs(s)) + ";\ncommit;\n" + opts.BeginQuery
	}
	tx, err = c.BeginTx(ctx, opts)
	if err == nil {
		return tx, false, nil
	}
	err = FenceError(s, err)
	if !c.IsClosed() {
		// The transaction is there, and failed.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), WaitDefault)
		defer cancel()
		if _, rollbackErr := c.Exec(end, "rollback"); rollbackErr != nil || thenOf(err) == elsewhere {
			hangUp(c.PgConn())
		}
	}
	if errors.Is(err, ErrReplay) {
		return nil, true, nil
	}
	return nil, false, undone(err)
}

// Enter raises the resource's mark to s's in a transaction of its own, see
// [Fence.Enter]. It waits until ctx ends, or for as long as the setting
// tenure.fence_wait says, which is 15 s.
func Enter(ctx context.Context, c *pgx.Conn, s fence.Stamp) error {
	if err := s.Validate(); err != nil {
		return err
	}
	s = entering(s)
	_, err := c.Exec(ctx, sqlFenceEnter, append([]any{pgx.QueryExecModeExec, waitText(ctx)}, plainArgs(s)...)...)
	return FenceError(s, err)
}

// Check checks s within the caller's own transaction and keeps the raised marks in
// it, so that they are committed with the caller's writes or not at all. If
// replayed, the write is there already: write nothing more, commit, and report
// success. After an error, roll back.
//
// Call it before anything else in the transaction: what was read before may be
// older than what the check compares with. It waits for other writers until ctx
// ends, or for as long as the setting tenure.fence_wait says, which is 15 s.
// [BeginTx] saves its round trip.
func Check(ctx context.Context, tx pgx.Tx, s fence.Stamp) (replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return false, err
	}
	if s.Chained() {
		err = tx.QueryRow(ctx, sqlFenceReplayed, append([]any{waitText(ctx)}, chainArgs(s)...)...).Scan(nil, &replayed)
	} else {
		_, err = tx.Exec(ctx, sqlFenceCheck, append([]any{waitText(ctx)}, plainArgs(s)...)...)
	}
	return replayed, undone(FenceError(s, err))
}

// Querier is what [Last] reads through: a *pgx.Conn, *pgxpool.Pool or pgx.Tx.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Last returns what the resource remembers of a lane, see [Fence.Last].
func Last(ctx context.Context, q Querier, resource, lane string) (l fence.LaneMark, err error) {
	err = q.QueryRow(ctx, sqlFenceLast, pgx.QueryExecModeExec, resource, lane).Scan(&l.Token, &l.Position, &l.Digest)
	return l, FenceError(fence.Stamp{Resource: resource}, err)
}

// entering is the part of a stamp that enters: it takes no position.
func entering(s fence.Stamp) fence.Stamp {
	s.Lane, s.Position, s.Digest = "", 0, ""
	return s
}

func plainArgs(s fence.Stamp) []any {
	return []any{s.Resource, int64(s.Token), s.TermID, s.Renewal}
}

func chainArgs(s fence.Stamp) []any {
	return []any{s.Resource, s.Lane, int64(s.Token), s.Position, s.Digest, s.TermID, s.Renewal}
}

// bounded returns ctx with a deadline.
func bounded(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, wait)
}

// waitText is how long the server may wait for locks: a little less than ctx lasts,
// so that the server answers before the connection is given up. Empty, for a ctx
// without a deadline, is the server's setting.
func waitText(ctx context.Context) string {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ""
	}
	left := time.Until(deadline)
	return fmt.Sprint(max(1, (left - min(left/4, answerTime)).Milliseconds()))
}

// answerTime is kept for the server's answer when a wait was in vain.
const answerTime = 500 * time.Millisecond

// patiently tries again what collided with others, or met a connection that had
// broken in the pool, until ctx ends.
func patiently(ctx context.Context, try func() error) error {
	var before error
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && before != nil:
			return before // it says more than that the time is up
		case ctx.Err() != nil || !passing(ctx, err):
			return err
		}
		before = err
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// passing reports whether an error of a check, before anything was written, may be
// gone at the next try: a collision, a lock that is held for longer than the server
// waits, a connection that broke, but not one that cannot be made.
func passing(ctx context.Context, err error) bool {
	var connect *connectError
	if errors.As(err, &connect) {
		return false
	}
	if e, s, ok := stateOf(err); ok {
		if e.Code == "55P03" {
			deadline, ok := ctx.Deadline()
			return !ok || time.Until(deadline) > answerTime
		}
		return s.then == again || s.then == elsewhere && !errors.Is(s.kind, store.ErrDenied)
	}
	return errors.Is(err, store.ErrUnreachable)
}

// rollback ends a transaction also when its context has ended.
func rollback(ctx context.Context, tx pgx.Tx) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), WaitDefault)
	defer cancel()
	_ = tx.Rollback(end) // the connection is closed if it fails
}

// commitError is an error of the commit. The server undid what failed with an
// ERROR; after anything else nobody knows. In particular, pgx reports a connection
// that breaks before the reply to a simple statement as one that was closed before
// anything was sent, and pgconn.SafeToRetry agrees.
func commitError(err error) error {
	const what = "committing a fenced write"
	switch _, _, answered := stateOf(err); {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, sql.ErrTxDone):
		return store.Undone(fmt.Errorf("tenure: nothing was written: a statement of the transaction had failed: %w", err))
	case answered:
		return explain(err, what)
	}
	return &failure{kind: store.ErrUnreachable, text: what + ": no answer", cause: err, unknown: true}
}

// undone marks an error that came before anything was written.
func undone(err error) error {
	if err == nil || !store.OutcomeUnknown(err) || errors.Is(err, fence.ErrInvalid) || fence.Refused(err) {
		return err
	}
	return store.Undone(err)
}

// entries are the stamps that entered last, by resource. A few are kept: to enter
// once more does no harm.
type entries struct {
	mu   sync.Mutex
	last map[string]fence.Stamp
}

const entriesMax = 1000

// has reports whether a term entered the resource with this renewal or a later one.
func (e *entries) has(s fence.Stamp) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !newer(s, e.last[s.Resource])
}

func (e *entries) add(s fence.Stamp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !newer(s, e.last[s.Resource]) {
		return
	}
	if len(e.last) >= entriesMax {
		for resource := range e.last {
			delete(e.last, resource)
			break
		}
	}
	if e.last == nil {
		e.last = make(map[string]fence.Stamp)
	}
	e.last[s.Resource] = entering(s)
}

func (e *entries) forget(resource string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, resource)
}

// newer reports whether s must enter where t has.
func newer(s, t fence.Stamp) bool {
	return s.Token > t.Token || s.Token == t.Token && (s.TermID != t.TermID || s.Renewal > t.Renewal)
}
