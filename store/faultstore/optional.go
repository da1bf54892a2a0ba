package faultstore

import (
	"context"
	"iter"

	"github.com/tenure-go/tenure/store"
)

// link is one optional interface in the chain that [Store.Unwrap] begins. There
// is one for each that the wrapped store has, so that store.As finds what is
// there and nothing else.
type link struct {
	*Store
	next store.Store
}

func (l link) Unwrap() store.Store { return l.next }

// optional returns the chain of the optional interfaces that can fail, before
// inner, which has the others.
func (s *Store) optional(inner store.Store) store.Store {
	next := inner
	if r, ok := store.As[store.BatchRenewer](inner); ok {
		next = batchRenewer{link{s, next}, r}
	}
	if w, ok := store.As[store.Watcher](inner); ok {
		next = watcher{link{s, next}, w}
	}
	if e, ok := store.As[store.Evictor](inner); ok {
		next = evictor{link{s, next}, e}
	}
	if l, ok := store.As[store.Lister](inner); ok {
		next = lister{link{s, next}, l}
	}
	if h, ok := store.As[store.Historian](inner); ok {
		next = historian{link{s, next}, h}
	}
	return next
}

type evictor struct {
	link
	inner store.Evictor
}

func (e evictor) Evict(ctx context.Context, ev store.Eviction) (store.Record, error) {
	return do(ctx, e.Store, Call{Op: Evict, Name: ev.Name}, func(ctx context.Context) (store.Record, error) {
		return e.inner.Evict(ctx, ev)
	})
}

type historian struct {
	link
	inner store.Historian
}

func (h historian) History(ctx context.Context, name string, n int) ([]store.Entry, error) {
	return do(ctx, h.Store, Call{Op: History, Name: name}, func(ctx context.Context) ([]store.Entry, error) {
		return h.inner.History(ctx, name, n)
	})
}

type lister struct {
	link
	inner store.Lister
}

// List is struck before its first record.
func (l lister) List(ctx context.Context) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		records, err := do(ctx, l.Store, Call{Op: List}, func(ctx context.Context) (iter.Seq2[store.Record, error], error) {
			return l.inner.List(ctx), nil
		})
		if err != nil {
			yield(store.Record{}, err)
			return
		}
		records(yield)
	}
}

type watcher struct {
	link
	inner store.Watcher
}

func (w watcher) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	// A watch whose reply is lost still ends with the caller's context.
	in, err := do(ctx, w.Store, Call{Op: Watch, Name: name}, func(context.Context) (<-chan store.Hint, error) {
		return w.inner.Watch(ctx, name)
	})
	if err != nil {
		return nil, err
	}
	out := make(chan store.Hint, 1)
	go func() {
		defer close(out)
		for h := range in {
			if w.loses(name) {
				continue
			}
			// One slot, which holds the newest: this is the only sender.
			select {
			case <-out:
			default:
			}
			out <- h
		}
	}()
	return out, nil
}

// loses reports whether a hint about an election is lost.
func (s *Store) loses(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := s.strike(Call{Op: Hint, Name: name})
	return s.cut || fault.kind != none
}

type batchRenewer struct {
	link
	inner store.BatchRenewer
}

// RenewBatch has faults of two kinds. A rule for RenewBatch strikes the request
// as a whole. A rule for Renew strikes an entry: Fail and LoseReply are that
// entry's alone; whatever takes time or panics holds up the whole batch, as a
// locked row does.
func (b batchRenewer) RenewBatch(ctx context.Context, batch []store.Renewal) []store.Renewed {
	answers := make([]store.Renewed, len(batch))
	names := make([]string, len(batch))
	for i, r := range batch {
		names[i] = r.Lease.Name
	}
	n, whole := b.begin(Call{Op: RenewBatch, Names: names})
	entries := make([]Call, len(batch))
	for i, r := range batch {
		var entry int
		entry, entries[i] = b.begin(Call{Op: Renew, Name: r.Lease.Name, Attempt: r.Attempt})
		defer func() { b.end(entry, answers[i].Err) }()
	}
	var err error
	defer func() { b.end(n, err) }()
	if err = b.renew(ctx, batch, answers, whole, entries); err != nil {
		for i := range answers {
			answers[i] = store.Renewed{Err: err}
		}
	}
	return answers
}

// renew sends a batch with what strikes it and its entries. An error is the
// answer to every entry.
func (b batchRenewer) renew(ctx context.Context, batch []store.Renewal, answers []store.Renewed, whole Call, entries []Call) error {
	err := b.before(ctx, whole, func() error {
		b.inner.RenewBatch(context.WithoutCancel(ctx), batch)
		return nil
	})
	if err != nil {
		return err
	}
	sendCtx := whole.Fault.context(ctx)
	var sent []store.Renewal
	var at []int // where each sent entry stands in the batch
	for i, r := range batch {
		err := b.before(ctx, entries[i], func() error {
			_, err := b.Store.inner.Renew(context.WithoutCancel(ctx), r.Lease, r.Attempt)
			return err
		})
		switch {
		case err == nil:
			sent, at = append(sent, r), append(at, i)
			sendCtx = entries[i].Fault.context(sendCtx)
		case entries[i].Fault.kind == fail:
			answers[i].Err = err
		default:
			return err
		}
	}
	for i, answer := range b.inner.RenewBatch(sendCtx, sent) {
		answers[at[i]] = answer
	}
	if err := b.after(ctx, whole.Fault); err != nil {
		return err
	}
	for _, i := range at {
		err := b.after(ctx, entries[i].Fault)
		switch {
		case err == nil:
		case entries[i].Fault.kind == loseReply:
			answers[i] = store.Renewed{Err: err}
		default:
			return err
		}
	}
	return nil
}
