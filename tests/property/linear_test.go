package property

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/faultstore"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// The sequential model is small and shares nothing with package row: one
// election whose lease never runs out, told by who renewed which renewal.

// state is the election between two requests.
type state struct {
	token    fence.Token
	term     store.Attempt
	renewal  int64
	by       store.Attempt // who made that renewal; the grant's attempt at renewal 0
	released bool
	burnt    bool
}

// input is a request. A lease is told by its term, its token, the number of its
// last renewal and who made that.
type input struct {
	op      string
	attempt store.Attempt
	term    store.Attempt
	token   fence.Token
	renewal int64
	by      store.Attempt
}

// output is the answer. Of a request whose outcome is unknown nothing is known.
type output struct {
	unknown bool
	err     error // the kind
	token   fence.Token
	renewal int64
}

func (i input) String() string {
	if i.op == "renew" || i.op == "release" {
		return fmt.Sprintf("%s %s/%d.%d(%s) by %s", i.op, i.term, i.token, i.renewal, i.by, i.attempt)
	}
	return fmt.Sprintf("%s %s", i.op, i.attempt)
}

func (o output) String() string {
	switch {
	case o.unknown:
		return "unknown"
	case o.err != nil:
		return fmt.Sprintf("%v (token %d, renewal %d)", o.err, o.token, o.renewal)
	}
	return fmt.Sprintf("token %d, renewal %d", o.token, o.renewal)
}

