//go:build linux

package tenuresqlite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
)

var journals = []Journal{WAL, Rollback}

func forEachJournal(t *testing.T, f func(t *testing.T, journal Journal)) {
	for _, j := range journals {
		t.Run(string(j), func(t *testing.T) {
			t.Parallel()
			f(t, j)
		})
	}
}

// TestB16_JobHoldsAWriteTransaction: the lease lies in the job's own file, and
// the job writes for longer than a request may take.
func TestB16_JobHoldsAWriteTransaction(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal})
		l := acquire(t, s, claim("a", time.Minute))
		job := start(t, "hold", path)
		job.expect("holding")

		for what, request := range map[string]func(context.Context) error{
			"renew":   func(ctx context.Context) error { _, err := s.Renew(ctx, l, attempt()); return err },
			"acquire": func(ctx context.Context) error { _, err := s.Acquire(ctx, claim("b", time.Minute)); return err },
			"release": func(ctx context.Context) error { return s.Release(ctx, l, "") },
			"abandon": func(ctx context.Context) error { return s.Abandon(ctx, "a", attempt()) },
			"evict": func(ctx context.Context) error {
				_, err := s.Evict(ctx, store.Eviction{Name: "a", Reason: "test"})
				return err
			},
			"batch": func(ctx context.Context) error {
				return s.RenewBatch(ctx, []store.Renewal{{Lease: l, Attempt: attempt()}})[0].Err
			},
		} {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			err := request(ctx)
			cancel()
			isKind(t, err, store.ErrBusy, path)
			for _, want := range []string{"process " + strconv.Itoa(job.cmd.Process.Pid), "use a file of its own"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: the error %q does not say %q", what, err, want)
				}
			}
			if errors.Is(err, store.ErrUnreachable) || errors.Is(err, store.ErrHeld) {
				t.Errorf("%s: %v is of two kinds", what, err)
			}
		}
		// Whoever only looks, or waits for the holder, is not kept out.
		heldBy(t, s, claim("a", time.Minute))
		if rec := get(t, s, "a"); rec.State != store.Live || rec.Renewal != 0 {
			t.Errorf("while the job writes, the record is %+v", rec)
		}

		// A renewal that is waiting when the job commits gets through.
		renewal := make(chan error, 1)
		go func() {
			_, err := s.Renew(context.Background(), l, attempt())
			renewal <- err
		}()
		job.say("commit")
		job.expect("committed")
		if err := <-renewal; err != nil {
			t.Errorf("after the job committed: %v", err)
		}
	})
}

// TestB16_JobReads: the job reads for long. With a write-ahead log that is in
// nobody's way; with a rollback journal no commit gets through, and whoever is
// refused is told why.
func TestB16_JobReads(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal})
		l := acquire(t, s, claim("a", time.Minute))
		job := start(t, "read", path)
		job.expect("reading 1")
		if journal == WAL {
			l = renewed(t, s, l)
		} else {
			// If the time runs out in the middle of an attempt to commit, the outcome is
			// unknown; the same attempt may be sent again.
			a, err := attempt(), error(nil)
			eventually(t, "the file is said to be busy", func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				defer cancel()
				_, err = s.Renew(ctx, l, a)
				return !store.OutcomeUnknown(err)
			})
			isKind(t, err, store.ErrBusy, path)
			if want := "process " + strconv.Itoa(job.cmd.Process.Pid); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "has been reading") {
				t.Errorf("the error %q does not say that %s is reading", err, want)
			}
			if rec := get(t, s, "a"); rec.Renewal != 0 {
				t.Errorf("what the error calls undone was done: %+v", rec)
			}
		}
		job.say("end")
		job.expect("done")
		renewed(t, s, l)
	})
}

// TestB16_OwnBound: without a deadline of the caller's the store has its own.
func TestB16_OwnBound(t *testing.T) {
	path := file(t)
	l := acquire(t, open(t, path, nil), claim("a", time.Minute))
	s := open(t, path, &Options{Wait: 500 * time.Millisecond})
	job := start(t, "hold", path)
	job.expect("holding")
	_, err := s.Renew(context.Background(), l, attempt())
	isKind(t, err, store.ErrBusy, path)
}

// TestB16_JobNeverPauses: the job writes one transaction after the other, so
// that the file is free for moments only.
func TestB16_JobNeverPauses(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal, Wait: deadline})
		l := acquire(t, s, claim("a", 10*time.Minute))
		job := start(t, "spin", path)
		job.expect("spinning")
		for range 20 {
			l = renewed(t, s, l)
		}
	})
}

