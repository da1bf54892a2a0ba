// Package core is the state machine of an election: what a candidate does about
// every answer, every passing of time and every sign of trouble.
//
// It is pure: no clock, no goroutine, no I/O, no randomness of its own.
// [State.Step] takes a reading of the clocks and an event and returns the next
// state and what to do. A State is a plain value: to copy it is to clone the
// process, which is what the simulator does. The shell around it (the Elector)
// owns goroutines, clocks, contexts and the store.
//
//	waiting ── ask ──> acquiring ── granted ──> leading ── job over, or told to stop ──> draining ──> releasing
//	   ^                  │ held, failed           │ lost                                   │ lost        │
//	   └──────────────────┴────────────────────────┴──> draining, until the job returned ───┴─────────────┘
//
// and stopped, once nobody wants to contend any more.
package core

import (
	"cmp"
	"errors"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Why a term ended. The causes that a store answers are the store's own errors.
var (
	ErrDisrupted  = errors.New("tenure: this process was paused, restored, forked or copied")
	ErrStalled    = errors.New("tenure: the job made no progress")
	ErrFenced     = errors.New("tenure: a resource refused the term")
	ErrRecordGone = errors.New("tenure: the record was removed from the store")
	ErrClosed     = errors.New("tenure: the term was given up")
	ErrPanicked   = errors.New("tenure: the store client panicked")
)

// Phase is where a candidate stands.
type Phase int

// The phases. Draining covers all the time from the wish to stop, or the loss,
// until the job has returned.
const (
	Idle Phase = iota
	Waiting
	Acquiring
	GivingBack // an acquire whose outcome stayed unknown is given back
	Leading
	Draining
	Releasing
	Stopped
)

var phaseNames = [...]string{"idle", "waiting", "acquiring", "giving back", "leading", "draining", "releasing", "stopped"}

func (p Phase) String() string { return phaseNames[p] }

// State is all that a candidate knows. It is a plain value.
type State struct {
	Cfg   Config
	Phase Phase
	Want  bool   // contend again after this
	Once  bool   // lead one term, then stop
	Quit  bool   // told to stop: what is under way is cut short
	Seed  uint64 // of the jitter; moves with every use

	AskAt   time.Duration // Waiting: when to ask, by Mono
	AskedAt time.Duration // when it last asked
	RestTo  time.Duration // no ask before this, whatever is hinted
	Fails   int           // failed tries in a row, of the request at hand
	Rebuffs int           // asks in a row that the store could not or would not answer

	// The request at hand. The attempt and the time of its drawing stay the same
	// through every retry; a copy of the process copies them.
	Drawing bool          // an attempt was asked for
	Pending store.Attempt // drawn and not yet answered
	DrawnAt Reading
	RetryAt time.Duration // when to send again, by Mono
	Flying  bool          // a call is out whose end the shell has not reported
	Unsure  bool          // an earlier try may have been carried out
	Hinted  bool          // Acquiring: a sign of a vacancy came since the attempt was drawn
	Until   time.Duration // GivingBack, Releasing: when to give up, by Mono
	Shared  store.Attempt // dropped, since a copy of this process may lead by it

	// The term.
	Lease    store.Lease
	Anchor   Reading       // when the last answered attempt was drawn: what ends the term counts from here
	Began    time.Duration // by Mono
	Job      bool          // it was started and has not returned
	Lost     bool          // the term is over although its job may not be
	Overdue  bool          // the job is still there after the deadline, and that was said
	Cause    error         // why it was lost or given up
	Trouble  error         // what the last failed renewal said
	RenewNow bool          // somebody wants a renewal without delay
}

// New returns the state of a candidate that does not contend yet. seed feeds
// the jitter; any number will do, two candidates should not share one.
func New(cfg Config, seed uint64) State {
	return State{Cfg: cfg, Seed: seed}
}

// Valid reports whether a term is held, as far as the clocks ran. It is what
// the shell's Term.Err computes at every call.
func (s State) Valid(now Reading) bool {
	return s.Alive() && now.Since(s.Anchor) < s.Cfg.StepDown
}

// Alive reports whether a term is held and was not lost, whatever the time.
func (s State) Alive() bool {
	return (s.Phase == Leading || s.Phase == Draining) && !s.Lost
}

// Step is what the candidate does about ev, now. Actions are to be carried out
// in their order: a loss is published before anything else is done about it.
func (s State) Step(now Reading, ev Event) (State, []Action) {
	m := machine{State: s, now: now}
	if m.Alive() && now.Since(m.Anchor) >= m.Cfg.StepDown {
		m.lose(Expiry(m.Trouble), m.Trouble)
	}
	m.on(ev)
	m.tick()
	return m.State, m.acts
}

// Expiry is the cause to name when the step-down time has passed after
// renewals that failed with trouble, or with no answer at all.
func Expiry(trouble error) error {
	if errors.Is(trouble, store.ErrDenied) {
		return store.ErrDenied
	}
	return store.ErrExpired
}

// Next returns how long the shell may wait before it must Step again although
// nothing happened. ok is false if only an event can change anything.
func (s State) Next(now Reading) (d time.Duration, ok bool) {
	at := func(t time.Duration) {
		if w := max(t-now.Mono, 0); !ok || w < d {
			d, ok = w, true
		}
	}
	after := func(limit time.Duration) { at(now.Mono + limit - now.Since(s.Anchor)) }
	switch s.Phase {
	case Waiting:
		at(s.AskAt)
	case Acquiring, GivingBack, Releasing:
		if !s.Drawing {
			at(s.RetryAt)
		}
		if s.Phase != Acquiring {
			at(s.Until)
		}
	case Leading, Draining:
		if s.Lost {
			if s.Job && !s.Overdue {
				after(s.Cfg.Deadline())
			}
			break
		}
		after(s.Cfg.StepDown)
		switch {
		case s.Drawing:
		case s.Pending != "":
			at(s.RetryAt)
		default:
			after(s.Cfg.Renew)
		}
		if s.Phase == Draining && !s.Job {
			at(s.Began + s.Cfg.MinHold)
		}
	}
	return d, ok
}

type machine struct {
	State
	now  Reading
	acts []Action
}

func (m *machine) do(a Action) { m.acts = append(m.acts, a) }

func (m *machine) on(ev Event) {
	switch ev := ev.(type) {
	case Contend:
		if m.Phase == Idle || m.Phase == Stopped {
			m.Want, m.Once, m.Quit = true, ev.Once, false
			m.Phase, m.AskAt, m.RestTo, m.Rebuffs = Waiting, m.now.Mono, m.now.Mono, 0
		}
	case Wake:
	case Drawn:
		m.drawn(ev.Attempt)
	case Reply:
		m.reply(ev)
	case Hint:
		m.hint(ev.Hint)
	case Round:
		// Less than half an interval, so that of two groups of terms that are out of
		// step one always takes the other along, whatever lies between them.
		if m.Alive() && m.idle() && m.now.Since(m.Anchor) >= m.Cfg.Renew/3 {
			m.RenewNow = true
		}
	case Confirm:
		m.RenewNow = true
	case JobDone:
		m.jobDone()
	case Yield:
		m.drain()
	case Stop:
		m.stop()
	case Revoke:
		m.revoke(ev)
	}
}

// idle reports that no request is at hand.
func (m *machine) idle() bool { return m.Pending == "" && !m.Drawing }

// tick does what the time demands.
func (m *machine) tick() {
	switch m.Phase {
	case Waiting:
		if m.now.Mono >= m.AskAt {
			m.Phase, m.Drawing, m.Fails = Acquiring, true, 0
			m.do(Draw{})
		}
	case Acquiring:
		if m.Pending == "" || m.now.Mono < m.RetryAt {
			break
		}
		if m.now.Since(m.DrawnAt) >= m.Cfg.StepDown || !m.Want {
			m.giveBack()
			break
		}
		if m.Flying {
			m.Unsure = true
			m.do(AskFailed{Err: errNoAnswer})
		}
		m.send(Ask{Attempt: m.Pending})
	case GivingBack:
		if m.now.Mono >= m.Until {
			m.rest(m.Cfg.Rejoin)
		} else if m.now.Mono >= m.RetryAt {
			m.send(Abandon{Attempt: m.Pending})
		}
	case Leading, Draining:
		m.tickTerm()
	case Releasing:
		if m.now.Mono >= m.Until {
			m.over(false, m.Trouble)
		} else if m.now.Mono >= m.RetryAt {
			m.send(Release{Lease: m.Lease, Attempt: m.Pending})
		}
	}
}

func (m *machine) tickTerm() {
	if m.Lost {
		if m.Job && !m.Overdue && m.now.Since(m.Anchor) >= m.Cfg.Deadline() {
			m.Overdue = true
			m.do(Overdue{Lease: m.Lease})
		}
		return
	}
	if m.Phase == Draining && !m.Job {
		switch {
		case m.now.Mono >= m.Began+m.Cfg.MinHold:
			m.release()
			return
		case m.Quit:
			// Left to expire: a release would cut the minimum hold short.
			m.close()
			m.over(false, nil)
			return
		}
	}
	switch {
	case m.Drawing:
	case m.Pending != "":
		if m.now.Mono >= m.RetryAt {
			if m.Flying {
				m.Trouble = errNoAnswer
				m.do(RenewFailed{Err: errNoAnswer, Left: m.Cfg.StepDown - m.now.Since(m.Anchor)})
			}
			m.send(Renew{Lease: m.Lease, Attempt: m.Pending})
		}
	case m.RenewNow || m.now.Since(m.Anchor) >= m.Cfg.Renew:
		m.RenewNow, m.Drawing = false, true
		m.do(Draw{})
	}
}

func (m *machine) drawn(a store.Attempt) {
	if !m.Drawing {
		return
	}
	m.Drawing = false
	if m.Phase != Acquiring && !m.Alive() {
		return // lost meanwhile; the attempt was never sent
	}
	// RetryAt lies in the past, so the tick that follows sends it.
	m.Pending, m.DrawnAt, m.RetryAt, m.Fails, m.Flying, m.Unsure, m.Hinted = a, m.now, m.now.Mono, 0, false, false, false
}

// send sends a request, or sends it again. Without a reply in time it is sent
// once more; the shell need not report anything for that.
func (m *machine) send(a Action) {
	m.RetryAt, m.Flying = m.now.Mono+m.Cfg.Timeout, true
	if m.Phase == Acquiring {
		m.AskedAt = m.now.Mono
	}
	m.do(a)
}

// retryLater puts off the next try: the longer the more tries have failed, but
// so little that a store which is back a request's time before step-down still
// gets one.
func (m *machine) retryLater() {
	m.Fails++
	wait := m.Cfg.Timeout >> max(5-m.Fails, 2)
	m.RetryAt = m.now.Mono + m.jitter(wait/2) + wait/2
}

func (m *machine) reply(r Reply) {
	if r.Op == OpAcquire && r.Err == nil && r.Attempt != m.Lease.TermID && r.Attempt != m.Shared && (r.Attempt != m.Pending || m.Phase != Acquiring) {
		m.do(Abandon{Attempt: r.Attempt}) // granted after it was given up
		return
	}
	at := m.Pending
	if r.Op == OpRelease {
		at = m.Lease.TermID
	}
	if at == "" || r.Attempt != at {
		return // of a request that is settled
	}
	m.Flying = false
	switch {
	case m.Phase == Acquiring && r.Op == OpAcquire:
		m.replyAcquire(r)
	case m.Phase == GivingBack && r.Op == OpAbandon:
		if r.Err == nil || !store.OutcomeUnknown(r.Err) && !passing(r.Err) {
			m.rest(m.Cfg.Rejoin)
		} else {
			m.retryLater()
		}
	case m.Alive() && r.Op == OpRenew:
		m.replyRenew(r)
	case m.Phase == Releasing && r.Op == OpRelease:
		m.replyRelease(r)
	}
}

// passing reports whether a refusal may go away by itself, so that another try
// within the term's time makes sense.
func passing(err error) bool {
	return errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrUnreachable) || errors.Is(err, store.ErrBusy) || errors.Is(err, store.ErrReadOnly)
}

