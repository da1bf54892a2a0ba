package guard

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestInstant(t *testing.T) {
	t.Parallel()
	now := Instant{Mono: 100, Boot: 200, Real: 300}
	at := now.Add(10)
	if at.Passed(now) {
		t.Error("an instant in the future has passed")
	}
	// Any one clock is enough.
	for _, later := range []Instant{{110, 200, 300}, {100, 210, 300}, {100, 200, 310}} {
		if !at.Passed(later) {
			t.Errorf("%v has not passed at %v", at, later)
		}
		if got := at.Until(later); got != 0 {
			t.Errorf("Until(%v) = %v, want 0", later, got)
		}
	}
	if got, want := (Instant{1, 20, 3}).Earlier(Instant{10, 2, 30}), (Instant{1, 2, 3}); got != want {
		t.Errorf("Earlier = %v, want %v", got, want)
	}
}

func TestLimitsOnTheWire(t *testing.T) {
	t.Parallel()
	want := limits{Instant{1, 2, 3}, Instant{4, 5, -6}}
	got, err := parseLimits(want.order()[len(orderLimits)+1:])
	if err != nil || got != want {
		t.Errorf("parseLimits = %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "1 2 3 4 5", "1 2 3 4 5 6 7", "1 2 3 4 5 x"} {
		if _, err := parseLimits(bad); err == nil {
			t.Errorf("parseLimits(%q) succeeded", bad)
		}
	}
}

// Limits move in both directions until a step-down has passed, and never again.
func TestGuardianLimits(t *testing.T) {
	t.Parallel()
	g := &guardian{}
	order := func(stepDown, kill time.Duration) {
		t.Helper()
		l := limits{Now().Add(stepDown), Now().Add(kill)}
		if done, err := g.obey(l.order()[:len(l.order())-1]); done || err != nil {
			t.Fatalf("obey = %v, %v", done, err)
		}
		if moved := g.limits == l; moved == g.over {
			t.Errorf("the limits moved: %v, the step-down has passed: %v", moved, g.over)
		}
	}
	order(time.Hour, 2*time.Hour)
	order(time.Minute, 2*time.Minute)
	order(time.Hour, 2*time.Hour)
	g.over = true
	order(3*time.Hour, 4*time.Hour)
}

// What ends a suspension of this process is not passed on, when it is heard of:
// the command follows when it has the terminal again.
func TestContinuedFromSuspension(t *testing.T) {
	t.Parallel()
	r, w := pipe(t)
	p := &Proc{orders: int(w.Fd())}
	p.swallow.Store(true)
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGCONT, unix.SIGCONT} {
		p.Signal(sig)
	}
	w.Close()
	got, err := io.ReadAll(r)
	if want := signalOrder(unix.SIGHUP) + signalOrder(unix.SIGCONT); err != nil || string(got) != want {
		t.Errorf("orders %q, %v; want %q", got, err, want)
	}
}

// A process that was killed and does not end makes the pauses longer, a new one
// makes them short again.
func TestHuntPauses(t *testing.T) {
	t.Parallel()
	h := hunt{}
	one, again, two := process{pid: 1 << 30, start: 1}, process{pid: 1 << 30, start: 2}, process{pid: 1<<30 + 1, start: 1} // no such processes
	for i, step := range []struct {
		tree []process
		want time.Duration
	}{
		{[]process{one}, huntPauseMin},
		{[]process{one}, 2 * huntPauseMin},
		{[]process{one}, 4 * huntPauseMin},
		{[]process{one, two}, huntPauseMin},
		{[]process{two}, 2 * huntPauseMin},
		{[]process{again}, huntPauseMin},
		{[]process{{pid: 7, zombie: true}}, 2 * huntPauseMin},
		{nil, 4 * huntPauseMin},
	} {
		if err := h.kill(step.tree); err != nil || h.pause != step.want {
			t.Errorf("step %d: pause %v, %v; want %v", i, h.pause, err, step.want)
		}
	}
	for range 20 {
		h.kill(nil)
	}
	if h.pause != huntPauseMax {
		t.Errorf("pause %v in the end, want %v", h.pause, huntPauseMax)
	}
}

