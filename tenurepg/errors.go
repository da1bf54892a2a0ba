package tenurepg

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenure-go/tenure/store"
)

// failure is an error of this store: its kind is one of package store's, its
// text says what was asked and what to do.
type failure struct {
	kind    error
	text    string
	cause   error // the server's, the driver's or the context's; may be nil
	unknown bool  // the request may have been carried out
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

// errReadOnlyNode is why a connection to a node that takes no writes is not kept.
var errReadOnlyNode = errors.New("the node takes no writes (a standby, or a demoted primary)")

// verdict is what a request does after an error.
type verdict int

const (
	giveUp    verdict = iota
	again             // the server undid it and it may succeed now
	quietly           // the same, without announcing anything
	elsewhere         // the connection is of no more use
)

// sqlState is what an error of the server means for us. Codes are those of the
// PostgreSQL manual, appendix A; a class stands for its other codes.
type sqlState struct {
	kind   error
	advice string
	then   verdict
}

var sqlStates = map[string]sqlState{
	"08": {store.ErrUnreachable, "the connection broke", elsewhere},

	"25006": {store.ErrReadOnly, "the node takes no writes (a standby, or a demoted primary)", elsewhere},

	"28":    {store.ErrDenied, "the server does not let this user in", elsewhere},
	"3D000": {store.ErrUnreachable, "the database does not exist: create it, or name another one in the URL", elsewhere},
	"42501": {store.ErrDenied, "the role lacks a right: see the grants in the documentation", giveUp},

	"3F000": {store.ErrFormat, "the database has no schema tenure: run \"tenure init\" or call tenurepg.Migrate", giveUp},
	"42883": {store.ErrFormat, "the schema tenure is of another version: run \"tenure init\" or call tenurepg.Migrate, or use a newer version of the program", giveUp},
	"42P01": {store.ErrFormat, "the schema tenure is missing or of another version: run \"tenure init\" or call tenurepg.Migrate", giveUp},
	"42703": {store.ErrFormat, "the schema tenure is of another version: run \"tenure init\" or call tenurepg.Migrate, or use a newer version of the program", giveUp},

	"40":    {store.ErrBusy, "it collided with other transactions", again},
	"40003": {store.ErrUnreachable, "the server does not know whether it was carried out", elsewhere},
	"54000": {store.ErrBusy, "the server's queue of notifications is full: a session that listens has been in a transaction for too long", quietly},

	"53":    {store.ErrBusy, "the server is short of a resource", giveUp},
	"53300": {store.ErrBusy, "the server has no connection to spare: raise max_connections, or use a pooler", elsewhere},
	"55P03": {store.ErrBusy, "the row is locked by another session", giveUp},
	"57014": {store.ErrBusy, "the server ended the statement (a statement_timeout, or an administrator)", giveUp},
	"57":    {store.ErrUnreachable, "the server is starting, stopping, or ended the connection", elsewhere},
	"25P03": {store.ErrUnreachable, "the server ended the connection", elsewhere},
	"25P04": {store.ErrUnreachable, "the server ended the connection", elsewhere},
	"26000": {store.ErrUnreachable, "a pooler gave the statement to another session: set default_query_exec_mode=exec", elsewhere},
	"42P05": {store.ErrUnreachable, "a pooler gave the session to another client: set default_query_exec_mode=exec", elsewhere},
	"22P05": {store.ErrUnsupported, "the database's encoding cannot represent the text: use a database with UTF8", giveUp},
	"22021": {store.ErrUnsupported, "the database's encoding cannot represent the text: use a database with UTF8", giveUp},
}

// stateOf returns the server's error in err, if there is one, and what it means.
func stateOf(err error) (*pgconn.PgError, sqlState, bool) {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return nil, sqlState{}, false
	}
	s, ok := sqlStates[e.Code]
	if !ok && len(e.Code) == 5 {
		s, ok = sqlStates[e.Code[:2]]
	}
	if !ok {
		s = sqlState{store.ErrUnreachable, "the server refused the statement", giveUp}
	}
	return e, s, true
}

// explain turns what the driver says into an error of package store. what names
// the request. Errors that explain themselves, and nil, are returned as they are.
func explain(err error, what string) error {
	var said *failure
	if err == nil || errors.As(err, &said) || !store.OutcomeUnknown(err) {
		return err
	}
	var connect *pgconn.ConnectError
	connecting := errors.As(err, &connect)
	if errors.Is(err, errReadOnlyNode) {
		return &failure{kind: store.ErrReadOnly, text: what + ": no host of the URL takes writes", cause: err}
	}
	if e, s, ok := stateOf(err); ok {
		// The server undid what failed with an ERROR. Whoever gets a FATAL cannot
		// tell how far it had come.
		fatal := e.SeverityUnlocalized != "ERROR" && e.Severity != "ERROR"
		unknown := !connecting && (fatal || e.Code == "40003" || strings.HasPrefix(e.Code, "08"))
		return &failure{kind: s.kind, text: what + ": " + s.advice, cause: err, unknown: unknown}
	}
	if connecting {
		return &failure{kind: store.ErrUnreachable, text: what + ": connecting", cause: err}
	}
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	f := &failure{kind: store.ErrUnreachable, text: what + ": the connection broke", cause: err, unknown: !pgconn.SafeToRetry(err)}
	if ended {
		f.text = what + ": the server did not answer in time"
	}
	return f
}

// thenOf says what to do after an error that explain has explained.
func thenOf(err error) verdict {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return giveUp
	}
	if _, s, ok := stateOf(err); ok {
		return s.then
	}
	if errors.Is(err, store.ErrUnreachable) {
		return elsewhere
	}
	return giveUp
}

// asUnknown marks a failure that follows on one whose outcome is unknown.
func asUnknown(err error) error {
	if err == nil || store.OutcomeUnknown(err) {
		return err
	}
	var f *failure
	if errors.As(err, &f) {
		g := *f
		g.unknown = true
		return &g
	}
	return fmt.Errorf("%w", &failure{kind: store.ErrUnreachable, text: "an earlier try may have been carried out", cause: err, unknown: true})
}
