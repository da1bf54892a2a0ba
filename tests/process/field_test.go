package process

import (
	"bufio"
	"bytes"
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for something that must happen. It says
// nothing about how long it should take.
const patience = 2 * time.Minute

// field is a test's processes, the files they share, and all that they told.
type field struct {
	t   testing.TB
	dir string

	mu    sync.Mutex
	log   []event
	news  chan struct{} // closed, and replaced, at each event
	procs []*proc
}

// newField makes the files that a test's processes share. At the end of the test
// it kills what still runs.
func newField(t testing.TB) *field {
	t.Helper()
	f := &field{t: t, dir: t.TempDir(), news: make(chan struct{})}
	l, err := openLedger(f.path("ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.db.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.end)
	return f
}

func (f *field) path(name string) string { return filepath.Join(f.dir, name) }

// plan is what the candidates of a test have in common.
func (f *field) plan(ttl time.Duration) plan {
	return plan{File: f.path("lease.db"), Election: "job", TTL: ttl, Journal: f.path("journal"), Ledger: f.path("ledger.db")}
}

// stints reads the journal and checks it and the ledger.
func (f *field) stints() []stint {
	f.t.Helper()
	all := stints(f.t, readJournal(f.t, f.path("journal")))
	checkLedger(f.t, f.path("ledger.db"), all)
	return all
}

func (f *field) end() {
	for _, p := range f.procs {
		_ = p.cmd.Process.Kill()
		if p.pid != p.cmd.Process.Pid {
			_ = p.stdin.Close()
		}
		<-p.gone
	}
	if !f.t.Failed() {
		return
	}
	for _, e := range f.log {
		if e.Kind == "wrote" {
			continue
		}
		text, _ := json.Marshal(e)
		f.t.Logf("%s: %s", e.from.name, text)
	}
	for _, p := range f.procs {
		if p.stderr.Len() > 0 {
			f.t.Logf("%s wrote to its standard error:\n%s", p.name, p.stderr.Bytes())
		}
	}
}

// proc is a process that this test started.
type proc struct {
	f      *field
	name   string
	cmd    *exec.Cmd
	pid    int // differs from cmd's if that only starts the process
	stdin  io.WriteCloser
	stderr bytes.Buffer
	gone   chan struct{}  // closed when it is waited for
	read   map[string]int // how much of the log await has gone through, by kind
	from   int            // where it begins with other kinds
}

// start starts a process in a role, by way of another command if there is one.
func (f *field) start(role, name string, p plan, through ...string) *proc {
	f.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		f.t.Fatal(err)
	}
	args := append(through, exe)
	c := &proc{f: f, name: name, cmd: exec.Command(args[0], args[1:]...), gone: make(chan struct{}), read: make(map[string]int)}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role, planEnv+"="+string(text))
	c.cmd.Stderr = &c.stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	c.pid = c.cmd.Process.Pid
	f.procs = append(f.procs, c)
	go c.hear(stdout)
	return c
}

// candidate starts a candidate and waits until it contends.
func (f *field) candidate(name string, p plan, through ...string) *proc {
	f.t.Helper()
	c := f.start("candidate", name, p, through...)
	c.pid = c.await("ready", nil).PID
	return c
}

// hear adds what the process tells to the field's log, and its end.
func (p *proc) hear(stdout io.Reader) {
	for scan := bufio.NewScanner(stdout); scan.Scan(); {
		var e event
		if json.Unmarshal(scan.Bytes(), &e) != nil {
			e = event{Kind: "noise", Error: scan.Text()}
		}
		p.f.add(p, e)
	}
	_ = p.cmd.Wait() // the state has it
	p.f.add(p, event{At: mono(), Kind: "exit", Code: p.cmd.ProcessState.ExitCode()})
	close(p.gone)
}

func (f *field) add(p *proc, e event) {
	e.from = p
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, e)
	close(f.news)
	f.news = make(chan struct{})
}

// now is the place in the log at which the next event will stand.
func (f *field) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.log)
}

// await waits for an event that stands at from or later in the log and matches,
// and returns it and the place after it.
func (f *field) await(what string, from int, match func(event) bool) (event, int) {
	f.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		f.mu.Lock()
		log, news := f.log, f.news
		f.mu.Unlock()
		for ; from < len(log); from++ {
			if match(log[from]) {
				return log[from], from + 1
			}
		}
		select {
		case <-news:
		case <-late.C:
			f.t.Fatalf("nothing came of waiting %v for %s", patience, what)
		}
	}
}

// count returns how many events match so far.
func (f *field) count(match func(event) bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, e := range f.log {
		if match(e) {
			n++
		}
	}
	return n
}

