package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/control"
	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/cmd/tenure/internal/marker"
	"github.com/tenure-go/tenure/cmd/tenure/internal/notify"
	"github.com/tenure-go/tenure/store"
	"golang.org/x/sys/unix"
)

// runner contends on behalf of `tenure run`, and runs the command in each term.
type runner struct {
	c       *runCmd
	app     *app
	log     *slog.Logger
	store   *openStore
	fences  []*fenced
	elector *tenure.Elector
	reaper  *guard.Reaper
	signals *guard.Signals
	dir     *socketDir      // nil: there are no sockets
	control *control.Server // nil without dir
	notify  *notify.Receiver
	marker  *marker.File // nil: not asked for
	outer   string       // the service manager's own socket, if it has one

	renewals chan struct{} // one slot: the term was renewed, for who keeps the marker

	ctx    context.Context // ends when this process should
	cancel context.CancelCauseFunc

	starting sync.Mutex // held from before the command is started until proc is set

	mu      sync.Mutex
	term    *tenure.Term // the current one
	proc    *guard.Proc  // its command, from start to gone
	lastAsk error        // why the election was not won at the last try
	ended   bool         // the command has come to its end, for good
	result  error        // what it came to
}

// newRunner prepares everything that can fail before anybody contends. What it
// waits for, such as a pipe that nobody writes to, does not keep a signal from
// ending this process.
func newRunner(c *runCmd, a *app) (*runner, error) {
	r := &runner{c: c, app: a, outer: a.getenv("NOTIFY_SOCKET"), renewals: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	// First of all, so that no signal is missed from here on.
	r.signals = guard.CatchSignals()
	prepared := make(chan error, 1)
	go func() { prepared <- r.prepare() }()
	var late <-chan time.Time
	for {
		select {
		case s := <-r.signals.C:
			r.handleSignal(s.(syscall.Signal))
			if r.ctx.Err() != nil && late == nil {
				late = time.After(giveUpAfter)
			}
			continue
		case err := <-prepared:
			if r.ctx.Err() != nil {
				err = r.outcome(context.Cause(r.ctx))
			}
			if err != nil {
				r.close()
				return nil, err
			}
			return r, nil
		case <-late: // the process's end is the end of what prepare waits for
			return nil, r.outcome(context.Cause(r.ctx))
		}
	}
}

// giveUpAfter is how long a signal waits for prepare to give back what it took.
const giveUpAfter = time.Second

func (r *runner) prepare() (err error) {
	if r.store, err = r.c.openToWrite(r.ctx, r.app); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(r.c.LogLevel)); err != nil {
		return err
	}
	r.log = newLog(cleanWriter{r.app.stderr, r.store.url}, r.c.JSON, level)
	if r.fences, err = openFences(r.ctx, r.c.Fence, r.store); err != nil {
		return err
	}
	if r.elector, err = tenure.NewElector(r.store, r.c.Name, r.c.options(tenure.ObserverFunc(r.observe))); err != nil {
		return err
	}
	if r.marker, err = r.c.newMarker(); err != nil {
		return err
	}
	if r.reaper, err = guard.NewReaper(); err != nil {
		return err
	}
	return r.listen()
}

// listen opens the sockets by which the job talks to this process.
func (r *runner) listen() error {
	dir, err := newSocketDir(60)
	if err == nil {
		r.dir = dir
		r.control, err = control.Listen(dir.path, r.answer)
	}
	if err == nil && (r.c.StallAfter > 0 || r.outer != "") {
		r.notify, err = notify.Listen(dir.path, r.outer, r.progress)
	}
	switch {
	case err == nil:
		return nil
	case r.c.StallAfter > 0:
		return usage("--stall-after needs a place for its sockets: %v", err)
	}
	r.log.Warn("no control socket: tenure check, progress and resign will not work in the command", "error", err)
	return nil
}

// close gives everything back that newRunner took.
func (r *runner) close() {
	r.cancel(nil)
	if r.control != nil {
		r.control.Close()
	}
	if r.notify != nil {
		r.notify.Close()
	}
	if r.dir != nil {
		r.dir.remove()
	}
	for _, f := range r.fences {
		f.gate.close()
	}
	if r.store != nil {
		r.store.close()
	}
	if r.reaper != nil {
		r.reaper.Close()
	}
	r.signals.Close()
}

