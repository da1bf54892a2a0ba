package control

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// When the test is started as root it asks once as another user, from a copy of
// itself.
func TestMain(m *testing.M) {
	if path := os.Getenv("CONTROL_TEST_ASK"); path != "" {
		_, err := Ask(context.Background(), path, Request{Do: DoCheck})
		os.Stdout.WriteString(err.Error())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func listen(t *testing.T, h Handler) *Server {
	t.Helper()
	s, err := Listen(t.TempDir(), h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestAsk(t *testing.T) {
	t.Parallel()
	var got Request
	s := listen(t, func(_ context.Context, r Request) Answer {
		got = r
		return Answer{Leading: true, Name: "invoices", Token: "9007199254740993", Term: "t1", RemainingMS: "1234", Confirmed: r.Confirm}
	})
	if st, err := os.Stat(s.Path()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v; want 0600", st.Mode(), err)
	}
	want := Request{Do: DoCheck, Term: "t1", Confirm: true}
	a, err := Ask(t.Context(), s.Path(), want)
	if err != nil || got != want {
		t.Errorf("asked %+v, handled %+v (%v)", want, got, err)
	}
	if wantAnswer := (Answer{Leading: true, Name: "invoices", Token: "9007199254740993", Term: "t1", RemainingMS: "1234", Confirmed: true}); a != wantAnswer {
		t.Errorf("answer %+v, want %+v", a, wantAnswer)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := listen(t, func(context.Context, Request) Answer {
		t.Error("a bad request was handled")
		return Answer{}
	})
	for request, want := range map[string]string{
		"{}\n":                            "allowed are check, progress and resign",
		`{"do":"reboot"}` + "\n":          "allowed are check, progress and resign",
		"what\n":                          "not understood",
		strings.Repeat("x", 2*requestMax): "at most 4096 bytes",
		strings.Repeat("x", 2*requestMax) + "\n{}\n": "at most 4096 bytes",
	} {
		conn, err := net.Dial("unix", s.Path())
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(request)) // may fail when the answer comes early
		conn.(*net.UnixConn).CloseWrite()
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil && !errors.Is(err, syscall.ECONNRESET) || err == nil && !strings.Contains(line, want) {
			t.Errorf("request %.20q: answer %q, %v; want %q in it", request, line, err, want)
		}
		conn.Close()
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	s := listen(t, func(context.Context, Request) Answer { return Answer{} })
	path := s.Path()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := Ask(t.Context(), path, Request{Do: DoCheck}); !errors.Is(err, ErrGone) {
		t.Errorf("Ask = %v, want ErrGone", err)
	}
	// A wrapper that was killed leaves the socket behind.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "left"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	if _, err := Ask(t.Context(), left.Addr().String(), Request{Do: DoCheck}); !errors.Is(err, ErrGone) {
		t.Errorf("Ask at a dead socket = %v, want ErrGone", err)
	}
}

// A wrapper that ends while it is asked, and an asker that stops waiting.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 2)
	s := listen(t, func(ctx context.Context, _ Request) Answer {
		asked <- struct{}{}
		<-ctx.Done()
		return Answer{Error: "ended"}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		<-asked
		cancel(enough)
	}()
	if _, err := Ask(ctx, s.Path(), Request{Do: DoCheck}); !errors.Is(err, enough) {
		t.Errorf("Ask with a cancelled context = %v, want its cause", err)
	}
	go func() {
		<-asked
		s.Close()
	}()
	if _, err := Ask(t.Context(), s.Path(), Request{Do: DoCheck}); err == nil {
		t.Error("Ask of a server that closed succeeded")
	}
}

func TestPeer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		peer, own uint32
		ok        bool
	}{{1000, 1000, true}, {0, 1000, true}, {0, 0, true}, {1000, 0, false}, {1001, 1000, false}} {
		if err := allowPeer(tt.peer, tt.own); (err == nil) != tt.ok {
			t.Errorf("user %d asks user %d: %v, want ok %v", tt.peer, tt.own, err, tt.ok)
		}
	}
	if os.Geteuid() != 0 {
		return // the rule was tested; only root can be two users
	}
	dir, err := os.MkdirTemp("", "control")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := Listen(dir, func(context.Context, Request) Answer { return Answer{Leading: true} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// Open the way that the modes would close.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(s.Path(), 0o666)); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "ask")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Dir = "/"
	c.Env = []string{"CONTROL_TEST_ASK=" + s.Path()}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "user 65534 may not ask") {
		t.Errorf("another user got %q, %v", out, err)
	}
}
