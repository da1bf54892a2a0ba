package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Harness is how the cases reach a store. Only Open is required.
type Harness struct {
	// Open opens the store. Each call is what another process would do: all of
	// them share the records, and close ends this one only.
	Open func(ctx context.Context) (s store.Store, close func() error, err error)

	// Advance lets d pass by the store's clock. Nil: sleep, or until ctx ends,
	// which is right for real stores and inside a synctest bubble.
	Advance func(ctx context.Context, d time.Duration) error

	// TTL is used where a case waits for an expiry. 0: the store's shortest, but
	// at least a second.
	TTL time.Duration
	// TTLLong is used where a lease must not run out during the case, however slow
	// the machine. 0: a minute, or the store's longest if that is shorter.
	TTLLong time.Duration

	// Prefix begins the names of the elections. Empty: a new random one for each
	// case. Where records outlive a run, two runs need two prefixes.
	Prefix string

	// Remove deletes an election's record behind the store's back. Nil: it cannot
	// be done, and the cases about it are skipped.
	Remove func(ctx context.Context, name string) error
	// Upgrade rewrites an election's record as a newer program might: with the
	// format [store.Format]+1. Nil, or without Remove: skipped. While that case runs
	// a list of all records fails, so it must not run beside others; Run sees to it.
	Upgrade func(ctx context.Context, name string) error

	// Parallel is how many cases [Run] runs at once. 0: one.
	Parallel int
}

// Case is one thing that every store must do.
type Case struct {
	Name string // group/what, such as "renew/twin"
	Why  string // one sentence: what goes wrong where a store fails it
	run  func(*env)
}

// alone is the case that disturbs the others.
const alone = "record/newer-format"

// Run runs the case. It returns what the store did wrong, *[SkipError] if the
// case does not apply to the store or the harness, or nil. It blocks as long as
// the leases that the case waits for, and ends early with ctx.
func (c Case) Run(ctx context.Context, h Harness) (err error) {
	e, err := newEnv(ctx, h, c.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	defer func() {
		if closeErr := e.close(); err == nil && closeErr != nil {
			err = fmt.Errorf("%s: closing the store: %w", c.Name, closeErr)
		}
	}()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case stop:
			err = fmt.Errorf("%s: %w", c.Name, p.err)
		default:
			panic(p)
		}
	}()
	c.run(e)
	return nil
}

// SkipError says why a case does not apply.
type SkipError struct{ Reason string }

func (e *SkipError) Error() string { return "skipped: " + e.Reason }

// Result is what became of one case.
type Result struct {
	Case    Case
	Err     error         // what the store did wrong; nil: it passed or was skipped
	Skipped string        // why the case does not apply; empty: it does
	Took    time.Duration // by this process's clock
}

// Cases returns all cases, in a fixed order.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		acquireCases, renewCases, twinCases, releaseCases, recordCases, inputCases, callCases, optionalCases,
	} {
		all = append(all, group...)
	}
	return all
}

// Run runs the cases whose name matches one of the patterns, see [path.Match];
// none: all of them. A pattern without a slash also matches a whole group. The
// results come in the order of [Cases]. A caller that stops early waits for the
// cases that are under way; they end with their context.
//
// A pattern that is malformed or matches nothing is the sequence's only result,
// an error with a zero Case.
func Run(ctx context.Context, h Harness, patterns ...string) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		cases, err := match(patterns)
		if err != nil {
			yield(Result{Err: err})
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		results := make([]chan Result, len(cases))
		for i := range results {
			results[i] = make(chan Result, 1)
		}
		slots := make(chan struct{}, max(h.Parallel, 1))
		take := func(n int) {
			for range n {
				slots <- struct{}{}
			}
		}
		give := func(n int) {
			for range n {
				<-slots
			}
		}
		running := make(chan struct{})
		go func() {
			defer close(running)
			for i, c := range cases {
				n := 1
				if c.Name == alone {
					n = cap(slots)
				}
				take(n)
				go func() {
					defer give(n)
					results[i] <- runOne(ctx, h, c)
				}()
			}
			take(cap(slots))
		}()
		defer func() { cancel(); <-running }()
		for _, r := range results {
			if !yield(<-r) {
				return
			}
		}
	}
}

func runOne(ctx context.Context, h Harness, c Case) Result {
	began := time.Now()
	r := Result{Case: c, Err: c.Run(ctx, h)}
	r.Took = time.Since(began)
	var skip *SkipError
	if errors.As(r.Err, &skip) {
		r.Err, r.Skipped = nil, skip.Reason
	}
	return r
}

// match returns the cases that the patterns ask for.
func match(patterns []string) ([]Case, error) {
	if len(patterns) == 0 {
		return Cases(), nil
	}
	var cases []Case
	found := make([]bool, len(patterns))
	for _, c := range Cases() {
		wanted := false
		for i, p := range patterns {
			whole, err := path.Match(p, c.Name)
			if err != nil {
				return nil, fmt.Errorf("pattern %q: %w", p, err)
			}
			group, _ := path.Match(p, path.Dir(c.Name))
			if whole || group {
				wanted, found[i] = true, true
			}
		}
		if wanted {
			cases = append(cases, c)
		}
	}
	for i, ok := range found {
		if !ok {
			return nil, fmt.Errorf("pattern %q matches no case", patterns[i])
		}
	}
	return cases, nil
}
