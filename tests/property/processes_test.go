package property

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/faultstore"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/tests/servers"
)

const (
	election = "e"
	ttl      = 15 * time.Second
)

// process is what one contender remembers. It is a plain value: assigning it to
// another process is what restoring a snapshot of it somewhere else does.
type process struct {
	lease   store.Lease // zero: it does not lead
	valid   time.Time   // until when it may believe in the lease
	pending request     // under way, its outcome unknown
}

// request is an acquire if the process has no lease, else a renewal.
type request struct {
	attempt store.Attempt
	drawn   time.Time
}

func (p process) leads() bool { return p.lease.TermID != "" }

// term names one.
type term struct {
	id    store.Attempt
	token fence.Token
}

// renewal is a receipt of a term. The receipt alone does not do: an attempt whose
// term is long over may be granted again, to a copy that asks late, and is then
// another term with a higher token.
type renewal struct {
	term    term
	receipt store.Receipt
}

func (p process) term() term { return term{p.lease.TermID, p.lease.Token} }

// world is a store in memory behind faults, a few processes, one clock, and what
// must be true of them.
type world struct {
	now       time.Time
	store     *faultstore.Store
	processes [3]process
	attempts  int

	copied   map[term]bool // a process was copied in this term, or in the attempt that began it
	unsafe   map[term]bool // one of its copies released it: then only the fence protects
	tokens   map[fence.Token]store.Attempt
	highest  fence.Token
	consumed map[renewal]store.Attempt
	burnt    map[term]bool
	twins    map[store.Attempt]bool // attempts that were copied while under way
}

func newWorld() *world {
	w := &world{
		now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), copied: map[term]bool{}, unsafe: map[term]bool{},
		tokens: map[fence.Token]store.Attempt{}, consumed: map[renewal]store.Attempt{}, burnt: map[term]bool{}, twins: map[store.Attempt]bool{},
	}
	w.store = faultstore.New(memstore.New(&memstore.Options{Clock: func() time.Time { return w.now }}))
	return w
}

// pick draws one of the processes.
func (w *world) pick(t *rapid.T, what string) *process {
	return &w.processes[rapid.IntRange(0, len(w.processes)-1).Draw(t, what)]
}

// call runs f with a context that has ended, where a fault makes the caller wait
// for it, and otherwise with one that has not.
func (w *world) call(t *rapid.T, op faultstore.Op, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fault := rapid.SampledFrom([]string{"none", "none", "none", "lose the reply", "fail", "late", "duplicate"}).Draw(t, "fault")
	w.store.Clear()
	switch fault {
	case "lose the reply":
		w.store.Add(faultstore.Rule{Op: op, Fault: faultstore.LoseReply()})
	case "fail":
		w.store.Add(faultstore.Rule{Op: op, Fault: faultstore.Fail(nil)})
	case "late":
		cancel()
		w.store.Add(faultstore.Rule{Op: op, Fault: faultstore.Late()})
	case "duplicate":
		w.store.Add(faultstore.Rule{Op: op, Fault: faultstore.Duplicate()})
	}
	return f(ctx)
}

// ask sends the process's request, the pending one or a new one, and takes the
// answer in.
func (w *world) ask(t *rapid.T, p *process) {
	if p.pending.attempt == "" {
		w.attempts++
		p.pending = request{store.Attempt(fmt.Sprintf("a%d", w.attempts)), w.now}
	}
	asked := p.pending
	var l store.Lease
	op := faultstore.Acquire
	if p.leads() {
		op = faultstore.Renew
	}
	err := w.call(t, op, func(ctx context.Context) (err error) {
		if p.leads() {
			l, err = w.store.Renew(ctx, p.lease, asked.attempt)
		} else {
			l, err = w.store.Acquire(ctx, store.Claim{Name: election, Holder: "h", Attempt: asked.attempt, TTL: ttl})
		}
		return err
	})
	if store.OutcomeUnknown(err) {
		return
	}
	p.pending = request{}
	if err != nil {
		if errors.Is(err, store.ErrCloned) {
			if !w.copied[p.term()] {
				t.Fatalf("a term that was never copied was burnt: %v", err)
			}
			w.burnt[p.term()] = true
		}
		p.lease = store.Lease{}
		return
	}
	if l.Attempt != asked.attempt {
		t.Fatalf("attempt %s got the answer to %s", asked.attempt, l.Attempt)
	}
	if p.leads() {
		w.renewed(t, *p, asked.attempt, l)
	} else {
		w.granted(t, asked.attempt, l)
	}
	p.lease, p.valid = l, asked.drawn.Add(l.TTL)
}

