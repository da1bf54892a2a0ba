//go:build linux

package tenuresqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenure-go/tenure/store"
)

// TestOpen_Paths: what cannot be a database file is refused by Open, each kind
// of trouble in its own way, and nothing is left behind.
func TestOpen_Paths(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) string {
		if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("nothing"), at("dangling")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, path, names string
		kind              error
	}{
		{"no path", "", "path is empty", store.ErrInvalid},
		{"a zero byte", "a\x00b", `"a\x00b"`, store.ErrInvalid},
		{"a database in memory", ":memory:", ":memory:", store.ErrInvalid},
		{"a SQLite URI", "file:" + at("x"), at("x"), store.ErrInvalid},
		{"a trailing slash", dir + "/", dir, store.ErrInvalid},
		{"a directory", at("directory"), at("directory"), store.ErrInvalid},
		{"a pipe", at("pipe"), at("pipe"), store.ErrInvalid},
		{"a device", "/dev/null", "/dev/null", store.ErrInvalid},
		{"a text file", write("text", strings.Repeat("This is not a database. ", 100)), at("text"), store.ErrInvalid},
		{"two missing directories", at("no/such/db"), at("no"), store.ErrUnreachable},
		{"a link to nothing", at("dangling"), at("dangling"), store.ErrInvalid},
		{"a file as a directory", filepath.Join(write("plain", "x"), "db"), at("plain"), store.ErrInvalid},
	} {
		s, err := Open(t.Context(), c.path, nil)
		if err == nil {
			t.Errorf("%s: opened", c.what)
			s.Close()
			continue
		}
		t.Log(err)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.names) || store.OutcomeUnknown(err) {
			t.Errorf("%s: %v; want %v, naming %q", c.what, err, c.kind, c.names)
		}
	}

	// The same for what becomes so later.
	s := open(t, at("later"), nil)
	if err := os.Symlink(at("nothing"), at("later")); err != nil {
		t.Fatal(err)
	}
	if f, err := s.Diagnose(t.Context()); err != nil || len(f) == 0 || f[0].OK || !strings.Contains(f[0].Text, "symbolic link to nothing") {
		t.Errorf("Diagnose = %v, %v; want the link to be found", f, err)
	}
	_, err := s.Acquire(t.Context(), claim("a", time.Minute))
	isKind(t, err, store.ErrInvalid, at("later"))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, dir)
}

// TestMissingDirectory: a directory is called missing only if it is. Some take no
// files, and the system says then what it says of a missing one.
func TestMissingDirectory(t *testing.T) {
	isKind(t, createFault(syscall.ENOENT, "/proc/x"), store.ErrUnreachable, "/proc/x cannot be created")
	if text := createFault(syscall.ENOENT, "/proc/x").Error(); strings.Contains(text, "first") {
		t.Errorf("/proc exists, and it is said: %s", text)
	}
	isKind(t, createFault(syscall.ENOENT, filepath.Join(t.TempDir(), "a", "b")), store.ErrUnreachable, "make the directory")
}

func TestOptions(t *testing.T) {
	_, err := Open(t.Context(), file(t), &Options{Journal: "off", Wait: -1, HistoryMax: -1, HistoryAge: -1})
	if !errors.Is(err, store.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{`Journal is "off"`, "Wait is -1ns", "HistoryMax is -1", "HistoryAge is -1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name the fault %q", err, want)
		}
	}
}

