package tenurepg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenure-go/tenure/store"
)

// TestURLWithoutPassword: an error about a URL shows no password, however the URL
// is broken.
func TestURLWithoutPassword(t *testing.T) {
	for _, url := range []string{
		"postgres://app:s3cret@db:port/app",
		"postgres://app:s3cret@db/app?sslmode=sometimes",
		"postgres://app:s3cret@db/app?pool_max_conns=x",
		"postgres://app:s3/cret@db/app",
		"postgres://app:s3 cret@db/app",
		"postgres://app:s3%zzcret@db/app",
		"postgres://db/app?password=s3cret&sslmode=sometimes",
		"host=db password=s3cret sslmode=sometimes",
		"host=db password='s3cret",
		"s3cret",
	} {
		_, err := Open(t.Context(), url, nil)
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: want %v, got: %v", url, store.ErrInvalid, err)
			continue
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), "cret") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestOptions(t *testing.T) {
	var none *Options
	v, err := none.withDefaults()
	if err != nil || v.Wait != WaitDefault || v.Poll != PollDefault || v.Connections != ConnectionsDefault {
		t.Errorf("the defaults are %+v, %v", v, err)
	}
	_, err = Open(t.Context(), "postgres://db/app", &Options{Wait: -1, Poll: -1, Connections: -1})
	for _, text := range []string{"Options.Wait is -1ns", "Options.Poll is -1ns", "Options.Connections is -1"} {
		if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("want an error about %q, got: %v", text, err)
		}
	}
	if _, err := New(nil, nil); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a store without a pool: %v", err)
	}
	if _, err := NewSQL(nil, nil); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a store without a database: %v", err)
	}
}

// TestErrors: what the server says is told apart, and so is whether the request may
// have been carried out.
func TestErrors(t *testing.T) {
	server := func(severity, code string) error {
		return fmt.Errorf("asking: %w", &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: "m"})
	}
	for _, test := range []struct {
		what    string
		err     error
		kind    error
		unknown bool
		then    verdict
	}{
		{"no right", server("ERROR", "42501"), store.ErrDenied, false, giveUp},
		{"a read-only node", server("ERROR", "25006"), store.ErrReadOnly, false, elsewhere},
		{"a serialization failure", server("ERROR", "40001"), store.ErrBusy, false, again},
		{"a deadlock", server("ERROR", "40P01"), store.ErrBusy, false, again},
		{"an unknown completion", server("ERROR", "40003"), store.ErrUnreachable, true, elsewhere},
		{"a lock", server("ERROR", "55P03"), store.ErrBusy, false, giveUp},
		{"a statement_timeout", server("ERROR", "57014"), store.ErrBusy, false, giveUp},
		{"a shutdown", server("FATAL", "57P01"), store.ErrUnreachable, true, elsewhere},
		{"an idle session", server("FATAL", "57P05"), store.ErrUnreachable, true, elsewhere},
		{"a full queue of notifications", server("ERROR", "54000"), store.ErrBusy, false, quietly},
		{"a full disk", server("ERROR", "53100"), store.ErrBusy, false, giveUp},
		{"no function", server("ERROR", "42883"), store.ErrFormat, false, giveUp},
		{"an error of our own making", server("ERROR", "22000"), store.ErrUnreachable, false, giveUp},
		{"an error in another language", fmt.Errorf("asking: %w", &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "42501"}), store.ErrDenied, false, giveUp},
		{"a broken connection", io.ErrUnexpectedEOF, store.ErrUnreachable, true, elsewhere},
		{"a time-out", fmt.Errorf("asking: %w", context.DeadlineExceeded), store.ErrUnreachable, true, giveUp},
		{"a wrong password", &connectError{server("FATAL", "28P01")}, store.ErrDenied, false, elsewhere},
		{"no connection to spare", &connectError{server("FATAL", "53300")}, store.ErrBusy, false, elsewhere},
		{"a server that starts", &connectError{server("FATAL", "57P03")}, store.ErrUnreachable, false, elsewhere},
		{"nobody there", &connectError{io.EOF}, store.ErrUnreachable, false, elsewhere},
		{"standbys only", &connectError{errReadOnlyNode}, store.ErrReadOnly, false, giveUp},
	} {
		var err error
		if _, ok := errors.AsType[*connectError](test.err); ok {
			err = connecting(errors.Unwrap(test.err))
		} else {
			err = explain(test.err, "renewing")
		}
		if !errors.Is(err, test.kind) || store.OutcomeUnknown(err) != test.unknown || thenOf(err) != test.then {
			t.Errorf("%s: got %v, unknown %v, then %d", test.what, err, store.OutcomeUnknown(err), thenOf(err))
		}
		if !store.OutcomeUnknown(asUnknown(err)) || !errors.Is(asUnknown(err), test.kind) {
			t.Errorf("%s, after an unknown one: %v", test.what, asUnknown(err))
		}
	}
	if err := explain(store.ErrStoreClosed, "x"); err != store.ErrStoreClosed {
		t.Errorf("a closed store became %v", err)
	}
}

