package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenuresqlite"
)

// demoWriterCmd is the program of `tenure demo`: it reads the account, decides,
// and pays when it is told to. The check of the balance comes before the pause,
// as in any program that reads, thinks and writes.
type demoWriterCmd struct {
	Account string `arg:""`
	Name    string `arg:""`
	Fenced  bool
}

// demoWriter is the command's name on the command line.
const demoWriter = "demo-writer"

// Run is the program.
func (c *demoWriterCmd) Run(ctx context.Context, a *app) error {
	beside := runningPrograms(c.Account)
	l, err := openLedger(c.Account)
	if err != nil {
		return err
	}
	defer l.close()
	balance, err := l.balance(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "decided", a.getenv("TENURE_TOKEN"), balance, strings.Join(beside, "+"))

	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return errors.Join(in.Err(), errors.New("nobody told this program to pay"))
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
	case err == nil:
		fmt.Fprintln(a.stdout, "paid", decimal(balance-100))
	case errors.As(err, &stale):
		fmt.Fprintln(a.stdout, "refused", stale.Seen)
	default:
		return err
	}
	in.Scan() // runs on until it is let go, so that it can be seen to
	return nil
}

// ledger is the account.
type ledger struct{ db *sql.DB }

// newLedger makes an account that holds 100.
func newLedger(path string) (*ledger, error) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	l, err := openLedger(path)
	if err != nil {
		return nil, err
	}
	if _, err := l.db.Exec(`create table account (balance integer not null); insert into account values (100)`); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func openLedger(path string) (*ledger, error) {
	db, err := openDB(path)
	return &ledger{db}, err
}

func (l *ledger) close() { l.db.Close() }

func (l *ledger) balance(ctx context.Context) (n int64, err error) {
	err = l.db.QueryRowContext(ctx, `select balance from account`).Scan(&n)
	return n, err
}

// pay takes 100 off. With a stamp the account's fence checks it, in the
// transaction that writes.
func (l *ledger) pay(ctx context.Context, stamp *fence.Stamp) error {
	const statement = `update account set balance = balance - 100`
	if stamp == nil {
		_, err := l.db.ExecContext(ctx, statement)
		return err
	}
	_, err := tenuresqlite.NewFence(l.db).Do(ctx, *stamp, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
	return err
}
