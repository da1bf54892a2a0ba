package sim

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	seedFlag  = flag.Int64("sim.seed", 1, "the run to replay, or the first of many")
	runsFlag  = flag.Int64("sim.runs", runsDefault, "how many runs to make")
	traceFlag = flag.Bool("sim.trace", false, "print all that happens in the replayed run")
)

func TestMain(m *testing.M) {
	// A run makes much garbage and keeps little.
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// TestSeeds makes many runs, and sees to it that what should be tried was tried.
func TestSeeds(t *testing.T) {
	const shards = 20
	var (
		mu        sync.Mutex
		marks     Marks
		simulated float64
		steps     int
	)
	t.Run("runs", func(t *testing.T) {
		for shard := range int64(shards) {
			first, last := *seedFlag+*runsFlag*shard/shards, *seedFlag+*runsFlag*(shard+1)/shards-1
			t.Run(fmt.Sprintf("%d-%d", first, last), func(t *testing.T) {
				t.Parallel()
				for seed := first; seed <= last; seed++ {
					r := Run(seed, Options{})
					if r.Violation != nil {
						t.Fatal(report(r))
					}
					mu.Lock()
					marks.Add(r.Marks)
					steps += r.Steps
					simulated += r.Simulated.Hours()
					mu.Unlock()
				}
			})
		}
	})
	// Two lines in one lane need a copy and two strokes of bad luck: 3 in 20,000.
	t.Logf("%d runs from seed %d: %d steps of the core in %.0f simulated hours", *runsFlag, *seedFlag, steps, simulated)
	for m, n := range marks {
		t.Logf("%8d  %v", n, Mark(m))
		if n == 0 && *runsFlag >= 20_000 && Mark(m) != MarkLinesMixed {
			t.Errorf("in %d runs it never occurred that %v: the simulator has gone blind to it", *runsFlag, Mark(m))
		}
	}
}

// TestReplay shows that a seed decides everything; with -sim.seed=N -sim.trace it
// prints that run.
func TestReplay(t *testing.T) {
	first, second := trace(*seedFlag, Rules{}), trace(*seedFlag, Rules{})
	if !slices.Equal(first, second) {
		for i := range min(len(first), len(second)) {
			if first[i] != second[i] {
				t.Fatalf("seed %d made two different runs, from line %d on:\n%s\n%s", *seedFlag, i, first[i], second[i])
			}
		}
		t.Fatalf("seed %d made a run of %d lines and one of %d", *seedFlag, len(first), len(second))
	}
	if *traceFlag {
		t.Log("\n" + strings.Join(first, "\n"))
	}
	r := Run(*seedFlag, Options{})
	if r.Violation != nil {
		t.Fatal(report(r))
	}
	t.Logf("seed %d: every invariant held after each of %d steps of the core, in %v", r.Seed, r.Steps, r.Simulated)
}

func trace(seed int64, rules Rules) (lines []string) {
	Run(seed, Options{Rules: rules, Trace: func(line string) { lines = append(lines, line) }})
	return lines
}

// report says what is needed to see a violation again.
func report(r Result) string {
	commit := "unknown"
	if out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	lines := trace(r.Seed, Rules{})
	tail := lines[max(0, len(lines)-40):]
	return fmt.Sprintf("seed=%d commit=%s violated %v\n  replay: go test ./internal/sim -run 'TestReplay$' -v -sim.seed=%d -sim.trace\n  the last of %d lines:\n%s",
		r.Seed, commit, r.Violation, r.Seed, len(lines), strings.Join(tail, "\n"))
}
