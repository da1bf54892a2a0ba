package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/storeurl"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// fenced is a resource that each term enters before the command starts.
type fenced struct {
	flag string // as it was asked for
	name string
	path string // of the database
	db   *sql.DB
}

// openFences finds the resources that --fence names. The database of the store
// itself may not exist yet; any other must.
func openFences(flags []string, s *openStore) ([]*fenced, error) {
	var all []*fenced
	for _, flag := range flags {
		f := &fenced{flag: flag, name: flag, path: s.url.Path}
		if place, name, ok := strings.Cut(flag, "#"); ok && strings.HasPrefix(place, "sqlite:") {
			u, err := storeurl.Parse(place)
			if err != nil {
				return nil, usage("--fence: %v", err)
			}
			f.name, f.path = name, u.Path
			if f.db, err = openDB(f.path); err != nil {
				return nil, usage("--fence %s: %v", flag, err)
			}
		}
		if err := fence.CheckText("resource", f.name, fence.ResourceMax); err != nil {
			return nil, usage("--fence: %v", err)
		}
		all = append(all, f)
	}
	return all, nil
}

// enter raises the resource's mark to the term's, so that no earlier term's
// write is accepted any more.
func (f *fenced) enter(ctx context.Context, term *tenure.Term) error {
	if f.db == nil {
		db, err := openDB(f.path)
		if err != nil {
			return fmt.Errorf("--fence %s: %w", f.flag, err)
		}
		f.db = db
	}
	if err := tenuresqlite.Enter(ctx, f.db, term.Stamp(f.name)); err != nil {
		return term.Fenced(fmt.Errorf("--fence %s: %w", f.flag, err))
	}
	return nil
}

func (f *fenced) close() {
	if f.db != nil {
		f.db.Close()
	}
}
