//go:build linux

package tenuresqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
)

// watch watches an election until the end of the test.
func watch(t testing.TB, s *Store, name string) <-chan store.Hint {
	t.Helper()
	hints, err := s.Watch(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return hints
}

// hintOf waits for a hint of a kind; others may come before it.
func hintOf(t testing.TB, hints <-chan store.Hint, kind store.HintKind) store.Hint {
	t.Helper()
	timeout := time.After(deadline)
	for {
		select {
		case h, ok := <-hints:
			if !ok {
				t.Fatal("the watch ended")
			}
			if h.Kind == kind {
				return h
			}
		case <-timeout:
			t.Fatalf("no hint of kind %d came", kind)
		}
	}
}

// TestWatch_OtherProcess: another process's release is announced, in every
// journal mode, also when the write-ahead log was checkpointed and removed.
func TestWatch_OtherProcess(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal})
		if _, err := s.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		hints := watch(t, s, "a")
		for i := range 5 {
			p := start(t, "lead", path, "a", "1m")
			p.expect(fmt.Sprint("leads ", i+1))
			if h := hintOf(t, hints, store.HintRenewed); h.Remaining <= 0 || h.Remaining > time.Minute {
				t.Errorf("%+v", h)
			}
			p.say("renew")
			p.expect("renew: done")
			hintOf(t, hints, store.HintRenewed)
			if journal == WAL {
				execOn(t, path, "pragma wal_checkpoint(truncate)")
			}
			p.say("release")
			p.expect("release: done")
			hintOf(t, hints, store.HintVacant)
			p.kill()
		}
	})
}

// TestWatch_NoFileYet: neither the file nor its directory need exist.
func TestWatch_NoFileYet(t *testing.T) {
	for _, dir := range []string{"", "state"} {
		t.Run("missing "+dir, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), dir, "tenure.db")
			s, leader := open(t, path, nil), open(t, path, nil)
			hints := watch(t, s, "a")
			l := acquire(t, leader, claim("a", time.Minute))
			hintOf(t, hints, store.HintRenewed)
			if err := leader.Release(t.Context(), l, ""); err != nil {
				t.Fatal(err)
			}
			hintOf(t, hints, store.HintVacant)
		})
	}
}

// TestWatch_FileReplaced: the watch goes on in the file that is there now.
func TestWatch_FileReplaced(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	acquire(t, s, claim("a", time.Minute))
	hints := watch(t, s, "a")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil {
			t.Fatal(err)
		}
	}
	hintOf(t, hints, store.HintVacant)
	leader := open(t, path, nil)
	l := acquire(t, leader, claim("a", time.Minute))
	hintOf(t, hints, store.HintRenewed)
	if err := leader.Release(t.Context(), l, ""); err != nil {
		t.Fatal(err)
	}
	hintOf(t, hints, store.HintVacant)
}

// TestWatch_Symlink: a link to the file, and one to its directory.
func TestWatch_Symlink(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "real", "tenure.db")
	s := open(t, path, nil)
	acquireAndRelease(t, s, "a", 1)
	if err := errors.Join(os.Symlink(path, filepath.Join(dir, "link.db")), os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "linked"))); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"link.db", "linked/tenure.db"} {
		hints := watch(t, open(t, filepath.Join(dir, link), nil), "a")
		acquireAndRelease(t, s, "a", 1)
		hintOf(t, hints, store.HintVacant)
	}
}

// TestWatch_ByHand: a change that nobody announced is seen all the same.
func TestWatch_ByHand(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	acquire(t, s, claim("a", time.Minute))
	hints := watch(t, s, "a")
	execOn(t, path, "update tenure_lease set released = 1")
	hintOf(t, hints, store.HintVacant)
	execOn(t, path, "delete from tenure_lease")
	hintOf(t, hints, store.HintVacant)
}

// TestWatch_Changes: what an operator does is announced too.
func TestWatch_Changes(t *testing.T) {
	s := open(t, file(t), nil)
	acquire(t, s, claim("a", time.Minute))
	hints := watch(t, s, "a")
	if _, err := s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	hintOf(t, hints, store.HintChanged)
	if _, err := s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test", Now: true}); err != nil {
		t.Fatal(err)
	}
	hintOf(t, hints, store.HintVacant)
}