// TestB01_FileHeldByAFrozenProcess: whoever has the file is stopped and answers
// to nobody, as a store does that is cut off without a reset. Requests end with
// their context all the same.
func TestB01_FileHeldByAFrozenProcess(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal, Wait: deadline})
		l := acquire(t, s, claim("a", time.Minute))
		job := start(t, "hold", path)
		job.expect("holding")
		job.freeze()

		ctx, cancel := context.WithCancel(context.Background())
		renewal := make(chan error, 1)
		go func() {
			_, err := s.Renew(ctx, l, attempt())
			renewal <- err
		}()
		// It waits for the file before it is cancelled.
		eventually(t, "the renewal waits", func() bool { return len(s.writing.slot) == 1 })
		timed, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err := s.Renew(timed, l, attempt())
		stop()
		isKind(t, err, store.ErrBusy, path)
		cancel()
		err = <-renewal
		if !errors.Is(err, context.Canceled) || store.OutcomeUnknown(err) {
			t.Errorf("a cancelled renewal: %v, outcome unknown: %t", err, store.OutcomeUnknown(err))
		}
		timed, stop = context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err = s.Renew(timed, l, attempt())
		stop()
		isKind(t, err, store.ErrBusy, path)
		for _, want := range []string{fmt.Sprintf("process %d ", job.cmd.Process.Pid), "which is stopped, has been writing"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}

		// The system frees a killed process's locks.
		job.kill()
		renewed(t, s, l)
	})
}

// TestB15_OneStuckFile: a file that somebody holds harms no lease in another,
// and a store that waits for it can be closed.
func TestB15_OneStuckFile(t *testing.T) {
	path := file(t)
	stuck, free := open(t, path, &Options{Wait: deadline}), open(t, file(t), nil)
	stuckLease := acquire(t, stuck, claim("7", time.Minute))
	var leases []store.Lease
	for i := range 49 {
		leases = append(leases, acquire(t, free, claim(fmt.Sprint(i), time.Minute)))
	}
	start(t, "hold", path).expect("holding")

	var waiting sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		waiting.Go(func() {
			switch i {
			case 0:
				_, errs[i] = stuck.Renew(context.Background(), stuckLease, attempt())
			case 1:
				errs[i] = stuck.Release(context.Background(), stuckLease, "")
			case 2:
				_, errs[i] = stuck.Acquire(context.Background(), claim("8", time.Minute))
			}
		})
	}
	for _, l := range leases {
		renewed(t, free, l)
	}
	if err := stuck.Close(); err != nil {
		t.Errorf("closing while requests wait: %v", err)
	}
	waiting.Wait()
	for i, err := range errs {
		if !errors.Is(err, store.ErrStoreClosed) || store.OutcomeUnknown(err) {
			t.Errorf("request %d, waiting when the store was closed: %v", i, err)
		}
	}
}

// TestB14_JobUsesAllItsConnections: the store has connections of its own, so a
// job that has none left keeps no renewal waiting.
func TestB14_JobUsesAllItsConnections(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	l := acquire(t, s, claim("a", time.Minute))
	job := openJob(t, path, WAL)
	job.SetMaxOpenConns(1)
	rows, err := job.Query("with recursive n(i) as (select 1 union all select i + 1 from n) select i from n, tenure_lease")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() {
		t.Fatal(rows.Err())
	}
	for range 10 {
		l = renewed(t, s, l)
		get(t, s, "a")
	}
}

// TestB19_LostReply: the caller gives up at any moment of an acquire. What it is
// told must be true, and the same attempt, sent again, leads with one token.
func TestB19_LostReply(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		s := open(t, file(t), &Options{Journal: journal})
		acquired := acquire(t, s, claim("a", time.Minute))
		if err := s.Release(t.Context(), acquired, ""); err != nil {
			t.Fatal(err)
		}
		last := acquired.Token
		var told, unknown, replayed int
		for i := range 150 {
			c := claim("a", time.Minute)
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%50)*100*time.Microsecond)
			l, err := s.Acquire(ctx, c)
			cancel()
			switch {
			case err == nil:
				told++
			case store.OutcomeUnknown(err):
				unknown++
			default:
				if rec := get(t, s, "a"); rec.TermID == c.Attempt {
					t.Fatalf("the store said that nothing was done (%v), but it granted: %+v", err, rec)
				}
			}
			again, err := s.Acquire(context.Background(), c)
			if err != nil {
				t.Fatalf("the same attempt once more: %v", err)
			}
			if again.Token != last+1 || again.TermID != c.Attempt || l.Token != 0 && l.Token != again.Token {
				t.Fatalf("the same attempt once more got %+v, after %+v and token %d", again, l, last)
			}
			if again.Replayed {
				replayed++
			}
			last = again.Token
			if err := s.Abandon(context.Background(), "a", c.Attempt); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("of 150 acquires %d were answered, %d had an unknown outcome; %d were replayed", told, unknown, replayed)
		if replayed == 0 {
			t.Error("no acquire was carried out at first: the test tested nothing")
		}
	})
}