func (m *machine) replyAcquire(r Reply) {
	err := r.Err
	if err == nil {
		err = m.sane(r.Lease)
	}
	var held *store.HeldError
	switch {
	case err == nil && (m.now.Since(m.DrawnAt) >= m.Cfg.StepDown || !m.Want):
		m.giveBack()
	case err == nil:
		m.Phase, m.Lease, m.Anchor, m.Began = Leading, r.Lease, m.DrawnAt, m.now.Mono
		m.Pending, m.Fails, m.Rebuffs, m.Job, m.Lost, m.Overdue, m.Cause, m.Trouble, m.RenewNow = "", 0, 0, true, false, false, nil, nil, false
		m.do(Begin{Lease: m.Lease, Anchor: m.Anchor})
	case errors.Is(err, errInsane):
		m.do(AskFailed{Err: err})
		m.giveBack()
	case errors.As(err, &held):
		m.Rebuffs = 0
		m.do(Held{Err: held})
		hinted := m.Hinted
		m.waitFor(held.Remaining)
		if hinted {
			m.askSoon() // this answer may be older than the vacancy
		}
	case errors.Is(err, store.ErrSpent):
		m.wait(m.jitter(m.spread()))
	case m.Unsure, store.OutcomeUnknown(err):
		// A refusal now says nothing of an earlier try that may have been granted.
		m.Unsure = true
		if !m.Want {
			m.giveBack()
			break
		}
		m.do(AskFailed{Err: err})
		m.retryLater()
	default:
		if m.Want {
			m.do(AskFailed{Err: err})
		}
		m.Rebuffs = min(m.Rebuffs+1, 4)
		pause := m.Cfg.Renew >> (4 - m.Rebuffs)
		m.wait(pause/2 + m.jitter(pause/2))
	}
}

