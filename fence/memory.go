package fence

import (
	"context"
	"sync"
)

// Memory is a fence for resources inside this process: the marks and lanes live
// in memory and are lost with it. It is the reference for the fences of real
// stores. The zero Memory is ready to use, and safe for concurrent use.
type Memory struct {
	mu    sync.Mutex
	marks map[string]Mark
	lanes map[laneKey]LaneMark
}

type laneKey struct{ resource, lane string }

// Enter raises the resource's mark to s's and keeps it, whatever happens to
// later writes. It does not block for long and ignores ctx.
func (f *Memory) Enter(_ context.Context, s Stamp) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.marks[s.Resource].Check(s)
	if err != nil {
		return err
	}
	f.keep(s, m)
	return nil
}

// Do checks s and, if it is accepted, runs write while no other write to any
// resource of f can run. If write returns an error the marks stay as they were
// and Do returns that error. replayed is true, and write was not run, when s is
// the last chained write sent again.
//
// write must not call f.
func (f *Memory) Do(s Stamp, write func() error) (replayed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := laneKey{s.Resource, s.Lane}
	m, l := f.marks[s.Resource], f.lanes[key]
	if s.Chained() {
		m, l, replayed, err = CheckChain(m, l, s)
	} else {
		m, err = m.Check(s)
	}
	if err != nil {
		return false, err
	}
	if replayed {
		f.keep(s, m)
		return true, nil
	}
	if err := write(); err != nil {
		return false, err
	}
	f.keep(s, m)
	if s.Chained() {
		if f.lanes == nil {
			f.lanes = make(map[laneKey]LaneMark)
		}
		f.lanes[key] = l
	}
	return false, nil
}

// Last returns what the resource remembers of a lane: the position and digest
// of its last write. A new term reads it before it does a write again whose
// outcome its predecessor never learnt.
func (f *Memory) Last(_ context.Context, resource, lane string) (LaneMark, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lanes[laneKey{resource, lane}], nil
}

func (f *Memory) keep(s Stamp, m Mark) {
	if f.marks == nil {
		f.marks = make(map[string]Mark)
	}
	f.marks[s.Resource] = m
}
