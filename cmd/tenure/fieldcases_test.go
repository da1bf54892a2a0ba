package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
)

// The field cases: what went wrong with other guards of this kind, each named
// by its number, replayed with the command as users run it.

// place is a directory with a store, in which candidates run.
type place struct {
	t   *testing.T
	dir string
	env []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	p := &place{t: t, dir: t.TempDir()}
	bin := p.path("bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary is the command, if it is called so.
	if err := os.Symlink(exe, filepath.Join(bin, "tenure")); err != nil {
		t.Fatal(err)
	}
	p.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TENURE_STORE=sqlite:"+p.path("leases.db"), "PLACE="+p.dir,
		"TMPDIR="+p.dir, "XDG_RUNTIME_DIR=") // a wrapper that is killed leaves its sockets
	t.Cleanup(func() {
		for _, pid := range p.processes() {
			unix.Kill(pid, unix.SIGKILL) // what a failing test left behind
		}
	})
	return p
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// processes are those that run in the place.
func (p *place) processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !bytes.Contains(env, []byte("PLACE="+p.dir+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// candidate is a `tenure` that was started.
type candidate struct {
	p    *place
	cmd  *exec.Cmd
	log  *buffer
	code chan int
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts a `tenure` with these arguments.
func (p *place) start(args ...string) *candidate {
	p.t.Helper()
	return p.startUnder(nil, args...)
}

func (p *place) startUnder(under []string, args ...string) *candidate {
	p.t.Helper()
	line := append(append(slices.Clone(under), filepath.Join(p.dir, "bin", "tenure")), args...)
	path, err := exec.LookPath(line[0])
	if err != nil {
		p.t.Fatal(err)
	}
	c := &candidate{p: p, log: new(buffer), code: make(chan int, 1)}
	c.cmd = &exec.Cmd{Path: path, Args: line, Dir: p.dir, Env: p.env, Stderr: c.log, Stdout: c.log}
	c.cmd.WaitDelay = patience
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
	return c
}

// ends waits for the candidate's end and checks its exit code.
func (c *candidate) ends(want int) {
	c.p.t.Helper()
	select {
	case code := <-c.code:
		if code != want {
			c.p.t.Errorf("%q ended with %d, want %d; it said:\n%s", c.cmd.Args[1:], code, want, c.log)
		}
	case <-time.After(patience):
		c.p.t.Fatalf("%q does not end; it said:\n%s", c.cmd.Args[1:], c.log)
	}
}

func (c *candidate) signal(sig syscall.Signal) { c.cmd.Process.Signal(sig) }

// says waits until the candidate has said text.
func (c *candidate) says(text string) {
	c.p.t.Helper()
	c.p.until("what is said: "+text+"; it said:\n"+c.log.String(), func() bool { return strings.Contains(c.log.String(), text) })
}

func (p *place) until(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("never came: %s", what)
		}
	}
}

// tick is one line of a journal: who wrote it under which token, and when by the
// boot-time clock.
type tick struct {
	who   string
	token int
	at    float64
}

// journalJob is a job that writes a line to the place's journal every 20 ms, as
// who. Its first words may be shell commands such as a trap.
func journalJob(who string, before ...string) []string {
	script := strings.Join(append(before,
		`while :; do read -r now rest </proc/uptime; echo "`+who+` $TENURE_TOKEN $now" >>"$PLACE/journal"; sleep 0.02; done`), "; ")
	return []string{"--", "sh", "-c", script}
}

func (p *place) journal() (ticks []tick) {
	data, _ := os.ReadFile(p.path("journal"))
	for line := range strings.Lines(string(data)) {
		var tk tick
		if n, _ := fmt.Sscanf(line, "%s %d %f", &tk.who, &tk.token, &tk.at); n == 3 {
			ticks = append(ticks, tk)
		}
	}
	return ticks
}

// working waits until who has written to the journal.
func (p *place) working(who string) {
	p.t.Helper()
	p.until(who+" at work", func() bool {
		return slices.ContainsFunc(p.journal(), func(tk tick) bool { return tk.who == who })
	})
}

// noOverlap checks that the journal's terms followed one another: tokens never
// go down from line to line.
func (p *place) noOverlap() {
	p.t.Helper()
	last := tick{}
	for _, tk := range p.journal() {
		if tk.token < last.token {
			p.t.Errorf("%s wrote with token %d at %.2f, after %s with token %d at %.2f", tk.who, tk.token, tk.at, last.who, last.token, last.at)
		}
		last = tk
	}
}

// nothingRuns waits until no process is left in the place.
func (p *place) nothingRuns() {
	p.t.Helper()
	p.until("the end of all processes", func() bool { return len(p.processes()) == 0 })
}

// B08: lose and win again quickly. One start and one stop for each term, in
// turn, each with a token of its own.
func TestB08_LoseAndWinAgain(t *testing.T) {
	p := newPlace(t)
	// The job needs a while to end.
	c := p.start("run", "job", "--keep", "--ttl", "6s", "--", "sh", "-c",
		`echo "start $TENURE_TOKEN" >>terms; trap 'sleep 0.3; echo "stop $TENURE_TOKEN" >>terms; exit 0' TERM; while :; do sleep 0.02; done`)
	terms := func() []string {
		data, _ := os.ReadFile(p.path("terms"))
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
	const rounds = 5
	for i := range rounds {
		p.until(fmt.Sprintf("start of term %d", i+1), func() bool { return len(terms()) == 2*i+1 && strings.HasPrefix(terms()[2*i], "start") })
		p.start("evict", "job", "--reason", "round").ends(0)
	}
	p.until("the last start", func() bool { return len(terms()) == 2*rounds+1 })
	c.signal(unix.SIGTERM)
	c.ends(0)
	for i, line := range terms() {
		what, token := "start", i/2+1
		if i%2 == 1 {
			what = "stop"
		}
		if want := fmt.Sprintf("%s %d", what, token); line != want {
			t.Fatalf("line %d of the terms is %q, want %q:\n%s", i+1, line, want, strings.Join(terms(), "\n"))
		}
	}
	p.nothingRuns()
}

// B09: the election is freed when the job has ended, not when it was told to,
// and then the next one begins at once: with 10 minutes of lease, waiting for
// the expiry would show.
func TestB09_FreedAfterTheJob(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "10m", "--holder", "a"},
		journalJob("a", `trap 'for i in 1 2 3 4 5; do read -r now rest </proc/uptime; echo "a $TENURE_TOKEN $now" >>journal; sleep 0.2; done; echo done >drained; exit 0' TERM`)...)...)
	p.working("a")
	b := p.start(append([]string{"run", "job", "--ttl", "10m"}, journalJob("b")...)...)
	b.says("waiting: another leads")
	a.signal(unix.SIGTERM)
	a.ends(0)
	p.working("b")
	if _, err := os.Stat(p.path("drained")); err != nil {
		t.Errorf("a did not finish before b began: %v", err)
	}
	p.noOverlap()
	b.signal(unix.SIGTERM)
	b.ends(143)
}

