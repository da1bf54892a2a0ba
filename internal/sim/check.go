package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// Invariant is something that holds at every step of every run.
type Invariant struct{ Name, Sentence string }

// The invariants.
var (
	TokensRise = Invariant{
		"TokensRise",
		"Every grant has a higher token than every earlier grant of the election, short of a rollback of the store.",
	}
	OneValid = Invariant{
		"OneValid",
		"At most one process answers valid, or runs a job inside its local deadline while another answers valid, unless a clock of theirs fell behind or one of their terms was copied.",
	}
	BurntStands = Invariant{
		"BurntStands",
		"Nobody acquires an election before the expiry of a burnt term, unless all of its work is fenced.",
	}
	YesStands = Invariant{
		"YesStands",
		"When the store says yes, also again, the record's term is the one it names: live, not released, not burnt, not evicted.",
	}
	FenceRises = Invariant{
		"FenceRises",
		"What the fence accepts never goes back: tokens do not fall, and a copy of the leader that is two renewals behind is refused.",
	}
	ChainDescends = Invariant{
		"ChainDescends",
		"In a lane, the chained writes under one token are one term's and one line of descent's, and their positions have no gap.",
	}
	StartStop = Invariant{
		"StartStop",
		"Begin, End, the job's return and Over alternate strictly: no term begins before the last one is over and its job has returned.",
	}
	OneRenews = Invariant{
		"OneRenews",
		"The renewals of a term are one line of descent's: of two copies at most one gets a renewal of its own.",
	}
	StaysEnded = Invariant{
		"StaysEnded",
		"A term that has ended is never valid, and never extended, again.",
	}
	OneAttempt = Invariant{
		"OneAttempt",
		"A process draws no attempt while another of its attempts is out.",
	}
	NoFalseAlarm = Invariant{
		"NoFalseAlarm",
		"A term is burnt, or ends as cloned, only if a copy of it was made.",
	}
	Liveness = Invariant{
		"Liveness",
		"Once the faults stop, somebody leads within a bounded time, and so does another once the leader is gone or has given up.",
	}
	Wedged = Invariant{
		"Wedged",
		"A process always waits for something that will happen, and stops when it is told to.",
	}
)

// Invariants lists them all.
var Invariants = []Invariant{
	TokensRise, OneValid, BurntStands, YesStands, FenceRises, ChainDescends, StartStop, OneRenews, StaysEnded, OneAttempt, NoFalseAlarm, Liveness, Wedged,
}

// strand names a term as the store does. A term id alone can be granted again
// by a store that was rolled back.
type strand struct {
	term  store.Attempt
	token fence.Token
}

// answer names a yes of the store.
type answer struct {
	strand
	receipt store.Receipt
}

// ghosts is what no process knows: who descends from whom, and what really
// happened. The invariants are judged by it.
type ghosts struct {
	drawnBy   map[store.Attempt]string // descent of the process as it drew
	writtenBy map[string]string        // likewise, by digest

	last    fence.Token // the highest granted
	floor   fence.Token // above which an operator makes the election start, after a rollback
	renewer map[strand]string

	copied  map[store.Attempt]bool // terms of which a copy was made
	freed   map[store.Attempt]bool // terms that were released or given back by right
	burnt   map[strand]bool
	ousted  map[store.Attempt]bool // terms that an operator freed at once
	issued  []answer               // every yes, in order
	forgot  map[answer]bool        // and those the store knows nothing of any more
	expires time.Duration          // of the burnt term at hand, by the store's clock; 0: none

	resource resourceGhost
}

// resourceGhost is what the resource really accepted.
type resourceGhost struct {
	accepted fence.Token
	renewal  int64 // the highest accepted under it
	writer   [lanes]line
	position [lanes]int64
	// Up to the token spoilt the resource lost writes. Positions are all that the
	// chain goes by, so two copies can then both fit in.
	spoilt fence.Token
}

// line is the deepest line of descent that wrote in a lane under a token.
type line struct {
	strand
	descent string
}

