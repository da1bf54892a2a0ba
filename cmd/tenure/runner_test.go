package main

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure/store"
)

// Who has waited for long enough ends with why it was not elected.
func TestWaited(t *testing.T) {
	t.Parallel()
	wait := time.Minute
	for _, tt := range []struct {
		lastAsk error
		code    int
		says    string
	}{
		{nil, exitUnreachable, "the store gave no answer"},
		{&store.HeldError{Holder: "first", Token: 7}, 9, `held by "first"`},
		{store.ErrDenied, exitDenied, store.ErrDenied.Error()},
		{store.ErrBusy, exitUnreachable, store.ErrBusy.Error()},
		{errors.New("odd"), exitInternal, "odd"},
	} {
		r := &runner{c: &runCmd{Wait: &wait, ExitHeld: 9, ExitLost: exitLost}, store: &openStore{}, lastAsk: tt.lastAsk}
		err := r.outcome(errWaited)
		if got := exitCode(err); got != tt.code || !strings.HasPrefix(err.Error(), "gave up after 1m0s: ") || !strings.Contains(err.Error(), tidy(tt.says)) {
			t.Errorf("%v: exit code %d, %q; want %d, %q", tt.lastAsk, got, err, tt.code, tt.says)
		}
	}
}

// A command that does not end at TERM is killed after --kill-after, long before
// the lease would demand it, and the election is free.
func TestToldToEnd(t *testing.T) {
	p := newPlace(t)
	c := p.start("run", "job", "--ttl", "10m", "--kill-after", "200ms", "--", "sh", "-c", `trap "" TERM; echo up >up; while :; do sleep 0.02; done`)
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	c.signal(unix.SIGTERM)
	c.ends(137)
	p.nothingRuns()
	p.start("run", "job", "--no-wait", "--", "true").ends(0)
}

// A service manager hears that tenure is up, what it does, and that it lives.
func TestServiceManager(t *testing.T) {
	p := newPlace(t)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p.path("n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	manager.SetReadDeadline(time.Now().Add(patience))
	p.env = append(p.env, "NOTIFY_SOCKET="+p.path("n"), "WATCHDOG_USEC=2000000")
	c := p.start("run", "job", "--", "sleep", "1000")
	missing := []string{"READY=1", "STATUS=contending for job", "STATUS=leading with token 1", "WATCHDOG=1", "WATCHDOG=1"}
	for buf := make([]byte, 1000); len(missing) > 0; {
		n, err := manager.Read(buf)
		if err != nil {
			t.Fatalf("the service manager has not heard %q: %v", missing, err)
		}
		for _, line := range strings.Split(string(buf[:n]), "\n") {
			if i := slices.Index(missing, line); i >= 0 {
				missing = slices.Delete(missing, i, i+1)
			}
		}
	}
	c.signal(unix.SIGTERM)
	c.ends(143)
}
