package fence

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Token is a fencing token: a whole number from 1 to [MaxToken] that rises at
// every acquisition of an election and never falls.
type Token int64

// MaxToken is the largest token any store hands out: 2^62. It leaves room for
// an offset in 64 signed bits.
const MaxToken Token = 1 << 62

// Valid reports whether t is from 1 to [MaxToken].
func (t Token) Valid() bool { return t >= 1 && t <= MaxToken }

// Bounds of the parts of a [Stamp], in bytes.
const (
	ResourceMax = 200
	LaneMax     = 200
	TermIDMax   = 64
	DigestMax   = 128
)

// Stamp is what a writer shows to a resource with each write.
//
// Resource and Token are always needed. TermID and Renewal make the check
// stronger: with them a fork of the term, and a copy of the leader restored
// later in the same term, are told apart from the leader. Position, Digest and
// Lane make the write chained. A Stamp is a plain value; the term that issued
// it may already be over when the stamp arrives, which is what the check at the
// resource is for.
//
// A write whose outcome is unknown is sent again with the same lane, position
// and digest, and with the renewal number of the moment of sending.
type Stamp struct {
	Resource string // what is written to; 1 to 200 bytes, UTF-8, no control characters
	Token    Token  // the writer's fencing token
	TermID   string // the attempt that was granted; empty: checked by the token alone
	Renewal  int64  // number of the term's last answered renewal; 0 before the first

	Lane     string // the ordered chain of writes within the resource; only with Position
	Position int64  // 1 for a term's first write in the lane, then one more each; 0: not chained
	Digest   string // names this one logical write, see [NewDigest]; needed with Position
}

// Chained reports whether the stamp is one of an ordered chain of writes.
func (s Stamp) Chained() bool { return s.Position != 0 }

// Validate returns an [InvalidError] that names every part of the stamp that is
// out of bounds and what is allowed there, or nil.
func (s Stamp) Validate() error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	if err := CheckText("resource", s.Resource, ResourceMax); err != nil {
		fault("%v", err)
	}
	if s.Token == 0 {
		fault("token is 0: allowed are 1 to %d (a term that has ended has no token)", MaxToken)
	} else if !s.Token.Valid() {
		fault("token is %d: allowed are 1 to %d", s.Token, MaxToken)
	}
	if s.TermID != "" {
		if err := CheckText("term id", s.TermID, TermIDMax); err != nil {
			fault("%v", err)
		}
	}
	if s.Renewal < 0 {
		fault("renewal is %d: allowed are 0 and more", s.Renewal)
	}
	switch {
	case s.Position < 0:
		fault("position is %d: allowed are 1 and more, or 0 for a write that is not chained", s.Position)
	case s.Position > 0:
		if err := CheckText("digest", s.Digest, DigestMax); err != nil {
			fault("%v (a chained write needs one)", err)
		}
		if s.Lane != "" {
			if err := CheckText("lane", s.Lane, LaneMax); err != nil {
				fault("%v", err)
			}
		}
	case s.Lane != "" || s.Digest != "":
		fault("lane or digest is set without a position: allowed only on chained writes, whose position is 1 or more")
	}
	if len(faults) == 0 {
		return nil
	}
	return &InvalidError{Stamp: s, Faults: faults}
}

// CheckText is the rule for every name that Tenure keeps: valid UTF-8, 1 to max
// bytes, no control characters. Names are compared byte for byte; nothing is
// folded, trimmed or normalised. The error says what was wrong and what is
// allowed; what names the thing checked.
func CheckText(what, text string, max int) error {
	switch {
	case text == "":
		return fmt.Errorf("%s is empty: allowed are 1 to %d bytes of UTF-8 without control characters", what, max)
	case len(text) > max:
		return fmt.Errorf("%s has %d bytes: allowed are 1 to %d bytes of UTF-8 without control characters", what, len(text), max)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s %q is not valid UTF-8: allowed are 1 to %d bytes of UTF-8 without control characters", what, text, max)
	}
	if i := strings.IndexFunc(text, unicode.IsControl); i >= 0 {
		r, _ := utf8.DecodeRuneInString(text[i:])
		return fmt.Errorf("%s %q has the control character %U at byte %d: allowed are 1 to %d bytes of UTF-8 without control characters", what, text, r, i, max)
	}
	return nil
}

