package main

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

// Who has waited for long enough ends with why it was not elected.
func TestWaited(t *testing.T) {
	t.Parallel()
	wait := time.Minute
	for _, tt := range []struct {
		lastAsk error
		code    int
		says    string
	}{
		{nil, exitUnreachable, "the store gave no answer"},
		{&store.HeldError{Holder: "first", Token: 7}, 9, `held by "first"`},
		{store.ErrDenied, exitDenied, store.ErrDenied.Error()},
		{store.ErrBusy, exitUnreachable, store.ErrBusy.Error()},
		{errors.New("odd"), exitInternal, "odd"},
	} {
		r := &runner{c: &runCmd{Wait: &wait, ExitHeld: 9, ExitLost: exitLost}, store: &openStore{}, lastAsk: tt.lastAsk}
		err := r.outcome(errWaited)
		if got := exitCode(err); got != tt.code || !strings.HasPrefix(err.Error(), "gave up after 1m0s: ") || !strings.Contains(err.Error(), tidy(tt.says)) {
			t.Errorf("%v: exit code %d, %q; want %d, %q", tt.lastAsk, got, err, tt.code, tt.says)
		}
	}
}

// A command that does not end at TERM is killed after --kill-after, long before
// the lease would demand it, and the election is free.
func TestToldToEnd(t *testing.T) {
	p := newPlace(t)
	c := p.start("run", "job", "--ttl", "10m", "--kill-after", "200ms", "--", "sh", "-c", `trap "" TERM; echo up >up; while :; do sleep 0.02; done`)
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	c.signal(unix.SIGTERM)
	c.ends(137)
	p.nothingRuns()
	p.start("run", "job", "--no-wait", "--", "true").ends(0)
}

// A service manager hears that tenure is up, what it does, and that it lives.
func TestServiceManager(t *testing.T) {
	p := newPlace(t)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p.path("n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	manager.SetReadDeadline(time.Now().Add(patience))
	p.env = append(p.env, "NOTIFY_SOCKET="+p.path("n"), "WATCHDOG_USEC=2000000")
	c := p.start("run", "job", "--", "sleep", "1000")
	missing := []string{"READY=1", "STATUS=contending for job", "STATUS=leading with token 1", "WATCHDOG=1", "WATCHDOG=1"}
	for buf := make([]byte, 1000); len(missing) > 0; {
		n, err := manager.Read(buf)
		if err != nil {
			t.Fatalf("the service manager has not heard %q: %v", missing, err)
		}
		for _, line := range strings.Split(string(buf[:n]), "\n") {
			if i := slices.Index(missing, line); i >= 0 {
				missing = slices.Delete(missing, i, i+1)
			}
		}
	}
	c.signal(unix.SIGTERM)
	c.ends(143)
}

// The guardian's limits are those of the term, less what the killing takes.
func TestLimits(t *testing.T) {
	t.Parallel()
	e, err := tenure.NewElector(memstore.New(nil), "job", &tenure.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	err = e.RunOnce(t.Context(), func(_ context.Context, term *tenure.Term) error {
		before := guard.Now()
		_, soon := limits(term, time.Millisecond)
		stepDown, late := limits(term, time.Hour)
		left := term.Remaining() // first, so that what passes in between makes the deadline later
		if after := guard.Now().Add(left); late.Until(before) > after.Until(before)-killLead {
			t.Errorf("KILL %v before the deadline, want %v or more", after.Until(before)-late.Until(before), killLead)
		}
		if d := soon.Until(before) - stepDown.Until(before); d > time.Second {
			t.Errorf("KILL %v after the step-down, want 1 ms or little more", d)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestStatusRow(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	record := store.Record{Name: "job", State: store.Live, Token: 7, Holder: "a", Remaining: 1500 * time.Millisecond, AcquiredAt: at}
	row := func(change func(*store.Record)) string {
		r := record
		change(&r)
		return strings.Join(statusRow(r), "|")
	}
	for _, tt := range []struct{ got, want string }{
		{row(func(*store.Record) {}), "job|live|7|a|1.5s|2026-01-02 03:04:05|"},
		{row(func(r *store.Record) { r.State = store.Vacant }), "job|vacant|7|a|-|-|"},
		{row(func(r *store.Record) { r.State = store.Dead }), "job|dead|7|a|-|-|"},
		{row(func(r *store.Record) { r.Evicted = "repair" }), "job|live|7|a|1.5s|2026-01-02 03:04:05|evicted: repair"},
		{
			row(func(r *store.Record) { r.TermID, r.Burns = "t", []store.Burn{{Token: 7, TermID: "t"}} }),
			"job|live|7|a|1.5s|2026-01-02 03:04:05|burnt: a copy of its process used the same term; the expiry stands",
		},
	} {
		if tt.got != tt.want {
			t.Errorf("row %q, want %q", tt.got, tt.want)
		}
	}
}

// A lease that runs out gives no hint; a watcher sees it nevertheless. And who is
// evicted by a term's id is not another's term.
func TestWatchAndEvict(t *testing.T) {
	p := newPlace(t)
	w := p.start("watch", "job")
	w.says("none")
	a := p.start("run", "job", "--ttl", "3s", "--", "sleep", "1000")
	w.says("live")
	p.start("evict", "job", "--reason", "test", "--term", strings.Repeat("0", 32)).ends(exitNo)
	a.signal(unix.SIGKILL)
	a.ends(137)
	w.says("dead")
	w.signal(unix.SIGTERM)
	w.ends(143)

	a = p.start("run", "job", "--ttl", "10m", "--kill-after", "200ms", "--", "sh", "-c", `trap "" TERM; echo up >up; while :; do sleep 0.02; done`)
	p.until("the job", func() bool { _, err := os.Stat(p.path("up")); return err == nil })
	p.start("evict", "job", "--reason", "test", "--now").ends(0)
	p.start("run", "job", "--no-wait", "--", "true").ends(0)
	a.signal(unix.SIGKILL)
	a.ends(137)
	p.nothingRuns()
}