var errNoAnswer = errors.New("tenure: the store has not answered in time")

var errInsane = errors.New("tenure: the store's answer does not fit the request")

// sane checks a grant against the request.
func (m *machine) sane(l store.Lease) error {
	if l.Attempt != m.Pending || l.TermID != m.Pending || !l.Token.Valid() || l.TTL < m.Cfg.TTL || l.Renewal != 0 {
		return errInsane
	}
	return nil
}

func (m *machine) replyRenew(r Reply) {
	if r.Err == nil {
		l := r.Lease
		if l.Attempt != m.Pending || l.TermID != m.Lease.TermID || l.Token != m.Lease.Token || l.Renewal != m.Lease.Renewal+1 || l.TTL < m.Cfg.TTL {
			m.troubled(errInsane)
			return
		}
		m.Lease, m.Anchor, m.Pending, m.Fails, m.Trouble = l, m.DrawnAt, "", 0, nil
		m.do(Extend{Lease: l, Anchor: m.Anchor})
		return
	}
	var receipt *store.ReceiptError
	switch err := r.Err; {
	case errors.Is(err, store.ErrCloned):
		m.lose(store.ErrCloned, err)
	case errors.As(err, &receipt) && receipt.Current > receipt.Presented:
		m.lose(store.ErrCloned, err)
	case errors.Is(err, store.ErrReceipt), errors.Is(err, store.ErrNoRecord):
		m.lose(ErrRecordGone, err)
	case errors.Is(err, store.ErrSuperseded), errors.Is(err, store.ErrReleased):
		m.lose(store.ErrSuperseded, err)
	case errors.Is(err, store.ErrExpired):
		m.lose(store.ErrExpired, err)
	case errors.Is(err, store.ErrEvicted):
		m.lose(store.ErrEvicted, err)
	case errors.Is(err, ErrPanicked):
		m.lose(ErrPanicked, err)
	default:
		m.troubled(err)
	}
}

