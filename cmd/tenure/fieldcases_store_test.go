package main

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// The field cases in which something happens to the store, or to what is in it,
// replayed with the command as users run it.

// sql runs statements on the place's store, as an operator would.
func (p *place) sql(statements string) string {
	p.t.Helper()
	out, err := exec.Command("sqlite3", "-quote", "-cmd", ".timeout 30000", p.path("leases.db"), statements).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v: %s", statements, err, out)
	}
	return strings.TrimSpace(string(out))
}

// row is the election's record, every column of it.
func (p *place) row() string {
	p.t.Helper()
	return p.sql("select * from tenure_lease")
}

// lock keeps everybody else from writing to the store, as long as a dead network
// would keep them from asking one, until unlock is called. It returns the time by
// the journal's clock.
func (p *place) lock() (at float64, unlock func()) {
	p.t.Helper()
	_ = os.Remove(p.path("unlock"))
	c := exec.Command("sqlite3", "-cmd", ".timeout 30000", p.path("leases.db"),
		"begin exclusive;", ".shell touch locked; while ! test -e unlock; do sleep 0.02; done", "rollback;")
	c.Dir, c.Env = p.dir, p.env
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := false
	unlock = func() {
		if done {
			return
		}
		done = true
		if err := os.WriteFile(p.path("unlock"), nil, 0o600); err != nil {
			p.t.Error(err)
		}
		c.Wait()
		_ = os.Remove(p.path("locked"))
	}
	p.t.Cleanup(unlock)
	p.there("locked")
	return uptime(p.t), unlock
}

func uptime(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	at, err := strconv.ParseFloat(first, 64)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// there waits for a file.
func (p *place) there(name string) {
	p.t.Helper()
	p.until("the file "+name, func() bool { _, err := os.Stat(p.path(name)); return err == nil })
}

// last returns who's last line in the journal.
func (p *place) last(who string) (last tick) {
	for _, tk := range p.journal() {
		if tk.who == who {
			last = tk
		}
	}
	return last
}

// cutOff plays a leader that cannot reach its store any more, as B01 and B10
// tell it: its job has ended before the lease can have expired, without an
// answer of the store's; the reason is named; and nobody else has begun by then.
func cutOff(t *testing.T, trap string) {
	const ttl = 9.0
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "9s"}, journalJob("a", trap)...)...)
	p.working("a")
	b := p.start(append([]string{"run", "job", "--ttl", "9s"}, journalJob("b")...)...)
	b.says("waiting: another leads")
	at, unlock := p.lock()
	a.ends(exitLost) // while the store is still away
	if end := p.last("a").at; end >= at+ttl {
		t.Errorf("a worked %.2f s after the store was gone, its lease was of %v s", end-at, ttl)
	}
	for _, want := range []string{"leadership lost", "reason=expired", "store busy"} {
		if !strings.Contains(a.log.String(), want) {
			t.Errorf("a does not say %q:\n%s", want, a.log)
		}
	}
	if !strings.Contains(a.log.String(), "a renewal failed; trying again") {
		t.Errorf("a gave no warning before:\n%s", a.log)
	}
	unlock()
	p.working("b")
	p.noOverlap()
	b.signal(unix.SIGTERM)
	b.ends(143)
	p.nothingRuns()
}

func TestB01_CutOff(t *testing.T) { cutOff(t, "true") }

// B10 as it was reported: the wrapper is well and cut off, the job ignores TERM.
func TestB10_CutOffAndDeaf(t *testing.T) { cutOff(t, `trap "" TERM`) }

// B02: another holder's record is written over a running leader's. It ends as
// lost, and what it does at its end changes nothing.
func TestB02_RecordOverwritten(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "6s"}, journalJob("a")...)...)
	p.working("a")
	p.sql(`update tenure_lease set term_id = 'another', token = token + 1, holder = cast('another' as blob), receipt = '0.another',
		renewal = 0, used = '', used_by = '', ttl_ns = 600000000000, expires_ns = expires_ns + 594000000000`)
	before := p.row()
	a.ends(exitLost)
	if !strings.Contains(a.log.String(), "reason=superseded") {
		t.Errorf("the reason is not named:\n%s", a.log)
	}
	p.start("run", "job", "--no-wait", "--", "touch", "ran").ends(exitHeld)
	if after := p.row(); after != before {
		t.Errorf("the record changed from\n%s to\n%s", before, after)
	}
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("a third candidate got in")
	}
	p.nothingRuns()
}

