package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is a line of `go test -json`; see go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build event
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// summary is what has been seen of a run so far.
type summary struct {
	out      io.Writer
	start    time.Time
	packages map[string]*pkg
	passed   map[testID]float64 // seconds each took
	failed   []testID
	skipped  []testID
	builds   int // builds that failed
}

// pkg is one package while its tests run.
type pkg struct {
	done    bool
	failed  bool
	tests   int
	running map[string]bool     // tests that have begun and not ended
	output  map[string][]string // by test, kept until it is known to be of no interest; "" is the package's own
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, start: time.Now(), packages: map[string]*pkg{}, passed: map[testID]float64{}}
}

// read takes in a whole run and shows each package as it ends.
func (s *summary) read(in io.Reader) error {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadString('\n')
		if strings.HasPrefix(line, "{") {
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return fmt.Errorf("not a line of go test -json: %q: %w", line, err)
			}
			s.take(e)
		} else {
			fmt.Fprint(s.out, line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
		return
	case "build-fail":
		s.builds++
		return
	}
	p := s.packages[e.Package]
	if p == nil {
		p = &pkg{running: map[string]bool{}, output: map[string][]string{}}
		s.packages[e.Package] = p
	}
	id := testID{e.Package, e.Test}
	switch {
	case e.Action == "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case e.Test == "":
		s.end(p, e)
	case e.Action == "run":
		p.tests++
		p.running[e.Test] = true
	case e.Action == "pass":
		s.passed[id] = e.Elapsed
		p.forget(e.Test)
	case e.Action == "skip":
		s.skipped = append(s.skipped, id)
		fmt.Fprintf(s.out, "skip  %s\n%s", id, strings.Join(p.output[e.Test], ""))
		p.forget(e.Test)
	case e.Action == "fail":
		s.failed = append(s.failed, id)
		fmt.Fprintf(s.out, "FAIL  %s (%.2fs)\n%s", id, e.Elapsed, strings.Join(p.output[e.Test], ""))
		p.forget(e.Test)
	}
}

func (p *pkg) forget(test string) {
	delete(p.running, test)
	delete(p.output, test)
}

// end takes in the last event of a package. Tests that have not ended then died
// with it: of a panic, a time-out or an exit.
func (s *summary) end(p *pkg, e event) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(s.out, "ok    %s (%d tests, %.1fs)\n", e.Package, p.tests, e.Elapsed)
	case "skip":
		fmt.Fprintf(s.out, "-     %s (no test files)\n", e.Package)
	case "fail":
		for _, test := range slices.Sorted(maps.Keys(p.running)) {
			s.failed = append(s.failed, testID{e.Package, test})
			fmt.Fprintf(s.out, "FAIL  %s %s (never ended)\n%s", e.Package, test, strings.Join(p.output[test], ""))
		}
		fmt.Fprintf(s.out, "FAIL  %s (%d tests, %.1fs)\n%s", e.Package, p.tests, e.Elapsed, strings.Join(p.output[""], ""))
	default:
		return
	}
	p.done, p.failed = true, e.Action == "fail"
	p.output = nil
}

// report shows the slowest tests, everything that was wrong and the count, and
// returns whether all is well.
func (s *summary) report(allowed skipList, slowest int) bool {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	if s.builds > 0 {
		fault("%d builds failed", s.builds)
	}
	for _, id := range s.failed {
		fault("failed: %s", id)
	}
	for _, name := range slices.Sorted(maps.Keys(s.packages)) {
		if p := s.packages[name]; !p.done {
			fault("failed: %s never ended", name)
		} else if p.failed {
			fault("failed: %s", name)
		}
	}
	for _, id := range s.skipped {
		if reason := allowed[id]; reason != "" {
			fmt.Fprintf(s.out, "skip allowed: %s: %s\n", id, reason)
		} else {
			fault("skipped: %s (allowed skips are listed with their reasons)", id)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(allowed), func(a, b testID) int { return cmp.Compare(a.String(), b.String()) }) {
		_, passed := s.passed[id]
		if s.packages[id.pkg] != nil && !passed && !slices.Contains(s.skipped, id) && !slices.Contains(s.failed, id) {
			fault("an allowed skip names a test that is gone: %s", id)
		}
	}
	if len(s.passed)+len(s.failed) == 0 {
		fault("no test ran")
	}

	bySeconds := slices.SortedFunc(maps.Keys(s.passed), func(a, b testID) int {
		return cmp.Or(cmp.Compare(s.passed[b], s.passed[a]), cmp.Compare(a.String(), b.String()))
	})
	if n := min(slowest, len(bySeconds)); n > 0 {
		fmt.Fprintf(s.out, "\nslowest tests:\n")
		for _, id := range bySeconds[:n] {
			fmt.Fprintf(s.out, "%7.2fs  %s\n", s.passed[id], id)
		}
	}
	fmt.Fprintf(s.out, "\n%d packages, %s\n", len(s.packages), time.Since(s.start).Round(time.Second))
	for _, f := range faults {
		fmt.Fprintf(s.out, "FAIL  %s\n", f)
	}
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", len(s.passed), len(s.failed), len(s.skipped))
	return len(faults) == 0
}
