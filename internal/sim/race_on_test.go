//go:build race

package sim

// The race detector has nothing to find in a single-threaded simulation but
// what its parallel runs share, which is nothing.
const runsDefault = 1_000
