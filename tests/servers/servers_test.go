package servers

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func query[T any](t *testing.T, c *pgx.Conn, sql string) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func do(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestPostgres(t *testing.T) {
	a, b := Postgres(t), Postgres(t)
	if a.Name == b.Name || a.Port != b.Port {
		t.Errorf("want two databases of one server, got %+v and %+v", a, b)
	}
	do(t, Connect(t, a.URL()), "create table only_here()")
	if query[bool](t, Connect(t, b.URL()), "select to_regclass('only_here') is not null") {
		t.Error("a table of one test's database is in another's")
	}
	c := Connect(t, a.URL("application_name=a name", "TimeZone=Asia/Kolkata"))
	if name := query[string](t, c, "show application_name"); name != "a name" {
		t.Errorf("the parameter came out as %q", name)
	}
}

func TestOwnPostgres(t *testing.T) {
	s := OwnPostgres(t, &Options{Durable: true, Settings: map[string]string{"work_mem": "7MB"}})
	d := s.NewDatabase(t)
	c := Connect(t, d.URL())
	for _, setting := range []struct{ name, want string }{{"work_mem", "7MB"}, {"fsync", "on"}, {"synchronous_commit", "on"}} {
		if got := query[string](t, c, "show "+setting.name); got != setting.want {
			t.Errorf("%s is %s, want %s", setting.name, got, setting.want)
		}
	}
	do(t, c, "create table kept as select 1 as n")

	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	if _, err := c.Exec(ctx, "select 1"); err == nil {
		t.Error("a frozen server answered")
	}
	cancel()
	s.Thaw(t)
	c = Connect(t, d.URL())
	query[int](t, c, "select n from kept")

	s.Kill(t)
	if _, err := c.Exec(t.Context(), "select 1"); err == nil {
		t.Error("a killed server answered")
	}
	s.Start(t, "work_mem=8MB")
	c = Connect(t, d.URL())
	query[int](t, c, "select n from kept")
	if got := query[string](t, c, "show work_mem"); got != "8MB" {
		t.Errorf("work_mem is %s after the restart, want 8MB", got)
	}
	s.Stop(t)
	s.Start(t)
	query[int](t, Connect(t, d.URL()), "select n from kept")
	s.Kill(t) // what it left in the kernel is removed
}

func TestReplica(t *testing.T) {
	primary := OwnPostgres(t, nil)
	p := Connect(t, primary.URL())
	do(t, p, "create table r as select 1 as n")
	replica := Replica(t, primary, nil)
	r := Connect(t, replica.URL())
	if !query[bool](t, r, "select pg_is_in_recovery()") {
		t.Error("the replica is none")
	}
	do(t, p, "update r set n = 2")
	replica.CaughtUp(t, primary)
	if n := query[int](t, r, "select n from r"); n != 2 {
		t.Errorf("the replica caught up to %d, want 2", n)
	}
	replica.Disconnect(t)
	do(t, p, "update r set n = 3")
	primary.Kill(t)
	replica.Promote(t)
	if n := query[int](t, r, "select n from r"); n != 2 {
		t.Errorf("the promoted replica has %d, want 2", n)
	}
	do(t, r, "update r set n = 4")
}

func TestBouncer(t *testing.T) {
	d := Postgres(t)
	b := Bouncer(t, d, 2)
	config, err := pgx.ParseConfig(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	connect := func() *pgx.Conn {
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := connect()
	do(t, c, "select pg_advisory_lock(7)")
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The trap: the lock stays with the server's connection.
	direct := Connect(t, d.URL())
	if query[bool](t, direct, "select pg_try_advisory_lock(7)") {
		t.Error("the session behind the pooler ended with its client: it is not in transaction mode")
	}
	b.Kill(t)
	b.Start(t)
	query[int](t, connect(), "select 1")
}
