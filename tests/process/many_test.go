package process

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/faultstore"
)

// manyRole holds N elections on one store until SIGTERM. It tells when it holds
// all of them, what is lost, and each renewal of the first.
func manyRole(p plan) int {
	return holdMany(p, func(s store.Store) (store.Store, func()) { return s, func() {} })
}

// stuckRole is manyRole with one election whose renewals never return, from its
// first one on.
func stuckRole(p plan) int {
	return holdMany(p, func(s store.Store) (store.Store, func()) {
		f := faultstore.New(s)
		f.Add(faultstore.Rule{Op: faultstore.Renew, Name: electionName(stuckElection), Fault: faultstore.Stick()})
		return f, f.Free
	})
}

const stuckElection = 7

func electionName(i int) string { return fmt.Sprintf("job-%03d", i) }

// holdMany holds p.N elections on what wrap makes of the store. The function that
// wrap returns ends what is stuck, after everything else.
func holdMany(p plan, wrap func(store.Store) (store.Store, func())) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go (&candidate{}).listen()
	stock := takeStock()
	file, err := p.open(ctx)
	if err != nil {
		tell(event{Kind: "failed", Error: err.Error()})
		return exitFailed
	}
	s, free := wrap(file)
	var (
		lead atomic.Int64
		all  sync.WaitGroup
	)
	for i := range p.N {
		e, err := tenure.NewElector(s, electionName(i), &tenure.Options{
			TTL: p.TTL, Logger: slog.New(slog.DiscardHandler),
			Observer: tenure.ObserverFunc(func(ev tenure.Event) {
				switch ev.(type) {
				case tenure.Acquired:
					if lead.Add(1) == int64(p.N) {
						tell(event{Kind: "all lead"})
					}
				case tenure.Renewed, tenure.Lost, tenure.Released:
					observe(ev)
				}
			}),
		})
		if err != nil {
			tell(event{Kind: "failed", Error: err.Error()})
			return exitFailed
		}
		all.Go(func() {
			_ = e.Run(ctx, func(ctx context.Context, _ *tenure.Term) error { // it ends with ctx
				<-ctx.Done()
				return nil
			})
		})
	}
	all.Wait()
	err = file.Close()
	free()
	if err != nil {
		tell(event{Kind: "failed", Error: err.Error()})
		return exitFailed
	}
	tell(event{Kind: "closed", Left: stock.more()})
	return 0
}

// commits is how many transactions were committed to a SQLite file in WAL mode,
// modulo 2³², by its shared-memory index. Nothing of this process may have the
// file open: closing the index drops the locks that it holds there.
func (f *field) commits() uint32 {
	f.t.Helper()
	index, err := os.ReadFile(f.path("lease.db-shm"))
	if err != nil || len(index) < 12 {
		f.t.Fatalf("the write-ahead log has no index: %d bytes, %v", len(index), err)
	}
	return binary.NativeEndian.Uint32(index[8:])
}

// cpu is the processor time that the process has used.
func (p *proc) cpu() time.Duration {
	p.f.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		p.f.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err1, err2); err != nil {
		p.f.t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // the kernel shows hundredths of a second
}

// Hundreds of elections of one process share their renewals: the file sees one
// transaction per renewal interval, not one for each.
func TestManyElectionsShareTransactions(t *testing.T) {
	t.Parallel()
	const (
		perSec  = 0.3 // one in TTL/3 is 0.2
		windows = 5   // how often a disturbed measurement is tried again
	)
	n := 500
	if raceDetector {
		n = 50
	}
	f := newField(t)
	plan := f.plan(15 * time.Second)
	plan.N = n
	began := mono()
	a := f.start("many", "a", plan)
	t.Logf("%d elections held after %v", n, a.await("all lead", nil).At-began)
	first := func(e event) bool { return e.Name == electionName(0) }
	a.skip()
	a.await("renewed", first) // with this round the others have joined
	for try := 1; ; try++ {
		from, commits, cpu := a.await("renewed", first), f.commits(), a.cpu()
		a.await("renewed", first)
		to := a.await("renewed", first)
		window := (to.At - from.At).Seconds()
		made := f.commits() - commits
		t.Logf("%d elections, TTL %v: %d transactions in %.1f s, %.2f a second, %.1f ms of processor time a second",
			n, plan.TTL, made, window, float64(made)/window, float64((a.cpu()-cpu).Milliseconds())/window)
		if float64(made) <= perSec*window {
			break
		}
		if try == windows {
			t.Errorf("more than %v transactions a second in each of %d measurements", perSec, windows)
			break
		}
	}
	if lost := a.count("lost"); lost > 0 {
		t.Logf("%d terms were lost", lost)
	}
	a.stop()
	free := f.count(func(e event) bool { return e.Kind == "released" && e.Free })
	t.Logf("%d elections freed at the end", free)
}

// One election's requests never return: it is lost, the other forty-nine go on,
// and the process still ends.
func TestB15_OneStuckElectionHarmsNoOther(t *testing.T) {
	t.Parallel()
	f := newField(t)
	plan := f.plan(12 * time.Second)
	plan.N = 50
	a := f.start("stuck", "a", plan)
	a.await("all lead", nil)
	if lost := a.await("lost", nil); lost.Name != electionName(stuckElection) {
		t.Errorf("%s was lost", lost.Name)
	}
	a.skip()
	for i := range plan.N {
		if i == stuckElection {
			continue
		}
		f.await("two more renewals of "+electionName(i), a.from, func() func(event) bool {
			n := 0
			return func(e event) bool {
				if e.Kind == "renewed" && e.Name == electionName(i) {
					n++
				}
				return n == 2
			}
		}())
	}
	a.stop()
	if n := f.count(func(e event) bool { return e.Kind == "lost" && e.Name != electionName(stuckElection) }); n > 0 {
		t.Errorf("%d other elections were lost", n)
	}
}
