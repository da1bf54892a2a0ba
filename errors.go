package tenure

import (
	"errors"
	"fmt"

	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// ErrLost is the kind of every error that says a term has ended. A *[LostError]
// has the detail; if its cause is [ErrClosed], the term was not lost but given up.
var ErrLost = errors.New("tenure: leadership lost")

// Why a term ended: the causes in a [LostError], and in [context.Cause] of the
// job's context.
var (
	// ErrExpired: no renewal was answered in time.
	ErrExpired = store.ErrExpired
	// ErrSuperseded: the election has another term, or this one was released
	// elsewhere.
	ErrSuperseded = store.ErrSuperseded
	// ErrCloned: a copy of this process uses the same term.
	ErrCloned = store.ErrCloned
	// ErrEvicted: an operator asked the term to go.
	ErrEvicted = store.ErrEvicted
	// ErrDenied: the store refuses permission, and did so until the term ended.
	ErrDenied = store.ErrDenied
	// ErrRecordGone: the record was removed from the store, or the store lost
	// renewals it had answered.
	ErrRecordGone = core.ErrRecordGone
	// ErrDisrupted: this process was paused, restored, forked or copied.
	ErrDisrupted = core.ErrDisrupted
	// ErrStalled: the job reported no progress for longer than
	// [Options].StallAfter.
	ErrStalled = core.ErrStalled
	// ErrFenced: a resource refused the term's stamp.
	ErrFenced = core.ErrFenced
	// ErrPanicked: the store's client panicked.
	ErrPanicked = core.ErrPanicked
	// ErrClosed: the term was given up: its job returned, or it was told to.
	ErrClosed = core.ErrClosed
)

// What keeps a candidate from leading.
var (
	// ErrHeld: another term holds the election; *[HeldError] has the detail.
	ErrHeld = store.ErrHeld
	// ErrBusy: this Elector contends already. Use one for each.
	ErrBusy = errors.New("tenure: this elector is already contending")
	// ErrGoexit: the job ended its goroutine with [runtime.Goexit].
	ErrGoexit = errors.New("tenure: the job called runtime.Goexit")
)

// HeldError says who holds an election and for how long, as of the answer.
type HeldError = store.HeldError

// LostError says which term ended and why. [errors.Is] matches it with
// [ErrLost], with its cause and with what the store or the resource said.
type LostError struct {
	Term  Info
	Cause error // one of the causes above
	Err   error // what the store or the resource said, if it did
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("tenure: leadership of %q lost (token %d): %s", e.Term.Name, e.Term.Token, reason(e.Cause))
	if e.Err != nil && e.Err.Error() != fmt.Sprint(e.Cause) {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns [ErrLost], the cause, and what was said.
func (e *LostError) Unwrap() []error {
	errs := []error{ErrLost, e.Cause}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// Reason is the short name of a cause, or of a *[LostError]'s, for logs and
// metric labels: "expired",
// "superseded", "cloned", "evicted", "denied", "record_gone", "disrupted",
// "stalled", "fenced", "panicked", "closed", or "other".
func Reason(cause error) string {
	var lost *LostError
	if errors.As(cause, &lost) {
		cause = lost.Cause // not what was said beside it
	}
	for _, r := range reasons {
		if errors.Is(cause, r.cause) {
			return r.name
		}
	}
	return "other"
}

func reason(cause error) string {
	for _, r := range reasons {
		if errors.Is(cause, r.cause) {
			return r.text
		}
	}
	return fmt.Sprint(cause)
}

var reasons = []struct {
	cause      error
	name, text string
}{
	{ErrCloned, "cloned", "a copy of this process uses the same term"},
	{ErrFenced, "fenced", "a resource refused it"},
	{ErrEvicted, "evicted", "evicted by an operator"},
	{ErrDisrupted, "disrupted", "this process was paused, restored, forked or copied"},
	{ErrStalled, "stalled", "the job made no progress"},
	{ErrRecordGone, "record_gone", "the record is gone from the store"},
	{ErrSuperseded, "superseded", "another term has the election"},
	{ErrDenied, "denied", "the store refuses permission"},
	{ErrPanicked, "panicked", "the store's client panicked"},
	{ErrExpired, "expired", "no renewal was answered in time"},
	{ErrClosed, "closed", "it was given up"},
}

// PanicError is what [Elector.Run] and its siblings panic with, in the caller's
// goroutine and after the release, when the job panicked.
type PanicError struct {
	Value any    // what the job panicked with
	Stack []byte // of the job's goroutine
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("tenure: the job panicked: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