// TestWatch_Ends: a watch ends with its context or its store, and the last one
// takes the goroutine and the descriptor with it.
func TestWatch_Ends(t *testing.T) {
	path := file(t)
	s, err := Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, s, claim("a", time.Minute))
	get(t, s, "a") // opens the second connection
	before := openFiles(t, filepath.Dir(path))
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan store.Hint
		for _, name := range []string{"a", "a", "b"} {
			hints, err := s.Watch(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, hints)
		}
		eventually(t, "the file is watched", func() bool { return openFiles(t, filepath.Dir(path)) > before })
		cancel()
		for _, hints := range all {
			for range hints {
				continue
			}
		}
		eventually(t, "nothing is watched", func() bool { return openFiles(t, filepath.Dir(path)) == before && !anyOf(ours(), "hub") })
	}
	hints := watch(t, s, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range hints {
		continue
	}
	if _, err := s.Watch(t.Context(), "a"); !errors.Is(err, store.ErrStoreClosed) {
		t.Errorf("watching a closed store: %v", err)
	}
	nothingLeft(t, filepath.Dir(path))
}

func anyOf(texts []string, sub string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, sub) })
}

// TestWatch_WhatWakes: every change of Tenure's is announced by the system, and
// nothing else: a job that writes to its own file all the time costs the waiters
// nothing.
func TestWatch_WhatWakes(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal})
		l := acquire(t, s, claim("a", time.Minute))
		n := newNotifier(path)
		if n == nil {
			t.Fatal("the system announces no changes")
		}
		go n.run()
		defer n.close()

		job := openJob(t, path, "")
		if _, err := job.Exec("create table job (n)"); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if _, err := job.Exec("insert into job values (1)"); err != nil {
				t.Fatal(err)
			}
		}
		heldBy(t, s, claim("a", time.Minute)) // changes nothing
		get(t, s, "a")
		select {
		case <-n.wake:
			t.Error("what changes no lease wakes the waiters")
		default:
		}

		woken := func(by string) {
			t.Helper()
			select {
			case <-n.wake:
			case <-time.After(deadline):
				t.Fatalf("%s is not announced", by)
			}
		}
		l = renewed(t, s, l)
		woken("a renewal")
		if err := s.Release(t.Context(), l, ""); err != nil {
			t.Fatal(err)
		}
		woken("a release")
		acquire(t, s, claim("a", time.Minute))
		woken("a grant")
	})
}

// BenchmarkRelease measures how long after a release another process that waits
// hears of it.
func BenchmarkRelease(b *testing.B) {
	for _, journal := range journals {
		b.Run(string(journal), func(b *testing.B) {
			path := file(b)
			s := open(b, path, &Options{Journal: journal})
			if _, err := s.Init(b.Context()); err != nil {
				b.Fatal(err)
			}
			waiter, leader := start(b, "wait", path, "a"), start(b, "churn", path, "a")
			waiter.expect("watches")
			var all []time.Duration
			for b.Loop() {
				leader.say("go")
				released := parseNow(b, leader.line())
				for {
					kind, at, _ := strings.Cut(waiter.line(), " ")
					if kind == fmt.Sprint(store.HintVacant) {
						all = append(all, parseNow(b, at)-released)
						break
					}
				}
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "median-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
		})
	}
}

func parseNow(t testing.TB, text string) time.Duration {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// BenchmarkIdle measures what fifty processes that wait cost together while one
// leader renews: processor time per second, and how often they are woken.
func BenchmarkIdle(b *testing.B) {
	path := file(b)
	s := open(b, path, nil)
	l := acquire(b, s, claim("a", time.Minute))
	var waiters []*process
	for range 50 {
		w := start(b, "wait", path, "a")
		w.expect("watches")
		waiters = append(waiters, w)
	}
	for b.Loop() {
		cpu, switches := usage(b, waiters)
		began := time.Now()
		for range 6 {
			l = renewed(b, s, l)
			time.Sleep(5 * time.Second / 3)
		}
		cpu2, switches2 := usage(b, waiters)
		seconds := time.Since(began).Seconds()
		b.ReportMetric(float64((cpu2-cpu).Microseconds())/1000/seconds, "cpu-ms/s")
		b.ReportMetric(float64(switches2-switches)/seconds, "switches/s")
	}
}

// usage returns the processor time and the context switches of processes so far.
func usage(t testing.TB, ps []*process) (cpu time.Duration, switches int) {
	t.Helper()
	for _, p := range ps {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			stat, err := os.ReadFile(task + "/schedstat")
			if err != nil {
				t.Fatal(err)
			}
			cpu += parseNow(t, strings.Fields(string(stat))[0])
			status, err := os.ReadFile(task + "/status")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(status)) {
				if key, value, _ := strings.Cut(line, ":"); strings.HasSuffix(key, "ctxt_switches") {
					n, err := strconv.Atoi(strings.TrimSpace(value))
					if err != nil {
						t.Fatal(err)
					}
					switches += n
				}
			}
		}
	}
	return cpu, switches
}
