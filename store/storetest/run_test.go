package storetest_test

import (
	"context"
	"errors"
	"go/build"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/storetest"
)

func TestCasesAreWellFormed(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+/[A-Za-z0-9-]+$`)
	seen := map[string]bool{}
	for _, c := range storetest.Cases() {
		if !name.MatchString(c.Name) || seen[c.Name] {
			t.Errorf("the name %q is not group/what, or is there twice", c.Name)
		}
		seen[c.Name] = true
		if !strings.HasSuffix(c.Why, ".") || strings.Contains(c.Why, "\n") || len(c.Why) < 30 {
			t.Errorf("%s: the reason is not a sentence: %q", c.Name, c.Why)
		}
	}
}

// TestNoTesting looks that nothing of package testing ships with the cases: the
// command runs them.
func TestNoTesting(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, imported := range p.Imports {
		if imported == "testing" || strings.HasPrefix(imported, "testing/") {
			t.Errorf("the package imports %s", imported)
		}
	}
}

func TestRun(t *testing.T) {
	for _, parallel := range []int{0, 1, 8, 1000} {
		synctest.Test(t, func(t *testing.T) {
			h := memory(plain)
			h.Parallel = parallel
			var got []string
			for r := range storetest.Run(t.Context(), h) {
				got = append(got, r.Case.Name)
				if r.Err != nil {
					t.Errorf("%s: %v", r.Case.Name, r.Err)
				}
				if optional := r.Case.Name == "init/again" || r.Case.Name == "nonce/differs"; optional != (r.Skipped != "") {
					t.Errorf("%s: skipped is %q", r.Case.Name, r.Skipped)
				}
			}
			var want []string
			for _, c := range storetest.Cases() {
				want = append(want, c.Name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d at once: got %q, want %q", parallel, got, want)
			}
		})
	}
}

func TestRunOnly(t *testing.T) {
	for _, test := range []struct {
		patterns []string
		want     []string
		fails    string
	}{
		{[]string{"release/frees"}, []string{"release/frees"}, ""},
		{[]string{"call"}, []string{"call/caps", "call/echo", "call/store-now", "call/cancelled", "call/cancelled-release", "call/closed"}, ""},
		{[]string{"watch/re*", "abandon"}, []string{"abandon/frees", "abandon/renewed", "abandon/nothing-there", "watch/renewed"}, ""},
		{[]string{"*/B05*"}, []string{"record/B05-removed", "record/B05-removed-then-acquired"}, ""},
		{[]string{"call", "nonsense"}, nil, `pattern "nonsense" matches no case`},
		{[]string{"[call"}, nil, `pattern "[call": syntax error in pattern`},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []string
			fails := ""
			for r := range storetest.Run(t.Context(), memory(plain), test.patterns...) {
				if r.Case.Name == "" {
					fails = r.Err.Error()
					continue
				}
				got = append(got, r.Case.Name)
			}
			if !slices.Equal(got, test.want) || fails != test.fails {
				t.Errorf("%q: got %q and the error %q, want %q and %q", test.patterns, got, fails, test.want, test.fails)
			}
		})
	}
}

// TestRunStops leaves the sequence early: the bubble finds whatever goes on.
func TestRunStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memory(plain)
		h.Parallel = 4
		for range storetest.Run(t.Context(), h) {
			break
		}
	})
}

func TestRunWithACancelledContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for r := range storetest.Run(ctx, memory(plain), "acquire/after-expiry") {
			if !errors.Is(r.Err, context.Canceled) {
				t.Errorf("got %v, want the context's error", r.Err)
			}
		}
	})
}

func TestStoreThatDoesNotOpen(t *testing.T) {
	boom := errors.New("boom")
	h := storetest.Harness{Open: func(context.Context) (store.Store, func() error, error) { return nil, nil, boom }}
	for r := range storetest.Run(t.Context(), h, "acquire/grant") {
		if !errors.Is(r.Err, boom) {
			t.Errorf("got %v, want %v", r.Err, boom)
		}
	}
	for r := range storetest.Run(t.Context(), storetest.Harness{}, "acquire/grant") {
		if r.Err == nil || !strings.Contains(r.Err.Error(), "no Open") {
			t.Errorf("a harness without Open: got %v", r.Err)
		}
	}
}

// TestStoreThatDoesNotClose looks that what goes wrong at the end is told.
func TestStoreThatDoesNotClose(t *testing.T) {
	boom := errors.New("boom")
	synctest.Test(t, func(t *testing.T) {
		h := memory(plain)
		open := h.Open
		h.Open = func(ctx context.Context) (store.Store, func() error, error) {
			s, _, err := open(ctx)
			return s, func() error { return boom }, err
		}
		for r := range storetest.Run(t.Context(), h, "acquire/grant") {
			if !errors.Is(r.Err, boom) {
				t.Errorf("got %v, want %v", r.Err, boom)
			}
		}
	})
}
