package tenure

import (
	"testing"
	"time"
)

// The boot clock is sampled, and no sample is used for long: one from before a
// suspend, or of another epoch, would hide what has passed.
func TestBootClockIsSampledAnew(t *testing.T) {
	defer lastBoot.Store(lastBoot.Load())
	mono := machineClock{}.glance().Mono
	for name, old := range map[string]*bootSample{
		"none":     nil,
		"old":      {mono: mono - time.Hour, boot: 1},
		"of later": {mono: mono + time.Hour, boot: 1},
	} {
		lastBoot.Store(old)
		before := boottime()
		r := machineClock{}.read()
		after := boottime()
		if r.Boot < before-time.Second || r.Boot > after+time.Second {
			t.Errorf("%s: boot time %v, want %v to %v", name, r.Boot, before, after)
		}
	}
	// A fresh sample is used, and the reading goes on from it.
	now := machineClock{}.glance().Mono
	lastBoot.Store(&bootSample{mono: now, boot: 1000 * time.Hour})
	if r := (machineClock{}).read(); r.Mono-now <= bootSampleMax && (r.Boot < 1000*time.Hour || r.Boot-1000*time.Hour != r.Mono-now) {
		t.Errorf("boot time %v, %v after a sample of 1000h", r.Boot, r.Mono-now)
	}
	// Where the kernel does not tell, nothing is made up.
	now = machineClock{}.glance().Mono
	lastBoot.Store(&bootSample{mono: now})
	if r := (machineClock{}).read(); r.Mono-now <= bootSampleMax && r.Boot != 0 {
		t.Errorf("boot time %v without a sample", r.Boot)
	}
}
