package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/control"
	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/cmd/tenure/internal/notify"
)

// job is one term: it enters the fences, runs the command, and returns when
// nothing of it is left, so that only then the election can be freed.
func (r *runner) job(ctx context.Context, term *tenure.Term) error {
	r.mu.Lock()
	r.term = term
	r.mu.Unlock()
	err := r.lead(ctx, term)

	resigned := errors.Is(context.Cause(ctx), tenure.ErrClosed)
	over := r.ctx.Err() != nil // this process was told to end
	if r.c.Keep && !over {
		if term.Err() != nil || resigned || startedTooLate(err) {
			return nil // Run contends again
		}
		defer r.cancel(errOver)
	}
	r.mu.Lock()
	r.ended, r.result = true, err
	r.mu.Unlock()
	return err
}

// startedTooLate reports whether there was too little left of the term to start
// the command in. The term may still be valid then, for a moment.
func startedTooLate(err error) bool {
	var start *guard.StartError
	return errors.As(err, &start) && start.Code == guard.CodeTooLate
}

// commandError is a command that did not end with 0. It has said itself why.
type commandError struct{ code int }

func (e *commandError) Error() string { return fmt.Sprintf("the command ended with code %d", e.code) }

// lead runs the command in term.
func (r *runner) lead(ctx context.Context, term *tenure.Term) (result error) {
	for _, f := range r.fences {
		if err := f.enter(ctx, term); err != nil {
			return err
		}
	}
	if r.marker != nil {
		stop, err := r.keepMarker(term)
		if err != nil {
			return usage("--marker: %v", err)
		}
		defer func() { result = errors.Join(result, stop()) }()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	proc, err := r.start(term)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		proc.Stop(r.c.killAfter())
		<-proc.Gone()
	case <-proc.Gone():
	}
	r.mu.Lock()
	r.proc = nil
	r.mu.Unlock()
	if code := proc.ExitCode(); code != 0 {
		return &commandError{code}
	}
	return nil
}

// start starts the command under its guardian.
func (r *runner) start(term *tenure.Term) (*guard.Proc, error) {
	r.starting.Lock()
	defer r.starting.Unlock()
	stepDown, kill := limits(term, r.c.killAfter())
	cfg := guard.Config{
		Command: r.c.Command, Env: r.environ(term), KillAfter: r.c.killAfter(),
		StepDown: stepDown, Kill: kill, Log: r.log,
	}
	if r.dir != nil {
		cfg.LastRemove = r.dir.path
	}
	proc, err := guard.Start(r.reaper, cfg)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.proc = proc
	r.mu.Unlock()
	r.renewed() // a renewal may have been answered meanwhile
	return proc, nil
}

// keepMarker writes the marker of term, writes it anew at each renewal, and
// removes it as soon as the term is over, or when stop is called. A slow disk
// delays nothing else.
func (r *runner) keepMarker(term *tenure.Term) (stop func() error, err error) {
	info := term.Info()
	write := func() error {
		stepDown, _ := limits(term, r.c.killAfter())
		return r.marker.Write(info.Name, decimal(int64(info.Token)), info.ID, stepDown)
	}
	if err := write(); err != nil {
		return nil, err
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for term.Err() == nil {
			select {
			case <-r.renewals:
				if err := write(); err != nil {
					r.log.Warn("the marker was not renewed, and is soon taken for stale", "error", err)
				}
			case <-term.Done():
			case <-end:
				return
			}
		}
		if err := r.marker.Remove(); err != nil {
			r.log.Warn("the marker was not removed, and is soon taken for stale", "error", err)
		}
	}()
	return func() error {
		close(end)
		<-ended
		return r.marker.Remove()
	}, nil
}

// renewed tells the guardian the new limits, and whoever keeps the marker.
func (r *runner) renewed() {
	select {
	case r.renewals <- struct{}{}:
	default:
	}
	r.mu.Lock()
	proc, term := r.proc, r.term
	r.mu.Unlock()
	if proc != nil && term.Err() == nil {
		proc.SetLimits(limits(term, r.c.killAfter()))
	}
}

// limits are the moments that the guardian keeps by itself. The clocks are read
// first, so that whatever time passes in between makes them earlier.
func limits(term *tenure.Term, killAfter time.Duration) (stepDown, kill guard.Instant) {
	now := guard.Now()
	stepDown = now.Add(term.StepDownIn())
	deadline := now.Add(term.Remaining() - killLead)
	return stepDown, stepDown.Add(killAfter).Earlier(deadline)
}

// killLead is how long before the deadline KILL is sent at the latest: what it
// takes to find and to end every process, and for the wrapper to notice if the
// guardian does not.
const killLead = 100 * time.Millisecond

// environ is the command's environment: this process's own without what an
// outer tenure or service manager told it alone, and with what the term says.
func (r *runner) environ(term *tenure.Term) []string {
	var env []string
	for _, line := range os.Environ() {
		name, _, _ := strings.Cut(line, "=")
		switch {
		case name == "TENURE_STORE" || name == "TENURE_STORE_FILE": // the user's own
		case strings.HasPrefix(name, "TENURE_"), notify.Owned(name):
			continue
		}
		env = append(env, line)
	}
	info := term.Info()
	env = append(env, "TENURE_NAME="+info.Name, "TENURE_TOKEN="+decimal(int64(info.Token)), "TENURE_TERM="+info.ID)
	if r.control != nil {
		env = append(env, "TENURE_CONTROL="+r.control.Path())
	}
	if r.notify != nil {
		env = append(env, r.notify.Environ(r.c.StallAfter)...)
	}
	return env
}

// progress feeds the watchdog.
func (r *runner) progress() {
	if t := r.current(); t != nil {
		t.Progress()
	}
}

// answer serves `tenure check`, `progress` and `resign` in the job.
func (r *runner) answer(ctx context.Context, q control.Request) control.Answer {
	a := control.Answer{Name: r.c.Name}
	term := r.current()
	switch {
	case term == nil:
		a.Reason = "this candidate has not led yet"
		return a
	case q.Term != "" && q.Term != term.Info().ID:
		a.Reason = "the term that the job was started in is over"
		return a
	}
	info := term.Info()
	a.Term, a.Token = info.ID, decimal(int64(info.Token))
	err := term.Err()
	if err == nil {
		switch q.Do {
		case control.DoCheck:
			if q.Confirm {
				if err = term.Confirm(ctx); err == nil {
					a.Confirmed = true
				}
			}
		case control.DoProgress:
			term.Progress()
		case control.DoResign:
			err = term.Resign(ctx)
		}
	}
	switch {
	case errors.Is(err, tenure.ErrLost):
		a.Reason = tidy(r.store.url.Clean(err.Error()))
	case err != nil:
		a.Error = fmt.Sprintf("cannot say: %s", r.store.url.Clean(err.Error()))
	default:
		a.Leading, a.RemainingMS = true, decimal(term.Remaining().Milliseconds())
	}
	return a
}
