package tenuresqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenure-go/tenure/store"
)

// lane is one connection and the right to use it: one request at a time. A store
// has two, so that reading never waits for this process's writer.
type lane struct {
	slot    chan struct{} // full while somebody uses conn
	conn    *conn         // nil: to be opened
	pragmas []string
}

// conn is an open database file. SQLite never waits in it: whoever uses it
// retries, see [call.retry].
type conn struct {
	path  string
	db    *sql.DB
	c     *sql.Conn
	id    fileID
	stmts map[string]*sql.Stmt
}

// openConn opens the file that is at path, which must exist.
func openConn(path string, pragmas []string) (*conn, error) {
	id, err := identify(path)
	if err != nil {
		return nil, err
	}
	query := url.Values{"mode": {"rw"}, "_error_rc": {"1"}, "_pragma": append([]string{"busy_timeout(0)"}, pragmas...)}
	uri := url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}
	connector, err := sqlite.NewConnector(uri.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	c, err := db.Conn(context.Background())
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	cn := &conn{path: path, db: db, c: c, id: id, stmts: make(map[string]*sql.Stmt)}
	if err := cn.current(); err != nil {
		cn.close()
		return nil, err
	}
	return cn, nil
}

// current returns errReplaced if the path does not name the file any more that c
// has open.
func (c *conn) current() error {
	id, err := identify(c.path)
	if err == nil && id != c.id || errors.Is(err, fs.ErrNotExist) {
		return errReplaced
	}
	return err
}

// close closes the connection. There is nobody to tell if it fails: what was
// committed is committed.
func (c *conn) close() {
	for _, st := range c.stmts {
		_ = st.Close()
	}
	_ = c.c.Close()
	_ = c.db.Close()
}

// stmt returns a prepared statement, preparing it at its first use.
func (c *conn) stmt(query string) (*sql.Stmt, error) {
	if st := c.stmts[query]; st != nil {
		return st, nil
	}
	st, err := c.c.PrepareContext(context.Background(), strings.TrimSpace(query))
	if err != nil {
		return nil, err
	}
	c.stmts[query] = st
	return st, nil
}

// exec and the like use no context: nothing in them waits for a lock, and a
// statement that was begun is carried out or not, but never abandoned half-way.
func (c *conn) exec(query string, args ...any) error {
	st, err := c.stmt(query)
	if err != nil {
		return err
	}
	_, err = st.ExecContext(context.Background(), args...)
	return err
}

func (c *conn) query(query string, args ...any) (*sql.Rows, error) {
	st, err := c.stmt(query)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(context.Background(), args...)
}

func (c *conn) queryRow(query string, into []any, args ...any) error {
	st, err := c.stmt(query)
	if err != nil {
		return err
	}
	return st.QueryRowContext(context.Background(), args...).Scan(into...)
}

// schema returns the version of the file's tables; 0: there are none.
func (c *conn) schema() (int, error) {
	var version, tables int
	err := c.queryRow(sqlSchemaVersion, []any{&version})
	switch {
	case err == nil:
		return version, nil
	case sqliteCode(err) == 0:
		return 0, &failure{kind: store.ErrUnreachable, text: fmt.Sprintf("%s has no valid version in tenure_meta: restore it", c.path), cause: err}
	case sqliteCode(err) != sqlite3.SQLITE_ERROR:
		return 0, err
	}
	// The statement could not be prepared: most likely there is no such table.
	if err := c.queryRow(sqlTableExists, []any{&tables}, "tenure_meta"); err != nil || tables == 0 {
		return 0, err
	}
	return 0, err
}

// What a request may have done so far.
const (
	undone     = iota // nothing that lasts
	committing        // perhaps
	abandoned         // nothing, and nothing any more: its caller has gone
)

// call is one request on a lane.
type call struct {
	ctx       context.Context
	closing   <-chan struct{}
	began     time.Time
	stage     atomic.Int32
	busySince atomic.Int64 // nanoseconds after began; 0: the file was not busy
	reader    atomic.Bool  // a reader's lock is in the way of the commit, not a writer's
	after     func()       // done once the caller has its answer
}

// commitGrace is how long after the end of its context a request waits for a
// commit that is under way.
const commitGrace = 20 * time.Millisecond

// run lets f use a lane's connection and returns what it returned, or an error as
// soon as ctx ends, or the store's own bound if ctx has none. Even a disk that
// does not answer holds up nobody but the goroutine that f runs in.
func run[T any](ctx context.Context, s *Store, l *lane, f func(*call) (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, store.Undone(err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.options.Wait)
		defer cancel()
	}
	c := &call{ctx: ctx, closing: s.closing, began: time.Now()}
	select {
	case <-s.closing:
		return zero, store.ErrStoreClosed
	default:
	}
	select {
	case l.slot <- struct{}{}:
	case <-s.closing:
		return zero, store.ErrStoreClosed
	case <-ctx.Done():
		return zero, s.busy(c)
	}

	type answer struct {
		v   T
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-l.slot }()
		v, err := f(c)
		answers <- answer{v, err}
		if c.after != nil {
			c.after()
		}
	}()
	select {
	case a := <-answers:
		return a.v, a.err
	case <-ctx.Done():
	}
	if c.stage.CompareAndSwap(undone, abandoned) {
		return zero, s.busy(c)
	}
	// It is committing or has just finished: a moment more may spare the caller an
	// unknown outcome.
	moment := time.NewTimer(commitGrace)
	defer moment.Stop()
	select {
	case a := <-answers:
		return a.v, a.err
	case <-moment.C:
		return zero, &failure{
			kind: store.ErrUnreachable, unknown: true, cause: ctx.Err(),
			text: fmt.Sprintf("%s did not finish writing in time", s.path),
		}
	}
}

// pollMax is the longest pause between two looks at a busy file. Locks are held
// for milliseconds as a rule, and SQLite has no queue: who looks rarely loses to
// who looks often.
const pollMax = 8 * time.Millisecond

// retry does f until it is not busy, or the call's time is over.
func (c *call) retry(s *Store, f func() error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, pollMax) {
		err := f()
		if !isBusy(err) {
			return err
		}
		c.busySince.CompareAndSwap(0, max(1, int64(time.Since(c.began))))
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-c.ctx.Done():
			t.Stop()
			return s.busy(c)
		case <-c.closing:
			t.Stop()
			return store.ErrStoreClosed
		}
	}
}

// connect returns the lane's connection to the file that is at the store's path
// now. errNoFile: there is none, and create is false.
func (s *Store) connect(c *call, l *lane, create bool) (*conn, error) {
	for {
		if err := c.ctx.Err(); err != nil {
			return nil, s.busy(c)
		}
		if l.conn != nil {
			err := l.conn.current()
			if err == nil {
				return l.conn, nil
			}
			l.conn.close()
			l.conn = nil
			if !errors.Is(err, errReplaced) {
				return nil, s.explain(err)
			}
		}
		var cn *conn
		err := c.retry(s, func() (err error) {
			cn, err = openConn(s.path, l.pragmas)
			return err
		})
		switch {
		case err == nil:
			l.conn = cn
			return cn, nil
		case errors.Is(err, fs.ErrNotExist) && !create:
			return nil, errNoFile
		case errors.Is(err, fs.ErrNotExist):
			if err := createFile(s.path); err != nil {
				return nil, s.explain(err)
			}
		case isReplaced(err):
		default:
			return nil, s.explain(err)
		}
	}
}

// drop closes a lane's connection after an error that leaves its state in doubt;
// the next request opens another.
func (l *lane) drop() {
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
}