// B10: a job that ignores TERM, whose wrapper is cut off from the store, is dead
// before another can lead.
func TestB10_DeadBeforeTheLeaseExpires(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "6s", "--holder", "a"}, journalJob("a", `trap "" TERM`)...)...)
	p.working("a")
	b := p.start(append([]string{"run", "job", "--ttl", "6s", "--holder", "b"}, journalJob("b")...)...)
	b.says("waiting: another leads")
	a.signal(unix.SIGSTOP) // no renewal from here on, and no help from the wrapper
	p.working("b")
	p.noOverlap()
	a.signal(unix.SIGCONT)
	a.ends(exitLost)
	p.noOverlap()
	b.signal(unix.SIGTERM)
	b.ends(143)
	p.nothingRuns()
}

// B11: a job that ends at once, in whichever way, frees the election at once.
func TestB11_JobEndsAtOnce(t *testing.T) {
	p := newPlace(t)
	began := time.Now()
	for code, command := range map[int][]string{
		0:   {"true"},
		1:   {"false"},
		137: {"sh", "-c", "kill -KILL $$"},
	} {
		p.start(append([]string{"run", "job", "--ttl", "10m", "--"}, command...)...).ends(code)
	}
	// With 10 minutes of lease, any that was not freed would show.
	p.start("run", "job", "--no-wait", "--", "true").ends(0)
	if d := time.Since(began); d > 5*time.Minute {
		t.Errorf("four runs took %v", d)
	}
}

