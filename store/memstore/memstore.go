package memstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// Bounds of this store.
const (
	// TTLMin is the shortest TTL it takes.
	TTLMin = 100 * time.Millisecond
	// TTLMax is the longest.
	TTLMax = 365 * 24 * time.Hour
	// HistoryMax is how many lines of history it keeps of each election.
	HistoryMax = 1000
)

// Options change what New returns. The zero Options, and nil, are the defaults.
type Options struct {
	// Clock is the store's clock; nil: [time.Now]. It is called with the store
	// locked, so it must return at once and must not call the store. A test that
	// cannot run in a synctest bubble moves time by it.
	Clock func() time.Time
}

// Store is a store in memory. It is safe for concurrent use, and no method but
// a watch outlives its call. The zero Store is not usable; call [New].
type Store struct {
	db     *db
	closed bool // guarded by db.mu
}

var (
	_ store.Store        = (*Store)(nil)
	_ store.Watcher      = (*Store)(nil)
	_ store.Lister       = (*Store)(nil)
	_ store.BatchRenewer = (*Store)(nil)
	_ store.Evictor      = (*Store)(nil)
	_ store.Historian    = (*Store)(nil)
)

// db is what the stores that share their records have in common.
type db struct {
	clock func() time.Time
	epoch time.Time

	mu       sync.Mutex
	rows     map[string]row.Row
	history  map[string][]store.Entry // oldest first
	watchers map[*watcher]struct{}
}

// watcher is one Watch call. Its channel has one slot, which always holds the
// newest hint that was not received yet.
type watcher struct {
	of    *Store
	name  string
	hints chan store.Hint
	stop  func() bool // stops waiting for the end of the watch's context
}

// New returns an empty store. o may be nil. It has no errors: every field of
// Options is valid.
func New(o *Options) *Store {
	d := &db{
		clock:    time.Now,
		rows:     make(map[string]row.Row),
		history:  make(map[string][]store.Entry),
		watchers: make(map[*watcher]struct{}),
	}
	if o != nil && o.Clock != nil {
		d.clock = o.Clock
	}
	// Not at once: a lease's StoreNow of zero says that the store has no clock.
	d.epoch = d.clock().Add(-time.Second)
	return &Store{db: d}
}

// Share opens the same records once more, as another process would open a
// store. Each of the two is closed by itself.
func (s *Store) Share() *Store {
	return &Store{db: s.db}
}

// Close ends this store's watches; later calls fail with
// [store.ErrStoreClosed]. The records stay, for those who share them. Closing
// again does nothing. The error is always nil.
func (s *Store) Close() error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.closed = true
	for w := range s.db.watchers {
		if w.of == s {
			s.db.endWatch(w)
		}
	}
	return nil
}

// Caps says what this store is. It answers on a closed store too.
func (s *Store) Caps() store.Caps {
	return store.Caps{
		Store:     "memory",
		Clock:     store.ClockStore,
		Precision: time.Nanosecond,
		TTLMin:    TTLMin,
		TTLMax:    TTLMax,
		Watch:     store.WatchPush,
		Token:     "a counter in the record",
		NameMax:   store.NameMax,
		Scope:     "excludes candidates within this process only; everything is lost when it ends",
	}
}

// Acquire grants the claim, see [store.Store]. It never waits for a holder.
func (s *Store) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	if err := c.Validate(s.Caps()); err != nil {
		return store.Lease{}, err
	}
	var l store.Lease
	err := s.do(ctx, c.Name, func(r row.Row, now row.Now) (next row.Row, err error) {
		next, l, err = row.Acquire(r, c, c.TTL, now)
		return next, err
	})
	return l, err
}

// Renew renews the lease, see [store.Store].
func (s *Store) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	if err := cmp.Or(store.CheckName(l.Name), store.CheckAttempt(a)); err != nil {
		return store.Lease{}, err
	}
	var renewed store.Lease
	err := s.do(ctx, l.Name, func(r row.Row, now row.Now) (next row.Row, err error) {
		next, renewed, err = row.Renew(r, l, a, now)
		return next, err
	})
	return renewed, err
}