// NewDigest names one logical write: a write id drawn once for it, and a hash of
// its content, which must cover all that the write does. Draw the id once and
// keep the digest through every resend: the same digest at the same position is
// recognised as the same write, another digest there as a twin's.
func NewDigest(writeID string, content []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s:", len(writeID), writeID)
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// Mark is what a resource remembers of the highest term that entered it or
// wrote to it. The zero Mark is that of a resource nobody has touched.
type Mark struct {
	Token   Token  // the highest token accepted; 0: none
	TermID  string // the first term id seen under Token; empty: none yet
	Renewal int64  // the highest renewal number seen of that term
}

// LaneMark is what a resource remembers of one lane. The zero LaneMark is that
// of a lane nobody has written to.
type LaneMark struct {
	Token    Token  // the token of the last write; 0: none
	Position int64  // its position
	Digest   string // its digest
}

// Check is the monotone rule. It accepts s if its token is above m's, or equal
// to it under the same term id with a renewal number of at least m's minus one,
// and returns the mark to keep. On refusal it returns m unchanged and a
// [StaleError], [ForkedError] or [InvalidError].
//
// Entering a resource and a plain fenced write apply the same rule; entering
// commits the new mark by itself, before anything is read or written under it.
//
// Check must run in the same atomic step as the write it guards.
func (m Mark) Check(s Stamp) (Mark, error) {
	if err := s.Validate(); err != nil {
		return m, err
	}
	return m.check(s)
}

func (m Mark) check(s Stamp) (Mark, error) {
	switch {
	case s.Token < m.Token:
		return m, &StaleError{Resource: s.Resource, Token: s.Token, Seen: m.Token, Why: "a higher token was seen"}
	case s.Token > m.Token:
		return Mark{Token: s.Token, TermID: s.TermID, Renewal: s.Renewal}, nil
	case s.TermID == "":
		// The token alone: owns nothing, and cannot be told from a fork.
		return m, nil
	case m.TermID == "":
		return Mark{Token: m.Token, TermID: s.TermID, Renewal: s.Renewal}, nil
	case s.TermID != m.TermID:
		return m, &ForkedError{Resource: s.Resource, Token: s.Token, TermID: s.TermID, Owner: m.TermID, Why: "another term owns this token"}
	case s.Renewal < m.Renewal-1:
		return m, &StaleError{
			Resource: s.Resource, Token: s.Token, Seen: m.Token, Renewal: s.Renewal, SeenRenewal: m.Renewal,
			Why: "the same term was seen with later renewals",
		}
	}
	m.Renewal = max(m.Renewal, s.Renewal)
	return m, nil
}

// CheckChain is the chained rule: the monotone rule, and s must carry the next
// position of its lane. One writer at a time uses a lane; a higher token starts
// every lane anew at position 1.
//
// It returns replayed true for the last write sent again (same position, same
// digest): it is already there, so the caller must report success and write
// nothing. The last position under another digest is a twin's: [ForkedError].
// An earlier position is refused with a [StaleError], a later one with a
// [GapError]. On refusal both marks are returned unchanged.
func CheckChain(m Mark, l LaneMark, s Stamp) (next Mark, lane LaneMark, replayed bool, err error) {
	if err := s.Validate(); err != nil {
		return m, l, false, err
	}
	if !s.Chained() {
		return m, l, false, &InvalidError{Stamp: s, Faults: []string{"position is 0: a chained write needs 1 or more"}}
	}
	next, err = m.check(s)
	if err != nil {
		return m, l, false, err
	}
	last := l
	if l.Token < s.Token {
		last = LaneMark{Token: s.Token}
	}
	switch {
	case l.Token > s.Token:
		// The lane is ahead of its resource's mark: the mark was lowered or lost.
		return m, l, false, &StaleError{Resource: s.Resource, Token: s.Token, Seen: l.Token, Lane: s.Lane, Position: s.Position, Why: "the lane was written under a higher token"}
	case s.Position == last.Position && s.Digest == last.Digest:
		return next, l, true, nil
	case s.Position == last.Position:
		return m, l, false, &ForkedError{
			Resource: s.Resource, Token: s.Token, TermID: s.TermID, Owner: m.TermID, Lane: s.Lane, Position: s.Position,
			Why: "another write stands at this position: a twin wrote it",
		}
	case s.Position < last.Position:
		return m, l, false, &StaleError{
			Resource: s.Resource, Token: s.Token, Seen: m.Token, Lane: s.Lane, Position: s.Position, Next: last.Position + 1,
			Why: "the lane has gone on past this position",
		}
	case s.Position > last.Position+1:
		return m, l, false, &GapError{Resource: s.Resource, Token: s.Token, Lane: s.Lane, Position: s.Position, Next: last.Position + 1}
	}
	return next, LaneMark{Token: s.Token, Position: s.Position, Digest: s.Digest}, false, nil
}
