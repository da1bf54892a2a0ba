package postgres

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

func init() { roles["tethered-holder"] = tetheredHolderRole }

const (
	urlEnv  = "TENURE_TEST_URL"
	nameEnv = "TENURE_TEST_NAME"
)

// tethered is a claim on an election that is taken over when its holder is
// disconnected.
func tethered(name string) store.Claim {
	c := claimOf(name)
	c.FencedOnly, c.Takeover = true, store.OnDisconnect
	return c
}

// tetheredHolderRole acquires an election, says so, and holds it until it is
// killed.
func tetheredHolderRole() int {
	s, err := tenurepg.Open(context.Background(), os.Getenv(urlEnv), nil)
	if err == nil {
		c := tethered(os.Getenv(nameEnv))
		c.Attempt = "holder-process"
		_, err = s.Acquire(context.Background(), c)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("held")
	select {}
}

// startHolder starts a process that holds an election for an hour.
func startHolder(t *testing.T, url, name string) *os.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=tethered-holder", urlEnv+"="+url, nameEnv+"="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	said := make([]byte, 500)
	n, err := out.Read(said)
	if string(said[:n]) != "held\n" {
		t.Fatalf("the holder said %q, %v", said[:n], err)
	}
	return cmd.Process
}

func watch(t *testing.T, s *tenurepg.Store, name string) <-chan store.Hint {
	t.Helper()
	hints, err := s.Watch(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return hints
}

// locks counts advisory locks of a class.
func locks(t *testing.T, c *pgx.Conn, class int, granted bool) int {
	t.Helper()
	return value[int](t, c, `select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and objsubid = 2 and granted = $2
		and database = (select oid from pg_database where datname = current_database())`, class, granted)
}

const (
	wireClass  = 1413828177
	queueClass = 1413828178
)

// TestTripwire: when the holder's process is killed, a follower is told at once and
// takes an hour's lease without waiting for its end. Only one follower waits on the
// wire.
func TestTripwire(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	p := startHolder(t, d.URL(), "a")
	if n := locks(t, admin, wireClass, true); n != 1 {
		t.Fatalf("the holder has %d wires", n)
	}
	first, second := open(t, d.URL(), nil), open(t, d.URL(), nil)
	hints, others := watch(t, first, "a"), watch(t, second, "a")
	eventually(t, "a follower to wait on the wire", func() bool { return locks(t, admin, wireClass, false) == 1 })

	// A follower that does not ask for it takes nothing, connected or not.
	_, err := first.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrHeld)
	_, err = first.Acquire(t.Context(), tethered("a"))
	refused(t, err, store.ErrHeld)

	began := time.Now()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	winner := first
	select {
	case <-hints:
	case <-others:
		winner = second
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for a hint")
	}
	told := time.Since(began)
	_, err = winner.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrHeld)
	l, err := winner.Acquire(t.Context(), tethered("a"))
	if err != nil || l.Token != 2 {
		t.Fatalf("got %+v, %v", l, err)
	}
	t.Logf("killed, told after %v, taken after %v", told, time.Since(began))
	entries, err := winner.History(t.Context(), "a", 2)
	if err != nil || len(entries) != 2 || entries[1].What != "expired" || entries[1].Detail != "its connection was gone" {
		t.Errorf("the history says %+v, %v", entries, err)
	}
	if n := locks(t, admin, wireClass, true); n != 1 {
		t.Errorf("the new holder has %d wires", n)
	}
	release(t, winner, l)
	if n := locks(t, admin, wireClass, true); n != 0 {
		t.Errorf("%d wires are left after the release", n)
	}
}

// TestTripwireOfStoppedProcess: a process that stands still keeps its connection,
// so it is not overrun.
func TestTripwireOfStoppedProcess(t *testing.T) {
	d := schema(t)
	p := startHolder(t, d.URL(), "a")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, d.URL(), nil).Acquire(t.Context(), tethered("a"))
	refused(t, err, store.ErrHeld)
}

// TestTripwireReconnect: a holder whose connection breaks has a wire again after
// its next renewal, unless somebody was faster.
func TestTripwireReconnect(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	s, other := open(t, d.URL("application_name=holder"), nil), open(t, d.URL(), nil)
	l, m := acquire(t, s, tethered("a")), acquire(t, s, tethered("b"))
	// Two electors of one process are not each other's followers.
	_, err := s.Acquire(t.Context(), tethered("a"))
	refused(t, err, store.ErrHeld)

	endSessions(t, admin, "holder")
	if n := locks(t, admin, wireClass, true); n != 0 {
		t.Fatalf("%d wires outlived their connection", n)
	}
	for _, r := range s.RenewBatch(t.Context(), []store.Renewal{{Lease: l, Attempt: attempt()}, {Lease: m, Attempt: attempt()}}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if r.Lease.Name == "a" {
			l = r.Lease
		} else {
			m = r.Lease
		}
	}
	if n := locks(t, admin, wireClass, true); n != 2 {
		t.Fatalf("after the renewal there are %d wires", n)
	}
	l = renew(t, s, l) // takes no second lock on the same session
	_, err = other.Acquire(t.Context(), tethered("a"))
	refused(t, err, store.ErrHeld)
	release(t, s, l)
	if n := locks(t, admin, wireClass, true); n != 1 {
		t.Errorf("after a release there are %d wires", n)
	}

	endSessions(t, admin, "holder")
	taken := acquire(t, other, tethered("b"))
	late := attempt()
	_, err = s.Renew(t.Context(), m, late)
	if store.OutcomeUnknown(err) { // the connection broke under it
		_, err = s.Renew(t.Context(), m, late)
	}
	refused(t, err, store.ErrSuperseded)
	eventually(t, "one wire to be left", func() bool { return locks(t, admin, wireClass, true) == 1 })
	release(t, other, taken)
}

