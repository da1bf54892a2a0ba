package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/storeurl"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenuresqlite"
	"golang.org/x/sys/unix"
)

// fenced is a resource that each term enters before the command starts.
type fenced struct {
	name  string
	place string // the URL of its database; empty: the store's own
	gate  gate
}

// gate is a database that keeps the marks of fenced resources.
type gate interface {
	// probe says why no resource could be entered, as far as that can be told
	// without changing anything. The database must exist.
	probe(ctx context.Context) error
	enter(ctx context.Context, s fence.Stamp) error
	close()
}

// openFences finds the resources that --fence names, and tries their databases:
// nobody should become leader first to hear that its resource is out of reach.
// The database of the store itself may not exist yet.
func openFences(ctx context.Context, flags []string, s *openStore) ([]*fenced, error) {
	var all []*fenced
	for _, flag := range flags {
		f := &fenced{name: flag}
		u := s.url
		if storeurl.IsPlace(flag) {
			var err error
			if u, f.name, err = parseFence(flag); err != nil {
				return all, err
			}
			f.place = u.String()
		}
		if err := fence.CheckText("resource", f.name, fence.ResourceMax); err != nil {
			return all, usage("--fence: %v", err)
		}
		f.gate = backends[u.Scheme].gate(u)
		all = append(all, f)
		if f.place == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		err := f.gate.probe(ctx)
		cancel()
		if err != nil {
			return all, f.wrap(err)
		}
	}
	return all, nil
}

// parseFence reads a --fence that says where the resource is. What is not
// understood is never taken for a name: it would fence something else, in the
// store's own database.
func parseFence(flag string) (u storeurl.URL, name string, err error) {
	place, name, found := strings.Cut(flag, "#")
	u, err = storeurl.Parse(place)
	wrong := new(storeurl.Error)
	switch {
	case errors.As(err, &wrong):
	case err != nil:
		return u, "", err
	case !found || name == "":
		wrong.Wrong = "has no #NAME at its end"
	default:
		return u, name, nil
	}
	return u, "", usage("--fence: the place of the resource %s: allowed are a name in the store's own database (one without a scheme), and %s",
		wrong.Wrong, strings.Join(fenceForms(), ", "))
}

// fenceForms are the forms of a --fence that names a place.
func fenceForms() (forms []string) {
	for _, form := range storeurl.Forms() {
		forms = append(forms, form+"#NAME")
	}
	return forms
}

func (f *fenced) String() string {
	if f.place == "" {
		return f.name
	}
	return f.place + "#" + f.name
}

func (f *fenced) wrap(err error) error { return fmt.Errorf("--fence %s: %w", f, err) }

// enter raises the resource's mark to the term's, so that no earlier term's
// write is accepted any more.
func (f *fenced) enter(ctx context.Context, term *tenure.Term) error {
	if err := f.gate.enter(ctx, term.Stamp(f.name)); err != nil {
		return term.Fenced(f.wrap(err))
	}
	return nil
}

// sqliteGate is the fence in a SQLite file.
type sqliteGate struct {
	path string
	db   *sql.DB // nil before the first use
}

func newSQLiteGate(u storeurl.URL) gate { return &sqliteGate{path: u.Path} }

// open opens the file, which must exist: a fence in a new one would protect
// nothing.
func (g *sqliteGate) open() (_ *sql.DB, err error) {
	if g.db == nil {
		g.db, err = openDB(g.path)
	}
	return g.db, err
}

// openDB opens an existing SQLite file.
func openDB(path string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	switch st, err := os.Stat(abs); {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", store.ErrDenied, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, store.Invalid(abs + " does not exist: allowed is the file that the command writes to")
	case err != nil:
		return nil, fmt.Errorf("%w: %w", store.ErrUnreachable, err)
	case !st.Mode().IsRegular():
		return nil, store.Invalid(abs + " is no regular file")
	}
	uri := url.URL{Scheme: "file", Path: abs, RawQuery: "mode=rw"}
	return sql.Open("sqlite", uri.String())
}

// probe opens the file as a store would, which says best what is wrong with it,
// and asks for the right to write to it and to put SQLite's journal beside it.
func (g *sqliteGate) probe(ctx context.Context) error {
	if _, err := g.open(); err != nil {
		return err
	}
	s, err := tenuresqlite.Open(ctx, g.path, nil)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	for _, path := range []string{g.path, filepath.Dir(g.path)} {
		switch err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); {
		case errors.Is(err, unix.EACCES):
			return fmt.Errorf("%w: user %d may not write to %s", store.ErrDenied, os.Geteuid(), path)
		case err != nil:
			return fmt.Errorf("%w: %s: %w", store.ErrReadOnly, path, err)
		}
	}
	return nil
}

func (g *sqliteGate) enter(ctx context.Context, s fence.Stamp) error {
	db, err := g.open()
	if err != nil {
		return err
	}
	err = tenuresqlite.Enter(ctx, db, s)
	if err != nil && !fence.Refused(err) && exitCode(err) == exitInternal { // SQLite's own words
		return fmt.Errorf("%w: %s: %w", store.ErrUnreachable, g.path, err)
	}
	return err
}

func (g *sqliteGate) close() {
	if g.db != nil {
		g.db.Close()
	}
}
