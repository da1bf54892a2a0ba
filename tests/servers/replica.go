package servers

import (
	"fmt"
	"strconv"
	"testing"
)

// Replica starts a server that follows primary by asynchronous streaming, and
// waits until it has all that the primary has. It takes reads only, until
// [Server.Promote]. It ends with the test.
func Replica(t testing.TB, primary *Server, opts *Options) *Server {
	t.Helper()
	basebackup, err := find("PostgreSQL", "/usr/lib/postgresql/*/bin/pg_basebackup", "/usr/local/bin/pg_basebackup", "/usr/bin/pg_basebackup")
	if err != nil {
		t.Fatal(err)
	}
	binary.Lock()
	s, err := emptyServer(opts)
	binary.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	s.attach(t)
	err = run(s.folder, basebackup, "-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(primary.Port), "-U", superuser,
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
	if err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	s.CaughtUp(t, primary)
	return s
}

// CaughtUp waits until a replica has replayed all that primary has written by now.
func (s *Server) CaughtUp(t testing.TB, primary *Server) {
	t.Helper()
	// A commit that is waited for writes down what earlier ones left to be written.
	p := Connect(t, primary.URL("synchronous_commit=local"))
	var lsn string
	if _, err := p.Exec(t.Context(), "select pg_logical_emit_message(true, 'servers', '')"); err != nil {
		t.Fatal(err)
	}
	if err := p.QueryRow(t.Context(), "select pg_current_wal_lsn()::text").Scan(&lsn); err != nil {
		t.Fatal(err)
	}
	c := Connect(t, s.URL())
	err := until("the replica to catch up", func() (done bool, err error) {
		err = c.QueryRow(t.Context(), "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)", lsn).Scan(&done)
		return done, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Disconnect ends a replica's stream: whatever its primary writes from now on is
// lost when the replica is promoted.
func (s *Server) Disconnect(t testing.TB) {
	t.Helper()
	for _, statement := range []string{"alter system set primary_conninfo = ''", "select pg_reload_conf()"} {
		if err := s.exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	c := Connect(t, s.URL())
	err := until("the stream to end", func() (done bool, err error) {
		err = c.QueryRow(t.Context(), "select not exists (select from pg_stat_wal_receiver)").Scan(&done)
		return done, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Promote makes a replica a server of its own, which takes writes on return.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	var done bool
	err := Connect(t, s.URL()).QueryRow(t.Context(), "select pg_promote(true, $1)", int(patience.Seconds())).Scan(&done)
	if err == nil && !done {
		err = fmt.Errorf("servers: not promoted within %v", patience)
	}
	if err != nil {
		t.Fatal(err)
	}
}
