package tenuresqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// Store is a store in a SQLite file. It is safe for concurrent use. The zero
// Store is not usable; call [Open].
type Store struct {
	path    string
	options Options

	writing *lane
	reading *lane
	hub     hub

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	closeErr  error
}

var (
	_ store.Store        = (*Store)(nil)
	_ store.Watcher      = (*Store)(nil)
	_ store.Lister       = (*Store)(nil)
	_ store.BatchRenewer = (*Store)(nil)
	_ store.Evictor      = (*Store)(nil)
	_ store.Historian    = (*Store)(nil)
	_ store.Diagnoser    = (*Store)(nil)
	_ store.Initializer  = (*Store)(nil)
)

// Open opens the store in the file at path. o may be nil.
//
// A file that does not exist is made by the first request that needs it (an
// acquire, or [Store.Init]), for its owner only, and so is the directory that
// holds it if only that is missing. Until then there are no records. A file that
// exists may be a job's own: Tenure's tables begin with tenure_, and its journal
// mode is left as it is.
//
// Open reads an existing file, within ctx, and fails if it is no SQLite database
// ([store.ErrInvalid]), of a newer Tenure ([store.ErrFormat]), not to be read
// ([store.ErrDenied]), or busy ([store.ErrBusy]). On systems other than Linux it
// fails with [store.ErrUnsupported].
func Open(ctx context.Context, path string, o *Options) (*Store, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	path, err = cleanPath(path)
	if err != nil {
		return nil, err
	}
	s := &Store{
		path:    path,
		options: options,
		writing: &lane{slot: make(chan struct{}, 1), pragmas: []string{"synchronous(extra)"}},
		reading: &lane{slot: make(chan struct{}, 1), pragmas: []string{"query_only(1)"}},
		closing: make(chan struct{}),
	}
	s.hub.s = s
	_, err = read(ctx, s, func(*conn) (struct{}, error) { return struct{}{}, nil })
	if errors.Is(err, errNoFile) {
		err = creatable(path)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// cleanPath returns path as an absolute one, or why it is none.
func cleanPath(path string) (string, error) {
	switch {
	case path == "":
		return "", store.Invalid("path is empty: allowed is the path of a file")
	case strings.ContainsRune(path, 0):
		return "", store.Invalid(fmt.Sprintf("path %q contains a zero byte: allowed is the path of a file", path))
	case path == ":memory:", strings.HasPrefix(path, "file:"):
		return "", store.Invalid(fmt.Sprintf("path %q: allowed is the path of a file, not a SQLite URI or a database in memory (which no other process could see)", path))
	case strings.HasSuffix(path, "/"):
		return "", store.Invalid(fmt.Sprintf("path %q is a directory: allowed is the path of a file", path))
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", store.Invalid(fmt.Sprintf("path %q: %v", path, err))
	}
	return abs, nil
}

// Path returns the absolute path of the file.
func (s *Store) Path() string { return s.path }

// String returns the store's URL.
func (s *Store) String() string { return "sqlite:" + s.path }

// Close ends all watches and waits for requests that are under way, at most
// Options.Wait; then it closes the file. Later calls fail with
// [store.ErrStoreClosed]. Terms are not released: that is their holder's to do.
// Closing again returns what the first Close returned.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.hub.close()
		deadline := time.NewTimer(s.options.Wait)
		defer deadline.Stop()
		for _, l := range []*lane{s.writing, s.reading} {
			select {
			case l.slot <- struct{}{}: // kept for good
				l.drop()
			case <-deadline.C:
				deadline.Reset(0)
				s.closeErr = fmt.Errorf("tenure: closing %s: a request still waits for the disk after %v", s.path, s.options.Wait)
				go func() {
					l.slot <- struct{}{}
					l.drop()
				}()
			}
		}
	})
	return s.closeErr
}

// Caps says what this store is. It does not block, and answers on a closed store
// too.
func (s *Store) Caps() store.Caps {
	return store.Caps{
		Store:     "sqlite",
		Clock:     store.ClockHost,
		Precision: time.Nanosecond,
		TTLMin:    TTLMin,
		TTLMax:    TTLMax,
		Watch:     store.WatchPush,
		Token:     "a counter in the row, raised in the transaction that grants",
		NameMax:   store.NameMax,
		Scope:     "one host only: excludes processes that use the very same file " + s.path + "; a copy of the disk or of the machine has a copy of the store",
	}
}

