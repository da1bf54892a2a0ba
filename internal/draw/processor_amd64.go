package draw

// hasRDRAND reports whether the processor has the instruction RDRAND.
func hasRDRAND() bool

// rdrand asks the processor for a random number. It may have none ready, and ok
// is false.
func rdrand() (value uint64, ok bool)

var rdrandHere = hasRDRAND()

// processor returns a random number of the processor's own, or 0 if it has none
// to give.
func processor() uint64 {
	if !rdrandHere {
		return 0
	}
	for range 10 { // what Intel's manual advises; ten failures mean that it is broken
		if v, ok := rdrand(); ok {
			return v
		}
	}
	return 0
}
