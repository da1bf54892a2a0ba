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

// CatchSignals begins to receive what a guarded command should get: HUP, INT,
// QUIT, TERM, USR1, USR2, WINCH, TSTP and CONT, except those of them that were
// ignored when the process started (as after nohup); the command finds them
// ignored, too.
func CatchSignals() *Signals {
	s := &Signals{C: make(chan os.Signal, 16)}
	for _, sig := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(s.C, sig)
		}
	}
	return s
}

// Close receives no more signals; each has its default effect again.
func (s *Signals) Close() { signal.Stop(s.C) }

// Suspend suspends this process as TSTP would have, had it not been caught, and
// returns when it is continued.
func Suspend() { suspendSelf(unix.Getpid()) }

// suspendSelf stops pid (0: the process group of this process), and returns when
// that is continued. As the kernel does with TSTP, it does nothing in a group
// that no shell is there to continue.
//
// It is STOP and not TSTP itself, because the Go runtime keeps its handler for a
// signal that was once asked for, and ignores it from then on.
func suspendSelf(pid int) {
	if orphaned() {
		return
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	unix.Kill(pid, unix.SIGSTOP)
	<-continued
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
