package sim

import (
	"errors"
	"time"

	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// network is the way between processes and what they talk to.
type network struct {
	delay     time.Duration // of most messages
	lose      int           // of 100 messages
	slow      int           // of 100 messages: near or past a time-out
	duplicate int           // of 100 messages: they come again, perhaps much later
}

// request is what a process asks the store.
type request struct {
	call    int
	op      core.Op
	attempt store.Attempt
	lease   store.Lease
}

// modelStore is a store with one election, which applies package row.
type modelStore struct {
	row   row.Row
	epoch time.Duration // of its clock
	ppm   int64         // how much too fast that runs

	down    bool  // a request gets no answer
	refuses bool  // while down, the connection is refused at once
	sick    error // what it answers instead of doing anything
	saved   []savedRow
}

// savedRow is a row to which the store may be rolled back, with the number of
// answers it had given.
type savedRow struct {
	row     row.Row
	answers int
}

func (st *modelStore) clock(now time.Duration) row.Now {
	m := st.epoch + scale(now, st.ppm)
	return row.Now{Mono: m, Wall: time.Unix(0, int64(m)).UTC()}
}

// travel sends a message on its way: at once, late, never, or more than once.
func (s *sim) travel(p *proc, k kind, fn func(*proc)) {
	n := s.net
	if p.cut || s.chance(n.lose, 100) {
		if s.tracing() {
			s.trace("%s a message is lost", p)
		}
		return
	}
	d := s.dur(n.delay/10, n.delay)
	if s.chance(n.slow, 100) {
		d = s.skewed(2 * s.cfg.TTL)
	}
	s.after(d, event{kind: k, p: p, fn: fn})
	if s.chance(n.duplicate, 100) {
		s.after(d+s.skewed(3*s.cfg.TTL), event{kind: k, p: p, fn: fn, late: true})
	}
}

func (s *sim) send(p *proc, req request) {
	if s.store.down && s.store.refuses && !p.cut {
		s.later(p, inbound, s.dur(0, s.net.delay), func(p *proc) { s.reply(p, req, store.Lease{}, store.Undone(store.ErrUnreachable)) })
		return
	}
	s.travel(p, outbound, func(p *proc) { s.serve(p, req) })
}

// serve is the store's side of a request, in one atomic step.
func (s *sim) serve(p *proc, req request) {
	if s.store.down {
		return
	}
	var l store.Lease
	err := s.store.sick
	if err == nil {
		l, err = s.apply(req)
	}
	if s.tracing() {
		s.trace("store: %s's %v %s (token %d, renewal %d): token %d renewal %d replayed %v, %v", p, opNames[req.op], req.attempt, req.lease.Token, req.lease.Renewal, l.Token, l.Renewal, l.Replayed, err)
	}
	s.travel(p, inbound, func(p *proc) { s.reply(p, req, l, err) })
}

var opNames = [...]string{"acquire", "renew", "release", "abandon"}

func (s *sim) reply(p *proc, req request, l store.Lease, err error) {
	at := req.attempt
	if req.op == core.OpRelease {
		at = req.lease.TermID
	}
	s.answer(p, req.call, core.Reply{Op: req.op, Attempt: at, Lease: l, Err: err})
}

func (s *sim) apply(req request) (l store.Lease, err error) {
	before, now := s.store.row, s.store.clock(s.now)
	after := before
	switch req.op {
	case core.OpAcquire:
		claim := store.Claim{Name: election, Holder: "sim", Attempt: req.attempt, TTL: s.cfg.TTL, Floor: s.ghost.floor, FencedOnly: s.fencedOnly}
		after, l, err = s.rules.Acquire(before, claim, claim.TTL, now)
	case core.OpRenew:
		after, l, err = s.rules.Renew(before, req.lease, req.attempt, now)
	case core.OpRelease:
		after, err = s.rules.Release(before, req.lease, req.attempt, now)
	case core.OpAbandon:
		after, err = s.rules.Abandon(before, req.attempt, now)
	}
	s.keep(after)
	s.watchStore(req, before, after, now, l, err)
	s.hint(before, after, now)
	return l, err
}

// keep writes a row. The one before stays among those to which the store may be
// rolled back.
func (s *sim) keep(r row.Row) {
	st := &s.store
	if b := st.row; b.Receipt != r.Receipt || b.TermID != r.TermID || b.Released != r.Released || b.Evicted != r.Evicted || len(b.Burns) != len(r.Burns) {
		st.saved = append(st.saved, savedRow{st.row, len(s.ghost.issued)})
	}
	st.row = r
}

// hint tells those who watch what a change may mean for them.
func (s *sim) hint(before, after row.Row, now row.Now) {
	if !s.watched {
		return
	}
	var h store.Hint
	switch {
	case after.Token != before.Token, after.Renewal != before.Renewal:
		h = store.Hint{Kind: store.HintRenewed, Remaining: after.Expires - now.Mono}
	case after.Released != before.Released, after.Expires != before.Expires:
		h = store.Hint{Kind: store.HintVacant}
	case after.Evicted != before.Evicted:
		h = store.Hint{Kind: store.HintChanged}
	default:
		return
	}
	for _, p := range s.procs {
		s.travel(p, inbound, func(p *proc) { s.step(p, core.Hint{Hint: h}) })
	}
}

var sicknesses = []error{store.ErrDenied, store.ErrBusy, store.ErrReadOnly, errors.New("sim: it may have happened or not")}
