package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// attempts draws attempt ids for the tests of stores.
var attempts struct {
	sync.Mutex
	n int
}

func attempt() store.Attempt {
	attempts.Lock()
	defer attempts.Unlock()
	attempts.n++
	return store.Attempt(fmt.Sprint("attempt-", attempts.n))
}

func claimOf(name string) store.Claim {
	return store.Claim{Name: name, Holder: "holder", Attempt: attempt(), TTL: time.Hour}
}

func acquire(t testing.TB, s store.Store, c store.Claim) store.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatalf("acquiring %q: %v", c.Name, err)
	}
	return l
}

func renew(t testing.TB, s store.Store, l store.Lease) store.Lease {
	t.Helper()
	next, err := s.Renew(t.Context(), l, attempt())
	if err != nil {
		t.Fatalf("renewing %q: %v", l.Name, err)
	}
	return next
}

func release(t testing.TB, s store.Store, l store.Lease) {
	t.Helper()
	if err := s.Release(t.Context(), l, ""); err != nil {
		t.Fatalf("releasing %q: %v", l.Name, err)
	}
}

// refused ends the test unless err is of the given kind and names all of texts.
func refused(t testing.TB, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("want the error %q, got: %v", kind, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not name %q: %v", text, err)
		}
	}
}

// value reads one value.
func value[T any](t testing.TB, c *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func run(t testing.TB, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// eventually polls what another process brings about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// sessions counts the sessions that an application has.
func sessions(t testing.TB, c *pgx.Conn, application string) int {
	t.Helper()
	return value[int](t, c, "select count(*) from pg_stat_activity where application_name = $1", application)
}

// endSessions ends them, and waits until they are gone.
func endSessions(t testing.TB, c *pgx.Conn, application string) {
	t.Helper()
	run(t, c, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", application)
	eventually(t, "the sessions to end", func() bool { return sessions(t, c, application) == 0 })
}

// TestB18_PoolerKeepsNothing: behind a pooler that shares sessions all works, and
// no lock and no LISTEN stays behind in one of them.
func TestB18_PoolerKeepsNothing(t *testing.T) {
	d := schema(t)
	b := servers.Bouncer(t, d, 2)
	s, other := open(t, b.URL(), nil), open(t, b.URL(), nil)
	if s.Caps().Takeover {
		t.Error("takeover on disconnect is offered behind a pooler")
	}
	c := claimOf("a")
	c.FencedOnly, c.Takeover = true, store.OnDisconnect
	_, err := s.Acquire(t.Context(), c)
	refused(t, err, store.ErrUnsupported)

	hints, err := other.Watch(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	l := acquire(t, s, claimOf("a"))
	for range 50 {
		l = renew(t, s, l)
	}
	release(t, s, l)
	for i := range 20 {
		from := []*tenurepg.Store{s, other}[i%2]
		release(t, from, acquire(t, from, claimOf("a")))
	}
	for vacant := false; !vacant; {
		select {
		case h := <-hints:
			vacant = h.Kind == store.HintVacant
		case <-time.After(time.Minute):
			t.Fatal("no hint of a vacancy")
		}
	}
	admin := servers.Connect(t, d.URL())
	if n := value[int](t, admin, "select count(*) from pg_locks where locktype = 'advisory'"); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
	through := servers.Connect(t, b.URL("default_query_exec_mode=exec"))
	for range 4 {
		if n := value[int](t, through, "select count(*) from pg_listening_channels()"); n != 0 {
			t.Errorf("a shared session listens to %d channels", n)
		}
	}
}

// TestB21_ConnectionsComeAndGo: whatever ends a connection between two renewals,
// the term goes on.
func TestB21_ConnectionsComeAndGo(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	for _, test := range []struct{ what, params string }{
		{"idle_session_timeout", "options=-c idle_session_timeout=50"},
		{"idle_in_transaction_session_timeout", "options=-c idle_in_transaction_session_timeout=1"},
		{"statement_timeout", "options=-c statement_timeout=5000"},
		{"pg_terminate_backend", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			params := []string{"application_name=" + test.what}
			if test.params != "" {
				params = append(params, test.params)
			}
			s := open(t, d.URL(params...), nil)
			l := acquire(t, s, claimOf(test.what))
			for range 5 {
				switch test.what {
				case "pg_terminate_backend":
					endSessions(t, admin, test.what)
				case "idle_session_timeout":
					eventually(t, "the server to end the session", func() bool { return sessions(t, admin, test.what) == 0 })
				}
				l = renew(t, s, l)
				if n := value[int](t, admin, "select count(*) from pg_stat_activity where application_name = $1 and state like 'idle in transaction%'", test.what); n != 0 {
					t.Errorf("%d sessions are idle in a transaction", n)
				}
			}
			release(t, s, l)
		})
	}
	t.Run("lifetime of a pool's connections", func(t *testing.T) {
		cfg, err := pgxpool.ParseConfig(d.URL("pool_max_conn_lifetime=1ms", "pool_health_check_period=1ms"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		s, err := tenurepg.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := acquire(t, s, claimOf("lifetime"))
		for range 5 {
			before := p.Stat().MaxLifetimeDestroyCount()
			eventually(t, "the pool to retire the connection", func() bool { return p.Stat().MaxLifetimeDestroyCount() > before || p.Stat().TotalConns() == 0 })
			l = renew(t, s, l)
		}
	})
}

// TestB21_StatementTimeout: a request that the server ends was not carried out, and
// says so; the next one finds a store that works.
func TestB21_StatementTimeout(t *testing.T) {
	d := schema(t)
	s := open(t, d.URL("options=-c statement_timeout=200"), nil)
	l := acquire(t, s, claimOf("a"))
	admin := servers.Connect(t, d.URL())
	run(t, admin, "begin")
	run(t, admin, "select from tenure.lease for update")
	_, err := s.Renew(t.Context(), l, attempt())
	refused(t, err, store.ErrBusy, "statement_timeout")
	if store.OutcomeUnknown(err) {
		t.Errorf("the outcome is called unknown: %v", err)
	}
	run(t, admin, "rollback")
	renew(t, s, l)
}

// TestB22_DemotedNode: a store never stays with a node that takes no writes, and
// says so when there is no other.
func TestB22_DemotedNode(t *testing.T) {
	a := servers.OwnPostgres(t, nil)
	migrate(t, &a.Database)
	b := servers.Replica(t, a, nil)
	both := fmt.Sprintf("postgres://test@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", a.Port, b.Port)
	s := open(t, both, nil)
	p, err := pgxpool.New(t.Context(), both+"&target_session_attrs=read-write")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	pooled, err := tenurepg.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, m := acquire(t, s, claimOf("a")), acquire(t, pooled, claimOf("b"))
	l, m = renew(t, s, l), renew(t, pooled, m)
	b.CaughtUp(t, a)

	// The old node stays up, with all connections.
	admin := servers.Connect(t, a.URL())
	run(t, admin, "alter system set default_transaction_read_only = on")
	run(t, admin, "select pg_reload_conf()")
	eventually(t, "the node to take no writes", func() bool { return value[string](t, admin, "show transaction_read_only") == "on" })
	_, err = s.Renew(t.Context(), l, attempt())
	refused(t, err, store.ErrReadOnly)
	_, err = s.Get(t.Context(), "a")
	refused(t, err, store.ErrReadOnly)
	_, err = s.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrReadOnly)

	b.Promote(t)
	renew(t, s, l)
	renew(t, pooled, m)
	if n := value[int](t, admin, "select count(*) from pg_stat_activity where application_name = 'tenure'"); n != 0 {
		t.Errorf("%d connections to the demoted node are left", n)
	}
}

// TestS16_Standby: what a standby says of a lease may be old, so it is not asked.
func TestS16_Standby(t *testing.T) {
	a := servers.OwnPostgres(t, nil)
	migrate(t, &a.Database)
	b := servers.Replica(t, a, nil)
	_, err := tenurepg.Open(t.Context(), b.URL(), nil)
	refused(t, err, store.ErrReadOnly)

	// Not even when it comes first.
	s := open(t, fmt.Sprintf("postgres://test@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", b.Port, a.Port), nil)
	acquire(t, s, claimOf("a"))
	b.CaughtUp(t, a)

	// A pool that was not told to look for a primary finds out at the first request.
	p, err := pgxpool.New(t.Context(), b.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	pooled, err := tenurepg.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pooled.Get(t.Context(), "a")
	refused(t, err, store.ErrReadOnly)
	_, err = pooled.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrReadOnly)
	for _, err := range pooled.List(t.Context()) {
		refused(t, err, store.ErrReadOnly)
	}
}

// TestB24_SessionThatIsGone: a session that has the row locked, and whose client is
// gone or stands still, holds up the takeover; the error names it. The lease itself
// ends by its expiry, whatever the network knows of its holder.
func TestB24_SessionThatIsGone(t *testing.T) {
	d := schema(t)
	s := open(t, d.URL(), nil)
	c := claimOf("a")
	c.TTL = time.Second
	acquire(t, s, c)
	admin := servers.Connect(t, d.URL("application_name=batch job"))
	run(t, admin, "begin")
	run(t, admin, "select from tenure.lease for update")
	pid := value[int](t, admin, "select pg_backend_pid()")

	other := open(t, d.URL(), nil)
	var err error
	eventually(t, "the expiry", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = other.Acquire(ctx, claimOf("a"))
		return !errors.Is(err, store.ErrHeld)
	})
	refused(t, err, store.ErrBusy, fmt.Sprint("server process ", pid), "batch job", `"a"`)
	if store.OutcomeUnknown(err) {
		t.Errorf("the outcome is called unknown: %v", err)
	}
	run(t, admin, "rollback")
	acquire(t, other, claimOf("a"))
}

// TestB24_DeadPeer: the server gives up a client that has vanished within half a
// minute, not after two hours.
func TestB24_DeadPeer(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	// What a session has set cannot be read from another one: let the function tell.
	run(t, admin, "create table public.seen (setting text)")
	run(t, admin, `create or replace function tenure.clock() returns timestamptz language plpgsql as $$
		begin
			insert into public.seen select current_setting('tcp_keepalives_idle') || ' ' || current_setting('tcp_keepalives_interval') || ' ' || current_setting('tcp_keepalives_count');
			return clock_timestamp();
		end $$`)
	acquire(t, open(t, d.URL(), nil), claimOf("a"))
	if got := value[string](t, admin, "select distinct setting from public.seen"); got != "15 5 3" {
		t.Errorf("the session's keepalive settings are %q", got)
	}
}

// TestB26_Denied: what a role may not do is told as that, with its name, and is
// over when the right is there.
func TestB26_Denied(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	const role = "tenure_b26"
	run(t, admin, "create role "+role+" login")
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(execer(t, d)(ctx, "drop owned by "+role), execer(t, d)(ctx, "drop role "+role)); err != nil {
			t.Error(err)
		}
	})
	url := d.URL("user="+role, "application_name="+role)
	_, err := tenurepg.Open(t.Context(), url, nil)
	refused(t, err, store.ErrDenied, "schema tenure")
	run(t, admin, "select tenure.grant_look('"+role+"')")
	s := open(t, url, nil)
	_, err = s.Get(t.Context(), "a")
	refused(t, err, store.ErrNoRecord)
	_, err = s.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrDenied, "acquiring", "function acquire")
	run(t, admin, "select tenure.grant_elect('"+role+"')")
	l := renew(t, s, acquire(t, s, claimOf("a")))
	if _, err := servers.Connect(t, url).Exec(t.Context(), "update tenure.lease set token = 1"); err == nil {
		t.Error("the role can write to the table itself")
	}
	_, err = s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test"})
	refused(t, err, store.ErrDenied, "function evict")

	for _, right := range []struct {
		function string
		ask      func() error
	}{
		{"renew", func() error { _, err := s.Renew(t.Context(), l, attempt()); return err }},
		{"release", func() error { return s.Release(t.Context(), l, "") }},
		{"abandon", func() error { return s.Abandon(t.Context(), "a", attempt()) }},
		{"get", func() error { _, err := s.Get(t.Context(), "a"); return err }},
		{"past", func() error { _, err := s.History(t.Context(), "a", 1); return err }},
		{"list", func() error {
			for _, err := range s.List(t.Context()) {
				return err
			}
			return nil
		}},
	} {
		run(t, admin, "revoke execute on function tenure."+right.function+" from "+role)
		err := right.ask()
		refused(t, err, store.ErrDenied, "function "+right.function)
		if store.OutcomeUnknown(err) {
			t.Errorf("%s: the outcome is called unknown", right.function)
		}
	}
	run(t, admin, "select tenure.grant_elect('"+role+"')")
	l = renew(t, s, l)
	release(t, s, l)

	run(t, admin, "alter role "+role+" nologin")
	endSessions(t, admin, role)
	_, err = s.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrDenied, "not permitted to log in")
	run(t, admin, "alter role "+role+" login connection limit 0")
	_, err = s.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrBusy, "too many connections")
}

