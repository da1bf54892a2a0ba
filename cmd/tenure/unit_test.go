package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/cmd/tenure/internal/storeurl"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want int
	}{
		{&store.HeldError{}, exitHeld},
		{&tenure.LostError{Cause: tenure.ErrExpired}, exitLost},
		{&tenure.LostError{Cause: tenure.ErrDenied}, exitLost}, // lost, whatever the cause
		{errors.Join(&tenure.LostError{Cause: tenure.ErrStalled}, &commandError{3}), exitLost},
		{store.ErrDenied, exitDenied},
		{store.ErrUnreachable, exitUnreachable},
		{store.ErrBusy, exitUnreachable},
		{store.ErrReadOnly, exitUnreachable},
		{store.ErrFormat, exitUnreachable},
		{store.ErrUnsupported, exitUnreachable},
		{store.ErrTokens, exitUnreachable},
		{store.Invalid("x"), exitUsage},
		{fence.ErrInvalid, exitUsage},
		{store.ErrNoRecord, exitNo},
		{store.ErrVacant, exitNo},
		{&commandError{42}, 42},
		{&guard.StartError{Code: guard.CodeNotFound}, 127},
		{&guard.StartError{Code: guard.CodeNotRunning}, 126},
		{&guard.StartError{Code: guard.CodeTooLate}, exitLost},
		{&guard.StartError{Code: guard.CodeInternal}, exitInternal},
		{exitf(9, "x"), 9},
		{errors.New("anything else"), exitInternal},
	} {
		if got := exitCode(fmt.Errorf("wrapped: %w", tt.err)); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

// The command's own end never hides a loss: outcome looks at the loss first.
func TestLostBeforeCommand(t *testing.T) {
	t.Parallel()
	lost := errors.Join(&tenure.LostError{Cause: tenure.ErrStalled}, &commandError{0})
	for _, ended := range []bool{false, true} {
		r := &runner{c: &runCmd{ExitLost: 76}, store: &openStore{}, ended: ended}
		if got := exitCode(r.outcome(lost)); got != 76 {
			t.Errorf("ended %v: exit code %d, want 76", ended, got)
		}
	}
}

func TestPlainLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := newLog(&out, false, slog.LevelInfo).With("election", "a b")
	log.Debug("not said")
	log.Info("leading", "token", fence.Token(7), "left", 1234567*time.Microsecond)
	log.Warn("renewal failed", "error", errors.New("tenure: cannot: tenure: \"x\"\nno"))
	log.Error("bad", "text", "\xff", "empty", "")
	want := `tenure: leading election="a b" token=7 left=1.235s
tenure: warning: renewal failed election="a b" error="cannot: \"x\"\nno"
tenure: error: bad election="a b" text="\xff" empty=""
`
	if got := out.String(); got != want {
		t.Errorf("the log says\n%s\nwant\n%s", got, want)
	}
}

func TestJSONLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	newLog(&out, true, slog.LevelInfo).Info("leading", "token", fence.Token(9007199254740993), "n", int64(9007199254740993), "left", time.Second)
	for _, want := range []string{`"token":"9007199254740993"`, `"n":"9007199254740993"`, `"left":"1s"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log says %s, want %s in it", out.String(), want)
		}
	}
}

// No password comes out of an error or the log.
func TestCleaned(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	_, err := storeurl.Parse("postgres://u:" + secret + "@h/")
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("Parse: %v", err)
	}
	inner := fmt.Errorf("%w: no such host", store.ErrUnreachable)
	if err := clean(storeurl.URL{}, inner); !errors.Is(err, store.ErrUnreachable) || clean(storeurl.URL{}, nil) != nil {
		t.Errorf("clean = %v, want the same kind of error, and nil for nil", err)
	}
}

// Whatever URL is read can be opened, and fenced.
func TestBackends(t *testing.T) {
	t.Parallel()
	schemes := storeurl.Schemes()
	for _, scheme := range schemes {
		if b := backends[scheme]; b.open == nil || b.gate == nil {
			t.Errorf("%s: a URL of it is read, and not opened or not fenced", scheme)
		}
	}
	if len(schemes) != len(backends) {
		t.Errorf("there are schemes %q and %d backends", schemes, len(backends))
	}
}

func TestKillAfterFits(t *testing.T) {
	t.Parallel()
	for _, killAfter := range []time.Duration{time.Millisecond, time.Second, 5 * time.Second, time.Minute, time.Hour} {
		ttl := ttlFor(killAfter)
		if left := leftAfterStepDown(ttl); left < killAfter {
			t.Errorf("--ttl %v leaves %v, want %v", ttl, left, killAfter)
		}
		// What is advised is accepted.
		c := runCmd{Name: "job", TTL: ttl, KillAfter: &killAfter, Command: []string{"x"}, ExitHeld: 75, ExitLost: 76}
		if err := c.check(); err != nil {
			t.Errorf("--ttl %v --kill-after %v: %v", ttl, killAfter, err)
		}
		if _, err := tenure.NewElector(noStore{}, "job", c.options(nil)); err != nil {
			t.Errorf("--ttl %v --kill-after %v: %v", ttl, killAfter, err)
		}
	}
}

// noStore has capabilities and nothing else.
type noStore struct{ store.Store }

func (noStore) Caps() store.Caps {
	return store.Caps{Store: "none", TTLMin: time.Millisecond, TTLMax: 1000 * time.Hour}
}

// The completion of bash, used as bash does.
func TestCompletionBash(t *testing.T) {
	t.Parallel()
	var script bytes.Buffer
	a := &app{stdout: &script, stderr: &script, getenv: func(string) string { return "" }}
	if code := a.main([]string{"completion", "bash"}); code != 0 {
		t.Fatalf("exit code %d: %s", code, script.String())
	}
	for line, want := range map[string]string{
		"tenure st":                      "status store",
		"tenure store ":                  "check",
		"tenure run --log":               "--log-level",
		"tenure run --log-level w":       "warn",
		"tenure run x --ttl 3s --no":     "--no-wait",
		"tenure completion z":            "zsh",
		"tenure run --ttl ":              "",
		"tenure demo-w":                  "",
		"tenure run x -- tenure-no-such": "",
	} {
		c := exec.CommandContext(t.Context(), "bash", "--norc", "-c", script.String()+`
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tenure; echo "${COMPREPLY[*]}"`, "bash")
		c.Args = append(c.Args, strings.Split(line, " ")...)
		out, err := c.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q completes to %q, %v; want %q", line, got, err, want)
		}
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("TENURE_STORE", "sqlite:x")
	t.Setenv("TENURE_STORE_FILE", "y")
	t.Setenv("TENURE_TOKEN", "99")
	t.Setenv("TENURE_CONTROL", "/stale")
	t.Setenv("TENURE_WHATEVER", "stale")
	t.Setenv("NOTIFY_SOCKET", "/outer")
	t.Setenv("WATCHDOG_PID", "1")
	t.Setenv("WATCHDOG_USEC", "1")
	e, err := tenure.NewElector(memstore.New(nil), "job", nil)
	if err != nil {
		t.Fatal(err)
	}
	err = e.RunOnce(context.Background(), func(_ context.Context, term *tenure.Term) error {
		r := &runner{c: &runCmd{}}
		var got []string
		for _, line := range r.environ(term) {
			if strings.HasPrefix(line, "TENURE_") || strings.HasPrefix(line, "NOTIFY_") || strings.HasPrefix(line, "WATCHDOG_") {
				got = append(got, line)
			}
		}
		want := []string{"TENURE_STORE=sqlite:x", "TENURE_STORE_FILE=y", "TENURE_NAME=job", "TENURE_TOKEN=1", "TENURE_TERM=" + term.Info().ID}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("the command gets %q, want %q", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
