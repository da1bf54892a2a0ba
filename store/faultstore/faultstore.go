package faultstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Store is a store with faults. Without rules it does what the wrapped one does.
// It is safe for concurrent use. It has nothing to close: whoever opened the
// wrapped store closes that.
type Store struct {
	inner store.Store
	next  store.Store // the optional interfaces, then inner

	mu    sync.Mutex
	cut   bool
	rules []*counted
	calls []Call
	held  []delivery
	free  chan struct{} // closed by Free
}

var _ store.Store = (*Store)(nil)

// counted is a rule and how many calls it matched.
type counted struct {
	Rule
	matched int
}

// delivery is a request that arrives later.
type delivery struct {
	call Call
	send func() error
}

// Call is one call of a store, as its caller saw it.
type Call struct {
	Op      Op
	Name    string        // the election; empty for a batch and a list
	Names   []string      // the elections of a batch
	Attempt store.Attempt // the attempt of an acquire, a renewal, a release or an abandoning
	At      time.Time     // when it began
	Fault   Fault         // what struck it
	Cut     bool          // whether the store was cut off when it began
	Done    bool          // whether it has returned
	Err     error         // what it returned
}

// New wraps inner.
func New(inner store.Store) *Store {
	s := &Store{inner: inner, next: inner, free: make(chan struct{})}
	s.next = s.optional(inner)
	return s
}

// Unwrap leads to the optional interfaces that the wrapped store has, with
// faults, and after them to the wrapped store itself; it is for [store.As].
func (s *Store) Unwrap() store.Store { return s.next }

// Add adds rules after those there are.
func (s *Store) Add(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rules {
		s.rules = append(s.rules, &counted{Rule: r})
	}
}

// Clear removes all rules. Calls that were struck stay struck.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// Cut cuts the store off, as a network that drops every packet: each call hangs
// until its context ends, no hint arrives. A call under way may be carried out
// still, but its answer does not arrive.
func (s *Store) Cut() { s.setCut(true) }

// Heal undoes Cut for the calls that begin from now on. Those that hang go on
// hanging until their context ends.
func (s *Store) Heal() { s.setCut(false) }

func (s *Store) setCut(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}

func (s *Store) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut
}

// Free lets every call return that is stuck, see [Stick].
func (s *Store) Free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.free)
	s.free = make(chan struct{})
}

// Deliver delivers what was held up, see [Late] and [Duplicate], in the order in
// which it was sent, whatever rules and cuts there are. It returns the calls,
// with the wrapped store's answers, which no caller saw.
func (s *Store) Deliver() []Call {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	calls := make([]Call, len(held))
	for i, d := range held {
		calls[i] = d.call
		calls[i].Err, calls[i].Done = d.send(), true
	}
	return calls
}

// Calls returns all calls so far, in the order in which they began. A batch is
// one call of [RenewBatch] and one of [Renew] for each entry.
func (s *Store) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Count returns how many calls of an operation began so far.
func (s *Store) Count(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c.Op == op {
			n++
		}
	}
	return n
}

// Caps are the wrapped store's. They have no faults.
func (s *Store) Caps() store.Caps { return s.inner.Caps() }

// Acquire is the wrapped store's, with faults.
func (s *Store) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	return do(ctx, s, Call{Op: Acquire, Name: c.Name, Attempt: c.Attempt}, func(ctx context.Context) (store.Lease, error) {
		return s.inner.Acquire(ctx, c)
	})
}

// Renew is the wrapped store's, with faults.
func (s *Store) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	return do(ctx, s, Call{Op: Renew, Name: l.Name, Attempt: a}, func(ctx context.Context) (store.Lease, error) {
		return s.inner.Renew(ctx, l, a)
	})
}

// Release is the wrapped store's, with faults.
func (s *Store) Release(ctx context.Context, l store.Lease, a store.Attempt) error {
	_, err := do(ctx, s, Call{Op: Release, Name: l.Name, Attempt: a}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.inner.Release(ctx, l, a)
	})
	return err
}

// Abandon is the wrapped store's, with faults.
func (s *Store) Abandon(ctx context.Context, name string, a store.Attempt) error {
	_, err := do(ctx, s, Call{Op: Abandon, Name: name, Attempt: a}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.inner.Abandon(ctx, name, a)
	})
	return err
}

// Get is the wrapped store's, with faults.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	return do(ctx, s, Call{Op: Get, Name: name}, func(ctx context.Context) (store.Record, error) {
		return s.inner.Get(ctx, name)
	})
}

// do is one call with what strikes it.
func do[T any](ctx context.Context, s *Store, c Call, send func(context.Context) (T, error)) (answer T, err error) {
	i, c := s.begin(c)
	defer func() { s.end(i, err) }()
	later := func() error {
		_, err := send(context.WithoutCancel(ctx))
		return err
	}
	if err := s.before(ctx, c, later); err != nil {
		return answer, err
	}
	got, err := send(c.Fault.context(ctx))
	if lost := s.after(ctx, c.Fault); lost != nil {
		return answer, lost
	}
	return got, err
}

// begin writes a call down and returns its number, and the call with what strikes
// it.
func (s *Store) begin(c Call) (int, Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.At, c.Cut, c.Fault = time.Now(), s.cut, s.strike(c)
	s.calls = append(s.calls, c)
	return len(s.calls) - 1, c
}

// strike counts a call in every rule that matches it and returns the fault of
// the first that applies. The caller holds the lock.
func (s *Store) strike(c Call) Fault {
	var fault Fault
	struck := false
	for _, r := range s.rules {
		if !r.matches(c) {
			continue
		}
		r.matched++
		if !struck && (r.Nth == 0 || r.Nth == r.matched) {
			fault, struck = r.Fault, true
		}
	}
	return fault
}

func (r Rule) matches(c Call) bool {
	op := r.Op == c.Op || r.Op == "" && c.Op != Hint
	name := r.Name == "" || r.Name == c.Name || slices.Contains(c.Names, r.Name)
	return op && name
}

func (s *Store) end(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[i].Done, s.calls[i].Err = true, err
}

// before is what happens to a request on its way. An error ends the call.
func (s *Store) before(ctx context.Context, c Call, later func() error) error {
	switch f := c.Fault; f.kind {
	case fail:
		return f.err
	case wait:
		t := time.NewTimer(f.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	case hang:
		return hanging(ctx)
	case stick:
		s.mu.Lock()
		free := s.free
		s.mu.Unlock()
		<-free
		return ErrStuck
	case late, duplicate:
		s.mu.Lock()
		s.held = append(s.held, delivery{c, later})
		s.mu.Unlock()
		if f.kind == late {
			return hanging(ctx)
		}
	case panics:
		panic(f.value)
	}
	if s.isCut() {
		return hanging(ctx)
	}
	return nil
}

// context is that of a request whose fault needs it to be carried out.
func (f Fault) context(ctx context.Context) context.Context {
	if f.kind == loseReply || f.kind == hangReply {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// after is what happens to an answer on its way. An error takes its place.
func (s *Store) after(ctx context.Context, f Fault) error {
	switch {
	case f.kind == loseReply:
		return ErrReplyLost
	case f.kind == hangReply, s.isCut():
		return hanging(ctx)
	}
	return nil
}

func hanging(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
