package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// env is what one run of a case works with. Its methods that expect something
// end the case by a panic with a stop, so that a case reads as the steps it
// takes; only the case's own goroutine may call them.
type env struct {
	ctx    context.Context // ends with the case
	cancel context.CancelFunc
	h      Harness
	s      store.Store // opened for the case
	caps   store.Caps
	prefix string

	attempts atomic.Int64

	mu     sync.Mutex
	closes []func() error
}

// stop ends a case.
type stop struct{ err error }

func newEnv(ctx context.Context, h Harness, name string) (*env, error) {
	if h.Open == nil {
		return nil, errors.New("storetest: the harness has no Open")
	}
	e := &env{h: h, prefix: h.Prefix}
	e.ctx, e.cancel = context.WithCancel(ctx)
	if e.prefix == "" {
		e.prefix = "st-" + rand.Text()[:8]
	}
	e.prefix += "/" + name + "/"
	s, closeStore, err := h.Open(ctx)
	if err != nil {
		e.cancel()
		return nil, fmt.Errorf("opening the store: %w", err)
	}
	e.s, e.caps = s, s.Caps()
	e.closes = append(e.closes, closeStore)
	if e.h.TTL == 0 {
		e.h.TTL = max(e.caps.TTLMin, time.Second)
	}
	if e.h.TTLLong == 0 {
		e.h.TTLLong = min(max(time.Minute, e.caps.TTLMin), e.caps.TTLMax)
	}
	return e, nil
}

// close ends what the case began, and closes the stores it opened.
func (e *env) close() error {
	e.cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, c := range e.closes {
		if c != nil {
			errs = append(errs, c())
		}
	}
	return errors.Join(errs...)
}

func (e *env) failf(format string, args ...any) {
	panic(stop{fmt.Errorf(format, args...)})
}

func (e *env) skip(format string, args ...any) {
	panic(stop{&SkipError{fmt.Sprintf(format, args...)}})
}

// check ends the case if something that must hold does not.
func (e *env) check(ok bool, format string, args ...any) {
	if !ok {
		e.failf(format, args...)
	}
}

// must ends the case if a step that must succeed did not.
func (e *env) must(err error, step string, args ...any) {
	if err != nil {
		e.failf("%s: want success, got: %w", fmt.Sprintf(step, args...), err)
	}
}

// refused ends the case unless err is a refusal of the given kind and of no
// other, which was definitely not carried out.
func (e *env) refused(err, kind error, step string, args ...any) {
	what := fmt.Sprintf(step, args...)
	switch {
	case err == nil:
		e.failf("%s: want the error %q, got success", what, kind)
	case !errors.Is(err, kind):
		e.failf("%s: want the error %q, got: %w", what, kind, err)
	case store.OutcomeUnknown(err):
		e.failf("%s: store.OutcomeUnknown says the outcome of this answer is unknown: %w", what, err)
	}
	for _, other := range kinds {
		if other != kind && errors.Is(err, other) {
			e.failf("%s: want the error %q alone, but it is also %q: %w", what, kind, other, err)
		}
	}
}

// kinds are the errors that must be told apart.
var kinds = []error{
	store.ErrHeld, store.ErrSpent, store.ErrNoRecord, store.ErrVacant, store.ErrSuperseded, store.ErrExpired, store.ErrReleased,
	store.ErrCloned, store.ErrReceipt, store.ErrEvicted, store.ErrTokens,
	store.ErrInvalid, store.ErrDenied, store.ErrUnreachable, store.ErrBusy, store.ErrReadOnly, store.ErrFormat, store.ErrUnsupported,
	store.ErrStoreClosed,
}

// open opens the store once more.
func (e *env) open() store.Store {
	s, closeStore, err := e.h.Open(e.ctx)
	e.must(err, "opening the store once more")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closes = append(e.closes, closeStore)
	return s
}

// name returns an election name of this run of the case.
func (e *env) name(suffix string) string { return e.prefix + suffix }

// attempt draws an attempt id.
func (e *env) attempt() store.Attempt {
	return store.Attempt(rand.Text() + "-" + strconv.FormatInt(e.attempts.Add(1), 10))
}

// claim is a valid claim whose lease outlasts the case.
func (e *env) claim(name string) store.Claim {
	return store.Claim{Name: name, Holder: "holder", Attempt: e.attempt(), TTL: e.h.TTLLong}
}

// short is a valid claim whose lease the case waits out.
func (e *env) short(name string) store.Claim {
	c := e.claim(name)
	c.TTL = e.h.TTL
	return c
}

// grant acquires c, which must succeed.
func (e *env) grant(s store.Store, c store.Claim) store.Lease {
	l, err := s.Acquire(e.ctx, c)
	e.must(err, "acquiring %q", c.Name)
	return l
}

// held acquires c, which must be refused because somebody holds the election.
func (e *env) held(s store.Store, c store.Claim, step string) *store.HeldError {
	_, err := s.Acquire(e.ctx, c)
	e.refused(err, store.ErrHeld, "%s", step)
	var held *store.HeldError
	e.check(errors.As(err, &held), "%s: the error %T is no *store.HeldError", step, err)
	return held
}