// troubled notes a renewal without a clear answer. Unknown is not yes: the same
// attempt is sent again until step-down.
func (m *machine) troubled(err error) {
	m.Trouble = err
	m.do(RenewFailed{Err: err, Left: m.Cfg.StepDown - m.now.Since(m.Anchor)})
	m.retryLater()
}

func (m *machine) hint(h store.Hint) {
	switch {
	case m.Phase == Acquiring:
		m.Hinted = h.Kind != store.HintRenewed
	case m.Phase != Waiting:
	case h.Kind == store.HintRenewed:
		m.waitFor(h.Remaining)
	default:
		m.askSoon()
	}
}

// wait waits for another's lease, or for the store, and asks at the latest a
// Poll after it last asked, but not as fast as the store answers.
func (m *machine) wait(pause time.Duration) {
	m.Phase, m.Pending = Waiting, ""
	m.AskAt = max(min(m.now.Mono+pause, m.AskedAt+m.Cfg.Poll), m.earliest())
	m.stopIfUnwanted()
}

// waitFor waits for a lease that stands for remaining, as somebody says.
func (m *machine) waitFor(remaining time.Duration) {
	m.wait(max(0, min(remaining, m.Cfg.Poll)) + m.jitter(m.spread()))
}

// askSoon follows a sign of a vacancy.
func (m *machine) askSoon() {
	m.AskAt = min(m.AskAt, max(m.now.Mono+m.jitter(m.spread()/2), m.earliest()))
}

// earliest is when the next ask may go out, whatever the store says and hints.
func (m *machine) earliest() time.Duration {
	return max(m.AskedAt+min(m.Cfg.Timeout/100, askGapMax), m.RestTo)
}

// rest is wait for a candidate that has just led, or tried to.
func (m *machine) rest(pause time.Duration) {
	m.Phase, m.Pending, m.Drawing, m.Flying = Waiting, "", false, false
	m.AskAt = m.now.Mono + pause
	if pause > 0 {
		m.AskAt += m.jitter(pause / 8)
	}
	m.RestTo = m.AskAt
	m.stopIfUnwanted()
}

func (m *machine) stopIfUnwanted() {
	if !m.Want {
		m.Phase = Stopped
		m.do(Halt{})
	}
}