// TestMigrationsAreNumbered: a gap would make two versions of one number.
func TestMigrationsAreNumbered(t *testing.T) {
	for i, m := range migrations {
		if m.version != i+1 || m.name == "" || m.text == "" {
			t.Errorf("migration %d is %d, %q", i+1, m.version, m.name)
		}
	}
}

// TestHomeTakesTurns: an impatient request goes elsewhere, a patient one and the
// listener wait, and the listener lets go as soon as a request comes.
func TestHomeTakesTurns(t *testing.T) {
	h := newHome(func(context.Context) (*link, error) { return nil, io.EOF })
	ctx := t.Context()
	if !h.take(ctx, false) {
		t.Fatal("nobody had the connection")
	}
	if h.take(ctx, false) {
		t.Fatal("two requests have it")
	}
	got := make(chan string)
	go func() { got <- fmt.Sprint("patient ", h.take(ctx, true)) }()
	h.give()
	if s := <-got; s != "patient true" {
		t.Fatal(s)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if h.take(short, true) {
		t.Fatal("a request got it beside another one")
	}
	yielded := make(chan struct{})
	go func() { got <- fmt.Sprint("listener ", h.takeToListen(ctx, func() { close(yielded) })) }()
	h.give()
	if s := <-got; s != "listener true" {
		t.Fatal(s)
	}
	go func() { got <- fmt.Sprint("request ", h.take(ctx, false)) }()
	<-yielded
	h.give()
	if s := <-got; s != "request true" {
		t.Fatal(s)
	}
	if _, err := h.open(ctx); err != io.EOF {
		t.Fatal(err)
	}
	go func() { got <- fmt.Sprint("closed ", h.take(ctx, true)) }()
	h.close()
	h.give()
	if s := <-got; s != "closed false" {
		t.Fatal(s)
	}
	if h.takeToListen(ctx, func() {}) {
		t.Fatal("a closed one was given out")
	}
}

// FuzzNotified: whatever anybody sends on the channel, nothing breaks, and no hint
// says more than a lease can last.
func FuzzNotified(f *testing.F) {
	for _, s := range []string{"v 7", "c 7", "r 7:1000000 8:5", "g 7:1000000 0 a", "g 7:1000000 12 a b", "r 7:9223372036854775807", "g 7:-1 0 a", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		one := &watcher{hints: make(chan store.Hint, 1)}
		of := &watched{watchers: map[*watcher]struct{}{one: {}}, ready: make(chan struct{})}
		w := &watches{names: map[string]*watched{"a": of}, ids: map[int32]string{7: "a"}}
		if strings.HasPrefix(payload, "g") { // a wire would be waited for
			w.names = map[string]*watched{"another": of}
		}
		w.notified(notifyChannel, payload)
		w.notified("another", "v 7")
		select {
		case h := <-one.hints:
			if h.Remaining < 0 || h.Remaining > TTLMax || h.Kind > store.HintRenewed {
				t.Errorf("%q became %+v", payload, h)
			}
		default:
		}
	})
}

func TestHintOf(t *testing.T) {
	base := sight{answer: answer{ID: 7, Token: 3, Renewal: 2, Left: 1000}, expires: 5000}
	for _, test := range []struct {
		what   string
		change func(*sight)
		want   store.HintKind
		none   bool
	}{
		{"nothing", func(s *sight) { s.Left = 10 }, 0, true},
		{"a renewal", func(s *sight) { s.Renewal, s.expires = 3, 6000 }, store.HintRenewed, false},
		{"another term", func(s *sight) { s.Token, s.Renewal = 4, 2 }, store.HintRenewed, false},
		{"a release", func(s *sight) { s.Released = true }, store.HintVacant, false},
		{"an end at once", func(s *sight) { s.Left, s.expires = 0, 4000 }, store.HintVacant, false},
		{"a removed row", func(s *sight) { *s = sight{} }, store.HintVacant, false},
		{"an eviction", func(s *sight) { s.Evicted = "drain" }, store.HintChanged, false},
		{"a burn", func(s *sight) { s.Burns = []burn{{Term: "a"}} }, store.HintChanged, false},
	} {
		after := base
		test.change(&after)
		h, ok := hintOf(base, after)
		if ok == test.none || ok && h.Kind != test.want {
			t.Errorf("%s: got %+v, %v", test.what, h, ok)
		}
	}
}