// Acquire grants the claim, see [store.Store]. It waits for the file, never for
// a holder.
//
// A record that was written before this host started, or before the file was
// copied, is held for a full TTL from the first Acquire that meets it: nobody
// here can know when its holder renewed it last.
func (s *Store) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	if err := c.Validate(s.Caps()); err != nil {
		return store.Lease{}, err
	}
	if err := s.heldNow(ctx, c); err != nil {
		return store.Lease{}, err
	}
	v, err := s.change(ctx, c.Name, true, func(r row.Row, now row.Now) (row.Row, verdict) {
		next, l, err := row.Acquire(r, c, c.TTL, now)
		return next, verdict{lease: l, err: err}
	})
	return v.lease, cmp.Or(err, v.err)
}

// heldNow returns the error of a claim that must be refused because somebody
// holds the election, or one that kept the file from being read, or nil. It only
// reads: those who wait, be they many or frozen, stay out of the holder's way.
func (s *Store) heldNow(ctx context.Context, c store.Claim) error {
	_, err := read(ctx, s, func(cn *conn) (struct{}, error) {
		e, err := loadEntry(cn, c.Name)
		if err != nil {
			return struct{}{}, err
		}
		r, err := s.options.clock()
		if err != nil {
			return struct{}{}, err
		}
		if _, foreign := e.left(clockID(r.boot, cn.id), r.now); foreign {
			return struct{}{}, nil // to be adopted
		}
		_, _, err = row.Acquire(e.row, c, c.TTL, r.now)
		var held *store.HeldError
		if !errors.As(err, &held) {
			return struct{}{}, nil
		}
		held.Foreign = e.adopted
		return struct{}{}, held
	})
	if errors.Is(err, errNoFile) {
		return nil
	}
	return err
}

// Renew renews the lease, see [store.Store].
func (s *Store) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	if err := checkRenewal(l, a); err != nil {
		return store.Lease{}, err
	}
	v, err := s.change(ctx, l.Name, false, func(r row.Row, now row.Now) (row.Row, verdict) {
		return renew(r, l, a, now)
	})
	return v.lease, cmp.Or(err, v.err)
}

func checkRenewal(l store.Lease, a store.Attempt) error {
	return cmp.Or(store.CheckName(l.Name), store.CheckAttempt(a))
}

func renew(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, verdict) {
	next, renewed, err := row.Renew(r, l, a, now)
	return next, verdict{lease: renewed, err: err}
}

// RenewBatch renews all entries in one transaction, see [store.BatchRenewer].
func (s *Store) RenewBatch(ctx context.Context, batch []store.Renewal) []store.Renewed {
	answers := make([]store.Renewed, len(batch))
	verdicts, err := write(ctx, s, false, func(t *txn) ([]verdict, error) {
		verdicts := make([]verdict, len(batch))
		for i, b := range batch {
			if err := checkRenewal(b.Lease, b.Attempt); err != nil {
				verdicts[i].err = err
				continue
			}
			v, err := t.apply(b.Lease.Name, false, func(r row.Row) (row.Row, verdict) {
				return renew(r, b.Lease, b.Attempt, t.now)
			})
			if err != nil && !isDamaged(err) {
				return nil, err
			}
			v.err = cmp.Or(err, v.err)
			verdicts[i] = v
		}
		return verdicts, nil
	})
	for i, b := range batch {
		switch {
		case err == nil:
			answers[i] = store.Renewed{Lease: verdicts[i].lease, Err: verdicts[i].err}
		case errors.Is(err, errNoFile):
			answers[i].Err = cmp.Or(checkRenewal(b.Lease, b.Attempt), s.noRecord(b.Lease.Name))
		default:
			answers[i].Err = cmp.Or(checkRenewal(b.Lease, b.Attempt), err)
		}
	}
	return answers
}

// Release frees the lease, see [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease, pending store.Attempt) error {
	if err := store.CheckName(l.Name); err != nil {
		return err
	}
	if pending != "" {
		if err := store.CheckAttempt(pending); err != nil {
			return err
		}
	}
	v, err := s.change(ctx, l.Name, false, func(r row.Row, now row.Now) (row.Row, verdict) {
		next, err := row.Release(r, l, pending, now)
		return next, verdict{err: err}
	})
	return cmp.Or(err, v.err)
}

// Abandon gives back the grant of a, see [store.Store].
func (s *Store) Abandon(ctx context.Context, name string, a store.Attempt) error {
	if err := cmp.Or(store.CheckName(name), store.CheckAttempt(a)); err != nil {
		return err
	}
	v, err := s.change(ctx, name, false, func(r row.Row, now row.Now) (row.Row, verdict) {
		next, err := row.Abandon(r, a, now)
		return next, verdict{err: err}
	})
	if errors.Is(err, store.ErrNoRecord) {
		return nil // there is nothing to give back
	}
	return cmp.Or(err, v.err)
}

