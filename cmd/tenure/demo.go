package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// demoCmd is `tenure demo`: with real processes, what a lease alone does not
// prevent.
type demoCmd struct {
	jsonFlag
}

// demoTTL is long enough that a slow machine does not lose a lease by itself.
const demoTTL = 2 * time.Second

const demoIntro = `Two programs, A and B, contend for the election "payments". Whoever leads pays an invoice of 100 from an account
that holds 100. Both run under "tenure run" on this machine, with a lease of %v.

`

const demoEnd = `
A lease says who may begin; it cannot stop a process that was frozen in the middle of something and does not know it.
Only the account itself can refuse the late payment. It compares fencing tokens: a token rises at every change of the
leader, and one that is lower than the account has seen is refused.
`

// Run tells the story twice.
func (c *demoCmd) Run(ctx context.Context, a *app) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	dir, err := os.MkdirTemp("", "tenure-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if !c.JSON {
		fmt.Fprintf(a.stdout, demoIntro, demoTTL)
	}
	balances := make(map[bool]int64)
	for _, fenced := range []bool{false, true} {
		d := &demo{app: a, json: c.JSON, dir: filepath.Join(dir, fmt.Sprint("fenced-", fenced)), fenced: fenced}
		if balances[fenced], err = d.tell(ctx); err != nil {
			return fmt.Errorf("the demo broke off: %w", err)
		}
	}
	if balances[false] != -100 || balances[true] != 0 {
		return exitf(exitNo, "the account holds %d without and %d with a fence: want -100 and 0", balances[false], balances[true])
	}
	if !c.JSON {
		fmt.Fprint(a.stdout, demoEnd)
	}
	return nil
}

// demo is one telling of the story.
type demo struct {
	app    *app
	json   bool
	dir    string
	fenced bool
	began  time.Time
}

// lineJSON is a line of the story for programs.
type lineJSON struct {
	Fenced bool   `json:"fenced"`
	AtMS   string `json:"at_ms"`
	Who    string `json:"who"`
	Text   string `json:"text"`
}

func (d *demo) say(who, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	at := time.Since(d.began)
	if d.json {
		d.app.printJSON(lineJSON{d.fenced, decimal(at.Milliseconds()), who, text})
		return
	}
	fmt.Fprintf(d.app.stdout, "  %4.1f s  %s %s\n", at.Seconds(), who, text)
}

// tell returns what the account holds in the end.
func (d *demo) tell(ctx context.Context) (balance int64, err error) {
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return 0, err
	}
	l, err := newLedger(d.account())
	if err != nil {
		return 0, err
	}
	defer l.close()
	if !d.json {
		fmt.Fprintln(d.app.stdout, map[bool]string{false: "Without a fence:", true: "\nThe same with a fence on the account:"}[d.fenced])
	}
	d.began = time.Now()

	a, err := d.contend(ctx, "A")
	if err != nil {
		return 0, err
	}
	defer a.end()
	if err := a.hear("decided"); err != nil {
		return 0, err
	}
	d.say("A", "leads with token %s, reads that the account holds %s, and is about to pay", a.token, a.balance)
	if err := d.freeze(ctx, a); err != nil {
		return 0, err
	}
	d.say("A", "is frozen with everything that belongs to it, as a paused machine would be")

	b, err := d.contend(ctx, "B")
	if err != nil {
		return 0, err
	}
	defer b.end()
	if err := b.hear("decided"); err != nil {
		return 0, err
	}
	d.say("B", "leads with token %s, since A's lease ran out, and reads that the account holds %s", b.token, b.balance)
	if err := d.pay(b); err != nil {
		return 0, err
	}
	if err := b.wait(); err != nil {
		return 0, err
	}

	// The late writer runs a moment before its guardian does. After a real pause
	// nobody decides which of the two comes first.
	if err := a.thawCommand(); err != nil {
		return 0, err
	}
	d.say("A", "is thawed, and goes on where it was")
	if err := d.pay(a); err != nil {
		return 0, err
	}
	if err := a.thawRest(); err != nil {
		return 0, err
	}
	var exit *exec.ExitError
	if err := a.wait(); !errors.As(err, &exit) || exit.ExitCode() != exitLost {
		return 0, fmt.Errorf("program A ended with %v, want exit code %d", err, exitLost)
	}
	d.say("A", "is told that its leadership is lost, and ends with exit code %d", exitLost)

	balance, err = l.balance(ctx)
	if err == nil {
		d.say("=", "%s", map[bool]string{true: "paid once: the account holds 0", false: fmt.Sprintf("paid twice: the account holds %d", balance)}[balance == 0])
	}
	return balance, err
}

// freeze freezes A, but not in the middle of a renewal: the file of the lease
// would stay locked, and B would wait for that.
func (d *demo) freeze(ctx context.Context, a *player) error {
	db, err := openDB(d.leases())
	if err != nil {
		return err
	}
	defer db.Close()
	for {
		if err := a.freeze(); err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, busy := tx.ExecContext(ctx, "create table demo_probe (x)")
		if err := tx.Rollback(); err != nil {
			return err
		}
		if busy == nil {
			return nil
		}
		if err := a.thawRest(); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (d *demo) leases() string  { return filepath.Join(d.dir, "lease.db") }
func (d *demo) account() string { return filepath.Join(d.dir, "account.db") }

// pay lets a writer write, and says what came of it.
func (d *demo) pay(p *player) error {
	if err := p.tell("pay"); err != nil {
		return err
	}
	what, err := p.hearAny()
	if err != nil {
		return err
	}
	switch what[0] {
	case "paid":
		d.say(p.name, "pays with token %s: the account holds %s", p.token, what[1])
	case "refused":
		d.say(p.name, "wants to pay with token %s: refused, the account has seen token %s", p.token, what[1])
	default:
		return fmt.Errorf("%s said %q", p.name, what)
	}
	return nil
}

// contend starts a `tenure run` of this very program, whose command is the
// demo's writer.
func (d *demo) contend(ctx context.Context, name string) (*player, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{
		"run", "payments", "--store", "sqlite:" + d.leases(), "--holder", name, "--ttl", demoTTL.String(), "--log-level", "error",
	}
	writer := []string{"--", self, "demo-writer", d.account()}
	if d.fenced {
		args = append(args, "--fence", "sqlite:"+d.account()+"#account")
		writer = append(writer, "--fenced")
	}
	cmd := exec.CommandContext(ctx, self, append(args, writer...)...)
	cmd.Args[0] = os.Args[0]
	// Ctrl-C is for this process, which ends the others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startPlayer(cmd, name)
}
