package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler is a pgbouncer before a server: [Database.URL] is as the server's but
// for the port.
//
// A session behind it belongs to a client for one transaction only. pgbouncer
// before 1.21 knows no prepared statements in that mode.
type Pooler struct {
	Database

	folder  string
	process *process
}

// Bouncer starts a pgbouncer in transaction mode before d's server, with size
// connections to it for each user and database. Users are roles that may come
// through it besides the superuser. It ends with the test.
func Bouncer(t testing.TB, d *Database, size int, users ...string) *Pooler {
	t.Helper()
	b := &Pooler{}
	var err error
	binary.Lock()
	b.folder, err = newFolder("bouncer")
	binary.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of pgbouncer at port %d:\n%s", b.Port, tail(b.log()))
		}
		if err := errors.Join(b.process.end(syscall.SIGQUIT), os.RemoveAll(b.folder)); err != nil {
			t.Error(err)
		}
	})
	if err := b.configure(d, size, append(users, superuser)); err != nil {
		t.Fatal(err)
	}
	b.Start(t)
	return b
}

func (b *Pooler) log() string    { return filepath.Join(b.folder, "log") }
func (b *Pooler) config() string { return filepath.Join(b.folder, "pgbouncer.ini") }

func (b *Pooler) configure(d *Database, size int, users []string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	var list []byte
	for _, user := range users {
		list = fmt.Appendf(list, "%q %q\n", user, "")
	}
	if err := os.WriteFile(filepath.Join(b.folder, "users"), list, 0o644); err != nil {
		return err
	}
	b.Database = Database{Name: d.Name, Port: port}
	return os.WriteFile(b.config(), fmt.Appendf(nil, `[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
admin_users = %s
pool_mode = transaction
max_client_conn = 500
default_pool_size = %d
server_tls_sslmode = disable
ignore_startup_parameters = extra_float_digits
`, d.Port, port, filepath.Join(b.folder, "users"), superuser, size), 0o644)
}

// Start starts the pooler again, at the same port, after [Pooler.Kill].
func (b *Pooler) Start(t testing.TB) {
	t.Helper()
	pgbouncer, err := find("pgbouncer", "/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := command(b.folder, pgbouncer, b.config())
	if err != nil {
		t.Fatal(err)
	}
	if b.process, err = start(cmd, b.log()); err != nil {
		t.Fatal(err)
	}
	if err := until("pgbouncer to answer", b.answers); err != nil {
		t.Fatal(err)
	}
}

func (b *Pooler) answers() (bool, error) {
	if !b.process.running() {
		return false, fmt.Errorf("servers: pgbouncer at port %d ended at once: %w\n%s", b.Port, b.process.result, tail(b.log()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(b.URL())
	if err != nil {
		return false, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, nil
	}
	return true, c.Close(ctx)
}

// Kill ends the pooler as a crash does: every client loses its connection.
func (b *Pooler) Kill(t testing.TB) {
	t.Helper()
	if err := b.process.kill(); err != nil {
		t.Fatal(err)
	}
}

// Freeze stops the pooler. Clients can still connect and get no answer.
func (b *Pooler) Freeze(t testing.TB) {
	t.Helper()
	if _, err := b.process.freeze(); err != nil {
		t.Fatal(err)
	}
}

// Thaw continues a frozen pooler.
func (b *Pooler) Thaw(t testing.TB) {
	t.Helper()
	if err := b.process.thaw(); err != nil {
		t.Fatal(err)
	}
}
