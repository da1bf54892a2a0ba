package tenure

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// Elector contends for one election on behalf of this process. Its methods are
// safe for concurrent use, but only one of Run, RunOnce, TryRun and Campaign
// may be under way at a time: another gets [ErrBusy].
type Elector struct {
	store store.Store
	name  string
	opts  Options
	cfg   core.Config
	clock clock

	mu   sync.Mutex
	last *campaign // the one under way, or the last one
}

// NewElector returns an elector for the named election. It makes no request and
// keeps a copy of o, which may be nil. The error is a [store.ErrInvalid], and a
// [store.ErrUnsupported] too if the store cannot do what is asked; it names
// everything that is wrong with the name, the options and their relations, and
// what is allowed. Whoever opened s closes it, after the elector has come to rest.
func NewElector(s store.Store, name string, o *Options) (*Elector, error) {
	if s == nil {
		return nil, store.Invalid("cannot contend: the store is nil")
	}
	opts, cfg, err := o.prepare(name, s.Caps())
	if err != nil {
		return nil, err
	}
	return &Elector{store: s, name: name, opts: opts, cfg: cfg, clock: machineClock{}}, nil
}

// Name returns the election's name.
func (e *Elector) Name() string { return e.name }

// Run contends for ever, and runs job in each term. It blocks until ctx ends,
// then tells the job to stop, waits for it, releases, and returns ctx's cause.
// Without a job to wait for it returns within five request time-outs, whatever
// the store does.
//
// The job's context ends when the term does, with a *[LostError] as its cause,
// or when ctx ends. The job must then return: no further term begins before it
// has, and a lost lease can be another's after [Term.Remaining]. A job that
// returns ends its term; its error is logged and observed, and Run contends
// again after [Options].Rejoin. A job that panics makes Run panic with a
// *[PanicError] after the release. Run also returns when contending makes no
// sense any more: the store is closed, its records are of a newer format, it is
// out of tokens, or it calls the claim invalid or unsupported.
func (e *Elector) Run(ctx context.Context, job func(context.Context, *Term) error) error {
	return e.lead(ctx, job, false, false)
}

// RunOnce contends until elected, leads one term, and returns the job's error.
// If the term ended before the job did, the error is a *[LostError], joined with
// the job's own if that says more. What becomes of the lease after the job has
// returned is logged and observed only. If ctx ends before the election is won,
// its cause is returned. Otherwise it is like [Elector.Run].
func (e *Elector) RunOnce(ctx context.Context, job func(context.Context, *Term) error) error {
	return e.lead(ctx, job, true, false)
}

// TryRun is [Elector.RunOnce] if the election can be had now. If another holds
// it, the error is a *[HeldError] and job was not run. If the store cannot be
// asked, its error is returned and job was not run; where the store is busy or
// does not answer, that takes three request time-outs, and as long again to give
// back what may have been granted.
func (e *Elector) TryRun(ctx context.Context, job func(context.Context, *Term) error) error {
	return e.lead(ctx, job, true, true)
}

// lead contends with a job: for ever or for one term, or only if it can be had
// now.
func (e *Elector) lead(ctx context.Context, job func(context.Context, *Term) error, once, try bool) error {
	if job == nil {
		return store.Invalid("cannot lead: the job is nil")
	}
	c, err := e.campaign(ctx, ctx)
	if err != nil {
		return err
	}
	c.job, c.try = job, try
	c.run(ctx, once)
	switch {
	case c.panicked != nil:
		panic(c.panicked)
	case once && c.term != nil:
		return c.term.verdict
	}
	return c.outcome(ctx)
}

// outcome is why contending ended without a term to report on.
func (c *campaign) outcome(ctx context.Context) error {
	if c.result != nil {
		return c.result
	}
	return context.Cause(ctx)
}

// verdict is what a term came to whose job has just ended with err.
func verdict(lost *LostError, err error) error {
	switch {
	case lost == nil:
		return err
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, lost), errors.Is(lost, err):
		return lost
	}
	return errors.Join(lost, err)
}

// Campaign contends until elected and returns the term, which lasts until
// [Term.Resign] or its loss. ctx bounds the contending only; if it ends first its
// cause is returned, after what may have been granted was given back. The term's
// own context carries ctx's values and is not ended by it.
//
// The caller plays the job's part: it must stop when [Term.Done] is closed, and
// must have stopped before it calls Resign or contends again, which also frees
// an election that was lost to an eviction or a stall. [Options].Rejoin does not
// apply: how soon to contend again is the caller's choice.
func (e *Elector) Campaign(ctx context.Context) (*Term, error) {
	c, err := e.campaign(ctx, context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	go c.run(ctx, true)
	select {
	case t := <-c.elected:
		return t, nil
	case <-c.done:
	}
	select {
	case t := <-c.elected: // elected and over at once
		return t, nil
	default:
		return nil, c.outcome(ctx)
	}
}

// campaign prepares to contend. A campaign that is only winding up, after the
// end of a term of [Elector.Campaign], is waited for.
func (e *Elector) campaign(ctx, parent context.Context) (*campaign, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c, former := e.replace(parent)
		if c != nil {
			return c, nil
		}
		if !former.ending.Load() {
			return nil, ErrBusy
		}
		former.windUp()
		select {
		case <-former.done:
		case <-ctx.Done():
		}
	}
}

// replace returns a new campaign, or the former one if that has not ended.
func (e *Elector) replace(parent context.Context) (c, former *campaign) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last != nil {
		select {
		case <-e.last.done:
		default:
			return nil, e.last
		}
	}
	noncer, _ := store.As[store.Noncer](e.store)
	logger := cmp.Or(e.opts.Logger, slog.Default())
	e.last = &campaign{
		store: e.store, noncer: noncer, name: e.name, opts: e.opts, cfg: e.cfg, clock: e.clock, parent: parent,
		observe: shielded(logger, logTo(logger, e.name), e.opts.Observer),
		elected: make(chan *Term, 1), done: make(chan struct{}), signal: make(chan struct{}, 1),
		state: core.New(e.cfg, rand.Uint64()),
	}
	return e.last, nil
}

// Leadership is who leads, as of an answer of the store.
type Leadership struct {
	store.Record
	// Asked is when the store was asked, and Took how long its answer took. The
	// record was true at some moment in between and may be stale by now.
	Asked time.Time
	Took  time.Duration
}

// Leader asks the store who leads. The record's state is one of three answers:
// live, dead (not released, and expired) or vacant. [store.ErrNoRecord] says that
// the store knows nothing of the election; any other error that it could not be
// asked, which is never "nobody". It blocks until the store answers or ctx ends,
// and may be called at any time, also while this elector leads.
func (e *Elector) Leader(ctx context.Context) (Leadership, error) {
	asked := time.Now()
	rec, err := e.store.Get(ctx, e.name)
	if err != nil {
		return Leadership{}, err
	}
	return Leadership{Record: rec, Asked: asked, Took: time.Since(asked)}, nil
}
