package tenure

import (
	"time"

	"github.com/tenure-go/tenure/internal/core"
)

// clock is this machine's clocks. Tests put another one in its place.
type clock interface {
	// read looks at every clock there is.
	read() core.Reading
	// glance is read without the clocks that cost a system call: what a validity
	// check can afford.
	glance() core.Reading
}

type machineClock struct{}

// started is the epoch of the monotonic readings.
var started = time.Now()

func (machineClock) glance() core.Reading {
	now := time.Now()
	return core.Reading{Wall: time.Duration(now.UnixNano()), Mono: now.Sub(started)}
}

func (c machineClock) read() core.Reading {
	r := c.glance()
	r.Boot = boottime()
	return r
}