// TestB26_Unreachable: nobody there is not the same as not being let in.
func TestB26_Unreachable(t *testing.T) {
	d := schema(t)
	_, err := tenurepg.Open(t.Context(), strings.Replace(d.URL(), fmt.Sprint(d.Port), "1", 1), nil)
	refused(t, err, store.ErrUnreachable)
	if store.OutcomeUnknown(err) {
		t.Errorf("the outcome is called unknown: %v", err)
	}
	_, err = tenurepg.Open(t.Context(), strings.Replace(d.URL(), d.Name, "nowhere", 1), nil)
	refused(t, err, store.ErrUnreachable, "nowhere", "does not exist")
}

// TestB30_TimeZones: leases are instants, whatever the sessions' time zones are. A
// change to summer time passes in TestRuleInSQL.
func TestB30_TimeZones(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	run(t, admin, "alter database "+d.Name+" set timezone = 'Pacific/Apia'")
	var stores []*tenurepg.Store
	for _, zone := range []string{"America/New_York", "Asia/Kolkata", "UTC"} {
		stores = append(stores, open(t, d.URL("options=-c timezone="+zone), nil))
	}
	for i := range 9 {
		c := claimOf("a")
		c.TTL = 15 * time.Second
		holder := stores[i%3]
		l := renew(t, holder, acquire(t, holder, c))
		for _, s := range append(stores, open(t, d.URL(), nil)) {
			rec, err := s.Get(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if took := c.TTL - rec.Remaining; took < 0 || took > 10*time.Second {
				t.Errorf("a lease of %v has %v left", c.TTL, rec.Remaining)
			}
			if age := time.Since(rec.AcquiredAt).Abs(); age > time.Minute {
				t.Errorf("it was acquired at %v, now it is %v", rec.AcquiredAt, time.Now())
			}
		}
		release(t, holder, l)
	}
}

// TestB33_Names: names are compared in full, and the locks have numbers of their
// own.
func TestB33_Names(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	run(t, admin, "select pg_advisory_lock(i) from generate_series(-100, 100) i") // another application
	rows, err := admin.Query(t.Context(), `select array_agg(name) from (select 'n' || i as name from generate_series(1, 300000) i) n
		group by hashtext(name) having count(*) > 1`)
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err != nil || len(pairs) == 0 {
		t.Fatalf("found %d pairs that Postgres hashes alike, %v", len(pairs), err)
	}
	seen := map[uint32]string{}
	for i := 0; len(pairs) < 20; i++ {
		name := fmt.Sprint("f", i)
		full := sha256.Sum256([]byte(name))
		sum := binary.BigEndian.Uint32(full[:])
		if other, ok := seen[sum]; ok {
			pairs = append(pairs, []string{other, name})
		}
		seen[sum] = name
	}
	pairs = append(pairs, []string{"a", "A"}, []string{"a ", "a  "}, []string{"é", "e\u0301"}, []string{"i", "İ"})
	s, other := open(t, d.URL(), nil), open(t, d.URL(), nil)
	for _, pair := range pairs {
		for i, name := range pair {
			c := claimOf(name)
			c.FencedOnly, c.Takeover = true, store.OnDisconnect // so that locks play a part
			if _, err := []*tenurepg.Store{s, other}[i%2].Acquire(t.Context(), c); err != nil {
				t.Errorf("%q of the pair %q: %v", name, pair, err)
			}
		}
	}
	names := 0
	for _, pair := range pairs {
		names += len(pair)
	}
	wires := "select count(*) from pg_locks where locktype = 'advisory' and classid = 1413828177 and objsubid = 2 and granted"
	if n := value[int](t, admin, wires); n != names {
		t.Errorf("%d elections have %d tripwires", names, n)
	}
}

// TestS09_Rotated: a credential that was changed is used at the next connect; an
// old one is told as a denial.
func TestS09_Rotated(t *testing.T) {
	folder, err := os.MkdirTemp("", "tenure-s09-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	hba := filepath.Join(folder, "hba.conf")
	const rules = "host all test 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
	if err := errors.Join(os.Chmod(folder, 0o755), os.WriteFile(hba, []byte(rules), 0o644)); err != nil {
		t.Fatal(err)
	}
	d := servers.OwnPostgres(t, &servers.Options{Settings: map[string]string{"hba_file": hba}})
	migrate(t, &d.Database)
	admin := servers.Connect(t, d.URL())
	run(t, admin, "create role app login password 'first-secret'")
	run(t, admin, "select tenure.grant_elect('app')")
	url := d.URL("user=app", "application_name=app")

	password := "first-secret"
	asked := open(t, url, &tenurepg.Options{Password: func(context.Context) (string, error) { return password, nil }})
	passfile := filepath.Join(t.TempDir(), "pgpass")
	write := func(pw string) {
		if err := os.WriteFile(passfile, []byte("*:*:*:*:"+pw+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(password)
	fromFile := open(t, d.URL("user=app", "application_name=app", "passfile="+passfile), nil)
	l, m := acquire(t, asked, claimOf("a")), acquire(t, fromFile, claimOf("b"))

	run(t, admin, "alter role app password 'second-secret'")
	l, m = renew(t, asked, l), renew(t, fromFile, m) // connections that are there go on
	endSessions(t, admin, "app")
	for _, s := range []*tenurepg.Store{asked, fromFile} {
		_, err := s.Renew(t.Context(), l, attempt())
		refused(t, err, store.ErrDenied)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	}
	password = "second-secret"
	write(password)
	renew(t, asked, l)
	renew(t, fromFile, m)
}

// TestS10_Serializable: collisions of transactions are tried again and shown to
// nobody.
func TestS10_Serializable(t *testing.T) {
	d := schema(t)
	run(t, servers.Connect(t, d.URL()), "alter database "+d.Name+" set default_transaction_isolation = serializable")
	const contenders, rounds = 10, 10
	var wg sync.WaitGroup
	var tokens sync.Map
	for range contenders {
		s := open(t, d.URL(), nil)
		wg.Go(func() {
			for range rounds {
				var l store.Lease
				var err error
				for {
					l, err = s.Acquire(t.Context(), claimOf("a"))
					if !errors.Is(err, store.ErrHeld) {
						break
					}
				}
				if err == nil {
					if _, twice := tokens.LoadOrStore(l.Token, true); twice {
						t.Errorf("token %d was granted twice", l.Token)
					}
					l, err = s.Renew(t.Context(), l, attempt())
				}
				if err == nil {
					err = s.Release(t.Context(), l, "")
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestS14_HintsAreNoProof: junk on the channel is passed over, a hint that was lost
// with the connection is made up for, and a full queue of notifications keeps
// nobody from anything.
func TestS14_HintsAreNoProof(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	holder := open(t, d.URL("application_name=holder"), nil)
	waiter := open(t, d.URL("application_name=waiter"), nil)
	l := acquire(t, holder, claimOf("a"))
	hints, err := waiter.Watch(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, kind store.HintKind) {
		t.Helper()
		limit := time.NewTimer(time.Minute)
		defer limit.Stop()
		for {
			select {
			case h, ok := <-hints:
				if !ok {
					t.Fatalf("the watch ended before %s", what)
				}
				if h.Kind == kind {
					return
				}
			case <-limit.C:
				t.Fatalf("waited a minute for %s", what)
			}
		}
	}
	id := value[int](t, admin, "select id from tenure.lease")
	for _, junk := range []string{
		"", " ", "v", "v ", "v x", "v 99999999999999999999", "r", "r 1", "r 1:", "r :1", fmt.Sprintf("r %d:-5", id), fmt.Sprintf("r %d:9223372036854775807", id),
		"g", "g 1:1", "g 1:1 x a", "g 99999999999:1 0 a", "c", "c -", "z 1", strings.Repeat("r 1:1 ", 1000), "\u0001",
	} {
		run(t, admin, "select pg_notify('tenure', $1)", junk)
	}
	l = renew(t, holder, l)
	wait("the renewal after the junk", store.HintRenewed)

	// With the session the LISTEN ends; the store connects anew when it notices.
	run(t, admin, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'waiter'")
	release(t, holder, l)
	wait("the vacancy that was announced while nobody listened", store.HintVacant)

	run(t, admin, `create or replace function tenure.announce(p_text text) returns void language plpgsql as $$
		begin raise exception 'too many notifications in the NOTIFY queue' using errcode = 'program_limit_exceeded'; end $$`)
	l = renew(t, holder, acquire(t, holder, claimOf("a")))
	if _, err := holder.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test"}); err != nil {
		t.Error(err)
	}
	release(t, holder, l)
}

// TestStoreHistory: who held which token, how each term ended, twins and refusals;
// pruned by age and number.
func TestStoreHistory(t *testing.T) {
	d := schema(t)
	admin := servers.Connect(t, d.URL())
	s := open(t, d.URL(), nil)
	c := claimOf("a")
	c.Holder = "host-1"
	first := acquire(t, s, c)
	renewed := renew(t, s, first)
	newest := renew(t, s, renewed)
	_, err := s.Renew(t.Context(), first, attempt()) // an old receipt
	refused(t, err, store.ErrReceipt)
	_, err = s.Renew(t.Context(), first, attempt())
	refused(t, err, store.ErrReceipt)
	_, err = s.Renew(t.Context(), renewed, attempt()) // a twin
	refused(t, err, store.ErrCloned)
	_, err = s.Renew(t.Context(), newest, attempt())
	refused(t, err, store.ErrCloned)
	if _, err := s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "clean up", Now: true}); err != nil {
		t.Fatal(err)
	}
	c = claimOf("a")
	c.Holder = "host-2"
	second := acquire(t, s, c)
	release(t, s, second)
	third := acquire(t, s, claimOf("a"))
	_, err = s.Renew(t.Context(), second, attempt())
	refused(t, err, store.ErrSuperseded)
	release(t, s, third)

	lines := func() []string {
		entries, err := s.History(t.Context(), "a", 100)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, e := range slices.Backward(entries) {
			lines = append(lines, fmt.Sprintf("%s %d %s", e.What, e.Token, e.Holder))
		}
		return lines
	}
	want := []string{
		"granted 1 host-1", "refused 1 host-1", "burnt 1 host-1", "evicted 1 host-1", "expired 1 host-1", "granted 2 host-2", "released 2 host-2",
		"granted 3 holder", "refused 2 ", "released 3 holder",
	}
	if got := lines(); !slices.Equal(got, want) {
		t.Errorf("the history says\n%q\nwant\n%q", got, want)
	}
	entries, _ := s.History(t.Context(), "a", 100)
	if from := entries[len(entries)-1].Detail; from != "from 127.0.0.1" {
		t.Errorf("the first grant came %q", from)
	}
	run(t, admin, "update tenure.history set at = at - interval '91 days' where token < 3")
	if got, want := lines(), want[7:]; !slices.Equal(got, append([]string{want[0]}, want[2:]...)) {
		t.Errorf("the history of 90 days says %q", got)
	}
	run(t, admin, "update tenure.setting set history_max = 2")
	for range 32 { // they are counted now and then
		release(t, s, acquire(t, s, claimOf("a")))
	}
	if n, all := len(lines()), value[int](t, admin, "select count(*) from tenure.history"); n != 2 || all > 2+3*32 {
		t.Errorf("of at most 2 lines %d are shown and %d kept", n, all)
	}
	if n := value[int](t, admin, "select count(*) from tenure.history where at < now() - interval '90 days'"); n != 0 {
		t.Errorf("%d lines are older than 90 days", n)
	}
}

// TestStoreExhausted: a pool that has no connection to spare is told as that.
func TestStoreExhausted(t *testing.T) {
	d := schema(t)
	p, err := pgxpool.New(t.Context(), d.URL("pool_max_conns=1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	s, err := tenurepg.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := acquire(t, s, claimOf("a"))
	c, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Renew(ctx, l, attempt())
	refused(t, err, store.ErrBusy, "all 1 connections of the pool")
	if store.OutcomeUnknown(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	c.Release()
	renew(t, s, l)
}

// TestStoreFormats: an older schema, a newer one and none are refused with a word
// on what to do.
func TestStoreFormats(t *testing.T) {
	d := servers.Postgres(t)
	s := open(t, d.URL(), nil)
	_, err := s.Acquire(t.Context(), claimOf("a"))
	refused(t, err, store.ErrFormat, "no schema tenure", "tenure init")
	said, err := s.Init(t.Context())
	if err != nil || !strings.Contains(said, "lease") {
		t.Fatalf("Init said %q, %v", said, err)
	}
	l := acquire(t, s, claimOf("a"))
	admin := servers.Connect(t, d.URL())
	newest := value[int](t, admin, "select max(version) from tenure.schema_version")

	run(t, admin, "delete from tenure.schema_version where version = $1", newest)
	_, err = open(t, d.URL(), nil).Get(t.Context(), "a")
	refused(t, err, store.ErrFormat, fmt.Sprint("version ", newest-1), "tenure init")
	run(t, admin, "insert into tenure.schema_version (version, name) values ($1, 'later')", newest+1)
	_, err = tenurepg.Open(t.Context(), d.URL(), nil)
	refused(t, err, store.ErrFormat, fmt.Sprint("version ", newest+1), "newer version of the program")
	_, err = s.Init(t.Context())
	refused(t, err, store.ErrFormat, "newer version of the program")
	renew(t, s, l) // who runs already goes on
}

// TestMigrateAtOnce: several may set the database up at once.
func TestMigrateAtOnce(t *testing.T) {
	d := servers.Postgres(t)
	var wg sync.WaitGroup
	total := make(chan int, 4)
	for range 4 {
		c := servers.Connect(t, d.URL())
		wg.Go(func() {
			applied, err := tenurepg.Migrate(t.Context(), c)
			if err != nil {
				t.Error(err)
			}
			total <- len(applied)
		})
	}
	wg.Wait()
	close(total)
	sum, most := 0, 0
	for n := range total {
		sum, most = sum+n, max(most, n)
	}
	if sum == 0 || sum != most {
		t.Errorf("%d steps were applied in all, %d by one", sum, most)
	}
}
