package store_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

var caps = store.Caps{Store: "paper", Precision: time.Second, TTLMin: time.Second, TTLMax: time.Hour, NameMax: 100}

func valid() store.Claim {
	return store.Claim{Name: "a", Holder: "h", Attempt: "c1", TTL: 15 * time.Second}
}

func TestClaimValidate(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(*store.Claim)
		want   []string // the lines of the error; none: it is valid
	}{
		{"a plain claim", func(*store.Claim) {}, nil},
		{"all at their bounds", func(c *store.Claim) {
			c.Name, c.Holder, c.Meta = strings.Repeat("n", 100), strings.Repeat("h", 200), strings.Repeat("m", 2000)
			c.Attempt, c.TTL, c.Floor, c.FencedOnly = store.Attempt(strings.Repeat("~", 64)), time.Hour, fence.MaxToken-1, true
		}, nil},
		{
			"no name", func(c *store.Claim) { c.Name = "" },
			[]string{"tenure: name is empty: allowed are 1 to 200 bytes of UTF-8 without control characters"},
		},
		{
			"a name too long for this store", func(c *store.Claim) { c.Name = strings.Repeat("n", 101) },
			[]string{"tenure: name has 101 bytes: the paper store allows at most 100"},
		},
		{"a name too long for any", func(c *store.Claim) { c.Name = strings.Repeat("n", 201) }, []string{
			"tenure: name has 201 bytes: allowed are 1 to 200 bytes of UTF-8 without control characters",
			"tenure: name has 201 bytes: the paper store allows at most 100",
		}},
		{
			"a name with a newline", func(c *store.Claim) { c.Name = "two\nlines" },
			[]string{`tenure: name "two\nlines" has the control character U+000A at byte 3: allowed are 1 to 200 bytes of UTF-8 without control characters`},
		},
		{
			"a name that is no UTF-8", func(c *store.Claim) { c.Name = "\xff" },
			[]string{`tenure: name "\xff" is not valid UTF-8: allowed are 1 to 200 bytes of UTF-8 without control characters`},
		},
		{
			"no holder", func(c *store.Claim) { c.Holder = "" },
			[]string{"tenure: holder is empty: allowed are 1 to 200 bytes of UTF-8 without control characters"},
		},
		{
			"a long holder", func(c *store.Claim) { c.Holder = strings.Repeat("h", 10_000) },
			[]string{"tenure: holder has 10000 bytes: allowed are 1 to 200 bytes of UTF-8 without control characters"},
		},
		{
			"a long meta", func(c *store.Claim) { c.Meta = strings.Repeat("m", 2001) },
			[]string{"tenure: meta has 2001 bytes: allowed are at most 2000"},
		},
		{
			"meta with a zero byte", func(c *store.Claim) { c.Meta = "a\x00b" },
			[]string{`tenure: meta "a\x00b": allowed is UTF-8 without zero bytes`},
		},
		{
			"meta of bytes", func(c *store.Claim) { c.Meta = "\xff" },
			[]string{`tenure: meta "\xff": allowed is UTF-8 without zero bytes`},
		},
		{
			"no attempt", func(c *store.Claim) { c.Attempt = "" },
			[]string{"tenure: attempt has 0 bytes: allowed are 1 to 64"},
		},
		{
			"an attempt with a space", func(c *store.Claim) { c.Attempt = "a b" },
			[]string{`tenure: attempt "a b": allowed is printable ASCII without spaces`},
		},
		{
			"no ttl", func(c *store.Claim) { c.TTL = 0 },
			[]string{"tenure: ttl is 0s: the paper store allows 1s to 1h0m0s"},
		},
		{
			"a negative ttl", func(c *store.Claim) { c.TTL = math.MinInt64 },
			[]string{"tenure: ttl is -2562047h47m16.854775808s: the paper store allows 1s to 1h0m0s"},
		},
		{
			"a ttl below a second", func(c *store.Claim) { c.TTL = 999 * time.Millisecond },
			[]string{"tenure: ttl is 999ms: the paper store allows 1s to 1h0m0s"},
		},
		{
			"a ttl without end", func(c *store.Claim) { c.TTL = math.MaxInt64 },
			[]string{"tenure: ttl is 2562047h47m16.854775807s: the paper store allows 1s to 1h0m0s"},
		},
		{
			"a negative floor", func(c *store.Claim) { c.Floor = -1 },
			[]string{"tenure: floor is -1: allowed are 0 to 4611686018427387903"},
		},
		{
			"a floor without a token above it", func(c *store.Claim) { c.Floor = fence.MaxToken },
			[]string{"tenure: floor is 4611686018427387904: allowed are 0 to 4611686018427387903"},
		},
		{
			"a takeover this store has not", func(c *store.Claim) { c.Takeover, c.FencedOnly = store.OnDisconnect, true },
			[]string{"tenure: not supported by this store: the paper store cannot take over on disconnect"},
		},
		{"a takeover of work that is not fenced", func(c *store.Claim) { c.Takeover = store.OnDisconnect }, []string{
			"tenure: not supported by this store: the paper store cannot take over on disconnect",
			"tenure: takeover on disconnect needs FencedOnly: without a fence on every write two leaders could act at once",
		}},
		{
			"a takeover that does not exist", func(c *store.Claim) { c.Takeover = 9 },
			[]string{"tenure: takeover is 9: allowed are AtExpiry and OnDisconnect"},
		},
		{"everything at once", func(c *store.Claim) { *c = store.Claim{Floor: -1} }, []string{
			"tenure: name is empty: allowed are 1 to 200 bytes of UTF-8 without control characters",
			"tenure: holder is empty: allowed are 1 to 200 bytes of UTF-8 without control characters",
			"tenure: attempt has 0 bytes: allowed are 1 to 64",
			"tenure: ttl is 0s: the paper store allows 1s to 1h0m0s",
			"tenure: floor is -1: allowed are 0 to 4611686018427387903",
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			c := valid()
			test.change(&c)
			err := c.Validate(caps)
			got := ""
			if err != nil {
				got = err.Error()
				if !errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrUnsupported) {
					t.Errorf("%v is neither ErrInvalid nor ErrUnsupported", err)
				}
				if store.OutcomeUnknown(err) {
					t.Error("nothing was asked, and yet the outcome is called unknown")
				}
			}
			if want := strings.Join(test.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestTakeoverWhereTheStoreHasIt(t *testing.T) {
	able := caps
	able.Takeover = true
	c := valid()
	c.Takeover, c.FencedOnly = store.OnDisconnect, true
	if err := c.Validate(able); err != nil {
		t.Errorf("a takeover of fenced work: %v", err)
	}
	c.FencedOnly = false
	if err := c.Validate(able); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a takeover of work that is not fenced: %v", err)
	}
}

func TestEvictionValidate(t *testing.T) {
	for _, test := range []struct {
		e    store.Eviction
		want string
	}{
		{store.Eviction{Name: "a", Reason: "drain"}, ""},
		{store.Eviction{Name: "a", Reason: strings.Repeat("r", 500)}, ""},
		{store.Eviction{Name: "a", Reason: strings.Repeat("r", 501)}, "tenure: reason has 501 bytes: allowed are 1 to 500 bytes of UTF-8 without control characters"},
		{store.Eviction{}, "tenure: name is empty: allowed are 1 to 200 bytes of UTF-8 without control characters\n" +
			"tenure: reason is empty: allowed are 1 to 500 bytes of UTF-8 without control characters"},
	} {
		got := ""
		if err := test.e.Validate(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v: got %q, want %q", test.e, got, test.want)
		}
	}
}

type saysSo struct{ unknown bool }

func (saysSo) Error() string          { return "says so" }
func (s saysSo) OutcomeUnknown() bool { return s.unknown }

func TestOutcomeUnknown(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("anything"), true},
		{context.Canceled, true},
		{context.DeadlineExceeded, true},
		{net.ErrClosed, true},
		{store.ErrUnreachable, true},
		{store.ErrBusy, true},
		{store.Undone(context.Canceled), false},
		{fmt.Errorf("dialling: %w", store.Undone(store.ErrUnreachable)), false},
		{saysSo{true}, true},
		{saysSo{false}, false},
		{fmt.Errorf("%w: %w", store.ErrDenied, saysSo{true}), true},
		{store.Invalid("x"), false},
		{&store.HeldError{}, false},
		{&store.ClonedError{}, false},
		{&store.ReceiptError{}, false},
		{&store.EvictedError{}, false},
		{store.ErrHeld, false},
		{store.ErrSpent, false},
		{store.ErrNoRecord, false},
		{store.ErrVacant, false},
		{store.ErrSuperseded, false},
		{store.ErrExpired, false},
		{store.ErrReleased, false},
		{store.ErrCloned, false},
		{store.ErrReceipt, false},
		{store.ErrEvicted, false},
		{store.ErrTokens, false},
		{store.ErrInvalid, false},
		{store.ErrDenied, false},
		{store.ErrReadOnly, false},
		{store.ErrFormat, false},
		{store.ErrUnsupported, false},
		{store.ErrStoreClosed, false},
	} {
		if got := store.OutcomeUnknown(test.err); got != test.want {
			t.Errorf("%v: got %v, want %v", test.err, got, test.want)
		}
		if wrapped := fmt.Errorf("renewing: %w", test.err); test.err != nil && store.OutcomeUnknown(wrapped) != test.want {
			t.Errorf("%v, wrapped: got %v, want %v", test.err, !test.want, test.want)
		}
	}
}

