package guard

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// soon are the limits of a run whose job must be dead within its lease: KILL at
// 2 s, the lease's end at 6 s, both from the arming.
var soon = wrapperConfig{StepDown: 1500 * time.Millisecond, Kill: 2 * time.Second, KillAfter: 400 * time.Millisecond}

const soonLease = 6 * time.Second

func (c wrapperConfig) with(command ...string) wrapperConfig {
	c.Command = command
	return c
}

// fourJobs is a job that ignores TERM, with a child, a child in a session of
// its own and a daemon that lost its parent, each keeping a journal.
var fourJobs = job("ignore", "15",
	"with", "ignore 15 journal child",
	"with", "setsid ignore 15 journal session",
	"with-daemon", "ignore 15 journal daemon",
	"journal", "main")

var fourJournals = []string{"main", "child", "session", "daemon"}

// startFour starts the four and waits until they are at work.
func startFour(t *testing.T, c wrapperConfig) *run {
	t.Helper()
	r := start(t, c.with(fourJobs...)).started()
	for _, j := range fourJournals {
		r.waitFor(j)
	}
	return r
}

func TestS01_WrapperKilled(t *testing.T) {
	t.Parallel()
	r := startFour(t, soon)
	armed := r.arm()
	r.cmd.Process.Kill()
	r.dead()
	r.journals(armed.Add(soonLease), fourJournals...)
}

// The end of the wrapper is an order to stop at once, not at the limit.
func TestS01_WrapperKilledLongBeforeTheLimit(t *testing.T) {
	t.Parallel()
	r := startFour(t, wrapperConfig{KillAfter: time.Second, StepDown: time.Hour, Kill: 2 * time.Hour})
	r.cmd.Process.Kill()
	r.dead()
}

func TestWrapperFrozen(t *testing.T) {
	t.Parallel()
	r := startFour(t, soon)
	armed := r.arm()
	r.cmd.Process.Signal(unix.SIGSTOP)
	waitUntil(t, "end of the guardian", func() bool { return !r.guardian.alive() })
	r.journals(armed.Add(soonLease), fourJournals...)
	r.cmd.Process.Signal(unix.SIGCONT)
	r.expect("exited 137")
	r.expect("gone")
	r.dead()
	r.journals(armed.Add(soonLease), fourJournals...)
}

func TestGuardianKilled(t *testing.T) {
	t.Parallel()
	r := startFour(t, wrapperConfig{KillAfter: time.Second})
	r.signal(r.guardian, unix.SIGKILL)
	r.expect("exited 137")
	r.expect("gone")
	if !strings.Contains(strings.Join(r.log, ""), "the guardian was killed") {
		t.Errorf("log %q, want that the guardian was killed", r.log)
	}
	if code := r.exitCode(); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
}

func TestGuardianFrozen(t *testing.T) {
	t.Parallel()
	r := startFour(t, soon)
	r.signal(r.guardian, unix.SIGSTOP)
	armed := r.arm()
	r.dead()
	r.journals(armed.Add(soonLease), fourJournals...)
}

// A frozen guardian cannot carry out a stop: the wrapper does, long before the
// limit.
func TestGuardianFrozenAtStop(t *testing.T) {
	t.Parallel()
	r := startFour(t, wrapperConfig{KillAfter: 100 * time.Millisecond, Term: true})
	r.signal(r.guardian, unix.SIGSTOP)
	r.cmd.Process.Signal(unix.SIGTERM)
	r.dead()
}

// A guardian that takes no orders is killed, with everything.
func TestGuardianDoesNotRead(t *testing.T) {
	t.Parallel()
	r := startFour(t, wrapperConfig{KillAfter: time.Hour})
	r.signal(r.guardian, unix.SIGSTOP)
	// Each signal is an order; the pipe holds some thousands.
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		select {
		case <-r.alive:
			return
		default:
			r.cmd.Process.Signal(unix.SIGUSR1)
		}
	}
	t.Fatal("the guardian was not killed")
}

func TestGuardianAndWrapperKilled(t *testing.T) {
	t.Parallel()
	r := start(t, wrapperConfig{Command: job("ignore", "15", "journal", "main")}).started()
	r.waitFor("main")
	r.signal(r.guardian, unix.SIGSTOP) // so that it cannot act between the two
	r.cmd.Process.Kill()
	r.signal(r.guardian, unix.SIGKILL)
	r.dead()
}

