package draw

import (
	"syscall"
	"unsafe"
)

// bootTime returns the nanoseconds since this host booted, suspended time
// included, or 0 if the kernel does not say.
func bootTime() int64 {
	const clockBoottime = 7
	var t syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0
	}
	return t.Nano()
}
