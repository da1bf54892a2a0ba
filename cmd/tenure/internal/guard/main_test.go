package guard

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays every part: the wrapper, the guardian and the job.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Arg:
			Guardian(os.Args[2:])
		case "__wrapper":
			wrapperMain(os.Args[2])
		case "__job":
			jobMain(os.Args[2:])
		case "__leaks":
			leaksMain()
		case "__sweeps":
			sweepsMain()
		}
	}
	os.Exit(m.Run())
}

// wrapperConfig is what a test asks its wrapper to do. The limits are an hour
// away until the file "arm" exists, so that however long it takes for a job to
// be set up, it lives until the test lets its time run.
type wrapperConfig struct {
	Command   []string
	First     time.Duration // the first limits instead of an hour
	StepDown  time.Duration // from the arming
	Kill      time.Duration
	KillAfter time.Duration
	Term      bool // stop the job at TERM, as `tenure run` does
}

// wrapperMain is the wrapper's part. It tells what happens as lines to file 3,
// which the job does not get.
func wrapperMain(config string) {
	unix.CloseOnExec(3)
	events := os.NewFile(3, "events")
	fail := func(err error) {
		fmt.Fprintf(events, "error %v\n", err)
		os.Exit(99)
	}
	var c wrapperConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		fail(err)
	}
	first := Now().Add(cmp.Or(c.First, time.Hour))
	signals := CatchSignals()
	reaper, err := NewReaper()
	if err != nil {
		fail(err)
	}
	p, err := Start(reaper, Config{
		Command: c.Command, Env: os.Environ(), KillAfter: c.KillAfter,
		StepDown: first, Kill: first,
		Log: slog.New(slog.NewTextHandler(events, nil)),
	})
	if err != nil {
		fmt.Fprintf(events, "failed %d %v\n", err.(*StartError).Code, err)
		os.Exit(98)
	}
	fmt.Fprintf(events, "started %d %d\n", p.PID(), p.guardian)
	tick := time.Tick(10 * time.Millisecond)
	exited := p.Exited()
	for {
		select {
		case s := <-signals.C:
			if s == unix.SIGTERM && c.Term {
				p.Stop(c.KillAfter)
			} else {
				p.Signal(s.(syscall.Signal))
			}
		case <-tick:
			if _, err := os.Stat("arm"); err == nil {
				tick = nil
				p.SetLimits(Now().Add(c.StepDown), Now().Add(c.Kill))
				fmt.Fprintln(events, "armed")
			}
		case <-exited:
			exited = nil
			fmt.Fprintf(events, "exited %d\n", p.ExitCode())
		case <-p.Gone():
			fmt.Fprintln(events, "gone")
			reaper.Close()
			os.Exit(p.ExitCode())
		}
	}
}