// A thread of the guardian that ends must not take the command with it.
func TestS01_CommandOutlivesThreads(t *testing.T) {
	t.Parallel()
	r := start(t, wrapperConfig{Command: job("until", "go", "exit", "7")}).started()
	// The guardian's threads end when they were locked and their goroutine ended;
	// from outside only its parent-death setting can be looked at: the command has
	// the guardian's main thread as its parent for as long as it runs.
	if r.pid.ppid != r.guardian.pid {
		t.Fatalf("the command's parent is %d, want the guardian %d", r.pid.ppid, r.guardian.pid)
	}
	os.WriteFile(r.path("go"), nil, 0o600)
	r.expect("exited 7")
	r.expect("gone")
}

// The limits that were set last hold.
func TestLimitsMove(t *testing.T) {
	t.Parallel()
	const first = 10 * time.Second
	r := start(t, wrapperConfig{First: first, StepDown: time.Hour, Kill: time.Hour, KillAfter: time.Second, Command: job("journal", "main")}).started()
	r.arm()
	past := Now().Add(first)
	waitUntil(t, "a journal past the first limits", func() bool {
		data, _ := os.ReadFile(r.path("main"))
		lines := strings.Fields(string(data))
		if len(lines) == 0 {
			return false
		}
		last, _ := strconv.ParseInt(lines[len(lines)-1], 10, 64)
		return last > past.Boot
	})
}

func TestB34_ExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	noInterpreter := filepath.Join(dir, "no-interpreter")
	noHashBang := filepath.Join(dir, "no-hash-bang")
	write := func(file, text string, mode os.FileMode) {
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(plain, "text", 0o600)
	write(noInterpreter, "#!/does/not/exist\n", 0o700)
	write(noHashBang, "exit 9\n", 0o700)

	type test struct {
		name    string
		command []string
		want    string
	}
	tests := []test{
		{"missing", []string{"/does/not/exist"}, "failed 127"},
		{"missing in PATH", []string{"no-such-program-anywhere"}, "failed 127"},
		{"empty", []string{""}, "failed 127"},
		{"not executable", []string{plain}, "failed 126"},
		{"directory", []string{dir}, "failed 126"},
		{"no interpreter", []string{noInterpreter}, "failed 126"},
		{"no hash-bang", []string{noHashBang}, "exited 9"},
		{"TERM", job("die", "15"), "exited 143"},
		{"KILL", job("die", "9"), "exited 137"},
		{"SEGV", job("die", "11"), "exited 139"},
	}
	for _, code := range []int{0, 1, 2, 75, 76, 125, 126, 127, 128, 255} {
		tests = append(tests, test{fmt.Sprint(code), job("exit", fmt.Sprint(code)), fmt.Sprintf("exited %d", code)})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, wrapperConfig{Command: tt.command})
			if strings.HasPrefix(tt.want, "failed") {
				r.expect(tt.want)
				r.dead()
				return
			}
			r.started()
			r.expect(tt.want)
			r.expect("gone")
			if code := r.exitCode(); fmt.Sprintf("exited %d", code) != tt.want {
				t.Errorf("the wrapper's exit code is %d, want it %s", code, tt.want)
			}
		})
	}
}

// What the command leaves behind gets TERM, then KILL, and only then is the job
// gone.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	t.Run("TERM is enough", func(t *testing.T) {
		t.Parallel()
		r := start(t, wrapperConfig{KillAfter: time.Hour, Command: job(
			"with-daemon", "journal daemon", "with", "journal child", "until", "daemon", "until", "child", "exit", "3")}).started()
		r.expect("exited 3")
		r.expect("gone")
		if code := r.exitCode(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
	})
	t.Run("TERM is ignored", func(t *testing.T) {
		t.Parallel()
		r := start(t, wrapperConfig{KillAfter: 300 * time.Millisecond, Command: job(
			"with-daemon", "ignore 15 journal daemon", "with", "ignore 15 journal child", "until", "daemon", "until", "child", "exit", "3")}).started()
		r.expect("exited 3")
		exited := Now()
		r.expect("gone")
		gone := Now()
		if d := gone.Until(exited); d < 200*time.Millisecond {
			t.Errorf("KILL came %v after TERM, want 300ms", d)
		}
		r.journals(gone, "daemon", "child")
		r.dead()
	})
}

