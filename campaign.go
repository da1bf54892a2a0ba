package tenure

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/internal/draw"
	"github.com/tenure-go/tenure/store"
)

var errShortBatch = errors.New("tenure: the store answered fewer renewals than it was asked")

// callsMax is how many calls may be out at once. A client that never returns
// from a call costs that many goroutines, not one at every try.
const callsMax = 8

// campaign is the shell around the core: one goroutine that owns a core.State,
// and carries out what it decides. It lives from the moment an elector begins to
// contend until that is over.
type campaign struct {
	store   store.Store
	noncer  store.Noncer // nil: the store has none
	name    string
	opts    Options
	cfg     core.Config
	clock   clock
	observe func(Event)
	job     func(context.Context, *Term) error // nil: the caller of Campaign holds the term
	try     bool                               // give up when held
	parent  context.Context                    // of the jobs' contexts
	elected chan *Term                         // for Campaign
	done    chan struct{}                      // closed when the loop has ended
	ending  atomic.Bool                        // no further term will begin: only winding up is left

	mu     sync.Mutex
	queue  []func()
	closed bool
	signal chan struct{} // one slot: there is something in the queue, or to look at

	// Owned by the loop.
	state     core.State
	halted    bool
	began     core.Reading
	term      *Term // the current one; nil before the first
	hub       *hub
	lot       int // its number in the hub
	calls     sync.WaitGroup
	out       int
	calling   context.Context // of the calls that are out
	cancel    context.CancelFunc
	tried     store.Attempt // the attempt of the last Renew
	tries     int           // how often it was sent
	alone     bool          // renewals share no request: the last one needed more than two tries
	waiters   []*confirmation
	stopWatch context.CancelFunc
	panicked  *PanicError
	result    error // why contending ended: nil, a store's error, or HeldError
}

type confirmation struct {
	attempt store.Attempt // the renewal that will confirm; empty: not drawn yet
	done    chan struct{} // closed when it has
}

// run contends until it is over. ctx ends the contending; with a job also the
// term, else only until elected.
func (c *campaign) run(ctx context.Context, once bool) {
	defer close(c.done)
	c.calling, c.cancel = context.WithCancel(context.Background())
	c.began = c.clock.read()
	c.hub = joinHub(c.store, c)
	c.step(core.Contend{Once: once})
	quit := ctx.Done()
	for !c.halted {
		timer := time.NewTimer(c.nap())
		select {
		case <-c.signal:
		case <-timer.C:
		case <-quit:
			if c.job != nil || c.term == nil {
				c.step(core.Stop{})
			}
			quit = nil
		}
		timer.Stop()
		c.drainQueue()
		c.lookAtTerm()
		if !c.halted {
			c.step(core.Wake{})
		}
	}
	c.close()
}

// close ends what the loop started.
func (c *campaign) close() {
	c.unwatch()
	c.mu.Lock()
	c.queue, c.closed = nil, true
	c.mu.Unlock()
	if c.hub != nil {
		c.hub.leave(c)
	}
	c.cancel()
	returned := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(returned)
	}()
	select { // a client that ignores its context must not keep the caller for ever
	case <-returned:
	case <-time.After(c.cfg.Timeout):
	}
}

// nap is how long nothing needs to be done unless something happens.
func (c *campaign) nap() time.Duration {
	now := c.clock.read()
	d, ok := c.state.Next(now)
	if !ok {
		d = time.Hour
	}
	if left, ok := c.stallIn(now); ok {
		d = min(d, left)
	}
	return d
}

// stallIn is the time until the job counts as stalled.
func (c *campaign) stallIn(now core.Reading) (time.Duration, bool) {
	if c.opts.StallAfter == 0 || c.state.Phase != core.Leading {
		return 0, false
	}
	return c.opts.StallAfter - (now.Mono - time.Duration(c.term.progress.Load())), true
}

// lookAtTerm tells the core what the term found out by itself.
func (c *campaign) lookAtTerm() {
	if c.term == nil {
		return
	}
	if left, ok := c.stallIn(c.clock.glance()); ok && left <= 0 {
		c.step(core.Revoke{Cause: ErrStalled, Err: fmt.Errorf("no progress was reported for %v", c.opts.StallAfter)})
	}
	if e := c.term.over.Load(); e != nil && c.state.Alive() {
		c.step(core.Revoke{Cause: e.Cause, Err: e.Err})
	}
}