// renew renews l by an attempt of its own, which must succeed.
func (e *env) renew(s store.Store, l store.Lease) store.Lease {
	return e.renewBy(s, l, e.attempt())
}

func (e *env) renewBy(s store.Store, l store.Lease, a store.Attempt) store.Lease {
	r, err := s.Renew(e.ctx, l, a)
	e.must(err, "renewing renewal %d of %q", l.Renewal, l.Name)
	return r
}

// notRenewed renews l by a, which must be refused in the given way.
func (e *env) notRenewed(s store.Store, l store.Lease, a store.Attempt, kind error, step string) error {
	got, err := s.Renew(e.ctx, l, a)
	e.refused(err, kind, "%s", step)
	e.check(got == store.Lease{}, "%s: a lease came with the refusal: %+v", step, got)
	return err
}

func (e *env) release(s store.Store, l store.Lease, pending store.Attempt) {
	e.must(s.Release(e.ctx, l, pending), "releasing %q", l.Name)
}

func (e *env) get(s store.Store, name string) store.Record {
	rec, err := s.Get(e.ctx, name)
	e.must(err, "reading %q", name)
	return rec
}

// inState reads the record, which must be in the given state.
func (e *env) inState(s store.Store, name string, want store.State, step string) store.Record {
	rec := e.get(s, name)
	e.check(rec.State == want, "%s: want the record %v, got %v", step, want, rec.State)
	return rec
}

// unchanged ends the case if anything in the record of an election is not as it
// was, but for the time that is left.
func (e *env) unchanged(s store.Store, before store.Record, step string) {
	after := e.get(s, before.Name)
	e.check(after.Remaining <= before.Remaining, "%s: the expiry moved from %v to %v ahead", step, before.Remaining, after.Remaining)
	a, b := before, after
	a.Remaining, b.Remaining = 0, 0
	e.check(sameRecord(a, b), "%s: the record changed\nfrom %+v\nto   %+v", step, a, b)
}

// sameRecord compares records, times by the instant they name.
func sameRecord(a, b store.Record) bool {
	return reflect.DeepEqual(plain(a), plain(b))
}

func plain(r store.Record) store.Record {
	r.AcquiredAt, r.RenewedAt = r.AcquiredAt.UTC().Round(0), r.RenewedAt.UTC().Round(0)
	burns := make([]store.Burn, len(r.Burns))
	for i, b := range r.Burns {
		b.At = b.At.UTC().Round(0)
		burns[i] = b
	}
	r.Burns = burns
	return r
}

// advance lets d pass by the store's clock.
func (e *env) advance(d time.Duration) {
	if e.h.Advance != nil {
		e.must(e.h.Advance(e.ctx, d), "letting %v pass", d)
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.ctx.Done():
		e.failf("letting %v pass: %w", d, context.Cause(e.ctx))
	}
}

// tick lets enough time pass for the store's clock to show it.
func (e *env) tick() { e.advance(e.caps.Precision + 20*time.Millisecond) }

// acquireAfter acquires c as soon as the store lets it, waiting out the holder's
// lease as often as a waiter must who judges the expiry itself.
func (e *env) acquireAfter(s store.Store, c store.Claim) store.Lease {
	var waited time.Duration
	for waited <= 4*c.TTL {
		l, err := s.Acquire(e.ctx, c)
		var held *store.HeldError
		if !errors.As(err, &held) {
			e.must(err, "acquiring %q after its expiry", c.Name)
			return l
		}
		d := max(held.Remaining, 0) + e.caps.Precision + 10*time.Millisecond
		e.advance(d)
		waited += d
	}
	e.failf("%q is still held %v after it began to wait for a lease of %v", c.Name, waited, c.TTL)
	return store.Lease{}
}

// dead waits until the record is dead, as acquireAfter does.
func (e *env) dead(s store.Store, name string) store.Record {
	var waited time.Duration
	for {
		rec := e.get(s, name)
		if rec.State != store.Live {
			e.check(rec.State == store.Dead, "a term that was not released and has expired must be %v, it is %v", store.Dead, rec.State)
			return rec
		}
		e.check(waited <= 4*rec.TTL, "%q is still live %v after it began to wait for a lease of %v", name, waited, rec.TTL)
		d := max(rec.Remaining, 0) + e.caps.Precision + 10*time.Millisecond
		e.advance(d)
		waited += d
	}
}

// beforeExpiry runs steps that must end before a short lease does. On a machine
// that is too slow for it they are told so by the store, with
// [store.ErrExpired], and begin anew with another name and twice the TTL.
func (e *env) beforeExpiry(steps func(store.Claim) error) {
	c := e.short(e.name("a"))
	for try := 1; ; try++ {
		err := steps(c)
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrExpired) || try == 6 {
			e.must(err, "renewing a lease of %v in time", c.TTL)
		}
		ttl := min(2*c.TTL, e.caps.TTLMax)
		c = e.short(e.name("a" + strconv.Itoa(try)))
		c.TTL = ttl
	}
}

// above ends the case unless a token is above the one before it.
func (e *env) above(now, before fence.Token, step string) {
	e.check(now > before, "%s: token %d is not above the last one, %d", step, now, before)
}