// Processes that are never the same for long are hunted down, by the guardian or,
// without it, by the wrapper. One look at /proc can miss some.
func TestFleeing(t *testing.T) {
	t.Parallel()
	for how, flee := range map[string]string{
		"one group":   `flee() { read -t 0.02 <>fifo; flee & }`,
		"many groups": `flee() { read -t 0.02 <>fifo; set -m; flee & }`,
	} {
		for by, end := range map[string]string{"guardian": "exit", "wrapper": "exec sleep 1000"} {
			t.Run(how+", by the "+by, func(t *testing.T) {
				t.Parallel()
				script := `mkfifo fifo; trap "" TERM; ` + flee + `; for i in 1 2 3 4; do flee & done; echo up >up; ` + end
				r := start(t, wrapperConfig{KillAfter: 50 * time.Millisecond, Command: []string{"bash", "-c", script}}).started()
				t.Cleanup(func() {
					for t.Failed() && len(byEnv(r.id)) > 0 {
						unix.Kill(-r.pid.pid, unix.SIGKILL)
						for _, pid := range byEnv(r.id) {
							unix.Kill(pid, unix.SIGKILL)
						}
					}
				})
				r.waitFor("up")
				if by == "guardian" {
					r.expect("exited 0")
				} else {
					r.signal(r.guardian, unix.SIGKILL)
					r.expect("exited 137")
				}
				r.expect("gone")
				r.dead()
			})
		}
	}
}

// A stop is TERM to the whole group, and KILL to the whole tree.
func TestB35_Stop(t *testing.T) {
	t.Parallel()
	t.Run("TERM is enough", func(t *testing.T) {
		t.Parallel()
		// The shell alone must not be all that gets the signal.
		r := start(t, wrapperConfig{KillAfter: time.Hour, Term: true, Command: []string{
			"sh", "-c", `"$0" __job journal worker & "$0" __job journal worker2 & wait`, "/proc/self/exe",
		}}, func(c *exec.Cmd) { linkSelf(t, c) }).started()
		r.waitFor("worker")
		r.waitFor("worker2")
		r.cmd.Process.Signal(unix.SIGTERM)
		r.expect("exited 143")
		r.expect("gone")
		if code := r.exitCode(); code != 143 {
			t.Errorf("exit code %d, want 143", code)
		}
	})
	t.Run("TERM is ignored", func(t *testing.T) {
		t.Parallel()
		r := startFour(t, wrapperConfig{KillAfter: 300 * time.Millisecond, Term: true})
		r.cmd.Process.Signal(unix.SIGTERM)
		r.expect("exited 137")
		r.expect("gone")
		r.dead()
	})
	t.Run("the job is suspended", func(t *testing.T) {
		t.Parallel()
		r := start(t, wrapperConfig{KillAfter: time.Hour, Term: true, Command: job("journal", "main")}).started()
		r.waitFor("main")
		r.signal(r.pid, unix.SIGSTOP)
		r.cmd.Process.Signal(unix.SIGTERM)
		r.expect("exited 143")
		r.expect("gone")
	})
}

// linkSelf lets a shell of the job start the test binary: /proc/self/exe would
// be the shell there.
func linkSelf(t *testing.T, c *exec.Cmd) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.Index(c.Args, "__wrapper")
	c.Args[i+1] = strings.Replace(c.Args[i+1], "/proc/self/exe", exe, 1)
}

func TestB35_Forwarding(t *testing.T) {
	t.Parallel()
	out, outWrite := pipe(t)
	r := start(t, wrapperConfig{Command: job("signals")}, func(c *exec.Cmd) { c.Stdout = outWrite }).started()
	outWrite.Close()
	buf := make([]byte, 100)
	read := func(want string) {
		t.Helper()
		out.SetReadDeadline(time.Now().Add(patience))
		n, err := out.Read(buf)
		if got := string(buf[:n]); err != nil || got != want+"\n" {
			t.Fatalf("the job got %q (%v), want %s", got, err, want)
		}
	}
	read("ready")
	for _, sig := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT,
	} {
		r.cmd.Process.Signal(sig)
		read(unix.SignalName(sig))
	}
	r.signal(r.pid, unix.SIGKILL)
	r.expect("exited 137")
}

