package fencetest

import (
	"errors"
	"slices"
	"time"

	"github.com/tenure-go/tenure/fence"
)

var enterCases = []Case{
	{
		"enter/untouched",
		"A resource that nobody has touched yet must let the first term in, whatever its token, or no work ever begins.",
		func(e *env) {
			f, s := e.open(), fence.Stamp{Resource: e.resource("r"), Token: 41, TermID: "a", Renewal: 7}
			e.written(f, s.Resource)
			e.check(e.last(f, s.Resource, "") == fence.LaneMark{}, "an untouched lane has a last write")
			e.enter(f, s)
			e.enter(f, s) // a term may enter as often as it likes
			e.write(f, s, "v")
			e.written(f, s.Resource, "v")
		},
	},
	{
		"enter/raises",
		"A successor that only entered must stop its predecessor already: it reads before it writes, and what it read must stay true.",
		func(e *env) {
			old, successor := e.open(), e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8, TermID: "b"}
			e.enter(old, a)
			e.write(old, a, "a1")
			e.enter(successor, b)
			e.notWritten(old, a, fence.ErrStale, "a late write")
			e.notWritten(old, chained(a, "", 1, "a2"), fence.ErrStale, "a late chained write")
			e.write(successor, b, "b1")
			e.written(old, a.Resource, "a1", "b1")
		},
	},
	{
		"enter/late",
		"An old term that enters late must be told that it is late, or it works on until its first write.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8, TermID: "b"}
			e.enter(f, b)
			e.notEntered(f, a, fence.ErrStale, "a late entry")
			e.notEntered(f, fence.Stamp{Resource: b.Resource, Token: 7}, fence.ErrStale, "a late entry by the token alone")
			e.write(f, b, "b1")
		},
	},
	{
		"enter/rolled-back",
		"The mark of a term that entered must survive the roll-back of its first write, or its predecessor gets in again.",
		func(e *env) {
			e.transactional()
			old, successor := e.open(), e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8, TermID: "b"}
			e.enter(old, a)
			e.enter(successor, b)
			undo := errors.New("rolled back by the case")
			err := e.h.Transaction(e.ctx, successor, b, "b1", func() error { return undo })
			e.check(errors.Is(err, undo), "rolling back a write: want the error of inside, got: %v", err)
			e.notWritten(old, a, fence.ErrStale, "a late write after the successor's first one was rolled back")
			e.written(old, a.Resource)
		},
	},
	{
		"enter/open-write",
		"A term must not finish entering while a write of its predecessor is still open, or it reads data that the write then changes.",
		func(e *env) {
			e.transactional()
			old, successor := e.open(), e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8, TermID: "b"}
			e.enter(old, a)

			var seen []string // what the successor read, having entered
			entered := make(chan error, 1)
			err := e.h.Transaction(e.ctx, old, a, "a1", func() error {
				go func() {
					err := successor.Enter(e.ctx, b)
					if err == nil {
						seen, err = successor.Written(e.ctx, b.Resource)
					}
					entered <- err
				}()
				// A fence that is right waits for this transaction, which nobody can see;
				// one that is wrong is through long before.
				select {
				case err := <-entered:
					entered <- err
				case <-time.After(200 * time.Millisecond):
				}
				return nil
			})
			enterErr := <-entered
			e.check(err == nil || errors.Is(err, fence.ErrStale), "committing a write that was open while a successor entered: %v", err)
			e.must(enterErr, "entering while a write of the predecessor was open")
			values, readErr := old.Written(e.ctx, a.Resource)
			e.must(readErr, "reading what was written")
			e.check(slices.Equal(seen, values), "the successor had entered and read %q, then its predecessor's write landed: %q", seen, values)
			e.notWritten(old, a, fence.ErrStale, "a write after the successor entered")
		},
	},
	{
		"enter/lane",
		"Entering must not use up a position, or the term's first write is taken for a replay and is lost.",
		func(e *env) {
			f := e.open()
			s := chained(fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}, "l", 1, "w1")
			e.enter(f, s)
			e.check(e.last(f, s.Resource, s.Lane) == fence.LaneMark{}, "entering with a chained stamp moved its lane")
			e.write(f, s, "w1")
			e.lastIs(f, s, "after the first write")
			e.enter(f, s)
			e.lastIs(f, s, "after entering again")
		},
	},
	{
		"enter/resources",
		"Entering one resource must leave the others alone: one election may guard many, and many elections share a database.",
		func(e *env) {
			f := e.open()
			e.enter(f, fence.Stamp{Resource: e.resource("r1"), Token: 9, TermID: "b"})
			low := fence.Stamp{Resource: e.resource("r2"), Token: 2, TermID: "a"}
			e.enter(f, low)
			e.write(f, low, "v")
			e.written(f, e.resource("r1"))
			e.written(f, e.resource("r2"), "v")
		},
	},
}