// RenewBatch renews each entry as [Store.Renew] would, one after the other.
func (s *Store) RenewBatch(ctx context.Context, batch []store.Renewal) []store.Renewed {
	answers := make([]store.Renewed, len(batch))
	for i, b := range batch {
		answers[i].Lease, answers[i].Err = s.Renew(ctx, b.Lease, b.Attempt)
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
	return s.do(ctx, l.Name, func(r row.Row, now row.Now) (row.Row, error) {
		return row.Release(r, l, pending, now)
	})
}

// Abandon gives back the grant of a, see [store.Store].
func (s *Store) Abandon(ctx context.Context, name string, a store.Attempt) error {
	if err := cmp.Or(store.CheckName(name), store.CheckAttempt(a)); err != nil {
		return err
	}
	return s.do(ctx, name, func(r row.Row, now row.Now) (row.Row, error) {
		return row.Abandon(r, a, now)
	})
}

// Evict asks the current term to go, see [store.Evictor].
func (s *Store) Evict(ctx context.Context, e store.Eviction) (store.Record, error) {
	if err := e.Validate(); err != nil {
		return store.Record{}, err
	}
	var rec store.Record
	err := s.do(ctx, e.Name, func(r row.Row, now row.Now) (row.Row, error) {
		next, err := row.Evict(r, e, now)
		if err != nil {
			return next, err
		}
		rec, err = next.Record(now)
		return next, err
	})
	return rec, err
}

// Get reads the record, see [store.Store].
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	var rec store.Record
	err := s.do(ctx, name, func(r row.Row, now row.Now) (row.Row, error) {
		if !r.Exists() {
			return r, fmt.Errorf("%w: %q", store.ErrNoRecord, name)
		}
		var err error
		rec, err = r.Record(now)
		return r, err
	})
	return rec, err
}

// List yields every record, in the order of the names' bytes, as they all were
// at one moment.
func (s *Store) List(ctx context.Context) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		rows, now, err := s.snapshot(ctx)
		if err != nil {
			yield(store.Record{}, err)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			rec, err := rows[name].Record(now)
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

func (s *Store) snapshot(ctx context.Context) (map[string]row.Row, row.Now, error) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return nil, row.Now{}, err
	}
	return maps.Clone(s.db.rows), s.db.now(), nil
}

// History returns the newest entries of an election, newest first, at most n.
// It remembers the last [HistoryMax]; an election it never had has none, which
// is no error.
func (s *Store) History(ctx context.Context, name string, n int) ([]store.Entry, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	all := s.db.history[name]
	newest := slices.Clone(all[len(all)-min(max(n, 0), len(all)):])
	slices.Reverse(newest)
	return newest, nil
}

// Watch sends hints about an election until ctx ends or the store is closed,
// then closes the channel, see [store.Watcher]. It announces grants and renewals
// ([store.HintRenewed]), vacancies ([store.HintVacant]) and whatever else happens
// to a record ([store.HintChanged]); an expiry by itself is not announced. Only
// the newest hint is kept for a receiver that is slow.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	w := &watcher{of: s, name: name, hints: make(chan store.Hint, 1)}
	s.db.watchers[w] = struct{}{}
	w.stop = context.AfterFunc(ctx, func() {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		s.db.endWatch(w)
	})
	return w.hints, nil
}

// do applies change to an election's row in one atomic step and tells the
// watchers. The row that change returns is kept also beside an error, as package
// row demands.
func (s *Store) do(ctx context.Context, name string, change func(row.Row, row.Now) (row.Row, error)) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return err
	}
	now := s.db.now()
	before := s.db.rows[name]
	after, err := change(before, now)
	if after.Exists() {
		s.db.rows[name] = after
		s.db.remember(name, row.History(before, after, now))
		s.db.tell(name, before, after, now)
	}
	return err
}

// ready returns why the store cannot be asked, or nil. The caller holds the
// lock, so what it then does happens before a Close or not at all.
func (s *Store) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return store.Undone(err)
	}
	if s.closed {
		return store.ErrStoreClosed
	}
	return nil
}

func (d *db) now() row.Now {
	t := d.clock()
	return row.Now{Mono: t.Sub(d.epoch), Wall: t.Round(0)}
}

func (d *db) remember(name string, entries []store.Entry) {
	if len(entries) == 0 {
		return
	}
	all := append(d.history[name], entries...)
	d.history[name] = all[max(0, len(all)-HistoryMax):]
}

// tell hints to the watchers of an election what a change means for them, if it
// means anything. It never blocks: it is the only sender, and makes room first.
func (d *db) tell(name string, before, after row.Row, now row.Now) {
	h, ok := hint(before, after, now)
	if !ok {
		return
	}
	for w := range d.watchers {
		if w.name != name {
			continue
		}
		select {
		case <-w.hints:
		default:
		}
		w.hints <- h
	}
}

// hint says what a change of a row means for those who wait.
func hint(before, after row.Row, now row.Now) (store.Hint, bool) {
	switch {
	case after.Token != before.Token, after.Renewal != before.Renewal:
		return store.Hint{Kind: store.HintRenewed, Remaining: after.Expires - now.Mono}, true
	case after.Released && !before.Released, after.Expires < before.Expires:
		return store.Hint{Kind: store.HintVacant}, true
	case after.Evicted != before.Evicted, !slices.Equal(after.Burns, before.Burns):
		return store.Hint{Kind: store.HintChanged}, true
	}
	return store.Hint{}, false
}

// endWatch closes the watcher's channel, once. The caller holds the lock.
func (d *db) endWatch(w *watcher) {
	if _, ok := d.watchers[w]; !ok {
		return
	}
	delete(d.watchers, w)
	w.stop()
	close(w.hints)
}