// jobMain is the job's part: words that are done in turn.
func jobMain(words []string) {
	next := func() string {
		if len(words) == 0 {
			return ""
		}
		w := words[0]
		words = words[1:]
		return w
	}
	self := func(attr *syscall.SysProcAttr, args ...string) int {
		pid, err := syscall.ForkExec("/proc/self/exe", append([]string{"job", "__job"}, args...),
			&syscall.ProcAttr{Env: os.Environ(), Files: inheritedFiles(), Sys: attr})
		if err != nil {
			panic(err)
		}
		return pid
	}
	for len(words) > 0 {
		switch w := next(); w {
		case "exit":
			n, _ := strconv.Atoi(next())
			os.Exit(n)
		case "die":
			n, _ := strconv.Atoi(next())
			signal.Reset()
			unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
			// SEGV sent by kill is a crash to the Go runtime: take its handler away.
			dieBy(syscall.Signal(n))
		case "ignore":
			n, _ := strconv.Atoi(next())
			signal.Ignore(syscall.Signal(n))
		case "setsid": // the rest of the words in a new session, as a child that is left alone
			self(&syscall.SysProcAttr{Setsid: true}, words...)
			os.Exit(0)
		case "spawn": // the rest of the words in a child, and end
			self(nil, words...)
			os.Exit(0)
		case "with": // the word that follows names a file of words for a child; go on here
			self(nil, strings.Fields(next())...)
		case "with-daemon": // double fork: a grandchild in a session of its own, whose parent ends; go on here
			pid := self(&syscall.SysProcAttr{Setsid: true}, append([]string{"spawn"}, strings.Fields(next())...)...)
			unix.Wait4(pid, nil, 0, nil)
		case "journal": // the boot-time clock to a file, for ever
			journal(next())
		case "until": // go on when the file exists
			file := next()
			for {
				if _, err := os.Stat(file); err == nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
		case "touch":
			os.WriteFile(next(), nil, 0o600)
		case "signals": // names each signal that arrives
			c := make(chan os.Signal, 64)
			signal.Notify(c, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
			fmt.Println("ready")
			for s := range c {
				fmt.Println(unix.SignalName(s.(syscall.Signal)))
			}
		case "talk": // repeats each line of standard input until "end", and says when it is continued
			c := make(chan os.Signal, 1)
			signal.Notify(c, unix.SIGCONT)
			go func() {
				for range c {
					fmt.Println("continued")
				}
			}()
			fmt.Println("up")
			for s := bufio.NewScanner(os.Stdin); s.Scan() && s.Text() != "end"; {
				fmt.Printf("got <%s>\n", s.Text())
			}
			os.Exit(7)
		case "files": // names the open files
			for _, fd := range openFiles() {
				fmt.Println(fd)
			}
		case "copy": // standard input to standard output
			if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
				panic(err)
			}
		default:
			panic("unknown word " + w)
		}
	}
	os.Exit(0)
}

// dieBy ends this process by a signal, as a shell command would.
func dieBy(sig syscall.Signal) {
	unix.Exec("/bin/sh", []string{"sh", "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$", int(sig))}, os.Environ())
}

func journal(file string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	for {
		fmt.Fprintf(f, "%d\n", Now().Boot)
		time.Sleep(20 * time.Millisecond)
	}
}

func openFiles() []string {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []string
	for _, n := range names {
		fd, _ := strconv.Atoi(n)
		if uintptr(fd) == dir.Fd() {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			target, _ := os.Readlink("/proc/self/fd/" + n)
			out = append(out, n+" "+target)
		}
	}
	return out
}

// job is the command line of a job of the given words.
func job(words ...string) []string { return append([]string{"/proc/self/exe", "__job"}, words...) }

// run is a wrapper under test.
type run struct {
	t      *testing.T
	cmd    *exec.Cmd
	events chan string
	log    []string      // lines of the log that came between the events
	alive  chan struct{} // closed when the wrapper and everything below it is dead
	dir    string
	id     string // a line in the environment of all its processes

	pid, guardian process // the command and the guardian
}

// start starts a wrapper that runs command; setup may change how.
func start(t *testing.T, c wrapperConfig, setup ...func(*exec.Cmd)) *run {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, events: make(chan string, 100), alive: make(chan struct{}), dir: t.TempDir()}
	r.cmd = exec.Command("/proc/self/exe", "__wrapper", string(config))
	r.cmd.Dir = r.dir
	r.id = fmt.Sprintf("GUARD_TEST_ID=%d.%d", os.Getpid(), time.Now().UnixNano())
	r.cmd.Env = append(os.Environ(), r.id)
	events, eventsWrite := pipe(t)
	// Every process below the wrapper inherits the writing end of this one.
	alive, aliveWrite := pipe(t)
	r.cmd.ExtraFiles = []*os.File{eventsWrite, aliveWrite}
	r.cmd.Stderr = os.Stderr
	for _, f := range setup {
		f(r.cmd)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventsWrite.Close()
	aliveWrite.Close()
	go func() {
		defer close(r.events)
		for s := bufio.NewScanner(events); s.Scan(); {
			r.events <- s.Text()
		}
	}()
	go func() {
		defer close(r.alive)
		io.Copy(io.Discard, alive)
	}()
	t.Cleanup(func() {
		for _, pid := range byEnv(r.id) {
			unix.Kill(pid, unix.SIGKILL) // what a failing test left behind
		}
		r.cmd.Wait()
	})
	return r
}

