package tenure

import (
	"context"
	"sync"

	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// bubbleClock leaves out the boot clock, which is the real one also in a bubble:
// by it a slow machine would end terms.
type bubbleClock struct{ machineClock }

func (c bubbleClock) read() core.Reading { return c.glance() }

// hooked lets a test stand between an elector and its store. A hook left nil
// passes the call on. It hides the optional interfaces of the store inside, but
// for those reached through Unwrap.
type hooked struct {
	store.Store
	mu      sync.Mutex
	acquire func(context.Context, store.Claim) (store.Lease, error)
	renew   func(context.Context, store.Lease, store.Attempt) (store.Lease, error)
	release func(context.Context, store.Lease, store.Attempt) error
	batch   func(context.Context, []store.Renewal) []store.Renewed
	calls   map[string]int
	cut     chan struct{} // not nil: every call waits for its context, as with dropped packets
}

func (h *hooked) Unwrap() store.Store { return h.Store }

func (h *hooked) enter(ctx context.Context, op string) error {
	h.mu.Lock()
	if h.calls == nil {
		h.calls = make(map[string]int)
	}
	h.calls[op]++
	cut := h.cut
	h.mu.Unlock()
	if cut == nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// partition cuts the elector off, or heals it.
func (h *hooked) partition(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = nil
	if on {
		h.cut = make(chan struct{})
	}
}

func (h *hooked) count(op string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[op]
}

func (h *hooked) set(f func(*hooked)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
}

func (h *hooked) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	if err := h.enter(ctx, "acquire"); err != nil {
		return store.Lease{}, err
	}
	h.mu.Lock()
	f := h.acquire
	h.mu.Unlock()
	if f != nil {
		return f(ctx, c)
	}
	return h.Store.Acquire(ctx, c)
}

func (h *hooked) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	if err := h.enter(ctx, "renew"); err != nil {
		return store.Lease{}, err
	}
	h.mu.Lock()
	f := h.renew
	h.mu.Unlock()
	if f != nil {
		return f(ctx, l, a)
	}
	return h.Store.Renew(ctx, l, a)
}

func (h *hooked) RenewBatch(ctx context.Context, batch []store.Renewal) []store.Renewed {
	if err := h.enter(ctx, "batch"); err != nil {
		answers := make([]store.Renewed, len(batch))
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	h.mu.Lock()
	f := h.batch
	h.mu.Unlock()
	if f != nil {
		return f(ctx, batch)
	}
	inner, _ := store.As[store.BatchRenewer](h.Store)
	return inner.RenewBatch(ctx, batch)
}

func (h *hooked) Release(ctx context.Context, l store.Lease, a store.Attempt) error {
	if err := h.enter(ctx, "release"); err != nil {
		return err
	}
	h.mu.Lock()
	f := h.release
	h.mu.Unlock()
	if f != nil {
		return f(ctx, l, a)
	}
	return h.Store.Release(ctx, l, a)
}

func (h *hooked) Abandon(ctx context.Context, name string, a store.Attempt) error {
	if err := h.enter(ctx, "abandon"); err != nil {
		return err
	}
	return h.Store.Abandon(ctx, name, a)
}
