package fence_test

import (
	"errors"
	"fmt"
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
// invariants can be judged without the rule under test. It is a plain value; its
// arrays are indexed by token.
type history struct {
	highest  fence.Token
	owner    [5]string
	renewals [5]int64     // the highest accepted of the owner
	chains   [2][5]string // the digests, each a letter, by lane
}

// resource is what a fence keeps of the resource "r", and what it took in.
type resource struct {
	mark  fence.Mark
	lanes [2]fence.LaneMark
	history
}

func laneIndex(s fence.Stamp) int { return len(s.Lane) } // the lanes are "" and "x"

// show shows a stamp to the resource, and returns an error if the answer breaks
// an invariant.
func (r *resource) show(s fence.Stamp) error {
	m, l := r.mark, r.lanes[laneIndex(s)]
	next, lane, replayed := m, l, false
	var err error
	if s.Chained() {
		next, lane, replayed, err = fence.CheckChain(m, l, s)
	} else {
		next, err = m.Check(s)
	}
	if err != nil {
		if next != m || lane != l || replayed {
			return fmt.Errorf("refused %+v but changed %+v, %+v to %+v, %+v (replayed %v): %w", s, m, l, next, lane, replayed, err)
		}
		isRefusal := errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrForked) || errors.Is(err, fence.ErrGap)
		if invalid := s.Validate() != nil; invalid != errors.Is(err, fence.ErrInvalid) || invalid == isRefusal || isRefusal != fence.Refused(err) {
			return fmt.Errorf("%+v got an error of the wrong kind: %w", s, err)
		}
		if !r.against(s) {
			return fmt.Errorf("refused %+v on %+v, %+v, which nothing speaks against: %w", s, m, l, err)
		}
		return nil
	}
	if err := r.accept(s, replayed); err != nil {
		return err
	}
	if next.Token != r.highest || next.TermID != r.owner[r.highest] {
		return fmt.Errorf("the mark is %+v after %+v, highest accepted is %d of %q", next, s, r.highest, r.owner[r.highest])
	}
	r.mark = next
	r.lanes[laneIndex(s)] = lane
	return nil
}

// accept notes an accepted stamp, and returns an error if it should not have been.
func (h *history) accept(s fence.Stamp, replayed bool) error {
	if s.Token < h.highest {
		return fmt.Errorf("accepted token %d after %d", s.Token, h.highest)
	}
	h.highest = s.Token
	if s.TermID != "" {
		if owner := h.owner[s.Token]; owner != "" && owner != s.TermID {
			return fmt.Errorf("accepted terms %q and %q under token %d", owner, s.TermID, s.Token)
		}
		h.owner[s.Token] = s.TermID
		if s.Renewal < h.renewals[s.Token]-1 {
			return fmt.Errorf("accepted renewal %d after %d", s.Renewal, h.renewals[s.Token])
		}
		h.renewals[s.Token] = max(h.renewals[s.Token], s.Renewal)
	}
	if !s.Chained() {
		return nil
	}
	chain := &h.chains[laneIndex(s)][s.Token]
	switch n := int64(len(*chain)); {
	case replayed && s.Position == n && (*chain)[n-1:] == s.Digest:
	case !replayed && s.Position == n+1:
		*chain += s.Digest
	default:
		return fmt.Errorf("accepted position %d (%s, replayed %v) of a lane that has %q", s.Position, s.Digest, replayed, *chain)
	}
	return nil
}

// against reports whether anything speaks against accepting s.
func (h *history) against(s fence.Stamp) bool {
	if s.Validate() != nil || s.Token < h.highest {
		return true
	}
	if s.TermID != "" && h.owner[s.Token] != "" && (h.owner[s.Token] != s.TermID || s.Renewal < h.renewals[s.Token]-1) {
		return true
	}
	if !s.Chained() {
		return false
	}
	chain := h.chains[laneIndex(s)][s.Token]
	n := int64(len(chain))
	return s.Position != n+1 && !(s.Position == n && n > 0 && chain[n-1:] == s.Digest)
}

// Every sequence of stamps in a small space, of any length: two tokens, two terms
// or none, three renewal numbers, and chains of up to three writes by two copies.
func TestEverySequence(t *testing.T) {
	var all []fence.Stamp
	for _, token := range []fence.Token{1, 2} {
		for _, term := range []string{"", "a", "b"} {
			for renewal := range int64(3) {
				s := fence.Stamp{Resource: "r", Token: token, TermID: term, Renewal: renewal}
				all = append(all, s)
				for s.Position = 1; s.Position <= 3; s.Position++ {
					for _, s.Digest = range []string{"d", "e"} {
						all = append(all, s)
					}
				}
			}
		}
	}
	states := []resource{{}}
	seen := map[resource]bool{{}: true}
	for i := 0; i < len(states); i++ {
		for _, s := range all {
			r := states[i]
			if err := r.show(s); err != nil {
				t.Fatalf("after %+v: %v", states[i].history, err)
			}
			if !seen[r] {
				seen[r] = true
				states = append(states, r)
			}
		}
	}
	t.Logf("%d states, %d stamps shown to each", len(states), len(all))
}

// FuzzRule sends any sequence of stamps to one resource.
func FuzzRule(f *testing.F) {
	f.Add([]byte{6, 0, 1, 6, 6, 1, 6, 12, 1, 7, 6, 1, 6, 18, 1})         // a chain, a successor, a late write
	f.Add([]byte{6, 6, 1, 6, 6, 4, 6, 12, 1, 6, 12, 4, 6, 12, 1})        // twins at one position, and a replay
	f.Add([]byte{6, 5, 0, 6, 4, 0, 6, 3, 0, 11, 5, 0, 1, 0, 0, 6, 5, 0}) // renewals, a fork by term id, the token alone
	f.Add([]byte{7, 6, 2, 6, 6, 2, 8, 6, 2, 7, 12, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var r resource
		for i, s := range stamps(data) {
			if err := r.show(s); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	})
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