func pipe(t *testing.T) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// byEnv returns the pids of every process whose environment has the line.
func byEnv(line string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && strings.Contains(string(env), line) {
			if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// processes describes the processes of the run, for a failing test.
func (r *run) processes() string {
	var b strings.Builder
	for _, pid := range byEnv(r.id) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		fmt.Fprintf(&b, "%d %s\n", pid, strings.ReplaceAll(string(args), "\x00", " "))
		for line := range strings.Lines(string(status)) {
			for _, want := range []string{"State:", "PPid:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"} {
				if strings.HasPrefix(line, want) {
					fmt.Fprintf(&b, "  %s", line)
				}
			}
		}
	}
	return b.String()
}

// patience is how long a test waits for what another process must do.
const patience = 60 * time.Second

// expect waits for the next event that is no line of the log, which must begin
// with prefix.
func (r *run) expect(prefix string) string {
	r.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case e, ok := <-r.events:
			switch {
			case !ok:
				r.t.Fatalf("the wrapper ended, want event %q; log: %q", prefix, r.log)
			case strings.HasPrefix(e, "time="):
				r.log = append(r.log, e)
				continue
			case !strings.HasPrefix(e, prefix):
				r.t.Fatalf("event %q, want %q; log: %q", e, prefix, r.log)
			}
			return e
		case <-limit:
			r.t.Fatalf("no event, want %q; log: %q", prefix, r.log)
		}
	}
}

func (r *run) started() *run {
	r.t.Helper()
	var pid, guardian int
	if _, err := fmt.Sscanf(r.expect("started "), "started %d %d", &pid, &guardian); err != nil {
		r.t.Fatal(err)
	}
	// The command may have ended already. In a pid namespace of its own it has
	// another number here.
	r.pid, _ = readProcess(pid)
	r.guardian, _ = readProcess(guardian)
	return r
}

// signal signals exactly this process, never another with its pid.
func (r *run) signal(p process, sig syscall.Signal) {
	r.t.Helper()
	if p.pid == 0 {
		r.t.Fatalf("no process to send %v to", sig)
	}
	if err := p.send(sig); err != nil {
		r.t.Fatal(err)
	}
}

func (p process) alive() bool {
	now, err := readProcess(p.pid)
	return err == nil && now.start == p.start && !now.zombie
}

// arm lets the job's time run, and returns a moment before that.
func (r *run) arm() Instant {
	r.t.Helper()
	before := Now()
	if err := os.WriteFile(r.path("arm"), nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.expect("armed")
	return before
}

// dead waits until no process of the run is left.
func (r *run) dead() {
	r.t.Helper()
	select {
	case <-r.alive:
	case <-time.After(patience):
		r.t.Fatalf("still alive:\n%s", r.processes())
	}
}

// exitCode waits for the wrapper.
func (r *run) exitCode() int {
	r.t.Helper()
	r.dead()
	r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

func (r *run) path(name string) string { return filepath.Join(r.dir, name) }

// waitFor waits until the file exists and is not empty.
func (r *run) waitFor(name string) {
	r.t.Helper()
	waitUntil(r.t, "file "+name, func() bool {
		st, err := os.Stat(r.path(name))
		return err == nil && st.Size() > 0
	})
}

func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// journals checks that each named journal was written to, and never at or after
// the limit.
func (r *run) journals(limit Instant, names ...string) {
	r.t.Helper()
	for _, name := range names {
		data, err := os.ReadFile(r.path(name))
		if err != nil {
			r.t.Errorf("journal %s: %v", name, err)
			continue
		}
		lines := strings.Fields(string(data))
		if len(lines) == 0 {
			r.t.Errorf("journal %s is empty", name)
			continue
		}
		last, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
		if err != nil {
			r.t.Errorf("journal %s: %v", name, err)
		}
		if over := last - limit.Boot; over >= 0 {
			r.t.Errorf("journal %s: the job still wrote %v after the limit", name, time.Duration(over))
		}
	}
}
