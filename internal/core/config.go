package core

import (
	"errors"
	"fmt"
	"time"
)

// Config is the timing of an election, all derived from TTL unless set.
type Config struct {
	TTL       time.Duration // how long the lease stands without a renewal
	Renew     time.Duration // from the drawing of an answered attempt to the next one; TTL/3
	Timeout   time.Duration // of one request to the store; TTL/9
	StepDown  time.Duration // from the drawing of the last answered attempt to the end of the term; 2·TTL/3
	KillAfter time.Duration // from step-down to the moment the last of the job is killed; what TTL leaves
	Margin    time.Duration // from there to TTL; TTL/500 + 50 ms
	Poll      time.Duration // the longest a waiter goes without asking
	MinHold   time.Duration // a term is not released before it has lasted this long; 0: no minimum
	Rejoin    time.Duration // pause before contending anew after a term that was given up; Renew
}

// The longest a waiter goes without asking a store that announces changes.
const pollWatched = 120 * time.Second

// The shortest time between two asks is never longer than this: hints of a real
// vacancy come soon after an ask too.
const askGapMax = 20 * time.Millisecond

// No duration is longer, so that sums of them do not overflow.
const durationMax = 100 * 365 * 24 * time.Hour

// marginMin is the smallest allowed Margin: room for clocks of different rate,
// and for a kill to be carried out.
func marginMin(ttl time.Duration) time.Duration { return ttl/500 + 50*time.Millisecond }

// WithDefaults fills what is zero. watched says that the store announces
// vacancies and renewals.
func (c Config) WithDefaults(watched bool) Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Renew, c.TTL/3)
	set(&c.Timeout, c.TTL/9)
	set(&c.StepDown, 2*(c.TTL/3))
	set(&c.Margin, marginMin(c.TTL))
	set(&c.KillAfter, c.TTL-c.Margin-c.StepDown)
	set(&c.Rejoin, c.Renew)
	if watched {
		set(&c.Poll, pollWatched)
	} else {
		set(&c.Poll, c.Renew)
	}
	return c
}

// Validate joins every relation between the durations that does not hold.
func (c Config) Validate() error {
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"TTL", c.TTL},
		{"RenewEvery", c.Renew},
		{"RequestTimeout", c.Timeout},
		{"StepDown", c.StepDown},
		{"Margin", c.Margin},
		{"Poll", c.Poll},
		{"Rejoin", c.Rejoin},
	} {
		need(d.d > 0 && d.d <= durationMax, "%s is %v: allowed is more than 0 and at most %v", d.name, d.d, durationMax)
	}
	need(c.KillAfter <= durationMax, "KillAfter is %v: allowed is at most %v", c.KillAfter, durationMax)
	need(c.MinHold >= 0 && c.MinHold <= durationMax, "MinHold is %v: allowed is 0 to %v", c.MinHold, durationMax)
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	need(c.Timeout <= c.TTL/9, "RequestTimeout is %v: allowed is at most a ninth of TTL, %v", c.Timeout, c.TTL/9)
	need(c.Margin >= marginMin(c.TTL), "Margin is %v: allowed is at least TTL/500 + 50ms, %v", c.Margin, marginMin(c.TTL))
	need(c.Renew+3*c.Timeout <= c.StepDown, "RenewEvery + 3 RequestTimeout is %v: allowed is at most StepDown, %v, so that three tries fit before the term ends",
		c.Renew+3*c.Timeout, c.StepDown)
	if c.StepDown >= c.TTL-c.Margin {
		need(false, "StepDown is %v: allowed is less than TTL - Margin, %v, so that there is time to kill the job", c.StepDown, c.TTL-c.Margin)
		return errors.Join(faults...)
	}
	need(c.KillAfter > 0, "KillAfter is %v: allowed is more than 0", c.KillAfter)
	need(c.StepDown+c.KillAfter <= c.TTL-c.Margin, "StepDown + KillAfter is %v: allowed is at most TTL - Margin, %v, so that the job is gone before the lease can expire",
		c.StepDown+c.KillAfter, c.TTL-c.Margin)
	return errors.Join(faults...)
}

// Deadline is the time from the drawing of the last answered attempt to the
// moment at which the last of the job must be gone.
func (c Config) Deadline() time.Duration { return c.TTL - c.Margin }

// Reading is one look at this machine's clocks. Only differences mean anything.
type Reading struct {
	Wall, Mono time.Duration
	Boot       time.Duration // counts suspend; 0: not sampled
}

// Since is how far the clocks have gone on from an earlier reading, by the one
// that went furthest. What ends a right is counted by it: a clock that stood
// still must not lengthen a lease.
func (r Reading) Since(from Reading) time.Duration {
	d := max(r.Mono-from.Mono, r.Wall-from.Wall)
	if r.Boot != 0 && from.Boot != 0 {
		d = max(d, r.Boot-from.Boot)
	}
	return d
}
