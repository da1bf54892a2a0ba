package fencetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenure-go/tenure/fence"
)

// Fence is a fence together with something to write behind it: for each
// resource a list of values, which a write appends to. The cases call it from
// several goroutines at once.
//
// A refusal is the typed error of package fence, possibly wrapped. A fence that
// was only busy tries again by itself until ctx ends.
type Fence interface {
	// Enter raises the mark of the stamp's resource and commits that by itself.
	Enter(ctx context.Context, s fence.Stamp) error
	// Write checks s and appends value to the stamp's resource, in one atomic step.
	// replayed is true, and nothing was appended, if s is the last chained write
	// sent again.
	Write(ctx context.Context, s fence.Stamp, value string) (replayed bool, err error)
	// Written returns the values that landed on a resource, in the order in which
	// they did.
	Written(ctx context.Context, resource string) ([]string, error)
	// Last returns what the resource remembers of a lane; the zero LaneMark if it
	// was never written to.
	Last(ctx context.Context, resource, lane string) (fence.LaneMark, error)
}

// Harness is how the cases reach a fence. Only Open is required.
type Harness struct {
	// Open opens the fence. Each call is what another process would do: all of
	// them share the resources, and close ends this one only.
	Open func(ctx context.Context) (f Fence, close func() error, err error)

	// Transaction writes as [Fence.Write] does, and calls inside after the check
	// and the write but before the commit. An error of inside rolls the write back
	// and is returned. Nil: this fence's writes have no inside, and the cases about
	// it are skipped.
	Transaction func(ctx context.Context, f Fence, s fence.Stamp, value string, inside func() error) error

	// Prefix begins the names of the resources, at most 40 bytes. Empty: a new
	// random one for each case. Where marks outlive a run, two runs need two
	// prefixes.
	Prefix string
}

// Case is one thing that every fence must do.
type Case struct {
	Name string // group/what, such as "chain/twin"
	Why  string // one sentence: what goes wrong where a fence fails it
	run  func(*env)
}

// Run runs the case. It returns what the fence did wrong, a [SkipError] if the
// case does not apply to the harness, or nil. It blocks only as long as the
// fence does.
func (c Case) Run(ctx context.Context, h Harness) (err error) {
	if h.Open == nil {
		return errors.New("fencetest: the harness has no Open")
	}
	e := newEnv(ctx, h, c.Name)
	defer func() {
		if closeErr := e.close(); err == nil && closeErr != nil {
			err = fmt.Errorf("%s: closing the fence: %w", c.Name, closeErr)
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

// Cases returns all cases, in a fixed order.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{enterCases, writeCases, chainCases, inputCases} {
		all = append(all, group...)
	}
	return all
}
