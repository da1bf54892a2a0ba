package core

import (
	"time"

	"github.com/tenure-go/tenure/store"
)

// Event is something that happened to the candidate.
type Event interface{ event() }

// The events.
type (
	// Contend begins to contend, for one term or for ever.
	Contend struct{ Once bool }
	// Wake is the passing of time.
	Wake struct{}
	// Drawn answers Draw. The reading it comes with was taken just before the draw.
	Drawn struct{ Attempt store.Attempt }
	// Reply is what a call to the store came to. It may be late, and may come more
	// than once.
	Reply struct {
		Op      Op
		Attempt store.Attempt // that was sent; for a release, the term's id
		Lease   store.Lease   // of an acquire or renewal that succeeded
		Err     error
	}
	// Hint is a sign that a vacancy may exist.
	Hint struct{ Hint store.Hint }
	// Round says that other terms of this process are being renewed now, so that
	// this one can share the request.
	Round struct{}
	// Confirm asks for a renewal without delay.
	Confirm struct{}
	// JobDone says that the job of the current term has returned.
	JobDone struct{}
	// Yield asks to give up the term once its job has returned, and to contend
	// again.
	Yield struct{}
	// Stop asks to give up the term once its job has returned, and for good.
	Stop struct{}
	// Revoke ends the term at once, for a reason the store does not know. With
	// ErrDisrupted it also drops an attempt to acquire one.
	Revoke struct{ Cause, Err error }
)

func (Contend) event() {}
func (Wake) event()    {}
func (Drawn) event()   {}
func (Reply) event()   {}
func (Hint) event()    {}
func (Round) event()   {}
func (Confirm) event() {}
func (JobDone) event() {}
func (Yield) event()   {}
func (Stop) event()    {}
func (Revoke) event()  {}

// Op is a request to the store.
type Op int

// The requests.
const (
	OpAcquire Op = iota
	OpRenew
	OpRelease
	OpAbandon
)

// Action is something for the shell to do.
type Action interface{ action() }

// The actions.
type (
	// Draw asks for a new attempt id, to be answered with Drawn at once.
	Draw struct{}
	// Ask calls Acquire.
	Ask struct{ Attempt store.Attempt }
	// Renew calls Renew.
	Renew struct {
		Lease   store.Lease
		Attempt store.Attempt
	}
	// Release calls Release. Attempt is the pending renewal, or empty.
	Release struct {
		Lease   store.Lease
		Attempt store.Attempt
	}
	// Abandon calls Abandon.
	Abandon struct{ Attempt store.Attempt }
	// Cancel ends the call that is out, without waiting for its time-out.
	Cancel struct{}
	// Begin publishes a new term and starts its job.
	Begin struct {
		Lease  store.Lease
		Anchor Reading
	}
	// Extend publishes an answered renewal.
	Extend struct {
		Lease  store.Lease
		Anchor Reading
	}
	// Drain asks the job to end. The term stays valid and is renewed meanwhile.
	Drain struct{}
	// End publishes that the term is over and tells the job to stop.
	End struct {
		Lease store.Lease
		Cause error
		Err   error // what the store or the resource said, if it did
	}
	// Overdue says that the job is still there although its deadline has passed.
	Overdue struct{ Lease store.Lease }
	// Over says that nothing of the term is left: the job has returned and the
	// release, if one was due, is settled.
	Over struct {
		Lease    store.Lease
		Cause    error
		Released bool
		Err      error
	}
	// Halt says that the candidate has stopped.
	Halt struct{}

	// Held, AskFailed and RenewFailed are news for people.
	Held        struct{ Err *store.HeldError }
	AskFailed   struct{ Err error }
	RenewFailed struct {
		Err  error
		Left time.Duration // until the term ends if no renewal is answered
	}
)

func (Draw) action()        {}
func (Ask) action()         {}
func (Renew) action()       {}
func (Release) action()     {}
func (Abandon) action()     {}
func (Cancel) action()      {}
func (Begin) action()       {}
func (Extend) action()      {}
func (Drain) action()       {}
func (End) action()         {}
func (Overdue) action()     {}
func (Over) action()        {}
func (Halt) action()        {}
func (Held) action()        {}
func (AskFailed) action()   {}
func (RenewFailed) action() {}
