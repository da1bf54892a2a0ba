// Package process tests the library with real processes on a real SQLite file:
// candidates are stopped, continued and killed by the kernel, and what their jobs
// did is read from journals afterwards.
//
// The test binary starts itself again for each candidate. A candidate tells what
// happens to it on its standard output, takes orders on its standard input, and
// ends when that is closed, so none outlives the tests. Times are the host's
// monotonic clock, which all processes share, so they can be compared.
package process