// TestFirstUse: looking makes nothing; the first acquire makes a file, and the
// directory that holds it, for its owner only.
func TestFirstUse(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "state")
	path := filepath.Join(dir, "tenure.db")
	s := open(t, path, nil)
	ctx := t.Context()
	lease := store.Lease{Name: "a", TermID: "x", Token: 1, Receipt: "r"}
	for what, err := range map[string]error{
		"get":     func() error { _, err := s.Get(ctx, "a"); return err }(),
		"renew":   func() error { _, err := s.Renew(ctx, lease, attempt()); return err }(),
		"batch":   s.RenewBatch(ctx, []store.Renewal{{Lease: lease, Attempt: attempt()}})[0].Err,
		"release": s.Release(ctx, lease, ""),
		"evict": func() error {
			_, err := s.Evict(ctx, store.Eviction{Name: "a", Reason: "test"})
			return err
		}(),
	} {
		if !errors.Is(err, store.ErrNoRecord) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Abandon(ctx, "a", attempt()); err != nil {
		t.Error(err)
	}
	for rec, err := range s.List(ctx) {
		t.Error("listed", rec, err)
	}
	if h, err := s.History(ctx, "a", 10); len(h) > 0 || err != nil {
		t.Error(h, err)
	}
	if f, err := s.Diagnose(ctx); err != nil || len(f) == 0 {
		t.Error(f, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("looking made the directory: %v", err)
	}

	acquire(t, s, claim("a", time.Minute))
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if got := ask[string](t, path, "pragma journal_mode"); got != "wal" {
		t.Errorf("journal mode %q", got)
	}
}

func TestInit(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	for _, want := range []string{"made Tenure's tables in " + path, path + " has Tenure's tables already"} {
		if got, err := s.Init(t.Context()); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

// TestJobsFile: a job's own file keeps its journal mode and whatever else is in
// it.
func TestJobsFile(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		db := openJob(t, path, journal)
		if _, err := db.Exec("create table orders (n); insert into orders values (7)"); err != nil {
			t.Fatal(err)
		}
		s := open(t, path, nil)
		if _, err := s.Renew(t.Context(), store.Lease{Name: "a", TermID: "x", Token: 1, Receipt: "r"}, attempt()); !errors.Is(err, store.ErrNoRecord) {
			t.Errorf("renewing before there are tables: %v", err)
		}
		if n := ask[int](t, path, "select count(*) from sqlite_master where name like 'tenure%'"); n != 0 {
			t.Errorf("a renewal made %d tables", n)
		}
		acquire(t, s, claim("a", time.Minute))
		if got := ask[string](t, path, "pragma journal_mode"); got != string(journal) {
			t.Errorf("the journal mode became %q", got)
		}
		if got := ask[int](t, path, "select n from orders"); got != 7 {
			t.Errorf("the job's row became %d", got)
		}
		if got := ask[string](t, path, "select group_concat(name) from sqlite_master where name not like 'tenure%' and name not like 'sqlite%'"); got != "orders" {
			t.Errorf("there are new names outside tenure_: %q", got)
		}
	})
}

// TestOddPaths: characters that mean something in a URI mean nothing in a path.
func TestOddPaths(t *testing.T) {
	for _, name := range []string{"a b", "a?mode=ro", "a#b", "a%41", "a&b=c", "лок ☃", "-x", "a:b", "it's", "\xff\xfe"} {
		path := filepath.Join(t.TempDir(), name)
		s := open(t, path, nil)
		acquire(t, s, claim("a", time.Minute))
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if s.Path() != path || s.String() != "sqlite:"+path {
			t.Errorf("%q: %q, %q", name, s.Path(), s)
		}
	}
}

// nobody runs a process as a user without rights.
func nobody(c *exec.Cmd) {
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
}

// denying returns a mode that gives the user of [nobody] the rights that mode
// gives to others: as this process's own user if that is not root, whom no mode
// stops.
func denying(mode os.FileMode) os.FileMode {
	if os.Geteuid() == 0 {
		return mode
	}
	others := mode & 0o007
	return others<<6 | others<<3 | others
}

// TestDenied: a user without the right to read or write the file is told so, and
// by which file, and never that the election is held or free.
func TestDenied(t *testing.T) {
	// A directory that any user can reach, and a copy of this binary there.
	top, err := os.MkdirTemp("/tmp", "tenuresqlite")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("sh", "-c", `chmod -R u+rwx "$1"; rm -rf "$1"`, "sh", top).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", exe, filepath.Join(top, "tenure.test")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range []struct {
		what      string
		dir, file os.FileMode // of root; 0: no file
		want      error
		names     string
	}{
		{"no right to read", 0o777, 0o600, store.ErrDenied, "file.db"},
		{"no right to write", 0o777, 0o644, store.ErrDenied, "file.db"},
		{"no right to make a journal", 0o755, 0o666, store.ErrDenied, "dir"},
		{"no right to make the file", 0o755, 0, store.ErrDenied, "file.db"},
		{"no right to enter", 0o700, 0o666, store.ErrDenied, "file.db"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := filepath.Join(top, strings.ReplaceAll(c.what, " ", "-"), "dir")
			path := filepath.Join(dir, "file.db")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.file != 0 {
				s, err := Open(t.Context(), path, nil)
				if err != nil {
					t.Fatal(err)
				}
				acquire(t, s, claim("b", time.Minute))
				if err := errors.Join(s.Close(), os.Chmod(path, denying(c.file))); err != nil {
					t.Fatal(err)
				}
			}
			err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(top, 0o755), os.Chmod(dir, denying(c.dir)))
			if err != nil {
				t.Fatal(err)
			}
			p := startAs(t, func(cmd *exec.Cmd) {
				nobody(cmd)
				cmd.Path = filepath.Join(top, "tenure.test")
			}, "try", path)
			kind, text := p.line(), p.line()
			t.Log(text)
			if kind != c.want.Error() || !strings.Contains(text, c.names) {
				t.Errorf("%q: %s; want %v, naming %s", kind, text, c.want, c.names)
			}
		})
	}
}

