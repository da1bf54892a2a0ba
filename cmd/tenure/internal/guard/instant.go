package guard

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is one moment on three clocks, in nanoseconds: the monotonic clock,
// the boot-time clock (which also counts suspended time) and the wall clock. No
// single clock sees every way in which time can pass while a process does not
// run, so an instant has passed as soon as any of the three says so.
type Instant struct {
	Mono, Boot, Real int64
}

// Now reads the three clocks.
func Now() Instant {
	return Instant{
		Mono: readClock(unix.CLOCK_MONOTONIC),
		Boot: readClock(unix.CLOCK_BOOTTIME),
		Real: readClock(unix.CLOCK_REALTIME),
	}
}

func readClock(id int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(fmt.Sprintf("guard: clock %d: %v", id, err)) // these three exist on every Linux since 2.6.39
	}
	return t.Nano()
}

// Add returns the instant d later on every clock.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{Mono: i.Mono + int64(d), Boot: i.Boot + int64(d), Real: i.Real + int64(d)}
}

// Passed reports whether, by any clock of now, i is not in the future.
func (i Instant) Passed(now Instant) bool {
	return now.Mono >= i.Mono || now.Boot >= i.Boot || now.Real >= i.Real
}

// Earlier returns, clock by clock, the earlier of i and j.
func (i Instant) Earlier(j Instant) Instant {
	return Instant{Mono: min(i.Mono, j.Mono), Boot: min(i.Boot, j.Boot), Real: min(i.Real, j.Real)}
}

// Until returns the time from now to i by the clock that reaches it first.
func (i Instant) Until(now Instant) time.Duration {
	return time.Duration(min(i.Mono-now.Mono, i.Boot-now.Boot, i.Real-now.Real))
}