// post hands f to the loop. If the loop is gone nothing is left to be done.
func (c *campaign) post(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.queue = append(c.queue, f)
		c.nudge()
	}
}

func (c *campaign) nudge() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

func (c *campaign) postRound() { c.post(func() { c.step(core.Round{}) }) }

func (c *campaign) drainQueue() {
	c.mu.Lock()
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, f := range queue {
		c.lookAtTerm() // what ended the term comes before what was asked after that
		f()
	}
}

// step lets the core decide about ev, now, and does what it says.
func (c *campaign) step(ev core.Event) { c.stepAt(c.clock.read(), ev) }

func (c *campaign) stepAt(now core.Reading, ev core.Event) {
	for ev != nil && !c.halted {
		next, actions := c.state.Step(now, ev)
		c.state, ev = next, nil
		for _, a := range actions {
			if _, ok := a.(core.Draw); ok { // the last one
				now = c.clock.read() // before the draw: the right counts from here
				attempt := c.draw()
				c.assignWaiters(attempt)
				ev = core.Drawn{Attempt: attempt}
				continue
			}
			c.act(a)
		}
	}
}

func (c *campaign) act(a core.Action) {
	switch a := a.(type) {
	case core.Ask:
		c.call(core.OpAcquire, a.Attempt, func(ctx context.Context) (store.Lease, error) {
			return c.store.Acquire(ctx, c.opts.claim(c.name, a.Attempt))
		})
	case core.Renew:
		if c.tried != a.Attempt {
			c.tried, c.tries = a.Attempt, 0
		}
		c.tries++
		c.alone = c.alone || c.tries > 2
		if c.hub != nil && !c.alone {
			c.share(a)
			break
		}
		c.call(core.OpRenew, a.Attempt, func(ctx context.Context) (store.Lease, error) {
			return c.store.Renew(ctx, a.Lease, a.Attempt)
		})
	case core.Release:
		c.call(core.OpRelease, a.Lease.TermID, func(ctx context.Context) (store.Lease, error) {
			return store.Lease{}, c.store.Release(ctx, a.Lease, a.Attempt)
		})
	case core.Abandon:
		c.call(core.OpAbandon, a.Attempt, func(ctx context.Context) (store.Lease, error) {
			return store.Lease{}, c.store.Abandon(ctx, c.name, a.Attempt)
		})
	case core.Cancel:
		c.cancel()
		c.calling, c.cancel = context.WithCancel(context.Background())
	case core.Begin:
		c.begin(a)
	case core.Extend:
		c.alone = false
		c.term.extend(a.Lease, a.Anchor)
		c.confirmed(a.Lease)
		c.observe(Renewed{Term: c.info(a.Lease)})
	case core.Drain:
		c.term.cancel(ErrClosed)
		c.observe(Draining{Term: c.term.Info()})
	case core.End:
		c.term.end(a.Cause, a.Err)
		c.waiters = nil // they see it
		if e := c.term.lost(); e != nil {
			c.observe(Lost{Term: e.Term, Err: e})
			if !core.Acknowledges(a.Cause) {
				c.windUp() // nothing will be released, so there is nothing to wait for
			}
		}
	case core.Overdue:
		if c.job == nil { // nobody can tell, and there is nothing left to wait for
			c.windUp()
			break
		}
		c.observe(Overdue{Term: c.term.Info()})
	case core.Over:
		c.term.release = a.Err
		c.observe(Released{Term: c.term.Info(), Free: a.Released, Err: a.Err})
	case core.Halt:
		c.halted = true
	case core.Held:
		c.held(a.Err)
	case core.AskFailed:
		c.askFailed(a.Err)
	case core.RenewFailed:
		c.term.trouble.Store(&a.Err)
		c.observe(RenewFailed{Term: c.term.Info(), Err: a.Err, Left: a.Left})
	}
}

func (c *campaign) draw() store.Attempt {
	nonce := ""
	if c.noncer != nil {
		_ = caught(func() { nonce = c.noncer.Nonce() }) // without it there is less in the mix
	}
	return draw.Attempt(nonce)
}

