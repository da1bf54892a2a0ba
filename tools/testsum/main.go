// Testsum reads the output of `go test -json` on standard input and shows it
// so that a person can follow: a line for each package, the output of what
// failed, the slowest tests, and a count as the last line.
//
// It fails when a test or a build failed, when no test ran, and when a test was
// skipped that the file given with -skips does not allow with a reason.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	skips := flag.String("skips", "", "file of the tests that may be skipped, one `PACKAGE TEST  # reason` a line")
	slowest := flag.Int("slowest", 10, "how many of the slowest tests to list")
	flag.Parse()

	allowed := skipList{}
	if *skips != "" {
		text, err := os.ReadFile(*skips)
		if err != nil {
			fatal(err)
		}
		if allowed, err = parseSkips(*skips, string(text)); err != nil {
			fatal(err)
		}
	}
	s := newSummary(os.Stdout)
	if err := s.read(os.Stdin); err != nil {
		fatal(err)
	}
	if !s.report(allowed, *slowest) {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "testsum:", err)
	os.Exit(1)
}
