package marker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
)

// later is when the terms of these tests end.
var later = guard.Now().Add(time.Hour)

func newFile(t *testing.T) (*File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leader")
	f, err := NewFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return f, path
}

func TestMarker(t *testing.T) {
	t.Parallel()
	f, path := newFile(t)
	if err := errors.Join(f.Remove(), f.Probe()); err != nil {
		t.Fatalf("Remove and Probe without a file: %v", err)
	}
	const token = "9007199254740993" // 2^53 + 1
	if err := f.Write("invoices", token, "t1", later); err != nil {
		t.Fatal(err)
	}
	m, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "invoices" || m.Token != token || m.Term != "t1" || m.PID != os.Getpid() {
		t.Errorf("read back %+v", m)
	}
	if err := m.Check(); err != nil {
		t.Errorf("Check of a living process's marker: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v; want 0644", st.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".tenure-*")); len(left) != 0 {
		t.Errorf("temporary files left: %v", left)
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

func TestStale(t *testing.T) {
	t.Parallel()
	f, path := newFile(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	// One that is stopped, and one that has ended and not been waited for.
	stopped, zombie := exec.Command("sleep", "600"), exec.Command("true")
	for _, c := range []*exec.Cmd{stopped, zombie} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
	}
	if err := stopped.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	become := func(m *Marker, c *exec.Cmd, what int) {
		m.PID = c.Process.Pid
		if err := unix.Waitid(unix.P_PID, m.PID, nil, what|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		var err error
		if m.StartTime, _, err = lookAt(m.PID); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*Marker)
		why    string
	}{
		{"not renewed", func(m *Marker) { m.End = End(guard.Now()) }, "its lease has run out"},
		{"not renewed, by one clock", func(m *Marker) { m.End.Boot = guard.Now().Boot }, "its lease has run out"},
		{"without an end", func(m *Marker) { m.End = End{} }, "its lease has run out"},
		{"stopped", func(m *Marker) { become(m, stopped, unix.WSTOPPED) }, "is stopped"},
		{"not waited for", func(m *Marker) { become(m, zombie, unix.WEXITED) }, "has ended"},
		{"another boot", func(m *Marker) { m.BootID = "11111111-1111-1111-1111-111111111111" }, "another host or before the last boot"},
		{"process gone", func(m *Marker) { m.PID = gone.Process.Pid }, "is gone"},
		{"pid used again", func(m *Marker) { m.StartTime = "1" }, "another by now"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := f.self
			m.End = End(later)
			tt.change(&m)
			var stale *StaleError
			if err := m.Check(); !errors.As(err, &stale) || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("Check = %v, want a StaleError with %q", err, tt.why)
			}
			// A stale one is removed, whoever's it is.
			m.Instance = "another"
			data, _ := json.Marshal(m)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := f.Remove(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the stale marker is still there: %v", err)
			}
		})
	}
}

// A marker of another living process, and a file that is none, stay.
func TestNotOurs(t *testing.T) {
	t.Parallel()
	f, path := newFile(t)
	other, err := NewFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Write("invoices", "7", "t7", later); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if m, err := Read(path); err != nil || m.Instance != other.self.Instance {
		t.Errorf("another's marker: %+v, %v", m, err)
	}
	nowhere, err := NewFile(filepath.Join(path, "below a file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nowhere.Probe(); err == nil {
		t.Error("Probe below a file succeeded")
	}
	for _, text := range []string{"", "precious", `{"pid": 1}`, "[]"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(); !errors.Is(err, ErrForeign) {
			t.Errorf("Remove of %q: %v, want ErrForeign", text, err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != text {
			t.Errorf("the file is now %q, %v; want %q", data, err, text)
		}
	}
}

// What might never come to an end is not read.
func TestNoRegularFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, "/dev/zero", filepath.Dir(path)} {
		if _, err := Read(path); !errors.Is(err, ErrForeign) {
			t.Errorf("Read of %s: %v, want ErrForeign", path, err)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, []byte(strings.Repeat(" ", sizeMax)+"{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(large); !errors.Is(err, ErrForeign) {
		t.Errorf("Read of a large file: %v, want ErrForeign", err)
	}
}