// call makes a request of its own goroutine and time-out, and brings the core
// the answer. The caller's context plays no part: what it ends is told to the
// core, which decides.
func (c *campaign) call(op core.Op, a store.Attempt, f func(context.Context) (store.Lease, error)) {
	reply := c.expect(op, a)
	if reply == nil {
		return
	}
	// A little less than the core waits, so that it hears of a time-out as an error.
	ctx, cancel := context.WithTimeout(c.calling, c.cfg.Timeout*7/8)
	c.calls.Add(1)
	go func() {
		defer c.calls.Done()
		defer cancel()
		reply(guarded(ErrPanicked, func() (store.Lease, error) { return f(ctx) }))
	}()
}

// share makes a renewal's first or second request together with others.
func (c *campaign) share(a core.Renew) {
	if reply := c.expect(core.OpRenew, a.Attempt); reply != nil {
		c.hub.renew(c.calling, c, a.Lease, a.Attempt, c.tries > 1, func(r store.Renewed) { reply(r.Lease, r.Err) })
	}
}

// expect counts a call that is about to be made. What it returns brings the core
// the answer. It is nil if too many calls are out, which the core is told.
func (c *campaign) expect(op core.Op, a store.Attempt) (reply func(store.Lease, error)) {
	if c.out >= callsMax {
		err := store.Undone(fmt.Errorf("%w: %d calls have not returned", store.ErrUnreachable, c.out))
		c.post(func() { c.step(core.Reply{Op: op, Attempt: a, Err: err}) })
		return nil
	}
	c.out++
	return func(l store.Lease, err error) {
		c.post(func() {
			c.out--
			c.step(core.Reply{Op: op, Attempt: a, Lease: l, Err: err})
		})
	}
}

// guarded runs what is not this package's, and turns its panic, or its end of
// the goroutine, into an error that is broke. That goroutine is one of its own:
// the caller's could not go on.
func guarded[T any](broke error, f func() (T, error)) (v T, err error) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		err = fmt.Errorf("%w: it ended its goroutine (runtime.Goexit)", broke)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: %v\n%s", broke, p, debug.Stack())
			}
		}()
		v, err = f()
	}()
	<-returned
	return v, err
}

// begin publishes a new term and starts its job.
func (c *campaign) begin(a core.Begin) {
	c.unwatch()
	ctx, cancel := context.WithCancelCause(c.parent)
	t := &Term{c: c, ctx: ctx, cancel: cancel, gone: make(chan struct{}), job: c.job != nil}
	t.right.Store(&right{lease: a.Lease, anchor: a.Anchor, risen: a.Anchor})
	t.Progress()
	// It notices the end without the loop, in case an observer holds that up. It is
	// set only once it can be stopped.
	t.guard = time.AfterFunc(time.Hour, func() { _ = t.Err() })
	t.guard.Reset(t.StepDownIn())
	c.term = t
	c.observe(Acquired{Term: t.Info()})
	if c.job == nil {
		c.elected <- t
		return
	}
	go c.work(t)
}

// work runs the job and brings the core its end, however it ends.
func (c *campaign) work(t *Term) {
	err := ErrGoexit
	defer func() {
		var panicked *PanicError
		if p := recover(); p != nil {
			panicked = &PanicError{Value: p, Stack: debug.Stack()}
			err = panicked
		}
		if fence.Refused(err) {
			t.end(ErrFenced, err)
		}
		c.post(func() { c.jobEnded(t, err, panicked) })
	}()
	err = c.job(t.ctx, t)
}

func (c *campaign) jobEnded(t *Term, err error, panicked *PanicError) {
	_ = t.Err() // latches an end that nobody has noticed yet
	t.verdict = verdict(t.lost(), err)
	c.observe(JobEnded{Term: t.Info(), Err: err})
	t.cancel(ErrClosed)
	if panicked != nil {
		c.panicked = panicked
		c.giveUp(panicked)
	}
	c.step(core.JobDone{})
}

// extend publishes an answered renewal.
func (t *Term) extend(l store.Lease, anchor core.Reading) {
	r := *t.right.Load()
	r.lease, r.anchor = l, anchor
	if anchor.Since(r.risen) >= t.c.cfg.Renew {
		r.shown, r.risen = r.shown+1, anchor
	}
	t.right.Store(&r)
	t.trouble.Store(nil)
	t.guard.Reset(t.StepDownIn())
}

