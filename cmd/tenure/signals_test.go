package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unread starts a `tenure` whose log somebody reads to the first line that has
// text in it, and no further.
func (p *place) unread(text string, args ...string) *candidate {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c := &candidate{p: p, log: new(buffer), code: make(chan int, 1)}
	c.cmd = exec.Command(filepath.Join(p.dir, "bin", "tenure"), args...)
	c.cmd.Dir, c.cmd.Env, c.cmd.Stderr = p.dir, p.env, w
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		c.cmd.Wait()
		code := c.cmd.ProcessState.ExitCode()
		if ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
			code = 128 + int(ws.Signal())
		}
		c.code <- code
	}()
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	for s := bufio.NewScanner(r); s.Scan(); {
		c.log.Write([]byte(s.Text() + "\n"))
		if strings.Contains(s.Text(), text) {
			return c
		}
	}
	p.t.Fatalf("%q did not say %q; it said:\n%s", args, text, c.log)
	return nil
}

// A log that nobody reads any more changes nothing: `tenure run … 2>&1 | head -1`.
func TestLogUnread(t *testing.T) {
	p := newPlace(t)
	free := func() { p.start("status", "job", "--json").says(`"state":"vacant"`) }

	// The command's end is the end.
	p.unread("store", "run", "job", "--ttl", "10m", "--", "true").ends(0)
	free()
	p.unread("store", "run", "job", "--ttl", "10m", "--", "sh", "-c", "exit 5").ends(5)
	free()
	p.unread("store", "run", "--json", "job", "--ttl", "10m", "--", "sh", "-c", "exit 5").ends(5)
	free()

	// TERM, with the marker taken away.
	c := p.unread("leading", "run", "job", "--ttl", "10m", "--marker", "marker", "--", "sh", "-c", "echo up >up; exec sleep 600")
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	c.signal(unix.SIGTERM)
	c.ends(128 + int(unix.SIGTERM))
	free()
	if _, err := os.Stat(p.path("marker")); err == nil {
		t.Error("the marker is still there")
	}

	// A loss.
	c = p.unread("leading", "run", "job", "--ttl", "6s", "--", "sleep", "600")
	p.start("evict", "job", "--reason", "test").ends(0)
	c.ends(exitLost)

	// A candidate that waits gets its turn.
	first := p.start("run", "job", "--ttl", "10m", "--", "sh", "-c", "while ! test -e end; do sleep 0.02; done")
	first.says("leading")
	second := p.unread("waiting", "run", "job", "--", "touch", "ran")
	if err := os.WriteFile(p.path("end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first.ends(0)
	second.ends(0)
	if _, err := os.Stat(p.path("ran")); err != nil {
		t.Errorf("the second's command did not run: %v", err)
	}
	p.nothingRuns()
}

// The command itself is ended by PIPE, as everywhere.
func TestPipeOfTheCommand(t *testing.T) {
	p := newPlace(t)
	p.start("run", "job", "--", "sh", "-c", "kill -PIPE $$; exit 3").ends(128 + int(unix.SIGPIPE))
}

// Every signal that tells a process something reaches the command, and ends a
// candidate that waits.
func TestEverySignal(t *testing.T) {
	p := newPlace(t)
	for _, sig := range []syscall.Signal{unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR, unix.SIGSTKFLT, unix.SIGUSR2, 35, 50, 64} {
		c := p.start("run", "job", "--ttl", "10m", "--", "sh", "-c", "echo up >up; exec sleep 600")
		p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
		if sig != unix.SIGUSR2 {
			b := p.start("run", "job", "--", "touch", "ran")
			b.says("waiting: another leads")
			b.signal(sig)
			b.ends(128 + int(sig))
		}
		c.signal(sig)
		c.ends(128 + int(sig))
		os.Remove(p.path("up"))
		p.start("status", "job", "--json").says(`"state":"vacant"`)
	}
}

// What `tenure run` waits for before it contends does not make it deaf.
func TestSignalsWhilePreparing(t *testing.T) {
	p := newPlace(t)
	if err := unix.Mkfifo(p.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP} {
		c := p.start("run", "--store-file", "fifo", "job", "--", "touch", "ran")
		w, err := os.OpenFile(p.path("fifo"), os.O_WRONLY, 0) // returns when it is being read
		if err != nil {
			t.Fatal(err)
		}
		c.signal(sig)
		c.ends(128 + int(sig))
		w.Close()
	}
}
