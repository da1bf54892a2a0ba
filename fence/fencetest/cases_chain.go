package fencetest

import (
	"errors"
	"fmt"

	"github.com/tenure-go/tenure/fence"
)

var chainCases = []Case{
	{
		"chain/order",
		"Positions count a term's writes in a lane, and the last one can be read: a successor asks for it before it redoes anything.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			e.enter(f, a)
			for i := int64(1); i <= 3; i++ {
				s := chained(a, "l", i, fmt.Sprint("w", i))
				e.write(f, s, fmt.Sprint("w", i))
				e.lastIs(f, s, "after a write")
			}
			e.written(f, a.Resource, "w1", "w2", "w3")
			e.write(f, a, "not chained") // and takes no position
			e.lastIs(f, chained(a, "l", 3, "w3"), "after a write that was not chained")
			e.write(f, chained(a, "l", 4, "w4"), "w4")
		},
	},
	{
		"chain/replay",
		"A write whose reply was lost is sent again: it must succeed and must not be done twice.",
		func(e *env) {
			f, other := e.open(), e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			w1, w2 := chained(a, "l", 1, "w1"), chained(a, "l", 2, "w2")
			e.write(f, w1, "w1")
			e.replay(f, w1, "w1")
			e.replay(other, w1, "w1")
			e.lastIs(f, w1, "after a replay")
			e.write(other, w2, "w2")
			e.replay(f, w2, "w2")
			e.written(f, a.Resource, "w1", "w2")
		},
	},
	{
		"chain/twin",
		"Two copies of one leader have the same token and term id: only the second write at one position gives the copy away.",
		func(e *env) {
			f, copied := e.open(), e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			e.write(f, chained(a, "l", 1, "w1"), "w1")
			e.notWritten(copied, chained(a, "l", 1, "twin"), fence.ErrForked, "the first write of a copy")
			e.write(f, chained(a, "l", 2, "w2"), "w2")
			e.notWritten(copied, chained(a, "l", 2, "twin"), fence.ErrForked, "a later write of a copy")
			e.replay(f, chained(a, "l", 2, "w2"), "w2")
			e.written(f, a.Resource, "w1", "w2")
		},
	},
	{
		"chain/twins-race",
		"When copies write at the same instant exactly one line goes on, and every other copy learns of the fork.",
		func(e *env) {
			const twins, positions = 4, 8
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			fences := make([]Fence, twins)
			for i := range fences {
				fences[i] = e.open()
			}
			e.enter(fences[0], a)
			for pos := int64(1); pos <= positions; pos++ {
				forked := 0
				for _, err := range together(twins, func(i int) error {
					replayed, err := fences[i].Write(e.ctx, chained(a, "l", pos, fmt.Sprint("twin ", i)), fmt.Sprint(pos))
					if replayed {
						return errors.New("a twin's write was taken for a replay")
					}
					return err
				}) {
					if errors.Is(err, fence.ErrForked) {
						forked++
					} else {
						e.must(err, "writing at position %d from %d copies at once", pos, twins)
					}
				}
				e.check(forked == twins-1, "position %d, %d copies at once: want all but one to hear of the fork, %d did", pos, twins, forked)
			}
			var want []string
			for pos := range positions {
				want = append(want, fmt.Sprint(pos+1))
			}
			e.written(fences[0], a.Resource, want...)
		},
	},
	{
		"chain/gap",
		"A skipped position means that writes were lost, by the resource or by the writer: going on would hide it.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			e.notWritten(f, chained(a, "l", 2, "w2"), fence.ErrGap, "position 2 of an untouched lane")
			e.write(f, chained(a, "l", 1, "w1"), "w1")
			e.notWritten(f, chained(a, "l", 3, "w3"), fence.ErrGap, "position 3 after 1")
			e.notWritten(f, chained(a, "l", 1<<62, "w"), fence.ErrGap, "a position far away")
			e.write(f, chained(a, "l", 2, "w2"), "w2")
			e.written(f, a.Resource, "w1", "w2")
		},
	},
	{
		"chain/earlier",
		"An earlier position is a late duplicate or a copy from the past: refused, but no proof of a fork.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			for i := int64(1); i <= 3; i++ {
				e.write(f, chained(a, "l", i, fmt.Sprint("w", i)), fmt.Sprint("w", i))
			}
			e.notWritten(f, chained(a, "l", 2, "w2"), fence.ErrStale, "a late duplicate")
			e.notWritten(f, chained(a, "l", 1, "another"), fence.ErrStale, "an earlier position with another write")
			e.write(f, chained(a, "l", 4, "w4"), "w4")
			e.written(f, a.Resource, "w1", "w2", "w3", "w4")
		},
	},
	{
		"chain/successor",
		"A higher token starts every lane anew, and what the lower one left in them can be read until it does.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8, TermID: "b"}
			for _, lane := range []string{"", "l1", "l2"} {
				e.write(f, chained(a, lane, 1, "w1"), lane+"a1")
				e.write(f, chained(a, lane, 2, "w2"), lane+"a2")
			}
			e.enter(f, b)
			for _, lane := range []string{"", "l1", "l2"} {
				e.lastIs(f, chained(a, lane, 2, "w2"), "after a successor entered")
				e.notWritten(f, chained(a, lane, 3, "w3"), fence.ErrStale, "the predecessor's next write")
				e.notWritten(f, chained(a, lane, 2, "w2"), fence.ErrStale, "the predecessor's last write, sent again")
				e.notWritten(f, chained(b, lane, 3, "w3"), fence.ErrGap, "going on at the predecessor's position")
				e.notWritten(f, chained(b, lane, 2, "w2"), fence.ErrGap, "the predecessor's last write under the new token")
				e.write(f, chained(b, lane, 1, "w1"), lane+"b1")
				e.lastIs(f, chained(b, lane, 1, "w1"), "after the successor's first write")
			}
			e.written(f, a.Resource, "a1", "a2", "l1a1", "l1a2", "l2a1", "l2a2", "b1", "l1b1", "l2b1")
		},
	},
	{
		"chain/unentered",
		"A chained write under a higher token raises the resource's mark for all its lanes, also when nobody entered.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8}
			e.write(f, chained(a, "l1", 1, "w1"), "a1")
			e.write(f, chained(b, "l2", 1, "w1"), "b1")
			e.notWritten(f, chained(a, "l1", 2, "w2"), fence.ErrStale, "the predecessor in another lane")
			e.notWritten(f, a, fence.ErrStale, "the predecessor, not chained")
			e.written(f, a.Resource, "a1", "b1")
		},
	},
	{
		"chain/lanes",
		"Each lane is a chain of its own: a term's workers each take one and need not agree on an order.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			lanes := []string{"", "l", "L", "l ", "l/1", "é", "e\u0301"}
			for i, lane := range lanes {
				e.write(f, chained(a, lane, 1, "w1"), fmt.Sprint(i, "/1"))
			}
			for i, lane := range lanes {
				e.lastIs(f, chained(a, lane, 1, "w1"), "after the other lanes' writes")
				e.write(f, chained(a, lane, 2, fmt.Sprint("w2 of ", i)), fmt.Sprint(i, "/2"))
			}
			for i, lane := range lanes {
				e.lastIs(f, chained(a, lane, 2, fmt.Sprint("w2 of ", i)), "after the other lanes' second writes")
			}
		},
	},
	{
		"chain/resources",
		"A position belongs to one lane of one resource: names that are joined or folded on the way mix up chains that have nothing in common.",
		func(e *env) {
			f := e.open()
			pairs := [][2]string{{"a", "b"}, {"A", "b"}, {"a", "B"}, {"b", "a"}, {"a", ""}, {"ab", ""}, {"a", "bc"}, {"ab", "c"}}
			for _, sep := range []string{":", "/", "|", ".", " ", ",", "\\", "%2F", "\u2028"} {
				pairs = append(pairs, [2]string{"a" + sep + "b", "c"}, [2]string{"a", "b" + sep + "c"})
			}
			for i, p := range pairs {
				s := chained(fence.Stamp{Resource: e.resource(p[0]), Token: 7, TermID: "a"}, p[1], 1, fmt.Sprint("write ", i))
				e.check(e.last(f, s.Resource, s.Lane) == fence.LaneMark{}, "lane %q of %q was never written to, but has a last write", s.Lane, s.Resource)
				e.write(f, s, fmt.Sprint(i))
			}
			for i, p := range pairs {
				e.lastIs(f, chained(fence.Stamp{Resource: e.resource(p[0]), Token: 7}, p[1], 1, fmt.Sprint("write ", i)), "after all others were written")
			}
		},
	},
}