// run contends until the command has come to its end, or gives up.
func (r *runner) run() error {
	r.announce()
	stop := make(chan struct{})
	defer close(stop)
	go r.handleSignals(stop)
	go r.pingManager(stop)
	if r.c.Wait != nil {
		t := time.AfterFunc(*r.c.Wait, func() {
			if !r.leading() {
				r.cancel(errWaited)
			}
		})
		defer t.Stop()
	}
	var err error
	switch {
	case r.c.Keep:
		err = r.elector.Run(r.ctx, r.job)
	case r.c.NoWait:
		err = r.elector.TryRun(r.ctx, r.job)
	default:
		err = r.elector.RunOnce(r.ctx, r.job)
	}
	return r.outcome(err)
}

// announce says where the lease is kept, and what that does and does not
// exclude.
func (r *runner) announce() {
	text := "store"
	if r.store.byDefault {
		text = "default store"
	}
	r.log.Info(text, "url", r.store.url.String(), "scope", r.store.Caps().Scope)
	if r.c.HoldAtLeast == 0 {
		r.log.Debug("two runs of the command never overlap; a short one can still be followed by another that was meant to be the same, see --hold-at-least")
	}
	notify.Send(r.outer, "READY=1", "STATUS=contending for "+oneLine(r.c.Name))
}

// Why a candidate gave up.
var (
	errWaited = errors.New("waited long enough")
	errOver   = errors.New("the command has ended")
)

// signalled is why a candidate gave up: somebody told it to.
type signalled struct{ sig syscall.Signal }

func (e signalled) Error() string { return fmt.Sprintf("ended by signal %d (%v)", int(e.sig), e.sig) }

// outcome turns what contending came to into this process's own end.
func (r *runner) outcome(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended && !errors.Is(err, tenure.ErrLost) {
		err = r.result
	}
	var sig signalled
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tenure.ErrLost):
		return &exitError{code: r.c.ExitLost, text: err.Error(), err: err}
	case errors.Is(err, errWaited):
		return r.waited()
	case errors.As(err, &sig):
		return &exitError{code: 128 + int(sig.sig)}
	case errors.Is(err, store.ErrHeld):
		return &exitError{code: r.c.ExitHeld, text: err.Error(), err: err}
	}
	return clean(r.store.url, err)
}

// waited is the end of a --wait: the reason is the last answer there was.
func (r *runner) waited() error {
	switch {
	case r.lastAsk == nil:
		return exitf(exitUnreachable, "gave up after %v: the store gave no answer", *r.c.Wait)
	case errors.Is(r.lastAsk, store.ErrHeld):
		return exitf(r.c.ExitHeld, "gave up after %v: %s", *r.c.Wait, tidy(r.lastAsk.Error()))
	}
	text := fmt.Sprintf("gave up after %v: %s", *r.c.Wait, tidy(r.store.url.Clean(r.lastAsk.Error())))
	return &exitError{code: exitCode(r.lastAsk), text: text}
}

// handleSignals passes signals to the command while there is one. TERM ends the
// whole process in an orderly way; so does anything deadly while waiting.
func (r *runner) handleSignals(stop <-chan struct{}) {
	for {
		select {
		case s := <-r.signals.C:
			r.handleSignal(s.(syscall.Signal))
		case <-stop:
			return
		}
	}
}

func (r *runner) handleSignal(sig syscall.Signal) {
	if sig == unix.SIGTERM {
		r.cancel(signalled{sig})
		return
	}
	r.starting.Lock() // what comes meanwhile is for the command
	proc := r.running()
	r.starting.Unlock()
	switch {
	case proc != nil:
		proc.Signal(sig)
	case sig == unix.SIGTSTP:
		guard.Suspend()
	case sig == unix.SIGCONT, sig == unix.SIGWINCH, sig == unix.SIGUSR1, sig == unix.SIGUSR2:
		// For a command that does not run yet.
	default:
		r.cancel(signalled{sig})
	}
}

// pingManager feeds the service manager's watchdog, if this process has one. It
// says that this process lives; whether the command does is --stall-after's
// business.
func (r *runner) pingManager(stop <-chan struct{}) {
	every := notify.WatchdogInterval(r.app.getenv)
	if r.outer == "" || every == 0 {
		return
	}
	t := time.NewTicker(every / 2)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			notify.Send(r.outer, "WATCHDOG=1")
		case <-stop:
			return
		}
	}
}

func (r *runner) running() *guard.Proc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc
}

func (r *runner) leading() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term != nil
}

func (r *runner) current() *tenure.Term {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }
