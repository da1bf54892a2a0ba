package fencetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tenure-go/tenure/fence"
)

var writeCases = []Case{
	{
		"write/unentered",
		"A fenced write works without entering first: a shell script that was given a token has nothing else.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8}
			e.write(f, a, "a1")
			e.write(f, b, "b1")
			e.notWritten(f, a, fence.ErrStale, "a late write")
			e.written(f, a.Resource, "a1", "b1")
		},
	},
	{
		"write/leader",
		"A leader has any number of workers: all of their writes are its own, and every one must land.",
		func(e *env) {
			const workers, writes = 4, 5
			s := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			fences := make([]Fence, workers)
			for i := range fences {
				fences[i] = e.open()
			}
			e.enter(fences[0], s)
			var want []string
			for i := range workers {
				for j := range writes {
					want = append(want, fmt.Sprint(i, "/", j))
				}
			}
			for _, err := range together(workers, func(i int) error {
				for j := range writes {
					if _, err := fences[i].Write(e.ctx, s, fmt.Sprint(i, "/", j)); err != nil {
						return err
					}
				}
				return nil
			}) {
				e.must(err, "writing from %d workers of one term at once", workers)
			}
			got, err := fences[0].Written(e.ctx, s.Resource)
			e.must(err, "reading what was written")
			slices.Sort(got)
			e.check(slices.Equal(got, want), "want each of %q once, got %q", want, got)
		},
	},
	{
		"write/overtaking",
		"The check and the write are one step: between them no later term may get in, or a stale write lands on top of its own.",
		func(e *env) {
			const terms, writes = 4, 8
			resource := e.resource("r")
			fences := make([]Fence, terms)
			for i := range fences {
				fences[i] = e.open()
			}
			for _, err := range together(terms, func(i int) error {
				s := fence.Stamp{Resource: resource, Token: fence.Token(i + 1), TermID: fmt.Sprint("t", i)}
				for range writes {
					if _, err := fences[i].Write(e.ctx, s, fmt.Sprint(i+1)); err != nil && !errors.Is(err, fence.ErrStale) {
						return err
					}
				}
				return nil
			}) {
				e.must(err, "writing from %d terms at once", terms)
			}
			got, err := fences[0].Written(e.ctx, resource)
			e.must(err, "reading what was written")
			e.check(slices.IsSorted(got), "a write landed after one of a later term: %q", got)
			last := len(got) - slices.Index(got, fmt.Sprint(terms))
			e.check(slices.Contains(got, fmt.Sprint(terms)) && last == writes, "the last term's %d writes must all land, got %q", writes, got)
		},
	},
	{
		"write/fork",
		"A store that was rolled back hands out a token twice; the term id tells the two terms apart, and the first to come owns the token.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			x := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "x", Renewal: 5}
			e.enter(f, a)
			e.notWritten(f, x, fence.ErrForked, "a write of another term with the same token")
			e.notWritten(f, chained(x, "", 1, "x1"), fence.ErrForked, "a chained write of another term with the same token")
			e.notEntered(f, x, fence.ErrForked, "another term with the same token")
			e.write(f, a, "a1")
			e.written(f, a.Resource, "a1")
		},
	},
	{
		"write/renewals",
		"A copy that was restored later in the same term has the right token and the right term id: only the renewal number shows its age.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a", Renewal: 8}
			e.enter(f, a)
			a.Renewal = 10
			e.enter(f, a)
			e.write(f, a, "10")
			a.Renewal = 9
			e.write(f, a, "9") // sent before the last renewal was answered
			e.enter(f, a)      // does not lower the mark
			a.Renewal = 8
			e.notWritten(f, a, fence.ErrStale, "a write from two renewals ago")
			e.notWritten(f, chained(a, "", 1, "w"), fence.ErrStale, "a chained write from two renewals ago")
			e.notEntered(f, a, fence.ErrStale, "a copy from two renewals ago")
			e.written(f, a.Resource, "10", "9")

			next := fence.Stamp{Resource: a.Resource, Token: 8, TermID: "b"}
			e.enter(f, next) // renewal numbers start anew with the term
			e.write(f, next, "next")
		},
	},
	{
		"write/token-alone",
		"A stamp without a term id comes from a script: it is checked by its token, and must neither take the token from its owner nor lock it out.",
		func(e *env) {
			f := e.open()
			script := fence.Stamp{Resource: e.resource("r"), Token: 7}
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a", Renewal: 6}
			x := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "x", Renewal: 6}
			e.enter(f, script)
			e.write(f, script, "s1")
			e.enter(f, a)
			e.write(f, script, "s2")
			e.enter(f, script)
			e.notWritten(f, x, fence.ErrForked, "another term after the token alone")
			e.write(f, a, "a1")
			a.Renewal = 4
			e.notWritten(f, a, fence.ErrStale, "two renewals ago after the token alone")
			e.enter(f, fence.Stamp{Resource: script.Resource, Token: 8})
			e.notWritten(f, script, fence.ErrStale, "the token alone, late")
			e.written(f, script.Resource, "s1", "s2", "a1")
		},
	},
	{
		"write/large-tokens",
		"Tokens are 64-bit integers: through a floating-point number, 2^53 and 2^53 + 1 are the same, and a stale write passes.",
		func(e *env) {
			f := e.open()
			resource := e.resource("r")
			for _, token := range []fence.Token{1 << 31, 1 << 32, 1<<53 + 1, fence.MaxToken} {
				s := chained(fence.Stamp{Resource: resource, Token: token}, "", 1, "w")
				e.enter(f, s)
				below := fence.Stamp{Resource: resource, Token: token - 1}
				e.notWritten(f, below, fence.ErrStale, "one below a large token")
				e.write(f, s, fmt.Sprint(token))
				e.lastIs(f, s, "after a write with a large token")
			}
			s := chained(fence.Stamp{Resource: e.resource("renewals"), Token: 7, TermID: "a", Renewal: 1<<53 + 2}, "", 1, "w")
			e.enter(f, s)
			s.Renewal -= 2
			e.notWritten(f, s, fence.ErrStale, "two renewals ago, above 2^53")
			s.Renewal++
			e.write(f, s, "v")
		},
	},
	{
		"write/rolled-back",
		"A write that was rolled back did not happen: its position is free, and sending it again is no replay.",
		func(e *env) {
			e.transactional()
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			e.enter(f, a)
			undo := errors.New("rolled back by the case")
			for _, s := range []fence.Stamp{a, chained(a, "l", 1, "w1")} {
				err := e.h.Transaction(e.ctx, f, s, "undone", func() error { return undo })
				e.check(errors.Is(err, undo), "rolling back a write: want the error of inside, got: %v", err)
				e.written(f, a.Resource)
			}
			w1 := chained(a, "l", 1, "w1")
			e.check(e.last(f, a.Resource, "l") == fence.LaneMark{}, "a write that was rolled back moved its lane")
			e.write(f, w1, "w1")
			e.lastIs(f, w1, "after writing what was rolled back")

			err := e.h.Transaction(e.ctx, f, chained(a, "l", 2, "w2"), "w2", func() error { return nil })
			e.must(err, "committing a write")
			e.written(f, a.Resource, "w1", "w2")

			e.enter(f, fence.Stamp{Resource: a.Resource, Token: 8, TermID: "b"})
			err = e.h.Transaction(e.ctx, f, a, "late", func() error { return nil })
			e.refused(err, fence.ErrStale, "a late write in a transaction")
			e.written(f, a.Resource, "w1", "w2")
		},
	},
}
