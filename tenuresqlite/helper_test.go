//go:build linux

package tenuresqlite

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// roleVar names the variable by which a test starts this test binary again, as
// another process with a role of its own.
const roleVar = "TENURESQLITE_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for another process before it gives up: it
// is no measure of anything.
const deadline = 60 * time.Second

// process is another process of this test binary. It reads lines from its
// standard input and writes lines to its standard output.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	once  sync.Once
	err   error
}

// start starts a process in the given role; it is killed at the end of the test.
func start(t testing.TB, role string, args ...string) *process {
	t.Helper()
	return startAs(t, nil, role, args...)
}

// startAs is start, with change made to the command before.
func startAs(t testing.TB, change func(*exec.Cmd), role string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(exe, args...), lines: make(chan string, 1024)}
	p.cmd.Env = append(os.Environ(), roleVar+"="+role)
	p.cmd.Stderr = os.Stderr
	if change != nil {
		change(p.cmd)
	}
	p.in, err = p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting a process in the role %q: %v", role, err)
	}
	go func() {
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// line returns the process's next line.
func (p *process) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("the process ended: %v", p.wait())
		}
		return l
	case <-time.After(deadline):
		p.t.Fatal("the process says nothing")
	}
	return ""
}

func (p *process) expect(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("the process says %q, want %q", got, want)
	}
}

func (p *process) say(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// freeze stops the process and waits until the system has.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, "the process is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			p.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}

func (p *process) thaw() { p.t.Helper(); p.signal(syscall.SIGCONT) }

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.wait()
}

func (p *process) wait() error {
	p.once.Do(func() {
		_ = p.in.Close()
		for range p.lines {
			continue
		}
		p.err = p.cmd.Wait()
	})
	return p.err
}

// eventually waits until ok, which another process or the system brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// open opens a store, which is closed at the end of the test.
func open(t testing.TB, path string, o *Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// file returns the path of a database file in a directory of the test's own.
func file(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "tenure.db")
}

func attempt() store.Attempt { return store.Attempt(rand.Text()) }

func claim(name string, ttl time.Duration) store.Claim {
	return store.Claim{Name: name, Holder: "holder of " + name, Attempt: attempt(), TTL: ttl}
}

// acquire acquires an election, which must succeed.
func acquire(t testing.TB, s *Store, c store.Claim) store.Lease {
	t.Helper()
	l, err := s.Acquire(context.Background(), c)
	if err != nil {
		t.Fatalf("acquiring %q: %v", c.Name, err)
	}
	return l
}

// renewed renews a lease, which must succeed.
func renewed(t testing.TB, s *Store, l store.Lease) store.Lease {
	t.Helper()
	l, err := s.Renew(context.Background(), l, attempt())
	if err != nil {
		t.Fatalf("renewing %q: %v", l.Name, err)
	}
	return l
}

// get reads a record, which must be there.
func get(t testing.TB, s *Store, name string) store.Record {
	t.Helper()
	rec, err := s.Get(context.Background(), name)
	if err != nil {
		t.Fatalf("reading %q: %v", name, err)
	}
	return rec
}

// heldBy returns the error of an acquire that must be refused because somebody
// holds the election.
func heldBy(t testing.TB, s *Store, c store.Claim) *store.HeldError {
	t.Helper()
	l, err := s.Acquire(context.Background(), c)
	var held *store.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("acquiring %q: got %+v, %v; want that it is held", c.Name, l, err)
	}
	return held
}

// isKind fails unless err is of the kind, names the file and was certainly not
// carried out.
func isKind(t testing.TB, err, kind error, path string) {
	t.Helper()
	switch {
	case !errors.Is(err, kind):
		t.Fatalf("got the error %v, want %v", err, kind)
	case !strings.Contains(err.Error(), path):
		t.Fatalf("the error %q does not name %s", err, path)
	case store.OutcomeUnknown(err):
		t.Fatalf("the outcome of %v is said to be unknown", err)
	}
}

// sql runs a statement on a connection of its own, as an operator would.
func execOn(t testing.TB, path, query string, args ...any) {
	t.Helper()
	if _, err := openJob(t, path, "").Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

func ask[T any](t testing.TB, path, query string, args ...any) T {
	t.Helper()
	var v T
	if err := openJob(t, path, "").QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// fakeClock is a clock that a test moves.
type fakeClock struct {
	mu   sync.Mutex
	mono time.Duration
	wall time.Time
	boot string
}

func newFakeClock() *fakeClock {
	return &fakeClock{mono: time.Hour, wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), boot: "boot-1"}
}

func (c *fakeClock) read() (reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reading{now: row.Now{Mono: c.mono, Wall: c.wall}, boot: c.boot}, nil
}

// pass lets time pass.
func (c *fakeClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += d
	c.wall = c.wall.Add(d)
}

// set changes the clock as nothing but a reboot, a restore or an operator does.
func (c *fakeClock) set(change func(*fakeClock)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// openFiles returns how many descriptors this process has of files under dir.
func openFiles(t testing.TB, dir string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && (strings.HasPrefix(target, dir) || strings.Contains(target, "inotify")) {
			n++
		}
	}
	return n
}

// ours returns the stacks of the goroutines that a store started.
func ours() (stacks []string) {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, g := range strings.Split(string(buf), "\n\n") {
		_, by, _ := strings.Cut(g, "created by ")
		if strings.Contains(by, "tenuresqlite.") && !strings.Contains(by, "_test.go") || strings.HasPrefix(by, "database/sql.") {
			stacks = append(stacks, g)
		}
	}
	return stacks
}

// nothingLeft waits until no goroutine of any store is left, and no file under
// dir is open: those that were told to end may take a moment to.
func nothingLeft(t testing.TB, dir string) {
	t.Helper()
	var left []string
	var files int
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		left, files = ours(), openFiles(t, dir)
		if len(left) == 0 && files == 0 {
			return
		}
	}
	t.Errorf("%d files are still open, and goroutines are left:\n%s", files, strings.Join(left, "\n\n"))
}
