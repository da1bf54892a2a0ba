package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// superuser owns the servers. Nobody needs a password.
const superuser = "test"

// Database is a database that belongs to one test.
type Database struct {
	Name string
	Port int // of its server, at 127.0.0.1
}

// URL is where the database is, for the superuser "test". Each of params, such as
// "user=reader" or "application_name=x", is added or takes the place of one that
// is there.
func (d *Database) URL(params ...string) string {
	q := url.Values{"sslmode": {"disable"}, "user": {superuser}}
	for _, p := range params {
		key, value, _ := strings.Cut(p, "=")
		q.Set(key, value)
	}
	return fmt.Sprintf("postgres://127.0.0.1:%d/%s?%s", d.Port, d.Name, strings.ReplaceAll(q.Encode(), "+", "%20"))
}

// Postgres returns a new, empty database on the server that all tests of the
// binary share. It is dropped when the test ends, with whoever is still connected.
//
// The server forgets what it wrote if the machine crashes, and vacuums nothing.
// Roles belong to the server and not to the database: give them names of their own
// and drop them.
func Postgres(t testing.TB) *Database {
	t.Helper()
	s, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return s.NewDatabase(t)
}

func sharedServer() (*Server, error) {
	binary.Lock()
	defer binary.Unlock()
	if binary.shared != nil {
		return binary.shared, nil
	}
	s, err := newServer(&Options{Settings: map[string]string{"max_connections": "200"}})
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	binary.shared = s
	return s, nil
}

// Options configure a server; nil is good for most tests.
type Options struct {
	// Settings of postgresql.conf, which take the place of those for speed.
	Settings map[string]string
	// Durable: what was committed is on the disk, as in production.
	Durable bool
	// Env is added to the server's environment.
	Env []string
}

// Server is a PostgreSQL server of a test's own.
type Server struct {
	Database // "postgres"

	opts    Options
	folder  string
	process *process
}

// OwnPostgres starts a server that ends with the test. A test that fails shows the
// end of its log.
func OwnPostgres(t testing.TB, opts *Options) *Server {
	t.Helper()
	binary.Lock()
	s, err := newServer(opts)
	binary.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	s.attach(t)
	s.Start(t)
	return s
}

// attach ends the server with the test.
func (s *Server) attach(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of the server at port %d:\n%s", s.Port, tail(s.log()))
		}
		if err := errors.Join(s.end(), os.RemoveAll(s.folder)); err != nil {
			t.Error(err)
		}
	})
}

// Start starts the server again, at the same port, after [Server.Kill] or
// [Server.Stop], and waits until it answers. Settings take the place of those that
// it had.
func (s *Server) Start(t testing.TB, settings ...string) {
	t.Helper()
	for _, setting := range settings {
		key, value, _ := strings.Cut(setting, "=")
		s.opts.Settings[key] = value
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Stop stops the server in order: it ends the sessions and writes everything down.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.process.end(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// Kill ends all processes of the server at once, as a crash of it does.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if err := s.process.kill(); err != nil {
		t.Fatal(err)
	}
}

// Freeze stops all processes of the server. Clients can still connect, to the
// kernel, and get no answer. The server is frozen on return.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	if _, err := s.process.freeze(); err != nil {
		t.Fatal(err)
	}
}

// Thaw continues a frozen server.
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	if err := s.process.thaw(); err != nil {
		t.Fatal(err)
	}
}

// NewDatabase makes an empty database on the server, which is dropped with the
// test if the server still runs.
func (s *Server) NewDatabase(t testing.TB) *Database {
	t.Helper()
	binary.Lock()
	binary.made++
	d := &Database{Name: fmt.Sprint("db", binary.made), Port: s.Port}
	binary.Unlock()
	// A copy of template0 needs no look at who is connected to template1.
	if err := s.exec("create database " + d.Name + " template template0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !s.process.running() {
			return
		}
		if err := s.exec("drop database " + d.Name + " with (force)"); err != nil {
			t.Error(err)
		}
	})
	return d
}

