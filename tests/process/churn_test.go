package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// churnRole wins and loses N times in every way, fails to win N times, and tells
// what is left of it.
func churnRole(p plan) int {
	go (&candidate{}).listen()
	stock := takeStock()
	if err := churn(p); err != nil {
		tell(event{Kind: "failed", Error: err.Error()})
		return exitFailed
	}
	tell(event{Kind: "closed", Left: stock.more()})
	return 0
}

func churn(p plan) error {
	ctx := context.Background()
	s, err := p.open(ctx)
	if err != nil {
		return err
	}
	o := &tenure.Options{TTL: p.TTL, Logger: slog.New(slog.DiscardHandler)}
	e, err1 := tenure.NewElector(s, p.Election, o)
	rival, err2 := tenure.NewElector(s, p.Election, o)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for i := range p.N {
		if err := winAndLose(ctx, s, e, i%2 == 0); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	held, err := e.Campaign(ctx)
	if err != nil {
		return err
	}
	for i := range p.N {
		err := rival.TryRun(ctx, func(context.Context, *tenure.Term) error { return errors.New("the rival leads") })
		if !errors.Is(err, tenure.ErrHeld) {
			return fmt.Errorf("try %d: %w", i, err)
		}
		if _, err := tenure.NewElector(s, p.Election, &tenure.Options{TTL: -1}); !errors.Is(err, store.ErrInvalid) {
			return fmt.Errorf("a negative TTL: %w", err)
		}
		if _, err := tenuresqlite.Open(ctx, p.File+"/none", nil); err == nil {
			return errors.New("opened a file inside a file")
		}
		// Told to stop while it asks, or just after.
		asking, stop := context.WithTimeout(ctx, time.Duration(i)*10*time.Microsecond)
		_, err = rival.Campaign(asking)
		stop()
		if !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("campaign %d: %w", i, err)
		}
	}
	if err := held.Resign(ctx); err != nil {
		return err
	}
	// One more is under way when the store is closed.
	if held, err = e.Campaign(ctx); err != nil {
		return err
	}
	waiting := make(chan error)
	go func() {
		_, err := rival.Campaign(ctx)
		waiting <- err
	}()
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		return err
	}
	if err := <-waiting; !errors.Is(err, store.ErrStoreClosed) {
		return fmt.Errorf("a campaign on a closed store: %w", err)
	}
	if err := held.Resign(ctx); !errors.Is(err, store.ErrStoreClosed) {
		return fmt.Errorf("a release on a closed store: %w", err)
	}
	return nil
}

// winAndLose leads a term that is given up, or taken away by an operator.
func winAndLose(ctx context.Context, s *tenuresqlite.Store, e *tenure.Elector, resign bool) error {
	term, err := e.Campaign(ctx)
	if err != nil {
		return err
	}
	if resign {
		return term.Resign(ctx)
	}
	if _, err := s.Evict(ctx, store.Eviction{Name: e.Name(), Reason: "test"}); err != nil {
		return err
	}
	if err := term.Confirm(ctx); !errors.Is(err, tenure.ErrEvicted) {
		return fmt.Errorf("an evicted term was confirmed: %w", err)
	}
	<-term.Done()
	return nil
}

// After hundreds of terms, failed tries and interrupted ones a process has no
// more goroutines, open files, children and locks than at its beginning.
func TestS03_NothingLeftBehind(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(30 * time.Second)
	plan.N = 500
	if raceDetector {
		plan.N = 100
	}
	a := f.start("churn", "a", plan)
	closed := a.await("closed", nil)
	for _, left := range closed.Left {
		t.Errorf("left behind: %s", left)
	}
	a.await("exit", nil)
}
