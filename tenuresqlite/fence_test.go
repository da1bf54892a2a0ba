//go:build linux

package tenuresqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// TestFence_FrozenLeader: a leader is frozen past its lease, another takes over
// and enters; the old one thaws and writes at once. The write is refused.
func TestFence_FrozenLeader(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		dir := t.TempDir()
		lease, job := filepath.Join(dir, "lease.db"), filepath.Join(dir, "job.db")
		db := openJob(t, job, journal)
		if _, err := db.Exec("create table written (resource text, value text)"); err != nil {
			t.Fatal(err)
		}
		old := start(t, "write", lease, job)
		old.expect("entered 1")
		old.say("write")
		old.expect("write: done")
		old.freeze()

		s := open(t, lease, nil)
		l, err := acquireWhenFree(t, s, claim("invoices", time.Minute), false)
		if err != nil || l.Token != 2 {
			t.Fatalf("%+v, %v", l, err)
		}
		f := NewFence(db)
		if err := f.Enter(t.Context(), fence.Stamp{Resource: "invoices", Token: l.Token, TermID: string(l.TermID)}); err != nil {
			t.Fatal(err)
		}
		old.say("write") // it lies in the pipe until the thaw
		old.thaw()
		old.expect("write: " + fence.ErrStale.Error())
		if n := ask[int](t, job, "select count(*) from written"); n != 1 {
			t.Errorf("%d writes landed, want the first alone", n)
		}
	})
}

// TestFence_BusyWriter: the fence waits for another program's write, but no
// longer than it is allowed to, and then nothing was written.
func TestFence_BusyWriter(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		db := openJob(t, path, journal)
		f := NewFence(db)
		stamp := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
		if err := f.Enter(t.Context(), stamp); err != nil {
			t.Fatal(err)
		}
		job := start(t, "hold", path)
		job.expect("holding")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		wrote := false
		_, err := f.Do(ctx, stamp, func(*sql.Tx) error { wrote = true; return nil })
		if !errors.Is(err, store.ErrBusy) || store.OutcomeUnknown(err) || fence.Refused(err) || wrote {
			t.Errorf("%v, outcome unknown: %t, wrote: %t", err, store.OutcomeUnknown(err), wrote)
		}
		done := make(chan error, 1)
		go func() {
			_, err := f.Do(context.Background(), stamp, func(*sql.Tx) error { return nil })
			done <- err
		}()
		job.say("commit")
		if err := <-done; err != nil {
			t.Errorf("after the other program committed: %v", err)
		}

		// A deadline that SQLite cannot count to.
		var timeout int
		ctx, cancel = context.WithTimeout(t.Context(), 100*365*24*time.Hour)
		defer cancel()
		hasty, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer hasty.Close()
		_, err = NewFence(hasty).Do(ctx, stamp, func(tx *sql.Tx) error { return tx.QueryRow("pragma busy_timeout").Scan(&timeout) })
		if err != nil || timeout < 1000 {
			t.Errorf("with a deadline far away the busy_timeout is %d ms, %v", timeout, err)
		}
		if err := db.QueryRow("pragma busy_timeout").Scan(&timeout); err != nil || timeout != 10000 {
			t.Errorf("the job's busy_timeout became %d, %v", timeout, err)
		}
	})
}

// TestFence_ReadBefore: a transaction that has read before it asks the fence,
// and was overtaken in between, is never checked against what it read.
func TestFence_ReadBefore(t *testing.T) {
	path := file(t)
	db := openJob(t, path, WAL)
	deferred, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer deferred.Close()
	stamp := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	if err := Enter(t.Context(), db, stamp); err != nil {
		t.Fatal(err)
	}
	tx, err := deferred.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := Last(t.Context(), tx, "r", "l"); err != nil {
		t.Fatal(err)
	}
	if err := Enter(t.Context(), db, fence.Stamp{Resource: "r", Token: 8, TermID: "b"}); err != nil {
		t.Fatal(err)
	}
	_, err = Check(t.Context(), tx, stamp)
	if !errors.Is(err, store.ErrBusy) || store.OutcomeUnknown(err) {
		t.Errorf("a transaction that was overtaken: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if tx, err = deferred.BeginTx(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := Check(t.Context(), tx, stamp); !errors.Is(err, fence.ErrStale) {
		t.Errorf("done again: %v", err)
	}
}

// TestFence_NothingKept: a write that fails or panics leaves nothing, also none
// of the tables if they were made for it.
func TestFence_NothingKept(t *testing.T) {
	path := file(t)
	db := openJob(t, path, WAL)
	f := NewFence(db)
	stamp := fence.Stamp{Resource: "r", Token: 7, TermID: "a", Lane: "l", Position: 1, Digest: "d"}
	fault := errors.New("no")
	if _, err := f.Do(t.Context(), stamp, func(tx *sql.Tx) error {
		if _, err := tx.Exec("create table job (n)"); err != nil {
			t.Fatal(err)
		}
		return fault
	}); err != fault {
		t.Errorf("%v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = f.Do(t.Context(), stamp, func(*sql.Tx) error { panic("no") })
	}()
	if n := ask[int](t, path, "select count(*) from sqlite_master"); n != 0 {
		t.Errorf("%d tables or indices were left", n)
	}
	if _, err := f.Do(t.Context(), stamp, func(*sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	l, err := f.Last(t.Context(), "r", "l")
	if err != nil || l != (fence.LaneMark{Token: 7, Position: 1, Digest: "d"}) {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestFence_Cancelled: a context that ends while the write runs undoes it.
func TestFence_Cancelled(t *testing.T) {
	path := file(t)
	db := openJob(t, path, WAL)
	if _, err := db.Exec("create table job (n)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := NewFence(db).Do(ctx, fence.Stamp{Resource: "r", Token: 7}, func(tx *sql.Tx) error {
		_, err := tx.Exec("insert into job values (1)")
		cancel()
		return err
	})
	if err == nil || fence.Refused(err) {
		t.Errorf("%v", err)
	}
	if n := ask[int](t, path, "select count(*) from job"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}
