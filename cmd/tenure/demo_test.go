package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// nothingLeft waits until no process of the place is left, and checks that the
// demo has cleared its directory away.
func (p *place) nothingLeft() {
	p.t.Helper()
	p.nothingRuns()
	if left, _ := filepath.Glob(p.path("tenure-*")); len(left) > 0 {
		p.t.Errorf("the demo left %q behind", left)
	}
}

// demoLines are what a `tenure demo --json` has said.
func (c *candidate) demoLines() (lines []demoLine) {
	for text := range strings.Lines(c.log.String()) {
		var line demoLine
		if err := json.Unmarshal([]byte(text), &line); err == nil && strings.HasSuffix(text, "\n") {
			lines = append(lines, line)
		}
	}
	return lines
}

// startDemo starts a `tenure demo --json`, of which a failing test shows all.
func (p *place) startDemo() *candidate {
	p.t.Helper()
	c := p.start("demo", "--json")
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("the demo said:\n%s", c.log)
		}
	})
	return c
}

// showsLine waits until the demo has said such a line.
func (c *candidate) showsLine(act, what string) {
	c.p.t.Helper()
	c.p.until(act+" "+what, func() bool {
		return slices.ContainsFunc(c.demoLines(), func(l demoLine) bool { return l.Act == act && l.What == what })
	})
}