// B05: the record is deleted under a leader, while another waits.
func TestB05_RecordRemoved(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "6s"}, journalJob("a")...)...)
	p.working("a")
	b := p.start(append([]string{"run", "job", "--ttl", "6s"}, journalJob("b")...)...)
	b.says("waiting: another leads")
	p.sql("delete from tenure_lease")
	a.ends(exitLost)
	if !strings.Contains(a.log.String(), "reason=record_gone") {
		t.Errorf("the reason is not named:\n%s", a.log)
	}
	p.working("b")
	p.noOverlap()
	if tk := p.last("b"); tk.token != 2 {
		t.Errorf("b has token %d, want 2 although the record is gone that had 1", tk.token)
	}
	b.signal(unix.SIGTERM)
	b.ends(143)
	p.nothingRuns()
}

// B12: three that were told to --keep are cut off for three lease times, again
// and again. Nobody works meanwhile, somebody leads afterwards under a token of
// its own, and each is still a contender at the end.
func TestB12_LosersStandAgain(t *testing.T) {
	p := newPlace(t)
	var all []*candidate
	for _, who := range []string{"a", "b", "c"} {
		all = append(all, p.start(append([]string{"run", "job", "--keep", "--ttl", "2s", "--holder", who}, journalJob(who)...)...))
	}
	defer func(all []*candidate) {
		for _, c := range all {
			if t.Failed() {
				t.Logf("%q said:\n%s", c.cmd.Args, c.log)
			}
		}
	}(slices.Clone(all))
	leads := func() tick {
		j := p.journal()
		if len(j) == 0 {
			return tick{}
		}
		return j[len(j)-1]
	}
	from := 0
	for range 2 {
		p.until("a leader", func() bool { return leads().token > from })
		from = leads().token
		at, unlock := p.lock()
		p.until("three lease times without a store", func() bool { return uptime(t) >= at+6 })
		if end := leads(); end.at >= at+2 || end.token != from {
			t.Errorf("%s worked with token %d until %.2f s after the store was gone", end.who, end.token, end.at-at)
		}
		unlock()
	}
	p.until("a leader afterwards", func() bool { return leads().token > from })
	p.noOverlap()
	// One after the other is left alone with the election.
	for len(all) > 0 {
		i := -1
		p.until("one of them at work", func() bool {
			i = slices.IndexFunc(all, func(c *candidate) bool { return slices.Contains(c.cmd.Args, leads().who) })
			return i >= 0
		})
		all[i].signal(unix.SIGTERM)
		all[i].ends(143)
		all = slices.Delete(all, i, i+1)
	}
	p.noOverlap()
	p.nothingRuns()
}

// lastToken is the highest token that the journal has.
func (p *place) lastToken() (token int) {
	for _, tk := range p.journal() {
		token = max(token, tk.token)
	}
	return token
}

// B13: the store is away for as long as two tries take. The job goes on.
func TestB13_ShortTroubleIsSurvived(t *testing.T) {
	p := newPlace(t)
	a := p.start(append([]string{"run", "job", "--ttl", "30s", "--log-level", "debug"}, journalJob("a")...)...)
	p.working("a")
	_, unlock := p.lock()
	a.says("a renewal failed; trying again")
	unlock()
	a.says("renewed election=job")
	a.signal(unix.SIGTERM)
	a.ends(143)
	if strings.Contains(a.log.String(), "leadership lost") || p.lastToken() != 1 {
		t.Errorf("the term was lost, or there are %d:\n%s", p.lastToken(), a.log)
	}
}

// B16: the job writes to the lease's own file for longer than the lease stands.
// The term is lost, the job ends with it, and so does the lock that nobody could
// pass.
func TestB16_JobHoldsTheLeaseFile(t *testing.T) {
	p := newPlace(t)
	a := p.start("run", "job", "--ttl", "4s", "--", "sqlite3", "-cmd", ".timeout 30000", "leases.db",
		"create table orders (n); begin immediate; insert into orders values (1);", ".shell touch writing; sleep 600")
	p.there("writing")
	b := p.start(append([]string{"run", "job", "--ttl", "4s"}, journalJob("b")...)...)
	a.ends(exitLost)
	for _, want := range []string{"reason=expired", "store busy", "(sqlite3) has been writing to", "use a file of its own for the lease"} {
		if !strings.Contains(a.log.String(), want) {
			t.Errorf("a does not say %q:\n%s", want, a.log)
		}
	}
	p.working("b")
	b.signal(unix.SIGTERM)
	b.ends(143)
	p.nothingRuns()
}

