package fence

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of refusal. Match them with [errors.Is]; the typed errors below
// carry the detail. ErrStale, ErrForked and ErrGap end the writer's term:
// [Refused] tells.
var (
	// ErrStale: the resource has seen something later than this stamp.
	ErrStale = errors.New("fence: stale stamp")
	// ErrForked: two lines of descent use one token. Nobody can tell which is
	// the true one, so this one must stop.
	ErrForked = errors.New("fence: forked term")
	// ErrGap: a chained write skipped a position, so the resource lost writes or
	// the writer did.
	ErrGap = errors.New("fence: gap in the chain")
	// ErrInvalid: the stamp itself is malformed; nothing was checked.
	ErrInvalid = errors.New("fence: invalid stamp")
)

// Refused reports whether err is a resource's refusal that must end the term of
// the writer that sees it: [ErrStale], [ErrForked] or [ErrGap]. A malformed
// stamp is the caller's mistake and does not.
func Refused(err error) bool {
	return errors.Is(err, ErrStale) || errors.Is(err, ErrForked) || errors.Is(err, ErrGap)
}

// StaleError is an [ErrStale] with what was shown and what had been seen.
type StaleError struct {
	Resource             string
	Token, Seen          Token
	Renewal, SeenRenewal int64  // set when the tokens are equal and the renewal number was too old
	Lane                 string // set with Position
	Position, Next       int64  // set when a chained write came again or late
	Why                  string
}

func (e *StaleError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "fence: resource %q refused stale token %d: %s", e.Resource, e.Token, e.Why)
	switch {
	case e.Position > 0 && e.Next > 0:
		fmt.Fprintf(&b, " (lane %q, position %d, next is %d)", e.Lane, e.Position, e.Next)
	case e.SeenRenewal > 0:
		fmt.Fprintf(&b, " (renewal %d, seen %d)", e.Renewal, e.SeenRenewal)
	default:
		fmt.Fprintf(&b, " (seen %d)", e.Seen)
	}
	return b.String()
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// ForkedError is an [ErrForked] with both sides of the fork.
type ForkedError struct {
	Resource      string
	Token         Token
	TermID, Owner string // the term that was refused, and the one the resource knows
	Lane          string // set with Position
	Position      int64
	Why           string
}

func (e *ForkedError) Error() string {
	s := fmt.Sprintf("fence: resource %q refused token %d of term %q: %s (known term %q)", e.Resource, e.Token, e.TermID, e.Why, e.Owner)
	if e.Position > 0 {
		s += fmt.Sprintf(", lane %q, position %d", e.Lane, e.Position)
	}
	return s
}

// Is reports whether target is [ErrForked].
func (e *ForkedError) Is(target error) bool { return target == ErrForked }

// GapError is an [ErrGap] with the position that was expected.
type GapError struct {
	Resource       string
	Token          Token
	Lane           string
	Position, Next int64
}

func (e *GapError) Error() string {
	return fmt.Sprintf("fence: resource %q refused position %d of lane %q under token %d: next is %d", e.Resource, e.Position, e.Lane, e.Token, e.Next)
}

// Is reports whether target is [ErrGap].
func (e *GapError) Is(target error) bool { return target == ErrGap }

// InvalidError is an [ErrInvalid]: what is wrong with the stamp, part by part,
// and what is allowed.
type InvalidError struct {
	Stamp  Stamp
	Faults []string
}

func (e *InvalidError) Error() string {
	return "fence: invalid stamp: " + strings.Join(e.Faults, "; ")
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }
