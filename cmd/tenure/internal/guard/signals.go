package guard

import (
	"os"
	"os/signal"
	"syscall"
	"time"

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

// withDefault runs f while sig has its default effect.
func (s *Signals) withDefault(sig syscall.Signal, f func()) {
	if s == nil || signal.Ignored(sig) {
		f()
		return
	}
	signal.Reset(sig)
	f()
	signal.Notify(s.C, sig)
}

// Suspend suspends this process as TSTP would have, had it not been caught, and
// returns when it is continued.
func (s *Signals) Suspend() {
	s.withDefault(unix.SIGTSTP, func() {
		unix.Kill(unix.Getpid(), unix.SIGTSTP)
		time.Sleep(time.Millisecond) // the signal may go to another thread
	})
}