// A signal is for every process of the group.
func TestB35_ForwardingToTheGroup(t *testing.T) {
	t.Parallel()
	out, outWrite := pipe(t)
	r := start(t, wrapperConfig{Command: job("with", "signals", "signals")}, func(c *exec.Cmd) { c.Stdout = outWrite }).started()
	outWrite.Close()
	lines := bufio.NewScanner(out)
	out.SetReadDeadline(time.Now().Add(patience))
	twice := func(want string) {
		t.Helper()
		for range 2 {
			if !lines.Scan() || lines.Text() != want {
				t.Fatalf("the job said %q (%v), want %s twice", lines.Text(), lines.Err(), want)
			}
		}
	}
	twice("ready")
	for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGHUP, unix.SIGTERM} {
		r.cmd.Process.Signal(sig)
		twice(unix.SignalName(sig))
	}
	r.signal(r.pid, unix.SIGKILL)
	r.expect("exited 137")
	// The one that catches TERM is left to the cleaning up, at once.
	r.expect("gone")
}

// The guardian itself cannot be talked into leaving, and TSTP or STOP of the
// job is no end.
func TestGuardianIsDeaf(t *testing.T) {
	t.Parallel()
	r := start(t, wrapperConfig{Command: job("until", "go", "exit", "5")}).started()
	for n := syscall.Signal(1); n < 32; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS:
		default:
			r.signal(r.guardian, n)
		}
	}
	r.signal(r.pid, unix.SIGSTOP)
	r.signal(r.pid, unix.SIGCONT)
	os.WriteFile(r.path("go"), nil, 0o600)
	r.expect("exited 5")
	r.expect("gone")
}

// A signal ignored at the start (nohup) stays ignored in the command.
func TestIgnoredSignalsAreInherited(t *testing.T) {
	t.Parallel()
	r := start(t, wrapperConfig{KillAfter: time.Hour, Command: []string{"sh", "-c", "kill -HUP $$; exit 6"}}, func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}, exeArgs(t, c.Args)...)
		c.Path = "/bin/sh"
	}).started()
	r.expect("exited 6")
	r = start(t, wrapperConfig{Command: []string{"sh", "-c", "kill -HUP $$; exit 6"}}).started()
	r.expect("exited 129")
}

func exeArgs(t *testing.T, args []string) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{exe}, args[1:]...)
}

func TestStreams(t *testing.T) {
	t.Parallel()
	in := make([]byte, 64<<20)
	rand.NewChaCha8([32]byte{}).Read(in)
	var out bytes.Buffer
	r := start(t, wrapperConfig{Command: job("copy", "exit", "0")}, func(c *exec.Cmd) {
		c.Stdin, c.Stdout = bytes.NewReader(in), &out
	}).started()
	r.expect("exited 0")
	r.expect("gone")
	if code := r.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if !bytes.Equal(out.Bytes(), in) {
		t.Errorf("%d bytes came out of %d, or other ones", out.Len(), len(in))
	}
}

// The command has the files the wrapper was started with, at their numbers, and
// no other.
func TestFiles(t *testing.T) {
	t.Parallel()
	extra, err := os.Create(filepath.Join(t.TempDir(), "extra"))
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	out, outWrite := pipe(t)
	r := start(t, wrapperConfig{Command: job("files")}, func(c *exec.Cmd) {
		c.ExtraFiles = append(c.ExtraFiles, extra)
		c.Stdin, c.Stdout = extra, outWrite
	}).started()
	outWrite.Close()
	data, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	var fds []string
	for line := range strings.Lines(string(data)) {
		fd, target, _ := strings.Cut(strings.TrimSpace(line), " ")
		fds = append(fds, fd)
		if (fd == "0" || fd == "5") && target != extra.Name() {
			t.Errorf("file %s is %s, want %s", fd, target, extra.Name())
		}
	}
	// 3 are the wrapper's events, which it keeps to itself. The test may have been
	// started with files of its own.
	want := []string{"0", "1", "2", "4", "5"}
	for _, line := range openFiles() {
		if fd, _, _ := strings.Cut(line, " "); !slices.Contains(want, fd) && fd != "3" {
			want = append(want, fd)
		}
	}
	slices.Sort(fds)
	slices.Sort(want)
	if !slices.Equal(fds, want) {
		t.Errorf("the command has the files %v, want %v", fds, want)
	}
	r.expect("exited 0")
}

