package process

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests named B.. and S.. replay failures that were reported of other
// systems, with the behaviour that would have been right. The root module has
// them on simulated time; these are the ones in which a real process, signal or
// file can make a difference.

// long is a TTL that no test waits for: where a takeover happens all the same,
// it did not wait for the expiry.
const long = 10 * time.Minute

// Another holder's record is written over a running leader's. It is lost at its
// next renewal, and whatever it and the one that waits do from then on leaves the
// record as it is, byte for byte.
func TestB02_RecordOverwritten(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(long) // it is asked to renew
	a := f.candidate("a", plan)
	token := a.await("acquired", nil).Token
	a.await("wrote", nil)
	c := f.candidate("c", plan)
	c.await("waiting", nil)
	db, err := openDB(plan.File)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`update tenure_lease set term_id = 'another', token = token + 1, holder = cast('b' as blob), receipt = '0.another',
		renewal = 0, used = '', used_by = ''`); err != nil {
		t.Fatal(err)
	}
	before := f.row()
	a.tell("confirm")
	told := a.await("told", nil)
	if told.Token != token || told.Reason != "superseded" {
		t.Errorf("term %d was told to stop because of %q", told.Token, told.Reason)
	}
	a.await("lost", nil)
	a.await("waiting", func(e event) bool { return e.Token == token+1 })
	if e := a.order("late").Answers; e["renew"] != "superseded" || e["release"] != "superseded" || e["abandon"] != "ok" {
		t.Errorf("late requests came to %v", e)
	}
	a.stop()
	c.stop()
	if after := f.row(); !maps.Equal(after, before) {
		t.Errorf("the record changed from\n%v to\n%v", before, after)
	}
	if n := f.count(func(e event) bool { return e.Kind == "acquired" }); n != 1 {
		t.Errorf("%d grants beside the record's holder", n-1)
	}
	f.stints()
}

// Only the record is deleted, under a leader, while another candidate waits: the
// first job has returned before the next begins, whoever wins, and the token
// rises although the record that had it is gone.
func TestB05_RecordRemoved(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(9 * time.Second)
	a := f.candidate("a", plan)
	token := a.await("acquired", nil).Token
	a.await("wrote", nil)
	b := f.candidate("b", plan)
	b.await("waiting", nil)
	db, err := openDB(plan.File)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("delete from tenure_lease"); err != nil {
		t.Fatal(err)
	}
	a.tell("confirm")
	if told := a.await("told", nil); told.Reason != "record_gone" {
		t.Errorf("told to stop because of %q", told.Reason)
	}
	next, _ := f.await("the next leader", 0, func(e event) bool { return e.Kind == "acquired" && e.Token != token })
	if next.Token <= token {
		t.Errorf("token %d after %d", next.Token, token)
	}
	next.from.await("wrote", func(e event) bool { return e.Token == next.Token })
	a.stop()
	b.stop()
	all := f.stints()
	disjoint(t, all)
	if len(all) < 2 {
		t.Errorf("%d terms, want at least 2", len(all))
	}
}

