package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/cmd/tenure/internal/marker"
	"github.com/tenure-go/tenure/store"
)

// runCmd is `tenure run`: its flags, and how they are checked. What it does is
// in runner.go (contending) and job.go (one term).
type runCmd struct {
	storeFlags
	Name    string   `arg:"" help:"The election: one process leads it at a time."`
	Command []string `arg:"" passthrough:"partial" help:"The command and its arguments, after --."`

	Wait        *time.Duration `xor:"wait" placeholder:"DURATION" help:"Give up with 75 if not elected for so long. Default: wait for ever."`
	NoWait      bool           `xor:"wait" help:"Give up with 75 at once if another leads. A store that is busy or does not answer is tried for at most 5s and two thirds of --ttl; then 69."`
	Keep        bool           `help:"Contend again after a lost or resigned leadership, instead of ending with 76. The command's own end is still the end."`
	TTL         time.Duration  `name:"ttl" default:"15s" placeholder:"DURATION" help:"How long the lease stands without a renewal, and so how long a takeover takes after a crash. Default: ${default}."`
	HoldAtLeast time.Duration  `placeholder:"DURATION" help:"Hold the leadership for at least so long, also when the command ends earlier: a job started twice by clocks that differ runs once."`
	KillAfter   *time.Duration `placeholder:"DURATION" help:"From TERM to KILL when the command is to end. Default, and most: what the lease leaves after a loss, about a third of --ttl."`
	StallAfter  time.Duration  `placeholder:"DURATION" help:"End the term if the command reports no progress for so long, by 'tenure progress' or by WATCHDOG=1 to $$NOTIFY_SOCKET. Default: never."`
	Fence       []string       `sep:"none" placeholder:"RESOURCE" help:"Enter this fenced resource before the command starts, so that an earlier leader's writes are refused from then on: a name in the store's own database (without a scheme such as sqlite: before it), or sqlite:PATH#NAME. Repeatable."`
	Marker      string         `placeholder:"FILE" help:"A file that is there while the command leads, with host boot, process, token, term and when that ends unless renewed. 'tenure check --marker' judges it."`
	Holder      string         `placeholder:"TEXT" help:"A label for people who ask who leads. It grants nothing. Default: host name and process id."`
	ExitHeld    int            `default:"75" placeholder:"CODE" help:"Exit code for: another leads. Default: ${default}."`
	ExitLost    int            `default:"76" placeholder:"CODE" help:"Exit code for: leadership lost. Default: ${default}."`
	LogLevel    string         `default:"info" enum:"debug,info,warn,error" help:"How much to say on standard error: ${enum}. Default: ${default}."`
	JSON        bool           `name:"json" help:"Say it as JSON, an object a line, errors included. Numbers of 64 bits are strings in it."`
}

// Help is shown by `tenure run --help`.
func (*runCmd) Help() string {
	return `The command gets TENURE_NAME, TENURE_TOKEN (the fencing token, to be shown to whatever it writes to), TENURE_TERM and
TENURE_CONTROL in its environment, and standard input, output and error as they are.

When the leadership is lost, every process the command started gets TERM and then KILL, so early that nothing of it is left
when the lease can be another's. That holds also when this process is killed or frozen. TERM to this process ends the
command first, and frees the election only after its last process is gone; other signals are passed to the command.

Flags of tenure come before the --. Whatever comes after it is the command and its arguments, flags too.`
}

// runUsage is how `tenure run` is called, and noName what is wrong without the
// first of its arguments.
const (
	runUsage = "tenure run [flags] NAME -- COMMAND [ARGUMENT…]"
	noName   = "there is no NAME before --"
)

// Run checks everything that can be checked, then contends.
func (c *runCmd) Run(a *app) error {
	if err := c.split(a.args); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	// What cannot be started must not become leader first.
	if _, err := guard.Lookup(c.Command[0], a.getenv("PATH")); err != nil {
		return err
	}
	r, err := newRunner(c, a)
	if err != nil {
		return err
	}
	defer r.close()
	return r.run()
}

