package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tenure-go/tenure/store"
)

// jsonFlag is for every command that prints something.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON, an object a line, errors included. Numbers of 64 bits are strings in it."`
}

// warn tells a person.
func (a *app) warn(format string, args ...any) {
	newLog(a.stderr, a.json, slog.LevelInfo).Warn(fmt.Sprintf(format, args...))
}

// printJSON prints v on a line of its own.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints rows in columns.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// recordJSON is a record for programs.
type recordJSON struct {
	Name        string     `json:"name"`
	State       string     `json:"state"` // live, dead, vacant, or none: the store knows nothing of it
	Holder      string     `json:"holder,omitempty"`
	Meta        string     `json:"meta,omitempty"`
	Token       string     `json:"token,omitempty"`
	Term        string     `json:"term,omitempty"`
	Renewal     string     `json:"renewal,omitempty"`
	TTLMS       string     `json:"ttl_ms,omitempty"`
	RemainingMS string     `json:"remaining_ms,omitempty"`
	AcquiredAt  *time.Time `json:"acquired_at,omitempty"`
	RenewedAt   *time.Time `json:"renewed_at,omitempty"`
	FencedOnly  bool       `json:"fenced_only,omitempty"`
	Evicted     string     `json:"evicted,omitempty"`
	Foreign     bool       `json:"foreign,omitempty"`
	Burnt       bool       `json:"burnt,omitempty"`
}

func toJSON(r store.Record) recordJSON {
	j := recordJSON{
		Name: r.Name, State: r.State.String(), Holder: r.Holder, Meta: r.Meta, Token: decimal(int64(r.Token)), Term: string(r.TermID),
		Renewal: decimal(r.Renewal), TTLMS: decimal(r.TTL.Milliseconds()), RemainingMS: decimal(r.Remaining.Milliseconds()),
		FencedOnly: r.FencedOnly, Evicted: r.Evicted, Foreign: r.Foreign, Burnt: r.Burnt(),
	}
	if !r.AcquiredAt.IsZero() {
		j.AcquiredAt = &r.AcquiredAt
	}
	if !r.RenewedAt.IsZero() {
		j.RenewedAt = &r.RenewedAt
	}
	return j
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// short rounds a duration for people.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// newLog returns a logger to w: for people, or JSON.
func newLog(w io.Writer, asJSON bool, level slog.Level) *slog.Logger {
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: exact}))
	}
	return slog.New(&plainHandler{mu: new(sync.Mutex), w: w, level: level})
}

// exact turns what JSON would round, or show as a bare count of nanoseconds,
// into text.
func exact(_ []string, at slog.Attr) slog.Attr {
	switch at.Value.Kind() {
	case slog.KindInt64:
		at.Value = slog.StringValue(decimal(at.Value.Int64()))
	case slog.KindUint64:
		at.Value = slog.StringValue(strconv.FormatUint(at.Value.Uint64(), 10))
	case slog.KindDuration:
		at.Value = slog.StringValue(at.Value.Duration().String())
	case slog.KindAny:
		if t, ok := at.Value.Any().(interface{ Valid() bool }); ok { // a fence.Token
			at.Value = slog.StringValue(fmt.Sprint(t))
		}
	}
	return at
}
