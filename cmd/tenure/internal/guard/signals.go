package guard

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals are the signals that the wrapper receives, to be passed on or acted
// upon by its caller.
type Signals struct {
	C chan os.Signal
}

// CatchSignals begins to receive what a guarded command should get: every signal
// that tells a process something. HUP and INT are left alone if they were ignored
// when this process started (as after nohup): the command finds them ignored, too.
// So are signals about this process itself: its faults, its limits, its terminal
// and its children.
//
// PIPE is caught and never received, for the rest of this process's life: that
// somebody has stopped to read the log must not end who holds a lease. Caught, it
// is the command's to be ended by, which ignored it would not be.
func CatchSignals() *Signals {
	s := &Signals{C: make(chan os.Signal, 64)}
	for n := syscall.Signal(1); n <= signalMax; n++ {
		if forwarded(n) && !signal.Ignored(n) {
			signal.Notify(s.C, n)
		}
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	return s
}

// signalMax is the last signal there is.
const signalMax syscall.Signal = 64

// forwarded reports whether a signal to the wrapper is meant for the command.
func forwarded(n syscall.Signal) bool {
	switch n {
	case unix.SIGKILL, unix.SIGSTOP, // not catchable
		unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS, // faults
		unix.SIGXCPU, unix.SIGXFSZ, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCHLD, unix.SIGPIPE, // its own affairs
		unix.SIGURG, unix.SIGPROF, // the runtime's
		32, 33, 34: // the C library's, not catchable here
		return false
	}
	return true
}

// Close receives no more signals; each but PIPE has its default effect again.
func (s *Signals) Close() { signal.Stop(s.C) }

// Suspend suspends this process as TSTP would have, had it not been caught, and
// returns when it is continued.
func Suspend() { suspendSelf(unix.Getpid()) }

// suspendSelf stops pid (0: the process group of this process), and returns when
// that is continued. As the kernel does with TSTP, it does nothing in a group
// that no shell is there to continue, and reports so.
//
// It is STOP and not TSTP itself, because the Go runtime keeps its handler for a
// signal that was once asked for, and ignores it from then on.
func suspendSelf(pid int) (done bool) {
	if orphaned() {
		return false
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	unix.Kill(pid, unix.SIGSTOP)
	<-continued
	return true
}

// orphaned reports whether nobody looks after this process's group: whether no
// member of it has its parent in another group of the session, as a shell's jobs
// do.
func orphaned() bool {
	self, err := readProcess(os.Getpid())
	if err != nil {
		return true
	}
	group, err := processes(func(p process) bool { return p.group == self.group })
	if err != nil {
		return true
	}
	for _, p := range group {
		if parent, err := readProcess(p.ppid); err == nil && parent.group != self.group && parent.session == self.session {
			return false
		}
	}
	return true
}