// TestReadOnlyMount: the file lies on a file system that takes no writes.
func TestReadOnlyMount(t *testing.T) {
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprint("file exists ", made), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "tenure.db")
			if made {
				s := open(t, path, nil)
				acquire(t, s, claim("b", time.Minute))
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			p := startAs(t, func(c *exec.Cmd) {
				script := `mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"`
				c.Args = append([]string{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", dir, c.Path}, c.Args[1:]...)
				c.Path, c.Err = exec.LookPath("unshare")
			}, "try", path)
			kind, text := p.line(), p.line()
			t.Log(text)
			if kind != store.ErrReadOnly.Error() || !strings.Contains(text, path) {
				t.Errorf("%q: %s", kind, text)
			}
		})
	}
}

// TestB25_ErrorsGrantNothing: whatever is wrong with the file, nobody leads by
// it, and nobody is told that the election is held or free.
func TestB25_ErrorsGrantNothing(t *testing.T) {
	for what, spoil := range map[string]func(t *testing.T, path string){
		"the token is text":     func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set token = 'x'") },
		"the token is 0":        func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set token = 0") },
		"the expiry is text":    func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set expires_ns = 'soon'") },
		"the expiry is a blob":  func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set expires_ns = x'00'") },
		"the ttl is 0":          func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set ttl_ns = 0") },
		"the ttl is a fraction": func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set ttl_ns = 1.5") },
		"the burns are no JSON": func(t *testing.T, path string) { execOn(t, path, "update tenure_lease set burns = '['") },
		"the version is text":   func(t *testing.T, path string) { execOn(t, path, "update tenure_meta set value = 'x'") },
		"the version is gone":   func(t *testing.T, path string) { execOn(t, path, "delete from tenure_meta") },
		"another table of a name": func(t *testing.T, path string) {
			execOn(t, path, "drop table tenure_lease; create table tenure_lease (x)")
		},
		"the table is gone": func(t *testing.T, path string) { execOn(t, path, "drop table tenure_lease") },
		"the file is damaged": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			junk := make([]byte, 4096)
			for i := range junk {
				junk[i] = byte(i * 7)
			}
			for page := range 8 {
				if _, err := f.WriteAt(junk, int64(page+1)*4096); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"the file is another": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("garbage", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			path := file(t)
			made, err := Open(t.Context(), path, &Options{Journal: Rollback})
			if err != nil {
				t.Fatal(err)
			}
			l := acquire(t, made, claim("a", time.Minute))
			if err := made.Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, path)
			s, err := Open(t.Context(), path, nil)
			if err != nil {
				t.Log("open:", err)
				wrong(t, "open", err)
				return
			}
			defer s.Close()
			got, err := s.Acquire(t.Context(), claim("a", time.Minute))
			t.Log("acquire:", err)
			wrong(t, "acquire", err)
			if got != (store.Lease{}) {
				t.Errorf("a lease came with the error: %+v", got)
			}
			_, err = s.Renew(t.Context(), l, attempt())
			wrong(t, "renew", err)
			wrong(t, "release", s.Release(t.Context(), l, ""))
			_, err = s.Get(t.Context(), "a")
			wrong(t, "get", err)
		})
	}
}

// wrong fails unless err says that the store is in no state to answer.
func wrong(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	if !errors.Is(err, store.ErrUnreachable) && !errors.Is(err, store.ErrInvalid) || store.OutcomeUnknown(err) {
		t.Errorf("%s: %v, outcome unknown: %t", what, err, store.OutcomeUnknown(err))
	}
	for _, answer := range []error{store.ErrHeld, store.ErrVacant, store.ErrNoRecord, store.ErrExpired} {
		if errors.Is(err, answer) {
			t.Errorf("%s: %v is an answer", what, err)
		}
	}
}

