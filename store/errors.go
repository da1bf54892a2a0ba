package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/fence"
)

// What a store answers instead of a lease. They are told apart everywhere:
// being refused, not being allowed, and not getting an answer have different
// remedies.
var (
	// ErrHeld: another term holds the election. *[HeldError] has the detail.
	ErrHeld = errors.New("tenure: held by another")
	// ErrSpent: this attempt was granted before and can be used no more (it was
	// renewed, released, given back or expired). Draw another.
	ErrSpent = errors.New("tenure: attempt already spent")
	// ErrNoRecord: the store has no record of the election.
	ErrNoRecord = errors.New("tenure: no record")
	// ErrVacant: nobody holds the election.
	ErrVacant = errors.New("tenure: vacant")
	// ErrSuperseded: another term has the election now.
	ErrSuperseded = errors.New("tenure: superseded by another term")
	// ErrExpired: the term's expiry has passed by the store's clock.
	ErrExpired = errors.New("tenure: lease expired")
	// ErrReleased: the term was released.
	ErrReleased = errors.New("tenure: term was released")
	// ErrCloned: the term has a twin and is burnt. *[ClonedError] has the detail.
	ErrCloned = errors.New("tenure: term was cloned")
	// ErrReceipt: the receipt presented is neither the current one nor the one
	// just consumed. Nothing changed. *[ReceiptError] has the detail.
	ErrReceipt = errors.New("tenure: receipt is not current")
	// ErrEvicted: an operator asked the term to go.
	ErrEvicted = errors.New("tenure: evicted by an operator")
	// ErrTokens: the next token would be above [fence.MaxToken].
	ErrTokens = errors.New("tenure: out of tokens")
)

// What keeps a store from answering.
var (
	// ErrInvalid: the request itself is out of bounds; nothing was asked.
	ErrInvalid = errors.New("tenure: invalid")
	// ErrDenied: the store refused permission.
	ErrDenied = errors.New("tenure: permission denied")
	// ErrUnreachable: the store could not be asked.
	ErrUnreachable = errors.New("tenure: store unreachable")
	// ErrBusy: the store is there but did not get to the request in time.
	ErrBusy = errors.New("tenure: store busy")
	// ErrReadOnly: the store, or this node of it, takes no writes.
	ErrReadOnly = errors.New("tenure: store is read-only")
	// ErrFormat: the store's records are of a newer format than this program knows.
	ErrFormat = errors.New("tenure: record has a newer format")
	// ErrUnsupported: the store cannot do this at all.
	ErrUnsupported = errors.New("tenure: not supported by this store")
	// ErrStoreClosed: the store was closed in this process.
	ErrStoreClosed = errors.New("tenure: store is closed")
)

// HeldError is an [ErrHeld] that says by whom and for how long. All of it may
// be stale on return.
type HeldError struct {
	Name      string
	Holder    string
	Token     fence.Token
	Remaining time.Duration // until the expiry, by the store's clock
	Burnt     bool          // the holder's term is burnt; nobody gets in before the expiry
	Foreign   bool          // written under another clock; Remaining counts from when that was first seen
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("tenure: %q is held by %q, token %d, for another %v", e.Name, e.Holder, e.Token, e.Remaining.Round(time.Millisecond))
	switch {
	case e.Burnt:
		s += " (its term was cloned and is burnt; its expiry stands)"
	case e.Foreign:
		s += " (written before this host started or before the file was copied; a full TTL is waited out)"
	}
	return s
}

// Is reports whether target is [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// ClonedError is an [ErrCloned] with the evidence.
type ClonedError struct {
	Name string
	Burn Burn
}

func (e *ClonedError) Error() string {
	return fmt.Sprintf("tenure: term %s of %q (token %d) was cloned: receipt %s was presented by attempt %s and again by attempt %s",
		e.Burn.TermID, e.Name, e.Burn.Token, e.Burn.Receipt, e.Burn.First, e.Burn.Second)
}

// Is reports whether target is [ErrCloned].
func (e *ClonedError) Is(target error) bool { return target == ErrCloned }

// ReceiptError is an [ErrReceipt] with both renewal numbers. If the store's is
// the higher one, another copy of this process renewed meanwhile; if it is not,
// the store lost renewals it had answered.
type ReceiptError struct {
	Name      string
	Token     fence.Token
	Presented int64 // the renewal number that came with the receipt
	Current   int64 // the store's
}

func (e *ReceiptError) Error() string {
	why := "the store has lost renewals that it had answered"
	if e.Current > e.Presented {
		why = "another copy of this process has renewed meanwhile"
	}
	return fmt.Sprintf("tenure: receipt of renewal %d of %q (token %d) is not current, the store is at %d: %s", e.Presented, e.Name, e.Token, e.Current, why)
}

// Is reports whether target is [ErrReceipt].
func (e *ReceiptError) Is(target error) bool { return target == ErrReceipt }

// EvictedError is an [ErrEvicted] with the operator's reason.
type EvictedError struct {
	Name   string
	Reason string
}

func (e *EvictedError) Error() string {
	return fmt.Sprintf("tenure: evicted from %q by an operator: %s", e.Name, e.Reason)
}

// Is reports whether target is [ErrEvicted].
func (e *EvictedError) Is(target error) bool { return target == ErrEvicted }

// Invalid returns an [ErrInvalid] with the given text, which says what was
// wrong and what is allowed.
func Invalid(text string) error { return &invalidError{text} }

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return "tenure: " + e.text }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

// answers are the errors by which a store said, definitely, that the request
// was not carried out.
var answers = []error{
	ErrHeld, ErrSpent, ErrNoRecord, ErrVacant, ErrSuperseded, ErrExpired, ErrReleased, ErrCloned, ErrReceipt, ErrEvicted, ErrTokens,
	ErrInvalid, ErrDenied, ErrReadOnly, ErrFormat, ErrUnsupported, ErrStoreClosed,
}

// OutcomeUnknown reports whether a request that failed with err may have been
// carried out all the same. An error of a store can say so itself, with a
// method OutcomeUnknown() bool; the answers of this package say no; anything
// else is unknown.
func OutcomeUnknown(err error) bool {
	if err == nil {
		return false
	}
	var says interface{ OutcomeUnknown() bool }
	if errors.As(err, &says) {
		return says.OutcomeUnknown()
	}
	for _, a := range answers {
		if errors.Is(err, a) {
			return false
		}
	}
	return true
}

// Undone wraps an error of a request that certainly was not carried out (the
// connection was refused, say), so that [OutcomeUnknown] reports false.
func Undone(err error) error { return &undoneError{err} }

type undoneError struct{ err error }

func (e *undoneError) Error() string        { return e.err.Error() }
func (e *undoneError) Unwrap() error        { return e.err }
func (e *undoneError) OutcomeUnknown() bool { return false }
