package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// demoCmd is `tenure demo`: with real processes, what a lease does and what it
// cannot do.
type demoCmd struct {
	jsonFlag
}

// The lease of the demo is long enough that a slow machine does not lose it by
// itself. If it does, the act is told again with one three times as long.
const (
	demoTTL    = 2 * time.Second
	demoTTLMax = 18 * time.Second
)

const demoIntro = `A, B and C are to pay one invoice of 100, once, from an account that holds 100.
Each runs under "tenure run payments -- PROGRAM", which starts the program only
while it holds the lease on "payments", %v at a time. All of it is real, and so
is what stands on the right: a look at the processes, and one at the account.
`

const demoEnd = `
A lease says who may begin. It cannot stop a program that was frozen in the
middle of its work and does not know it. Only the account can refuse the late
payment, by comparing tokens: each leader's is higher than the one before, and
one that is lower than the account has seen is refused.
`

// demoActs are what the demo shows, in turn.
var demoActs = []demoAct{
	{name: "killed", title: "1. The leader is killed", tell: (*scene).killed},
	{name: "frozen", title: "2. The leader is frozen in the middle of its work", tell: (*scene).frozen},
	{name: "fenced", title: "3. The same with a fence at the account", fenced: true, tell: (*scene).frozen},
}

type demoAct struct {
	name, title string
	fenced      bool // the account checks tokens
	tell        func(*scene, context.Context) error
}

// Help is shown by `tenure demo --help`.
func (*demoCmd) Help() string {
	return `Shows three things, with real processes: a leader that is killed is followed by exactly one other; a leader that is
frozen and comes back does the work a second time; with a fence at the resource it is refused. It takes some 7 seconds,
longer on a busy machine, and leaves nothing behind. Exit code 1: it came out otherwise, which would be a fault of tenure.`
}

// Run shows every act.
func (c *demoCmd) Run(ctx context.Context, a *app) error {
	runtime.LockOSThread() // what it starts is to die with it, and goes by the thread
	defer runtime.UnlockOSThread()
	ctx, stop := untilSignalled(ctx)
	defer stop()
	// What a killed contender leaves behind is this process's then.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	dir, err := privateDir(40) // the contenders' own directories lie in it
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if !c.JSON {
		fmt.Fprintf(a.stdout, demoIntro, demoTTL)
	}
	for _, act := range demoActs {
		err := patiently(func(ttl time.Duration, again error) error {
			s := &scene{app: a, json: c.JSON, act: act, dir: filepath.Join(dir, act.name+ttl.String()), ttl: ttl}
			return s.perform(ctx, again)
		})
		var sig signalled
		switch {
		case errors.As(context.Cause(ctx), &sig):
			return &exitError{code: 128 + int(sig.sig)}
		case errors.Is(err, unix.EPIPE): // who read the story has gone
			return &exitError{code: 128 + int(unix.SIGPIPE)}
		case err != nil:
			return fmt.Errorf("the demo broke off: %w", err)
		}
	}
	if !c.JSON {
		fmt.Fprint(a.stdout, demoEnd)
	}
	return nil
}