func (g *ghosts) init() {
	g.drawnBy = make(map[store.Attempt]string)
	g.writtenBy = make(map[string]string)
	g.renewer = make(map[strand]string)
	g.copied = make(map[store.Attempt]bool)
	g.freed = make(map[store.Attempt]bool)
	g.burnt = make(map[strand]bool)
	g.ousted = make(map[store.Attempt]bool)
	g.forgot = make(map[answer]bool)
}

// deeper returns the longer of two lines of descent, if they are one.
func deeper(a, b string) (string, bool) {
	if len(a) < len(b) {
		a, b = b, a
	}
	return a, strings.HasPrefix(a, b)
}

func (s *sim) violated(i Invariant, format string, args ...any) {
	if s.failed != nil {
		return
	}
	s.failed = &Violation{Invariant: i, At: s.now, Detail: fmt.Sprintf(format, args...)}
	if s.tracing() {
		s.trace("VIOLATED %s: %s", i.Name, s.failed.Detail)
	}
}

// check is made after every event.
func (s *sim) check() {
	for i, p := range s.procs {
		valid := s.rules.Valid(p.state, s.look(p))
		if valid && !p.open {
			s.violated(StaysEnded, "%s answers valid without a term", p)
		}
		if !valid && !s.armed(p) {
			continue
		}
		for _, q := range s.procs[:i] {
			validQ := s.rules.Valid(q.state, s.look(q))
			if (valid && (validQ || s.armed(q)) || validQ) && !s.excused(p, q) {
				s.violated(OneValid, "%s has token %d of %s (valid %v), %s has token %d of %s (valid %v)",
					p, p.state.Lease.Token, p.state.Lease.TermID, valid, q, q.state.Lease.Token, q.state.Lease.TermID, validQ)
			}
		}
	}
}

// armed reports whether a job runs inside the deadline at which it would be
// killed, by what its process believes.
func (s *sim) armed(p *proc) bool {
	return p.job.run != 0 && s.look(p).Since(p.state.Anchor) < s.cfg.Deadline()
}

// excused reports whether two terms may stand beside each other: whether one of
// the things happened against which no lease can do anything.
func (s *sim) excused(p, q *proc) bool {
	tp, tq := p.strand(), q.strand()
	if tp == tq && s.ghost.copied[tp.term] {
		s.marks.hit(MarkTwins)
		return true
	}
	return s.alone(p) || s.alone(q)
}

func (p *proc) strand() strand { return strand{p.state.Lease.TermID, p.state.Lease.Token} }

// alone reports whether a process stands where the store's word does not reach
// it.
func (s *sim) alone(p *proc) bool {
	t := p.strand()
	switch {
	case s.fellBehind(p):
		// Its clocks stood still: it cannot know how late it is.
		s.marks.hit(MarkFellBehind)
		return true
	case s.ghost.copied[t.term] && s.ghost.freed[t.term]:
		// The other copy released the term under it.
		s.marks.hit(MarkFreedUnder)
		return true
	case s.fencedOnly && s.ghost.burnt[t]:
		s.marks.hit(MarkBurntTaken)
		return true
	case s.ghost.ousted[t.term]:
		s.marks.hit(MarkOusted)
		return true
	case s.ghost.forgot[answer{t, p.state.Lease.Receipt}]:
		// The answer it relies on was undone by a rollback of the store.
		s.marks.hit(MarkForgotten)
		return true
	}
	return false
}

// fellBehind reports whether a process's clocks have gone on by less than any
// allowed rate since its last answered attempt was drawn.
func (s *sim) fellBehind(p *proc) bool {
	passed := p.clock.read(s.now).Since(p.anchor.reading)
	return passed < scale(s.now-p.anchor.at, -s.rateMax)-10*time.Microsecond
}

func (s *sim) begun(p *proc, a core.Begin) {
	if p.job.run != 0 || p.open {
		s.violated(StartStop, "%s begins token %d while the last term is open (%v) or its job runs (%v)", p, a.Lease.Token, p.open, p.job.run != 0)
	}
	p.open, p.anchor = true, p.pending
}

