package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/tenure-go/tenure/cmd/tenure/internal/control"
	"github.com/tenure-go/tenure/cmd/tenure/internal/marker"
)

// checkCmd is `tenure check`.
type checkCmd struct {
	jsonFlag
	Name    string `arg:"" optional:"" help:"The election. Default: the one the job was started in."`
	Confirm bool   `help:"Ask the store, with a renewal, instead of this machine's clocks."`
	Marker  string `placeholder:"FILE" help:"Judge a marker file of this host instead of asking the tenure run above."`
}

// Help is shown by `tenure check --help`.
func (*checkCmd) Help() string {
	return `Exit code 0: leading. 76: not, or no more. 69: the store could not confirm it, which says neither.
The answer may be stale as soon as it is there; only a fence at the resource cannot be.`
}

// Run asks the `tenure run` above, or looks at a marker file.
func (c *checkCmd) Run(ctx context.Context, a *app) error {
	if c.Marker != "" {
		return c.checkMarker(a)
	}
	answer, err := ask(ctx, a, c.Name, control.Request{Do: control.DoCheck, Confirm: c.Confirm})
	if errors.Is(err, control.ErrGone) {
		answer, err = control.Answer{Name: a.getenv("TENURE_NAME"), Reason: err.Error()}, nil
	}
	if err != nil {
		return err
	}
	if c.JSON {
		if err := a.printJSON(answer); err != nil {
			return err
		}
	}
	switch {
	case answer.Leading && !c.JSON:
		ms, _ := time.ParseDuration(answer.RemainingMS + "ms")
		confirmed := ""
		if answer.Confirmed {
			confirmed = ", confirmed by the store"
		}
		fmt.Fprintf(a.stdout, "leading %s, token %s, %s left%s\n", answer.Name, answer.Token, short(ms), confirmed)
	case !answer.Leading:
		return exitf(exitLost, "not leading %q: %s", answer.Name, answer.Reason)
	}
	return nil
}

// checkMarker judges a marker file.
func (c *checkCmd) checkMarker(a *app) error {
	if c.Confirm {
		return usage("--confirm and --marker are both set: a file cannot confirm anything")
	}
	m, err := marker.Read(c.Marker)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exitf(exitLost, "nobody leads: there is no marker %s", c.Marker)
	case err != nil:
		return usage("--marker: %v", err)
	case c.Name != "" && c.Name != m.Name:
		return usage("the marker %s is of %q, not of %q", c.Marker, m.Name, c.Name)
	}
	if err := m.Check(); err != nil {
		return exitf(exitLost, "%s: %v", c.Marker, err)
	}
	if c.JSON {
		return a.printJSON(m)
	}
	fmt.Fprintf(a.stdout, "process %d leads %s, token %s\n", m.PID, m.Name, m.Token)
	return nil
}

// progressCmd is `tenure progress`.
type progressCmd struct{}

// Help is shown by `tenure progress --help`.
func (*progressCmd) Help() string {
	return `A job under 'tenure run --stall-after' calls this more often than that. Exit code 76: the leadership is lost.`
}

// Run feeds the watchdog.
func (c *progressCmd) Run(ctx context.Context, a *app) error {
	return tell(ctx, a, control.DoProgress)
}

// resignCmd is `tenure resign`.
type resignCmd struct{}

// Help is shown by `tenure resign --help`.
func (*resignCmd) Help() string {
	return `The job gets TERM, and the election is free when nothing of it is left. Exit code 76: the leadership is lost already.
From outside of the job, an operator uses 'tenure evict'.`
}

// Run asks the `tenure run` above to give the term up. It does not wait for it.
func (c *resignCmd) Run(ctx context.Context, a *app) error {
	return tell(ctx, a, control.DoResign)
}

// tell makes a request whose answer is no more than yes or no.
func tell(ctx context.Context, a *app, do string) error {
	answer, err := ask(ctx, a, "", control.Request{Do: do})
	switch {
	case errors.Is(err, control.ErrGone):
		return exitf(exitLost, "not leading %q: %v", a.getenv("TENURE_NAME"), err)
	case err != nil:
		return err
	case !answer.Leading:
		return exitf(exitLost, "not leading %q: %s", answer.Name, answer.Reason)
	}
	return nil
}

// ask asks the `tenure run` that this process was started under.
func ask(ctx context.Context, a *app, name string, r control.Request) (control.Answer, error) {
	path := a.getenv("TENURE_CONTROL")
	switch own := a.getenv("TENURE_NAME"); {
	case path == "":
		return control.Answer{}, usage("TENURE_CONTROL is not set: allowed only within a command of 'tenure run'; from outside there are 'tenure status' and 'tenure evict'")
	case name != "" && name != own:
		return control.Answer{}, usage("this job leads %q, not %q", own, name)
	}
	r.Term = a.getenv("TENURE_TERM")
	ctx, cancel := context.WithTimeoutCause(ctx, 4*requestTimeout, errors.New("the tenure run above does not answer"))
	defer cancel()
	answer, err := control.Ask(ctx, path, r)
	if err != nil && !errors.Is(err, control.ErrGone) {
		return answer, &exitError{code: exitUnreachable, text: err.Error(), err: err}
	}
	return answer, err
}
