//go:build race

package process

// raceDetector says that this binary is several times slower than usual.
const raceDetector = true
