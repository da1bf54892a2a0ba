package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenurepg"
)

// sendInvoices is a leader's job that docs/fences/postgres.md shows.
func sendInvoices(ctx context.Context, pool *pgxpool.Pool, term *tenure.Term) error {
	f := tenurepg.NewFence(pool, nil)
	// Before anything is read: what the predecessor had open is over now.
	if err := f.Enter(ctx, term.Stamp("invoices")); err != nil {
		return err
	}
	var next int
	if err := pool.QueryRow(ctx, "select coalesce(max(n), 0) + 1 from invoices").Scan(&next); err != nil {
		return err
	}
	_, err := f.Do(ctx, term.Stamp("invoices"), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into invoices (n) values ($1)", next)
		return err
	})
	return err
}

// payInvoice is a chained write that docs/fences/postgres.md shows.
func payInvoice(ctx context.Context, pool *pgxpool.Pool, term *tenure.Term, position int64, payment string) error {
	f := tenurepg.NewFence(pool, nil)
	digest := fence.NewDigest(payment, []byte(payment)) // drawn once, kept through every try
	for {
		s := term.Stamp("invoices") // with the renewal of now; token 0, which is refused, after the term's end
		s.Lane, s.Position, s.Digest = "payments", position, digest
		_, err := f.Do(ctx, s, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into payments (id) values ($1)", payment)
			return err
		})
		if err == nil || fence.Refused(err) || ctx.Err() != nil || term.Err() != nil {
			return err // written once, or not at all by this term
		}
	}
}
