package fencetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tenure-go/tenure/fence"
)

// env is what one run of a case works with. Its methods that expect something
// end the case by a panic with a stop, so that a case reads as the steps it
// takes; only the case's own goroutine may call them.
type env struct {
	ctx    context.Context
	h      Harness
	prefix string
	closes []func() error
}

// stop ends a case.
type stop struct{ err error }

func newEnv(ctx context.Context, h Harness, name string) *env {
	e := &env{ctx: ctx, h: h, prefix: h.Prefix}
	if e.prefix == "" {
		e.prefix = "ft-" + rand.Text()[:8]
	}
	e.prefix += "/" + name + "/"
	return e
}

func (e *env) close() error {
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
// other.
func (e *env) refused(err, kind error, step string, args ...any) {
	what := fmt.Sprintf(step, args...)
	e.check(err != nil, "%s: want the error %q, got success", what, kind)
	if !errors.Is(err, kind) {
		e.failf("%s: want the error %q, got: %w", what, kind, err)
	}
	for _, other := range []error{fence.ErrStale, fence.ErrForked, fence.ErrGap, fence.ErrInvalid} {
		if other != kind && errors.Is(err, other) {
			e.failf("%s: want the error %q alone, but it is also %q: %w", what, kind, other, err)
		}
	}
}

// open opens the fence, as another process would.
func (e *env) open() Fence {
	f, closeFence, err := e.h.Open(e.ctx)
	e.must(err, "opening the fence")
	e.closes = append(e.closes, closeFence)
	return f
}

// transactional ends the case if the harness cannot reach inside a write.
func (e *env) transactional() {
	if e.h.Transaction == nil {
		panic(stop{&SkipError{"the harness has no Transaction"}})
	}
}

// resource returns the name of a resource of this run of the case.
func (e *env) resource(suffix string) string { return e.prefix + suffix }

// enter enters s, which must be accepted.
func (e *env) enter(f Fence, s fence.Stamp) {
	e.must(f.Enter(e.ctx, s), "entering with %s", show(s))
}

// notEntered enters s, which must be refused in the given way.
func (e *env) notEntered(f Fence, s fence.Stamp, kind error, step string) {
	e.refused(f.Enter(e.ctx, s), kind, "%s: entering with %s", step, show(s))
}

// write writes value under s, which must land.
func (e *env) write(f Fence, s fence.Stamp, value string) {
	replayed, err := f.Write(e.ctx, s, value)
	e.must(err, "writing %q with %s", value, show(s))
	e.check(!replayed, "writing %q with %s: want a first write, got a replay", value, show(s))
}

// replay writes value under s, which must be recognised as written before.
func (e *env) replay(f Fence, s fence.Stamp, value string) {
	replayed, err := f.Write(e.ctx, s, value)
	e.must(err, "writing %q once more with %s", value, show(s))
	e.check(replayed, "writing %q once more with %s: want a replay, got a first write", value, show(s))
}

// notWritten writes under s, which must be refused in the given way and leave
// everything as it was. It returns the refusal.
func (e *env) notWritten(f Fence, s fence.Stamp, kind error, step string) error {
	before := e.lane(f, s)
	replayed, err := f.Write(e.ctx, s, "must not land: "+step)
	e.refused(err, kind, "%s: writing with %s", step, show(s))
	e.check(!replayed, "%s: the refusal says that it is a replay", step)
	after := e.lane(f, s)
	e.check(slices.Equal(before.values, after.values) && before.last == after.last,
		"%s: the write was refused, yet something changed\nfrom %+v\nto   %+v", step, before, after)
	return err
}

// laneState is what can be seen of a lane and its resource.
type laneState struct {
	values []string
	last   fence.LaneMark
}

func (e *env) lane(f Fence, s fence.Stamp) laneState {
	values, err := f.Written(e.ctx, s.Resource)
	e.must(err, "reading what was written to %q", s.Resource)
	return laneState{values, e.last(f, s.Resource, s.Lane)}
}

func (e *env) last(f Fence, resource, lane string) fence.LaneMark {
	l, err := f.Last(e.ctx, resource, lane)
	e.must(err, "reading the last position of lane %q of %q", lane, resource)
	return l
}

// written ends the case unless exactly these values landed, in this order.
func (e *env) written(f Fence, resource string, want ...string) {
	got, err := f.Written(e.ctx, resource)
	e.must(err, "reading what was written to %q", resource)
	e.check(slices.Equal(got, want), "want %q written to %q, got %q", want, resource, got)
}

// lastIs ends the case unless the lane's last write was s.
func (e *env) lastIs(f Fence, s fence.Stamp, step string) {
	want := fence.LaneMark{Token: s.Token, Position: s.Position, Digest: s.Digest}
	got := e.last(f, s.Resource, s.Lane)
	e.check(got == want, "%s: want lane %q of %q at %+v, got %+v", step, s.Lane, s.Resource, want, got)
}

// show writes a stamp so that a reader of a failure can tell it from others.
func show(s fence.Stamp) string {
	text := fmt.Sprintf("token %d, term %q, renewal %d of %q", s.Token, s.TermID, s.Renewal, s.Resource)
	if s.Chained() {
		text += fmt.Sprintf(", lane %q, position %d, digest %.12q", s.Lane, s.Position, s.Digest)
	}
	return text
}

// chained returns s as the write at a position of a lane.
func chained(s fence.Stamp, lane string, position int64, write string) fence.Stamp {
	s.Lane, s.Position, s.Digest = lane, position, fence.NewDigest(write, []byte(write))
	return s
}

// together runs n functions at once and returns their errors.
func together(n int, f func(i int) error) []error {
	errs := make([]error, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = f(i)
		})
	}
	close(begin)
	wg.Wait()
	return errs
}
