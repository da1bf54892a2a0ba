package process

import (
	"strings"
	"testing"
	"time"
)

// The file is locked by another program, so that nobody can renew: the job ends
// at step-down by its own process's timer, with the reason named; its successor
// begins after the job has returned, and soon once the file is free.
func TestB01_CutOff(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		name     string
		rollback bool
	}{
		{"wal", false},
		{"rollback", true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			const ttl = 4 * time.Second // a slow machine's job may take a third of it to return
			f := newField(t)
			plan := f.plan(ttl)
			plan.Rollback = mode.rollback
			a := f.candidate("a", plan)
			a.await("acquired", nil)
			b := f.candidate("b", plan)
			b.await("waiting", nil)

			a.skip()
			good := a.await("renewed", nil)
			a.await("wrote", nil)
			unlock := f.lock("lease.db")
			told := a.await("told", nil)
			if told.Reason != "expired" {
				t.Errorf("the job was told to stop because of %q", told.Reason)
			}
			for _, c := range told.Calls {
				if c.Began > good.At && c.Done && c.Error == "" {
					t.Errorf("the file was locked and the store answered: %+v", c)
				}
			}
			if e := a.await("lost", nil); e.Reason != "expired" || !strings.Contains(e.Error, "store busy") {
				t.Errorf("lost because of %q: %s", e.Reason, e.Error)
			}
			if e := a.await("released", nil); e.Free {
				t.Error("a lost term was released")
			}
			// The lease runs out while nobody can take it.
			b.skip()
			b.await("ask failed", nil)
			freed := mono()
			unlock()
			next, _ := f.await("a successor", 0, func(e event) bool { return e.Kind == "acquired" && e.At >= freed })
			t.Logf("told to stop %v after the last answered renewal, successor %v after the file was free", told.At-good.At, next.At-freed)
			next.from.await("wrote", func(e event) bool { return e.Token == next.Token })
			a.stop()
			b.stop()
			all := f.stints()
			disjoint(t, all)
			if len(all) < 2 {
				t.Errorf("%d terms, want at least 2", len(all))
			}
		})
	}
}
