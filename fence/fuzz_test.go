package fence_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tenure-go/tenure/fence"
)

// stamps decodes any bytes into a sequence of stamps in a small space, where
// collisions of every kind are common.
func stamps(data []byte) []fence.Stamp {
	var seq []fence.Stamp
	for ; len(data) >= 3; data = data[3:] {
		a, b, c := data[0], data[1], data[2]
		s := fence.Stamp{
			Resource: "r",
			Token:    fence.Token(a % 5), // 0 is invalid
			TermID:   []string{"", "a", "b"}[a/5%3],
			Renewal:  int64(b % 6),
		}
		if c%3 > 0 {
			s.Lane = []string{"", "x"}[c%3-1]
			s.Position = int64(b / 6 % 6)
			s.Digest = []string{"d", "e", ""}[c/3%3] // empty is invalid
		}
		seq = append(seq, s)
	}
	return seq
}

// history is what a resource took in, kept apart from its marks so that the
// invariants can be judged without the rule under test.
type history struct {
	highest  fence.Token
	owner    map[fence.Token]string
	renewals map[fence.Token]int64               // the highest accepted of the owner
	chains   map[string]map[fence.Token][]string // digests by lane and token, in order
}

// FuzzRule sends any sequence of stamps to one resource.
func FuzzRule(f *testing.F) {
	f.Add([]byte{6, 0, 1, 6, 6, 1, 6, 12, 1, 7, 6, 1, 6, 18, 1})         // a chain, a successor, a late write
	f.Add([]byte{6, 6, 1, 6, 6, 4, 6, 12, 1, 6, 12, 4, 6, 12, 1})        // twins at one position, and a replay
	f.Add([]byte{6, 5, 0, 6, 4, 0, 6, 3, 0, 11, 5, 0, 1, 0, 0, 6, 5, 0}) // renewals, a fork by term id, the token alone
	f.Add([]byte{7, 6, 2, 6, 6, 2, 8, 6, 2, 7, 12, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var m fence.Mark
		lanes := map[string]fence.LaneMark{}
		h := history{owner: map[fence.Token]string{}, renewals: map[fence.Token]int64{}, chains: map[string]map[fence.Token][]string{}}

		for i, s := range stamps(data) {
			l := lanes[s.Lane]
			next, lane, replayed := m, l, false
			var err error
			if s.Chained() {
				next, lane, replayed, err = fence.CheckChain(m, l, s)
			} else {
				next, err = m.Check(s)
			}
			if err != nil {
				if next != m || lane != l || replayed {
					t.Fatalf("step %d: refused %+v but changed %+v, %+v to %+v, %+v (replayed %v): %v", i, s, m, l, next, lane, replayed, err)
				}
				isRefusal := errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrForked) || errors.Is(err, fence.ErrGap)
				if invalid := s.Validate() != nil; invalid != errors.Is(err, fence.ErrInvalid) || invalid == isRefusal || isRefusal != fence.Refused(err) {
					t.Fatalf("step %d: %+v got an error of the wrong kind: %v", i, s, err)
				}
				if h.wrongly(m, s, err) {
					t.Fatalf("step %d: refused %+v on %+v, %+v, which nothing speaks against: %v", i, s, m, l, err)
				}
				continue
			}
			h.accept(t, i, s, replayed)
			if next.Token != h.highest || next.TermID != h.owner[h.highest] {
				t.Fatalf("step %d: the mark is %+v after %+v, highest accepted is %d of %q", i, next, s, h.highest, h.owner[h.highest])
			}
			m = next
			if s.Chained() {
				lanes[s.Lane] = lane
			}
		}
	})
}

// accept notes an accepted stamp, and fails if it should not have been.
func (h *history) accept(t *testing.T, i int, s fence.Stamp, replayed bool) {
	if s.Token < h.highest {
		t.Fatalf("step %d: accepted token %d after %d", i, s.Token, h.highest)
	}
	h.highest = s.Token
	if s.TermID != "" {
		if owner := h.owner[s.Token]; owner != "" && owner != s.TermID {
			t.Fatalf("step %d: accepted terms %q and %q under token %d", i, owner, s.TermID, s.Token)
		}
		h.owner[s.Token] = s.TermID
		if s.Renewal < h.renewals[s.Token]-1 {
			t.Fatalf("step %d: accepted renewal %d after %d", i, s.Renewal, h.renewals[s.Token])
		}
		h.renewals[s.Token] = max(h.renewals[s.Token], s.Renewal)
	}
	if !s.Chained() {
		return
	}
	if h.chains[s.Lane] == nil {
		h.chains[s.Lane] = map[fence.Token][]string{}
	}
	chain := h.chains[s.Lane][s.Token]
	switch n := int64(len(chain)); {
	case replayed && s.Position == n && chain[n-1] == s.Digest:
	case !replayed && s.Position == n+1:
		h.chains[s.Lane][s.Token] = append(chain, s.Digest)
	default:
		t.Fatalf("step %d: accepted position %d (%s, replayed %v) of a lane that has %v", i, s.Position, s.Digest, replayed, chain)
	}
}

