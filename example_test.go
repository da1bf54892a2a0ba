package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
)

// silent keeps the examples' output to what they print.
var silent = &tenure.Options{Holder: "worker-1", Logger: slog.New(slog.DiscardHandler)}

func Example() {
	s := memstore.New(nil)
	defer s.Close()
	e, err := tenure.NewElector(s, "nightly-invoice", silent)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = e.RunOnce(context.Background(), func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leading with token", term.Token())
		return nil // the work; ctx ends if the term does
	})
	fmt.Println("done:", err)
	// Output:
	// leading with token 1
	// done: <nil>
}

// A leader that slept through its own replacement still believes in its token.
// The resource does not.
func Example_fencing() {
	s := memstore.New(nil)
	defer s.Close()
	ctx := context.Background()
	var invoices fence.Memory // the resource: remembers the highest token it saw
	write := func(stamp fence.Stamp, text string) {
		_, err := invoices.Do(stamp, func() error {
			fmt.Println("written:", text)
			return nil
		})
		if errors.Is(err, fence.ErrStale) {
			fmt.Println("refused:", err)
		}
	}

	e, _ := tenure.NewElector(s, "invoices", silent)
	old, _ := e.Campaign(ctx)
	late := old.Stamp("invoices") // checked; then the process is paused
	write(late, "by the first leader")

	_ = old.Resign(ctx) // or its lease runs out while it sleeps
	e, _ = tenure.NewElector(s, "invoices", silent)
	next, _ := e.Campaign(ctx)
	defer next.Resign(ctx)
	write(next.Stamp("invoices"), "by the next leader")

	write(late, "by the first leader, on waking up")
	// Output:
	// written: by the first leader
	// written: by the next leader
	// refused: fence: resource "invoices" refused stale token 1: a higher token was seen (seen 2)
}

func ExampleElector_Run() {
	s := memstore.New(nil)
	defer s.Close()
	e, _ := tenure.NewElector(s, "reconcile", silent)
	ctx, stop := context.WithCancelCause(context.Background())
	err := e.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		stop(errors.New("asked to shut down"))
		<-ctx.Done()
		fmt.Println("job ends:", context.Cause(ctx))
		fmt.Println("still leading while it does:", term.Err() == nil)
		return nil
	})
	fmt.Println("run ends:", err)
	// Output:
	// job ends: asked to shut down
	// still leading while it does: true
	// run ends: asked to shut down
}

func ExampleElector_TryRun() {
	s := memstore.New(nil)
	defer s.Close()
	ctx := context.Background()
	first, _ := tenure.NewElector(s, "migrate", silent)
	term, _ := first.Campaign(ctx)
	defer term.Resign(ctx)

	second, _ := tenure.NewElector(s, "migrate", silent)
	err := second.TryRun(ctx, func(context.Context, *tenure.Term) error {
		fmt.Println("never printed")
		return nil
	})
	var held *tenure.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Holder, "with token", held.Token)
	}
	// Output:
	// held by worker-1 with token 1
}

func ExampleElector_Leader() {
	s := memstore.New(nil)
	defer s.Close()
	ctx := context.Background()
	e, _ := tenure.NewElector(s, "reindex", silent)
	_, err := e.Leader(ctx)
	fmt.Println("before:", errors.Is(err, store.ErrNoRecord))
	term, _ := e.Campaign(ctx)
	rec, _ := e.Leader(ctx)
	fmt.Println("during:", rec.State, rec.Holder)
	_ = term.Resign(ctx)
	rec, _ = e.Leader(ctx)
	fmt.Println("after:", rec.State)
	// Output:
	// before: true
	// during: live worker-1
	// after: vacant
}

func ExampleTerm_Confirm() {
	s := memstore.New(nil)
	defer s.Close()
	ctx := context.Background()
	e, _ := tenure.NewElector(s, "reindex", silent)
	term, _ := e.Campaign(ctx)
	fmt.Println("stands:", term.Confirm(ctx) == nil)
	_, _ = s.Evict(ctx, store.Eviction{Name: "reindex", Reason: "maintenance"})
	err := term.Confirm(ctx)
	fmt.Println("lost:", errors.Is(err, tenure.ErrLost), "evicted:", errors.Is(err, tenure.ErrEvicted))
	// Output:
	// stands: true
	// lost: true evicted: true
}

func ExampleObserver() {
	s := memstore.New(nil)
	defer s.Close()
	e, _ := tenure.NewElector(s, "reindex", &tenure.Options{
		Logger: silent.Logger,
		Observer: tenure.ObserverFunc(func(e tenure.Event) {
			switch e := e.(type) {
			case tenure.Acquired:
				fmt.Println("acquired token", e.Term.Token)
			case tenure.Released:
				fmt.Println("released:", e.Free)
			}
		}),
	})
	_ = e.RunOnce(context.Background(), func(context.Context, *tenure.Term) error { return nil })
	// Output:
	// acquired token 1
	// released: true
}

func ExampleNewElector_invalid() {
	s := memstore.New(nil)
	defer s.Close()
	_, err := tenure.NewElector(s, "", &tenure.Options{TTL: -1})
	fmt.Println(errors.Is(err, store.ErrInvalid))
	// Output:
	// true
}