func (s state) step(in input) (state, output) {
	live := s.token > 0 && !s.released
	switch in.op {
	case "acquire":
		switch {
		case s.term == in.attempt && live && s.renewal == 0:
			return s, output{token: s.token}
		case s.term == in.attempt:
			return s, output{err: store.ErrSpent}
		case live:
			return s, output{err: store.ErrHeld, token: s.token}
		}
		s = state{token: s.token + 1, term: in.attempt, by: in.attempt}
		return s, output{token: s.token}
	case "abandon":
		if s.term == in.attempt && s.renewal == 0 {
			s.released = true
		}
		return s, output{}
	case "get":
		switch {
		case s.token == 0:
			return s, output{err: store.ErrNoRecord}
		case s.released:
			return s, output{err: store.ErrVacant, token: s.token, renewal: s.renewal}
		}
		return s, output{token: s.token, renewal: s.renewal}
	}
	// A renewal or a release.
	current := in.renewal == s.renewal && in.by == s.by
	switch {
	case s.token == 0:
		return s, output{err: store.ErrNoRecord}
	case s.term != in.term || s.token != in.token:
		return s, output{err: store.ErrSuperseded}
	case s.burnt:
		return s, output{err: store.ErrCloned}
	case s.released && in.op == "renew":
		return s, output{err: store.ErrReleased}
	case s.released:
		return s, output{}
	case in.op == "renew" && current:
		s.renewal, s.by = s.renewal+1, in.attempt
		return s, output{token: s.token, renewal: s.renewal}
	case in.op == "release" && (current || in.renewal == s.renewal-1 && in.attempt == s.by):
		s.released = true
		return s, output{}
	case in.renewal != s.renewal-1 || in.op == "release":
		return s, output{err: store.ErrReceipt}
	case in.attempt == s.by:
		return s, output{token: s.token, renewal: s.renewal}
	}
	s.burnt = true
	return s, output{err: store.ErrCloned}
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := map[string][]porcupine.Operation{}
		for _, o := range history {
			name := o.Metadata.(string)
			byName[name] = append(byName[name], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return state{} },
	Step: func(s, in, out any) (bool, any) {
		next, want := s.(state).step(in.(input))
		got := out.(output)
		return got.unknown || got == want, next
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v -> %v", in, out) },
	DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
}

// client sends requests on what it and the others were granted: a lease in two
// clients' hands is a leader and its copy.
type client struct {
	id     int
	store  store.Store
	rnd    *rand.Rand
	shared *history
}

// history is what all clients did, and the leases they were given.
type history struct {
	began time.Time
	names []string

	mu     sync.Mutex
	ops    []porcupine.Operation
	leases map[string][]store.Lease
	tried  map[string][]store.Attempt // attempts whose outcome is unknown, and some others
	drawn  int
}

func (h *history) draw() store.Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drawn++
	return store.Attempt(fmt.Sprintf("a%d", h.drawn))
}

// again returns an attempt that was tried before, if there is one.
func (c *client) again(name string) (store.Attempt, bool) {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	tried := c.shared.tried[name]
	if len(tried) == 0 {
		return "", false
	}
	return tried[len(tried)-1-c.rnd.IntN(min(len(tried), 2))], true
}

// lease returns one of the newest leases of an election.
func (c *client) lease(name string) (store.Lease, bool) {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	ls := c.shared.leases[name]
	if len(ls) == 0 {
		return store.Lease{}, false
	}
	return ls[len(ls)-1-c.rnd.IntN(min(len(ls), 3))], true
}

// attempt draws one, or takes one that was tried before.
func (c *client) attempt(name string) store.Attempt {
	if c.rnd.IntN(3) == 0 {
		if a, ok := c.again(name); ok {
			return a
		}
	}
	return c.shared.draw()
}

func (c *client) step(ctx context.Context) {
	name := c.shared.names[c.rnd.IntN(len(c.shared.names))]
	a := c.attempt(name)
	l, led := c.lease(name)
	in := input{attempt: a, term: l.TermID, token: l.Token, renewal: l.Renewal, by: l.Attempt}
	n := c.rnd.IntN(20)
	switch {
	case n < 2:
		in = input{op: "get"}
	case n < 3:
		in = input{op: "abandon", attempt: a}
	case n < 8 || !led:
		in = input{op: "acquire", attempt: a}
	case n < 17:
		in.op = "renew"
	default:
		in.op = "release"
	}

	call := time.Since(c.shared.began)
	var out output
	var got store.Lease
	var err error
	switch in.op {
	case "get":
		var rec store.Record
		rec, err = c.store.Get(ctx, name)
		out = output{token: rec.Token, renewal: rec.Renewal}
		if err == nil && rec.State == store.Vacant {
			err = store.ErrVacant
		}
	case "abandon":
		err = c.store.Abandon(ctx, name, a)
	case "acquire":
		got, err = c.store.Acquire(ctx, store.Claim{Name: name, Holder: "h", Attempt: a, TTL: time.Hour})
		out.token, out.renewal = got.Token, got.Renewal
		if held := (*store.HeldError)(nil); errors.As(err, &held) {
			out.token = held.Token
		}
	case "renew":
		got, err = c.store.Renew(ctx, l, a)
		out.token, out.renewal = got.Token, got.Renewal
	case "release":
		err = c.store.Release(ctx, l, a)
	}
	end := time.Since(c.shared.began)
	if !store.OutcomeUnknown(err) && (errors.Is(err, store.ErrBusy) || errors.Is(err, store.ErrUnreachable)) {
		return // the store says that it did nothing
	}
	out.err = kind(err)
	if store.OutcomeUnknown(err) {
		// It may have been carried out at any time from its beginning on, or never,
		// which is the same as after everything else.
		out, end = output{unknown: true}, math.MaxInt64
	}

	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.shared.ops = append(c.shared.ops, porcupine.Operation{
		ClientId: c.id, Input: in, Output: out, Call: int64(call), Return: int64(end), Metadata: name,
	})
	if err == nil && got.Name != "" {
		c.shared.leases[name] = append(c.shared.leases[name], got)
	}
	if in.attempt != "" {
		c.shared.tried[name] = append(c.shared.tried[name], in.attempt)
	}
}

// kind returns the error of package store that err is, or err.
func kind(err error) error {
	for _, k := range []error{
		store.ErrHeld, store.ErrSpent, store.ErrNoRecord, store.ErrVacant, store.ErrSuperseded, store.ErrReleased, store.ErrCloned, store.ErrReceipt,
	} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}

// run lets four clients send requests at once, each through faults of its own,
// and returns the verdict on their history.
func run(t *testing.T, seed uint64, open func() store.Store) (porcupine.CheckResult, []porcupine.Operation) {
	const clients, steps = 4, 25
	h := &history{began: time.Now(), names: []string{"e1", "e2"}, leases: map[string][]store.Lease{}, tried: map[string][]store.Attempt{}}
	var all sync.WaitGroup
	for id := range clients {
		f := faultstore.New(open())
		rnd := rand.New(rand.NewPCG(seed, uint64(id)))
		for _, op := range []faultstore.Op{faultstore.Acquire, faultstore.Renew, faultstore.Release} {
			f.Add(
				faultstore.Rule{Op: op, Nth: 1 + rnd.IntN(4), Fault: faultstore.LoseReply()},
				faultstore.Rule{Op: op, Nth: 1 + rnd.IntN(8), Fault: faultstore.LoseReply()},
				faultstore.Rule{Op: op, Nth: 1 + rnd.IntN(8), Fault: faultstore.Fail(nil)},
			)
		}
		c := &client{id: id, store: f, rnd: rnd, shared: h}
		all.Go(func() {
			for range steps {
				c.step(t.Context())
			}
		})
	}
	all.Wait()
	slices.SortFunc(h.ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	return porcupine.CheckOperationsTimeout(model, h.ops, 30*time.Second), h.ops
}

func TestMemoryIsLinearizable(t *testing.T) {
	answers := map[string]int{}
	for seed := range uint64(200) {
		mem := memstore.New(nil)
		verdict, ops := run(t, seed, func() store.Store { return mem.Share() })
		if verdict != porcupine.Ok {
			t.Fatalf("seed %d: %s\n%s", seed, verdict, describe(ops))
		}
		for _, o := range ops {
			in, out := o.Input.(input), o.Output.(output)
			answers[fmt.Sprintf("%s: %v", in.op, out.err)]++
			if out.unknown {
				answers["unknown"]++
			}
		}
	}
	// The histories must have come to where it matters.
	for _, want := range []string{
		"acquire: <nil>", "acquire: tenure: held by another", "acquire: tenure: attempt already spent", "renew: <nil>", "renew: tenure: term was cloned",
		"renew: tenure: receipt is not current", "renew: tenure: superseded by another term", "renew: tenure: term was released",
		"release: <nil>", "release: tenure: receipt is not current", "release: tenure: term was cloned", "get: <nil>", "abandon: <nil>", "unknown",
	} {
		if answers[want] == 0 {
			t.Errorf("no history has the answer %q: %v", want, answers)
		}
	}
}

func TestSQLiteIsLinearizable(t *testing.T) {
	for seed := range uint64(10) {
		path := filepath.Join(t.TempDir(), "tenure.db")
		verdict, ops := run(t, seed, func() store.Store {
			s, err := tenuresqlite.Open(t.Context(), path, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			return s
		})
		if verdict != porcupine.Ok {
			t.Fatalf("seed %d: %s\n%s", seed, verdict, describe(ops))
		}
	}
}

// torn is a store whose steps are not atomic: it reads, looks away, and writes.
type torn struct{ *memstore.Store }

func (s torn) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	before := s.Snapshot()[l.Name]
	time.Sleep(50 * time.Microsecond)
	if before.Receipt == l.Receipt {
		snap := s.Snapshot()
		snap[l.Name] = before
		s.Restore(snap)
	}
	return s.Store.Renew(ctx, l, a)
}

// forgetful is a store that answers a repeated acquire as if it were new.
type forgetful struct{ *memstore.Store }

func (s forgetful) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	l, err := s.Store.Acquire(ctx, c)
	if errors.Is(err, store.ErrSpent) {
		l, err = s.Store.Acquire(ctx, store.Claim{Name: c.Name, Holder: c.Holder, Attempt: c.Attempt + "x", TTL: c.TTL})
	}
	return l, err
}

// TestTheCheckCanFail holds broken stores to the model.
func TestTheCheckCanFail(t *testing.T) {
	for what, broken := range map[string]func(*memstore.Store) store.Store{
		"renewals are not atomic":    func(s *memstore.Store) store.Store { return torn{s} },
		"spent attempts are granted": func(s *memstore.Store) store.Store { return forgetful{s} },
	} {
		t.Run(what, func(t *testing.T) {
			for seed := range uint64(300) {
				mem := memstore.New(nil)
				if verdict, _ := run(t, seed, func() store.Store { return broken(mem.Share()) }); verdict == porcupine.Illegal {
					return
				}
			}
			t.Error("the histories of a broken store were found to be linearizable")
		})
	}
}

func describe(ops []porcupine.Operation) string {
	s := ""
	for _, o := range ops {
		s += fmt.Sprintf("client %d, %s, %v to %v: %s\n", o.ClientId, o.Metadata, time.Duration(o.Call), time.Duration(o.Return), model.DescribeOperation(o.Input, o.Output))
	}
	return s
}
