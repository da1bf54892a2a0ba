package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// An error or a panic of the write leaves nothing behind: no row, no position, no
// transaction, and the connection goes back to the pool.
func TestFenceWriteFails(t *testing.T) {
	d := written(t)
	p := pool(t, d.URL("pool_max_conns=1"))
	f := tenurepg.NewFence(p, nil)
	s := fence.Stamp{Resource: "r", Token: 7, TermID: "a", Lane: "l", Position: 1, Digest: "d"}
	failed := errors.New("the job's own error")

	if _, err := f.Do(t.Context(), s, func(tx pgx.Tx) error {
		return errors.Join(insert(t.Context(), "r", "undone")(tx), failed)
	}); !errors.Is(err, failed) {
		t.Errorf("want the error of the write, got %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = f.Do(t.Context(), s, func(tx pgx.Tx) error { panic(insert(t.Context(), "r", "undone")(tx)) })
	}()
	if _, err := f.Do(t.Context(), s, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "select 1/0")
		if err == nil {
			t.Error("the statement did not fail")
		}
		return nil // the job ignores it
	}); err == nil || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("committing a failed transaction: want an error that says nothing was written, got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := f.Do(ctx, s, func(tx pgx.Tx) error {
		err := insert(ctx, "r", "undone")(tx)
		cancel()
		return err
	}); err == nil {
		t.Error("committed after the context had ended")
	}

	if got := values(t, p, "r"); len(got) > 0 {
		t.Errorf("landed: %q", got)
	}
	if l, err := f.Last(t.Context(), "r", "l"); err != nil || l != (fence.LaneMark{}) {
		t.Errorf("the lane is at %+v, %v", l, err)
	}
	if n := p.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are not back in the pool", n)
	}
	if n := p.Stat().NewConnsCount(); n != 1 {
		t.Errorf("it took %d connections: a transaction that failed costs none", n)
	}
	if replayed, err := f.Do(t.Context(), s, insert(t.Context(), "r", "v")); err != nil || replayed {
		t.Errorf("writing after all: %v, %v", replayed, err)
	}
}

// counter counts what is sent to the server.
type counter struct {
	mu    sync.Mutex
	texts []string
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = append(c.texts, d.SQL)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The check costs no round trip: it goes with BEGIN, and so does entering, which is
// needed once for each renewal.
func TestFenceRoundTrips(t *testing.T) {
	d := written(t)
	config, err := pgxpool.ParseConfig(d.URL())
	if err != nil {
		t.Fatal(err)
	}
	sent := &counter{}
	config.ConnConfig.Tracer = sent
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	f := tenurepg.NewFence(p, nil)
	s := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	for i, step := range []struct {
		change  func()
		entered bool
	}{
		{func() {}, true},
		{func() {}, false},
		{func() { s.Renewal++ }, true},
		{func() { s.Position, s.Digest = 1, "d1" }, false},
		{func() { s.Renewal--; s.Position, s.Digest = 2, "d2" }, false}, // of a goroutine that was slow
		{func() { s = fence.Stamp{Resource: "r", Token: 8, TermID: "b"} }, true},
		{func() { s.Resource = "another" }, true},
	} {
		step.change()
		sent.texts = nil
		if _, err := f.Do(t.Context(), s, insert(t.Context(), s.Resource, "v")); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if len(sent.texts) != 3 { // begin, insert, commit
			t.Errorf("step %d: want 3 round trips, got %q", i, sent.texts)
		}
		if entered := strings.Contains(sent.texts[0], "tenure.enter"); entered != step.entered {
			t.Errorf("step %d: entered %v, want %v: %s", i, entered, step.entered, sent.texts[0])
		}
	}
}

// cutter passes everything on between clients and a server, until it is told to
// swallow the reply to a commit and cut the connection.
type cutter struct {
	net.Listener
	to string

	mu  sync.Mutex
	cut bool
}

func newCutter(t *testing.T, port int) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, to: fmt.Sprintf("127.0.0.1:%d", port)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return c
}

