package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// Rules are the parts under test. The zero Rules are the real ones; a mutant
// replaces one of them, to show that the simulator would notice.
type Rules struct {
	Acquire func(row.Row, store.Claim, time.Duration, row.Now) (row.Row, store.Lease, error)
	Renew   func(row.Row, store.Lease, store.Attempt, row.Now) (row.Row, store.Lease, error)
	Release func(row.Row, store.Lease, store.Attempt, row.Now) (row.Row, error)
	Abandon func(row.Row, store.Attempt, row.Now) (row.Row, error)
	Evict   func(row.Row, store.Eviction, row.Now) (row.Row, error)

	Check func(fence.Mark, fence.Stamp) (fence.Mark, error)
	Chain func(fence.Mark, fence.LaneMark, fence.Stamp) (fence.Mark, fence.LaneMark, bool, error)

	Step   func(core.State, core.Reading, core.Event) (core.State, []core.Action)
	Valid  func(core.State, core.Reading) bool
	Look   func(core.Reading) core.Reading // what a process sees of its clocks
	Config func(core.Config) core.Config

	Hasty bool // jobs write on in a lane before they know what became of the last write
}

func (r Rules) withDefaults() Rules {
	real := Rules{
		Acquire: row.Acquire, Renew: row.Renew, Release: row.Release, Abandon: row.Abandon, Evict: row.Evict,
		Check: fence.Mark.Check, Chain: fence.CheckChain,
		Step: core.State.Step, Valid: core.State.Valid,
		Look:   func(r core.Reading) core.Reading { return r },
		Config: func(c core.Config) core.Config { return c },
	}
	if r.Acquire != nil {
		real.Acquire = r.Acquire
	}
	if r.Renew != nil {
		real.Renew = r.Renew
	}
	if r.Release != nil {
		real.Release = r.Release
	}
	if r.Abandon != nil {
		real.Abandon = r.Abandon
	}
	if r.Evict != nil {
		real.Evict = r.Evict
	}
	if r.Check != nil {
		real.Check = r.Check
	}
	if r.Chain != nil {
		real.Chain = r.Chain
	}
	if r.Step != nil {
		real.Step = r.Step
	}
	if r.Valid != nil {
		real.Valid = r.Valid
	}
	if r.Look != nil {
		real.Look = r.Look
	}
	if r.Config != nil {
		real.Config = r.Config
	}
	real.Hasty = r.Hasty
	return real
}

// Options of a run. The zero Options test the real rules in silence.
type Options struct {
	Rules Rules
	// Faults are the kinds of fault a run may have, by name; nil: any. With them
	// a seed means another run.
	Faults []string
	// Trace receives a line for everything that happens; nil: nobody looks.
	Trace func(line string)
}

// Result is what a run came to.
type Result struct {
	Seed      int64
	Steps     int           // of cores
	Simulated time.Duration // true time that went by
	Marks     Marks         // what occurred
	Violation *Violation    // nil: every invariant held
}

// Violation is an invariant that did not hold.
type Violation struct {
	Invariant Invariant
	At        time.Duration
	Detail    string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s, at %v: %s\n  %s", v.Invariant.Name, v.At, v.Detail, v.Invariant.Sentence)
}

// Run makes one run. The seed decides everything in it.
func Run(seed int64, o Options) Result {
	s := newSim(seed, o)
	s.play()
	return Result{Seed: seed, Steps: s.steps, Simulated: s.now, Marks: s.marks, Violation: s.failed}
}

const election = "e"

// sim is one run.
type sim struct {
	rng   *rand.Rand
	rules Rules
	out   func(string)

	cfg        core.Config
	fencedOnly bool
	watched    bool
	chained    bool
	rateMax    int64 // how far a clock's rate may be off, in ppm
	faults     []fault
	calm       bool  // the faults are over
	ending     bool  // and nobody contends any more
	ceding     *proc // that was asked to give up its term, until it is over

	now    time.Duration
	seq    uint64
	events queue
	steps  int
	ids    int // attempts, calls, writes and processes drawn so far
	twigs  int // branches of descent so far

	procs []*proc // alive
	image *image
	net   network
	store modelStore
	res   resource
	ghost ghosts

	marks  Marks
	failed *Violation
}

func newSim(seed int64, o Options) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(uint64(seed), 0x7e9)), rules: o.Rules.withDefaults(), out: o.Trace}
	ttl := pick(s, []time.Duration{time.Second, 3 * time.Second, 6 * time.Second, 15 * time.Second, time.Minute})
	s.watched = s.chance(1, 2)
	s.fencedOnly = s.chance(1, 4)
	s.chained = s.chance(1, 2)
	s.cfg = core.Config{TTL: ttl}
	if s.chance(1, 5) {
		s.cfg.MinHold = s.dur(0, 3*ttl)
	}
	s.cfg = s.cfg.WithDefaults(s.watched)
	if err := s.cfg.Validate(); err != nil {
		panic(err)
	}
	// A slow process against a fast store must not eat more than the margin.
	s.rateMax = int64(s.cfg.Margin) * 450_000 / int64(ttl)
	s.cfg = s.rules.Config(s.cfg)
	s.net = network{delay: ttl / 300}
	s.store.ppm = s.rng.Int64N(2*s.rateMax+1) - s.rateMax
	s.store.epoch = s.dur(0, time.Hour)
	s.ghost.init()
	// Few kinds of fault in a run, so that those few meet often.
	may := slices.DeleteFunc(slices.Clone(allFaults), func(f fault) bool { return o.Faults != nil && !slices.Contains(o.Faults, f.name) })
	for range s.rng.IntN(8) {
		s.faults = append(s.faults, pick(s, may))
	}
	for range 2 + s.rng.IntN(2) {
		s.spawn()
	}
	return s
}

