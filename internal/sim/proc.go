package sim

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// proc is a process: a core, the shell around it, and its job. It is a plain
// value but for what clone copies by hand, so that a process can be copied at
// any moment.
type proc struct {
	id      int
	descent string // grows by a letter whenever it is copied; see ghosts
	clock   clock
	frozen  bool
	dead    bool
	cut     bool // from the store and the resource
	sloppy  bool // its timers fire late
	copied  bool // it is a copy

	trap func(*proc) // what happens to it between its next drawing and the sending

	state   core.State
	timer   int           // the timer that is set; older ones are void
	drawing bool          // between drawing an attempt and telling the core
	drawn   store.Attempt // then
	calls   []call        // that have not ended
	job     job
	held    []event // what a freeze, or a drawing, keeps waiting

	// Ghosts: when the attempt at hand, and the last answered one, were drawn.
	pending, anchor look
	open            bool // a term was begun and has not ended
}

// look is a reading, with the true time at which it was taken.
type look struct {
	at      time.Duration
	reading core.Reading
}

// call is a request the shell waits for.
type call struct {
	id int
	op core.Op
	at store.Attempt // the reply's
}

func (p *proc) String() string { return "p" + strconv.Itoa(p.id) }

// spawn starts a process that contends.
func (s *sim) spawn() *proc {
	p := &proc{id: s.id(), descent: s.twig()}
	p.clock = clock{
		at: s.now, wall: s.dur(time.Hour, 1000*time.Hour), mono: s.dur(0, time.Hour), boot: s.dur(time.Hour, 2*time.Hour),
		ppm: s.rng.Int64N(2*s.rateMax+1) - s.rateMax, unboot: s.chance(1, 4),
	}
	p.clock.wallPPM = p.clock.ppm
	if s.chance(1, 4) {
		p.clock.wallPPM = s.rng.Int64N(2*s.rateMax+1) - s.rateMax
	}
	p.state = core.New(s.cfg, s.rng.Uint64())
	s.procs = append(s.procs, p)
	s.contend(p, s.skewed(s.cfg.TTL))
	return p
}

func (s *sim) contend(p *proc, in time.Duration) {
	once := !s.calm && s.chance(1, 10)
	s.later(p, shell, in, func(p *proc) {
		if !s.ending {
			s.step(p, core.Contend{Once: once})
		}
	})
}

// look is what the process sees of its clocks now.
func (s *sim) look(p *proc) core.Reading { return s.rules.Look(p.clock.read(s.now)) }

func (s *sim) step(p *proc, ev core.Event) { s.stepAt(p, s.look(p), ev) }

// stepAt lets the core step, does what it says and sets the timer.
func (s *sim) stepAt(p *proc, r core.Reading, ev core.Event) {
	s.steps++
	if s.tracing() {
		s.trace("%s %v  <- %T%+v", p, p.state.Phase, ev, ev)
	}
	before := p.state
	next, acts := s.rules.Step(p.state, r, ev)
	p.state = next
	s.watchCore(p, before, ev)
	for _, a := range acts {
		if s.tracing() {
			s.trace("%s %v  -> %T%+v", p, p.state.Phase, a, a)
		}
		s.act(p, a)
	}
	s.arm(p)
}

// arm sets the timer to the core's wish.
func (s *sim) arm(p *proc) {
	p.timer++
	d, ok := p.state.Next(s.look(p))
	if !ok {
		if ph := p.state.Phase; ph != core.Idle && ph != core.Stopped && !p.state.Drawing && !(p.state.Lost && p.state.Job) {
			s.violated(Wedged, "%s is %v and waits for nothing", p, ph)
		}
		return
	}
	late := s.dur(0, time.Millisecond)
	if p.sloppy && !s.calm {
		late += s.skewed(s.cfg.TTL)
	}
	timer := p.timer
	s.later(p, shell, p.clock.after(d)+late, func(p *proc) {
		if p.timer == timer {
			s.step(p, core.Wake{})
		}
	})
}

func (s *sim) act(p *proc, a core.Action) {
	switch a := a.(type) {
	case core.Draw:
		s.later(p, shell, s.dur(0, time.Millisecond), s.draw)
	case core.Ask:
		s.call(p, request{op: core.OpAcquire, attempt: a.Attempt})
	case core.Renew:
		s.call(p, request{op: core.OpRenew, lease: a.Lease, attempt: a.Attempt})
	case core.Release:
		s.call(p, request{op: core.OpRelease, lease: a.Lease, attempt: a.Attempt})
	case core.Abandon:
		s.call(p, request{op: core.OpAbandon, attempt: a.Attempt})
	case core.Cancel:
		for _, c := range p.calls {
			s.later(p, shell, s.dur(0, time.Millisecond), func(p *proc) { s.answer(p, c.id, core.Reply{Op: c.op, Attempt: c.at, Err: context.Canceled}) })
		}
	case core.Begin:
		s.begun(p, a)
		s.startJob(p, a.Lease)
	case core.Extend:
		s.extended(p, a)
	case core.Drain:
		s.tellJob(p)
	case core.End:
		s.ended(p, a)
		s.tellJob(p)
	case core.Overdue:
		s.marks.hit(MarkOverdue)
		s.killJob(p)
	case core.Over:
		s.over(p)
	case core.Halt:
		s.marks.hit(MarkHalt)
	}
}