// B28: a candidate whose clocks are days ahead neither steals the lease nor is
// kept out by one.
func TestB28_ClocksDisagree(t *testing.T) {
	p := newPlace(t)
	ahead := []string{"unshare", "--user", "--map-root-user", "--time", "--boottime", "400000", "--monotonic", "400000", "--fork"}
	a := p.start(append([]string{"run", "job", "--ttl", "6s", "--log-level", "debug"}, journalJob("a")...)...)
	p.working("a")
	b := p.startUnder(ahead, append([]string{"run", "job", "--ttl", "6s", "--log-level", "debug"}, journalJob("b")...)...)
	b.says("waiting: another leads")
	p.until("two renewals", func() bool { return strings.Count(a.log.String(), "renewed") >= 2 })
	if tk := p.last("b"); tk.token != 0 {
		t.Fatalf("b stole the lease, token %d", tk.token)
	}
	a.signal(unix.SIGKILL)
	a.ends(137)
	p.working("b")
	c := p.start("run", "job", "--no-wait", "--", "touch", "ran")
	c.ends(exitHeld)
	for _, pid := range p.processes() {
		if data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil && strings.HasPrefix(string(data), filepath.Join(p.dir, "bin", "tenure")+"\x00run\x00") {
			unix.Kill(pid, unix.SIGTERM)
		}
	}
	b.ends(143)
	p.start("run", "job", "--no-wait", "--", "touch", "ran").ends(0)
	p.nothingRuns()
}

// B31: a lifetime is granted as it was asked for, or refused with the flag and
// what is allowed.
func TestB31_Lifetimes(t *testing.T) {
	p := newPlace(t)
	for ttl, ms := range map[string]string{"1s": "1000", "1500ms": "1500", "9s": "9000", "24h": "86400000"} {
		// On a slow machine a short lease may be over before its command begins; the
		// record has the lifetime all the same.
		<-p.start("run", "job", "--ttl", ttl, "--", "true").code
		c := p.start("status", "job", "--json")
		c.ends(0)
		if want := `"ttl_ms":"` + ms + `"`; !strings.Contains(c.log.String(), want) {
			t.Errorf("--ttl %s: no %s in\n%s", ttl, want, c.log)
		}
	}
	for _, ttl := range []string{"-1ns", "0", "1ns", "400ms", "999ms", "2147483648s", "9007199254740992ms", "9223372036854775807ns", "-9223372036854775808ns", "1.5"} {
		c := p.start("run", "job", "--ttl="+ttl, "--", "touch", "ran")
		c.ends(exitUsage)
		if text := c.log.String(); !strings.Contains(text, "ttl") || strings.Contains(text, "goroutine") {
			t.Errorf("--ttl=%s: %s", ttl, text)
		}
	}
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("the job ran with a lifetime that was refused")
	}
}

// B32: each name is a lock of its own, and the same one for the command and the
// library.
func TestB32_Names(t *testing.T) {
	p := newPlace(t)
	s, err := tenuresqlite.Open(t.Context(), p.path("leases.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, name := range []string{
		"jobs", "jobs/a", "jobs/a/b", "jobs//a", "/jobs", "jobs/", "jobs%2Fa", "Jobs", "jobs ", " jobs", "..", "café", "cafe\u0301", "лок", "😀",
		"a:b", "{x}y", "jobsx", "it's", `"q"`, "$HOME", strings.Repeat("x", 199), strings.Repeat("x", 200), "1", "01",
	} {
		want := exitHeld
		if i%2 == 0 { // every second name is held by the library
			c := store.Claim{Name: name, Holder: "the library", Attempt: store.Attempt(rand.Text()), TTL: time.Hour}
			if _, err := s.Acquire(context.Background(), c); err != nil {
				t.Fatalf("%q: %v", name, err)
			}
		} else {
			want = 0
		}
		c := p.start("run", "--no-wait", name, "--", "sh", "-c", `printf %s "$TENURE_NAME"`)
		c.ends(want)
		if got := c.log.String(); want == 0 && !strings.Contains(got, name) {
			t.Errorf("the command is told another name than %q:\n%s", name, got)
		}
		if rec, err := s.Get(t.Context(), name); err != nil || (rec.State == store.Live) != (want == exitHeld) || rec.Token != 1 {
			t.Errorf("%q: %+v, %v", name, rec, err)
		}
	}
	for _, name := range []string{"", "a\nb", "a\x1bb", strings.Repeat("x", 201), strings.Repeat("x", 256), strings.Repeat("x", 1024), "\xff"} {
		c := p.start("run", "--no-wait", name, "--", "touch", "ran")
		c.ends(exitUsage)
		if !strings.Contains(c.log.String(), "1 to 200 bytes") {
			t.Errorf("%q: %s", name, c.log)
		}
	}
	c := p.start("run", "--no-wait", "--holder", strings.Repeat("h", 10_000), "job", "--", "touch", "ran")
	c.ends(exitUsage)
	if !strings.Contains(c.log.String(), "holder") {
		t.Errorf("a holder of 10 kB: %s", c.log)
	}
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("the job ran under a name that was refused")
	}
}

