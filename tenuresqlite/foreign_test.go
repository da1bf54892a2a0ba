//go:build linux

package tenuresqlite

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
)

const ttl = 10 * time.Second

// TestForeign_Reboot: the record was written before this host started. Nobody
// can know when it was renewed last, so it is waited out from when it was first
// seen.
func TestForeign_Reboot(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{clock: clock.read})
	l := acquire(t, s, claim("a", ttl))
	clock.set(func(c *fakeClock) { c.boot, c.mono = "boot-2", 20*time.Second })

	// Looking adopts nothing.
	for range 2 {
		rec := get(t, s, "a")
		if rec.State != store.Live || rec.Remaining != ttl || !rec.Foreign {
			t.Fatalf("a record of another boot is shown as %+v", rec)
		}
		clock.pass(time.Minute)
	}
	// The first acquire does, and everybody waits from then on.
	other := open(t, path, &Options{clock: clock.read})
	for _, s := range []*Store{s, other} {
		held := heldBy(t, s, claim("a", ttl))
		if !held.Foreign || held.Remaining <= 0 || held.Remaining > ttl || held.Token != l.Token {
			t.Fatalf("acquiring what another boot held: %+v", held)
		}
		clock.pass(ttl/2 - 1)
	}
	if rec := get(t, s, "a"); rec.State != store.Live || rec.Remaining != 2 || !rec.Foreign {
		t.Fatalf("the adopted record is shown as %+v", rec)
	}
	clock.pass(2)
	next := acquire(t, other, claim("a", ttl))
	if next.Token != l.Token+1 {
		t.Errorf("token %d after %d", next.Token, l.Token)
	}
	if rec := get(t, s, "a"); rec.Foreign {
		t.Error("a record of this boot is called foreign")
	}
}

// TestForeign_HolderLives: two machines, or two containers with clocks of their
// own, share the file in spite of all warnings. Whoever renews keeps its lease.
func TestForeign_HolderLives(t *testing.T) {
	here, there, path := newFakeClock(), newFakeClock(), file(t)
	there.set(func(c *fakeClock) { c.boot, c.mono = "boot-elsewhere", 1000*time.Hour })
	holder, waiter := open(t, path, &Options{clock: here.read}), open(t, path, &Options{clock: there.read})
	pass := func(d time.Duration) { here.pass(d); there.pass(d) }

	l := acquire(t, holder, claim("a", ttl))
	for range 5 {
		pass(ttl - 1)
		if held := heldBy(t, waiter, claim("a", ttl)); !held.Foreign || held.Remaining != ttl {
			t.Fatalf("a record that was just renewed under another clock: %+v", held)
		}
		l = renewed(t, holder, l)
		if rec := get(t, holder, "a"); rec.Foreign || rec.Remaining != ttl {
			t.Fatalf("the holder's own record after a renewal: %+v", rec)
		}
		if held := heldBy(t, holder, claim("a", ttl)); held.Foreign {
			t.Fatalf("the holder's own record: %+v", held)
		}
	}
	// Then it dies.
	heldBy(t, waiter, claim("a", ttl))
	pass(ttl)
	acquire(t, waiter, claim("a", ttl))
	if _, err := holder.Renew(context.Background(), l, attempt()); !errors.Is(err, store.ErrSuperseded) {
		t.Errorf("renewing what was taken over: %v", err)
	}
}

// TestForeign_HolderRenewsAfterAdoption: the row was adopted, but nobody has
// acquired it; its holder may go on, with the same receipt.
func TestForeign_HolderRenewsAfterAdoption(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{clock: clock.read})
	l := acquire(t, s, claim("a", ttl))
	clock.set(func(c *fakeClock) { c.boot = "boot-2" })
	heldBy(t, s, claim("a", ttl))
	clock.pass(ttl / 2)
	l = renewed(t, s, l)
	if held := heldBy(t, s, claim("a", ttl)); held.Foreign || held.Remaining != ttl {
		t.Errorf("after the holder renewed: %+v", held)
	}
	// And release, under yet another clock.
	clock.set(func(c *fakeClock) { c.boot = "boot-3" })
	if err := s.Release(context.Background(), l, ""); err != nil {
		t.Fatal(err)
	}
	if rec := get(t, s, "a"); rec.State != store.Vacant || rec.Foreign {
		t.Errorf("a released record is %+v", rec)
	}
	acquire(t, s, claim("a", ttl))
}

