package notify

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReceiver(t *testing.T) {
	t.Parallel()
	outerPath := filepath.Join(t.TempDir(), "outer")
	outer, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: outerPath, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	progress := make(chan struct{}, 10)
	r, err := Listen(t.TempDir(), outerPath, func() { progress <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if st, err := os.Stat(r.Path()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v; want 0600", st.Mode(), err)
	}

	send := func(lines ...string) {
		t.Helper()
		if err := Send(r.Path(), lines...); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(want string) {
		t.Helper()
		buf := make([]byte, messageMax)
		n, err := outer.Read(buf)
		if got := string(buf[:n]); err != nil || got != want {
			t.Errorf("the manager got %q, %v; want %q", got, err, want)
		}
	}

	send("WATCHDOG=1")
	<-progress
	send("READY=1", "STATUS=writing invoices = all of them", "MAINPID=1", "WATCHDOG=1", "")
	<-progress
	receive("READY=1\nSTATUS=writing invoices = all of them")
	send("WATCHDOG=trigger", "WATCHDOG_USEC=1", "BARRIER=1") // nothing in it for anybody
	send("RELOADING=1")
	receive("RELOADING=1")
	if len(progress) != 0 {
		t.Error("progress without WATCHDOG=1")
	}
	send(strings.Repeat("X", 2*messageMax)) // cut off, not fatal
	send("WATCHDOG=1")
	<-progress

	path := r.Path()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// A manager that is gone, full or never was holds nobody up.
func TestWithoutManager(t *testing.T) {
	t.Parallel()
	if err := Send("", "READY=1"); err != nil {
		t.Errorf("Send to nobody: %v", err)
	}
	if err := Send(filepath.Join(t.TempDir(), "gone"), "READY=1"); err == nil {
		t.Error("Send to a socket that does not exist succeeded")
	}
	progress := make(chan struct{}, 10)
	r, err := Listen(t.TempDir(), filepath.Join(t.TempDir(), "gone"), func() { progress <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := Send(r.Path(), "STATUS=x", "WATCHDOG=1"); err != nil {
		t.Fatal(err)
	}
	<-progress
}

func TestEnviron(t *testing.T) {
	t.Parallel()
	r, err := Listen(t.TempDir(), "", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, want := r.Environ(1500*time.Millisecond), []string{"NOTIFY_SOCKET=" + r.Path(), "WATCHDOG_USEC=1500000"}; !slices.Equal(got, want) {
		t.Errorf("Environ = %q, want %q", got, want)
	}
	if got := r.Environ(0); len(got) != 1 {
		t.Errorf("Environ(0) = %q, want NOTIFY_SOCKET alone", got)
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if !Owned(name) {
			t.Errorf("%s is not owned", name)
		}
	}
	if Owned("PATH") {
		t.Error("PATH is owned")
	}
}
