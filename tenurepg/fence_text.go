package tenurepg

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure/fence"
)

var (
	//go:embed sql/fence/enter.sql
	sqlFenceEnter string
	//go:embed sql/fence/check.sql
	sqlFenceCheck string
	//go:embed sql/fence/begin_wait.sql
	sqlFenceBeginWait string
	//go:embed sql/fence/begin_enter.sql
	sqlFenceBeginEnter string
	//go:embed sql/fence/begin_check.sql
	sqlFenceBeginCheck string
	//go:embed sql/fence/begin_chain.sql
	sqlFenceBeginChain string
	//go:embed sql/fence/replayed.sql
	sqlFenceReplayed string
	//go:embed sql/fence/last.sql
	sqlFenceLast string
	//go:embed sql/fence/list.sql
	sqlFenceList string
	//go:embed sql/fence/lower.sql
	sqlFenceLower string
)

// beginText is the statement that begins a transaction.
func beginText(o pgx.TxOptions) string {
	if o.BeginQuery != "" {
		return o.BeginQuery
	}
	text := "begin"
	if o.IsoLevel != "" {
		text += " isolation level " + string(o.IsoLevel)
	}
	if o.AccessMode != "" {
		text += " " + string(o.AccessMode)
	}
	if o.DeferrableMode != "" {
		text += " " + string(o.DeferrableMode)
	}
	return text
}

// literals writes the arguments, strings and int64s, into a statement's text, since
// several statements that are sent at once can have none.
func literals(text string, args []any) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return strings.TrimSpace(b.String())
		}
		digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
		n, err := strconv.Atoi(after[:digits])
		if err != nil || n < 1 || n > len(args) {
			panic(fmt.Sprintf("tenurepg: statement has $%s and %d arguments", after[:digits], len(args)))
		}
		switch arg := args[n-1].(type) {
		case string:
			quote(&b, arg)
		case int64:
			b.WriteString(strconv.FormatInt(arg, 10))
		default:
			panic(fmt.Sprintf("tenurepg: no literal for a %T", arg))
		}
		text = after[digits:]
	}
}

// quote writes a string literal that means the same whatever the session's
// encoding and its settings for strings: in ASCII, with all else escaped.
func quote(b *strings.Builder, text string) {
	b.WriteString("E'")
	for _, r := range text {
		switch {
		case r >= ' ' && r <= '~' && r != '\'' && r != '\\':
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(b, `\u%04X`, r)
		default:
			fmt.Fprintf(b, `\U%08X`, r)
		}
	}
	b.WriteString("'")
}

// SQLSTATEs of the functions in the schema.
const (
	codeStale   = "TN001"
	codeForked  = "TN002"
	codeGap     = "TN003"
	codeInvalid = "TN004"
	codeReplay  = "TN005"
)

// ErrReplay is what [FenceError] makes of TN005: the last chained write was sent
// again and is there already. Roll back and report success.
var ErrReplay = errors.New("tenure: the write is there already")

// refusal is the DETAIL of an error of the fence.
type refusal struct {
	Resource    string      `json:"resource"`
	Token       fence.Token `json:"token"`
	Seen        fence.Token `json:"seen"`
	Term        string      `json:"term"`
	Owner       string      `json:"owner"`
	Renewal     int64       `json:"renewal"`
	SeenRenewal int64       `json:"seen_renewal"`
	Lane        string      `json:"lane"`
	Position    int64       `json:"position"`
	Next        int64       `json:"next"`
	Why         string      `json:"why"`
}

// FenceError turns what the driver says of a statement that called the functions of
// the fence into an error of package fence, if they refused s, or [ErrReplay], or
// else an error of package store. The functions of this package do it by
// themselves; it is for statements of your own.
func FenceError(s fence.Stamp, err error) error {
	code, detail := sqlError(err)
	r := refusal{Resource: s.Resource, Token: s.Token, Term: s.TermID}
	if strings.HasPrefix(code, "TN") && json.Unmarshal([]byte(detail), &r) != nil {
		r.Why = err.Error() // all there is
	}
	switch code {
	case codeStale:
		return &fence.StaleError{
			Resource: r.Resource, Token: r.Token, Seen: r.Seen, Renewal: r.Renewal, SeenRenewal: r.SeenRenewal,
			Lane: r.Lane, Position: r.Position, Next: r.Next, Why: r.Why,
		}
	case codeForked:
		return &fence.ForkedError{Resource: r.Resource, Token: r.Token, TermID: r.Term, Owner: r.Owner, Lane: r.Lane, Position: r.Position, Why: r.Why}
	case codeGap:
		return &fence.GapError{Resource: r.Resource, Token: r.Token, Lane: r.Lane, Position: r.Position, Next: r.Next}
	case codeInvalid:
		return &fence.InvalidError{Stamp: s, Faults: []string{r.Why}}
	case codeReplay:
		return ErrReplay
	}
	return explain(err, "a fenced write")
}

// sqlError returns the SQLSTATE and the DETAIL of a server's error, of pgx or of
// another driver.
func sqlError(err error) (code, detail string) {
	if e, _, ok := stateOf(err); ok {
		return e.Code, e.Detail
	}
	var says interface{ SQLState() string }
	if !errors.As(err, &says) {
		return "", ""
	}
	if field, ok := says.(interface{ Get(k byte) string }); ok {
		detail = field.Get('D')
	}
	return says.SQLState(), detail
}
