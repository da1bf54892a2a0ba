package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/tenure-go/tenure/cmd/tenure/internal/storeurl"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// storeFlags say which store to use.
type storeFlags struct {
	Store     string `placeholder:"URL" help:"Where the leases are kept: sqlite:PATH. Default: $$TENURE_STORE, the file that $$TENURE_STORE_FILE names, or a file of this host (root) or user."`
	StoreFile string `placeholder:"FILE" help:"A file whose only line is the store URL. A password in it is seen by nobody, unlike one in --store."`
}

// openStore is a store and where it is.
type openStore struct {
	store.Store
	url       storeurl.URL
	byDefault bool // nobody named it
	close     func() error
}

// Unwrap keeps what the store can do beyond the contract within reach.
func (s *openStore) Unwrap() store.Store { return s.Store }

// open opens the store that the flags, the environment or the default name.
func (f storeFlags) open(ctx context.Context, a *app) (*openStore, error) {
	text, source, err := f.find(a)
	if err != nil {
		return nil, err
	}
	u, err := storeurl.Parse(text)
	if err != nil {
		return nil, usage("%s: %v", source, err)
	}
	return openURL(ctx, u, source == "")
}

// find returns the store's URL and what named it.
func (f storeFlags) find(a *app) (text, source string, err error) {
	if f.Store != "" && f.StoreFile != "" {
		return "", "", usage("--store and --store-file are both set: allowed is one of them")
	}
	fromFile := func(path, source string) (string, string, error) {
		text, err := storeurl.ReadFile(path)
		if err != nil {
			return "", "", usage("%s: %v", source, err)
		}
		return text, source, nil
	}
	switch {
	case f.Store != "":
		if storeurl.HasPassword(f.Store) {
			a.warn("--store carries a password, and arguments can be read by every user of this host: set TENURE_STORE, or use --store-file")
		}
		return f.Store, "--store", nil
	case f.StoreFile != "":
		return fromFile(f.StoreFile, "--store-file")
	case a.getenv("TENURE_STORE") != "":
		return a.getenv("TENURE_STORE"), "TENURE_STORE", nil
	case a.getenv("TENURE_STORE_FILE") != "":
		return fromFile(a.getenv("TENURE_STORE_FILE"), "TENURE_STORE_FILE")
	}
	path, err := storeurl.Default(os.Geteuid(), a.getenv)
	if err != nil {
		return "", "", usage("%v", err)
	}
	// The store makes the last directory itself, when it is first written to.
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(path)), 0o700); err != nil {
		return "", "", usage("the default store: %v", err)
	}
	return "sqlite:" + path, "", nil
}

func openURL(ctx context.Context, u storeurl.URL, byDefault bool) (*openStore, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := tenuresqlite.Open(ctx, u.Path, nil)
	if err != nil {
		return nil, clean(u, err)
	}
	return &openStore{Store: s, url: u, byDefault: byDefault, close: s.Close}, nil
}

// cleaned is an error of a store whose text shows no password.
type cleaned struct {
	error
	text string
}

func (e cleaned) Error() string { return e.text }
func (e cleaned) Unwrap() error { return e.error }

func clean(u storeurl.URL, err error) error {
	if err == nil {
		return nil
	}
	return cleaned{err, u.Clean(err.Error())}
}

// openDB opens an existing SQLite file for its fence.
func openDB(path string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(abs); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, errors.New(abs + " is no regular file")
	}
	uri := url.URL{Scheme: "file", Path: abs, RawQuery: "mode=rw"}
	return sql.Open("sqlite", uri.String())
}

// cleanWriter takes the store's password out of what is written.
type cleanWriter struct {
	w   io.Writer
	url storeurl.URL
}

func (c cleanWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.w, c.url.Clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
