package tenuresqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// A late write of an older term is refused, and nothing of it lands.
func ExampleFence_Do() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", filepath.Join(dir, "invoices.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("create table invoices (n integer)"); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	f := tenuresqlite.NewFence(db)
	write := func(token fence.Token, n int) error {
		_, err := f.Do(ctx, fence.Stamp{Resource: "invoices", Token: token}, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "insert into invoices values (?)", n)
			return err
		})
		return err
	}
	fmt.Println(write(7, 1))
	fmt.Println(f.Enter(ctx, fence.Stamp{Resource: "invoices", Token: 8})) // a successor begins
	err = write(7, 2)
	fmt.Println(errors.Is(err, fence.ErrStale), err)

	var n int
	if err := db.QueryRow("select count(*) from invoices").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "invoice")
	// Output:
	// <nil>
	// <nil>
	// true fence: resource "invoices" refused stale token 7: a higher token was seen (seen 8)
	// 1 invoice
}
