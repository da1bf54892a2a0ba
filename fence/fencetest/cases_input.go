package fencetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tenure-go/tenure/fence"
)

var inputCases = []Case{
	{
		"input/names",
		"Names are compared byte for byte: where two are folded into one, one resource's leader locks out another's, or lets a stale one in.",
		func(e *env) {
			f := e.open()
			long := strings.Repeat("x", fence.ResourceMax-len(e.prefix)-1)
			names := []string{
				"r", "R", "r ", " r", "r.", "r/", "r/..", "r\\", "%72", "%", "_", "*", "?", "[r]", "{r}", "$r", "#r", "'r'", `"r"`, "`r`",
				"r'; drop table r; --", "r\\0", "r:r", "r|r", "é", "e\u0301", "\u00a0r", "ß", "ss", "İ", "i", "日本語", "😀", "\ufeffr", "\u202er",
				long + "1", long + "2",
			}
			for i, name := range names {
				// Falling tokens: a name that is folded into an earlier one is refused.
				s := fence.Stamp{Resource: e.resource(name), Token: fence.Token(1000 - i), TermID: fmt.Sprint("t", i)}
				e.enter(f, s)
				e.write(f, s, name)
			}
			for _, name := range names {
				e.written(f, e.resource(name), name)
			}
		},
	},
	{
		"input/terms",
		"Term ids and digests are compared byte for byte too, in every length that is allowed.",
		func(e *env) {
			f := e.open()
			long := strings.Repeat("t", fence.TermIDMax-1)
			for i, ids := range [][2]string{{"a", "A"}, {"a", "a "}, {long + "1", long + "2"}, {"é", "e\u0301"}, {"1", "01"}} {
				resource := e.resource(fmt.Sprint(i))
				e.enter(f, fence.Stamp{Resource: resource, Token: 7, TermID: ids[0]})
				e.notWritten(f, fence.Stamp{Resource: resource, Token: 7, TermID: ids[1]}, fence.ErrForked, "another term id")
			}
			long = strings.Repeat("d", fence.DigestMax-1)
			for i, digests := range [][2]string{{"a", "A"}, {"a", "a "}, {long + "1", long + "2"}, {"é", "e\u0301"}, {"1", "01"}} {
				s := fence.Stamp{Resource: e.resource(fmt.Sprint("d", i)), Token: 7, TermID: "a", Position: 1, Digest: digests[0]}
				e.write(f, s, "v")
				e.replay(f, s, "v")
				s.Digest = digests[1]
				e.notWritten(f, s, fence.ErrForked, "another digest")
			}
		},
	},
	{
		"input/invalid",
		"A malformed stamp is a mistake of the caller: it must not pass, must not end a term and must leave the resource as it is.",
		func(e *env) {
			f := e.open()
			good := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			e.enter(f, good)
			for _, c := range []struct {
				what   string
				change func(*fence.Stamp)
			}{
				{"no resource", func(s *fence.Stamp) { s.Resource = "" }},
				{"a resource that is too long", func(s *fence.Stamp) { s.Resource = strings.Repeat("r", fence.ResourceMax+1) }},
				{"a resource with a control character", func(s *fence.Stamp) { s.Resource += "\n" }},
				{"a resource with a zero byte", func(s *fence.Stamp) { s.Resource += "\x00" }},
				{"a resource that is not UTF-8", func(s *fence.Stamp) { s.Resource += "\xff" }},
				{"no token", func(s *fence.Stamp) { s.Token = 0 }},
				{"a token below 1", func(s *fence.Stamp) { s.Token = -1 }},
				{"a token that is too large", func(s *fence.Stamp) { s.Token = fence.MaxToken + 1 }},
				{"a term id that is too long", func(s *fence.Stamp) { s.TermID = strings.Repeat("t", fence.TermIDMax+1) }},
				{"a renewal below 0", func(s *fence.Stamp) { s.Renewal = -1 }},
				{"a position below 0", func(s *fence.Stamp) { s.Position = -1 }},
				{"a position without a digest", func(s *fence.Stamp) { s.Position = 1 }},
				{"a digest without a position", func(s *fence.Stamp) { s.Digest = "d" }},
				{"a lane without a position", func(s *fence.Stamp) { s.Lane = "l" }},
			} {
				s := good
				c.change(&s)
				replayed, err := f.Write(e.ctx, s, "must not land: "+c.what)
				e.refused(err, fence.ErrInvalid, "writing with %s", c.what)
				e.check(!replayed && !fence.Refused(err), "writing with %s: it is said to be a replay, or to end the term: %v", c.what, err)
				e.refused(f.Enter(e.ctx, s), fence.ErrInvalid, "entering with %s", c.what)
			}
			e.written(f, good.Resource)
			e.write(f, chained(good, "", 1, "w1"), "w1")
			e.written(f, good.Resource, "w1")
		},
	},
	{
		"input/detail",
		"A refusal says what was shown and what had been seen: it is all that a person has to find out which of two leaders was right.",
		func(e *env) {
			f := e.open()
			a := fence.Stamp{Resource: e.resource("r"), Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: e.resource("r"), Token: 8, TermID: "b"}
			e.enter(f, b)
			var stale *fence.StaleError
			err := e.notWritten(f, a, fence.ErrStale, "a late write")
			e.check(errors.As(err, &stale) && stale.Resource == a.Resource && stale.Token == 7 && stale.Seen == 8,
				"want a StaleError of %q with token 7, seen 8, got %+v", a.Resource, err)

			x := b
			x.TermID = "x"
			var forked *fence.ForkedError
			err = e.notWritten(f, x, fence.ErrForked, "another term with the same token")
			e.check(errors.As(err, &forked) && forked.Resource == b.Resource && forked.Token == 8 && forked.TermID == "x" && forked.Owner == "b",
				"want a ForkedError of %q with token 8, term x, owner b, got %+v", b.Resource, err)

			e.write(f, chained(b, "l", 1, "w1"), "w1")
			err = e.notWritten(f, chained(b, "l", 1, "twin"), fence.ErrForked, "a twin's write")
			e.check(errors.As(err, &forked) && forked.Resource == b.Resource && forked.Token == 8 && forked.Lane == "l" && forked.Position == 1,
				"want a ForkedError of %q with token 8, lane l, position 1, got %+v", b.Resource, err)

			var gap *fence.GapError
			err = e.notWritten(f, chained(b, "l", 5, "w5"), fence.ErrGap, "a skipped position")
			e.check(errors.As(err, &gap) && gap.Resource == b.Resource && gap.Token == 8 && gap.Lane == "l" && gap.Position == 5 && gap.Next == 2,
				"want a GapError of %q with token 8, lane l, position 5, next 2, got %+v", b.Resource, err)
		},
	},
}
