package fence_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tenure-go/tenure/fence"
)

// kind returns the kind of a refusal; nil and foreign errors as they are.
func kind(err error) error {
	for _, k := range []error{fence.ErrStale, fence.ErrForked, fence.ErrGap, fence.ErrInvalid} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}

func TestCheck(t *testing.T) {
	const r = "invoices"
	for _, c := range []struct {
		name string
		mark fence.Mark
		s    fence.Stamp
		want fence.Mark // the mark to keep; on refusal it must be the one before
		err  error
		text []string // parts of the error's text
	}{
		{
			name: "an untouched resource takes any token",
			s:    fence.Stamp{Resource: r, Token: 7, TermID: "a", Renewal: 3},
			want: fence.Mark{Token: 7, TermID: "a", Renewal: 3},
		},
		{
			name: "a higher token is taken, with its own term and renewal number",
			mark: fence.Mark{Token: 7, TermID: "a", Renewal: 90},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "b"},
			want: fence.Mark{Token: 8, TermID: "b"},
		},
		{
			name: "a lower token is refused",
			mark: fence.Mark{Token: 8, TermID: "b"},
			s:    fence.Stamp{Resource: r, Token: 7, TermID: "a", Renewal: 1000},
			err:  fence.ErrStale,
			text: []string{`"invoices"`, "token 7", "seen 8"},
		},
		{
			name: "a lower token is refused to a stamp without a term id too",
			mark: fence.Mark{Token: 8},
			s:    fence.Stamp{Resource: r, Token: 7},
			err:  fence.ErrStale,
			text: []string{`"invoices"`, "token 7", "seen 8"},
		},
		{
			name: "the same term writes again",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 4},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "b", Renewal: 4},
			want: fence.Mark{Token: 8, TermID: "b", Renewal: 4},
		},
		{
			name: "a later renewal raises the mark",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 4},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "b", Renewal: 9},
			want: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
		},
		{
			name: "one renewal behind is a writer that had not heard of it yet",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "b", Renewal: 8},
			want: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
		},
		{
			name: "two renewals behind is a copy restored later in the same term",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "b", Renewal: 7},
			err:  fence.ErrStale,
			text: []string{`"invoices"`, "token 8", "renewal 7", "seen 9"},
		},
		{
			name: "another term under the same token is a fork, whatever its renewal number",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 1},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "x", Renewal: 50},
			err:  fence.ErrForked,
			text: []string{`"invoices"`, "token 8", `"x"`, `"b"`},
		},
		{
			name: "the token alone owns nothing: the first term id seen under it does",
			mark: fence.Mark{Token: 8},
			s:    fence.Stamp{Resource: r, Token: 8, TermID: "b", Renewal: 2},
			want: fence.Mark{Token: 8, TermID: "b", Renewal: 2},
		},
		{
			name: "the token alone is taken beside an owner, and changes nothing",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
			s:    fence.Stamp{Resource: r, Token: 8},
			want: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
		},
		{
			name: "a higher token alone forgets the owner of the lower one",
			mark: fence.Mark{Token: 8, TermID: "b", Renewal: 9},
			s:    fence.Stamp{Resource: r, Token: 9},
			want: fence.Mark{Token: 9},
		},
		{
			name: "neighbours above 2^53 are told apart",
			mark: fence.Mark{Token: 1<<53 + 1, TermID: "b"},
			s:    fence.Stamp{Resource: r, Token: 1 << 53, TermID: "a"},
			err:  fence.ErrStale,
			text: []string{"token 9007199254740992", "seen 9007199254740993"},
		},
		{
			name: "the largest token is taken",
			mark: fence.Mark{Token: fence.MaxToken - 1, TermID: "a"},
			s:    fence.Stamp{Resource: r, Token: fence.MaxToken, TermID: "b"},
			want: fence.Mark{Token: fence.MaxToken, TermID: "b"},
		},
		{
			name: "a malformed stamp is refused before anything is compared",
			mark: fence.Mark{Token: 8, TermID: "b"},
			s:    fence.Stamp{Resource: r},
			err:  fence.ErrInvalid,
			text: []string{"token is 0"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.mark.Check(c.s)
			if c.err != nil {
				c.want = c.mark
			}
			if kind(err) != c.err || got != c.want {
				t.Errorf("%+v.Check(%+v)\n got %+v, %v\nwant %+v, %v", c.mark, c.s, got, err, c.want, c.err)
			}
			hasParts(t, err, c.text)
		})
	}
}