// S03: runs that ended in every way leave no process, socket or file.
func TestS03_NothingLeftBehind(t *testing.T) {
	p := newPlace(t)
	tmp := p.path("tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "TMPDIR="+tmp, "XDG_RUNTIME_DIR=")
	for range 3 {
		p.start("run", "job", "--stall-after", "1m", "--marker", "marker", "--", "true").ends(0)
		p.start("run", "job", "--marker", "marker", "--", "false").ends(1)
		p.start("run", "job", "--", "./no-such-program").ends(127)
		a := p.start("run", "job", "--ttl", "4s", "--marker", "marker", "--", "sh", "-c", "echo up >up; exec sleep 600")
		p.there("up")
		p.start("run", "job", "--no-wait", "--", "true").ends(exitHeld)
		p.start("run", "job", "--wait", "1s", "--", "true").ends(exitHeld)
		p.start("evict", "job", "--reason", "test").ends(0)
		a.ends(exitLost)
		os.Remove(p.path("up"))
	}
	p.nothingRuns()
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	left, err := os.ReadDir(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if !slices.Contains([]string{"bin", "tmp", "leases.db"}, f.Name()) {
			t.Errorf("left behind: %s", f.Name())
		}
	}
}

// S04: the largest token is exact and works, and after it the election is
// refused rather than begun anew.
func TestS04_LargestToken(t *testing.T) {
	p := newPlace(t)
	p.start("run", "job", "--", "true").ends(0)
	const token = "4611686018427387904" // 2^62
	p.sql("update tenure_lease set token = " + token + " - 1")
	c := p.start("run", "job", "--", "sh", "-c", `echo "token $TENURE_TOKEN"; tenure check --json`)
	c.ends(0)
	for _, want := range []string{"token " + token + "\n", `"token":"` + token + `"`} {
		if !strings.Contains(c.log.String(), want) {
			t.Errorf("no %q in\n%s", want, c.log)
		}
	}
	for _, wait := range []string{"--no-wait", "--wait=1m"} {
		c = p.start("run", "job", wait, "--", "touch", "ran")
		c.ends(exitUnreachable)
		if !strings.Contains(c.log.String(), "out of tokens") || !strings.Contains(c.log.String(), token) {
			t.Errorf("%s: the reason is not said:\n%s", wait, c.log)
		}
	}
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("the job ran without a token")
	}
}

// S12: a newer version has been at the store, before this one begins or while it
// leads. This one refuses, and says so.
func TestS12_NewerFormat(t *testing.T) {
	for what, change := range map[string][2]string{
		"tables": {"update tenure_meta set value = value + 1", "newer Tenure"},
		"record": {"update tenure_lease set format = format + 1", "newer format"},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			a := p.start(append([]string{"run", "job", "--ttl", "4s"}, journalJob("a")...)...)
			p.working("a")
			p.sql(change[0])
			before := p.row()
			a.ends(exitLost)
			if !strings.Contains(a.log.String(), change[1]) {
				t.Errorf("a does not say why:\n%s", a.log)
			}
			for _, flags := range [][]string{{"--no-wait"}, {"--wait=1m"}, {}} {
				b := p.start(slices.Concat([]string{"run", "job"}, flags, []string{"--", "touch", "ran"})...)
				b.ends(exitUnreachable)
				if !strings.Contains(b.log.String(), change[1]) || !strings.Contains(b.log.String(), "upgrade") {
					t.Errorf("b does not say why, and what to do:\n%s", b.log)
				}
			}
			if _, err := os.Stat(p.path("ran")); err == nil {
				t.Error("a second leader began beside the newer record")
			}
			if after := p.row(); after != before {
				t.Errorf("the newer record was changed from\n%s to\n%s", before, after)
			}
		})
	}
}

// S18: what the flags say must leave time for three tries and for the killing.
func TestS18_DurationsMustAddUp(t *testing.T) {
	p := newPlace(t)
	for kill, want := range map[string]int{"9s": exitUsage, "8100ms": exitUsage, "3s": exitUsage, "-1s": exitUsage, "2900ms": 0} {
		c := p.start("run", "job", "--ttl", "9s", "--kill-after="+kill, "--", "true")
		c.ends(want)
		if text := c.log.String(); want == exitUsage && (!strings.Contains(text, "--kill-after") || !strings.Contains(text, kill[:1]) || !strings.Contains(text, "allowed")) {
			t.Errorf("--kill-after=%s: %s", kill, text)
		}
	}
}
