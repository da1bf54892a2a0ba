package tenurepg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/store"
)

// Applied to connections of the store's own: how long a connection to a host that
// has vanished is taken for alive when nothing is sent.
const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 3
)

// dialer makes connections of the store's own.
type dialer func(ctx context.Context) (*link, error)

// link is a connection of the store's own.
type link struct {
	*pgx.Conn
	// session is the server process, if it serves this connection alone, else 0:
	// there is a pooler between, and nothing that belongs to a session (locks,
	// LISTEN) may be used.
	session int32
	nonce   string // of the handshake
	// listening: the session has asked for notifications.
	listening bool
}

// urlDialer returns a dialer for a URL. The URL is read again at each connect, and
// with it the files and variables it refers to, so that a changed password or
// certificate is used from then on.
func urlDialer(text string, password func(context.Context) (string, error)) dialer {
	return func(ctx context.Context) (*link, error) {
		cfg, err := parse(text)
		if err != nil {
			return nil, err
		}
		if password != nil {
			if cfg.Password, err = password(ctx); err != nil {
				return nil, &failure{kind: store.ErrDenied, text: "Options.Password", cause: err}
			}
		}
		tune(cfg)
		return dial(ctx, cfg)
	}
}

// parse reads a URL, or a libpq connection string. Its error shows no password.
func parse(text string) (*pgx.ConnConfig, error) {
	cfg, err := pgxpool.ParseConfig(text)
	if err == nil {
		return cfg.ConnConfig, nil
	}
	why := "percent-encode what is special in the user and the password"
	if u, parseErr := url.Parse(text); parseErr == nil && u.Scheme != "" {
		// The password is known, so the reason can be told without it.
		why = strings.ReplaceAll(err.Error(), text, "the URL")
		if pw, ok := u.User.Password(); ok && pw != "" {
			why = strings.NewReplacer(pw, "xxxxx", url.QueryEscape(pw), "xxxxx", url.PathEscape(pw), "xxxxx").Replace(why)
		}
		if pw := u.Query().Get("password"); pw != "" {
			why = "see the documentation of PostgreSQL, \"Connection URIs\""
		}
	}
	return nil, store.Invalid("the store's URL cannot be used: allowed is postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTIONS; " + why)
}

// tune sets what a URL leaves open. The configuration of somebody else's pool is
// used as it is.
func tune(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "tenure"
	}
	d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}}
	cfg.DialFunc = d.DialContext
}

// dial connects to the first host of cfg that takes writes.
func dial(ctx context.Context, cfg *pgx.ConnConfig) (*link, error) {
	l := &link{}
	meet(cfg, l)
	cfg.OnNotification = nil // of another connection, if cfg was taken from one
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	l.Conn = conn
	return l, nil
}

// meet makes whoever connects with cfg greet the server. l learns what it says of
// itself.
func meet(cfg *pgx.ConnConfig, l *link) {
	validate := cfg.ValidateConnect
	cfg.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, c); err != nil {
				return err
			}
		}
		session, err := greet(ctx, c)
		l.session, l.nonce = session, nonceOf(c)
		return err
	}
}

// greet refuses a node that takes no writes, and finds out whether the session is
// the client's own.
func greet(ctx context.Context, c *pgconn.PgConn) (session int32, err error) {
	named := strconv.FormatUint(uint64(c.PID()), 10)
	res := c.ExecParams(ctx, sqlGreet, [][]byte{[]byte(named)}, nil, nil, nil).Read()
	if res.Err != nil {
		return 0, res.Err
	}
	if len(res.Rows) != 1 || len(res.Rows[0]) < 2 {
		return 0, fmt.Errorf("the first statement was answered with %d rows", len(res.Rows))
	}
	if string(res.Rows[0][1]) != "off" {
		return 0, errReadOnlyNode
	}
	if string(res.Rows[0][0]) != named {
		return 0, nil
	}
	pid, err := strconv.ParseInt(named, 10, 32)
	return int32(pid), err
}

// nonceOf returns a value that the server gave to this connection alone. It is
// made from the key for cancelling requests, which nobody can get back from it.
func nonceOf(c *pgconn.PgConn) string {
	sum := sha256.Sum256(fmt.Appendf(c.SecretKey(), "tenure %d", c.PID()))
	return hex.EncodeToString(sum[:16])
}

// ask sends one statement and passes on the single text column of each row.
func ask(ctx context.Context, c *pgx.Conn, sql string, args []any, each func(text string) error) error {
	rows, err := c.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if err := each(text); err != nil {
			return err
		}
	}
	return rows.Err()
}
