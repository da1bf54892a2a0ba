package fencetest_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/fence/fencetest"
)

// faulty is a fence with a place for a fault at each of its steps. The zero
// values of its functions stand for the right thing.
type faulty struct {
	mu     sync.Mutex
	marks  map[string]fence.Mark
	lanes  map[string]fence.LaneMark
	values map[string][]string
	fault
}

type fault struct {
	resource func(string) string                                     // folds a resource's name
	lane     func(resource, lane string) string                      // the key of a lane
	stamp    func(fence.Stamp) fence.Stamp                           // misreads a stamp
	enter    func(f *faulty, s fence.Stamp) error                    // in place of entering
	check    func(m fence.Mark, s fence.Stamp) (fence.Mark, error)   // in place of the monotone rule
	chain    func(fence.Mark, fence.LaneMark, fence.Stamp) chainNext // in place of the chained rule
	refuse   func(error) error                                       // changes a refusal
	last     func(f *faulty, resource string, l fence.LaneMark) fence.LaneMark

	openWrite  bool // a transaction does not keep others out
	separate   bool // the check and the write are two steps
	keepsUndo  bool // a roll-back leaves the lane as the write had set it
	leaksUndo  bool // a roll-back leaves the value
	undoEnters bool // a roll-back takes the resource's mark with it
	writesTwin bool // a refused write lands all the same
}

type chainNext struct {
	m        fence.Mark
	l        fence.LaneMark
	replayed bool
	err      error
}

func rightChain(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
	m, l, replayed, err := fence.CheckChain(m, l, s)
	return chainNext{m, l, replayed, err}
}

func newFaulty(what fault) *faulty {
	f := &faulty{fault: what, marks: map[string]fence.Mark{}, lanes: map[string]fence.LaneMark{}, values: map[string][]string{}}
	if f.resource == nil {
		f.resource = func(r string) string { return r }
	}
	if f.lane == nil {
		f.lane = func(resource, lane string) string { return resource + "\x00" + lane }
	}
	if f.stamp == nil {
		f.stamp = func(s fence.Stamp) fence.Stamp { return s }
	}
	if f.check == nil {
		f.check = fence.Mark.Check
	}
	if f.chain == nil {
		f.chain = rightChain
	}
	if f.refuse == nil {
		f.refuse = func(err error) error { return err }
	}
	return f
}

func (f *faulty) Enter(_ context.Context, s fence.Stamp) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.enter != nil {
		return f.enter(f, s)
	}
	return f.raise(s)
}

func (f *faulty) raise(s fence.Stamp) error {
	s = f.stamp(s)
	m, err := f.check(f.marks[f.resource(s.Resource)], s)
	if err != nil {
		return f.refuse(err)
	}
	f.marks[f.resource(s.Resource)] = m
	return nil
}

func (f *faulty) Write(_ context.Context, s fence.Stamp, value string) (bool, error) {
	return f.transaction(s, value, nil)
}

func (f *faulty) transaction(s fence.Stamp, value string, inside func() error) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s = f.stamp(s)
	resource := f.resource(s.Resource)
	key := f.lane(resource, s.Lane)
	mark, lane := f.marks[resource], f.lanes[key]

	next := chainNext{m: mark, l: lane}
	if s.Chained() {
		next = f.chain(mark, lane, s)
	} else {
		next.m, next.err = f.check(mark, s)
	}
	if f.separate {
		f.mu.Unlock()
		for range 100 {
			runtime.Gosched() // let the others do their check
		}
		f.mu.Lock()
	}
	if next.err != nil {
		if f.writesTwin {
			f.values[resource] = append(f.values[resource], value)
		}
		return false, f.refuse(next.err)
	}
	if next.replayed {
		return true, nil
	}
	if inside != nil {
		if f.openWrite {
			f.mu.Unlock()
		}
		err := inside()
		if f.openWrite {
			f.mu.Lock()
		}
		if err != nil {
			if f.keepsUndo && s.Chained() {
				f.lanes[key] = next.l
			}
			if f.leaksUndo {
				f.values[resource] = append(f.values[resource], value)
			}
			if f.undoEnters {
				delete(f.marks, resource)
			}
			return false, err
		}
	}
	f.marks[resource] = next.m
	if s.Chained() {
		f.lanes[key] = next.l
	}
	f.values[resource] = append(f.values[resource], value)
	return false, nil
}

func (f *faulty) Written(_ context.Context, resource string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.values[f.resource(resource)]), nil
}

func (f *faulty) Last(_ context.Context, resource, lane string) (fence.LaneMark, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lanes[f.lane(f.resource(resource), lane)]
	if f.last != nil {
		l = f.last(f, f.resource(resource), l)
	}
	return l, nil
}

