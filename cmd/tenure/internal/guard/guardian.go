package guard

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Arg is the hidden first argument that makes a binary the guardian. A program
// that calls [Start] must call [Guardian] first thing when it sees it.
const Arg = "__guardian"

// guardian is the state of the process between the wrapper and the command.
type guardian struct {
	command []string
	file    string
	tty     bool   // hand the terminal to the command
	remove  string // a directory to remove at the end, if the wrapper is dead
	reports int    // file descriptor

	limits    limits
	limited   bool // limits have been received
	killAfter time.Duration

	pid       int  // the command; 0 before it was started
	running   bool // it was started and has not been reaped
	childless bool // it was started, and the kernel says that no child is left

	over      bool    // the step-down has passed: later limits count no more
	stopping  bool    // TERM was sent
	stopLimit Instant // KILL at this instant, or at the limit if that is earlier
	killing   bool    // KILL was sent; goes on until nothing is left
	hunt      hunt
	stuck     string // what was reported last as not killable
}

// Guardian is the whole life of the guardian process; args are the arguments
// after [Arg]. It returns when nothing of the job is left.
func Guardian(args []string) {
	// The command is to die with this process and not a moment earlier. Its
	// parent-death signal follows the thread that started it, so that must be a
	// thread that the runtime never ends.
	runtime.LockOSThread()
	if err := guardianMain(args); err != nil {
		fmt.Fprintf(os.Stderr, "tenure: guardian: %v\n", err)
		os.Exit(70)
	}
	os.Exit(0)
}

func guardianMain(args []string) error {
	g, orders, err := newGuardian(args)
	if err != nil {
		return err
	}
	dropSignals()
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	bell, err := newAlarm()
	if err != nil {
		return err
	}
	lines := readLines(orders)

	if err := errors.Join(
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0),
		checkProc(),
	); err != nil {
		g.report("%s %d %v", reportFailed, CodeInternal, err)
		return nil
	}
	for !g.finished() {
		select {
		case line, ok := <-lines:
			if !ok { // the wrapper is dead
				lines = nil
				if g.pid == 0 {
					return nil
				}
				g.stop(g.killAfter)
				break
			}
			if done, err := g.obey(line); done || err != nil {
				return err
			}
		case <-children:
			if g.reap() {
				select {
				case children <- unix.SIGCHLD:
				default:
				}
			}
		case <-bell.c:
		}
		g.keepLimits()
		if err := g.arm(bell); err != nil {
			return err
		}
	}
	g.report(reportGone)
	if lines == nil && g.remove != "" {
		os.RemoveAll(g.remove) // whoever finds it left behind removes it, too
	}
	return nil
}

func newGuardian(args []string) (*guardian, *os.File, error) {
	if len(args) < 7 {
		return nil, nil, fmt.Errorf("started with %d arguments: only tenure itself starts it", len(args))
	}
	orders, err1 := strconv.Atoi(args[0])
	reports, err2 := strconv.Atoi(args[1])
	killAfter, err3 := strconv.ParseInt(args[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, nil, err
	}
	for _, fd := range []int{orders, reports} { // the command must not inherit them
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, nil, err
		}
	}
	nameThread("tenure-guardian")
	return &guardian{
		command:   args[6:],
		file:      args[5],
		remove:    args[4],
		tty:       args[3] == "tty",
		killAfter: time.Duration(killAfter),
		reports:   reports,
	}, os.NewFile(uintptr(orders), "orders"), nil
}

// dropSignals makes the guardian deaf: a service manager or a person who
// signals every process of the job must not end the one that cleans up after
// it. What was ignored stays so, since the command inherits that.
func dropSignals() {
	var deaf []os.Signal
	for n := syscall.Signal(1); n < 65; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, // not catchable, used, or the runtime's own
			unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS, unix.SIGPROF, // its faults
			32, 33: // the C library's own
			continue
		}
		if !signal.Ignored(n) {
			deaf = append(deaf, n)
		}
	}
	signal.Notify(make(chan os.Signal, 1), deaf...)
}

// nameThread sets the name that ps and top show for the locked main thread. A
// failure is of no consequence.
func nameThread(name string) {
	if b, err := unix.BytePtrFromString(name); err == nil {
		unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
	}
}

func readLines(f *os.File) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(f); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// report tells the wrapper. A wrapper that is dead or frozen does not hold the
// guardian up: what does not fit into the pipe is lost.
func (g *guardian) report(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	tryWrite(g.reports, text+"\n")
}

// obey carries out one order. done: there is nothing left to do.
func (g *guardian) obey(line string) (done bool, err error) {
	word, args, _ := strings.Cut(line, " ")
	switch word {
	case orderLimits:
		l, err := parseLimits(args)
		if err != nil {
			return false, fmt.Errorf("order %q: %w", line, err)
		}
		if !g.over {
			g.limits, g.limited = l, true
		}
	case orderStart:
		return g.start(), nil
	case orderSignal:
		n, err := parseNumber(args)
		if err != nil {
			return false, fmt.Errorf("order %q: %w", line, err)
		}
		g.send(syscall.Signal(n))
	case orderStop:
		n, err := parseNumber(args)
		if err != nil {
			return false, fmt.Errorf("order %q: %w", line, err)
		}
		g.stop(time.Duration(n))
	default:
		return false, fmt.Errorf("unknown order %q", line)
	}
	return false, nil
}