// Nothing is left of a run: no zombie of the wrapper, and its files are closed.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	c := exec.Command("/proc/self/exe", "__leaks")
	if out, err := c.CombinedOutput(); err != nil || string(out) != "nothing left\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// leaksMain is a wrapper that runs ten commands and looks at itself.
func leaksMain() {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			fmt.Printf(format+"\n", args...)
			os.Exit(1)
		}
	}
	reaper, err := NewReaper()
	check(err == nil, "NewReaper: %v", err)
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		check(err == nil, "files: %v", err)
		return len(entries)
	}
	runOnce := func() {
		p, err := Start(reaper, Config{
			Command: job("exit", "4"), Env: os.Environ(), KillAfter: time.Second,
			StepDown: Now().Add(time.Hour), Kill: Now().Add(time.Hour), Log: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		})
		check(err == nil, "Start: %v", err)
		<-p.Gone()
		check(p.ExitCode() == 4 && !p.GuardianKilled(), "exit code %d, guardian killed %v; want 4, false", p.ExitCode(), p.GuardianKilled())
	}
	runOnce()
	before := files()
	for range 10 {
		runOnce()
	}
	for end := time.Now().Add(patience); files() > before && time.Now().Before(end); time.Sleep(time.Millisecond) {
		// watchGuardian closes its timers a moment after the end.
	}
	check(files() <= before, "%d open files, want the %d of after the first run", files(), before)
	tree, err := descendants(os.Getpid(), nil)
	check(err == nil && len(tree) == 0, "processes left: %v, %v", tree, err)
	reaper.Close()
	fmt.Println("nothing left")
	os.Exit(0)
}

// A term that is over before the command could be started starts none.
func TestTooLate(t *testing.T) {
	t.Parallel()
	r := start(t, wrapperConfig{First: -time.Second, Command: job("touch", "ran")})
	r.expect(fmt.Sprintf("failed %d", CodeTooLate))
	r.dead()
	if _, err := os.Stat(r.path("ran")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the command ran: %v", err)
	}
}

func TestB35_PID1(t *testing.T) {
	t.Parallel()
	namespace := func(c *exec.Cmd) {
		c.Args = append([]string{"unshare", "-pf", "--mount-proc", "--kill-child"}, exeArgs(t, c.Args)...)
		path, err := exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		c.Path = path
	}
	t.Run("orphans are reaped", func(t *testing.T) {
		t.Parallel()
		// The daemon's first parent is long gone; its own end must leave no zombie,
		// neither at the guardian nor at PID 1.
		r := start(t, wrapperConfig{KillAfter: time.Hour, Command: []string{
			"sh", "-c", `
			(setsid sh -c 'exit 0' &) ; (sh -c 'sleep 0.01' &)
			n=0; while grep -l '^State:.Z' /proc/[0-9]*/status >/dev/null 2>&1; do n=$((n+1)); test $n -lt 3000 || exit 1; sleep 0.01; done
			test "$(cat /proc/1/comm)" != sh || exit 2
			exit 8`,
		}}, namespace).started()
		r.expect("exited 8")
		r.expect("gone")
		r.dead()
	})
	t.Run("TERM", func(t *testing.T) {
		t.Parallel()
		r := start(t, wrapperConfig{KillAfter: 300 * time.Millisecond, Term: true, Command: fourJobs}, namespace).started()
		for _, j := range fourJournals {
			r.waitFor(j)
		}
		// unshare ignores TERM and its child is PID 1.
		tree, err := descendants(r.cmd.Process.Pid, nil)
		if err != nil || len(tree) == 0 {
			t.Fatalf("descendants of unshare: %v, %v", tree, err)
		}
		r.signal(tree[0], unix.SIGTERM)
		r.expect("exited 137")
		r.expect("gone")
		if code := r.exitCode(); code != 137 {
			t.Errorf("exit code %d, want 137", code)
		}
	})
}