// exec runs statements as the superuser in the database postgres.
func (s *Server) exec(statements string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgconn.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, statements).ReadAll()
	return errors.Join(err, c.Close(ctx))
}

// newServer makes a data directory, and starts nothing. The caller holds the lock
// of binary.
func newServer(opts *Options) (*Server, error) {
	if err := makeData(); err != nil {
		return nil, err
	}
	s, err := emptyServer(opts)
	if err != nil {
		return nil, err
	}
	return s, run(s.folder, "cp", "-a", binary.data, s.data())
}

// emptyServer makes a server without a data directory.
func emptyServer(opts *Options) (*Server, error) {
	s := &Server{}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Settings = map[string]string{
		"shared_buffers": "16MB",
		"max_wal_size":   "128MB",
		"autovacuum":     "off",
	}
	if !s.opts.Durable {
		s.opts.Settings["fsync"] = "off"
		s.opts.Settings["synchronous_commit"] = "off"
		s.opts.Settings["full_page_writes"] = "off"
	}
	if opts != nil {
		for key, value := range opts.Settings {
			s.opts.Settings[key] = value
		}
	}
	var err error
	s.folder, err = newFolder("pg")
	return s, err
}

// makeData makes the directory that is copied for each server.
func makeData() error {
	if binary.data != "" {
		return nil
	}
	folder, err := newFolder("initdb")
	if err != nil {
		return err
	}
	initdb, err := find("PostgreSQL", "/usr/lib/postgresql/*/bin/initdb", "/usr/local/bin/initdb", "/usr/bin/initdb")
	if err != nil {
		return err
	}
	data := filepath.Join(folder, "data")
	if err := run(folder, initdb, "-D", data, "-U", superuser, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"); err != nil {
		return err
	}
	binary.data = data
	return nil
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }
func (s *Server) log() string  { return filepath.Join(s.folder, "log") }

// start starts the server. The first time it tries other ports if another took the
// one that was free.
func (s *Server) start() error {
	postgres, err := find("PostgreSQL", "/usr/lib/postgresql/*/bin/postgres", "/usr/local/bin/postgres", "/usr/bin/postgres")
	if err != nil {
		return err
	}
	for first, tries := s.Port == 0, 0; ; tries++ {
		if first {
			port, err := freePort()
			if err != nil {
				return err
			}
			s.Database = Database{Name: "postgres", Port: port}
		}
		args := []string{"-D", s.data(), "-k", s.folder, "-h", "127.0.0.1", "-p", strconv.Itoa(s.Port)}
		for key, value := range s.opts.Settings {
			args = append(args, "-c", key+"="+value)
		}
		cmd, err := command(s.folder, postgres, args...)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, s.opts.Env...)
		if s.process, err = start(cmd, s.log()); err != nil {
			return err
		}
		err = until("the server to answer", s.answers)
		if err == nil || !first || tries == 3 {
			return err
		}
	}
}

func (s *Server) answers() (bool, error) {
	if !s.process.running() {
		return false, fmt.Errorf("servers: postgres ended at once: %w\n%s", s.process.result, tail(s.log()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pgconn.Connect(ctx, s.URL())
	if err != nil {
		return false, nil
	}
	return true, c.Close(ctx)
}

// end ends the server for good, and frees what a killed one left in the kernel.
func (s *Server) end() error {
	if s.process == nil {
		return nil
	}
	err := s.process.end(syscall.SIGQUIT)
	// The seventh line names the shared memory; a server that ended in order has
	// removed the file.
	text, _ := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return err
	}
	var key, id int
	if _, scanErr := fmt.Sscan(lines[6], &key, &id); scanErr != nil {
		return err
	}
	if _, rmErr := unix.SysvShmCtl(id, unix.IPC_RMID, nil); rmErr != nil && !errors.Is(rmErr, unix.EINVAL) && !errors.Is(rmErr, unix.EIDRM) {
		err = errors.Join(err, rmErr)
	}
	return err
}

// Connect connects to a database, and closes the connection with the test.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // the server may be gone
	return c
}