// A candidate that loses its record and wins again at once runs one job at a
// time, each under a token of its own.
func TestB08_LoseAndWinAgain(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(2 * time.Second)
	plan.Linger = 5 * time.Second // longer than the removed record is waited out
	a := f.candidate("a", plan)
	db, err := openDB(f.path("lease.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const rounds = 2
	for n := 0; n < rounds; {
		token := a.await("acquired", nil).Token
		if _, err := db.Exec("delete from tenure_lease"); err != nil {
			t.Fatal(err)
		}
		switch e := a.await("told", nil); {
		case e.Token != token:
			t.Errorf("term %d was told to stop, want %d", e.Token, token)
		case e.Reason == "record_gone":
			n++
		case e.Reason != "expired": // the machine was too slow to notice
			t.Errorf("term %d was told to stop because of %q", token, e.Reason)
		}
	}
	a.await("acquired", nil)
	a.stop()
	all := f.stints()
	disjoint(t, all)
	if len(all) <= rounds {
		t.Errorf("%d terms, want more than %d", len(all), rounds)
	}
}

// A leader that is told to end goes on renewing until its job has, releases then
// and not before, and its successor need not wait for the expiry.
func TestB09_DrainsBeforeRelease(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(2 * time.Second)
	plan.Linger = 5 * time.Second // more than two TTLs
	a := f.candidate("a", plan)
	a.await("acquired", nil)
	plan.Linger = 0
	b := f.candidate("b", plan)
	b.await("waiting", nil)
	a.stop()
	released := a.await("released", nil)
	if !released.Free {
		t.Errorf("the release failed: %s", released.Error)
	}
	draining := a.await("draining", nil)
	if n := f.count(func(e event) bool { return e.from == a && e.Kind == "renewed" && e.At > draining.At }); n == 0 {
		t.Error("the term was not renewed while its job was ending")
	}
	next := b.await("acquired", nil)
	if ended := a.await("job ended", nil); next.At <= ended.At {
		t.Errorf("the successor began at %v, the job ended at %v", next.At, ended.At)
	}
	b.await("wrote", nil)
	b.stop()
	all := f.stints()
	disjoint(t, all)
	if len(all) != 2 {
		t.Errorf("%d terms, want 2", len(all))
	}
}

// A job that heeds nothing knows how much time it has: its process is gone before
// a successor begins.
func TestB10_GoneBeforeTheLeaseExpires(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(4 * time.Second)
	plan.Margin = time.Second // this machine may be slow to let a process end
	plan.Deaf = true
	plan.Ledger = ""
	a := f.candidate("a", plan)
	a.await("acquired", nil)
	plan.Deaf = false
	b := f.candidate("b", plan)
	b.await("waiting", nil)
	a.order("cut")
	if e := a.await("exit", nil); e.Code != exitTimeUp {
		t.Errorf("exit code %d, want %d", e.Code, exitTimeUp)
	}
	b.await("acquired", nil)
	b.stop()
	all := stints(t, readJournal(t, plan.Journal))
	if len(all) != 2 {
		t.Fatalf("%d terms, want 2: %+v", len(all), all)
	}
	told := a.await("told", nil)
	if all[0].Last <= told.At {
		t.Error("the job heeded its context; it was to ignore it")
	}
	if all[0].Last >= all[1].Begin {
		t.Errorf("overlap: the deaf job worked until %v, its successor began at %v", all[0].Last, all[1].Begin)
	}
}

// However a job ends, another process leads without waiting for the expiry.
func TestB11_JobEnds(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"nil", "error", "panic"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			plan := f.plan(long)
			a := f.candidate("a", plan)
			a.await("acquired", nil)
			a.await("wrote", nil)
			b := f.candidate("b", plan)
			b.await("waiting", nil)
			a.tell("finish " + how)
			ended := a.await("job ended", nil)
			if failed := how != "nil"; failed != (ended.Error != "") {
				t.Errorf("the job's error: %q", ended.Error)
			}
			b.await("wrote", nil)
			if how == "panic" {
				if e := a.await("exit", nil); e.Code != 2 || !strings.Contains(a.stderr.String(), "the job panicked") {
					t.Errorf("exit code %d, standard error:\n%s", e.Code, &a.stderr)
				}
			} else {
				a.stop()
			}
			b.stop()
			disjoint(t, f.stints())
		})
	}
}

// Each candidate that was cut off and lost stands again afterwards.
func TestB12_LosersStandAgain(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(time.Second)
	crowd := []*proc{f.candidate("a", plan), f.candidate("b", plan), f.candidate("c", plan)}
	at := 0
	for range 6 {
		var e event
		e, at = f.await("a leader", at, func(e event) bool { return e.Kind == "acquired" })
		e.from.order("cut")
		_, at = f.await("the next leader", at, func(n event) bool { return n.Kind == "acquired" && n.from != e.from })
		at-- // it is the leader of the next round
		e.from.order("heal")
	}
	// One after the other is left alone with the election.
	for len(crowd) > 0 {
		leader, next := f.await("a leader", at, func(e event) bool { return e.Kind == "acquired" && slices.Contains(crowd, e.from) })
		at = next
		crowd = slices.DeleteFunc(crowd, func(p *proc) bool { return p == leader.from })
		leader.from.stop()
	}
	f.stints()
}