func TestUndoneKeepsTheError(t *testing.T) {
	err := store.Undone(fmt.Errorf("dialling: %w", store.ErrUnreachable))
	if !errors.Is(err, store.ErrUnreachable) || err.Error() != "dialling: tenure: store unreachable" {
		t.Errorf("got %v", err)
	}
}

// TestErrorsAreDistinct: no error is of two kinds.
func TestErrorsAreDistinct(t *testing.T) {
	typed := map[error]error{
		store.ErrHeld: &store.HeldError{}, store.ErrCloned: &store.ClonedError{}, store.ErrReceipt: &store.ReceiptError{},
		store.ErrEvicted: &store.EvictedError{}, store.ErrInvalid: store.Invalid("x"),
	}
	kinds := []error{
		store.ErrHeld, store.ErrSpent, store.ErrNoRecord, store.ErrVacant, store.ErrSuperseded, store.ErrExpired, store.ErrReleased,
		store.ErrCloned, store.ErrReceipt, store.ErrEvicted, store.ErrTokens, store.ErrInvalid, store.ErrDenied, store.ErrUnreachable,
		store.ErrBusy, store.ErrReadOnly, store.ErrFormat, store.ErrUnsupported, store.ErrStoreClosed,
	}
	texts := map[string]bool{}
	for _, kind := range kinds {
		if texts[kind.Error()] {
			t.Errorf("two errors say %q", kind)
		}
		texts[kind.Error()] = true
		for _, other := range kinds {
			if errors.Is(kind, other) != (kind == other) {
				t.Errorf("%q and %q are mixed up", kind, other)
			}
			if e, ok := typed[kind]; ok && errors.Is(e, other) != (kind == other) {
				t.Errorf("%T and %q are mixed up", e, other)
			}
		}
	}
}