// TestTripwireLetsMaintenancePass: CREATE INDEX CONCURRENTLY waits for whoever has
// an old snapshot; a follower on a wire has one for a short while only.
func TestTripwireLetsMaintenancePass(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	s, follower := open(t, d.URL(), nil), open(t, d.URL(), nil)
	acquire(t, s, tethered("a"))
	watch(t, follower, "a")
	eventually(t, "a follower to wait on the wire", func() bool { return locks(t, admin, wireClass, false) == 1 })
	run(t, admin, "create table public.t as select i from generate_series(1, 1000) i")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := admin.Exec(ctx, "create index concurrently on public.t (i)"); err != nil {
		t.Fatal(err)
	}
	run(t, admin, "delete from public.t")
	eventually(t, "a vacuum to remove the dead rows", func() bool {
		run(t, admin, "vacuum public.t")
		return value[int](t, admin, "select pg_relation_size('public.t')") == 0
	})
	eventually(t, "the follower to wait on", func() bool { return locks(t, admin, wireClass, false) == 1 })
}

// TestStoreWatchEnds: a follower that gave up leaves nothing behind on the server.
func TestStoreWatchEnds(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	s, follower := open(t, d.URL(), nil), open(t, d.URL("application_name=follower"), nil)
	acquire(t, s, tethered("a"))
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := follower.Watch(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a follower to wait on the wire", func() bool { return locks(t, admin, wireClass, false) == 1 })
	cancel()
	eventually(t, "the wait to end", func() bool {
		return locks(t, admin, wireClass, false)+locks(t, admin, queueClass, true) == 0 && sessions(t, admin, "follower") == 1
	})
	if err := follower.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the store's connections to end", func() bool { return sessions(t, admin, "follower") == 0 })
}

// TestBatchSkipsLockedRows: a row that somebody has locked holds up no other, and
// is renewed alone.
func TestBatchSkipsLockedRows(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	s := open(t, d.URL(), nil)
	var batch []store.Renewal
	for i := range 5 {
		batch = append(batch, store.Renewal{Lease: acquire(t, s, claimOf(fmt.Sprint(i))), Attempt: attempt()})
	}
	run(t, admin, "begin")
	run(t, admin, "select from tenure.lease where name = '2' for update")
	for i, r := range s.RenewBatch(t.Context(), batch) {
		if i != 2 {
			if r.Err != nil {
				t.Errorf("entry %d: %v", i, r.Err)
			}
			continue
		}
		refused(t, r.Err, store.ErrBusy, `"2"`)
		if store.OutcomeUnknown(r.Err) {
			t.Error("the outcome of the entry that was skipped is called unknown")
		}
	}
	run(t, admin, "rollback")
	if _, err := s.Renew(t.Context(), batch[2].Lease, batch[2].Attempt); err != nil {
		t.Error(err)
	}
}

// TestWaitersCostNothing: a follower hears of renewals and asks nothing itself. It
// has one connection.
func TestWaitersCostNothing(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	const waiters, ttl, every, renewals = 20, 6 * time.Second, time.Second, 7
	leader := open(t, d.URL(), nil)
	l := acquire(t, leader, store.Claim{Name: "a", Holder: "leader", Attempt: attempt(), TTL: ttl})
	waiting := make(chan struct{}, 100)
	for range waiters {
		e, err := tenure.NewElector(open(t, d.URL("application_name=waiter"), nil), "a", &tenure.Options{
			TTL: ttl,
			Observer: tenure.ObserverFunc(func(ev tenure.Event) {
				if _, ok := ev.(tenure.Waiting); ok {
					waiting <- struct{}{}
				}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = e.Campaign(ctx)
		}()
		t.Cleanup(func() { cancel(); <-ended })
	}
	for range 2 * waiters { // once at first, and again when they have begun to listen
		<-waiting
	}
	began := value[time.Time](t, admin, "select clock_timestamp()")
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range renewals { // longer than the lease that the waiters know of at first
		<-tick.C
		l = renew(t, leader, l)
	}
	if n := value[int](t, admin, "select count(*) from pg_stat_activity where application_name = 'waiter' and query_start > $1", began); n != 0 {
		t.Errorf("%d of %d waiters asked though each renewal was announced", n, waiters)
	}
	if n := sessions(t, admin, "waiter"); n != waiters {
		t.Errorf("%d waiters have %d connections", waiters, n)
	}
}

// TestHandOver: a term that is given up is taken over as soon as the server has
// said so.
func TestHandOver(t *testing.T) {
	d := schema(t)
	var electors []*tenure.Elector
	waiting := make(chan struct{}, 100)
	for range 2 {
		e, err := tenure.NewElector(open(t, d.URL(), nil), "a", &tenure.Options{
			TTL: time.Minute,
			Observer: tenure.ObserverFunc(func(ev tenure.Event) {
				if _, ok := ev.(tenure.Waiting); ok {
					waiting <- struct{}{}
				}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		electors = append(electors, e)
	}
	term, err := electors[0].Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for i := range 20 {
		next := make(chan *tenure.Term, 1)
		go func() {
			term, err := electors[(i+1)%2].Campaign(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- term
		}()
		<-waiting
		<-waiting // it has begun to listen, and asked again
		asked := time.Now()
		eventually(t, "it to be allowed to ask once more", func() bool { return time.Since(asked) > 50*time.Millisecond })
		began := time.Now()
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if term = <-next; term == nil {
			return
		}
		took = append(took, time.Since(began))
		if term.Token() != fence.Token(i+2) {
			t.Errorf("token %d at hand-over %d", term.Token(), i)
		}
	}
	slices.Sort(took)
	t.Logf("a hand-over takes %v at the median", took[len(took)/2])
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}
