package guard

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what to run and how.
type Config struct {
	Command   []string      // the program and its arguments
	Env       []string      // the command's whole environment
	KillAfter time.Duration // from TERM to KILL, where the limits allow as much
	StepDown  Instant       // first limits, see [Proc.SetLimits]
	Kill      Instant
	Log       *slog.Logger // required

	// LastRemove is a directory that the guardian removes after the job if it
	// outlives the wrapper, which then cannot; empty: none.
	LastRemove string
}

// Proc is a started command together with its guardian. Its methods are safe
// for concurrent use.
type Proc struct {
	cfg      Config
	reaper   *Reaper
	tty      *terminal // nil: the command does not get the terminal
	guardian int
	ended    <-chan unix.WaitStatus // of the guardian
	reports  *os.File

	pid     int
	started chan error
	swallow atomic.Bool // the next CONT is the one that ended a suspension of this process

	mu     sync.Mutex
	orders int // file descriptor; -1 when closed
	limits limits
	latest Instant // when everything must be gone because of a stop; zero: no stop
	status unix.WaitStatus
	killed bool // the guardian ended before the job did

	moved    chan struct{} // one slot: limits or latest have changed
	exited   chan struct{}
	exitOnce sync.Once
	gone     chan struct{}
}

// Start starts a guardian and, through it, the command, and returns when the
// command runs. A command that cannot be started is a *[StartError].
//
// The command inherits standard input, output and error and every further file
// this process was itself started with; it leads a process group of its own.
func Start(r *Reaper, cfg Config) (*Proc, error) {
	file, err := Lookup(cfg.Command[0], lookupEnv(cfg.Env, "PATH"))
	if err != nil {
		return nil, err
	}
	if cfg.StepDown.Passed(Now()) {
		return nil, errTooLate
	}
	p := &Proc{
		cfg:     cfg,
		reaper:  r,
		tty:     newTerminal(),
		limits:  limits{cfg.StepDown, cfg.Kill},
		started: make(chan error, 1),
		moved:   make(chan struct{}, 1),
		exited:  make(chan struct{}),
		gone:    make(chan struct{}),
	}
	if err := p.startGuardian(file); err != nil {
		return nil, &StartError{Code: CodeInternal, Text: fmt.Sprintf("cannot start the guardian: %v", err)}
	}
	go p.readReports()
	go p.watchGuardian()
	p.order(p.limits.order())
	p.order(orderStart + "\n")
	if err := <-p.started; err != nil {
		<-p.gone
		return nil, err
	}
	return p, nil
}

func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// startGuardian starts this binary again, with the reading end of the orders
// and the writing end of the reports behind the files that the command will
// inherit.
func (p *Proc) startGuardian(file string) error {
	ordersRead, orders, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ordersRead.Close()
	defer orders.Close()
	reports, reportsWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reportsWrite.Close()

	files := inheritedFiles()
	at := len(files)
	files = append(files, ordersRead.Fd(), reportsWrite.Fd())
	tty := "notty"
	if p.tty != nil {
		tty = "tty"
	}
	args := append([]string{
		os.Args[0], Arg, strconv.Itoa(at), strconv.Itoa(at + 1),
		strconv.FormatInt(int64(p.cfg.KillAfter), 10), tty, p.cfg.LastRemove, file,
	}, p.cfg.Command...)
	p.guardian, p.ended, err = p.reaper.start(func() (int, error) {
		// This very binary, also when its file was replaced meanwhile.
		return syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{
			Env:   p.cfg.Env,
			Files: files,
			Sys:   &syscall.SysProcAttr{Setpgid: true},
		})
	})
	if err == nil {
		// A descriptor of its own, out of the runtime's hands.
		p.orders, err = unix.FcntlInt(orders.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err == nil {
		err = unix.SetNonblock(p.orders, true)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(p.orders), unix.F_SETPIPE_SZ, ordersSize)
	}
	if err != nil {
		reports.Close()
		return err // a guardian that was started sees the end of its orders
	}
	p.reports = reports
	return nil
}

