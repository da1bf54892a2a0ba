package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Observer hears what happens to an elector. Observe is called from the
// election's own loop, one event after the other: it must not block, since
// renewals wait for it, and must not call [Term.Confirm], or [Term.Resign] of a
// term of [Elector.Campaign], which wait for that loop. Whether a term is valid
// does not depend on it. A panic of Observe, or a runtime.Goexit, is logged, and
// nothing else.
type Observer interface{ Observe(Event) }

// ObserverFunc makes an Observer of a function.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// Observers combines observers; each hears every event, in the order given.
func Observers(all ...Observer) Observer {
	return ObserverFunc(func(e Event) {
		for _, o := range all {
			if o != nil {
				o.Observe(e)
			}
		}
	})
}

// shielded returns what tells all of them, each whatever the others do: a panic
// of an observer must not end the renewals under a running job.
func shielded(log *slog.Logger, all ...Observer) func(Event) {
	return func(e Event) {
		for _, o := range all {
			if o == nil {
				continue
			}
			if err := caught(func() { o.Observe(e) }); err != nil {
				_ = caught(func() { log.Error("an observer broke", "event", fmt.Sprintf("%T", e), "error", err) })
			}
		}
	}
}

var errBroke = errors.New("it panicked")

// caught runs f and returns its panic or its end of the goroutine, if it does.
func caught(f func()) error {
	_, err := guarded(errBroke, func() (struct{}, error) {
		f()
		return struct{}{}, nil
	})
	return err
}

// Event is one of the types below.
type Event interface{ event() }

// The events of an elector.
type (
	// Waiting: another term holds the election.
	Waiting struct {
		Name string
		Held *HeldError
	}
	// AskFailed: the store could not be asked, or did not answer, or refused. The
	// candidate asks again, unless that makes no sense (see [Elector.Run]).
	AskFailed struct {
		Name string
		Err  error
	}
	// Acquired: this process leads.
	Acquired struct{ Term Info }
	// Renewed: a renewal was answered.
	Renewed struct{ Term Info }
	// RenewFailed is the warning before a loss: a renewal was not answered, or not
	// with a clear yes. Left is the time until the term ends if none is.
	RenewFailed struct {
		Term Info
		Err  error
		Left time.Duration
	}
	// Draining: the job was told to end; the term stays valid and is renewed until
	// it has.
	Draining struct{ Term Info }
	// Lost: the term has ended before its job did, or before it was to be released.
	Lost struct {
		Term Info
		Err  *LostError
	}
	// JobEnded: the job returned, failed or panicked (a *[PanicError]).
	JobEnded struct {
		Term Info
		Err  error
	}
	// Overdue: the term is lost, its deadline has passed, and the job has still not
	// returned. Another leader may be at work beside it: only a fence, or the end
	// of the process, helps now. It is not told of a term of [Elector.Campaign].
	Overdue struct{ Term Info }
	// Released: nothing of the term is left. Free says whether the store confirmed
	// the release, so that the next leader need not wait for the expiry; Err why
	// not.
	Released struct {
		Term Info
		Free bool
		Err  error
	}
)

func (Waiting) event()     {}
func (AskFailed) event()   {}
func (Acquired) event()    {}
func (Renewed) event()     {}
func (RenewFailed) event() {}
func (Draining) event()    {}
func (Lost) event()        {}
func (JobEnded) event()    {}
func (Overdue) event()     {}
func (Released) event()    {}

// logTo writes events for people.
func logTo(log *slog.Logger, name string) ObserverFunc {
	log = log.With("election", name)
	var waitingFor string
	return func(e Event) {
		say := func(level slog.Level, text string, args ...any) { log.Log(context.Background(), level, text, args...) }
		switch e := e.(type) {
		case Waiting:
			if waitingFor != e.Held.Holder {
				waitingFor = e.Held.Holder
				say(slog.LevelInfo, "waiting: held by another", "holder", e.Held.Holder, "token", e.Held.Token, "remaining", e.Held.Remaining)
			}
		case AskFailed:
			waitingFor = ""
			say(slog.LevelWarn, "the store gave no answer to a claim; asking again", "error", e.Err)
		case Acquired:
			waitingFor = ""
			say(slog.LevelInfo, "leading", "token", e.Term.Token, "term", e.Term.ID, "holder", e.Term.Holder)
		case Renewed:
			say(slog.LevelDebug, "renewed", "token", e.Term.Token, "renewal", e.Term.Renewal)
		case RenewFailed:
			say(slog.LevelWarn, "renewal failed; trying again", "token", e.Term.Token, "left", e.Left, "error", e.Err)
		case Draining:
			say(slog.LevelInfo, "ending the job before the release", "token", e.Term.Token)
		case Lost:
			say(slog.LevelError, "leadership lost", "token", e.Term.Token, "reason", Reason(e.Err.Cause), "error", e.Err)
		case JobEnded:
			if e.Err != nil {
				say(slog.LevelError, "the job failed", "token", e.Term.Token, "error", e.Err)
			}
		case Overdue:
			say(slog.LevelError, "the job is still running after its deadline; another leader may be at work", "token", e.Term.Token)
		case Released:
			switch {
			case errors.Is(e.Err, ErrSuperseded), errors.Is(e.Err, ErrExpired):
				say(slog.LevelInfo, "nothing to release: the lease is not this term's any more", "token", e.Term.Token)
			case e.Err != nil:
				say(slog.LevelWarn, "could not release; the lease runs out by itself", "token", e.Term.Token, "error", e.Err)
			case e.Free:
				say(slog.LevelInfo, "released", "token", e.Term.Token)
			}
		}
	}
}
