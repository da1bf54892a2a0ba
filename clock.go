package tenure

import (
	"sync/atomic"
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
	s := lastBoot.Load()
	if s == nil || r.Mono-s.mono > bootSampleMax || r.Mono < s.mono {
		s = &bootSample{mono: r.Mono, boot: boottime()}
		lastBoot.Store(s)
	}
	if s.boot != 0 {
		r.Boot = s.boot + r.Mono - s.mono
	}
	return r
}

// The boot clock costs a system call, so a sample of it serves every election
// of the process for a while: a suspend is noticed that much later.
const bootSampleMax = 10 * time.Millisecond

type bootSample struct{ mono, boot time.Duration }

var lastBoot atomic.Pointer[bootSample]