// B25: while the store cannot be asked the job never starts, and that is told
// apart from "another leads".
func TestB25_NoAnswerIsNoGrant(t *testing.T) {
	p := newPlace(t)
	job := []string{"--", "touch", "ran"}
	bad := p.path("garbage.db")
	if err := os.WriteFile(bad, bytes.Repeat([]byte("garbage "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(want int, flags ...string) {
		t.Helper()
		p.start(append(append([]string{"run", "job"}, flags...), job...)...).ends(want)
	}
	run(exitUsage, "--store", "sqlite:"+bad)
	run(exitUnreachable, "--store", "sqlite:"+p.path("no/such/directory/leases.db"))

	// A file that is locked for longer than anybody waits.
	p.start("init").ends(0)
	locker := exec.Command("sqlite3", p.path("leases.db"), "begin exclusive;", ".shell touch locked; while ! test -e unlock; do sleep 0.02; done")
	locker.Dir = p.dir
	if err := locker.Start(); err != nil {
		t.Fatal(err)
	}
	defer locker.Wait()
	defer os.WriteFile(p.path("unlock"), nil, 0o600)
	p.until("the lock", func() bool { _, err := os.Stat(p.path("locked")); return err == nil })
	run(exitUnreachable, "--no-wait", "--ttl", "2s")
	run(exitUnreachable, "--wait", "1s", "--ttl", "2s")
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("the job ran without a grant")
	}
	if os.Geteuid() == 0 {
		// Permission is a third thing. Root has it, so ask as somebody else.
		dir, err := os.MkdirTemp("", "tenure-denied-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		file := filepath.Join(dir, "leases.db")
		p.start("init", "--store", "sqlite:"+file).ends(0)
		copyCommand(t, dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(filepath.Join(dir, "tenure"), "run", "job", "--store", "sqlite:"+file, "--", "true")
		c.Dir, c.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != exitDenied {
			t.Errorf("without permission: exit code %d, want %d:\n%s", code, exitDenied, out)
		}
	}
}

// B34: a lost leadership never ends as 0, also if the command does.
func TestB34_LostIsNotZero(t *testing.T) {
	p := newPlace(t)
	c := p.start("run", "job", "--ttl", "10s", "--", "sh", "-c", `trap "exit 0" TERM; echo up >up; while :; do sleep 0.02; done`)
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	p.start("evict", "job", "--reason", "test").ends(0)
	c.ends(exitLost)
}

// B35: signals reach the command's whole group, and nothing of it is left.
func TestB35_Signals(t *testing.T) {
	p := newPlace(t)
	worker := `while :; do sleep 0.02; done`
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1} {
		c := p.start("run", "job", "--ttl", "6s", "--kill-after", "500ms", "--", "sh", "-c",
			`sh -c '`+worker+`' & setsid sh -c 'trap "" TERM; `+worker+`' & echo up >up; wait; wait`)
		p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
		c.signal(sig)
		c.ends(128 + int(sig))
		p.nothingRuns()
		os.Remove(p.path("up"))
		p.start("status", "job", "--json").says(`"state":"vacant"`)
	}
}

// B35: a candidate that waits ends at once, and leaves nothing behind.
func TestB35_SignalsWhileWaiting(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "10m"}, journalJob("a")...)...)
	p.working("a")
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		b := p.start("run", "job", "--", "touch", "ran")
		b.says("waiting: another leads")
		b.signal(unix.SIGUSR1) // for a job that does not run yet: nothing
		b.signal(unix.SIGWINCH)
		b.signal(sig)
		b.ends(128 + int(sig))
	}
	a.signal(unix.SIGTERM)
	a.ends(143)
	p.start("run", "job", "--no-wait", "--", "true").ends(0)
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("a candidate that was told to end ran its job")
	}
}

// B35: as PID 1 of a container.
func TestB35_PID1(t *testing.T) {
	p := newPlace(t)
	c := p.startUnder([]string{"unshare", "-pf", "--mount-proc"}, "run", "job", "--ttl", "6s", "--kill-after", "500ms", "--", "sh", "-c",
		`setsid sh -c 'trap "" TERM; while :; do sleep 0.02; done' & echo up >up; wait`)
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	below, err := guard.Descendants(c.cmd.Process.Pid)
	if err != nil || len(below) == 0 {
		t.Fatalf("processes below unshare: %v, %v", below, err)
	}
	unix.Kill(below[0], unix.SIGTERM)
	c.ends(143)
	p.start("status", "job", "--json").says(`"state":"vacant"`)
}