// play is a time of faults, then a calm, then the end.
func (s *sim) play() {
	end := s.dur(5*s.cfg.TTL, 30*s.cfg.TTL)
	if len(s.faults) > 0 {
		s.after(s.dur(0, s.cfg.TTL), event{fn: func(*proc) { s.nextFault() }})
	}
	s.until(end, nil)

	s.becomeCalm()
	// A last term may stand for a TTL, be followed by one that a late request
	// got and nobody leads, and a candidate that was evicted rests for a TTL.
	s.mustLead(8*s.cfg.TTL + s.cfg.Poll + s.cfg.MinHold)
	s.until(s.now+s.cfg.TTL, nil)
	s.mustLead(2 * s.cfg.TTL)

	// The leader is gone, or gives up: the next one is there in time.
	s.spawn()
	s.until(s.now+2*s.cfg.TTL, nil)
	if p := s.leader(); p != nil && s.failed == nil {
		if s.chance(1, 2) {
			s.kill(p)
			s.mustLead(s.cfg.TTL + s.cfg.Renew + s.cfg.Timeout)
		} else {
			s.ceding = p
			s.later(p, shell, 0, func(p *proc) { s.step(p, core.Yield{}) })
			s.until(s.now+4*s.cfg.TTL+s.cfg.MinHold, func() bool { return s.ceding == nil })
			s.mustLead(min(s.cfg.Poll, s.cfg.Renew) + s.cfg.Timeout)
		}
	}

	s.ending = true
	for _, p := range s.procs {
		s.later(p, shell, 0, func(p *proc) { s.step(p, core.Stop{}) })
	}
	s.until(s.now+4*s.cfg.TTL+s.cfg.MinHold, s.halted)
	if s.failed == nil && !s.halted() {
		s.violated(Wedged, "not stopped: %s", s.describe())
	}
}

// until runs events up to a moment, or until done says so.
func (s *sim) until(end time.Duration, done func() bool) {
	for len(s.events) > 0 && s.failed == nil && (done == nil || !done()) {
		if s.events[0].at > end {
			s.now = end
			return
		}
		e := s.events.pop()
		s.now = max(s.now, e.at)
		s.run(e)
		if s.failed == nil {
			s.check()
		}
	}
}

func (s *sim) run(e event) {
	if e.late && s.calm {
		return
	}
	switch e.kind {
	case world, outbound:
		e.fn(e.p)
	default:
		switch {
		case e.p.dead:
		case e.p.frozen, e.p.drawing && (e.kind == shell || e.kind == inbound):
			e.p.held = append(e.p.held, e)
		default:
			e.fn(e.p)
		}
	}
}

// after makes an event that happens in d.
func (s *sim) after(d time.Duration, e event) {
	s.seq++
	e.at, e.seq = s.now+d, s.seq
	s.events.push(e)
}

// later makes an event of a process that happens in d.
func (s *sim) later(p *proc, k kind, d time.Duration, fn func(*proc)) {
	s.after(d, event{kind: k, p: p, fn: fn})
}

// leader returns a process that answers valid, or nil.
func (s *sim) leader() *proc {
	for _, p := range s.procs {
		if !p.frozen && s.rules.Valid(p.state, s.look(p)) {
			return p
		}
	}
	return nil
}

func (s *sim) led() bool { return s.leader() != nil }

// mustLead waits for a leader, but not for longer than within.
func (s *sim) mustLead(within time.Duration) {
	begun := s.now
	s.until(s.now+within, s.led)
	if s.failed == nil && !s.led() {
		s.violated(Liveness, "nobody leads since %v: %s", begun, s.describe())
	}
}

func (s *sim) halted() bool {
	for _, p := range s.procs {
		if p.state.Phase != core.Stopped {
			return false
		}
	}
	return true
}

// Chance, in n of m cases.
func (s *sim) chance(n, m int) bool { return s.rng.IntN(m) < n }

// dur draws a duration from lo up to, not including, hi.
func (s *sim) dur(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(s.rng.Int64N(int64(hi-lo)))
}

// skewed draws a duration up to most: mostly short, now and then long.
func (s *sim) skewed(most time.Duration) time.Duration {
	return s.dur(0, most>>(2*s.rng.IntN(4)))
}

func pick[T any](s *sim, of []T) T { return of[s.rng.IntN(len(of))] }

func (s *sim) id() int { s.ids++; return s.ids }

// twig is a new branch of descent.
func (s *sim) twig() string { s.twigs++; return string(rune(' ' + s.twigs)) }

func (s *sim) tracing() bool { return s.out != nil }

func (s *sim) trace(format string, args ...any) {
	s.out(fmt.Sprintf("%12v  ", s.now.Round(time.Microsecond)) + fmt.Sprintf(format, args...))
}

func (s *sim) describe() string {
	text := ""
	for _, p := range s.procs {
		text += fmt.Sprintf("%s is %v (pending %q, drawing %v, job %v); ", p, p.state.Phase, p.state.Pending, p.state.Drawing, p.state.Job)
	}
	return fmt.Sprintf("%srow token %d of %s, released %v, %v left", text, s.store.row.Token, s.store.row.TermID, s.store.row.Released, s.store.row.Expires-s.store.clock(s.now).Mono)
}