// untilSignalled returns a context that ends with the first signal that asks
// this process to end. A reader of its output that is gone is an error of the
// next write to it, instead of a signal.
func untilSignalled(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	go func() {
		select {
		case s := <-signals:
			cancel(signalled{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// otherwise is why an act did not go as it is told: on a machine that is too
// busy for the lease, somebody lost it that was not to.
type otherwise struct{ text string }

func (e otherwise) Error() string { return e.text }

// patiently calls tell until it goes as it is told, each time with a longer
// lease, and with why it did not go so before.
func patiently(tell func(ttl time.Duration, again error) error) error {
	var err error
	for ttl := demoTTL; ttl <= demoTTLMax; ttl *= 3 {
		err = tell(ttl, err)
		var o otherwise
		if !errors.As(err, &o) {
			break
		}
	}
	return err
}

// killed tells of three contenders whose leader is killed.
func (s *scene) killed(ctx context.Context) error {
	for _, name := range []string{"A", "B", "C"} {
		if _, err := s.contend(name); err != nil {
			return err
		}
	}
	// Who wins is open. The other two are to wait before the leader is killed.
	first, err := s.leads(ctx, 2)
	if err != nil {
		return err
	}
	if err := s.say(first, "leads", "leads with token %s: its program starts", first.token); err != nil {
		return err
	}
	for _, p := range s.players {
		if p != first {
			if err := s.say(p, "waits", "waits"); err != nil {
				return err
			}
		}
	}
	if err := first.kill(); err != nil {
		return err
	}
	if err := s.say(first, "killed", `its "tenure run" is killed with KILL`); err != nil {
		return err
	}
	if err := s.ends(ctx, first, 128+int(unix.SIGKILL)); err != nil {
		return err
	}
	if err := s.say(first, "gone", "its program is gone too, ended by the guardian"); err != nil {
		return err
	}
	second, err := s.leads(ctx, 0)
	if err != nil {
		return err
	}
	if err := s.say(second, "leads", "takes over with token %s: %s's lease has run out", second.token, first.name); err != nil {
		return err
	}
	return s.outcome("One at a time: each program looked for others first, and was alone.")
}

// frozen tells of a leader that is frozen after it has decided to pay and before
// it pays, and of the one after it.
func (s *scene) frozen(ctx context.Context) error {
	a, err := s.contend("A")
	if err != nil {
		return err
	}
	if _, err := s.leads(ctx, 0); err != nil {
		return err
	}
	if err := s.say(a, "leads", "leads with token %s, sees %s, decides to pay", a.token, a.balance); err != nil {
		return err
	}
	if err := s.freeze(ctx, a); err != nil {
		return err
	}
	if err := s.say(a, "frozen", "is frozen, as if its machine were paused"); err != nil {
		return err
	}
	b, err := s.contend("B")
	if err != nil {
		return err
	}
	if _, err := s.leads(ctx, 0); err != nil {
		return err
	}
	if err := s.say(b, "leads", "takes over with token %s: A's lease has run out", b.token); err != nil {
		return err
	}
	if err := s.pays(ctx, b, "pays"); err != nil {
		return err
	}
	b.in.Close()
	if err := s.ends(ctx, b, 0); err != nil {
		return err
	}

	// The late writer runs a moment before its guardian does. After a real pause
	// nobody decides which of the two comes first.
	if err := a.thawProgram(); err != nil {
		return err
	}
	if err := s.pays(ctx, a, "is thawed, goes on where it was, and pays"); err != nil {
		return err
	}
	if err := a.thaw(); err != nil {
		return err
	}
	if err := s.ends(ctx, a, exitLost); err != nil {
		return err
	}
	if err := s.say(a, "lost", "is told that it lost the lease: exit code %d", exitLost); err != nil {
		return err
	}
	switch balance, err := s.ledger.balance(ctx); {
	case err != nil:
		return err
	case !s.act.fenced && balance == -100:
		return s.outcome("Paid twice, although never two of them ran at once.")
	case s.act.fenced && balance == 0:
		return s.outcome("Paid once.")
	default:
		return s.failed("the account holds %d in the end", balance)
	}
}

// pays lets a program pay, and says what came of it.
func (s *scene) pays(ctx context.Context, p *player, how string) error {
	if err := p.tell("pay"); err != nil {
		return otherwise{fmt.Sprintf("%s ended before it could pay", p.name)}
	}
	e, err := s.next(ctx)
	switch {
	case err != nil:
		return err
	case e.is(p, "paid"):
		return s.say(p, "pays", "%s", how)
	case e.is(p, "refused"):
		return s.say(p, "refused", "is thawed and pays: token %s refused, %s was seen", p.token, e.words[1])
	}
	return e.otherwise()
}
