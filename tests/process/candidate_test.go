package process

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/faultstore"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// Exit codes of a candidate, beside 0 and the runtime's 2 after a panic.
const (
	exitFailed = 1 // the part could not be played
	exitAlone  = 3 // the test that started this process is gone
	exitTimeUp = 4 // a deaf job's time was up
)

// pace is the time between two steps of a job.
const pace = 5 * time.Millisecond

// candidate is a process that contends for an election until SIGTERM.
type candidate struct {
	plan
	faults  *faultstore.Store
	tap     *tap
	journal *journal
	ledger  *ledger // nil: the job writes nothing
	finish  chan string
	file    *sql.DB // the lease's file, while the job writes to it

	mu    sync.Mutex
	term  *tenure.Term // the current one; nil before the first
	stamp fence.Stamp  // of the last accepted write
}

func candidateRole(p plan) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := &candidate{plan: p, finish: make(chan string)}
	go c.listen()
	stock := takeStock()
	err := c.run(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		tell(event{Kind: "failed", Error: err.Error()})
		return exitFailed
	}
	tell(event{Kind: "closed", Left: stock.more()})
	return 0
}

func (c *candidate) run(ctx context.Context) (err error) {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c.faults = faultstore.New(s)
	c.tap = &tap{Store: c.faults}
	if c.journal, err = openJournal(c.Journal); err != nil {
		return err
	}
	defer c.journal.f.Close()
	if c.Ledger != "" {
		if c.ledger, err = openLedger(c.Ledger); err != nil {
			return err
		}
		defer c.ledger.db.Close()
	}
	e, err := tenure.NewElector(c.tap, c.Election, c.options())
	if err != nil {
		return err
	}
	if c.Ask {
		asking, stop := context.WithCancel(ctx)
		defer stop()
		go c.ask(asking)
	}
	tell(event{Kind: "ready", PID: os.Getpid()})
	return e.Run(ctx, c.job)
}

func (p plan) open(ctx context.Context) (*tenuresqlite.Store, error) {
	o := &tenuresqlite.Options{}
	if p.Rollback {
		o.Journal = tenuresqlite.Rollback
	}
	return tenuresqlite.Open(ctx, p.File, o)
}

func (p plan) options() *tenure.Options {
	return &tenure.Options{
		TTL: p.TTL, Margin: p.Margin, Rejoin: p.Rejoin,
		Observer: tenure.ObserverFunc(observe), Logger: slog.New(slog.DiscardHandler),
	}
}

// observe tells what the elector says.
func observe(ev tenure.Event) {
	of := func(kind string, i tenure.Info) event {
		return event{Kind: kind, Name: i.Name, Token: int64(i.Token), Renewal: i.Renewal}
	}
	say := func(e event, err error) {
		if err != nil {
			e.Error = err.Error()
		}
		tell(e)
	}
	switch ev := ev.(type) {
	case tenure.Waiting:
		say(event{Kind: "waiting", Name: ev.Name, Token: int64(ev.Held.Token)}, ev.Held)
	case tenure.AskFailed:
		say(event{Kind: "ask failed", Name: ev.Name}, ev.Err)
	case tenure.Acquired:
		say(of("acquired", ev.Term), nil)
	case tenure.Renewed:
		say(of("renewed", ev.Term), nil)
	case tenure.RenewFailed:
		say(of("renew failed", ev.Term), ev.Err)
	case tenure.Draining:
		say(of("draining", ev.Term), nil)
	case tenure.Lost:
		e := of("lost", ev.Term)
		e.Reason = tenure.Reason(ev.Err.Cause)
		say(e, ev.Err)
	case tenure.JobEnded:
		say(of("job ended", ev.Term), ev.Err)
	case tenure.Overdue:
		say(of("overdue", ev.Term), nil)
	case tenure.Released:
		e := of("released", ev.Term)
		e.Free = ev.Free
		say(e, ev.Err)
	}
}

// job works until it is told to stop, and as long after that as its plan says.
func (c *candidate) job(ctx context.Context, term *tenure.Term) error {
	token := int64(term.Info().Token)
	c.mu.Lock()
	c.term = term
	c.mu.Unlock()
	c.journal.write(begin, mono(), token, 0)
	defer func() { c.journal.write(end, mono(), token, 0) }()

	if c.ledger != nil {
		writing, stop := context.WithCancel(ctx)
		var writer sync.WaitGroup
		writer.Go(func() { c.write(writing, term) })
		defer writer.Wait()
		defer stop()
	}
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	told, lingered := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-told:
			// Nothing may come between the end of the context and this.
			e := event{Kind: "told", At: mono(), Token: token, Reason: tenure.Reason(context.Cause(ctx)), Calls: c.calls()}
			tell(e)
			told, lingered = nil, time.After(c.Linger)
			if c.Deaf {
				lingered = nil
				time.AfterFunc(term.Remaining(), func() { os.Exit(exitTimeUp) })
			}
		case <-lingered:
			return nil
		case how := <-c.finish:
			switch how {
			case "error":
				return errors.New("the job failed")
			case "panic":
				panic("the job panicked")
			}
			return nil
		case <-ticker.C:
			at := mono()
			switch {
			case term.Token() != 0:
				c.journal.write(step, at, token, 0)
			case c.Deaf:
				c.journal.write(deaf, at, token, 0)
			}
		}
	}
}