// giveBack gives back an acquire whose outcome is unknown or whose grant came
// too late.
func (m *machine) giveBack() {
	m.Phase, m.Fails = GivingBack, 0
	m.RetryAt = m.now.Mono
	m.Until = m.now.Mono + 3*m.Cfg.Timeout
}

// lose ends the term: published first, then acted on.
func (m *machine) lose(cause, err error) {
	m.Lost, m.Cause, m.Trouble = true, cause, nil
	m.do(End{Lease: m.Lease, Cause: cause, Err: err})
	m.Phase = Draining
	if !m.Job {
		m.settle()
	}
}

// Acknowledges reports whether a lost term is released once its job has
// returned. Where a copy of this process may exist it must not be: a release by
// one copy would free the lease under the other.
func Acknowledges(cause error) bool {
	return errors.Is(cause, store.ErrEvicted) || errors.Is(cause, ErrStalled)
}

// settle follows the end of a lost term's job. After the deadline the lease is
// left to run out.
func (m *machine) settle() {
	if Acknowledges(m.Cause) && m.now.Since(m.Anchor) < m.Cfg.Deadline() {
		m.startRelease()
		return
	}
	m.over(false, nil)
}

func (m *machine) jobDone() {
	if !m.Job {
		return
	}
	m.Job = false
	switch {
	case m.Lost:
		m.settle()
	case m.Phase == Leading:
		m.Phase = Draining // tickTerm releases, at once or after the minimum hold
	}
}

// revoke ends a term for a reason the store does not know. Proof of a disruption
// drops an attempt too: a copy may share it. It is not given back, since that
// would free the lease under a copy that leads by it.
func (m *machine) revoke(r Revoke) {
	switch {
	case m.Alive():
		m.lose(r.Cause, r.Err)
	case !errors.Is(r.Cause, ErrDisrupted):
	case m.Phase == Acquiring:
		m.Shared = cmp.Or(m.Pending, m.Shared)
		m.rest(0)
	case m.Phase == GivingBack:
		m.Shared = m.Pending
		m.rest(m.Cfg.Rejoin)
	}
}

func (m *machine) drain() {
	if m.Phase == Leading {
		m.Phase = Draining
		m.do(Drain{})
	}
}

func (m *machine) stop() {
	m.Want, m.Quit = false, true
	switch m.Phase {
	case Idle, Waiting:
		m.rest(0)
	case Acquiring:
		// Wait for the call that is out, so that what it may have got is not given
		// back before it arrives.
		if m.Drawing {
			m.Drawing = false
			m.rest(0)
		} else if m.Flying {
			m.do(Cancel{})
		} else {
			m.giveBack()
		}
	case Leading:
		m.drain()
	}
}

// release ends a term whose job has returned, then frees the election.
func (m *machine) release() {
	m.close()
	m.startRelease()
}

func (m *machine) close() {
	m.Lost, m.Cause = true, ErrClosed
	m.do(End{Lease: m.Lease, Cause: ErrClosed})
}

func (m *machine) startRelease() {
	m.Phase, m.Drawing, m.Fails, m.Trouble = Releasing, false, 0, nil
	m.RetryAt = m.now.Mono
	left := m.Cfg.TTL - m.now.Since(m.Anchor)
	m.Until = m.now.Mono + min(3*m.Cfg.Timeout, max(left, 0))
}

func (m *machine) replyRelease(r Reply) {
	switch {
	case r.Err == nil:
		m.over(true, nil)
	case store.OutcomeUnknown(r.Err) || passing(r.Err):
		m.Trouble = r.Err
		m.retryLater()
	default:
		m.over(false, r.Err)
	}
}

// over ends the story of a term.
func (m *machine) over(released bool, err error) {
	m.do(Over{Lease: m.Lease, Cause: m.Cause, Released: released, Err: err})
	pause := time.Duration(0)
	switch {
	case errors.Is(m.Cause, store.ErrEvicted), errors.Is(m.Cause, ErrStalled):
		pause = m.Cfg.TTL // the point was that somebody else takes over
	case errors.Is(m.Cause, ErrClosed), errors.Is(m.Cause, ErrFenced):
		pause = m.Cfg.Rejoin
	}
	if m.Once {
		m.Want = false
	}
	m.rest(pause)
}

// spread is the width of the jitter that keeps waiters from asking all at once.
func (m *machine) spread() time.Duration { return min(m.Cfg.TTL/300, 50*time.Millisecond) }

// jitter returns a number from 0 up to, not including, width.
func (m *machine) jitter(width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	// splitmix64
	m.Seed += 0x9e3779b97f4a7c15
	z := m.Seed
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return time.Duration(z % uint64(width))
}