// wrongly reports whether the history gives no ground for refusing s.
func (h *history) wrongly(m fence.Mark, s fence.Stamp, err error) bool {
	if s.Validate() != nil || s.Token < h.highest {
		return false
	}
	if s.TermID != "" && s.Token == m.Token && h.owner[s.Token] != "" {
		if h.owner[s.Token] != s.TermID || s.Renewal < h.renewals[s.Token]-1 {
			return false
		}
	}
	if !s.Chained() {
		return true
	}
	chain := h.chains[s.Lane][s.Token]
	n := int64(len(chain))
	return s.Position == n+1 || (s.Position == n && n > 0 && chain[n-1] == s.Digest)
}

// FuzzTwins sends the writes of two copies of one leader, in any order, to one
// lane: what lands is one line of descent, however they interleave.
func FuzzTwins(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 0, 1})
	f.Add([]byte{0, 0, 2, 1, 1, 3, 0, 1})
	f.Fuzz(func(t *testing.T, order []byte) {
		var m fence.Mark
		var l fence.LaneMark
		twins := [2]struct {
			pos  int64
			over bool
		}{}
		var landed []byte
		for _, b := range order {
			who := b % 2
			twin := &twins[who]
			if twin.over {
				continue
			}
			s := fence.Stamp{Resource: "r", Token: 2, TermID: "a", Position: twin.pos + 1, Digest: string(rune('a' + who))}
			if b&2 != 0 && twin.pos > 0 {
				s.Position-- // the last one once more: its reply was lost
			}
			var replayed bool
			var err error
			m, l, replayed, err = fence.CheckChain(m, l, s)
			switch {
			case fence.Refused(err):
				twin.over = true // as an elector does
			case err != nil:
				t.Fatal(err)
			case !replayed:
				landed = append(landed, who)
				twin.pos++
			}
		}
		for i, who := range landed {
			if who != landed[0] {
				t.Fatalf("write %d is the other copy's: %v landed", i, landed)
			}
		}
	})
}

// FuzzValidate checks names of every kind against the rule as it is said in
// words, and that Check and Validate agree.
func FuzzValidate(f *testing.F) {
	f.Add("invoices", int64(1), "term", int64(0), "lane", int64(1), "digest")
	f.Add("", int64(-1), "\x00", int64(-1), "\xff", int64(-1), "")
	f.Add(strings.Repeat("é", 101), int64(1)<<62+1, strings.Repeat("t", 65), int64(1), "\u0085", int64(0), "d")
	f.Fuzz(func(t *testing.T, resource string, token int64, termID string, renewal int64, lane string, position int64, digest string) {
		s := fence.Stamp{Resource: resource, Token: fence.Token(token), TermID: termID, Renewal: renewal, Lane: lane, Position: position, Digest: digest}
		text := func(x string, max int) bool {
			return len(x) >= 1 && len(x) <= max && utf8.ValidString(x) && !strings.ContainsFunc(x, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 })
		}
		want := text(resource, 200) && token >= 1 && token <= 1<<62 && (termID == "" || text(termID, 64)) && renewal >= 0
		if position == 0 {
			want = want && lane == "" && digest == ""
		} else {
			want = want && position > 0 && text(digest, 128) && (lane == "" || text(lane, 200))
		}
		err := s.Validate()
		if (err == nil) != want {
			t.Fatalf("Validate of %+v is %v", s, err)
		}
		if err != nil && !errors.Is(err, fence.ErrInvalid) {
			t.Fatalf("Validate of %+v is no ErrInvalid: %v", s, err)
		}
		if err != nil && !utf8.ValidString(err.Error()) {
			t.Fatalf("the error of %+v is not UTF-8: %q", s, err.Error())
		}
		if _, checked := (fence.Mark{}).Check(s); (checked == nil) != want {
			t.Fatalf("Check of %+v on an untouched resource is %v, Validate says %v", s, checked, err)
		}
	})
}