// windUp ends the story of a term of Campaign that is over. If the election is to
// be released then, the caller must have stopped: it says so by Resign or by
// contending again, else the deadline must do.
func (c *campaign) windUp() {
	c.post(func() {
		if c.job == nil {
			c.step(core.JobDone{})
		}
	})
}

// resign gives t up, on behalf of Term.Resign.
func (c *campaign) resign(t *Term) {
	if t != c.term {
		return
	}
	c.step(core.Yield{})
	if c.job == nil {
		c.step(core.JobDone{})
	}
}

func (c *campaign) confirm(t *Term, w *confirmation) {
	if t.Err() != nil {
		return // which the caller sees
	}
	c.waiters = append(c.waiters, w)
	c.step(core.Confirm{})
}

// assignWaiters makes a just drawn attempt the one that confirms for all who
// asked before.
func (c *campaign) assignWaiters(a store.Attempt) {
	for _, w := range c.waiters {
		if w.attempt == "" {
			w.attempt = a
		}
	}
}

// confirmed answers those who waited for this renewal. A replayed answer does
// not count: the renewal may have been carried out before they asked.
func (c *campaign) confirmed(l store.Lease) {
	var rest []*confirmation
	for _, w := range c.waiters {
		switch {
		case w.attempt != l.Attempt:
			rest = append(rest, w)
		case l.Replayed:
			w.attempt = ""
			rest = append(rest, w)
		default:
			close(w.done)
		}
	}
	c.waiters = rest
	if l.Replayed && len(rest) > 0 {
		c.post(func() { c.step(core.Confirm{}) })
	}
}

func (c *campaign) held(err *store.HeldError) {
	c.observe(Waiting{Name: c.name, Held: err})
	if c.try {
		c.giveUp(err)
		return
	}
	c.watch()
}

func (c *campaign) askFailed(err error) {
	c.observe(AskFailed{Name: c.name, Err: err})
	for _, hopeless := range []error{store.ErrInvalid, store.ErrUnsupported, store.ErrFormat, store.ErrTokens, store.ErrStoreClosed} {
		if errors.Is(err, hopeless) {
			c.giveUp(err)
			return
		}
	}
	if c.try {
		patient := errors.Is(err, store.ErrBusy) || store.OutcomeUnknown(err)
		if !patient || c.clock.read().Since(c.began) >= 3*c.cfg.Timeout {
			c.giveUp(err)
		}
	}
}

// giveUp ends the contending with an error. It is posted, since the core is in
// the middle of a step.
func (c *campaign) giveUp(err error) {
	if !c.state.Quit { // else it ended for that reason
		c.result = err
	}
	c.post(func() { c.step(core.Stop{}) })
}

// watch listens for hints while this candidate waits. The first thing it brings
// is a hint of its own: something may have happened before it listened.
func (c *campaign) watch() {
	w, ok := store.As[store.Watcher](c.store)
	if !ok || c.stopWatch != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stopWatch = cancel
	c.calls.Add(1)
	go func() {
		defer c.calls.Done()
		for ctx.Err() == nil {
			hints, err := guarded(ErrPanicked, func() (<-chan store.Hint, error) { return w.Watch(ctx, c.name) })
			if err == nil {
				c.hint(store.Hint{Kind: store.HintChanged})
				c.listen(ctx, hints)
			}
			select { // broken: without hints the candidate asks at each expiry
			case <-ctx.Done():
			case <-time.After(c.cfg.Renew):
			}
		}
	}()
}

// listen passes hints on until there are no more, or ctx ends.
func (c *campaign) listen(ctx context.Context, hints <-chan store.Hint) {
	for {
		select {
		case h, ok := <-hints:
			if !ok {
				return
			}
			c.hint(h)
		case <-ctx.Done():
			return
		}
	}
}

func (c *campaign) hint(h store.Hint) { c.post(func() { c.step(core.Hint{Hint: h}) }) }

func (c *campaign) unwatch() {
	if c.stopWatch != nil {
		c.stopWatch()
		c.stopWatch = nil
	}
}

func (c *campaign) info(l store.Lease) Info {
	return Info{Name: c.name, ID: string(l.TermID), Token: l.Token, Holder: c.opts.Holder, Renewal: l.Renewal}
}