// Evict asks the current term to go, see [store.Evictor].
func (s *Store) Evict(ctx context.Context, e store.Eviction) (store.Record, error) {
	if err := e.Validate(); err != nil {
		return store.Record{}, err
	}
	v, err := s.change(ctx, e.Name, false, func(r row.Row, now row.Now) (row.Row, verdict) {
		next, err := row.Evict(r, e, now)
		if err != nil {
			return next, verdict{err: err}
		}
		rec, err := next.Record(now)
		return next, verdict{record: rec, err: err}
	})
	if err := cmp.Or(err, v.err); err != nil {
		return store.Record{}, err
	}
	return v.record, nil
}

// change applies the rule to one election in a transaction of its own. Only an
// acquire makes what is missing, and only an acquire adopts foreign records.
func (s *Store) change(ctx context.Context, name string, acquire bool, decide func(row.Row, row.Now) (row.Row, verdict)) (verdict, error) {
	v, err := write(ctx, s, acquire, func(t *txn) (verdict, error) {
		return t.apply(name, acquire, func(r row.Row) (row.Row, verdict) { return decide(r, t.now) })
	})
	if errors.Is(err, errNoFile) {
		return verdict{}, s.noRecord(name)
	}
	return v, err
}

// Get reads the record, see [store.Store]. It does not wait for a writer if the
// file has a write-ahead log.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	rec, err := read(ctx, s, func(c *conn) (store.Record, error) {
		e, err := loadEntry(c, name)
		if err != nil {
			return store.Record{}, err
		}
		if !e.row.Exists() {
			return store.Record{}, fmt.Errorf("%w: %q", store.ErrNoRecord, name)
		}
		r, err := s.options.clock()
		if err != nil {
			return store.Record{}, err
		}
		return e.record(c.id, r)
	})
	if errors.Is(err, errNoFile) {
		return store.Record{}, s.noRecord(name)
	}
	return rec, err
}

// record shows an entry as of a reading of the clock.
func (e entry) record(id fileID, r reading) (store.Record, error) {
	remaining, foreign := e.left(clockID(r.boot, id), r.now)
	shown := e.row
	if foreign {
		shown.Expires = r.now.Mono + remaining
	}
	rec, err := shown.Record(r.now)
	rec.Foreign = rec.State == store.Live && (foreign || e.adopted)
	return rec, err
}

// List yields every record, in the order of the names' bytes, as they all were
// at one moment. It blocks before the first.
func (s *Store) List(ctx context.Context) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		records, err := s.list(ctx)
		for _, rec := range records {
			if !yield(rec, nil) {
				return
			}
		}
		if err != nil && !errors.Is(err, errNoFile) {
			yield(store.Record{}, err)
		}
	}
}

func (s *Store) list(ctx context.Context) ([]store.Record, error) {
	return read(ctx, s, func(c *conn) ([]store.Record, error) {
		entries, err := c.entries()
		if err != nil {
			return nil, err
		}
		r, err := s.options.clock()
		if err != nil {
			return nil, err
		}
		records := make([]store.Record, 0, len(entries))
		for _, e := range entries {
			rec, err := e.record(c.id, r)
			if err != nil {
				return records, err
			}
			records = append(records, rec)
		}
		return records, nil
	})
}

// entries reads every row, in the order of the names' bytes.
func (c *conn) entries() ([]entry, error) {
	rows, err := c.query(sqlList)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries []entry
	for rows.Next() {
		e, err := c.scan(rows)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

// History returns the newest entries of an election, newest first, at most n.
// What is older than Options.HistoryAge, or beyond Options.HistoryMax, is gone.
// An election the store never had has none, which is no error.
func (s *Store) History(ctx context.Context, name string, n int) ([]store.Entry, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	entries, err := read(ctx, s, func(c *conn) ([]store.Entry, error) {
		var entries []store.Entry
		rows, err := c.query(sqlHistory, []byte(name), max(n, 0))
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var (
				e              = store.Entry{Name: name}
				at             int64
				holder, detail []byte
			)
			if err := rows.Scan(&at, &e.What, &e.Token, &e.TermID, &holder, &detail); err != nil {
				return nil, c.damagedRecord(name, "its history", err)
			}
			e.At, e.Holder, e.Detail = time.Unix(0, at), string(holder), string(detail)
			entries = append(entries, e)
		}
		return entries, rows.Err()
	})
	if errors.Is(err, errNoFile) {
		return nil, nil
	}
	return entries, err
}
