package process

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// resource is the name of what the jobs write to.
const resource = "ledger"

// ledger is a fenced resource: a table in a SQLite file of its own.
type ledger struct {
	db    *sql.DB
	fence *tenuresqlite.Fence
}

// openDB opens a SQLite file with the driver's own waiting for locks. What is
// lost in a power cut does not matter to these tests, only in a kill.
func openDB(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
}

func openLedger(path string) (*ledger, error) {
	db, err := openDB(path)
	if err != nil {
		return nil, err
	}
	_, err = db.Exec("create table if not exists ledger (id integer primary key autoincrement, token integer, pid integer, n integer)")
	return &ledger{db, tenuresqlite.NewFence(db)}, err
}

// write makes one fenced write.
func (l *ledger) write(ctx context.Context, s fence.Stamp, n int) error {
	_, err := l.fence.Do(ctx, s, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "insert into ledger (token, pid, n) values (?, ?, ?)", int64(s.Token), os.Getpid(), n)
		return err
	})
	return err
}

// checkLedger checks that the tokens that the resource accepted never fell, and
// that it has every write which a job was told it has.
func checkLedger(t testing.TB, path string, all []stint) {
	t.Helper()
	db, err := openDB(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("select token, n from ledger order by id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	type write struct {
		token int64
		n     int
	}
	has := make(map[write]bool)
	var last int64
	for rows.Next() {
		var w write
		if err := rows.Scan(&w.token, &w.n); err != nil {
			t.Fatal(err)
		}
		if w.token < last {
			t.Errorf("%s accepted token %d after token %d", filepath.Base(path), w.token, last)
		}
		if has[w] {
			t.Errorf("write %d of token %d is there twice", w.n, w.token)
		}
		last, has[w] = w.token, true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, s := range all {
		for _, n := range s.Wrote {
			told++
			if !has[write{s.Token, n}] {
				t.Errorf("write %d of token %d was accepted and is not there", n, s.Token)
			}
		}
	}
	if told == 0 {
		t.Error("no job wrote anything")
	}
}
