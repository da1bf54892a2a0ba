// Package notify speaks the service manager's notification protocol (see
// sd_notify(3)) on both sides: it receives what a guarded job sends, takes
// WATCHDOG=1 as progress, and passes the rest on to the manager that started
// this process, if one did.
package notify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Receiver is the notification socket of one job.
type Receiver struct {
	conn     *net.UnixConn
	outer    string
	progress func()
	wg       sync.WaitGroup
}

// messageMax is the longest message taken, as in the service manager.
const messageMax = 4096

// Listen opens a socket in dir, which must be private to this user, and
// receives until Close. progress is called for each WATCHDOG=1. outer is the
// NOTIFY_SOCKET this process was itself started with, or empty.
func Listen(dir, outer string, progress func()) (*Receiver, error) {
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		conn.Close()
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	r := &Receiver{conn: conn, outer: outer, progress: progress}
	r.wg.Go(r.receive)
	return r, nil
}

// Close stops receiving and removes the socket.
func (r *Receiver) Close() error {
	err := r.conn.Close()
	os.Remove(r.Path())
	r.wg.Wait()
	return err
}

// Path is where the job sends to.
func (r *Receiver) Path() string { return r.conn.LocalAddr().String() }

// Environ is what the job must find in its environment. stallAfter is the time
// within which it must report, or 0. WATCHDOG_PID stays unset, which the
// protocol takes for "whoever reads this"; the job's pid is not known before it
// runs.
func (r *Receiver) Environ(stallAfter time.Duration) []string {
	env := []string{"NOTIFY_SOCKET=" + r.Path()}
	if stallAfter > 0 {
		env = append(env, "WATCHDOG_USEC="+strconv.FormatInt(stallAfter.Microseconds(), 10))
	}
	return env
}

// Owned reports whether an environment variable belongs to this protocol and
// must not be inherited from the manager that started this process.
func Owned(name string) bool {
	return name == "NOTIFY_SOCKET" || name == "WATCHDOG_USEC" || name == "WATCHDOG_PID"
}

func (r *Receiver) receive() {
	buf := make([]byte, messageMax)
	for {
		// File descriptors that come along are dropped, which also lets a sender go
		// on that waits at a barrier.
		n, err := r.conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			r.handle(string(buf[:n]))
		}
	}
}

func (r *Receiver) handle(message string) {
	var rest []string
	for line := range strings.SplitSeq(message, "\n") {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "WATCHDOG":
			if value == "1" {
				r.progress()
			}
		case "WATCHDOG_USEC", "MAINPID", "MAINPIDFD", "MAINPIDFDID", "FDSTORE", "FDSTOREREMOVE", "FDNAME", "FDPOLL", "BARRIER", "":
			// Between a process and its own manager: this process stays the main one.
		default:
			rest = append(rest, line)
		}
	}
	if len(rest) > 0 {
		Send(r.outer, rest...)
	}
}

// Send tells the service manager at socket; an empty one is nobody. It does not
// wait for a manager that does not listen, and a failure is of no consequence.
func Send(socket string, lines ...string) error {
	if socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, err = conn.Write([]byte(strings.Join(lines, "\n")))
	return err
}

// WatchdogInterval is the time within which the service manager wants to hear
// from this process, or 0.
func WatchdogInterval(getenv func(string) string) time.Duration {
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	n, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || n <= 0 || n > int64(time.Hour*24*365/time.Microsecond) {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}
