package main

import (
	"errors"
	"fmt"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// The exit codes of tenure itself. `tenure run` passes the command's own on.
const (
	exitNo          = 1  // the answer is no: nobody to evict, no such record, a case failed
	exitUsage       = 64 // the command line, the environment or a name is wrong
	exitUnreachable = 69 // the store cannot be asked, or cannot do it
	exitInternal    = 70 // something that should not happen
	exitHeld        = 75 // another leads
	exitLost        = 76 // this process, or the job that asks, leads no more
	exitDenied      = 77 // the store refuses permission
)

// exitError is an error with an exit code of its own. Without a text nothing is
// printed: it was said already, or is the command's own business.
type exitError struct {
	code int
	text string
	err  error // what it wraps, if anything
}

func (e *exitError) Error() string { return e.text }
func (e *exitError) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &exitError{code: code, text: fmt.Sprintf(format, args...)}
}

// usage is an error of the command line.
func usage(format string, args ...any) error { return exitf(exitUsage, format, args...) }

// exitCode is the exit code for an error.
func exitCode(err error) int {
	var own *exitError
	var start *guard.StartError
	var command *commandError
	switch {
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, tenure.ErrLost): // before its cause, and before what became of the command
		return exitLost
	case errors.As(err, &command):
		return command.code
	case errors.As(err, &start) && start.Code == guard.CodeTooLate:
		return exitLost
	case errors.As(err, &start) && start.Code > 0:
		return start.Code
	}
	for _, class := range []struct {
		code  int
		kinds []error
	}{
		{exitHeld, []error{store.ErrHeld}},
		{exitDenied, []error{store.ErrDenied}},
		{exitUsage, []error{store.ErrInvalid, fence.ErrInvalid}},
		{exitUnreachable, []error{
			store.ErrUnreachable, store.ErrBusy, store.ErrReadOnly, store.ErrFormat, store.ErrUnsupported, store.ErrStoreClosed, store.ErrTokens,
		}},
		{exitNo, []error{store.ErrNoRecord, store.ErrVacant}},
	} {
		for _, kind := range class.kinds {
			if errors.Is(err, kind) {
				return class.code
			}
		}
	}
	return exitInternal
}