// TestB25_OneDamagedRecord: it harms no other election, in a batch least of all.
func TestB25_OneDamagedRecord(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	good, bad := acquire(t, s, claim("good", time.Minute)), acquire(t, s, claim("bad", time.Minute))
	execOn(t, path, "update tenure_lease set token = 'x' where name = ?", []byte("bad"))
	answers := s.RenewBatch(t.Context(), []store.Renewal{{Lease: bad, Attempt: attempt()}, {Lease: good, Attempt: attempt()}})
	wrong(t, "the damaged one", answers[0].Err)
	if answers[1].Err != nil || answers[1].Lease.Renewal != 1 {
		t.Errorf("the other one: %+v", answers[1])
	}
	renewed(t, s, answers[1].Lease)
}

// TestB05_RowRemoved: somebody deletes the row of a running leader. The leader
// hears of it at its next renewal; nobody takes its place before a full TTL, and
// the token does not fall.
func TestB05_RowRemoved(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{clock: clock.read})
	acquireAndRelease(t, s, "a", 4)
	l := acquire(t, s, claim("a", ttl))
	execOn(t, path, "delete from tenure_lease")

	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("reading: %v", err)
	}
	if _, err := s.Renew(t.Context(), l, attempt()); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("renewing: %v", err)
	}
	held := heldBy(t, s, claim("a", ttl))
	if held.Token != l.Token || held.Remaining != ttl || !held.Foreign {
		t.Errorf("acquiring: %+v", held)
	}
	if _, err := s.Renew(t.Context(), l, attempt()); !errors.Is(err, store.ErrReceipt) {
		t.Errorf("renewing once more: %v", err)
	}
	clock.pass(ttl)
	if next := acquire(t, s, claim("a", ttl)); next.Token != l.Token+1 {
		t.Errorf("token %d after %d", next.Token, l.Token)
	}

	// A row whose term was released is free at once, above its token.
	acquireAndRelease(t, s, "b", 4)
	execOn(t, path, "delete from tenure_lease where name = ?", []byte("b"))
	if next := acquire(t, s, claim("b", ttl)); next.Token != 5 {
		t.Errorf("token %d after 4", next.Token)
	}
}

func acquireAndRelease(t *testing.T, s *Store, name string, times int) {
	t.Helper()
	for range times {
		if err := s.Release(t.Context(), acquire(t, s, claim(name, ttl)), ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestB05_TablesDropped: the next request does not trip over it.
func TestB05_TablesDropped(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	l := acquire(t, s, claim("a", time.Minute))
	execOn(t, path, "drop table tenure_lease; drop table tenure_removed; drop table tenure_history; drop table tenure_meta")
	if _, err := s.Renew(t.Context(), l, attempt()); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("renewing: %v", err)
	}
	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, store.ErrNoRecord) {
		t.Errorf("reading: %v", err)
	}
	acquire(t, s, claim("a", time.Minute))
}

// TestB05_FileReplaced: the file is removed, or another is moved to its place,
// under a store that has it open. SQLite would go on writing to the old one,
// which nobody else can see.
func TestB05_FileReplaced(t *testing.T) {
	for what, replace := range map[string]func(t *testing.T, path string){
		"removed": func(t *testing.T, path string) {
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.Remove(path + suffix); err != nil {
					t.Fatal(err)
				}
			}
		},
		"replaced": func(t *testing.T, path string) {
			other := open(t, path+".new", nil)
			acquire(t, other, claim("a", time.Minute))
			if err := errors.Join(other.Close(), os.Remove(path+"-wal"), os.Remove(path+"-shm"), os.Rename(path+".new", path)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			path := file(t)
			s := open(t, path, nil)
			l := acquire(t, s, claim("a", time.Minute))
			get(t, s, "a")
			replace(t, path)
			_, err := s.Renew(t.Context(), l, attempt())
			rec, getErr := s.Get(t.Context(), "a")
			if what == "removed" {
				if !errors.Is(err, store.ErrNoRecord) || !errors.Is(getErr, store.ErrNoRecord) {
					t.Errorf("renewing: %v; reading: %v", err, getErr)
				}
				if next := acquire(t, s, claim("a", time.Minute)); next.Token != 1 {
					t.Errorf("token %d in a new file", next.Token)
				}
				return
			}
			if !errors.Is(err, store.ErrSuperseded) || getErr != nil || rec.TermID == l.TermID {
				t.Errorf("renewing: %v; reading: %+v, %v", err, rec, getErr)
			}
		})
	}
}

