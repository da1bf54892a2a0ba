package tenuresqlite

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tenure-go/tenure/store"
)

// failure is an error of this store: its kind is one of package store's, its
// text names the file and what to do.
type failure struct {
	kind    error
	text    string
	cause   error // SQLite's or the system's; may be nil
	unknown bool  // the request may have been carried out
	damaged bool  // of one record only
}

func (e *failure) Error() string {
	s := e.kind.Error() + ": " + e.text
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *failure) Is(target error) bool { return target == e.kind }
func (e *failure) Unwrap() error        { return e.cause }
func (e *failure) OutcomeUnknown() bool { return e.unknown }

// errNoFile says that the database file does not exist yet, so that it has no
// records. It never leaves the package.
var errNoFile = errors.New("the file does not exist yet")

// errReplaced says that another file has taken the place of the one that a
// connection has open. It never leaves the package.
var errReplaced = errors.New("the file was replaced")

// sqliteCode returns SQLite's extended result code, or 0.
func sqliteCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// isBusy reports whether a statement did nothing because of somebody else's
// lock, so that it may simply be tried again.
func isBusy(err error) bool {
	switch sqliteCode(err) & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return true
	}
	return false
}

// isReplaced reports whether SQLite itself noticed that the file was moved away.
func isReplaced(err error) bool {
	return errors.Is(err, errReplaced) || sqliteCode(err) == sqlite3.SQLITE_READONLY_DBMOVED
}

// explain turns what SQLite or the system says about the file into an error of
// package store that names the file, the reason and the remedy. Other errors say
// enough already.
func (s *Store) explain(err error) error {
	var (
		said   *failure
		system *fs.PathError
	)
	if errors.As(err, &said) || sqliteCode(err) == 0 && !errors.As(err, &system) {
		return err
	}
	fail := func(kind error, format string, args ...any) error {
		return &failure{kind: kind, text: fmt.Sprintf(format, args...), cause: err}
	}
	code := sqliteCode(err)
	switch code & 0xff {
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		if why := accessFault(s.path, code&0xff != sqlite3.SQLITE_CANTOPEN); why != nil {
			why.cause = err
			return why
		}
		if code&0xff == sqlite3.SQLITE_READONLY {
			return fail(store.ErrReadOnly, "%s takes no writes", s.path)
		}
		return fail(store.ErrUnreachable, "%s cannot be opened", s.path)
	case sqlite3.SQLITE_AUTH:
		return fail(store.ErrDenied, "%s", s.path)
	case sqlite3.SQLITE_NOTADB:
		return fail(store.ErrInvalid, "%s is not a SQLite database (or is an encrypted one): name another file", s.path)
	case sqlite3.SQLITE_CORRUPT:
		return fail(store.ErrUnreachable, "%s is damaged: restore it, or move it away and start a new one above the old tokens", s.path)
	case sqlite3.SQLITE_FULL:
		return fail(store.ErrUnreachable, "the file system of %s is full", s.path)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fail(store.ErrDenied, "%s", s.path)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return fail(store.ErrInvalid, "%s cannot be the path of a file", s.path)
	}
	return fail(store.ErrUnreachable, "%s", s.path)
}

// busy is the error of a request whose time ran out before it got to the file.
func (s *Store) busy(c *call) error {
	f := &failure{kind: store.ErrBusy, cause: c.ctx.Err()}
	if since := c.busySince.Load(); since != 0 {
		doing := "writing to"
		if c.reader.Load() {
			doing = "reading"
		}
		f.text = fmt.Sprintf("%s has been %s %s for %v; use a file of its own for the lease", cmp.Or(lockHolder(s.path, c.reader.Load()), "another program"),
			doing, s.path, time.Since(c.began.Add(time.Duration(since))).Round(time.Millisecond))
	} else {
		f.text = fmt.Sprintf("%s did not answer within %v", s.path, time.Since(c.began).Round(time.Millisecond))
	}
	return f
}

// damagedRecord is the error of a row that is not what this package writes. It
// is never taken for a vacancy.
func (c *conn) damagedRecord(name, what string, cause error) error {
	return &failure{
		kind: store.ErrUnreachable, damaged: true, cause: cause,
		text: fmt.Sprintf("the record of %q in %s is damaged (%s): restore the file, or move it away and start a new one above the old tokens", name, c.path, what),
	}
}

func isDamaged(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.damaged
}

// noRecord is the answer about an election in a file that does not exist yet.
func (s *Store) noRecord(name string) error {
	return fmt.Errorf("%w: %q: %s does not exist yet", store.ErrNoRecord, name, s.path)
}
