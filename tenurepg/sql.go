package tenurepg

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Every statement is in a file of its own.
var (
	//go:embed sql/migrations/*.sql
	sqlMigrations embed.FS
	//go:embed sql/migrate/begin.sql
	sqlMigrateBegin string
	//go:embed sql/migrate/applied.sql
	sqlMigrateApplied string
	//go:embed sql/migrate/record.sql
	sqlMigrateRecord string

	//go:embed sql/calls/greet.sql
	sqlGreet string
	//go:embed sql/calls/check.sql
	sqlCheck string
	//go:embed sql/calls/acquire.sql
	sqlAcquire string
	//go:embed sql/calls/renew.sql
	sqlRenew string
	//go:embed sql/calls/release.sql
	sqlRelease string
	//go:embed sql/calls/abandon.sql
	sqlAbandon string
	//go:embed sql/calls/evict.sql
	sqlEvict string
	//go:embed sql/calls/get.sql
	sqlGet string
	//go:embed sql/calls/list.sql
	sqlList string
	//go:embed sql/calls/past.sql
	sqlPast string
	//go:embed sql/calls/blocker.sql
	sqlBlocker string
	//go:embed sql/calls/unwire.sql
	sqlUnwire string
	//go:embed sql/calls/await.sql
	sqlAwait string
	//go:embed sql/calls/listen.sql
	sqlListen string
	//go:embed sql/calls/unlisten.sql
	sqlUnlisten string
)

// notifyChannel is where the functions of the schema announce what they do.
const notifyChannel = "tenure"

// migration is one step of the schema.
type migration struct {
	version int
	name    string
	text    string
}

// migrations are all steps this package knows, in order: files named
// NNNN_name.sql, numbered from 1 without gaps.
var migrations = readMigrations()

// schemaVersion is the version of the schema that this package works with.
var schemaVersion = len(migrations)

func readMigrations() []migration {
	files, err := fs.Glob(sqlMigrations, "sql/migrations/*.sql")
	if err != nil {
		panic(err)
	}
	slices.Sort(files)
	var all []migration
	for i, f := range files {
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(f), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			panic(fmt.Sprintf("tenurepg: migration %s: want number %d", f, i+1))
		}
		text, err := sqlMigrations.ReadFile(f)
		if err != nil {
			panic(err)
		}
		all = append(all, migration{version: version, name: name, text: string(text)})
	}
	return all
}