// draw looks at the clocks, then draws an attempt, then tells the core. The
// process can be stopped or copied in between; its shell does nothing else
// meanwhile.
func (s *sim) draw(p *proc) {
	l := look{s.now, p.clock.read(s.now)}
	a := store.Attempt("a" + strconv.Itoa(s.id()))
	s.ghost.drawnBy[a] = p.descent
	p.drawing, p.drawn = true, a
	s.later(p, drawing, s.dur(0, time.Millisecond), func(p *proc) {
		p.drawing = false
		s.release(p)
		if p.state.Drawing {
			p.pending = l
		}
		s.stepAt(p, s.rules.Look(l.reading), core.Drawn{Attempt: a})
	})
	if p.trap != nil {
		trap := p.trap
		p.trap = nil
		trap(p)
	}
}

// release lets what was held for a process happen, in whatever order.
func (s *sim) release(p *proc) {
	held := p.held
	p.held = nil
	for _, e := range held {
		s.after(s.dur(0, time.Millisecond), e)
	}
}

var errTimeout = errors.New("no reply in time")

// call sends a request and waits for its reply no longer than a request may
// take.
func (s *sim) call(p *proc, req request) {
	at := req.attempt
	if req.op == core.OpRelease {
		at = req.lease.TermID
	}
	c := call{s.id(), req.op, at}
	req.call = c.id
	p.calls = append(p.calls, c)
	s.later(p, shell, s.dur(0, time.Millisecond), func(p *proc) { s.send(p, req) })
	s.later(p, shell, p.clock.after(s.cfg.Timeout)+s.dur(0, time.Millisecond), func(p *proc) {
		s.answer(p, c.id, core.Reply{Op: c.op, Attempt: c.at, Err: errTimeout})
	})
}

// answer ends a call. A second answer to it is mostly dropped, as a client
// would, and now and then passed on: the core must bear it.
func (s *sim) answer(p *proc, id int, r core.Reply) {
	i := slices.IndexFunc(p.calls, func(c call) bool { return c.id == id })
	if i >= 0 {
		p.calls = slices.Delete(slices.Clone(p.calls), i, i+1)
	} else if s.calm || errors.Is(r.Err, errTimeout) || errors.Is(r.Err, context.Canceled) || !s.chance(1, 4) {
		return
	} else {
		s.marks.hit(MarkLateReply)
	}
	s.step(p, r)
}

// thaw lets a process that was stopped go on.
func (s *sim) thaw(p *proc) {
	p.clock.settle(s.now)
	p.clock.still, p.clock.asleep = false, false
	p.frozen = false
	s.release(p)
}

func (s *sim) kill(p *proc) {
	p.dead = true
	s.procs = slices.DeleteFunc(s.procs, func(q *proc) bool { return q == p })
	if s.tracing() {
		s.trace("%s is killed", p)
	}
}

// image is a process as it was at one moment, with everything on its way.
type image struct {
	at     time.Duration
	proc   proc
	events []event // with their time since the image was made
}

// takeImage copies a process. flying says whether what is on the network
// belongs to the image. From here on the original is one line of descent and
// whatever is made of the image another.
func (s *sim) takeImage(p *proc, flying bool) image {
	im := image{at: s.now, proc: *p}
	im.proc.trap = nil
	im.proc.clock.settle(s.now)
	im.proc.calls = slices.Clone(p.calls)
	im.proc.held = nil
	for _, e := range p.held {
		e.at = 0
		im.events = append(im.events, e)
	}
	mine := slices.DeleteFunc(slices.Clone(s.events), func(e event) bool {
		return e.p != p || e.kind == world || !flying && (e.kind == inbound || e.kind == outbound)
	})
	slices.SortFunc(mine, func(a, b event) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for _, e := range mine {
		e.at -= s.now
		im.events = append(im.events, e)
	}
	p.descent += s.twig()
	return im
}

// start makes a process of an image: a copy of the original, whose clocks go on
// from where they stood, or from the original's if nothing has passed.
func (s *sim) start(im *image) *proc {
	p := im.proc
	p.id = s.id()
	p.descent += s.twig()
	p.clock.at = s.now
	if p.open || p.job.run != 0 {
		s.ghost.copied[p.state.Lease.TermID] = true
	}
	if p.state.Phase == core.Acquiring {
		s.ghost.copied[p.state.Pending] = true
	}
	if p.drawing {
		s.ghost.copied[p.drawn] = true
		s.marks.hit(MarkCopyDrawn)
	}
	c := &p
	s.procs = append(s.procs, c)
	for _, e := range im.events {
		e.p = c
		s.after(e.at, e)
	}
	if s.tracing() {
		s.trace("%s starts as a copy of p%d in phase %v, pending %q", c, im.proc.id, p.state.Phase, p.state.Pending)
	}
	return c
}
