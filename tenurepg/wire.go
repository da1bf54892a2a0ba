package tenurepg

import (
	"context"
	"sync"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// wires are the tripwires that this store holds: for each term that may be taken
// over when its holder is disconnected, a lock of the home connection's session.
// Whoever finds it free knows that the connection is gone.
//
// The lock is taken in the statement that grants, or in a renewal after the
// connection was made anew.
type wires struct {
	s *Store

	mu   sync.Mutex
	held map[string]tether // by election
}

// tether is a term that hangs on a connection.
type tether struct {
	term    store.Attempt
	token   fence.Token
	id      int32
	session int32 // which holds the lock; 0: none does
}

func (t tether) is(l store.Lease) bool { return t.term == l.TermID && t.token == l.Token }

// has reports whether l's term hangs on the connection.
func (w *wires) has(l store.Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.held[l.Name]
	return ok && t.is(l)
}

// any reports whether a term of the election does.
func (w *wires) any(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.held[name]
	return ok
}

// cut reports whether l's term must take the lock again, in the given session.
func (w *wires) cut(l store.Lease, session int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.held[l.Name]
	return ok && t.is(l) && session != 0 && t.session != session
}

func (w *wires) granted(name string, a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = make(map[string]tether)
	}
	w.held[name] = tether{term: a.Term, token: a.Token, id: a.ID, session: a.Wire}
}

func (w *wires) renewed(l store.Lease, a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.held[l.Name]; ok && t.is(l) {
		t.session = a.Wire
		w.held[l.Name] = t
	}
}

// released forgets l's term; the release returned the lock.
func (w *wires) released(l store.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.held[l.Name]; ok && t.is(l) {
		delete(w.held, l.Name)
	}
}

// lost returns the lock of l's term, which is over.
func (w *wires) lost(l store.Lease) {
	w.mu.Lock()
	t, ok := w.held[l.Name]
	if ok = ok && t.is(l); ok {
		delete(w.held, l.Name)
	}
	w.mu.Unlock()
	if ok && t.session != 0 {
		go w.drop(t.id)
	}
}

// stands returns the lock of a term of the election that has another token by now.
func (w *wires) stands(name string, token fence.Token) {
	w.mu.Lock()
	t, ok := w.held[name]
	w.mu.Unlock()
	if ok && t.token != token {
		w.lost(store.Lease{Name: name, TermID: t.term, Token: t.token})
	}
}

// drop returns a lock. If it cannot, the lock ends with the connection: until then
// the next holder has no tripwire, and is waited for by its expiry.
func (w *wires) drop(id int32) {
	_, _ = w.s.call(context.Background(), statement{
		what: "returning a tripwire", sql: sqlUnwire,
		args: func(int32) []any { return []any{id} },
		each: func(string) error { return nil },
	}, true)
}
