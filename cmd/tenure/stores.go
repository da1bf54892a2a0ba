package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/tenure-go/tenure/cmd/tenure/internal/storeurl"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenuresqlite"
	"golang.org/x/sys/unix"
)

// storeFlags say which store to use.
type storeFlags struct {
	Store     string `placeholder:"URL" help:"Where the leases are kept: sqlite:PATH. Default: $$TENURE_STORE, the file that $$TENURE_STORE_FILE names, or a file of this host (root) or user."`
	StoreFile string `placeholder:"FILE" help:"A file whose only line is the store URL. Readable by its owner alone, it keeps a password that --store would show to everybody."`
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

// backend is what this program does with the stores of one scheme.
type backend struct {
	open func(ctx context.Context, u storeurl.URL) (store.Store, func() error, error)
	gate func(u storeurl.URL) gate
}

// backends has one for each scheme that package storeurl accepts.
var backends = map[string]backend{
	"sqlite": {open: openSQLite, gate: newSQLiteGate},
}

func openSQLite(ctx context.Context, u storeurl.URL) (store.Store, func() error, error) {
	s, err := tenuresqlite.Open(ctx, u.Path, nil)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// open opens the store that the flags, the environment or the default name, to
// look at it: nothing is made.
func (f storeFlags) open(ctx context.Context, a *app) (*openStore, error) {
	u, byDefault, err := f.find(a)
	if err != nil {
		return nil, err
	}
	if byDefault && missing(grandparent(u)) {
		return &openStore{Store: unborn{path: u.Path}, url: u, byDefault: true, close: func() error { return nil }}, nil
	}
	return openURL(ctx, u, byDefault)
}

// openToWrite opens it to be used: of the default store the directories are
// made. The last one the store makes itself, when it is first written to.
func (f storeFlags) openToWrite(ctx context.Context, a *app) (*openStore, error) {
	u, byDefault, err := f.find(a)
	if err != nil {
		return nil, err
	}
	if byDefault {
		switch err := os.MkdirAll(grandparent(u), 0o700); {
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("the default store: %w: %w", store.ErrDenied, err)
		case errors.Is(err, unix.EROFS):
			return nil, fmt.Errorf("the default store: %w: %w", store.ErrReadOnly, err)
		case err != nil:
			return nil, fmt.Errorf("the default store: %w: %w", store.ErrUnreachable, err)
		}
	}
	return openURL(ctx, u, byDefault)
}

// grandparent is the directory that the directory of a store's file is in.
func grandparent(u storeurl.URL) string { return filepath.Dir(filepath.Dir(u.Path)) }

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// find returns the store's URL, and whether nobody named it.
func (f storeFlags) find(a *app) (u storeurl.URL, byDefault bool, err error) {
	if f.Store != "" && f.StoreFile != "" {
		return u, false, usage("--store and --store-file are both set: allowed is one of them")
	}
	switch {
	case f.Store != "":
		u, err = a.urlArgument(f.Store, "--store", ": set TENURE_STORE, or use --store-file")
	case f.StoreFile != "":
		u, err = a.urlFile(f.StoreFile, "--store-file")
	case a.getenv("TENURE_STORE") != "":
		u, err = parseURL(a.getenv("TENURE_STORE"), "TENURE_STORE")
	case a.getenv("TENURE_STORE_FILE") != "":
		u, err = a.urlFile(a.getenv("TENURE_STORE_FILE"), "TENURE_STORE_FILE")
	default:
		path, err := storeurl.Default(os.Geteuid(), a.getenv)
		if err != nil {
			return u, false, usage("%v", err)
		}
		return storeurl.File(path), true, nil
	}
	return u, false, err
}

// parseURL reads a store's URL that source gave.
func parseURL(text, source string) (storeurl.URL, error) {
	u, err := storeurl.Parse(text)
	if err != nil {
		return u, usage("%s: %v", source, err)
	}
	return u, nil
}

// urlArgument reads a store's URL of the command line; better says how a password
// is given instead.
func (a *app) urlArgument(text, source, better string) (storeurl.URL, error) {
	if storeurl.HasPassword(text) {
		a.warn("%s carries a password, and arguments can be read by every user of this host%s", source, better)
	}
	return parseURL(text, source)
}

// urlFile reads a store's URL from the file at path.
func (a *app) urlFile(path, source string) (storeurl.URL, error) {
	text, open, err := storeurl.ReadFile(path)
	if err != nil {
		return storeurl.URL{}, usage("%s: %v", source, err)
	}
	if open && storeurl.HasPassword(text) {
		a.warn("%s: others than the owner may read or write %s, which has a password in it: allow its owner alone (chmod 600)", source, path)
	}
	return parseURL(text, source)
}

func openURL(ctx context.Context, u storeurl.URL, byDefault bool) (*openStore, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, closeStore, err := backends[u.Scheme].open(ctx, u)
	if err != nil {
		return nil, clean(u, err)
	}
	return &openStore{Store: s, url: u, byDefault: byDefault, close: closeStore}, nil
}

// unborn is the default store where not even the directories are there that it
// will be made in. It knows nothing.
type unborn struct {
	store.Store // none: who only looks asks for nothing else
	path        string
}

func (b unborn) Get(_ context.Context, name string) (store.Record, error) {
	return store.Record{}, fmt.Errorf("%w: %q: %s does not exist yet", store.ErrNoRecord, name, b.path)
}

func (b unborn) List(context.Context) iter.Seq2[store.Record, error] {
	return func(func(store.Record, error) bool) {}
}

func (b unborn) History(context.Context, string, int) ([]store.Entry, error) { return nil, nil }

func (b unborn) Evict(ctx context.Context, e store.Eviction) (store.Record, error) {
	return b.Get(ctx, e.Name)
}

func (s *openStore) unborn() bool {
	_, yes := s.Store.(unborn)
	return yes
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