// start starts the command, unless its time is over before it began.
func (g *guardian) start() (done bool) {
	if !g.limited || g.stopping || g.limits.stepDown.Passed(Now()) {
		g.report("%s %d %s", reportFailed, errTooLate.Code, errTooLate.Text)
		return true
	}
	attr := &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Setpgid:    true,
			Foreground: g.tty,
			Ctty:       0,
			Pdeathsig:  syscall.SIGKILL,
		},
	}
	pid, err := syscall.ForkExec(g.file, g.command, attr)
	if errors.Is(err, unix.ENOEXEC) { // a script without "#!": sh runs it, as from a shell
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", g.file}, g.command[1:]...), attr)
	}
	if err != nil {
		e := startError(g.file, err)
		if e.Code == CodeNotFound && executable(g.file) == nil {
			e = &StartError{Code: CodeNotRunning, Text: fmt.Sprintf("%s: cannot be executed: the interpreter it names is missing", g.file)}
		}
		g.report("%s %d %s", reportFailed, e.Code, e.Text)
		return true
	}
	g.pid, g.running, g.hunt.command = pid, true, pid
	g.report("%s %d", reportStarted, pid)
	return false
}

// send signals the command's process group; once the command has ended, what is
// left of its tree.
func (g *guardian) send(sig syscall.Signal) {
	switch {
	case g.pid == 0:
	case g.running: // its pid is not reaped, so the group's number is still its own
		unix.Kill(-g.pid, sig)
	default:
		tree, err := descendants(os.Getpid(), nil)
		if err == nil {
			sendAll(tree, sig)
		}
	}
}

// stop asks the job to end. The first call decides when KILL follows, a later
// one can only bring it forward.
func (g *guardian) stop(killAfter time.Duration) {
	limit := Now().Add(killAfter)
	if g.stopping {
		g.stopLimit = g.stopLimit.Earlier(limit)
		return
	}
	g.stopping, g.stopLimit = true, limit
	g.send(unix.SIGTERM)
	g.send(unix.SIGCONT) // a suspended process could not act on the TERM
}

// reapMax is how many children are reaped before the clocks are looked at again:
// some jobs produce them faster than they can be reaped.
const reapMax = 100

// reap collects children that ended, were suspended or were continued. more: there
// may be others.
func (g *guardian) reap() (more bool) {
	for range reapMax {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED|unix.WCONTINUED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			g.childless = g.pid != 0
			return false
		case err != nil || pid == 0:
			return false
		case pid == g.pid:
			g.commandChanged(status)
		}
	}
	return true
}

func (g *guardian) commandChanged(status unix.WaitStatus) {
	switch {
	case status.Stopped():
		g.report("%s %d", reportStopped, int(status.StopSignal()))
	case status.Continued():
		g.report(reportContinued)
	case status.Exited(), status.Signaled():
		g.running = false
		g.report("%s %d", reportExited, int(status))
		// The command's end is the job's end: what it left behind goes too.
		if g.stopping {
			g.send(unix.SIGTERM)
			g.send(unix.SIGCONT)
		} else {
			g.stop(g.killAfter)
		}
	}
}

// keepLimits does what is due by the clocks.
func (g *guardian) keepLimits() {
	if g.pid == 0 || g.childless {
		return
	}
	now := Now()
	if !g.over && g.limits.stepDown.Passed(now) {
		g.over = true
		g.stop(g.killAfter)
	}
	if !g.killing && (g.limits.kill.Passed(now) || g.stopping && g.stopLimit.Passed(now)) {
		g.killing = true
	}
	if g.killing {
		g.sweep()
	}
}

// sweep kills everything there is. The guardian ends only when the kernel says
// that it has no child left; until then it sweeps again, after a pause or when a
// child has ended.
func (g *guardian) sweep() {
	if g.running {
		unix.Kill(-g.pid, unix.SIGKILL)
	}
	tree, err := descendants(os.Getpid(), nil)
	if err == nil {
		err = g.hunt.kill(tree)
	}
	if err != nil && err.Error() != g.stuck {
		g.stuck = err.Error()
		g.report("%s %s", reportStuck, g.stuck)
	}
}

// arm sets the alarm for what is due next.
func (g *guardian) arm(bell *alarm) error {
	switch {
	case g.pid == 0:
		return nil
	case g.killing:
		return bell.in(g.hunt.pause)
	case g.stopping:
		next := g.stopLimit.Earlier(g.limits.kill)
		if !g.over {
			next = next.Earlier(g.limits.stepDown)
		}
		return bell.set(next)
	}
	return bell.set(g.limits.stepDown)
}

func (g *guardian) finished() bool { return g.childless && !g.running }