func (f *faulty) harness() fencetest.Harness {
	return fencetest.Harness{
		Open: func(context.Context) (fencetest.Fence, func() error, error) { return f, nil, nil },
		Transaction: func(_ context.Context, _ fencetest.Fence, s fence.Stamp, value string, inside func() error) error {
			_, err := f.transaction(s, value, inside)
			return err
		},
	}
}

// knownFault is a fault and the case that must find it.
type knownFault struct {
	name  string
	found string
	fault fault
}

func knownFaults() []knownFault {
	float := func(n int64) int64 { return int64(float64(n)) }
	return []knownFault{
		{"no term may enter an untouched resource", "enter/untouched", fault{enter: func(f *faulty, s fence.Stamp) error {
			if f.marks[s.Resource].Token == 0 {
				return &fence.StaleError{}
			}
			return f.raise(s)
		}}},
		{"entering does nothing", "enter/raises", fault{enter: func(*faulty, fence.Stamp) error { return nil }}},
		{"entering raises the mark but refuses nobody", "enter/late", fault{enter: func(f *faulty, s fence.Stamp) error {
			_ = f.raise(s)
			return nil
		}}},
		{"a roll-back takes the mark back", "enter/rolled-back", fault{undoEnters: true}},
		{"entering does not wait for an open write", "enter/open-write", fault{openWrite: true}},
		{"entering takes the position", "enter/lane", fault{enter: func(f *faulty, s fence.Stamp) error {
			if s.Chained() {
				f.lanes[f.lane(s.Resource, s.Lane)] = fence.LaneMark{Token: s.Token, Position: s.Position, Digest: s.Digest}
			}
			return f.raise(s)
		}}},
		{"all resources share a mark", "enter/resources", fault{check: func() func(fence.Mark, fence.Stamp) (fence.Mark, error) {
			var only fence.Mark
			return func(_ fence.Mark, s fence.Stamp) (fence.Mark, error) {
				m, err := only.Check(s)
				only = m
				return m, err
			}
		}()}},
		{"a plain write does not raise the mark", "write/unentered", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			_, err := m.Check(s)
			return m, err
		}}},
		{"an equal token is refused", "write/leader", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			if s.Token == m.Token {
				return m, &fence.StaleError{}
			}
			return m.Check(s)
		}}},
		{"the check and the write are two steps", "write/overtaking", fault{separate: true}},
		{"the check and the write are two steps, for twins", "chain/twins-race", fault{separate: true}},
		{"term ids are not looked at", "write/fork", fault{stamp: func(s fence.Stamp) fence.Stamp { s.TermID = ""; return s }}},
		{"the last term id owns the token", "write/fork", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			if s.Token == m.Token {
				m.TermID = s.TermID
			}
			return m.Check(s)
		}}},
		{"a renewal behind is refused", "write/renewals", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			if s.Token == m.Token && s.TermID == m.TermID && s.Renewal < m.Renewal {
				return m, &fence.StaleError{}
			}
			return m.Check(s)
		}}},
		{"renewal numbers are not looked at", "write/renewals", fault{stamp: func(s fence.Stamp) fence.Stamp { s.Renewal = min(s.Renewal, 0); return s }}},
		{"a late writer lowers the renewal number", "write/renewals", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			next, err := m.Check(s)
			if err == nil && s.TermID == next.TermID {
				next.Renewal = s.Renewal
			}
			return next, err
		}}},
		{"renewal numbers outlive the term", "write/renewals", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			next, err := m.Check(s)
			if s.Renewal < m.Renewal-1 {
				return m, &fence.StaleError{}
			}
			return next, err
		}}},
		{"the token alone takes the token from its owner", "write/token-alone", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			next, err := m.Check(s)
			if err == nil && s.TermID == "" {
				next.TermID = ""
			}
			return next, err
		}}},
		{"the token alone is always let in", "write/token-alone", fault{check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			if s.TermID == "" && s.Token < m.Token {
				return m, nil
			}
			return m.Check(s)
		}}},
		{"the token alone owns the token", "write/token-alone", fault{stamp: func(s fence.Stamp) fence.Stamp {
			if s.TermID == "" {
				s.TermID = "none"
			}
			return s
		}}},
		{"tokens go through a floating-point number", "write/large-tokens", fault{stamp: func(s fence.Stamp) fence.Stamp {
			s.Token = fence.Token(float(int64(s.Token)))
			return s
		}}},
		{"renewal numbers go through a floating-point number", "write/large-tokens", fault{stamp: func(s fence.Stamp) fence.Stamp {
			s.Renewal = float(s.Renewal)
			return s
		}}},
		{"a roll-back keeps the position", "write/rolled-back", fault{keepsUndo: true}},
		{"a roll-back keeps the value", "write/rolled-back", fault{leaksUndo: true}},
		{"a refused write lands", "enter/raises", fault{writesTwin: true}},
		{"chained writes do not move the lane", "chain/order", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			next := rightChain(m, l, s)
			next.l = l
			return next
		}}},
		{"a replay is a fork", "chain/replay", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			if next := rightChain(m, l, s); !next.replayed {
				return next
			}
			return chainNext{m, l, false, &fence.ForkedError{}}
		}}},
		{"a replay is written again", "chain/replay", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			next := rightChain(m, l, s)
			next.replayed = false
			return next
		}}},
		{"a twin's write is a replay", "chain/twin", fault{stamp: func(s fence.Stamp) fence.Stamp {
			if s.Chained() && s.Digest != "" {
				s.Digest = "the same for all"
			}
			return s
		}}},
		{"a gap is passed", "chain/gap", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			next := rightChain(m, l, s)
			if errors.Is(next.err, fence.ErrGap) {
				next.err, next.l = nil, fence.LaneMark{Token: s.Token, Position: s.Position, Digest: s.Digest}
			}
			return next
		}}},
		{"an earlier position is a fork", "chain/earlier", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			next := rightChain(m, l, s)
			if l.Token == s.Token && s.Position < l.Position {
				next.err = &fence.ForkedError{}
			}
			return next
		}}},
		{"an earlier position is a replay", "chain/earlier", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			next := rightChain(m, l, s)
			if l.Token == s.Token && s.Position < l.Position {
				return chainNext{m, l, true, nil}
			}
			return next
		}}},
		{"a higher token goes on where the lower one was", "chain/successor", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			if l.Token != 0 && l.Token < s.Token {
				l.Token = s.Token
			}
			return rightChain(m, l, s)
		}}},
		{"entering forgets the predecessor's last write", "chain/successor", fault{last: func(f *faulty, resource string, l fence.LaneMark) fence.LaneMark {
			if f.marks[resource].Token > l.Token {
				return fence.LaneMark{}
			}
			return l
		}}},
		{"the chain is checked against its lane only", "chain/unentered", fault{chain: func(_ fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			return rightChain(fence.Mark{}, l, s)
		}}},
		{"a chained write does not raise the mark", "chain/unentered", fault{chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) chainNext {
			next := rightChain(m, l, s)
			next.m = m
			return next
		}}},
		{"all lanes of a resource are one", "chain/lanes", fault{lane: func(resource, _ string) string { return resource }}},
		{"a lane is one across resources", "chain/resources", fault{lane: func(_, lane string) string { return lane }}},
		{"resource and lane are joined by a colon", "chain/resources", fault{lane: func(resource, lane string) string { return resource + ":" + lane }}},
		{"resource and lane are joined by a slash", "chain/resources", fault{lane: func(resource, lane string) string { return resource + "/" + lane }}},
		{"resource and lane are joined by nothing", "chain/resources", fault{lane: func(resource, lane string) string { return resource + lane }}},
		{"names are folded to lower case", "input/names", fault{resource: strings.ToLower}},
		{"names are trimmed", "input/names", fault{resource: strings.TrimSpace}},
		{"names are cut at 128 bytes", "input/names", fault{resource: func(r string) string { return r[:min(len(r), 128)] }}},
		{"names are made ASCII", "input/names", fault{resource: func(r string) string {
			return strings.Map(func(c rune) rune {
				if c >= utf8.RuneSelf {
					return '?'
				}
				return c
			}, r)
		}}},
		{"term ids are cut at 32 bytes", "input/terms", fault{stamp: func(s fence.Stamp) fence.Stamp { s.TermID = s.TermID[:min(len(s.TermID), 32)]; return s }}},
		{"digests are cut at 64 bytes", "input/terms", fault{stamp: func(s fence.Stamp) fence.Stamp { s.Digest = s.Digest[:min(len(s.Digest), 64)]; return s }}},
		{"invalid stamps are mended", "input/invalid", fault{stamp: func(s fence.Stamp) fence.Stamp {
			s.Resource = strings.TrimRight(s.Resource, "\n\x00")
			return s
		}}},
		{"an invalid stamp is a refusal", "input/invalid", fault{refuse: func(err error) error {
			if errors.Is(err, fence.ErrInvalid) {
				return &fence.StaleError{}
			}
			return err
		}}},
		{"a refusal has no detail", "input/detail", fault{refuse: func(err error) error {
			for _, kind := range []error{fence.ErrStale, fence.ErrForked, fence.ErrGap} {
				if errors.Is(err, kind) {
					return kind
				}
			}
			return err
		}}},
	}
}