// split takes the -- off the command. It is required, and NAME before it: without
// one of them, what was meant as part of the command would be taken for the NAME,
// or a flag of tenure for an argument of the command, and nobody would be told.
func (c *runCmd) split(args []string) error {
	dashes := slices.Index(args, "--")
	switch {
	case dashes < 0 || c.Command[0] != "--" && len(args)-dashes <= len(c.Command):
		return usage("there is no -- before the command: allowed is %s", runUsage)
	case len(args)-dashes != len(c.Command):
		return usage("%s: allowed is %s", noName, runUsage)
	}
	c.Command = c.Command[1:]
	return nil
}

// check returns every fault of the flags at once.
func (c *runCmd) check() error {
	var faults []string
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	if err := store.CheckName(c.Name); err != nil {
		need(false, "%s", tidy(err.Error()))
	}
	need(len(c.Command) > 0, "there is no command after --: allowed is %s", runUsage)
	need(c.TTL > 0, "--ttl is 0s: allowed is more than 0")
	need(c.Wait == nil || *c.Wait > 0, "--wait is 0s: allowed is more than 0; --no-wait does not wait at all")
	need(!c.Keep || c.Wait == nil && !c.NoWait, "--keep contends for ever: allowed is not together with --wait or --no-wait")
	if left := leftAfterStepDown(c.TTL); c.KillAfter != nil && left > 0 {
		need(*c.KillAfter > 0, "--kill-after is 0s: allowed is more than 0")
		advice := ""
		if ttl := ttlFor(*c.KillAfter); ttl <= durationMax {
			advice = fmt.Sprintf(" (--ttl %v would do)", ttl)
		}
		need(*c.KillAfter <= left, "--kill-after is %v: allowed with a --ttl of %v is at most %v, so that the command is gone before the lease can expire%s",
			*c.KillAfter, c.TTL, left.Round(time.Millisecond), advice)
	}
	need(validExit(c.ExitHeld), "--exit-held is %d: allowed are 0 to 255", c.ExitHeld)
	need(validExit(c.ExitLost) && c.ExitLost != 0, "--exit-lost is %d: allowed are 1 to 255; a lost leadership never ends as success", c.ExitLost)
	if len(faults) > 0 {
		return usage("%s", strings.Join(faults, "; "))
	}
	return nil
}

func validExit(code int) bool { return code >= 0 && code <= 255 }

// leftAfterStepDown is the time between step-down and the deadline that package
// tenure derives from a TTL.
func leftAfterStepDown(ttl time.Duration) time.Duration {
	return ttl - margin(ttl) - 2*(ttl/3)
}

func margin(ttl time.Duration) time.Duration { return ttl/500 + 50*time.Millisecond }

// ttlFor is a TTL, in whole seconds, that leaves killAfter after step-down.
func ttlFor(killAfter time.Duration) time.Duration {
	ttl := (3*killAfter + killAfter/50 + 200*time.Millisecond).Truncate(time.Second) + time.Second
	for leftAfterStepDown(ttl) < killAfter {
		ttl += time.Second
	}
	return ttl
}

// killAfter is the time from TERM to KILL.
func (c *runCmd) killAfter() time.Duration {
	if c.KillAfter != nil {
		return *c.KillAfter
	}
	return leftAfterStepDown(c.TTL)
}

// options are the elector's.
func (c *runCmd) options(o tenure.Observer) *tenure.Options {
	return &tenure.Options{
		Holder: c.Holder, TTL: c.TTL, MinHold: c.HoldAtLeast, StallAfter: c.StallAfter, KillAfter: max(0, c.killAfter()),
		Observer: o, Logger: slog.New(slog.DiscardHandler), // the observer says it in this command's words
	}
}

// newMarker prepares the marker file, and removes one that was left behind.
func (c *runCmd) newMarker() (*marker.File, error) {
	if c.Marker == "" {
		return nil, nil
	}
	m, err := marker.NewFile(c.Marker)
	if err == nil {
		err = m.Remove()
	}
	if err == nil {
		err = m.Probe()
	}
	if err != nil {
		return nil, usage("--marker: %v", err)
	}
	return m, nil
}
