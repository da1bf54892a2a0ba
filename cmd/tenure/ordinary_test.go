package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ordinary is a user without root's rights, with a home of their own, who names
// no store.
type ordinary struct {
	t    *testing.T
	dir  string // holds the command, and belongs to them
	home string
}

func newOrdinary(t *testing.T) *ordinary {
	t.Helper()
	t.Parallel()
	// Not t.TempDir: nobody else may enter that.
	dir, err := os.MkdirTemp("", "tenure-ordinary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	copyCommand(t, dir)
	u := &ordinary{t: t, dir: dir, home: filepath.Join(dir, "home")}
	if err := os.Mkdir(u.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		for _, path := range []string{dir, u.home} {
			if err := os.Chown(path, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	return u
}

// copyCommand puts a `tenure` of its own into dir. It is written by another
// process: one that has it open for writing, as every child of this process would
// for a moment, keeps it from being run.
func copyCommand(t *testing.T, dir string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", exe, filepath.Join(dir, "tenure")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// runs runs a `tenure` as that user, checks its exit code, and returns what it
// said on standard output and error.
func (u *ordinary) runs(want int, args ...string) (stdout, stderr string) {
	u.t.Helper()
	c := exec.Command(filepath.Join(u.dir, "tenure"), args...)
	c.Dir, c.Env = u.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + u.home}
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var out, said bytes.Buffer
	c.Stdout, c.Stderr, c.WaitDelay = &out, &said, patience
	late := time.AfterFunc(patience, func() { c.Process.Kill() })
	defer late.Stop()
	if err := c.Start(); err != nil {
		u.t.Fatal(err)
	}
	c.Wait()
	if got := c.ProcessState.ExitCode(); got != want {
		u.t.Errorf("tenure %q ended with %d, want %d:\n%s%s", args, got, want, &out, &said)
	}
	return out.String(), said.String()
}

// Looking at the default store makes nothing, and knows nothing, before somebody
// contends.
func TestLookingMakesNothing(t *testing.T) {
	u := newOrdinary(t)
	u.runs(0, "status")
	u.runs(exitNo, "status", "job")
	u.runs(exitNo, "history", "job")
	u.runs(exitNo, "evict", "job", "--reason", "x")
	if left, err := os.ReadDir(u.home); err != nil || len(left) > 0 {
		t.Errorf("looking made %v, %v", left, err)
	}
	u.runs(0, "run", "job", "--", "true")
	if out, _ := u.runs(0, "status", "job"); !strings.Contains(out, "vacant") {
		t.Errorf("status after the first run says %q", out)
	}
}

// A watch that began before the default store was there follows it.
func TestWatchUnborn(t *testing.T) {
	u := newOrdinary(t)
	u.runs(0, "run", "job", "--", "sh", "-c", `
		export HOME=$HOME/later; mkdir $HOME
		./tenure watch job >seen & w=$!
		trap 'kill $w' EXIT
		until grep -q 'none:' seen; do sleep 0.02; done
		test -z "$(ls -A $HOME)" || exit 3
		./tenure run job -- true
		until grep -q vacant seen; do sleep 0.02; done`)
}

// A default store that cannot be made is one that cannot be asked, or one that
// refuses permission: nothing is wrong with the command line.
func TestDefaultStoreOutOfReach(t *testing.T) {
	u := newOrdinary(t)
	u.home = "/proc"
	u.runs(exitUnreachable, "run", "job", "--", "true")
	u.runs(exitUnreachable, "init")
	u.home = filepath.Join(u.dir, "closed")
	if err := os.Mkdir(u.home, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(u.home, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	if _, said := u.runs(exitDenied, "run", "job", "--", "true"); !strings.Contains(said, "default store") {
		t.Errorf("it said %q", said)
	}
	u.runs(exitDenied, "init")
}

// A fence that may not be entered is found before anybody leads.
func TestFenceDenied(t *testing.T) {
	u := newOrdinary(t)
	file := filepath.Join(u.dir, "work.db")
	if out, err := exec.Command("sqlite3", file, "create table work (n)").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, mode := range []os.FileMode{0o000, 0o444} { // of a file of root's, or of this user's own
		if err := unix.Chmod(file, uint32(mode)); err != nil {
			t.Fatal(err)
		}
		if _, said := u.runs(exitDenied, "run", "job", "--fence", "sqlite:"+file+"#r", "--", "touch", "ran"); strings.Contains(said, "leading") {
			t.Errorf("mode %o: it led first:\n%s", mode, said)
		}
	}
	u.runs(exitNo, "status", "job")
}