func (s *sim) extended(p *proc, a core.Extend) {
	if !p.open {
		s.violated(StaysEnded, "%s extends token %d, which has ended", p, a.Lease.Token)
	}
	p.anchor = p.pending
}

func (s *sim) ended(p *proc, a core.End) {
	if !p.open {
		s.violated(StartStop, "%s ends token %d, which is not open", p, a.Lease.Token)
	}
	if errors.Is(a.Cause, store.ErrCloned) && !s.ghost.copied[a.Lease.TermID] {
		s.violated(NoFalseAlarm, "%s ends token %d as cloned: %v", p, a.Lease.Token, a.Err)
	}
	p.open = false
	for i, cause := range causes {
		if errors.Is(a.Cause, cause) {
			s.marks.hit(MarkLost + Mark(i))
		}
	}
}

func (s *sim) over(p *proc) {
	if s.ceding == p {
		s.ceding = nil
	}
	if p.open || p.job.run != 0 {
		s.violated(StartStop, "%s says that a term is over which is open (%v) or whose job runs (%v)", p, p.open, p.job.run != 0)
	}
}

// watchCore looks at a step of a core.
func (s *sim) watchCore(p *proc, before core.State, ev core.Event) {
	if _, ok := ev.(core.Drawn); ok && before.Pending != "" && p.state.Pending != before.Pending {
		s.violated(OneAttempt, "%s drew %s while %s was out", p, p.state.Pending, before.Pending)
	}
	st := p.state
	if st.Phase == core.Draining && !st.Lost && !st.Job {
		s.marks.hit(MarkMinHold)
	}
	if st.Phase == core.GivingBack && before.Phase != core.GivingBack {
		s.marks.hit(MarkGivingBack)
	}
}

// watchStore looks at a request that was served.
func (s *sim) watchStore(req request, before, after row.Row, now row.Now, l store.Lease, err error) {
	g := &s.ghost
	t := strand{after.TermID, after.Token}
	if err == nil && (req.op == core.OpAcquire || req.op == core.OpRenew) {
		if after.Released || after.Evicted != "" || now.Mono >= after.Expires || g.burnt[t] || l.TermID != after.TermID || l.Token != after.Token || l.Receipt != after.Receipt {
			s.violated(YesStands, "yes to %s for token %d of %s, receipt %s; the row has token %d of %s, receipt %s, released %v, burnt %v, evicted %q, %v left",
				req.attempt, l.Token, l.TermID, l.Receipt, after.Token, after.TermID, after.Receipt, after.Released, g.burnt[t], after.Evicted, after.Expires-now.Mono)
		}
		a := answer{t, l.Receipt}
		if l.Replayed {
			s.marks.hit(MarkReplayedGrant + Mark(req.op))
		} else {
			g.issued = append(g.issued, a)
			delete(g.forgot, a)
		}
	}
	switch {
	case err == nil && req.op == core.OpAcquire && !l.Replayed:
		if l.Token <= g.last {
			s.violated(TokensRise, "token %d was granted to %s after %d", l.Token, req.attempt, g.last)
		}
		if g.expires != 0 && now.Mono < g.expires {
			if !s.fencedOnly {
				s.violated(BurntStands, "token %d was granted to %s, %v before the burnt term's expiry", l.Token, req.attempt, g.expires-now.Mono)
			}
			s.marks.hit(MarkBurntTaken)
		}
		g.last, g.expires = l.Token, 0
	case err == nil && req.op == core.OpRenew && !l.Replayed:
		d, ok := deeper(g.renewer[t], g.drawnBy[req.attempt])
		if !ok {
			s.violated(OneRenews, "token %d was renewed by %s, of another line of descent than before", l.Token, req.attempt)
		}
		g.renewer[t] = d
	}
	if len(after.Burns) > 0 && !g.burnt[t] && after.Burns[0].TermID == after.TermID && after.Burns[0].Token == after.Token {
		g.burnt[t], g.expires = true, before.Expires
		if !g.copied[t.term] {
			s.violated(NoFalseAlarm, "token %d of %s was burnt by %s", t.token, t.term, req.attempt)
		}
		s.marks.hit(MarkBurnt)
	}
	if after.Released && !before.Released {
		if l := req.lease; req.op == core.OpAbandon && before.Renewal == 0 ||
			req.op == core.OpRelease && (l.Receipt == before.Receipt || l.Receipt == before.Used && req.attempt == before.UsedBy) {
			g.freed[after.TermID] = true
		}
		switch {
		case after.Evicted != "":
			s.marks.hit(MarkAcknowledged)
		case req.op == core.OpAbandon:
			s.marks.hit(MarkGivenBack)
		default:
			s.marks.hit(MarkReleased)
		}
	}
	var older *store.ReceiptError
	if errors.As(err, &older) {
		s.marks.hit(MarkOlderReceipt)
	}
	if errors.Is(err, store.ErrSpent) {
		s.marks.hit(MarkSpent)
	}
}