// TestB02_ThawedHolder: a process that slept through its own replacement cannot
// renew or release what is another's now, and changes nothing.
func TestB02_ThawedHolder(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal})
		if _, err := s.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := start(t, "lead", path, "a", TTLMin.String())
		a.expect("leads 1")
		a.freeze()
		b, err := acquireWhenFree(t, s, claim("a", time.Minute), false)
		if err != nil || b.Token != 2 {
			t.Fatalf("%+v, %v", b, err)
		}
		row := func() string {
			return ask[string](t, path, `select quote(name)||format||token||term_id||quote(holder)||ttl_ns||expires_ns||clock||adopted
				||receipt||renewal||used||used_by||released||quote(evicted)||fenced_only||acquired_ns||renewed_ns||burns from tenure_lease`)
		}
		before := row()
		a.thaw()
		for _, request := range []string{"renew", "release", "renew"} {
			a.say(request)
			a.expect(request + ": " + store.ErrSuperseded.Error())
		}
		if after := row(); after != before {
			t.Errorf("the row changed from\n%s to\n%s", before, after)
		}
		renewed(t, s, b)
	})
}

// TestB02_RowOverwritten: another holder's record is written over a lease that is
// still renewed. Neither the renewal nor the release changes it, whether it has a
// token of its own or, as after a restore, the same.
func TestB02_RowOverwritten(t *testing.T) {
	for what, token := range map[string]int{"higher token": 2, "same token": 1} {
		t.Run(what, func(t *testing.T) {
			path := file(t)
			s := open(t, path, nil)
			l := renewed(t, s, acquire(t, s, claim("a", time.Minute)))
			execOn(t, path, "update tenure_lease set term_id = 'another', token = ?, holder = cast('b' as blob)", token)
			row := func() string {
				return ask[string](t, path, "select format||token||term_id||quote(holder)||ttl_ns||expires_ns||receipt||renewal||used||used_by||released||burns from tenure_lease")
			}
			before := row()
			_, err := s.Renew(t.Context(), l, attempt())
			for request, err := range map[string]error{
				"renew":   err,
				"batch":   s.RenewBatch(t.Context(), []store.Renewal{{Lease: l, Attempt: attempt()}})[0].Err,
				"release": s.Release(t.Context(), l, attempt()),
			} {
				if !errors.Is(err, store.ErrSuperseded) {
					t.Errorf("%s: %v", request, err)
				}
			}
			if err := s.Abandon(t.Context(), "a", l.TermID); err != nil {
				t.Errorf("abandon: %v", err)
			}
			heldBy(t, s, claim("a", time.Minute))
			if after := row(); after != before {
				t.Errorf("the record changed from\n%s to\n%s", before, after)
			}
		})
	}
}

// TestB31_TTLs: what is granted is what was asked, or it is refused with the
// bounds.
func TestB31_TTLs(t *testing.T) {
	s := open(t, file(t), nil)
	for i, d := range []time.Duration{time.Second, 1500 * time.Millisecond, time.Second + 1, 9 * time.Second, 24 * time.Hour, TTLMax} {
		name := fmt.Sprint(i)
		before := now(t)
		l := acquire(t, s, claim(name, d))
		rec := get(t, s, name)
		if l.TTL != d || rec.TTL != d || rec.Remaining > d || rec.Remaining < d-(now(t)-before) {
			t.Errorf("asked for %v, got %v, of which %v are left", d, l.TTL, rec.Remaining)
		}
	}
	for _, d := range []time.Duration{-1, 0, 1, 400 * time.Millisecond, time.Second - 1, TTLMax + 1, 1<<63 - 1, -1 << 63} {
		_, err := s.Acquire(t.Context(), claim("x", d))
		isKind(t, err, store.ErrInvalid, TTLMin.String())
	}
}