func (w *world) granted(t *rapid.T, a store.Attempt, l store.Lease) {
	if by, ok := w.tokens[l.Token]; ok && (by != a || !l.Replayed) {
		t.Fatalf("token %d was given to %s and to %s", l.Token, by, a)
	}
	if !l.Replayed && l.Token <= w.highest {
		t.Fatalf("token %d was given after %d", l.Token, w.highest)
	}
	w.tokens[l.Token] = a
	w.highest = max(w.highest, l.Token)
	if w.twins[a] {
		w.copied[term{l.TermID, l.Token}] = true
	}
}

func (w *world) renewed(t *rapid.T, p process, a store.Attempt, l store.Lease) {
	if w.burnt[p.term()] {
		t.Fatalf("a burnt term was renewed: %+v", l)
	}
	r := renewal{p.term(), p.lease.Receipt}
	if by, ok := w.consumed[r]; ok && by != a {
		t.Fatalf("receipt %s was consumed by %s and by %s", r.receipt, by, a)
	}
	w.consumed[r] = a
	if l.Token != p.lease.Token || l.TermID != p.lease.TermID || l.Renewal != p.lease.Renewal+1 {
		t.Fatalf("renewing %+v gave %+v", p.lease, l)
	}
}

// release gives the lease back, or an acquire whose outcome is unknown.
func (w *world) release(t *rapid.T, p *process) {
	was := *p
	*p = process{} // it stops before it says so
	if was.leads() && w.copied[was.term()] {
		w.unsafe[was.term()] = true
	}
	op := faultstore.Release
	if !was.leads() {
		op = faultstore.Abandon
		if w.twins[was.pending.attempt] {
			w.unsafe[term{was.pending.attempt, 0}] = true
		}
	}
	err := w.call(t, op, func(ctx context.Context) error {
		if was.leads() {
			return w.store.Release(ctx, was.lease, was.pending.attempt)
		}
		return w.store.Abandon(ctx, election, was.pending.attempt)
	})
	if err == nil && w.burnt[was.term()] && was.leads() {
		t.Fatalf("a burnt term was released")
	}
}

// isUnsafe reports whether a copy gave the term back under another.
func (w *world) isUnsafe(x term) bool { return w.unsafe[x] || w.unsafe[term{x.id, 0}] }

// check is true at all times.
func (w *world) check(t *rapid.T) {
	var valid []term
	for _, p := range w.processes {
		if p.leads() && w.now.Before(p.valid) && !w.isUnsafe(p.term()) {
			valid = append(valid, p.term())
		}
	}
	for _, x := range valid {
		if x != valid[0] {
			t.Fatalf("terms %+v and %+v are valid at once", valid[0], x)
		}
		if len(valid) > 1 && !w.copied[x] {
			t.Fatalf("%d processes are valid in term %+v, which was never copied", len(valid), x)
		}
	}
}

// TestMain asks for more and longer runs than rapid's default; its flags still
// say otherwise.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "4000", "rapid.steps": "40"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(servers.Run(m))
}

// TestProcesses lets a few processes do anything that processes do, and looks at
// every moment that no two of them believe to lead, unless one is a copy of the
// other, and then no third.
func TestProcesses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		t.Repeat(map[string]func(*rapid.T){
			"": w.check,
			"ask": func(t *rapid.T) {
				w.ask(t, w.pick(t, "process"))
			},
			// Twice, for it to happen more often than the rest.
			"ask again": func(t *rapid.T) {
				w.ask(t, w.pick(t, "process"))
			},
			"release": func(t *rapid.T) {
				p := w.pick(t, "process")
				if !p.leads() && p.pending.attempt == "" {
					t.Skip("it has nothing to give back")
				}
				w.release(t, p)
			},
			"crash": func(t *rapid.T) {
				*w.pick(t, "process") = process{}
			},
			"copy": func(t *rapid.T) {
				from, to := w.pick(t, "from"), w.pick(t, "to")
				if from == to || !from.leads() && from.pending.attempt == "" {
					t.Skip("there is nothing to copy")
				}
				*to = *from
				if from.leads() {
					w.copied[from.term()] = true
				} else {
					w.twins[from.pending.attempt] = true
				}
			},
			"what was held up arrives": func(t *rapid.T) {
				w.store.Deliver()
			},
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(rapid.SampledFrom([]time.Duration{1, ttl / 10, ttl / 3, ttl / 2, ttl - 1, ttl}).Draw(t, "for"))
			},
		})
		// However it ended: when all are silent for long enough, somebody new gets in.
		w.store.Deliver()
		w.now = w.now.Add(ttl)
		w.store.Clear()
		l, err := w.store.Acquire(context.Background(), store.Claim{Name: election, Holder: "new", Attempt: "new", TTL: ttl})
		if err != nil {
			t.Fatalf("after a TTL of silence nobody gets in: %v", err)
		}
		w.granted(t, "new", l)
	})
}
