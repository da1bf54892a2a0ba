package tenurepg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tenure-go/tenure/store"
)

// statement is one statement and what becomes of its rows. args is told which
// session it is sent to: 0 if that is shared, or not this store's own.
type statement struct {
	what string // names the request in errors
	sql  string
	args func(session int32) []any
	each func(text string) error
	once bool // not to be sent again if it may have been carried out
}

// runner sends a statement on some connection.
type runner interface {
	// run blocks until the statement is answered or ctx ends. patient: on the
	// store's own connection, if it has one.
	run(ctx context.Context, s statement, patient bool) error
	// nonce is what the server gave to a connection, or empty.
	nonce() string
	close(ctx context.Context)
}

// own sends statements on connections of the store's own: on the home connection,
// or on others while that one is busy.
type own struct {
	home *home
	more *pgxpool.Pool // nil: one connection is all there may be

	mu   sync.Mutex
	last string // the nonce of the newest home connection
}

func newOwn(h *home, url string, o Options) (*own, error) {
	r := &own{home: h}
	if o.Connections == 1 {
		return r, nil
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		_, err = parse(url)
		return nil, err
	}
	cfg.MinConns, cfg.MinIdleConns, cfg.MaxConns = 0, 0, int32(o.Connections-1)
	cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = 10*time.Second, 10*time.Second
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // a request that fails on a dead connection is sent again
	// Each connection is made as the home connection is.
	cfg.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		fresh, err := parse(url)
		if err != nil {
			return err
		}
		if o.Password != nil {
			if fresh.Password, err = o.Password(ctx); err != nil {
				return &failure{kind: store.ErrDenied, text: "Options.Password", cause: err}
			}
		}
		tune(fresh)
		meet(fresh, &link{})
		*c = *fresh
		return nil
	}
	r.more, err = pgxpool.NewWithConfig(context.Background(), cfg)
	return r, err
}

func (r *own) run(ctx context.Context, s statement, patient bool) error {
	if !r.home.take(ctx, patient || r.more == nil) {
		if err := ctx.Err(); err != nil {
			return store.Undone(&failure{kind: store.ErrBusy, text: s.what + ": other requests of this store have its connection", cause: err})
		}
		if r.more == nil || patient {
			return store.ErrStoreClosed
		}
		return runPool(ctx, r.more, s)
	}
	defer r.home.give()
	l, err := r.home.open(ctx)
	if err != nil {
		return connecting(err)
	}
	r.mu.Lock()
	r.last = l.nonce
	r.mu.Unlock()
	err = ask(ctx, l.Conn, s.sql, s.args(l.session), s.each)
	if dropAfter(err) {
		r.home.drop()
	}
	return err
}

func (r *own) nonce() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *own) close(ctx context.Context) {
	r.home.close()
	if r.more != nil {
		closePool(ctx, r.more)
	}
}

// closePool closes a pool, and does not wait for it longer than ctx: a request
// that hangs would keep it.
func closePool(ctx context.Context, p *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// pooled sends statements on the connections of the caller's pool.
type pooled struct{ pool *pgxpool.Pool }

func (r pooled) run(ctx context.Context, s statement, _ bool) error { return runPool(ctx, r.pool, s) }
func (r pooled) nonce() string                                      { return "" }
func (r pooled) close(context.Context)                              {}

func runPool(ctx context.Context, p *pgxpool.Pool, s statement) error {
	c, err := p.Acquire(ctx)
	if err != nil {
		if st := p.Stat(); ctx.Err() != nil && st.AcquiredConns() >= st.MaxConns() {
			return exhausted(s.what, int(st.MaxConns()), err)
		}
		return connecting(err)
	}
	defer c.Release()
	err = ask(ctx, c.Conn(), s.sql, s.args(0), s.each)
	if dropAfter(err) {
		hangUp(c.Conn().PgConn())
	}
	return err
}

// exhausted is the error of a request that got no connection because others have
// all of them.
func exhausted(what string, size int, cause error) error {
	return store.Undone(&failure{
		kind: store.ErrBusy, cause: cause,
		text: fmt.Sprintf("%s: all %d connections of the pool were in use until the time was up; give the elections a pool of their own, or open the store by its URL", what, size),
	})
}

// connecting marks an error of connecting: nothing was asked.
func connecting(err error) error {
	return store.Undone(explain(&connectError{err}, "connecting"))
}

type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// dropAfter reports whether an error says that the connection is of no more use.
func dropAfter(err error) bool {
	return err != nil && thenOf(explain(err, "")) == elsewhere
}

// throughSQL sends statements through a *sql.DB.
type throughSQL struct{ db *sql.DB }

func (r throughSQL) nonce() string         { return "" }
func (r throughSQL) close(context.Context) {}

func (r throughSQL) run(ctx context.Context, s statement, _ bool) error {
	c, err := r.db.Conn(ctx)
	if err != nil {
		if st := r.db.Stats(); ctx.Err() != nil && st.MaxOpenConnections > 0 && st.InUse >= st.MaxOpenConnections {
			return exhausted(s.what, st.MaxOpenConnections, err)
		}
		return connecting(err)
	}
	defer c.Close()
	handled := false
	var failed error
	// A connection of pgx is used as one: its exec mode needs no prepared statements.
	err = c.Raw(func(dc any) error {
		pc, ok := dc.(*stdlib.Conn)
		if !ok {
			return nil
		}
		handled = true
		failed = ask(ctx, pc.Conn(), s.sql, s.args(0), s.each)
		if dropAfter(failed) {
			return driver.ErrBadConn // so that it is not given to anybody else
		}
		return nil
	})
	switch {
	case handled:
		return failed
	case err != nil:
		return err
	}
	return askSQL(ctx, c, s)
}

func askSQL(ctx context.Context, c *sql.Conn, s statement) error {
	rows, err := c.QueryContext(ctx, s.sql, s.args(0)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if err := s.each(text); err != nil {
			return err
		}
	}
	return rows.Err()
}

// sqlDialer makes connections as db's are made, if its driver is pgx.
func sqlDialer(db *sql.DB) dialer {
	return func(ctx context.Context) (*link, error) {
		c, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		var cfg *pgx.ConnConfig
		err = c.Raw(func(dc any) error {
			if pc, ok := dc.(*stdlib.Conn); ok {
				cfg = pc.Conn().Config()
				return nil
			}
			return errNotPgx
		})
		if err != nil {
			return nil, err
		}
		return dial(ctx, cfg)
	}
}

// errNotPgx says that a *sql.DB has another driver.
var errNotPgx = errors.New("the driver is not pgx")

// poolDialer makes connections as the pool's are made.
func poolDialer(p *pgxpool.Pool) dialer {
	return func(ctx context.Context) (*link, error) {
		cfg := p.Config()
		if cfg.BeforeConnect != nil {
			if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
				return nil, err
			}
		}
		l, err := dial(ctx, cfg.ConnConfig)
		if err != nil || cfg.AfterConnect == nil {
			return l, err
		}
		if err := cfg.AfterConnect(ctx, l.Conn); err != nil {
			hangUp(l.PgConn())
			return nil, err
		}
		return l, nil
	}
}