// TestB32_NamesInAnyEncoding: distinct names stay distinct, also in a job's file
// whose text is UTF-16, where SQLite takes some characters for one another.
func TestB32_NamesInAnyEncoding(t *testing.T) {
	names := []string{
		"jobs", "jobs/a", "jobs/a/b", "jobs//a", "/jobs", "jobs/", "jobs%2Fa", "Jobs", "jobs ", "..", "café", "cafe\u0301", "лок", "😀", "a:b", "{x}y",
		"\ufffe", "\uffff", "\ufffd", "\ufeffa", "a", "jobsx", strings.Repeat("x", 199), strings.Repeat("x", 200), "1", "01", "1.0", "null", "x'00'", `"q"`, "it's",
	}
	for _, encoding := range []string{"UTF-8", "UTF-16le", "UTF-16be"} {
		path := file(t)
		if _, err := openJob(t, path, "").Exec("pragma encoding = '" + encoding + "'; create table job (n)"); err != nil {
			t.Fatal(err)
		}
		if got := ask[string](t, path, "pragma encoding"); got != encoding {
			t.Fatalf("encoding %s, want %s", got, encoding)
		}
		s := open(t, path, nil)
		leases := make(map[string]store.Lease)
		for i, name := range names {
			c := claim(name, time.Minute)
			c.Holder, c.Meta, c.Floor = name, "meta\n\t☃ of "+name, 1<<53+1
			leases[name] = acquire(t, s, c)
			if i%2 == 0 {
				leases[name] = renewed(t, s, leases[name])
			}
		}
		for _, name := range names {
			rec := get(t, s, name)
			if rec.Name != name || rec.TermID != leases[name].TermID || rec.Holder != name || rec.Meta != "meta\n\t☃ of "+name || rec.Token != 1<<53+2 {
				t.Errorf("%s, %q: %+v", encoding, name, rec)
			}
		}
		var last string
		n := 0
		for rec, err := range s.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Name <= last {
				t.Errorf("%s: %q is listed after %q", encoding, rec.Name, last)
			}
			last = rec.Name
			n++
		}
		if n != len(names) {
			t.Errorf("%s: %d of %d names are listed", encoding, n, len(names))
		}
	}
}

// TestS12_NewerSchema: a newer Tenure has been at the file, before or while this
// one runs. This one refuses to touch it and says what to do.
func TestS12_NewerSchema(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	l := acquire(t, s, claim("a", time.Minute))
	before := get(t, s, "a")
	execOn(t, path, "update tenure_meta set value = ? where key = 'schema'", schemaVersion+1)
	_, err := s.Acquire(t.Context(), claim("a", time.Minute))
	isKind(t, err, store.ErrFormat, path)
	if !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("%q does not say what to do", err)
	}
	_, err = s.Renew(t.Context(), l, attempt())
	isKind(t, err, store.ErrFormat, path)
	isKind(t, s.Release(t.Context(), l, ""), store.ErrFormat, path)
	_, err = s.Get(t.Context(), "a")
	isKind(t, err, store.ErrFormat, path)
	_, err = Open(t.Context(), path, nil)
	isKind(t, err, store.ErrFormat, path)

	execOn(t, path, "update tenure_meta set value = ? where key = 'schema'", schemaVersion)
	if after := get(t, s, "a"); after.TermID != before.TermID || after.Renewal != 0 || after.State != store.Live {
		t.Errorf("the record changed to %+v", after)
	}
}