// What the demo shows, act by act.
func TestDemo(t *testing.T) {
	p := newPlace(t)
	c := p.startDemo()
	c.ends(0)
	p.nothingLeft()

	var got []string
	first := ""
	for _, l := range c.demoLines() {
		switch {
		case l.What == "again": // this machine was too busy: only the last telling counts
			for len(got) > 0 && strings.HasPrefix(got[len(got)-1], l.Act) {
				got = got[:len(got)-1]
			}
			continue
		case l.Act != "killed":
			got = append(got, strings.Join([]string{l.Act, l.Who, l.What, l.Token, strings.Join(l.Running, "+"), l.Account}, " "))
			continue
		case l.What == "leads" && l.Token == "1":
			first = l.Who
		case l.Who == first && l.What == "killed": // its program may still be ending
			l.Running = nil
		case l.Who == first && l.What != "gone", l.What == "leads" && l.Token != "2":
			t.Errorf("%s, the first leader: %+v", first, l)
		}
		who := "another"
		if l.Who == first {
			who = "first"
		}
		for i, name := range l.Running {
			if name == first {
				l.Running[i] = "first"
			}
		}
		if l.What == "leads" && who == "another" && !slices.Equal(l.Running, []string{l.Who}) {
			t.Errorf("%s leads and %q run", l.Who, l.Running)
		}
		got = append(got, strings.Join([]string{l.Act, who, l.What, l.Account, decimal(int64(len(l.Running)))}, " "))
	}
	want := []string{
		"killed first leads 100 1",
		"killed another waits 100 1",
		"killed another waits 100 1",
		"killed first killed 100 0",
		"killed first gone 100 0",
		"killed another leads 100 1",
		"killed another outcome 100 1",

		"frozen A leads 1 A 100",
		"frozen A frozen 1  100",
		"frozen B leads 2 B 100",
		"frozen B pays 2 B 0",
		"frozen A pays 1 A -100",
		"frozen A lost 1  -100",
		"frozen  outcome   -100",

		"fenced A leads 1 A 100",
		"fenced A frozen 1  100",
		"fenced B leads 2 B 100",
		"fenced B pays 2 B 0",
		"fenced A refused 1 A 0",
		"fenced A lost 1  0",
		"fenced  outcome   0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the demo shows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// It fits on a screen.
func TestDemoFits(t *testing.T) {
	p := newPlace(t)
	c := p.start("demo")
	c.ends(0)
	p.nothingLeft()
	lines := strings.Split(strings.TrimSpace(c.log.String()), "\n")
	if len(lines) > 40 && !strings.Contains(c.log.String(), "This machine is busy") {
		t.Errorf("%d lines, want 40 or fewer", len(lines))
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 && !strings.Contains(line, "This machine is busy") {
			t.Errorf("more than 80 columns: %s", line)
		}
	}
	for _, want := range []string{"One at a time", "Paid twice", "Paid once"} {
		if strings.Count(c.log.String(), want) != 1 {
			t.Errorf("the demo does not say %q once:\n%s", want, c.log)
		}
	}
}

// Whenever it is interrupted, it ends everything it started.
func TestDemoInterrupted(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct {
		act, what string
		sig       syscall.Signal
	}{
		{"killed", "leads", unix.SIGTERM},
		{"killed", "gone", unix.SIGQUIT},
		{"frozen", "frozen", unix.SIGINT},
		{"frozen", "pays", unix.SIGHUP},
	} {
		c := p.startDemo()
		c.showsLine(tt.act, tt.what)
		c.signal(tt.sig)
		c.ends(128 + int(tt.sig))
		p.nothingLeft()
	}
}

// Also when nobody reads on.
func TestDemoReaderGone(t *testing.T) {
	p := newPlace(t)
	c := p.startUnder([]string{"bash", "-c", `"$@" | head -n 8; exit ${PIPESTATUS[0]}`, "bash"}, "demo")
	c.ends(128 + int(unix.SIGPIPE))
	p.nothingLeft()
}

// A demo that is killed cannot end anything, but what it started ends by itself.
func TestDemoKilled(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct{ act, what string }{{"killed", "waits"}, {"frozen", "frozen"}} {
		c := p.startDemo()
		c.showsLine(tt.act, tt.what)
		c.signal(unix.SIGKILL)
		c.ends(137)
		p.nothingRuns()
	}
}

// What does not go as it is told is told again.
func TestDemoAgain(t *testing.T) {
	p := newPlace(t)
	c := p.startDemo()
	c.showsLine("frozen", "frozen")
	p.until("contender B", func() bool {
		for _, pid := range p.processes() {
			if args := arguments(pid); len(args) > 1 && args[1] == "run" && strings.Contains(strings.Join(args, " "), "--holder B") {
				unix.Kill(pid, unix.SIGKILL)
				return true
			}
		}
		return false
	})
	c.ends(0)
	p.nothingLeft()
	again := 0
	for _, l := range c.demoLines() {
		if l.Act == "frozen" && l.What == "again" && strings.Contains(l.Text, "B ended with 137") {
			again++
		}
	}
	if again != 1 || !strings.Contains(c.log.String(), "Paid twice") || !strings.Contains(c.log.String(), "Paid once") {
		t.Errorf("told again %d times, want once, and then to the end:\n%s", again, c.log)
	}
}

func TestPatiently(t *testing.T) {
	t.Parallel()
	slow := otherwise{"slow"}
	broken := errors.New("broken")
	for _, tt := range []struct {
		results []error
		want    error
	}{
		{[]error{nil}, nil},
		{[]error{slow, nil}, nil},
		{[]error{slow, slow, slow}, slow},
		{[]error{broken}, broken},
		{[]error{slow, broken}, broken},
	} {
		var last error
		var ttls []time.Duration
		got := patiently(func(ttl time.Duration, again error) error {
			if again != last {
				t.Errorf("told again because of %v, want %v", again, last)
			}
			ttls = append(ttls, ttl)
			last = tt.results[len(ttls)-1]
			return last
		})
		if want := []time.Duration{2 * time.Second, 6 * time.Second, 18 * time.Second}[:len(tt.results)]; got != tt.want || !slices.Equal(ttls, want) {
			t.Errorf("%v: %v with leases of %v, want %v with %v", tt.results, got, ttls, tt.want, want)
		}
	}
}

// Two programs at once are a failure of the demo, not of the machine.
func TestDemoTwoAtOnce(t *testing.T) {
	t.Parallel()
	a, b := &player{name: "A"}, &player{name: "B"}
	s := &scene{act: demoActs[0], players: []*player{a, b}, events: make(chan event, 1)}
	s.events <- event{b, []string{"decided", "2", "100", "A+B"}}
	if err := s.ends(context.Background(), a, 137); exitCode(err) != exitNo || !strings.Contains(err.Error(), "A+B") {
		t.Errorf("two at once: %v, want exit code %d", err, exitNo)
	}
	// Whoever leads out of turn, alone, took a lease that ran out too early.
	s.events <- event{b, []string{"decided", "2", "100", "B"}}
	var o otherwise
	if err := s.ends(context.Background(), a, 137); !errors.As(err, &o) {
		t.Errorf("out of turn: %v, want it told again", err)
	}
}