// TestForeign_Released: a record that nobody holds is free under any clock.
func TestForeign_Released(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{clock: clock.read})
	if err := s.Release(context.Background(), acquire(t, s, claim("a", ttl)), ""); err != nil {
		t.Fatal(err)
	}
	clock.set(func(c *fakeClock) { c.boot = "boot-2" })
	if l := acquire(t, s, claim("a", ttl)); l.Token != 2 {
		t.Errorf("token %d", l.Token)
	}
}

// TestForeign_Evicted: an operator's eviction works on a foreign record too.
func TestForeign_Evicted(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{clock: clock.read})
	acquire(t, s, claim("a", ttl))
	clock.set(func(c *fakeClock) { c.boot, c.mono = "boot-2", time.Second })
	rec, err := s.Evict(context.Background(), store.Eviction{Name: "a", Reason: "test"})
	if err != nil || !rec.Foreign || rec.Remaining != ttl {
		t.Fatalf("evicting: %+v, %v", rec, err)
	}
	if _, err := s.Evict(context.Background(), store.Eviction{Name: "a", Reason: "test", Now: true}); err != nil {
		t.Fatal(err)
	}
	acquire(t, s, claim("a", ttl))
}

// TestForeign_ClockWentBack: the machine was restored from a snapshot beside a
// disk that is newer, so that the expiry lies further ahead than a TTL.
func TestForeign_ClockWentBack(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{clock: clock.read})
	acquire(t, s, claim("a", ttl))
	clock.set(func(c *fakeClock) { c.mono -= 30 * time.Minute })
	if held := heldBy(t, s, claim("a", ttl)); !held.Foreign || held.Remaining != ttl {
		t.Errorf("an expiry half an hour ahead: %+v", held)
	}
	clock.pass(ttl)
	acquire(t, s, claim("a", ttl))
}

// TestForeign_NotWhileRenewed: the holder renews between a looker's reading of
// the clock and whatever comes next. The looker sees no more time than the TTL,
// and no other clock.
func TestForeign_NotWhileRenewed(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	l := acquire(t, s, claim("a", time.Minute))
	var armed atomic.Bool
	looking := open(t, path, &Options{clock: func() (reading, error) {
		r, err := hostClock()
		if armed.CompareAndSwap(true, false) {
			l = renewed(t, s, l)
		}
		return r, err
	}})
	for range 3 {
		armed.Store(true)
		if rec := get(t, looking, "a"); rec.Foreign || rec.Remaining > rec.TTL {
			t.Errorf("%+v", rec)
		}
		armed.Store(true)
		for rec, err := range looking.List(t.Context()) {
			if err != nil || rec.Foreign {
				t.Errorf("%+v, %v", rec, err)
			}
		}
		armed.Store(true)
		if held := heldBy(t, looking, claim("a", time.Minute)); held.Foreign || held.Remaining > time.Minute {
			t.Errorf("%+v", held)
		}
	}
	if armed.Load() || l.Renewal != 9 {
		t.Errorf("%d renewals came in between", l.Renewal)
	}
}

// TestForeign_Copies: the file is copied while somebody leads. In no copy does
// anybody lead before a full TTL has passed, by the real clock; the original
// goes on. The copies lack the write-ahead log, as a careless backup does.
func TestForeign_Copies(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal})
		const ttl = 2 * time.Second
		l := acquire(t, s, claim("a", ttl))
		settled(s)
		copies := make([]string, 10)
		for i := range copies {
			copies[i] = filepath.Join(t.TempDir(), fmt.Sprint(i))
			if out, err := exec.Command("cp", "-p", path, copies[i]).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		made := now(t)
		var copying sync.WaitGroup
		for _, copied := range copies {
			c := open(t, copied, nil)
			rec := get(t, c, "a")
			if rec.State != store.Live || !rec.Foreign || rec.Remaining != ttl || rec.Token != l.Token {
				t.Errorf("in a copy the record is %+v", rec)
			}
			copying.Go(func() {
				got, err := acquireWhenFree(t, c, claim("a", ttl), true)
				if waited := now(t) - made; err != nil || waited < ttl || got.Token != l.Token+1 {
					t.Errorf("in a copy, %v after it was made: %+v, %v", waited, got, err)
				}
			})
		}
		copying.Wait()
	})
}

