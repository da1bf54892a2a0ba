package tenure

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// Info names a term, for logs and people. It stays the same after the term's
// end, but for Renewal, which is as of when the Info was taken.
type Info struct {
	Name    string      // the election
	ID      string      // the term id
	Token   fence.Token // the fencing token
	Holder  string
	Renewal int64 // the number of the last answered renewal
}

// Term is one uninterrupted stretch of leadership. All methods are safe for
// concurrent use.
type Term struct {
	c       *campaign
	ctx     context.Context
	cancel  context.CancelCauseFunc
	over    atomic.Pointer[LostError] // set once, when the term ends
	gone    chan struct{}             // closed then
	right   atomic.Pointer[right]     // the last answered renewal
	trouble atomic.Pointer[error]     // what the last renewal failed with, if it did
	guard   *time.Timer               // ends the term even if the election's loop is stuck

	progress atomic.Int64 // when the job last reported, by the monotonic clock
	job      bool         // a job of Run and its siblings, not a caller of Campaign
	release  error        // why the release failed; read when the campaign is done
	verdict  error        // what the term came to when the job ended; likewise
}

// right is what an answered request gives: a lease, and the moment its attempt
// was drawn, from which the right counts.
type right struct {
	lease  store.Lease
	anchor core.Reading
	shown  int64        // the renewal number that stamps show
	risen  core.Reading // the anchor of the renewal at which that last rose
}

// Err returns nil while the term is valid as far as this machine's clocks ran,
// and a *[LostError] ever after. It is computed at the call from the clocks, so
// it is right also in the first instruction after a pause; it does not block or
// allocate, and costs less than 100 ns. (The call that finds the term expired
// ends its context, too.)
//
// A machine whose clocks stood still (a restored snapshot) gets an answer by
// clocks that lie: [Term.Confirm] asks the store, and a fence asks the resource.
func (t *Term) Err() error {
	if e := t.over.Load(); e != nil {
		return e
	}
	if t.c.clock.glance().Since(t.right.Load().anchor) < t.c.cfg.StepDown {
		return nil
	}
	return t.expire()
}

// Token returns the fencing token while [Term.Err] returns nil, and 0 after
// that: no fence accepts 0. It costs what Err costs. [Term.Info] has the number
// for logs.
func (t *Term) Token() fence.Token {
	if t.Err() != nil {
		return 0
	}
	return t.right.Load().lease.Token
}

// Stamp returns what to show to a resource with a write: token, term id and
// renewal number as they are now. After the term's end its token is 0 and every
// fence refuses it.
//
// A fence refuses a stamp that is two renewal numbers behind the newest it has
// seen. The number shown rises with the regular renewals, once in RenewEvery at
// the most, and not with each Confirm: so a write has that long to arrive,
// whatever other writers of this term do meanwhile.
func (t *Term) Stamp(resource string) fence.Stamp {
	token := t.Token()
	r := t.right.Load() // after the token: the newest
	return fence.Stamp{Resource: resource, Token: token, TermID: string(r.lease.TermID), Renewal: r.shown}
}

// Info names the term.
func (t *Term) Info() Info { return t.c.info(t.right.Load().lease) }

// Context ends with the term, or when the job should stop; its cause is a
// *[LostError], [ErrClosed], or the cause of the caller's context.
func (t *Term) Context() context.Context { return t.ctx }

// Done is closed when Context ends.
func (t *Term) Done() <-chan struct{} { return t.ctx.Done() }

// Remaining returns the time until the job must be gone: the lease can expire
// soon after. It goes on counting when the term has ended, and is never
// negative.
func (t *Term) Remaining() time.Duration { return t.left(t.c.cfg.Deadline()) }

// StepDownIn returns the time until the term ends if no further renewal is
// answered. It is never negative.
func (t *Term) StepDownIn() time.Duration { return t.left(t.c.cfg.StepDown) }

func (t *Term) left(limit time.Duration) time.Duration {
	return max(0, limit-t.c.clock.glance().Since(t.right.Load().anchor))
}

// Progress tells the watchdog of [Options].StallAfter that the job goes on. It
// does not block.
func (t *Term) Progress() { t.progress.Store(int64(t.c.clock.glance().Mono)) }

// Confirm asks the store whether the term still stands, with a renewal that is
// drawn after the call (a renewal already pending is waited for first). It
// returns nil only on a fresh answer, not on one given again. Concurrent calls
// share a renewal. It blocks until there is an answer, the term ends
// (*[LostError]), which it does at step-down at the latest, or ctx ends (its
// cause: the term may or may not stand). The answer may be stale on return, as
// every answer may; only a fence's is not.
func (t *Term) Confirm(ctx context.Context) error {
	if err := t.Err(); err != nil {
		return err
	}
	w := &confirmation{done: make(chan struct{})}
	t.c.post(func() { t.c.confirm(t, w) })
	select {
	case <-w.done:
		return t.Err()
	case <-t.gone: // also when the loop is stuck
		return t.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Fenced passes err on. If it is a resource's refusal (see [fence.Refused]) the
// term ends with [ErrFenced]: somebody else has been there. Job errors that
// wrap a refusal are found without it.
func (t *Term) Fenced(err error) error {
	if fence.Refused(err) {
		t.end(ErrFenced, err)
	}
	return err
}

// Revoke ends the term at once because of something this process learnt by
// itself: that it was paused, restored, forked or copied. The cause is
// [ErrDisrupted], evidence says what was seen. The election is not released: a
// copy of this process may hold the same term.
func (t *Term) Revoke(evidence error) { t.end(ErrDisrupted, evidence) }

// Resign gives the term up. In a term of [Elector.Campaign] it ends the term,
// after [Options].MinHold if there is one, frees the election and blocks until
// that is settled or ctx ends; the error says why the release failed (the lease
// then runs out by itself). A ctx that has already ended does not keep the
// release from being tried: Resign waits for it a request's time more. A term
// that was lost is released only if it was evicted or stalled; for any other
// loss Resign has nothing to do and returns nil.
//
// Inside a job it only asks: the job's context ends with cause [ErrClosed], the
// term stays valid until the job has returned, and Resign returns nil at once.
func (t *Term) Resign(ctx context.Context) error {
	t.c.post(func() { t.c.resign(t) })
	if t.job {
		return nil
	}
	t.c.ending.Store(true) // whoever contends now waits, and is not told that somebody does
	select {
	case <-t.c.done:
		return t.release
	case <-ctx.Done():
		select {
		case <-t.c.done:
			return t.release
		case <-time.After(t.c.cfg.Timeout):
			return context.Cause(ctx)
		}
	}
}

// end ends the term, once, and cancels its context. It makes no call and does
// not wait for the loop, which is told.
func (t *Term) end(cause, said error) *LostError {
	lost := &LostError{Term: t.Info(), Cause: cause, Err: said}
	if !t.job {
		t.c.ending.Store(true) // before anybody can see the end and contend anew
	}
	if t.over.CompareAndSwap(nil, lost) {
		close(t.gone)
		t.guard.Stop()
		t.cancel(lost)
		t.c.nudge()
		return lost
	}
	return t.over.Load()
}

// expire ends the term because its time has passed.
func (t *Term) expire() *LostError {
	var said error
	if p := t.trouble.Load(); p != nil {
		said = *p
	}
	return t.end(core.Expiry(said), said)
}

// lost returns the loss, if the term ended before its job did.
func (t *Term) lost() *LostError {
	if e := t.over.Load(); e != nil && !errors.Is(e.Cause, ErrClosed) {
		return e
	}
	return nil
}
