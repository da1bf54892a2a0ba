package tenure

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/tenure-go/tenure/store"
)

// hub lets the terms of one process on one store share renewal requests. The
// first term that is due opens a round; the others are told, and those whose
// own renewal is not far off join. A renewal that is being tried again goes
// alone, so that one stuck election harms no other.
type hub struct {
	store store.Store
	batch store.BatchRenewer

	mu      sync.Mutex
	members map[*campaign]struct{}
	round   []seat
}

// errBatch says that a round failed as a whole: each term tries again alone.
var errBatch = errors.New("tenure: the store client panicked in a batch of renewals")

type seat struct {
	renewal store.Renewal
	timeout time.Duration      // how long its term waits for the request
	answer  chan store.Renewed // takes one answer without blocking
}

// batchMax is the most renewals of one request.
const batchMax = 1000

// lingerMax is how long a round waits for the next to join it at the most.
const lingerMax = 10 * time.Millisecond

var hubs = struct {
	sync.Mutex
	of map[store.Store]*hub
}{of: make(map[store.Store]*hub)}

// joinHub returns the hub of s, or nil if s cannot renew in batches.
func joinHub(s store.Store, c *campaign) *hub {
	batch, ok := store.As[store.BatchRenewer](s)
	if !ok || !reflect.ValueOf(s).Comparable() {
		return nil
	}
	hubs.Lock()
	defer hubs.Unlock()
	h := hubs.of[s]
	if h == nil {
		h = &hub{store: s, batch: batch, members: make(map[*campaign]struct{})}
		hubs.of[s] = h
	}
	h.mu.Lock()
	h.members[c] = struct{}{}
	h.mu.Unlock()
	return h
}

// leave takes c out; the last one removes the hub.
func (h *hub) leave(c *campaign) {
	hubs.Lock()
	defer hubs.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.members, c)
	if len(h.members) == 0 {
		delete(hubs.of, h.store)
	}
}

// renew renews l in the round that is open, or opens one. It blocks until the
// answer, or until ctx ends. timeout is how long the round's request may take on
// behalf of this term.
func (h *hub) renew(ctx context.Context, c *campaign, l store.Lease, a store.Attempt, timeout time.Duration) (store.Lease, error) {
	s := seat{renewal: store.Renewal{Lease: l, Attempt: a}, timeout: timeout, answer: make(chan store.Renewed, 1)}
	h.mu.Lock()
	h.round = append(h.round, s)
	var others []*campaign
	if len(h.round) == 1 && len(h.members) > 1 {
		for m := range h.members {
			if m != c {
				others = append(others, m)
			}
		}
	}
	first := len(h.round) == 1
	h.mu.Unlock()
	if first {
		for _, m := range others {
			m.postRound()
		}
		linger := time.Duration(0)
		if len(others) > 0 {
			linger = min(timeout/20, lingerMax)
		}
		c.calls.Go(func() { h.send(linger, min(10*linger, timeout/4)) }) // c is in a call, so it is not over before the round is
	}
	select {
	case r := <-s.answer:
		return r.Lease, r.Err
	case <-ctx.Done():
		return store.Lease{}, context.Cause(ctx)
	}
}

// send closes the round when nobody has joined it for linger, at the latest after
// most, and carries it out, with the time of its most patient term: one with a
// short lease must not cut the others short.
func (h *hub) send(linger, most time.Duration) {
	began := time.Now()
	for seen := 0; linger > 0 && time.Since(began) < most; {
		n := h.seats()
		if n == seen {
			break
		}
		seen = n
		time.Sleep(linger)
	}
	h.mu.Lock()
	round := h.round
	h.round = nil
	h.mu.Unlock()
	var timeout time.Duration
	for _, s := range round {
		timeout = max(timeout, s.timeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout-time.Since(began))
	defer cancel()
	for len(round) > 0 {
		n := min(len(round), batchMax)
		h.carryOut(ctx, round[:n])
		round = round[n:]
	}
}

func (h *hub) seats() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.round)
}

func (h *hub) carryOut(ctx context.Context, round []seat) {
	batch := make([]store.Renewal, len(round))
	for i, s := range round {
		batch[i] = s.renewal
	}
	answers, err := guarded(func() ([]store.Renewed, error) {
		if len(batch) == 1 {
			l, err := h.store.Renew(ctx, batch[0].Lease, batch[0].Attempt)
			return []store.Renewed{{Lease: l, Err: err}}, nil
		}
		return h.batch.RenewBatch(ctx, batch), nil
	})
	if err != nil && len(round) > 1 {
		err = fmt.Errorf("%w: %v", errBatch, err) // no term ends by another's panic
	}
	for i, s := range round {
		switch {
		case err != nil:
			s.answer <- store.Renewed{Err: err}
		case i >= len(answers):
			s.answer <- store.Renewed{Err: errShortBatch}
		default:
			s.answer <- answers[i]
		}
	}
}