// inheritedFiles lists the file descriptors this process was started with, each
// at its own number, with gaps as they are. What Go opens is close-on-exec.
func inheritedFiles() []uintptr {
	files := []uintptr{0, 1, 2}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return files
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		for len(files) <= fd {
			files = append(files, ^uintptr(0))
		}
		files[fd] = uintptr(fd)
	}
	return files
}

// readReports follows what the guardian says until it ends, and then sees to it
// that nothing of the job is left.
func (p *Proc) readReports() {
	saidGone, ran := false, false
	for s := bufio.NewScanner(p.reports); s.Scan(); {
		word, args, _ := strings.Cut(s.Text(), " ")
		switch word {
		case reportStarted:
			ran = true
			n, _ := strconv.Atoi(args)
			p.pid = n
			if p.tty != nil {
				p.tty.job = n
			}
			p.started <- nil
		case reportFailed:
			code, text, _ := strings.Cut(args, " ")
			n, _ := strconv.Atoi(code)
			saidGone = true
			p.started <- &StartError{Code: n, Text: text}
		case reportStopped:
			if p.tty != nil {
				p.swallow.Store(true)
				if !p.tty.suspend() {
					p.swallow.Store(false)
				}
				p.order(signalOrder(unix.SIGCONT))
			}
		case reportExited:
			n, _ := strconv.Atoi(args)
			p.setExited(unix.WaitStatus(n), false)
			p.goneBy(Now().Add(p.cfg.KillAfter).Add(stopGrace))
		case reportStuck:
			p.cfg.Log.Error("cannot kill a process of the job; the lease is kept until it is gone or runs out", "error", args)
		case reportGone:
			saidGone = true
		}
	}
	p.reports.Close()
	<-p.ended
	if !saidGone {
		if !ran {
			p.started <- p.notStarted()
		}
		p.setExited(unix.WaitStatus(unix.SIGKILL), true)
		p.killOrphans()
	}
	p.mu.Lock()
	unix.Close(p.orders)
	p.orders = -1
	p.mu.Unlock()
	close(p.gone)
}

// notStarted is why a guardian ended before it started the command: killed by
// somebody, or by watchGuardian because the time was over.
func (p *Proc) notStarted() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limits.stepDown.Passed(Now()) {
		return errTooLate
	}
	return &StartError{Code: CodeInternal, Text: "the guardian ended before it started the command"}
}

var errTooLate = &StartError{Code: CodeTooLate, Text: "the term was over before the command could be started"}

func (p *Proc) setExited(status unix.WaitStatus, killed bool) {
	p.exitOnce.Do(func() {
		if p.tty != nil {
			p.tty.takeBack()
		}
		p.mu.Lock()
		p.status, p.killed = status, killed
		p.mu.Unlock()
		close(p.exited)
	})
}

// killOrphans ends what a killed guardian left to this process, its nearest
// subreaper. It looks twice, because a process that is handed over while /proc
// is read can be missed once.
func (p *Proc) killOrphans() {
	p.cfg.Log.Error("the guardian was killed; killing what it guarded")
	h, said := hunt{command: p.pid}, ""
	for empty := 0; empty < 2; {
		tree, err := p.reaper.orphans()
		if err == nil {
			err = h.kill(tree)
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			p.cfg.Log.Error("cannot kill a process of the job", "error", said)
		}
		if err == nil && len(tree) == 0 {
			empty++
			continue
		}
		empty = 0
		time.Sleep(h.pause)
	}
}