func hasParts(t *testing.T, err error, parts []string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("the error's text lacks %q: %v", p, err)
		}
	}
}

func TestCheckChain(t *testing.T) {
	const r = "ledger"
	at := func(token fence.Token, pos int64, digest string) fence.Stamp {
		return fence.Stamp{Resource: r, Token: token, TermID: fmt.Sprint("t", token), Renewal: 5, Lane: "eu", Position: pos, Digest: digest}
	}
	mark := fence.Mark{Token: 8, TermID: "t8", Renewal: 5}
	lane := fence.LaneMark{Token: 8, Position: 3, Digest: "d3"}
	older := at(8, 4, "d4")
	older.Renewal = 3
	other := at(8, 4, "d4")
	other.TermID = "x"
	plain := at(8, 0, "")
	plain.Lane = ""

	for _, c := range []struct {
		name     string
		mark     fence.Mark
		lane     fence.LaneMark
		s        fence.Stamp
		wantMark fence.Mark
		wantLane fence.LaneMark
		replayed bool
		err      error
		text     []string
	}{
		{
			name: "the first write of an untouched lane is at position 1",
			s:    at(8, 1, "d1"), wantMark: mark, wantLane: fence.LaneMark{Token: 8, Position: 1, Digest: "d1"},
		},
		{
			name: "the next position is taken",
			mark: mark, lane: lane, s: at(8, 4, "d4"), wantMark: mark, wantLane: fence.LaneMark{Token: 8, Position: 4, Digest: "d4"},
		},
		{
			name: "the last write sent again is a replay",
			mark: mark, lane: lane, s: at(8, 3, "d3"), wantMark: mark, wantLane: lane, replayed: true,
		},
		{
			name: "the last position with another digest is a twin's",
			mark: mark, lane: lane, s: at(8, 3, "twin"), err: fence.ErrForked,
			text: []string{`"ledger"`, "token 8", `lane "eu"`, "position 3", "twin"},
		},
		{
			name: "an earlier position is refused without an alarm",
			mark: mark, lane: lane, s: at(8, 2, "d2"), err: fence.ErrStale,
			text: []string{`"ledger"`, "token 8", `lane "eu"`, "position 2", "next is 4"},
		},
		{
			name: "a skipped position is a gap",
			mark: mark, lane: lane, s: at(8, 5, "d5"), err: fence.ErrGap,
			text: []string{`"ledger"`, "token 8", `lane "eu"`, "position 5", "next is 4"},
		},
		{
			name: "an untouched lane starts at 1 and nowhere else",
			s:    at(8, 2, "d2"), err: fence.ErrGap, text: []string{"position 2", "next is 1"},
		},
		{
			name: "a higher token starts the lane anew",
			mark: mark, lane: lane, s: at(9, 1, "d3"),
			wantMark: fence.Mark{Token: 9, TermID: "t9", Renewal: 5}, wantLane: fence.LaneMark{Token: 9, Position: 1, Digest: "d3"},
		},
		{
			name: "a higher token does not go on where the lower one was",
			mark: mark, lane: lane, s: at(9, 4, "d4"), err: fence.ErrGap, text: []string{"position 4", "next is 1"},
		},
		{
			name: "a higher token does not replay what the lower one wrote",
			mark: mark, lane: lane, s: at(9, 3, "d3"), err: fence.ErrGap, text: []string{"position 3", "next is 1"},
		},
		{
			name: "a token that entered starts every lane anew",
			mark: fence.Mark{Token: 9, TermID: "t9"}, lane: lane, s: at(9, 1, "d1"),
			wantMark: fence.Mark{Token: 9, TermID: "t9", Renewal: 5}, wantLane: fence.LaneMark{Token: 9, Position: 1, Digest: "d1"},
		},
		{
			name: "the next position under a lower token is stale",
			mark: fence.Mark{Token: 9, TermID: "t9"}, lane: lane, s: at(8, 4, "d4"), err: fence.ErrStale, text: []string{"token 8", "seen 9"},
		},
		{
			name: "a replay under a lower token is stale",
			mark: fence.Mark{Token: 9, TermID: "t9"}, lane: lane, s: at(8, 3, "d3"), err: fence.ErrStale, text: []string{"token 8", "seen 9"},
		},
		{
			name: "the next position of another term is a fork",
			mark: mark, lane: lane, s: other, err: fence.ErrForked, text: []string{"token 8", `"x"`, `"t8"`},
		},
		{
			name: "the next position from two renewals ago is stale",
			mark: mark, lane: lane, s: older, wantMark: mark, wantLane: fence.LaneMark{Token: 8, Position: 4, Digest: "d4"},
			err: fence.ErrStale, text: []string{"renewal 3", "seen 5"},
		},
		{
			name: "a lane that is ahead of its resource's mark is not written below",
			mark: fence.Mark{Token: 7}, lane: lane, s: at(7, 1, "d1"), err: fence.ErrStale, text: []string{"token 7", "seen 8"},
		},
		{
			name: "a stamp without a position is not checked as a chained one",
			mark: mark, lane: lane, s: plain, err: fence.ErrInvalid, text: []string{"position is 0"},
		},
		{
			name: "a malformed stamp is refused before anything is compared",
			mark: mark, lane: lane, s: at(8, 4, ""), err: fence.ErrInvalid, text: []string{"digest is empty"},
		},
		{
			name: "the token alone is enough for a chain",
			mark: fence.Mark{Token: 8}, lane: lane, s: fence.Stamp{Resource: r, Token: 8, Lane: "eu", Position: 4, Digest: "d4"},
			wantMark: fence.Mark{Token: 8}, wantLane: fence.LaneMark{Token: 8, Position: 4, Digest: "d4"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, l, replayed, err := fence.CheckChain(c.mark, c.lane, c.s)
			if c.err != nil {
				c.wantMark, c.wantLane = c.mark, c.lane
			}
			if kind(err) != c.err || m != c.wantMark || l != c.wantLane || replayed != c.replayed {
				t.Errorf("CheckChain(%+v, %+v, %+v)\n got %+v, %+v, %v, %v\nwant %+v, %+v, %v, %v",
					c.mark, c.lane, c.s, m, l, replayed, err, c.wantMark, c.wantLane, c.replayed, c.err)
			}
			hasParts(t, err, c.text)
		})
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&fence.StaleError{}, true},
		{&fence.ForkedError{}, true},
		{&fence.GapError{}, true},
		{fmt.Errorf("in a transaction: %w", &fence.StaleError{}), true},
		{errors.Join(errors.New("rolled back"), fence.ErrForked), true},
		{&fence.InvalidError{}, false},
		{fence.ErrInvalid, false},
		{errors.New("connection reset"), false},
		{nil, false},
	} {
		if got := fence.Refused(c.err); got != c.want {
			t.Errorf("Refused(%v) is %v", c.err, got)
		}
	}
}

