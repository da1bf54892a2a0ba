package guard

import (
	"os/signal"

	"golang.org/x/sys/unix"
)

// terminal passes the controlling terminal to the command's process group and
// takes it back.
//
// A command in a process group of its own could otherwise not read from the
// terminal, and Ctrl-C would reach the wrapper instead of it.
type terminal struct {
	own int // the wrapper's process group
	job int // the command's
}

// newTerminal returns the terminal to pass on, or nil: standard input is not
// the terminal, this process is not in the foreground, or its output goes into a
// pipe (`tenure run x -- job | less`: the reader of the pipe needs the terminal).
func newTerminal() *terminal {
	foreground, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil || foreground != unix.Getpgrp() {
		return nil
	}
	var out unix.Stat_t
	if err := unix.Fstat(1, &out); err != nil || out.Mode&unix.S_IFMT == unix.S_IFIFO {
		return nil
	}
	// From the background, taking the terminal and writing to it would suspend us.
	signal.Ignore(unix.SIGTTOU)
	return &terminal{own: foreground}
}

// takeBack makes the wrapper's group the foreground again, if the job's is.
func (t *terminal) takeBack() {
	if now, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err == nil && now == t.job {
		unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, t.own)
	}
}

// suspend follows a job that was suspended from the terminal (Ctrl-Z): the
// wrapper's group is suspended as well, so that the shell takes over. It returns
// when that is continued, with the terminal passed to the job again if the shell
// gave it to us; the caller continues the job. The lease is not renewed
// meanwhile: the guardian ends the job when its time is up. It reports whether this
// process was suspended at all.
func (t *terminal) suspend() (done bool) {
	t.takeBack()
	done = suspendSelf(0)
	if now, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err == nil && now == t.own {
		unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, t.job)
	}
	return done
}