// forget is a rollback of the store to a row as it was when the first n answers
// had been given.
func (s *sim) forget(to row.Row, n int) {
	g := &s.ghost
	if to.Token < s.store.row.Token {
		g.floor = max(g.floor, g.resource.accepted)
	}
	for _, a := range g.issued[n:] {
		g.forgot[a] = true
	}
	g.issued = g.issued[:n]
	g.last, g.expires = to.Token, 0
	clear(g.renewer)
	clear(g.burnt)
	for _, b := range to.Burns {
		t := strand{b.TermID, b.Token}
		g.burnt[t] = true
		if b.TermID == to.TermID && b.Token == to.Token {
			g.expires = to.Expires
		}
	}
	s.store.row = to
}

// watchResource looks at a write that arrived.
func (s *sim) watchResource(stamp fence.Stamp, replayed bool, err error) {
	g := &s.ghost.resource
	switch {
	case errors.Is(err, fence.ErrForked):
		s.marks.hit(MarkForked)
	case errors.Is(err, fence.ErrGap):
		s.marks.hit(MarkGap)
	case errors.Is(err, fence.ErrStale):
		s.marks.hit(MarkStale)
	}
	if err != nil {
		return
	}
	if replayed {
		s.marks.hit(MarkReplayedWrite)
		return
	}
	t := strand{store.Attempt(stamp.TermID), stamp.Token}
	if stamp.Token < g.accepted {
		s.violated(FenceRises, "token %d was accepted after %d", stamp.Token, g.accepted)
	}
	if stamp.Token > g.accepted {
		g.renewal, g.writer, g.position = 0, [lanes]line{}, [lanes]int64{}
	}
	if stamp.Renewal < g.renewal-1 {
		s.violated(FenceRises, "renewal %d of token %d was accepted after %d", stamp.Renewal, stamp.Token, g.renewal)
	}
	g.accepted, g.renewal = stamp.Token, max(g.renewal, stamp.Renewal)
	if !stamp.Chained() {
		return
	}
	lane := laneOf(stamp)
	if want := g.position[lane] + 1; stamp.Position != want {
		s.violated(ChainDescends, "position %d of lane %q under token %d was accepted, the next was %d", stamp.Position, stamp.Lane, stamp.Token, want)
	}
	g.position[lane] = stamp.Position
	w := &g.writer[lane]
	d, ok := deeper(w.descent, s.ghost.writtenBy[stamp.Digest])
	if !ok && stamp.Token <= g.spoilt {
		s.marks.hit(MarkLinesMixed)
	} else if !ok || w.token != 0 && w.strand != t {
		s.violated(ChainDescends, "write %s in lane %q under token %d of %s was accepted, of another line of descent than the one before it",
			stamp.Digest, stamp.Lane, stamp.Token, stamp.TermID)
	}
	*w = line{t, d}
	if _, ok := deeper(g.writer[0].descent, g.writer[1].descent); !ok {
		s.marks.hit(MarkLanesApart)
	}
}
