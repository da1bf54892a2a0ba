package guard

import (
	"testing"
	"time"
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