func TestErrorTexts(t *testing.T) {
	burn := store.Burn{TermID: "c1", Token: 7, Receipt: "3.r3", First: "r4", Second: "r5"}
	for _, test := range []struct {
		err  error
		want string
	}{
		{&store.HeldError{Name: "a", Holder: "h", Token: 7, Remaining: 1500500 * time.Microsecond}, `tenure: "a" is held by "h", token 7, for another 1.501s`},
		{
			&store.HeldError{Name: "a", Holder: "h", Token: 7, Remaining: time.Second, Burnt: true},
			`tenure: "a" is held by "h", token 7, for another 1s (its term was cloned and is burnt; its expiry stands)`,
		},
		{
			&store.HeldError{Name: "a", Holder: "h", Token: 7, Remaining: time.Second, Foreign: true},
			`tenure: "a" is held by "h", token 7, for another 1s (written before this host started or before the file was copied; a full TTL is waited out)`,
		},
		{
			&store.ClonedError{Name: "a", Burn: burn},
			`tenure: term c1 of "a" (token 7) was cloned: receipt 3.r3 was presented by attempt r4 and again by attempt r5`,
		},
		{
			&store.ReceiptError{Name: "a", Token: 7, Presented: 3, Current: 5},
			`tenure: receipt of renewal 3 of "a" (token 7) is not current, the store is at 5: another copy of this process has renewed meanwhile`,
		},
		{
			&store.ReceiptError{Name: "a", Token: 7, Presented: 5, Current: 3},
			`tenure: receipt of renewal 5 of "a" (token 7) is not current, the store is at 3: the store has lost renewals that it had answered`,
		},
		{&store.EvictedError{Name: "a", Reason: "drain"}, `tenure: evicted from "a" by an operator: drain`},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// bare is a store that does nothing; lists is one that can list too; wrap is a
// wrapper around one.
type (
	bare  struct{ store.Store }
	lists struct {
		store.Store
		store.Lister
	}
	wrap struct {
		store.Store
		inner store.Store
	}
)

func (w wrap) Unwrap() store.Store { return w.inner }

func TestAs(t *testing.T) {
	l := lists{}
	for _, test := range []struct {
		what string
		s    store.Store
		want bool
	}{
		{"no store", nil, false},
		{"a bare store", bare{}, false},
		{"one that lists", l, true},
		{"one that lists behind a wrapper", wrap{inner: l}, true},
		{"one that lists behind two wrappers", wrap{inner: wrap{inner: l}}, true},
		{"a bare store behind a wrapper", wrap{inner: bare{}}, false},
		{"a wrapper around nothing", wrap{}, false},
		{"one that hides what it wraps", bare{l}, false},
	} {
		got, ok := store.As[store.Lister](test.s)
		if ok != test.want || ok != (got != nil) {
			t.Errorf("%s: got %v, %v", test.what, got, ok)
		}
	}
	if _, ok := store.As[wrap](wrap{inner: l}); !ok {
		t.Error("the outermost store is not looked at")
	}
}

func TestRecordBurnt(t *testing.T) {
	burn := store.Burn{TermID: "c1", Token: 7}
	for _, test := range []struct {
		rec  store.Record
		want bool
	}{
		{store.Record{}, false},
		{store.Record{TermID: "c1", Token: 7}, false},
		{store.Record{TermID: "c1", Token: 7, Burns: []store.Burn{burn}}, true},
		{store.Record{TermID: "c2", Token: 8, Burns: []store.Burn{burn}}, false},
		{store.Record{TermID: "c2", Token: 7, Burns: []store.Burn{burn}}, false},
		{store.Record{TermID: "c1", Token: 8, Burns: []store.Burn{burn}}, false},
		{store.Record{Burns: []store.Burn{{}}}, false},
	} {
		if got := test.rec.Burnt(); got != test.want {
			t.Errorf("%+v: got %v", test.rec, got)
		}
	}
}

func TestState(t *testing.T) {
	for state, want := range map[store.State]string{store.Vacant: "vacant", store.Live: "live", store.Dead: "dead", 9: "unknown"} {
		if got := state.String(); got != want {
			t.Errorf("state %d: got %q, want %q", state, got, want)
		}
	}
}