// Each typed error is of its own kind and no other, so that a caller's switch
// has one branch for it.
func TestErrorKinds(t *testing.T) {
	kinds := []error{fence.ErrStale, fence.ErrForked, fence.ErrGap, fence.ErrInvalid}
	for i, err := range []error{&fence.StaleError{}, &fence.ForkedError{}, &fence.GapError{}, &fence.InvalidError{}} {
		for j, k := range kinds {
			if got := errors.Is(err, k); got != (i == j) {
				t.Errorf("errors.Is(%T, %v) is %v", err, k, got)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	ok := fence.Stamp{Resource: "r", Token: 1}
	chained := fence.Stamp{Resource: "r", Token: 1, Position: 1, Digest: "d"}
	with := func(s fence.Stamp, change func(*fence.Stamp)) fence.Stamp {
		change(&s)
		return s
	}
	for _, c := range []struct {
		name string
		s    fence.Stamp
		text []string // nil: valid
	}{
		{"the least", ok, nil},
		{"the least chained", chained, nil},
		{"all parts at their bounds", fence.Stamp{
			Resource: strings.Repeat("r", fence.ResourceMax), Token: fence.MaxToken, TermID: strings.Repeat("t", fence.TermIDMax), Renewal: 1<<63 - 1,
			Lane: strings.Repeat("l", fence.LaneMax), Position: 1<<63 - 1, Digest: strings.Repeat("d", fence.DigestMax),
		}, nil},
		{"names in any script, with spaces and quotes", with(chained, func(s *fence.Stamp) { s.Resource, s.Lane = "Ünïcode '; drop\" ", "日本 語" }), nil},
		{"no resource", with(ok, func(s *fence.Stamp) { s.Resource = "" }), []string{"resource is empty", "1 to 200 bytes"}},
		{"a resource too long", with(ok, func(s *fence.Stamp) { s.Resource = strings.Repeat("r", 201) }), []string{"resource has 201 bytes", "1 to 200"}},
		{"a resource too long in bytes, not in characters", with(ok, func(s *fence.Stamp) { s.Resource = strings.Repeat("é", 101) }), []string{"resource has 202 bytes"}},
		{"a resource that is not UTF-8", with(ok, func(s *fence.Stamp) { s.Resource = "a\xffb" }), []string{"resource", "not valid UTF-8"}},
		{"a resource with a line break", with(ok, func(s *fence.Stamp) { s.Resource = "a\nb" }), []string{"resource", "U+000A", "byte 1"}},
		{"a resource with a zero byte", with(ok, func(s *fence.Stamp) { s.Resource = "a\x00" }), []string{"resource", "U+0000"}},
		{"a resource with a control character above ASCII", with(ok, func(s *fence.Stamp) { s.Resource = "é\u0085" }), []string{"resource", "U+0085", "byte 2"}},
		{"no token", with(ok, func(s *fence.Stamp) { s.Token = 0 }), []string{"token is 0", "1 to 4611686018427387904", "has ended"}},
		{"a token below 1", with(ok, func(s *fence.Stamp) { s.Token = -4 }), []string{"token is -4", "1 to 4611686018427387904"}},
		{"a token too large", with(ok, func(s *fence.Stamp) { s.Token = fence.MaxToken + 1 }), []string{"token is 4611686018427387905", "1 to 4611686018427387904"}},
		{"a term id too long", with(ok, func(s *fence.Stamp) { s.TermID = strings.Repeat("t", 65) }), []string{"term id has 65 bytes", "1 to 64"}},
		{"a renewal below 0", with(ok, func(s *fence.Stamp) { s.Renewal = -1 }), []string{"renewal is -1", "0 and more"}},
		{"a position below 0", with(chained, func(s *fence.Stamp) { s.Position = -2 }), []string{"position is -2", "1 and more"}},
		{"a chained write without a digest", with(chained, func(s *fence.Stamp) { s.Digest = "" }), []string{"digest is empty", "a chained write needs one"}},
		{"a digest too long", with(chained, func(s *fence.Stamp) { s.Digest = strings.Repeat("d", 129) }), []string{"digest has 129 bytes"}},
		{"a lane with a tab", with(chained, func(s *fence.Stamp) { s.Lane = "a\tb" }), []string{"lane", "U+0009"}},
		{"a lane without a position", with(ok, func(s *fence.Stamp) { s.Lane = "eu" }), []string{"lane or digest is set without a position"}},
		{"a digest without a position", with(ok, func(s *fence.Stamp) { s.Digest = "d" }), []string{"lane or digest is set without a position"}},
		{"every fault is named at once", fence.Stamp{Renewal: -1, Position: -1}, []string{"resource is empty", "token is 0", "renewal is -1", "position is -1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.s.Validate()
			if c.text == nil {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var invalid *fence.InvalidError
			if !errors.As(err, &invalid) || !errors.Is(err, fence.ErrInvalid) {
				t.Fatalf("got %v, want an InvalidError", err)
			}
			if invalid.Stamp != c.s {
				t.Errorf("the error shows the stamp %+v, not %+v", invalid.Stamp, c.s)
			}
			hasParts(t, err, c.text)
		})
	}
}

func TestNewDigest(t *testing.T) {
	seen := map[string]string{}
	for _, c := range []struct{ id, content string }{
		{"w1", "pay 5"},
		{"w2", "pay 5"},
		{"w1", "pay 6"},
		{"w", "1pay 5"},
		{"w1p", "ay 5"},
		{"", "w1pay 5"},
		{"2:w1:", "pay 5"},
		{"w1", ""},
	} {
		d := fence.NewDigest(c.id, []byte(c.content))
		if d != fence.NewDigest(c.id, []byte(c.content)) {
			t.Errorf("%q, %q: the digest changes from call to call", c.id, c.content)
		}
		if before, ok := seen[d]; ok {
			t.Errorf("%q, %q: has the digest of %s", c.id, c.content, before)
		}
		seen[d] = fmt.Sprintf("%q, %q", c.id, c.content)
		if err := (fence.Stamp{Resource: "r", Token: 1, Position: 1, Digest: d}).Validate(); err != nil {
			t.Errorf("%q, %q: the digest is no valid one: %v", c.id, c.content, err)
		}
	}
}