// The file is busy for as long as one try takes, and for as long as two: the term
// goes on.
func TestB13_ShortTroubleIsSurvived(t *testing.T) {
	t.Parallel()
	for name, tries := range map[string]int{"one try": 1, "two tries": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			a := f.candidate("a", f.plan(12*time.Second))
			token := a.await("acquired", nil).Token
			a.await("wrote", nil)
			unlock := f.lock("lease.db")
			for range tries {
				e := a.await("renew failed", nil)
				if !strings.Contains(e.Error, "store busy") && !strings.Contains(e.Error, "has not answered") {
					t.Errorf("a renewal failed with %s", e.Error)
				}
			}
			unlock()
			a.await("renewed", nil)
			a.stop()
			if n := a.count("lost"); n != 0 {
				t.Error("the term was lost")
			}
			if all := f.stints(); len(all) != 1 || all[0].Token != token {
				t.Errorf("terms: %+v, want the one of token %d", all, token)
			}
		})
	}
}

// The lease lies in the job's own file, and the job keeps a transaction open there
// for two TTLs, or, as one that heeds nothing, for five: the term is lost, the
// reason is named, and somebody leads again once the job has committed.
func TestB16_JobHoldsTheLeaseFile(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		name     string
		rollback bool
		ttls     time.Duration
	}{
		{"wal", false, 2},
		{"rollback", true, 2},
		{"wal, for long", false, 5},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			f := newField(t)
			plan := f.plan(ttl)
			plan.Rollback = mode.rollback
			a := f.candidate("a", plan)
			a.await("acquired", nil)
			a.await("wrote", nil)
			b := f.candidate("b", plan)
			b.await("waiting", nil)
			a.skip()
			held := a.order("begin").At
			a.await("renew failed", func(e event) bool {
				return strings.Contains(e.Error, "store busy") && strings.Contains(e.Error, "use a file of its own")
			})
			if told := a.await("told", nil); told.Reason != "expired" {
				t.Errorf("told to stop because of %q", told.Reason)
			}
			b.await("ask failed", func(e event) bool { return e.At-held >= mode.ttls*ttl })
			if n := f.count(func(e event) bool { return e.Kind == "acquired" && e.At > held }); n > 0 {
				t.Errorf("%d grants while the job held the file", n)
			}
			committing := mono()
			a.order("commit")
			next, _ := f.await("a leader", 0, func(e event) bool { return e.Kind == "acquired" && e.At > committing })
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

// A store that cannot be asked starts no job, whether another leads or nobody.
func TestB25_ErrorIsNotAGrant(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(2 * time.Second)
	bad := plan
	bad.File = f.path("text")
	if err := os.WriteFile(bad.File, []byte(strings.Repeat("This is no database.\n", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	if e := f.start("candidate", "other file", bad).await("failed", nil); !strings.Contains(e.Error, "not a SQLite database") {
		t.Errorf("a file that is no database: %s", e.Error)
	}
	bad.File = f.path("missing/missing/lease.db")
	if e := f.start("candidate", "no directory", bad).await("failed", nil); !strings.Contains(e.Error, "make the directory") {
		t.Errorf("a file in a directory that is missing: %s", e.Error)
	}

	a := f.candidate("a", plan)
	a.await("acquired", nil)
	unlock := f.lock("lease.db")
	b := f.candidate("b", plan)
	b.await("ask failed", nil) // while a leads
	a.await("lost", nil)
	a.await("ask failed", nil)
	b.await("ask failed", nil) // while nobody does
	if n := f.count(func(e event) bool { return e.Kind == "acquired" }); n != 1 {
		t.Errorf("%d grants while the file was locked, want none", n-1)
	}
	unlock()
	f.await("a leader", 0, func(e event) bool { return e.Kind == "acquired" && e.Token > 1 })

	// The record turns into something else.
	db, err := openDB(plan.File)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("update tenure_lease set ttl_ns = 'soon', burns = 'none'"); err != nil {
		t.Fatal(err)
	}
	c := f.candidate("c", plan)
	c.await("ask failed", func(e event) bool { return strings.Contains(e.Error, "damaged") })
	for _, p := range []*proc{a, b, c} {
		p.stop()
	}
	if n := c.count("acquired"); n != 0 {
		t.Error("a damaged record was taken for a vacancy")
	}
	f.stints()
}

// A process whose clocks since boot differ by days neither steals a lease nor is
// kept out by it, and a record whose expiry was moved holds nobody up for longer
// than a TTL. When it ends too early, the fence holds.
func TestB28_ClocksDisagree(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(3 * time.Second)
	ahead := []string{"unshare", "--user", "--map-root-user", "--time", "--boottime", "400000", "--monotonic", "400000"}

	a := f.candidate("a", plan)
	a.await("acquired", nil)
	b := f.candidate("b", plan, ahead...)
	b.await("waiting", nil)
	a.skip()
	a.await("renewed", nil)
	a.await("renewed", nil) // b has had the time to steal it
	a.freeze()
	next := b.await("acquired", nil)
	b.await("wrote", nil)
	a.thaw()
	a.await("told", nil)
	a.await("waiting", func(e event) bool { return e.Token == next.Token })
	b.stop()
	a.await("acquired", nil)

	// The store's clock goes back: the expiry lies further ahead than any TTL.
	db, err := openDB(plan.File)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	move := func(by time.Duration) {
		t.Helper()
		if _, err := db.Exec("update tenure_lease set expires_ns = expires_ns + ?", int64(by)); err != nil {
			t.Fatal(err)
		}
	}
	a.kill()
	move(time.Hour)
	c := f.candidate("c", plan)
	c.await("waiting", func(e event) bool { return strings.Contains(e.Error, "a full TTL is waited out") })
	token := c.await("acquired", nil).Token

	// It goes forward: one takeover comes early, and the resource sorts it out.
	c.await("wrote", nil)
	d := f.candidate("d", plan)
	d.await("waiting", nil)
	move(-time.Hour)
	lost := c.await("told", func(e event) bool { return e.Token == token })
	if lost.Reason != "expired" && lost.Reason != "superseded" && lost.Reason != "fenced" {
		t.Errorf("told to stop because of %q", lost.Reason)
	}
	f.await("a leader", 0, func(e event) bool { return e.Kind == "acquired" && e.Token > token })
	c.stop()
	d.stop()
	checkLedger(t, f.path("ledger.db"), terms(t, readJournal(t, plan.Journal)))
}

// A process that is told to end by a signal leaves the election free at once:
// the release does not run on the context that the signal has ended.
func TestS02_ReleaseAfterTheContextEnded(t *testing.T) {
	t.Parallel()
	f := newField(t)
	a := f.candidate("a", f.plan(long))
	a.await("acquired", nil)
	a.await("wrote", nil)
	b := f.candidate("b", f.plan(long))
	b.await("waiting", nil)
	a.stop()
	if e := a.await("released", nil); !e.Free {
		t.Errorf("the election was not freed: %s", e.Error)
	}
	b.await("wrote", nil)
	b.stop()
	if row := f.row(); row["released"] != "1" {
		t.Errorf("the last to leave left it held: %v", row)
	}
	disjoint(t, f.stints())
}

// Everybody is cut off for five TTLs and comes back one by one. Nobody works
// before it has won afresh, and the one that led last has no privilege.
func TestS15_NoPrivilegeAfterAnOutage(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	f := newField(t)
	crowd := make(map[*proc]bool)
	for _, name := range []string{"a", "b", "c"} {
		crowd[f.candidate(name, f.plan(ttl))] = true
	}
	first, _ := f.await("a leader", 0, func(e event) bool { return e.Kind == "acquired" })
	first.from.await("wrote", nil)
	for p := range crowd {
		p.order("cut")
	}
	first.from.await("lost", nil)
	cut := mono()
	for p := range crowd {
		p.await("ask failed", func(e event) bool { return e.At-cut >= 5*ttl })
	}
	at := f.now()
	for p := range crowd {
		if p != first.from {
			p.order("heal")
			won, _ := f.await("the first to come back", at, func(e event) bool { return e.Kind == "acquired" })
			if won.from != p {
				t.Errorf("%s leads, which is cut off", won.from.name)
			}
			break
		}
	}
	for p := range crowd {
		p.order("heal")
	}
	for p := range crowd {
		p.stop()
	}
	f.stints()
}
