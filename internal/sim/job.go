package sim

import (
	"strconv"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

const (
	resourceName = "r"
	lanes        = 2
)

var laneNames = [lanes]string{"", "b"}

// job is what a process does while it leads: it enters the resource, then
// writes. It is a plain value.
type job struct {
	run     int // tells this run of it from older ones; 0: none
	told    bool
	deaf    bool // returns only when it is killed
	token   fence.Token
	term    store.Attempt
	entered bool
	next    [lanes]int64
	writing [lanes]fence.Stamp // whose outcome is not known yet; Position 0: none
}

// resource is what the jobs write to: a fence, and nothing behind it.
type resource struct {
	mark  fence.Mark
	lanes [lanes]fence.LaneMark
	saved []savedResource
}

// savedResource is a state of the resource to which it may be rolled back.
type savedResource struct {
	mark  fence.Mark
	lanes [lanes]fence.LaneMark
	ghost resourceGhost
}

// save keeps the last few states.
func (r *resource) save(g resourceGhost) {
	const most = 8
	if len(r.saved) == most {
		r.saved = append(r.saved[:0], r.saved[1:]...)
	}
	r.saved = append(r.saved, savedResource{r.mark, r.lanes, g})
}

func (s *sim) startJob(p *proc, l store.Lease) {
	p.job = job{
		run: s.id(), token: l.Token, term: l.TermID, next: [lanes]int64{1, 1},
		deaf: s.chance(1, 10), entered: s.chance(1, 6),
	}
	s.inJob(p, s.dur(0, time.Millisecond), s.work)
	if !s.calm && s.chance(1, 4) {
		s.inJob(p, s.skewed(6*s.cfg.TTL), s.returnJob)
	}
}

// inJob makes a step of the job that is running now.
func (s *sim) inJob(p *proc, d time.Duration, fn func(*proc)) {
	run := p.job.run
	s.later(p, work, d, func(p *proc) {
		if p.job.run == run {
			fn(p)
		}
	})
}

// tellJob asks the job to return. It takes its time.
func (s *sim) tellJob(p *proc) {
	if p.job.run == 0 || p.job.told {
		return
	}
	p.job.told = true
	if p.job.deaf {
		s.inJob(p, 3*s.cfg.TTL, s.returnJob)
		return
	}
	s.inJob(p, s.skewed(s.cfg.TTL), s.returnJob)
}

// killJob ends the job of a process that can kill it; others go on until they
// return.
func (s *sim) killJob(p *proc) {
	if s.chance(1, 2) {
		s.inJob(p, s.dur(0, time.Millisecond), s.returnJob)
	}
}

func (s *sim) returnJob(p *proc) {
	p.job = job{}
	if s.tracing() {
		s.trace("%s the job returns", p)
	}
	s.later(p, shell, s.dur(0, time.Millisecond), func(p *proc) { s.step(p, core.JobDone{}) })
}

// work is a round of the job: enter first, then a write in each lane.
func (s *sim) work(p *proc) {
	s.inJob(p, s.dur(s.cfg.TTL/10, s.cfg.TTL/2), s.work)
	if p.job.told && s.chance(3, 4) || !s.rules.Valid(p.state, s.look(p)) {
		return
	}
	stamp := fence.Stamp{Resource: resourceName, Token: p.job.token, TermID: string(p.job.term), Renewal: p.state.Lease.Renewal}
	switch {
	case !p.job.entered:
		s.write(p, stamp)
	case !s.chained:
		s.write(p, stamp)
	default:
		lane := s.rng.IntN(lanes)
		w := &p.job.writing[lane]
		if w.Position == 0 || s.rules.Hasty {
			stamp.Lane, stamp.Position, stamp.Digest = laneNames[lane], p.job.next[lane], "w"+strconv.Itoa(s.id())
			s.ghost.writtenBy[stamp.Digest] = p.descent
			p.job.next[lane]++
			*w = stamp
		}
		// Or the same write again: no next one before its outcome is known.
		w.Renewal = stamp.Renewal
		s.write(p, *w)
	}
}

// write sends a checked write to the resource. The process can be asleep for as
// long as you like before it leaves.
func (s *sim) write(p *proc, stamp fence.Stamp) {
	nap := s.dur(0, time.Millisecond)
	if !s.calm && s.chance(1, 20) {
		nap = s.skewed(3 * s.cfg.TTL)
	}
	s.later(p, work, nap, func(p *proc) {
		s.travel(p, outbound, func(p *proc) { s.arrive(p, stamp) })
	})
}

// arrive is the resource's side of a write, in one atomic step.
func (s *sim) arrive(p *proc, stamp fence.Stamp) {
	s.res.save(s.ghost.resource)
	var replayed bool
	var err error
	if stamp.Chained() {
		lane := laneOf(stamp)
		s.res.mark, s.res.lanes[lane], replayed, err = s.rules.Chain(s.res.mark, s.res.lanes[lane], stamp)
	} else {
		s.res.mark, err = s.rules.Check(s.res.mark, stamp)
	}
	if s.tracing() {
		s.trace("resource: %s's token %d renewal %d lane %q position %d %s: replayed %v, %v", p, stamp.Token, stamp.Renewal, stamp.Lane, stamp.Position, stamp.Digest, replayed, err)
	}
	s.watchResource(stamp, replayed, err)
	s.travel(p, inbound, func(p *proc) { s.written(p, stamp, err) })
}

func laneOf(stamp fence.Stamp) int {
	for i, name := range laneNames {
		if name == stamp.Lane {
			return i
		}
	}
	panic("sim: no such lane")
}

// written is the reply to a write.
func (s *sim) written(p *proc, stamp fence.Stamp, err error) {
	if p.job.run == 0 || p.job.term != store.Attempt(stamp.TermID) || p.job.token != stamp.Token {
		return
	}
	switch {
	case fence.Refused(err):
		s.step(p, core.Revoke{Cause: core.ErrFenced, Err: err})
	case !stamp.Chained():
		p.job.entered = true
	default:
		if w := &p.job.writing[laneOf(stamp)]; w.Digest == stamp.Digest {
			*w = fence.Stamp{}
		}
	}
}
