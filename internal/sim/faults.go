package sim

import (
	"time"

	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// fault is something that goes wrong, or that somebody does, at a random
// moment. A run has a random set of them.
type fault struct {
	name string
	do   func(*sim)
}

const procsMax = 7

var allFaults = []fault{
	{"stop a process, its clocks run on", func(s *sim) { s.hold(s.anyone(), func(*clock) {}) }},
	{"stop a process and its clocks", func(s *sim) { s.hold(s.anyone(), func(c *clock) { c.still = true }) }},
	{"suspend a process", func(s *sim) { s.hold(s.anyone(), func(c *clock) { c.asleep = true }) }},
	{"step a wall clock", func(s *sim) {
		p := s.anyone()
		p.clock.settle(s.now)
		p.clock.wall += s.skewed(4*s.cfg.TTL) * time.Duration(pick(s, []int{-1, 1}))
		if s.chance(1, 4) {
			p.clock.wall += time.Hour * time.Duration(pick(s, []int{-1, 1}))
		}
	}},
	{"crash a process", func(s *sim) { s.crash(s.anyone()) }},
	{"cut a process off", func(s *sim) {
		p := s.anyone()
		p.cut = true
		s.after(s.skewed(2*s.cfg.TTL), event{p: p, fn: func(p *proc) { p.cut = false }})
	}},
	{"lose, delay and repeat messages", func(s *sim) {
		s.net = network{delay: s.cfg.TTL / 300, lose: s.rng.IntN(40), slow: s.rng.IntN(30), duplicate: s.rng.IntN(40)}
	}},
	{"take the store down", func(s *sim) {
		s.store.down, s.store.refuses = true, s.chance(1, 2)
		s.after(s.skewed(2*s.cfg.TTL), event{fn: func(*proc) { s.store.down = false }})
	}},
	{"let the store refuse everything", func(s *sim) {
		s.store.sick = pick(s, sicknesses)
		s.after(s.skewed(2*s.cfg.TTL), event{fn: func(*proc) { s.store.sick = nil }})
	}},
	{"roll the store back", func(s *sim) {
		// Mostly a fail-over that loses the last writes, now and then a backup.
		saved := s.store.saved
		if len(saved) == 0 {
			return
		}
		back := 1 + s.rng.IntN(min(4, len(saved)))
		if s.chance(1, 8) {
			back = 1 + s.rng.IntN(len(saved))
		}
		to := saved[len(saved)-back]
		s.store.saved = saved[:len(saved)-back]
		s.marks.hit(MarkRolledBack)
		if !to.row.Exists() {
			s.marks.hit(MarkRecordLost)
		}
		s.forget(to.row, to.answers)
	}},
	{"remove the record", func(s *sim) {
		if s.store.row.Exists() && s.chance(1, 4) {
			s.store.saved = nil
			s.marks.hit(MarkRemoved)
			s.forget(row.Row{}, 0)
		}
	}},
	{"lose the resource's last writes", func(s *sim) {
		saved := s.res.saved
		if len(saved) == 0 {
			return
		}
		back := 1 + s.rng.IntN(min(3, len(saved)))
		to := saved[len(saved)-back]
		spoilt := max(s.ghost.resource.spoilt, s.ghost.resource.accepted)
		s.res, s.ghost.resource = resource{mark: to.mark, lanes: to.lanes, saved: saved[:len(saved)-back]}, to.ghost
		s.ghost.resource.spoilt = spoilt
		s.marks.hit(MarkResourceRolledBack)
	}},
	{"evict", func(s *sim) {
		before, now := s.store.row, s.store.clock(s.now)
		e := store.Eviction{Name: election, Reason: "sim", Now: s.fencedOnly && s.chance(1, 2)}
		after, err := s.rules.Evict(before, e, now)
		if err != nil {
			return
		}
		s.marks.hit(MarkEvicted)
		s.keep(after)
		if e.Now {
			s.ghost.ousted[after.TermID] = true
		}
		s.hint(before, after, now)
	}},
	{"copy a process", func(s *sim) { s.copyNow(s.anyone()) }},
	{"copy a process between drawing and sending", func(s *sim) { s.anyone().trap = s.copyNow }},
	{"stop a process between drawing and sending", func(s *sim) {
		still := s.chance(1, 2)
		s.anyone().trap = func(p *proc) { s.hold(p, func(c *clock) { c.still = still }) }
	}},
	{"save a process and restore it later", func(s *sim) {
		if s.image == nil || s.chance(1, 3) {
			im := s.takeImage(s.anyone(), s.chance(1, 2))
			s.image = &im
			return
		}
		if len(s.procs) >= procsMax {
			return
		}
		s.marks.hit(MarkRestored)
		s.copy(s.image)
		if s.chance(1, 3) {
			s.crash(s.anyone())
		}
	}},
	{"ask for what a user may ask for", func(s *sim) {
		p := s.anyone()
		ev := pick(s, []core.Event{
			core.Yield{},
			core.Confirm{},
			core.Round{},
			core.Stop{},
			core.Wake{},
			core.Contend{},
			core.Revoke{Cause: core.ErrStalled},
			core.Revoke{Cause: core.ErrDisrupted},
			core.Hint{Hint: store.Hint{Kind: store.HintVacant}},
			core.Hint{Hint: store.Hint{Kind: store.HintRenewed, Remaining: s.skewed(4 * s.cfg.TTL)}},
		})
		s.later(p, shell, 0, func(p *proc) { s.step(p, ev) })
		if _, ok := ev.(core.Stop); ok {
			s.contend(p, s.skewed(4*s.cfg.TTL))
		}
	}},
	{"fire timers late", func(s *sim) { p := s.anyone(); p.sloppy = !p.sloppy }},
}

func (s *sim) nextFault() {
	if s.calm {
		return
	}
	// Troubles seldom come alone.
	s.after(s.dur(0, s.cfg.TTL>>pick(s, []int{0, 0, 4})), event{fn: func(*proc) { s.nextFault() }})
	if len(s.procs) == 0 {
		return
	}
	f := pick(s, s.faults)
	if s.tracing() {
		s.trace("FAULT: %s", f.name)
	}
	f.do(s)
}

// anyone picks a process: mostly one that leads, since that is where it hurts.
func (s *sim) anyone() *proc {
	if s.chance(3, 4) {
		var open []*proc
		for _, p := range s.procs {
			if p.open {
				open = append(open, p)
			}
		}
		if len(open) > 0 {
			return pick(s, open)
		}
	}
	return pick(s, s.procs)
}

// hold stops a process for a while.
func (s *sim) hold(p *proc, bend func(*clock)) {
	if p.frozen {
		return
	}
	p.clock.settle(s.now)
	bend(&p.clock)
	p.frozen = true
	s.after(s.skewed(4*s.cfg.TTL), event{p: p, fn: func(p *proc) {
		if !p.dead && p.frozen {
			s.thaw(p)
			s.notice(p)
		}
	}})
}

// crash ends a process with its job. Another starts in its place.
func (s *sim) crash(p *proc) {
	s.kill(p)
	s.after(s.skewed(2*s.cfg.TTL), event{fn: func(*proc) {
		if !s.calm {
			s.spawn()
		}
	}})
}

func (s *sim) copyNow(p *proc) {
	if len(s.procs) < procsMax && !s.calm {
		im := s.takeImage(p, s.chance(1, 2))
		s.copy(&im)
	}
}

// copy starts a copy, and perhaps lets it or its platform see that it is one.
func (s *sim) copy(im *image) {
	c := s.start(im)
	s.marks.hit(MarkCopied)
	if im.proc.copied {
		s.marks.hit(MarkCopyOfCopy)
	}
	c.copied, c.cut = true, false
	if s.chance(1, 3) {
		// The platform sets its date right.
		c.clock.wall += s.now - im.at
	}
	if c.frozen {
		s.thaw(c)
	}
	s.notice(c)
}

// notice lets a detector of disruptions do its work, if there is one.
func (s *sim) notice(p *proc) {
	if s.chance(1, 4) {
		s.later(p, shell, s.dur(0, s.cfg.Renew), func(p *proc) { s.step(p, core.Revoke{Cause: core.ErrDisrupted}) })
	}
}

// becomeCalm ends all faults.
func (s *sim) becomeCalm() {
	s.calm = true
	s.net = network{delay: s.cfg.TTL / 300}
	s.store.down, s.store.sick = false, nil
	s.image = nil
	for _, p := range s.procs {
		p.cut, p.trap = false, nil
		if p.frozen {
			s.thaw(p)
		}
	}
	s.spawn()
}
