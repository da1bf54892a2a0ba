//go:build !linux

package draw

// bootTime returns 0: there is no such clock in the standard library here.
func bootTime() int64 { return 0 }
