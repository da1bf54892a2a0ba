package tenuresqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// txn is one write transaction under way.
type txn struct {
	s       *Store
	c       *conn
	now     row.Now
	clock   string // this host's, this boot's, for this very file
	changed bool
	granted bool // a term began or ended
}

// entry is a row of tenure_lease.
type entry struct {
	row     row.Row
	clock   string // the clock its expiry is measured by
	adopted bool   // its expiry counts from when another clock's record was first seen
}

// verdict is the answer about one election.
type verdict struct {
	lease  store.Lease
	record store.Record
	err    error
}

// write runs f in one write transaction and commits it, whatever verdict f
// returns. An error of f, or of anything before the commit, means that nothing
// was done. create says whether a missing file and missing tables are made; if
// not, errNoFile says that they are missing.
func write[T any](ctx context.Context, s *Store, create bool, f func(*txn) (T, error)) (T, error) {
	return run(ctx, s, s.writing, func(c *call) (T, error) {
		v, err := transact(c, s, create, f)
		if isReplaced(err) {
			// Moved away while this connection had it open; nothing was written.
			s.writing.drop()
			v, err = transact(c, s, create, f)
		}
		return v, s.explain(err)
	})
}

func transact[T any](c *call, s *Store, create bool, f func(*txn) (T, error)) (v T, err error) {
	cn, err := s.connect(c, s.writing, create)
	if err != nil {
		return v, err
	}
	if create {
		if err := s.prepare(c, cn); err != nil {
			return v, undoneUnlessSaid(err)
		}
	}
	if err := c.retry(s, func() error { return cn.exec("begin immediate") }); err != nil {
		return v, undoneUnlessSaid(err)
	}
	t := &txn{s: s, c: cn}
	v, err = func() (T, error) {
		if err := t.open(create); err != nil {
			return v, err
		}
		return f(t)
	}()
	if err == nil && t.changed {
		err = c.commit(s, cn)
		if err == nil {
			// Those who watch learn it from this. If it fails they find out by
			// looking now and then.
			_ = touch(s.path)
			if t.granted {
				c.after = func() { s.checkpoint(cn) }
			}
			return v, nil
		}
	}
	if s.writing.conn == cn {
		if rerr := cn.exec("rollback"); rerr != nil && !noTransaction(rerr) {
			s.writing.drop()
		}
	}
	return v, undoneUnlessSaid(err)
}

// undoneUnlessSaid marks an error as one of a request that was not carried out,
// unless it says something about that itself.
func undoneUnlessSaid(err error) error {
	var says interface{ OutcomeUnknown() bool }
	if err == nil || errors.As(err, &says) || errors.Is(err, errNoFile) || errors.Is(err, store.ErrStoreClosed) {
		return err
	}
	return store.Undone(err)
}

// noTransaction reports whether a rollback failed because SQLite had rolled back
// by itself, as it does after some errors.
func noTransaction(err error) bool { return sqliteCode(err) == sqlite3.SQLITE_ERROR }

// commit commits. A busy commit was not carried out and is tried again while
// there is time; after any other error the outcome is unknown.
func (c *call) commit(s *Store, cn *conn) error {
	err := c.retry(s, func() error {
		if !c.stage.CompareAndSwap(undone, committing) {
			return s.busy(c)
		}
		err := cn.exec("commit")
		if isBusy(err) {
			c.reader.Store(true)
			c.stage.Store(undone)
		}
		return err
	})
	if err == nil || c.stage.Load() != committing {
		return err
	}
	s.writing.drop()
	return &failure{kind: store.ErrUnreachable, unknown: true, cause: err, text: fmt.Sprintf("writing to %s failed half-way", s.path)}
}

// prepare gives a file without any content the journal mode it shall have. A
// file that somebody has made keeps its own.
func (s *Store) prepare(c *call, cn *conn) error {
	if s.options.Journal != WAL {
		return nil
	}
	return c.retry(s, func() error {
		var pages int
		if err := cn.queryRow("pragma page_count", []any{&pages}); err != nil || pages > 0 {
			return err
		}
		var mode string
		return cn.queryRow("pragma journal_mode = wal", []any{&mode})
	})
}