// A group that the job has made is killed as a whole, also the processes that a
// look at /proc has missed. One that it may only have joined is not.
func TestKillGroups(t *testing.T) {
	t.Parallel()
	start := func(attr *syscall.SysProcAttr) (process, chan error) {
		c := exec.Command("sleep", "1000")
		c.SysProcAttr = attr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		p, err := readProcess(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return p, ended
	}
	for _, tt := range []struct {
		name     string
		leader   bool // is in the tree
		command  bool // leads the command's group
		together bool // both are killed
	}{
		{"led by one of the job", true, false, true},
		{"the command's", false, true, true},
		{"joined", false, false, false},
	} {
		leader, leaderEnded := start(&syscall.SysProcAttr{Setpgid: true})
		member, memberEnded := start(&syscall.SysProcAttr{Setpgid: true, Pgid: leader.pid})
		h, tree := hunt{}, []process{member}
		if tt.leader {
			tree = []process{leader}
		}
		if tt.command {
			h.command = leader.pid
		}
		if err := h.kill(tree); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.leader || tt.together {
			<-leaderEnded
		}
		if !tt.leader || tt.together {
			<-memberEnded
		}
		if !tt.together {
			leader.send(unix.SIGTERM)
			if err := <-leaderEnded; err == nil || err.Error() != "signal: terminated" {
				t.Errorf("%s: its leader ended with %v, want TERM, not KILL", tt.name, err)
			}
		}
	}
	// Nor is the group of this very process, or another's session.
	self, err := readProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	beside, besideEnded := start(nil)
	if err := (&hunt{command: self.group}).kill([]process{beside}); err != nil {
		t.Error(err)
	}
	<-besideEnded
	// A session that the job has begun is the job's with all its groups.
	r, w := pipe(t)
	c := exec.Command("setsid", "-w", "sh", "-c", "sleep 1000 & echo $!; exec sleep 1000")
	c.Stdout = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var pid int
	if _, err := fmt.Fscan(r, &pid); err != nil {
		t.Fatal(err)
	}
	below, err := readProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := new(hunt).kill([]process{below}); err != nil {
		t.Error(err)
	}
	c.Wait()
	io.Copy(io.Discard, r) // until the last of them is gone
}

// Past the limit each look kills what there is, not only the first.
func TestSweeps(t *testing.T) {
	t.Parallel()
	c := exec.Command("/proc/self/exe", "__sweeps")
	if out, err := c.CombinedOutput(); err != nil || string(out) != "killed killed " {
		t.Errorf("%v: %s", err, out)
	}
}

// sweepsMain is a guardian that gets a new child after it began to kill. It is a
// process of its own, because it kills whatever it has started.
func sweepsMain() {
	g := &guardian{over: true, stopping: true} // and so, the limits long past
	for range 2 {
		c := exec.Command("sleep", "60")
		if err := c.Start(); err != nil {
			panic(err)
		}
		g.pid = c.Process.Pid
		g.keepLimits()
		fmt.Printf("%s ", strings.TrimPrefix(c.Wait().Error(), "signal: "))
	}
	os.Exit(0)
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	p, err := parseStat(7, []byte("7 (a) b (c\n) Z 3 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n"))
	if want := (process{pid: 7, ppid: 3, group: 8, session: 9, start: 12345, zombie: true}); err != nil || p != want {
		t.Errorf("parseStat = %+v, %v; want %+v", p, err, want)
	}
	for _, bad := range []string{"", "7 (a S 3", "7 (a) S 3 4", "7 (a) S x 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0"} {
		if _, err := parseStat(7, []byte(bad)); err == nil {
			t.Errorf("parseStat(%q) succeeded", bad)
		}
	}
}

func TestAlarm(t *testing.T) {
	t.Parallel()
	for i, which := range []string{"monotonic", "boot time", "wall"} {
		a, err := newAlarm()
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		at := Now().Add(time.Hour)
		soon := Now().Add(20 * time.Millisecond)
		switch i {
		case 0:
			at.Mono = soon.Mono
		case 1:
			at.Boot = soon.Boot
		case 2:
			at.Real = soon.Real
		}
		if err := a.set(at); err != nil {
			t.Fatal(err)
		}
		<-a.c
		if !at.Passed(Now()) {
			t.Errorf("the %s clock's alarm rang early", which)
		}
		// A moment long past rings at once.
		if err := a.set(Instant{}); err != nil {
			t.Fatal(err)
		}
		<-a.c
	}
}