// watchGuardian is the second line: a guardian that has itself been frozen
// cannot keep the limits. A little after the kill was due the wrapper kills the
// guardian, which kills the command with it, and then the rest.
func (p *Proc) watchGuardian() {
	bell, err := newAlarm()
	if err != nil {
		p.cfg.Log.Error("cannot watch the guardian", "error", err)
		return
	}
	defer bell.close()
	for {
		p.mu.Lock()
		kill := p.limits.kill
		if p.latest != (Instant{}) {
			kill = kill.Earlier(p.latest)
		}
		p.mu.Unlock()
		if kill.Passed(Now()) {
			break
		}
		if err := bell.set(kill); err != nil {
			p.cfg.Log.Error("cannot watch the guardian", "error", err)
			return
		}
		select {
		case <-bell.c:
		case <-p.moved:
		case <-p.gone:
			return
		}
	}
	// After a pause of the whole machine both are late, and the guardian gets as
	// much time as it would have had.
	select {
	case <-p.gone:
		return
	case <-time.After(guardianGrace):
	}
	if p.reaper.kill(p.guardian) {
		p.cfg.Log.Error("the guardian did not end the job in time; both are killed")
	}
}

// How long the wrapper waits for the guardian: after a kill that the lease
// demands, and besides after one that a stop does.
const (
	guardianGrace = 50 * time.Millisecond
	stopGrace     = 10 * time.Second
)

// ordersSize is the size of the pipe for orders: some thirty renewals.
const ordersSize = 4096

// order writes a line to the guardian. A guardian that has not read its orders
// until the pipe is full is broken, and is killed with what it guards.
func (p *Proc) order(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.orders < 0 {
		return
	}
	switch err := tryWrite(p.orders, line); err {
	case nil, unix.EPIPE: // the latter is readReports' business
	default:
		p.cfg.Log.Error("the guardian does not take orders; it is killed", "error", err)
		p.reaper.kill(p.guardian)
	}
}

// PID is the command's process id, which is also its process group's.
func (p *Proc) PID() int { return p.pid }

// SetLimits moves the two moments the guardian keeps by itself: at stepDown the
// job gets TERM, at kill, or KillAfter after the TERM if that is earlier, KILL.
// Once a step-down has passed the limits stay as they are.
func (p *Proc) SetLimits(stepDown, kill Instant) {
	l := limits{stepDown, kill}
	p.mu.Lock()
	if !p.limits.stepDown.Passed(Now()) {
		p.limits = l
	}
	p.mu.Unlock()
	p.order(l.order())
	p.wakeWatcher()
}

// Signal passes a signal to the command's process group.
func (p *Proc) Signal(sig syscall.Signal) {
	if sig == unix.SIGCONT && p.swallow.Swap(false) {
		// It continued this process; the command follows when it has the terminal
		// again. Passed on late, it would continue one that was suspended anew.
		return
	}
	p.order(signalOrder(sig))
}

// Stop asks the job to end: TERM now, KILL killAfter later or at the limit. It
// does not wait; see [Proc.Gone]. A later call can only bring the KILL forward.
func (p *Proc) Stop(killAfter time.Duration) {
	p.order(stopOrder(killAfter))
	p.goneBy(Now().Add(killAfter).Add(stopGrace))
}

// goneBy tells watchGuardian until when a stop must have been carried out.
func (p *Proc) goneBy(latest Instant) {
	p.mu.Lock()
	if p.latest == (Instant{}) {
		p.latest = latest
	}
	p.latest = p.latest.Earlier(latest)
	p.mu.Unlock()
	p.wakeWatcher()
}

func (p *Proc) wakeWatcher() {
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

// Exited is closed when the command itself has ended. Processes it started may
// still be ending.
func (p *Proc) Exited() <-chan struct{} { return p.exited }

// Gone is closed when nothing of the job is left, and the guardian is gone too.
func (p *Proc) Gone() <-chan struct{} { return p.gone }

// ExitCode is the command's own exit code, or 128 + the number of the signal
// that ended it. Only after [Proc.Exited].
func (p *Proc) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// GuardianKilled reports whether the guardian ended before the job did, so that
// the job was killed without a TERM. Only after [Proc.Exited].
func (p *Proc) GuardianKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}
