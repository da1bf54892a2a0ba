package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/tenure-go/tenure/fence"
)

// demoWriterCmd is the job of `tenure demo`: it reads the account, decides, and
// pays when it is told to. The check of the balance comes before the pause, as
// in any program that reads, thinks and writes.
type demoWriterCmd struct {
	Account string `arg:""`
	Fenced  bool
}

// Run is the job.
func (c *demoWriterCmd) Run(ctx context.Context, a *app) error {
	db, err := openDB(c.Account)
	if err != nil {
		return err
	}
	l := &ledger{db}
	defer l.close()
	balance, err := l.balance(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "decided", a.getenv("TENURE_TOKEN"), balance)

	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return errors.Join(in.Err(), errors.New("nobody told this writer to pay"))
	}
	var stamp *fence.Stamp
	if c.Fenced {
		token, err := strconv.ParseInt(a.getenv("TENURE_TOKEN"), 10, 64)
		if err != nil {
			return err
		}
		stamp = &fence.Stamp{Resource: "account", Token: fence.Token(token), TermID: a.getenv("TENURE_TERM")}
	}
	err = l.pay(ctx, stamp)
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale):
		fmt.Fprintln(a.stdout, "refused", stale.Seen)
		return nil
	case err != nil:
		return err
	}
	if balance, err = l.balance(ctx); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "paid", balance)
	return nil
}