// B40: two hosts with clocks apart start a short job for each tick. With
// --hold-at-least it runs once a tick.
func TestB40_OncePerSlot(t *testing.T) {
	p := newPlace(t)
	const ticks = 3
	for i := range ticks {
		begin := time.Now()
		args := []string{"run", "job", "--no-wait", "--exit-held", "0", "--ttl", "2s", "--hold-at-least", "2s", "--", "sh", "-c", fmt.Sprintf("echo %d >>runs", i)}
		first := p.start(args...)
		p.until("the first run", func() bool {
			data, _ := os.ReadFile(p.path("runs"))
			return len(strings.Fields(string(data))) > i
		})
		if time.Since(begin) < 1500*time.Millisecond { // else the machine is too slow for this tick to say anything
			p.start(args...).ends(0)
		}
		first.ends(0)
	}
	data, err := os.ReadFile(p.path("runs"))
	if got := strings.Fields(string(data)); err != nil || len(got) != ticks {
		t.Errorf("%d ticks ran the job %d times: %v, %v", ticks, len(got), got, err)
	}
}

// S01: kill -9 of the wrapper. Nothing of the job lives when another leads.
func TestS01_WrapperKilled(t *testing.T) {
	p := newPlace(t)
	loop := strings.Join(journalJob("stray")[3:], "")
	a := p.start(append([]string{"run", "job", "--ttl", "6s"}, journalJob("a", `trap "" TERM`, `setsid sh -c '`+loop+`' &`+` true`)...)...)
	p.working("a")
	p.working("stray")
	b := p.start(append([]string{"run", "job", "--ttl", "6s"}, journalJob("b")...)...)
	b.says("waiting: another leads")
	a.signal(unix.SIGKILL)
	a.ends(137)
	p.working("b")
	p.noOverlap()
	b.signal(unix.SIGTERM)
	b.ends(143)
	p.nothingRuns()
	p.noOverlap()
}

// S02: told to end while leading, the election is free in about as long as the
// job takes.
func TestS02_FreedWhenTold(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "10m"}, journalJob("a")...)...)
	p.working("a")
	a.signal(unix.SIGTERM)
	a.ends(143)
	p.start("run", "job", "--no-wait", "--", "true").ends(0)
}

// S04: numbers of 64 bits come through JSON exactly.
func TestS04_ExactNumbers(t *testing.T) {
	p := newPlace(t)
	p.start("run", "job", "--", "true").ends(0)
	const token = "9007199254740993" // 2^53 + 1
	if out, err := exec.Command("sqlite3", p.path("leases.db"), "update tenure_lease set token = "+token+" - 1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := p.start("run", "job", "--json", "--marker", "marker", "--", "sh", "-c", `tenure check --json; cat marker; tenure status --json; tenure history --json -n 1 job`)
	c.ends(0)
	for line := range strings.Lines(c.log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("not JSON: %s", line)
			continue
		}
		if got, ok := fields["token"]; ok && got != token {
			t.Errorf("token %v (%T), want the text %s: %s", got, got, token, line)
		}
		for name, v := range fields {
			if n, ok := v.(float64); ok && name != "pid" && name != "code" {
				t.Errorf("%s is the bare number %v: %s", name, n, line)
			}
		}
	}
	if n := strings.Count(c.log.String(), `"token":"`+token+`"`); n < 5 {
		t.Errorf("the token appears %d times, want 5 or more:\n%s", n, c.log)
	}
}

// S03: a wrapper that is killed leaves no sockets behind: its guardian removes
// them, or, where there was none or it was killed too, the next `tenure run`. Those
// of one that lives stay.
func TestS03_SocketsOfTheKilled(t *testing.T) {
	p := newPlace(t)
	tmp := p.path("tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "TMPDIR="+tmp)
	count := func() int {
		left, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	a := p.start("run", "job", "--ttl", "3s", "--stall-after", "1m", "--", "sh", "-c", "echo up >up; exec sleep 600")
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	a.signal(unix.SIGKILL)
	a.ends(128 + int(unix.SIGKILL))
	p.until("the guardian to clean up", func() bool { return count() == 0 })

	first := p.start("run", "job", "--", "sh", "-c", "while ! test -e end; do sleep 0.02; done; tenure check")
	first.says("leading")
	b := p.start("run", "job", "--", "true")
	b.says("waiting: another leads")
	b.signal(unix.SIGKILL)
	b.ends(128 + int(unix.SIGKILL))
	if got := count(); got != 2 {
		t.Errorf("there are %d directories of sockets, want those of the first and of the killed one", got)
	}
	p.start("run", "job", "--no-wait", "--", "true").ends(exitHeld)
	if got := count(); got != 1 {
		t.Errorf("there are %d directories of sockets, want that of the first", got)
	}
	if err := os.WriteFile(p.path("end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first.ends(0) // its job could still ask
	if got := count(); got != 0 {
		t.Errorf("there are %d directories of sockets at the end", got)
	}
}
