package core

import (
	"strings"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
)

// TestDefaultsAddUp: whatever the TTL, what is derived from it is valid.
func TestDefaultsAddUp(t *testing.T) {
	for ttl := time.Second; ttl <= 24*time.Hour; ttl += ttl/97 + time.Nanosecond {
		for _, watched := range []bool{true, false} {
			c := Config{TTL: ttl}.WithDefaults(watched)
			if err := c.Validate(); err != nil {
				t.Fatalf("TTL %v, watched %v: %v", ttl, watched, err)
			}
			if got := c.StepDown + c.KillAfter + c.Margin; got != c.TTL {
				t.Fatalf("TTL %v: step-down, kill-after and margin come to %v", ttl, got)
			}
		}
	}
}

// TestDefaultsOfAQuarterMinute: the example that the documentation works out.
func TestDefaultsOfAQuarterMinute(t *testing.T) {
	got := Config{TTL: 15 * time.Second}.WithDefaults(true)
	want := Config{
		TTL: 15 * time.Second, Renew: 5 * time.Second, Timeout: 15 * time.Second / 9, StepDown: 10 * time.Second,
		KillAfter: 4920 * time.Millisecond, Margin: 80 * time.Millisecond, Poll: 2 * time.Minute, Rejoin: 5 * time.Second,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := (Config{TTL: 15 * time.Second}).WithDefaults(false).Poll; got != 5*time.Second {
		t.Errorf("without hints a waiter polls every %v, want every renewal time", got)
	}
	if got := got.Deadline(); got != 14920*time.Millisecond {
		t.Errorf("the deadline is %v", got)
	}
}

// TestDefaultsKeepWhatIsSet: a field that is set is taken as it is, and the ones
// that depend on it follow.
func TestDefaultsKeepWhatIsSet(t *testing.T) {
	set := Config{
		TTL: 15 * time.Second, Renew: 2 * time.Second, Timeout: time.Second, StepDown: 8 * time.Second, KillAfter: 3 * time.Second,
		Margin: time.Second, Poll: time.Minute, MinHold: time.Hour, Rejoin: time.Millisecond,
	}
	if got := set.WithDefaults(true); got != set {
		t.Errorf("got  %+v\nwant %+v", got, set)
	}
	if got := (Config{TTL: 15 * time.Second, Renew: 2 * time.Second}).WithDefaults(false); got.Rejoin != 2*time.Second || got.Poll != 2*time.Second {
		t.Errorf("rejoin %v and poll %v do not follow the renewal time", got.Rejoin, got.Poll)
	}
	if got := (Config{TTL: 15 * time.Second, Margin: 3 * time.Second}).WithDefaults(true).KillAfter; got != 2*time.Second {
		t.Errorf("kill-after is %v, want what TTL leaves", got)
	}
}

// TestValidate refuses every relation that does not hold, and says which one and
// what is allowed (field case S18).
func TestValidate(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		change func(*Config)
		wants  []string
	}{
		{"no TTL", func(c *Config) { *c = Config{}.WithDefaults(true) }, []string{"TTL is 0s", "more than 0"}},
		{"negative TTL", func(c *Config) { *c = Config{TTL: -s}.WithDefaults(true) }, []string{"TTL is -1s", "more than 0"}},
		{"TTL too short for a margin", func(c *Config) { *c = Config{TTL: 100 * time.Millisecond}.WithDefaults(true) }, []string{"StepDown is 66.666666ms", "less than TTL - Margin, 49.8ms"}},
		{"overflowing TTL", func(c *Config) { *c = Config{TTL: 1<<63 - 1}.WithDefaults(true) }, []string{"TTL is", "at most"}},
		{"R = T", func(c *Config) { c.Renew = c.TTL }, []string{"RenewEvery + 3 RequestTimeout is 19.999999998s", "at most StepDown, 10s", "three tries"}},
		{"R = 0.9 T", func(c *Config) { c.Renew = c.TTL * 9 / 10 }, []string{"RenewEvery + 3 RequestTimeout is 18.499999998s", "at most StepDown, 10s"}},
		{"R just too long", func(c *Config) { c.Renew += 3 }, []string{"RenewEvery + 3 RequestTimeout"}},
		{"D > T", func(c *Config) { c.StepDown = c.TTL + s }, []string{"StepDown is 16s", "less than TTL - Margin, 14.92s"}},
		{"D = T", func(c *Config) { c.StepDown = c.TTL }, []string{"StepDown is 15s", "less than TTL - Margin"}},
		{"D + kill > T", func(c *Config) { c.KillAfter = 5 * s }, []string{"StepDown + KillAfter is 15s", "at most TTL - Margin, 14.92s", "gone before the lease can expire"}},
		{"negative kill-after", func(c *Config) { c.KillAfter = -s }, []string{"KillAfter is -1s", "more than 0"}},
		{"negative margin", func(c *Config) { c.Margin = -s }, []string{"Margin is -1s", "more than 0"}},
		{"margin too small", func(c *Config) { c.Margin = 79 * time.Millisecond }, []string{"Margin is 79ms", "at least TTL/500 + 50ms, 80ms"}},
		{"time-out too long", func(c *Config) { c.Timeout = 1667 * time.Millisecond }, []string{"RequestTimeout is 1.667s", "at most a ninth of TTL, 1.666666666s"}},
		{"negative time-out", func(c *Config) { c.Timeout = -s }, []string{"RequestTimeout is -1s"}},
		{"negative renewal time", func(c *Config) { c.Renew = -s }, []string{"RenewEvery is -1s"}},
		{"negative step-down", func(c *Config) { c.StepDown = -s }, []string{"StepDown is -1s"}},
		{"negative poll", func(c *Config) { c.Poll = -s }, []string{"Poll is -1s"}},
		{"negative rejoin", func(c *Config) { c.Rejoin = -s }, []string{"Rejoin is -1s"}},
		{"negative minimum hold", func(c *Config) { c.MinHold = -s }, []string{"MinHold is -1s", "allowed is 0"}},
		{"overflowing poll", func(c *Config) { c.Poll = 1<<63 - 1 }, []string{"Poll is", "at most"}},
		{"overflowing minimum hold", func(c *Config) { c.MinHold = 1<<63 - 1 }, []string{"MinHold is"}},
		{"overflowing kill-after", func(c *Config) { c.KillAfter = 1<<63 - 1 }, []string{"KillAfter is"}},
		{"several at once", func(c *Config) { c.Renew, c.Margin, c.Timeout = 9*s, 1, 2*s }, []string{"RequestTimeout is 2s", "Margin is 1ns", "RenewEvery + 3 RequestTimeout is 15s"}},
		{"several of the wrong sign", func(c *Config) { c.Renew, c.Margin = -1, -1 }, []string{"RenewEvery is -1ns", "Margin is -1ns"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{TTL: 15 * s}.WithDefaults(true)
			c.change(&cfg)
			err := cfg.Validate()
			if err == nil {
				t.Fatalf("%+v is valid", cfg)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q:\n%v", want, err)
				}
			}
		})
	}
}

