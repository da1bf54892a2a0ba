package process

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Run these with -benchtime=20x or so: each round is a term that is lost.

// BenchmarkThaw measures how long after SIGCONT a leader whose term has run out
// while it was frozen says no, and how long until its job's context has ended.
func BenchmarkThaw(b *testing.B) {
	thaw := func(ask bool, kind string) func(*testing.B) {
		return func(b *testing.B) {
			f := newField(b)
			plan := f.plan(time.Second)
			plan.Ask, plan.Ledger = ask, ""
			a := f.candidate("a", plan)
			var took []time.Duration
			for b.Loop() {
				a.await("acquired", nil)
				a.await("renewed", nil)
				a.freeze()
				time.Sleep(plan.TTL)
				a.skip()
				thawed := a.thaw()
				took = append(took, a.await(kind, func(e event) bool { return e.Reason == "expired" }).At-thawed)
			}
			report(b, took)
		}
	}
	// A process that asks all the time notices by asking, so its context is
	// measured in one that does not.
	b.Run("answer", thaw(true, "answer"))
	b.Run("context", thaw(false, "told"))
}

// BenchmarkRelease measures how long after a leader gave up its term another
// process leads: from the order to give it up, and from when the store has
// confirmed the release.
func BenchmarkRelease(b *testing.B) {
	f := newField(b)
	plan := f.plan(30 * time.Second)
	plan.Rejoin = 200 * time.Millisecond
	plan.Ledger = ""
	crowd := []*proc{f.candidate("a", plan), f.candidate("b", plan)}
	leader, at := f.await("a leader", 0, func(e event) bool { return e.Kind == "acquired" })
	var order, release []time.Duration
	for b.Loop() {
		other := crowd[0]
		if leader.from == other {
			other = crowd[1]
		}
		// The one that led before rests for a while, then waits like any other.
		other.await("waiting", func(e event) bool { return e.Token == leader.Token })
		time.Sleep(50 * time.Millisecond) // its watch is set up
		ordered := mono()
		leader.from.tell("resign")
		released := leader.from.await("released", nil)
		var next event
		next, at = f.await("the next leader", at, func(e event) bool { return e.Kind == "acquired" })
		order = append(order, next.At-ordered)
		release = append(release, next.At-released.At)
		leader = next
	}
	report(b, release)
	b.ReportMetric(milliseconds(quantile(order, 0.5)), "ms-from-order")
}

// BenchmarkCrash measures how long after the end of a killed leader's lease
// another process leads.
func BenchmarkCrash(b *testing.B) {
	f := newField(b)
	plan := f.plan(time.Second)
	plan.Ledger = ""
	start := func(n int) *proc {
		p := f.candidate(fmt.Sprintf("p%d", n), plan)
		p.await("waiting", nil)
		return p
	}
	leader := f.candidate("p0", plan)
	leader.await("acquired", nil)
	var took []time.Duration
	for n := 1; b.Loop(); n++ {
		next := start(n)
		leader.kill()
		end := f.expiry()
		took = append(took, next.await("acquired", nil).At-end)
		leader = next
	}
	report(b, took)
}

// expiry is when the lease in the file expires, by mono.
func (f *field) expiry() time.Duration {
	f.t.Helper()
	ns, err := strconv.ParseInt(f.row()["expires_ns"], 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		f.t.Fatal(err)
	}
	return mono() + time.Duration(ns-boot.Nano())
}

// report reports the median and the extremes of latencies.
func report(b *testing.B, took []time.Duration) {
	b.ReportMetric(0, "ns/op") // how long a round takes is of no interest
	b.ReportMetric(milliseconds(quantile(took, 0.5)), "ms-median")
	b.ReportMetric(milliseconds(quantile(took, 0.9)), "ms-p90")
	b.ReportMetric(milliseconds(slices.Max(took)), "ms-max")
}

func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
