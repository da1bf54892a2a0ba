// Embed leads an election from a Go program and shows its stamp with each write.
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/tenuresqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := tenuresqlite.Open(ctx, "leases.db", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	elector, err := tenure.NewElector(store, "nightly-invoice", nil)
	if err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("sqlite", "invoices.db") // what the job writes to
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	invoices := tenuresqlite.NewFence(db)

	err = elector.RunOnce(ctx, func(ctx context.Context, term *tenure.Term) error {
		// ctx ends when the term does; the stamp makes the database refuse a late write.
		if err := invoices.Enter(ctx, term.Stamp("invoices")); err != nil {
			return err
		}
		_, err := invoices.Do(ctx, term.Stamp("invoices"), func(tx *sql.Tx) error {
			_, err := tx.Exec("create table if not exists runs (token integer); insert into runs values (?)", term.Token())
			return err
		})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