// TestValidateAtTheEdge takes what is just allowed.
func TestValidateAtTheEdge(t *testing.T) {
	cfg := Config{TTL: 15 * time.Second}.WithDefaults(true)
	cfg.StepDown = cfg.Renew + 3*cfg.Timeout
	cfg.KillAfter = cfg.TTL - cfg.Margin - cfg.StepDown
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

// TestSince counts the clock that went furthest, whatever the others do.
func TestSince(t *testing.T) {
	const s = time.Second
	from := Reading{Wall: 100 * s, Mono: 10 * s, Boot: 20 * s}
	for _, c := range []struct {
		name string
		now  Reading
		want time.Duration
	}{
		{"all alike", Reading{Wall: 105 * s, Mono: 15 * s, Boot: 25 * s}, 5 * s},
		{"the wall stepped forward", Reading{Wall: 200 * s, Mono: 15 * s, Boot: 25 * s}, 100 * s},
		{"the wall stepped back", Reading{Wall: 50 * s, Mono: 15 * s, Boot: 25 * s}, 5 * s},
		{"suspended", Reading{Wall: 109 * s, Mono: 11 * s, Boot: 29 * s}, 9 * s},
		{"suspended, and the wall stepped back", Reading{Wall: 50 * s, Mono: 11 * s, Boot: 29 * s}, 9 * s},
		{"boot time is not sampled now", Reading{Wall: 101 * s, Mono: 12 * s}, 2 * s},
		{"all stood still", from, 0},
	} {
		if got := c.now.Since(from); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := (Reading{Wall: 101 * s, Mono: 12 * s, Boot: 1000 * s}).Since(Reading{Wall: 100 * s, Mono: 10 * s}); got != 2*s {
		t.Errorf("boot time was not sampled then: %v, want 2s", got)
	}
}

// TestValidIsComputed: whoever asks after the step-down time hears no, although
// nothing has happened since and nobody has noticed.
func TestValidIsComputed(t *testing.T) {
	s, now := New(Config{TTL: 15 * time.Second}.WithDefaults(true), 1), Reading{Wall: time.Hour, Mono: time.Hour}
	for _, ev := range []Event{
		Contend{},
		Drawn{Attempt: "a1"},
		Reply{Op: OpAcquire, Attempt: "a1", Lease: store.Lease{TermID: "a1", Attempt: "a1", Token: 1, TTL: 15 * time.Second}},
	} {
		s, _ = s.Step(now, ev)
	}
	last := now
	last.Mono += 10*time.Second - 1
	if !s.Valid(last) {
		t.Error("not valid up to the step-down time")
	}
	last.Mono++
	if s.Valid(last) {
		t.Error("valid at the step-down time")
	}
}
