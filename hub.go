package tenure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenure-go/tenure/store"
)

// hub lets the terms of one process on one store share renewal requests. The
// first term that is due opens a round; the others are told, and those whose
// own renewal is not far off join. A renewal that is tried a second time shares
// a round with a few others only, and after that it goes alone: one stuck
// election harms no other, and hundreds do not rush at a store that was slow.
type hub struct {
	store store.Store
	batch store.BatchRenewer

	mu      sync.Mutex
	members map[*campaign]struct{}
	lots    int            // how many members there have been
	open    map[int]*round // take seats, by circle; the first seat opens one
}

// everyone is the circle whose round all members are told of.
const everyone = 0

// round is one shared request of a circle of members. It ends when nobody waits for it any more: a term
// with a short lease does not cut it short for the others, and nothing of it
// outlives them.
type round struct {
	circle  int
	ctx     context.Context
	cancel  context.CancelFunc
	seats   []*seat
	waiting int
}

// seat is one renewal in a round. It is answered once: by the round, by its own
// time-out, or since its term needs no answer any more.
type seat struct {
	renewal  store.Renewal
	until    time.Time // when the request has taken too long for its term
	limit    time.Time // when its term has waited long enough
	reply    func(store.Renewed)
	answered atomic.Bool
	round    *round
	stop     func() bool // ends the watch over the term's context
}

func (s *seat) answer(r store.Renewed) (first bool) {
	if !s.answered.CompareAndSwap(false, true) {
		return false
	}
	s.reply(r)
	return true
}

// errBatch says that a round failed as a whole, each of its terms tries again.
var errBatch = errors.New("tenure: the store client panicked in a batch of renewals")

// batchMax is the most renewals of one request.
const batchMax = 1000

// A round waits for the next term to join it for a fortieth of a request's time,
// and no longer than lingerMax; and so often at the most, one after the other.
const (
	lingerMax = 10 * time.Millisecond
	lingers   = 10
)

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
		h = &hub{store: s, batch: batch, members: make(map[*campaign]struct{}), open: make(map[int]*round)}
		hubs.of[s] = h
	}
	h.mu.Lock()
	h.members[c] = struct{}{}
	h.lots++
	c.lot = h.lots
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

// renew renews l for the first or, again, for the second time in the round that
// is open, or opens one. It does not block: reply gets the answer, or an error
// after a time-out or when ctx has ended.
func (h *hub) renew(ctx context.Context, c *campaign, l store.Lease, a store.Attempt, again bool, reply func(store.Renewed)) {
	now := time.Now()
	s := &seat{renewal: store.Renewal{Lease: l, Attempt: a}, reply: reply}
	// The request ends a little earlier than the waiting, so that what the store
	// says of a time-out gets here; and the waiting earlier than the core's.
	s.until, s.limit = now.Add(c.cfg.Timeout*3/4), now.Add(c.cfg.Timeout*7/8)
	others := h.join(ctx, c, s, again)
	for _, m := range others {
		m.postRound()
	}
}

// join takes a seat in the open round. If it opens one, others are whom to tell:
// nobody of a second try, whose fellows have a second try of their own to make.
func (h *hub) join(ctx context.Context, c *campaign, s *seat, again bool) (others []*campaign) {
	h.mu.Lock()
	defer h.mu.Unlock()
	circle := everyone
	if again {
		circle = 1 + c.lot%circles(len(h.members))
	}
	if h.open[circle] == nil {
		r := &round{circle: circle}
		r.ctx, r.cancel = context.WithCancel(context.Background())
		h.open[circle] = r
		linger := time.Duration(0)
		if len(h.members) > 1 {
			linger = min(c.cfg.Timeout/40, lingerMax)
		}
		for m := range h.members {
			if m != c && !again {
				others = append(others, m)
			}
		}
		c.calls.Go(func() { h.send(r, linger) }) // c is in its loop, so it is not over before that
	}
	s.round = h.open[circle]
	s.round.seats = append(s.round.seats, s)
	s.round.waiting++
	s.stop = context.AfterFunc(ctx, func() { h.giveUp(s, context.Cause(ctx)) })
	return others
}

// circles is how many circles n members fall into for their second tries: as
// many as one circle has members, so that neither the requests nor the ones that
// a stuck election takes with it are many.
func circles(n int) int { return int(math.Ceil(math.Sqrt(float64(n)))) }

// giveUp leaves a round without an answer of the store.
func (h *hub) giveUp(s *seat, err error) {
	if !s.answer(store.Renewed{Err: err}) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := s.round
	r.waiting--
	if r.waiting > 0 {
		return
	}
	r.cancel()
	if h.open[r.circle] == r {
		delete(h.open, r.circle)
	}
}

// gather closes the round when nobody has joined it for linger: hundreds of terms
// take longer to hear of it and to draw their attempts than one.
func (h *hub) gather(r *round, linger time.Duration) []*seat {
	seen := 0
	for began := time.Now(); ; time.Sleep(linger) {
		h.mu.Lock()
		if linger == 0 || len(r.seats) == seen || time.Since(began) >= lingers*linger {
			break
		}
		seen = len(r.seats)
		h.mu.Unlock()
	}
	defer h.mu.Unlock()
	if h.open[r.circle] == r {
		delete(h.open, r.circle)
	}
	return r.seats
}

// send carries the round out once it is closed.
func (h *hub) send(r *round, linger time.Duration) {
	defer r.cancel()
	seats := h.gather(r, linger)
	done := make(chan struct{})
	go func() {
		defer close(done)
		until := slices.MaxFunc(seats, func(a, b *seat) int { return a.until.Compare(b.until) }).until
		ctx, cancel := context.WithDeadline(r.ctx, until)
		defer cancel()
		for chunk := range slices.Chunk(seats, batchMax) {
			h.carryOut(ctx, chunk)
		}
	}()
	h.hurry(seats, done)
}

// hurry lets nobody wait past its limit, until the round is done: a lease may be
// much shorter than others of the round, and a client may not return at all.
func (h *hub) hurry(seats []*seat, done <-chan struct{}) {
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	for {
		if len(seats) > 0 {
			first := slices.MinFunc(seats, func(a, b *seat) int { return a.limit.Compare(b.limit) })
			late.Reset(time.Until(first.limit))
		}
		select {
		case <-done:
			return
		case now := <-late.C:
			seats = slices.DeleteFunc(slices.Clone(seats), func(s *seat) bool {
				over := !s.limit.After(now)
				if over {
					h.giveUp(s, context.DeadlineExceeded)
				}
				return over
			})
		}
	}
}

func (h *hub) carryOut(ctx context.Context, seats []*seat) {
	batch := make([]store.Renewal, len(seats))
	for i, s := range seats {
		batch[i] = s.renewal
	}
	answers, err := guarded(ErrPanicked, func() ([]store.Renewed, error) {
		if len(batch) == 1 {
			l, err := h.store.Renew(ctx, batch[0].Lease, batch[0].Attempt)
			return []store.Renewed{{Lease: l, Err: err}}, nil
		}
		return h.batch.RenewBatch(ctx, batch), nil
	})
	if err != nil && len(seats) > 1 {
		err = fmt.Errorf("%w: %v", errBatch, err) // no term ends by another's panic
	}
	for i, s := range seats {
		s.stop()
		switch {
		case err != nil:
			s.answer(store.Renewed{Err: err})
		case i >= len(answers):
			s.answer(store.Renewed{Err: errShortBatch})
		default:
			s.answer(answers[i])
		}
	}
}