// await waits for the process's next event of a kind that matches, or any of the
// kind if match is nil: the next one after the last that it returned, or after
// skip. Events of different kinds may come in any order.
func (p *proc) await(kind string, match func(event) bool) event {
	p.f.t.Helper()
	e, at := p.f.await(fmt.Sprintf("%q of %s", kind, p.name), max(p.from, p.read[kind]), func(e event) bool {
		return e.from == p && (e.Kind == kind && (match == nil || match(e)) || e.Kind == "exit")
	})
	p.read[kind] = at
	if e.Kind == "exit" && kind != "exit" {
		p.f.t.Fatalf("%s ended with exit code %d instead of %q", p.name, e.Code, kind)
	}
	return e
}

// count returns how many events of a kind the process has told so far.
func (p *proc) count(kind string) int {
	return p.f.count(func(e event) bool { return e.from == p && e.Kind == kind })
}

// skip is done with all events so far.
func (p *proc) skip() { p.from = p.f.now() }

// order has the process do something and returns what came of it.
func (p *proc) order(order string) event {
	p.f.t.Helper()
	p.tell(order)
	var word string
	_, _ = fmt.Sscan(order, &word)
	e := p.await(word, nil)
	if e.Error != "" {
		p.f.t.Fatalf("%s: order %q: %s", p.name, order, e.Error)
	}
	return e
}

// tell orders something without waiting for what comes of it.
func (p *proc) tell(order string) {
	p.f.t.Helper()
	if _, err := fmt.Fprintln(p.stdin, order); err != nil {
		p.f.t.Fatalf("%s: order %q: %v", p.name, order, err)
	}
}

// signal sends a signal and returns the moment before.
func (p *proc) signal(s syscall.Signal) time.Duration {
	p.f.t.Helper()
	at := mono()
	if err := unix.Kill(p.pid, s); err != nil {
		p.f.t.Fatalf("%s: %v: %v", p.name, s, err)
	}
	return at
}

// freeze stops the process and returns the moment before. It does so between two
// writes: SQLite lets nobody write while a process that is stopped in a
// transaction holds the file's lock.
func (p *proc) freeze() time.Duration {
	p.f.t.Helper()
	for {
		at := p.signal(unix.SIGSTOP)
		for !p.stopped() {
			time.Sleep(100 * time.Microsecond)
		}
		if !slices.ContainsFunc(locksOf(p.pid), func(lock string) bool { return strings.Contains(lock, "WRITE") }) {
			return at
		}
		p.signal(unix.SIGCONT)
		time.Sleep(time.Millisecond)
	}
}

// stopped reports whether every thread of the process has stopped.
func (p *proc) stopped() bool {
	p.f.t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid))
	if err != nil || len(stats) == 0 {
		p.f.t.Fatalf("%s has no threads: %v", p.name, err)
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has just ended
		}
		if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// thaw lets a frozen process go on and returns the moment before.
func (p *proc) thaw() time.Duration {
	p.f.t.Helper()
	return p.signal(unix.SIGCONT)
}

// kill kills the process and waits for its end.
func (p *proc) kill() time.Duration {
	p.f.t.Helper()
	at := p.signal(unix.SIGKILL)
	<-p.gone
	return at
}

// stop asks the process to end and checks that it leaves nothing behind.
func (p *proc) stop() event {
	p.f.t.Helper()
	p.signal(unix.SIGTERM)
	closed := p.await("closed", nil)
	for _, left := range closed.Left {
		p.f.t.Errorf("%s leaves behind: %s", p.name, left)
	}
	if e := p.await("exit", nil); e.Code != 0 {
		p.f.t.Errorf("%s ended with exit code %d", p.name, e.Code)
	}
	return closed
}

// lock takes the write lock of a SQLite file and returns what gives it back. A
// reader gets in all the same if the file has a write-ahead log.
func (f *field) lock(name string) (unlock func()) {
	f.t.Helper()
	db, err := sql.Open("sqlite", "file:"+f.path(name)+"?_pragma=busy_timeout(30000)&_txlock=exclusive")
	if err != nil {
		f.t.Fatal(err)
	}
	tx, err := db.Begin()
	if err != nil {
		f.t.Fatal(err)
	}
	var once sync.Once
	unlock = func() {
		once.Do(func() { _, _ = tx.Rollback(), db.Close() })
	}
	f.t.Cleanup(unlock)
	return unlock
}

// row reads the election's record as it stands in the file, every column of it.
func (f *field) row() (columns map[string]string) {
	f.t.Helper()
	db, err := sql.Open("sqlite", "file:"+f.path("lease.db")+"?_pragma=busy_timeout(30000)")
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("select * from tenure_lease")
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		f.t.Fatal(err)
	}
	for rows.Next() {
		if columns != nil {
			f.t.Fatal("there is more than one record")
		}
		values := make([]any, len(names))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			f.t.Fatal(err)
		}
		columns = make(map[string]string, len(names))
		for i, name := range names {
			columns[name] = fmt.Sprintf("%v", *values[i].(*any))
		}
	}
	if err := cmp.Or(rows.Err(), rows.Close()); err != nil {
		f.t.Fatal(err)
	}
	return columns
}
