package memstore

import (
	"slices"

	"github.com/tenure-go/tenure/store/row"
)

// Snapshot is a store's records at one moment, by name.
type Snapshot map[string]row.Row

// Snapshot copies the records. With [Store.Restore] it models what a real store
// does when its machine is restored from a backup, or fails over to a replica
// that had not caught up. It is for tests of what you build on the store, works
// on a closed one, and may be changed freely before it is restored.
func (s *Store) Snapshot() Snapshot {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return clone(s.db.rows)
}

// Restore puts the records back as they were, for everybody who shares them:
// grants, renewals and releases since then never happened, tokens are handed out
// again. The clock does not go back, history is kept, and no watcher hears of
// it, as with a real store. It is for tests of what you build on the store.
func (s *Store) Restore(snap Snapshot) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.rows = clone(snap)
}

// Delete removes a record, its token included, as somebody with a database
// console might. No watcher hears of it, and deleting what is not there does
// nothing: whoever asks next is granted the election although its leader may
// still be valid, where a store that outlives its process waits a TTL out. It is
// for tests of what you build on the store; no store of Tenure deletes a record
// by itself.
func (s *Store) Delete(name string) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	delete(s.db.rows, name)
}

func clone(rows map[string]row.Row) map[string]row.Row {
	c := make(map[string]row.Row, len(rows))
	for name, r := range rows {
		r.Burns = slices.Clone(r.Burns)
		c[name] = r
	}
	return c
}