func (c *cutter) armed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cutter) arm(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	committing := make(chan struct{})
	go func() {
		defer server.Close()
		buf := make([]byte, 1<<16)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			if c.armed() && strings.Contains(string(buf[:n]), "commit\x00") {
				close(committing)
				_, _ = server.Write(buf[:n])
				return // once the server has answered, see below
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := server.Read(buf)
		select {
		case <-committing:
			return
		default:
		}
		if err != nil {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The reply to a commit is lost, so nobody knows. The same stamp is sent again: it
// is there, and nothing is written twice.
func TestFenceLostReply(t *testing.T) {
	d := written(t)
	c := newCutter(t, d.Port)
	through := *d
	through.Port = c.Addr().(*net.TCPAddr).Port
	p := pool(t, through.URL())
	f := tenurepg.NewFence(p, nil)
	base := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	for i := range int64(5) {
		s := base
		s.Position, s.Digest = i+1, fmt.Sprint("write ", i)
		c.arm(true)
		_, err := f.Do(t.Context(), s, insert(t.Context(), "r", s.Digest))
		if !store.OutcomeUnknown(err) {
			t.Fatalf("the reply to the commit was lost: want an unknown outcome, got %v", err)
		}
		c.arm(false)
		// The server may not have come to the commit yet.
		replayed, err := f.Do(t.Context(), s, insert(t.Context(), "r", s.Digest))
		if err != nil {
			t.Fatalf("sent again: %v (replayed %v)", err, replayed)
		}
	}
	got := values(t, p, "r")
	if want := []string{"write 0", "write 1", "write 2", "write 3", "write 4"}; !slices.Equal(got, want) {
		t.Errorf("written %q, want %q", got, want)
	}
	l, err := f.Last(t.Context(), "r", "")
	if want := (fence.LaneMark{Token: 7, Position: 5, Digest: "write 4"}); err != nil || l != want {
		t.Errorf("the lane is at %+v, %v, want %+v", l, err, want)
	}
}

// Connections that broke in the pool while the job did something else are no reason
// to fail: nothing was written yet. A server that is not there is one, at once.
func TestFenceBrokenConnections(t *testing.T) {
	s := servers.OwnPostgres(t, &servers.Options{Settings: map[string]string{"synchronous_commit": "on"}})
	migrate(t, &s.Database)
	p := pool(t, s.URL("pool_max_conns=4"))
	if _, err := p.Exec(t.Context(), createWritten); err != nil {
		t.Fatal(err)
	}
	f := tenurepg.NewFence(p, nil)
	stamp := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	fill := func() {
		var all []*pgxpool.Conn
		for range 4 {
			c, err := p.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		for _, c := range all {
			c.Release()
		}
	}
	fill()
	s.Kill(t)
	s.Start(t)
	if _, err := f.Do(t.Context(), stamp, insert(t.Context(), "r", "1")); err != nil {
		t.Errorf("after a restart of the server: %v", err)
	}
	fill()
	if _, err := servers.Connect(t, s.URL()).Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'"); err != nil {
		t.Fatal(err)
	}
	if err := f.Enter(t.Context(), stamp); err != nil {
		t.Errorf("after the connections were ended: %v", err)
	}
	s.Kill(t)
	p.Reset()
	_, err := f.Do(t.Context(), stamp, insert(t.Context(), "r", "2"))
	if !errors.Is(err, store.ErrUnreachable) || store.OutcomeUnknown(err) || fence.Refused(err) {
		t.Errorf("no server: want unreachable, certainly not written, got %v", err)
	}
}

// Marks can be seen, and one that a wrong token has poisoned can be lowered, which
// is written down.
func TestFenceLower(t *testing.T) {
	d := written(t)
	p := pool(t, d.URL())
	f := tenurepg.NewFence(p, nil)
	leader := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	write := func(position int64) error {
		s := leader
		s.Lane, s.Position, s.Digest = "l", position, fmt.Sprint("w", position)
		_, err := f.Do(t.Context(), s, insert(t.Context(), "r", s.Digest))
		return err
	}
	for position := range int64(2) {
		if err := write(position + 1); err != nil {
			t.Fatal(err)
		}
	}
	poison := fence.Stamp{Resource: "r", Token: 7_000_000, TermID: "typo", Lane: "m", Position: 1, Digest: "x"}
	if _, err := tenurepg.NewFence(p, nil).Do(t.Context(), poison, insert(t.Context(), "r", "poison")); err != nil {
		t.Fatal(err)
	}
	if err := write(3); !errors.Is(err, fence.ErrStale) {
		t.Fatalf("the rightful leader after the poison: %v", err)
	}

	marks, err := f.List(t.Context(), "")
	if err != nil || len(marks) != 1 || marks[0].Resource != "r" || marks[0].Token != 7_000_000 || marks[0].TermID != "typo" || marks[0].Lanes != 2 || marks[0].SeenAt.IsZero() {
		t.Errorf("the marks are %+v, %v", marks, err)
	}
	for _, c := range []struct {
		resource string
		token    fence.Token
		reason   string
	}{{"r", 7_000_000, "no lower"}, {"r", -1, "below 0"}, {"r", 7, ""}, {"unknown", 1, "there is no such mark"}} {
		if _, err := f.Lower(t.Context(), c.resource, c.token, c.reason); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("lowering as %+v: want invalid, got %v", c, err)
		}
	}
	seen, err := f.Lower(t.Context(), "r", 7, "a token was mistyped")
	if err != nil || seen != 7_000_000 {
		t.Fatalf("lowering: %d, %v", seen, err)
	}
	if err := write(3); err != nil {
		t.Errorf("the rightful leader after the mark was lowered: %v", err)
	}
	if marks, err := f.List(t.Context(), "r"); err != nil || len(marks) != 1 || marks[0].Mark != (fence.Mark{Token: 7, TermID: "a"}) {
		t.Errorf("after the leader's next write the marks are %+v, %v", marks, err)
	}
	var role, what, name, reason, from, lane string
	err = p.QueryRow(t.Context(), "select role, what, name, reason, detail ->> 'from', detail -> 'lanes' -> 'm' ->> 'digest' from tenure.audit").Scan(&role, &what, &name, &reason, &from, &lane)
	if err != nil || role != "test" || what != "fence lower" || name != "r" || reason != "a token was mistyped" || from != "7000000" || lane != "x" {
		t.Errorf("the audit says %q %q %q %q %q %q, %v", role, what, name, reason, from, lane, err)
	}
}

// Names whose hashes are equal are resources of their own, and so is what other
// programs lock by small numbers.
func TestB33FenceNames(t *testing.T) {
	d := written(t)
	p := pool(t, d.URL("pool_max_conns=8"))
	f := tenurepg.NewFence(p, nil)
	// Pairs with one value of CRC-32, of Java's hash, and of hashtext of PostgreSQL.
	for _, pair := range [][2]string{{"plumless", "buckeroo"}, {"Aa", "BB"}, {"jobs/nightly-017414", "jobs/nightly-084491"}} {
		s := fence.Stamp{Resource: pair[0], Token: 9, TermID: "a"}
		if _, err := f.Do(t.Context(), s, func(pgx.Tx) error {
			return f.Enter(t.Context(), fence.Stamp{Resource: pair[1], Token: 2, TermID: "b"})
		}); err != nil {
			t.Errorf("%q beside an open write of %q: %v", pair[1], pair[0], err)
		}
	}
	other := servers.Connect(t, d.URL())
	if _, err := other.Exec(t.Context(), "select pg_advisory_lock(n), pg_advisory_lock(0, n) from generate_series(1, 20) n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Enter(t.Context(), fence.Stamp{Resource: "plumless", Token: 10, TermID: "c"}); err != nil {
		t.Errorf("beside another program's locks: %v", err)
	}
}

// The functions are called from anything that speaks SQL: here in plain statements,
// as psql or another language sends them.
func TestFenceFromSQL(t *testing.T) {
	d := written(t)
	c := servers.Connect(t, d.URL())
	for _, step := range []struct{ sql, code string }{
		{"select tenure.enter('invoices', 8)", ""},
		{"begin; select tenure.fence('invoices', 8); insert into written (resource, value) values ('invoices', '1'); commit", ""},
		{"begin; select tenure.fence('invoices', 7); insert into written (resource, value) values ('invoices', '2'); commit", "TN001"},
		{"select tenure.fence(resource => 'invoices', token => 8, term => 'a', renewal => 4)", ""},
		{"select tenure.fence('invoices', 8, 'b')", "TN002"},
		{"select tenure.fence_chain('invoices', 'eu', 8, 2, 'd')", "TN003"},
		{"select tenure.fence_chain('invoices', 'eu', 8, 1, 'd')", ""},
		{"select tenure.fence_chain('invoices', 'eu', 8, 1, 'd')", "TN005"},
		{"select tenure.fence_chain('invoices', 'eu', 8, 1, 'e')", "TN002"},
		// The check in the statement that writes.
		{"with checked as materialized (select tenure.fence('invoices', 8)) insert into written (resource, value) select 'invoices', '3' from checked", ""},
		{"with checked as materialized (select tenure.fence('invoices', 7)) insert into written (resource, value) select 'invoices', '4' from checked", "TN001"},
		{"select tenure.fence_chain(resource => 'invoices', lane => null, token => 8, \"position\" => 1, digest => 'd')", ""},
		// A shell's empty variable is no token.
		{"select tenure.fence('invoices', null)", "TN004"},
		{"select tenure.fence(null, 8)", "TN004"},
		{"select tenure.enter('invoices', 0)", "TN004"},
		{"select tenure.fence_chain('invoices', '', 8, null, 'd')", "TN004"},
		{"select tenure.fence('invoices', 8.5)", "42883"},
	} {
		_, err := c.Exec(t.Context(), step.sql)
		var e interface{ SQLState() string }
		code := ""
		if errors.As(err, &e) {
			code = e.SQLState()
		}
		if code != step.code {
			t.Errorf("%s: SQLSTATE %q, want %q: %v", step.sql, code, step.code, err)
		}
		if err != nil {
			if _, err := c.Exec(t.Context(), "rollback"); err != nil {
				t.Fatal(err)
			}
		}
	}
	var token, position int64
	var digest string
	if err := c.QueryRow(t.Context(), "select * from tenure.last('invoices', 'eu')").Scan(&token, &position, &digest); err != nil || token != 8 || position != 1 || digest != "d" {
		t.Errorf("the lane is at %d, %d, %q, %v", token, position, digest, err)
	}
	p := pool(t, d.URL())
	if got := values(t, p, "invoices"); !slices.Equal(got, []string{"1", "3"}) {
		t.Errorf("written %q", got)
	}
}