// write writes to the ledger while the term is valid.
func (c *candidate) write(ctx context.Context, term *tenure.Term) {
	for n := 0; ctx.Err() == nil; n++ {
		switch err := c.writeOnce(ctx, term, n); {
		case err == nil, ctx.Err() != nil:
		case fence.Refused(err):
			_ = term.Fenced(err)
			tell(event{Kind: "refused", Token: int64(term.Info().Token), Error: err.Error()})
		default:
			tell(event{Kind: "write failed", Token: int64(term.Info().Token), Error: err.Error()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(4 * pace):
		}
	}
}

// writeOnce makes write n. The term enters the resource before its first.
func (c *candidate) writeOnce(ctx context.Context, term *tenure.Term, n int) error {
	stamp := term.Stamp(resource)
	if stamp.Token == 0 {
		return nil // the context is about to end
	}
	if n == 0 {
		if err := c.ledger.fence.Enter(ctx, stamp); err != nil {
			return err
		}
	}
	if err := c.ledger.write(ctx, stamp, n); err != nil {
		return err
	}
	c.mu.Lock()
	c.stamp = stamp
	c.mu.Unlock()
	c.journal.write(wrote, mono(), int64(stamp.Token), n)
	tell(event{Kind: "wrote", Token: int64(stamp.Token)})
	return nil
}

// calls are the last calls of the store, the oldest first.
func (c *candidate) calls() []storeCall {
	all := c.faults.Calls()
	var last []storeCall
	for _, call := range all[max(0, len(all)-5):] {
		s := storeCall{Op: call.Op, Began: mono() - time.Since(call.At), Done: call.Done}
		if call.Err != nil {
			s.Error = call.Err.Error()
		}
		last = append(last, s)
	}
	return last
}

// gap is how long a process that asks all the time must have been away for its
// next answer to count as the first after a thaw.
const gap = 500 * time.Millisecond

// ask asks the current term all the time whether it is valid, and tells the
// first answer after each time at which this process was away.
func (c *candidate) ask(ctx context.Context) {
	for previous := mono(); ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
		c.mu.Lock()
		term := c.term
		c.mu.Unlock()
		before := mono()
		if term != nil {
			err := term.Err()
			answered := mono()
			token := term.Token()
			if before-previous > gap {
				e := event{Kind: "answer", At: answered, Token: int64(token)}
				if err != nil {
					e.Error, e.Reason = err.Error(), tenure.Reason(err)
				}
				tell(e)
			}
		}
		previous = before
	}
}

// listen carries out orders until there is nobody to give any.
func (c *candidate) listen() {
	for scan := bufio.NewScanner(os.Stdin); scan.Scan(); {
		order, arg, _ := strings.Cut(scan.Text(), " ")
		c.mu.Lock()
		term, stamp := c.term, c.stamp
		c.mu.Unlock()
		e := event{Kind: order}
		switch order {
		case "cut":
			c.faults.Cut()
		case "heal":
			c.faults.Heal()
		case "finish":
			c.finish <- arg
		case "resign":
			_ = term.Resign(context.Background())
		case "confirm":
			_ = term.Confirm(context.Background()) // a loss is told of
		case "late":
			e.Answers = c.late(term, stamp)
		case "begin", "commit":
			if err := c.holdFile(order); err != nil {
				e.Error = err.Error()
			}
		default:
			e.Error = "unknown order"
		}
		tell(e)
	}
	os.Exit(exitAlone)
}

// holdFile begins or commits a transaction of the job's own that writes to the
// lease's file.
func (c *candidate) holdFile(order string) (err error) {
	if order == "begin" {
		if c.file, err = sql.Open("sqlite", "file:"+c.File+"?_pragma=busy_timeout(30000)"); err != nil {
			return err
		}
		c.file.SetMaxOpenConns(1) // the transaction is the connection's
		_, err = c.file.Exec("create table if not exists orders (n); begin immediate; insert into orders values (1)")
		return err
	}
	_, err = c.file.Exec("commit")
	return errors.Join(err, c.file.Close())
}

// late sends what a process that slept through its own replacement may still
// send: a renewal, a release and the giving back of its last term, and writes.
func (c *candidate) late(term *tenure.Term, old fence.Stamp) map[string]string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lease := c.tap.last()
	_, renew := c.faults.Renew(ctx, lease, store.Attempt(fmt.Sprintf("late-%d", mono())))
	return map[string]string{
		"renew":   kind(renew),
		"release": kind(c.faults.Release(ctx, lease, "")),
		"abandon": kind(c.faults.Abandon(ctx, c.Election, lease.TermID)),
		"write":   kind(c.ledger.write(ctx, old, -1)),
		"stamp":   kind(c.ledger.write(ctx, term.Stamp(resource), -2)),
	}
}

// kind names the kind of an error.
func kind(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, store.ErrSuperseded):
		return "superseded"
	case errors.Is(err, fence.ErrStale):
		return "stale"
	case errors.Is(err, fence.ErrInvalid):
		return "invalid"
	}
	return err.Error()
}

// tap remembers the last lease that a store gave.
type tap struct {
	store.Store
	mu    sync.Mutex
	lease store.Lease
}

func (t *tap) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	l, err := t.Store.Acquire(ctx, c)
	t.keep(l, err)
	return l, err
}

func (t *tap) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	l, err := t.Store.Renew(ctx, l, a)
	t.keep(l, err)
	return l, err
}

func (t *tap) Unwrap() store.Store { return t.Store }

func (t *tap) keep(l store.Lease, err error) {
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lease = l
}

func (t *tap) last() store.Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lease
}