// open looks at what the transaction has before it: the right file, tables of a
// version this program knows, and the clock. The clock is read after the lock
// was won: the wait for it may have been long.
func (t *txn) open(create bool) error {
	if err := t.c.current(); err != nil {
		return err
	}
	version, err := t.c.schema()
	if err != nil {
		return err
	}
	switch {
	case version == 0 && !create:
		return errNoFile
	case version == 0:
		if _, err := t.c.c.ExecContext(context.Background(), sqlSchema); err != nil {
			return err
		}
		t.changed = true
	default:
		if err := t.s.known(version); err != nil {
			return err
		}
	}
	r, err := t.s.options.clock()
	if err != nil {
		return err
	}
	t.now, t.clock = r.now, clockID(r.boot, t.c.id)
	return nil
}

// known returns an [store.ErrFormat] if the file's tables are newer than this
// program.
func (s *Store) known(version int) error {
	if version > schemaVersion {
		return &failure{kind: store.ErrFormat, text: fmt.Sprintf(
			"%s was written by a newer Tenure (its tables have version %d, this program knows %d): upgrade this program", s.path, version, schemaVersion)}
	}
	return nil
}

// apply lets decide say what becomes of an election's row, and keeps what it
// says. An acquire also gives a foreign record that stays an expiry by this
// clock, a full TTL from now, and meets what is left of a row that was removed.
func (t *txn) apply(name string, acquire bool, decide func(row.Row) (row.Row, verdict)) (verdict, error) {
	e, err := loadEntry(t.c, name)
	if err == nil && acquire && !e.row.Exists() {
		e, err = loadRemoved(t.c, name)
	}
	if err != nil {
		return verdict{}, err
	}
	remaining, foreign := e.left(t.clock, t.now)
	before := e.row
	if foreign {
		before.Expires = t.now.Mono + remaining
	}
	after, v := decide(before)

	var held *store.HeldError
	if errors.As(v.err, &held) {
		held.Foreign = foreign || e.adopted
	}
	v.record.Foreign = v.record.State == store.Live && (foreign || e.adopted)
	if !after.Exists() || reflect.DeepEqual(after, before) && !(foreign && acquire) {
		return v, nil
	}
	fresh := after.Token != before.Token || after.Renewal != before.Renewal
	if err := t.save(entry{row: after, clock: t.clock, adopted: !fresh && (foreign || e.adopted)}); err != nil {
		return verdict{}, err
	}
	t.changed = true
	t.granted = t.granted || after.Token != before.Token || after.Released != before.Released
	return v, t.remember(row.History(before, after, t.now))
}

// loadEntry reads an election's row.
func loadEntry(c *conn, name string) (entry, error) {
	rows, err := c.query(sqlLoad, []byte(name))
	if err != nil {
		return entry{}, err
	}
	defer rows.Close()
	if !rows.Next() {
		return entry{}, rows.Err()
	}
	e, err := c.scan(rows)
	if err != nil {
		return entry{}, err
	}
	return e, rows.Err()
}

// loadRemoved reads what is left of a row that was deleted by hand, as a foreign
// one that nobody can renew: its holder does not know yet, and its token must not
// be handed out twice.
func loadRemoved(c *conn, name string) (entry, error) {
	var (
		r      = row.Row{Format: store.Format, Name: name}
		holder []byte
	)
	err := c.queryRow(sqlRemoved, []any{&r.Token, &r.TermID, &holder, &r.TTL, &r.Released}, []byte(name))
	if errors.Is(err, sql.ErrNoRows) {
		return entry{}, nil
	}
	if err != nil {
		return entry{}, c.damagedRecord(name, "what was left of it when it was removed", err)
	}
	r.Holder = string(holder)
	return entry{row: r}, nil
}

// burn is how a [store.Burn] is kept.
type burn struct {
	TermID  store.Attempt `json:"term_id"`
	Token   fence.Token   `json:"token"`
	Receipt store.Receipt `json:"receipt"`
	First   store.Attempt `json:"first"`
	Second  store.Attempt `json:"second"`
	At      int64         `json:"at_ns"`
}

