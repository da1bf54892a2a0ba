//go:build !amd64

package draw

// processor returns 0: there is no instruction for a random number here that
// every processor has.
func processor() uint64 { return 0 }
