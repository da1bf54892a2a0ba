package guard

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm rings when an [Instant] has passed by any of its clocks: also right
// after the host wakes from suspension, and when somebody sets the wall clock.
// A Go timer knows the monotonic clock only.
type alarm struct {
	c     chan struct{} // rings; the receiver looks at the clocks itself
	files []*os.File    // a timerfd for each clock
}

var alarmClocks = []int{unix.CLOCK_MONOTONIC, unix.CLOCK_BOOTTIME, unix.CLOCK_REALTIME}

func newAlarm() (*alarm, error) {
	a := &alarm{c: make(chan struct{}, 1)}
	for _, clock := range alarmClocks {
		fd, err := unix.TimerfdCreate(clock, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
		if err != nil {
			return nil, fmt.Errorf("timerfd for clock %d: %w", clock, err)
		}
		f := os.NewFile(uintptr(fd), "timerfd")
		a.files = append(a.files, f)
		go a.listen(f)
	}
	return a, nil
}

func (a *alarm) listen(f *os.File) {
	var buf [8]byte
	for {
		// A clock that was set cancels its timer (ECANCELED): that rings too.
		if _, err := f.Read(buf[:]); err != nil && !errors.Is(err, unix.ECANCELED) {
			return
		}
		select {
		case a.c <- struct{}{}:
		default:
		}
	}
}

// set arms the alarm for i instead of whatever it was armed for.
func (a *alarm) set(i Instant) error {
	for n, at := range []int64{i.Mono, i.Boot, i.Real} {
		flags := unix.TFD_TIMER_ABSTIME
		if alarmClocks[n] == unix.CLOCK_REALTIME {
			flags |= unix.TFD_TIMER_CANCEL_ON_SET
		}
		// A zero value would disarm the timer: a moment long past rings at once.
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(at, 1))}
		err := a.settime(n, flags, &spec)
		if errors.Is(err, unix.ECANCELED) { // the clock was set since the last arming; the timer is armed all the same
			err = nil
		}
		if err != nil {
			return fmt.Errorf("arming the timer of clock %d: %w", alarmClocks[n], err)
		}
	}
	return nil
}

// in arms the alarm for d from now.
func (a *alarm) in(d time.Duration) error { return a.set(Now().Add(d)) }

func (a *alarm) settime(n, flags int, spec *unix.ItimerSpec) error {
	conn, err := a.files[n].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = unix.TimerfdSettime(int(fd), flags, spec, nil) }); err != nil {
		return err
	}
	return inner
}

func (a *alarm) close() {
	for _, f := range a.files {
		f.Close()
	}
}
