package guard

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Orders go from the wrapper to the guardian and reports come back, a line
// each: a word and its numbers. The end of the orders means that the wrapper is
// dead; the end of the reports without "gone" means that the guardian is.
const (
	orderLimits = "limits" // step-down and kill, on three clocks each
	orderStart  = "start"  // start the command
	orderSignal = "signal" // number: forward it
	orderStop   = "stop"   // nanoseconds: TERM now, KILL after that

	reportStarted   = "started"   // pid
	reportFailed    = "failed"    // exit code, text: it could not be started
	reportStopped   = "stopped"   // signal: the command is suspended
	reportContinued = "continued" // it runs again
	reportExited    = "exited"    // raw wait status
	reportStuck     = "stuck"     // text: what cannot be killed, and why
	reportGone      = "gone"      // nothing of the job is left
)

// limits are the two moments the guardian keeps by itself.
type limits struct {
	stepDown Instant // ask the job to end
	kill     Instant // end it
}

func (l limits) order() string {
	return fmt.Sprintf("%s %d %d %d %d %d %d\n", orderLimits,
		l.stepDown.Mono, l.stepDown.Boot, l.stepDown.Real, l.kill.Mono, l.kill.Boot, l.kill.Real)
}

func signalOrder(sig syscall.Signal) string { return fmt.Sprintf("%s %d\n", orderSignal, int(sig)) }

func stopOrder(killAfter time.Duration) string {
	return fmt.Sprintf("%s %d\n", orderStop, int64(killAfter))
}

func parseLimits(args string) (limits, error) {
	n, err := parseNumbers(args, 6)
	if err != nil {
		return limits{}, err
	}
	return limits{
		stepDown: Instant{Mono: n[0], Boot: n[1], Real: n[2]},
		kill:     Instant{Mono: n[3], Boot: n[4], Real: n[5]},
	}, nil
}

func parseNumber(args string) (int64, error) {
	n, err := parseNumbers(args, 1)
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

func parseNumbers(args string, count int) ([]int64, error) {
	fields := strings.Fields(args)
	if len(fields) != count {
		return nil, fmt.Errorf("%q has %d numbers, want %d", args, len(fields), count)
	}
	numbers := make([]int64, count)
	for i, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[i] = n
	}
	return numbers, nil
}

// tryWrite writes a line to a non-blocking pipe, now or not at all. There is no
// time limit in it: a process that was frozen between setting one and writing
// would lose the line.
func tryWrite(fd int, line string) error {
	for {
		_, err := unix.Write(fd, []byte(line)) // less than PIPE_BUF: whole or nothing
		if err != unix.EINTR {
			return err
		}
	}
}