// scan reads one row of tenure_lease. A row that is not what this package writes
// is an error, never "nobody holds it".
func (c *conn) scan(rows *sql.Rows) (entry, error) {
	var (
		e                           entry
		r                           = &e.row
		name, holder, meta, evicted []byte
		acquired, renewed           int64
		burns                       []byte
	)
	err := rows.Scan(&name, &r.Format, &r.Token, &r.TermID, &holder, &meta, &r.TTL, &r.Expires, &e.clock, &e.adopted, &r.Receipt, &r.Renewal,
		&r.Used, &r.UsedBy, &r.Released, &evicted, &r.FencedOnly, &acquired, &renewed, &burns)
	if err != nil {
		return entry{}, c.damagedRecord(string(name), "a column has another type", err)
	}
	r.Name, r.Holder, r.Meta, r.Evicted = string(name), string(holder), string(meta), string(evicted)
	r.AcquiredAt, r.RenewedAt = time.Unix(0, acquired), time.Unix(0, renewed)
	if r.Format < 1 || r.Token < 1 && r.Format == store.Format || r.TTL <= 0 {
		return entry{}, c.damagedRecord(r.Name, fmt.Sprintf("format %d, token %d, ttl %v", r.Format, r.Token, r.TTL), nil)
	}
	var kept []burn
	if err := json.Unmarshal(burns, &kept); err != nil {
		return entry{}, c.damagedRecord(r.Name, "its burnt terms", err)
	}
	for _, b := range kept {
		r.Burns = append(r.Burns, store.Burn{TermID: b.TermID, Token: b.Token, Receipt: b.Receipt, First: b.First, Second: b.Second, At: time.Unix(0, b.At)})
	}
	return e, nil
}

func (t *txn) save(e entry) error {
	r := e.row
	kept := make([]burn, 0, len(r.Burns))
	for _, b := range r.Burns {
		kept = append(kept, burn{TermID: b.TermID, Token: b.Token, Receipt: b.Receipt, First: b.First, Second: b.Second, At: b.At.UnixNano()})
	}
	burns, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	return t.c.exec(sqlSave,
		[]byte(r.Name), r.Format, int64(r.Token), string(r.TermID), blob(r.Holder), blob(r.Meta), int64(r.TTL), int64(r.Expires), e.clock, e.adopted,
		string(r.Receipt), r.Renewal, string(r.Used), string(r.UsedBy), r.Released, blob(r.Evicted), r.FencedOnly,
		r.AcquiredAt.UnixNano(), r.RenewedAt.UnixNano(), string(burns))
}

// blob returns text as a blob argument; the driver knows no empty one, so that
// is null.
func blob(text string) any {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// remember appends to the history and prunes it.
func (t *txn) remember(entries []store.Entry) error {
	for _, e := range entries {
		err := t.c.exec(sqlHistoryAdd, []byte(e.Name), e.At.UnixNano(), e.What, int64(e.Token), string(e.TermID), blob(e.Holder), blob(e.Detail))
		if err != nil {
			return err
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := t.c.exec(sqlHistoryPruneCount, []byte(entries[0].Name), t.s.options.HistoryMax); err != nil {
		return err
	}
	return t.c.exec(sqlHistoryPruneAge, t.now.Wall.Add(-t.s.options.HistoryAge).UnixNano())
}

// checkpointMax is the longest write-ahead log that a checkpoint of ours copies:
// one that is longer is the job's, and its own commits take care of it.
const checkpointMax = 4 << 20

// checkpoint copies the log into the file after a term began or ended, so that a
// copy of the file alone, without its log, shows who leads. It waits for nobody.
func (s *Store) checkpoint(cn *conn) {
	if info, err := os.Stat(s.path + "-wal"); err != nil || info.Size() > checkpointMax {
		return
	}
	var busy, log, done int
	_ = cn.queryRow("pragma wal_checkpoint(passive)", []any{&busy, &log, &done})
}
