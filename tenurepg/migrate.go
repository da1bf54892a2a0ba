package tenurepg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure/store"
)

// Migrate brings the schema "tenure" of conn's database to the version that this
// package works with, in one transaction, and returns the names of the steps it
// applied: none if there was nothing to do. Several may run at once; one does the
// work. It only goes forward: a schema of a newer version is left alone, with
// [store.ErrFormat].
//
// The role needs the right to create a schema the first time, and must own it
// later. It owns the functions too, which run with its rights: other roles get
// theirs by GRANT, see the package's documentation. Programs that are running go
// on with the functions they know; one that starts with an older version of this
// package afterwards is refused.
func Migrate(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	applied, err := migrate(ctx, conn)
	if err != nil {
		return nil, explain(err, "migrating the schema")
	}
	return applied, nil
}

func migrate(ctx context.Context, conn *pgx.Conn) (applied []string, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	if err := script(ctx, tx, sqlMigrateBegin); err != nil {
		return nil, err
	}
	var version int
	if err := tx.QueryRow(ctx, sqlMigrateApplied, pgx.QueryExecModeExec).Scan(&version); err != nil {
		return nil, err
	}
	if version > schemaVersion {
		return nil, newerSchema(version)
	}
	for _, m := range migrations[version:] {
		if err := script(ctx, tx, m.text); err != nil {
			return nil, fmt.Errorf("migration %d, %s: %w", m.version, m.name, err)
		}
		if _, err := tx.Exec(ctx, sqlMigrateRecord, pgx.QueryExecModeExec, m.version, m.name); err != nil {
			return nil, err
		}
		applied = append(applied, m.name)
	}
	return applied, tx.Commit(ctx)
}

// script sends several statements at once.
func script(ctx context.Context, tx pgx.Tx, text string) error {
	return tx.Conn().PgConn().Exec(ctx, text).Close()
}

func newerSchema(version int) error {
	return &failure{kind: store.ErrFormat, text: fmt.Sprintf("the schema tenure is of version %d, this program knows versions up to %d: use a newer version of the program", version, schemaVersion)}
}

func olderSchema(version int) error {
	text := fmt.Sprintf("the schema tenure is of version %d, this program needs version %d", version, schemaVersion)
	if version == 0 {
		text = "the database has no schema tenure"
	}
	return &failure{kind: store.ErrFormat, text: text + ": run \"tenure init\" or call tenurepg.Migrate, with a role that may change it"}
}