// acquireWhenFree acquires as soon as the store lets it.
func acquireWhenFree(t testing.TB, s *Store, c store.Claim, foreign bool) (store.Lease, error) {
	for {
		l, err := s.Acquire(context.Background(), c)
		var held *store.HeldError
		if !errors.As(err, &held) {
			return l, err
		}
		if held.Foreign != foreign {
			t.Errorf("want foreign %t: %v", foreign, held)
		}
		time.Sleep(held.Remaining)
	}
}

// settled waits until a store has done what it does after an answer.
func settled(s *Store) {
	s.writing.slot <- struct{}{}
	<-s.writing.slot
}

func now(t testing.TB) time.Duration {
	t.Helper()
	r, err := hostClock()
	if err != nil {
		t.Fatal(err)
	}
	return r.now.Mono
}

// TestTimeNamespace: a process in a time namespace of its own reads the same
// clock as the host.
func TestTimeNamespace(t *testing.T) {
	p := startAs(t, func(c *exec.Cmd) {
		c.Args = append([]string{"unshare", "--user", "--map-root-user", "--time", "--boottime", "1000000", "--fork", c.Path}, c.Args[1:]...)
		c.Path, c.Err = exec.LookPath("unshare")
	}, "clock")
	before, err := hostClock()
	if err != nil {
		t.Fatal(err)
	}
	mono, boot, _ := strings.Cut(p.line(), " ")
	after := now(t)
	got, err := strconv.ParseInt(mono, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if boot != before.boot {
		t.Errorf("boot id %q, here it is %q", boot, before.boot)
	}
	// The process read its clock after it was started and before its line came.
	if d := time.Duration(got); d > after || d < after-deadline {
		t.Errorf("the host's clock in another time namespace is %v, here it was %v later", d, after)
	}
}

// TestB28_WallClockSteps: steps of the wall clock decide nothing.
func TestB28_WallClockSteps(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	fast := newFakeClock()
	fast.set(func(c *fakeClock) { c.wall = c.wall.Add(10 * time.Minute) })
	s, ahead := open(t, path, &Options{clock: clock.read}), open(t, path, &Options{clock: fast.read})
	pass := func(d time.Duration) { clock.pass(d); fast.pass(d) }

	l := acquire(t, s, claim("a", ttl))
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour, 24 * 365 * 100 * time.Hour, -24 * 365 * 60 * time.Hour} {
		clock.set(func(c *fakeClock) { c.wall = c.wall.Add(step) })
		pass(ttl / 3)
		for _, s := range []*Store{s, ahead} {
			if held := heldBy(t, s, claim("a", ttl)); held.Remaining != ttl-ttl/3 || held.Foreign {
				t.Fatalf("after a step of %v: %+v", step, held)
			}
		}
		l = renewed(t, s, l)
	}
	pass(ttl)
	acquire(t, ahead, claim("a", ttl))
}

// TestB30_TimesAreNumbers: whoever runs under whatever time zone sees the same
// time left, and there is no time in the file that a zone could move.
func TestB30_TimesAreNumbers(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	acquire(t, s, claim("a", time.Hour))
	for _, column := range []string{"ttl_ns", "expires_ns", "acquired_ns", "renewed_ns"} {
		if got := ask[string](t, path, "select typeof("+column+") from tenure_lease"); got != "integer" {
			t.Errorf("%s is %s", column, got)
		}
	}
	for _, zone := range []string{"America/New_York", "Asia/Kolkata", "UTC"} {
		p := startAs(t, func(c *exec.Cmd) { c.Env = append(c.Env, "TZ="+zone) }, "remaining", path, "a")
		got, err := time.ParseDuration(p.line())
		if err != nil {
			t.Fatal(err)
		}
		if here := get(t, s, "a").Remaining; got < here || got > here+deadline {
			t.Errorf("under %s %v are left, here %v", zone, got, here)
		}
	}
}