// TestS12_NewerRecord: one record is of a newer format, as in a file that two
// versions use while they are rolled out. It is neither free nor renewed nor
// changed; the others of the file are served.
func TestS12_NewerRecord(t *testing.T) {
	path := file(t)
	s := open(t, path, nil)
	l, other := acquire(t, s, claim("a", ttl)), acquire(t, s, claim("b", time.Minute))
	execOn(t, path, "update tenure_lease set format = ?, expires_ns = 0 where name = ?", store.Format+1, []byte("a"))
	row := func() string {
		return ask[string](t, path, "select format||token||term_id||receipt||renewal||released||quote(evicted)||expires_ns||clock from tenure_lease where name = ?", []byte("a"))
	}
	before := row()
	_, acquired := s.Acquire(t.Context(), claim("a", ttl))
	_, renewal := s.Renew(t.Context(), l, attempt())
	_, got := s.Get(t.Context(), "a")
	_, evicted := s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test", Now: true})
	answers := s.RenewBatch(t.Context(), []store.Renewal{{Lease: l, Attempt: attempt()}, {Lease: other, Attempt: attempt()}})
	for what, err := range map[string]error{
		"acquire": acquired, "renew": renewal, "get": got, "evict": evicted, "batch": answers[0].Err,
		"release": s.Release(t.Context(), l, ""), "abandon": s.Abandon(t.Context(), "a", l.TermID),
	} {
		if !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if answers[1].Err != nil || answers[1].Lease.Renewal != 1 {
		t.Errorf("the other of the batch: %+v", answers[1])
	}
	if after := row(); after != before {
		t.Errorf("the record changed from\n%s to\n%s", before, after)
	}
}

// TestClose: nothing is left of a store, whatever it did.
func TestClose(t *testing.T) {
	forEachSerially(t, func(t *testing.T, journal Journal) {
		path := file(t)
		for range 20 {
			s, err := Open(t.Context(), path, &Options{Journal: journal})
			if err != nil {
				t.Fatal(err)
			}
			l := acquire(t, s, claim("a", time.Minute))
			hints, err := s.Watch(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			renewed(t, s, l)
			get(t, s, "a")
			if err := s.Abandon(t.Context(), "a", l.TermID); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Evict(t.Context(), store.Eviction{Name: "a", Reason: "test", Now: true}); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Close(), s.Close()); err != nil {
				t.Fatal(err)
			}
			for range hints {
				continue
			}
			if _, err := s.Get(t.Context(), "a"); !errors.Is(err, store.ErrStoreClosed) {
				t.Fatalf("a closed store says %v", err)
			}
		}
		nothingLeft(t, filepath.Dir(path))
		if holder := lockHolder(path, false); holder != "" {
			t.Errorf("%s still has a lock", holder)
		}
		if left, err := filepath.Glob(path + "-*"); err != nil || len(left) > 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
	})
}

func forEachSerially(t *testing.T, f func(t *testing.T, journal Journal)) {
	for _, j := range journals {
		t.Run(string(j), func(t *testing.T) { f(t, j) })
	}
}

// TestHistory_Pruned: the history of an election is bounded by number and age.
func TestHistory_Pruned(t *testing.T) {
	clock, path := newFakeClock(), file(t)
	s := open(t, path, &Options{HistoryMax: 5, HistoryAge: time.Hour, clock: clock.read})
	acquireAndRelease(t, s, "a", 10)
	acquireAndRelease(t, s, "b", 1)
	for name, want := range map[string]int{"a": 5, "b": 2} {
		h, err := s.History(context.Background(), name, 100)
		if err != nil || len(h) != want || h[0].What != "released" {
			t.Errorf("%s: %v, %v; want %d lines", name, h, err, want)
		}
	}
	if h, err := s.History(context.Background(), "a", 2); err != nil || len(h) != 2 || h[0].Token != 10 {
		t.Errorf("%v, %v", h, err)
	}
	clock.pass(time.Hour + 1)
	acquireAndRelease(t, s, "c", 1)
	if n := ask[int](t, path, "select count(*) from tenure_history"); n != 2 {
		t.Errorf("%d lines are kept after an hour, want the two new ones", n)
	}
}

// TestDiagnose: what an operator should know is found and explained.
func TestDiagnose(t *testing.T) {
	find := func(t *testing.T, s *Store, what string) store.Finding {
		t.Helper()
		all, err := s.Diagnose(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.What == what {
				return f
			}
		}
		t.Fatalf("nothing is said of %q: %+v", what, all)
		return store.Finding{}
	}
	path := file(t)
	clock := newFakeClock()
	s := open(t, path, &Options{clock: clock.read})
	acquire(t, s, claim("a", time.Minute))
	all, err := s.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		t.Log(f)
		if !f.OK {
			t.Errorf("%+v", f)
		}
	}

	clock.set(func(c *fakeClock) { c.boot = "boot-2" })
	if f := find(t, s, "copy"); f.OK || !strings.Contains(f.Text, "1 of 1") {
		t.Errorf("%+v", f)
	}
	execOn(t, path, "create table orders (n)")
	if f := find(t, s, "sharing"); f.OK || !strings.Contains(f.Text, "orders") {
		t.Errorf("%+v", f)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if f := find(t, s, "file"); f.OK || !strings.Contains(f.Text, "chmod 700") {
		t.Errorf("%+v", f)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if f := find(t, s, "file"); f.OK || !strings.Contains(f.Text, "0666") {
		t.Errorf("%+v", f)
	}
	if err := os.Link(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	if f := find(t, s, "file"); f.OK || !strings.Contains(f.Text, "2 names") {
		t.Errorf("%+v", f)
	}
	shm := open(t, "/dev/shm/"+filepath.Base(filepath.Dir(path))+".db", nil)
	if f := find(t, shm, "file system"); f.OK || !strings.Contains(f.Text, "memory") {
		t.Errorf("%+v", f)
	}
}
