package sim

import (
	"time"

	"github.com/tenure-go/tenure/internal/core"
)

// clock is the clocks of one machine, as a function of true time. Rates are in
// parts per million and all arithmetic is in integers, so that a seed means the
// same run on every processor.
type clock struct {
	at               time.Duration // true time of the readings below
	wall, mono, boot time.Duration
	ppm, wallPPM     int64 // how much too fast it runs
	unboot           bool  // boot time is not sampled on this machine
	still            bool  // the whole machine stands: a paused VM
	asleep           bool  // suspended: mono stands, wall and boot go on
}

func scale(d time.Duration, ppm int64) time.Duration {
	return d + time.Duration(int64(d)/1000*ppm/1000)
}

func (c clock) read(now time.Duration) core.Reading {
	r := core.Reading{Wall: c.wall, Mono: c.mono}
	d := now - c.at
	if c.still {
		d = 0
	}
	r.Wall += scale(d, c.wallPPM)
	if !c.asleep {
		r.Mono += scale(d, c.ppm)
	}
	if !c.unboot {
		r.Boot = c.boot + scale(d, c.ppm)
	}
	return r
}

// settle makes now the time from which the clocks go on, so that they can be
// bent there.
func (c *clock) settle(now time.Duration) {
	d := now - c.at
	if c.still {
		d = 0
	}
	c.wall += scale(d, c.wallPPM)
	c.boot += scale(d, c.ppm)
	if !c.asleep {
		c.mono += scale(d, c.ppm)
	}
	c.at = now
}

// after is the true time that passes while mono goes on by d.
func (c clock) after(d time.Duration) time.Duration {
	rate := time.Duration(1e6 + c.ppm)
	return d/rate*1e6 + d%rate*1e6/rate + 1
}
