//go:build linux

package tenuresqlite

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// roles are what this test binary does as another process.
var roles = map[string]func(args []string) error{
	"hold":    roleHold,
	"read":    roleRead,
	"spin":    roleSpin,
	"lead":    roleLead,
	"contend": roleContend,
	"write":   roleWrite,
	"try":     roleTry,
	"clock":   roleClock,
	"wait":    roleWait,
	"churn":   roleChurn,

	"remaining": roleRemaining,
}

func openRaw(path string) (*sql.Conn, func(), error) {
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		return nil, nil, err
	}
	c, err := db.Conn(context.Background())
	if err != nil {
		return nil, nil, err
	}
	return c, func() { _, _ = c.Close(), db.Close() }, nil
}

// roleHold keeps a write transaction open until it is told to commit.
func roleHold(args []string) error {
	c, done, err := openRaw(args[0])
	if err != nil {
		return err
	}
	defer done()
	ctx := context.Background()
	for _, q := range []string{"create table if not exists job (n)", "begin immediate", "insert into job values (1)"} {
		if _, err := c.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	fmt.Println("holding")
	bufio.NewScanner(os.Stdin).Scan()
	if _, err := c.ExecContext(ctx, "commit"); err != nil {
		return err
	}
	fmt.Println("committed")
	bufio.NewScanner(os.Stdin).Scan()
	return nil
}

// roleRead keeps a read transaction open until it is told to end it.
func roleRead(args []string) error {
	c, done, err := openRaw(args[0])
	if err != nil {
		return err
	}
	defer done()
	var n int
	if _, err := c.ExecContext(context.Background(), "begin"); err != nil {
		return err
	}
	if err := c.QueryRowContext(context.Background(), "select count(*) from tenure_lease").Scan(&n); err != nil {
		return err
	}
	fmt.Println("reading", n)
	bufio.NewScanner(os.Stdin).Scan()
	if _, err := c.ExecContext(context.Background(), "rollback"); err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// roleSpin writes one transaction after the other until its input ends.
func roleSpin(args []string) error {
	c, done, err := openRaw(args[0])
	if err != nil {
		return err
	}
	defer done()
	ctx := context.Background()
	if _, err := c.ExecContext(ctx, "create table if not exists job (n)"); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
			continue
		}
	}()
	fmt.Println("spinning")
	for {
		select {
		case <-ended:
			return nil
		default:
		}
		if _, err := c.ExecContext(ctx, "insert into job values (1)"); err != nil {
			return err
		}
	}
}

// roleLead acquires an election and then does what it is told.
func roleLead(args []string) error {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := Open(ctx, args[0], nil)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.Acquire(ctx, claim(args[1], ttl))
	if err != nil {
		return err
	}
	fmt.Println("leads", l.Token)
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		var err error
		switch sc.Text() {
		case "renew":
			var next store.Lease
			if next, err = s.Renew(ctx, l, attempt()); err == nil {
				l = next
			}
		case "release":
			err = s.Release(ctx, l, "")
		}
		fmt.Println(sc.Text()+":", kindOfError(err))
	}
	return nil
}

func kindOfError(err error) string {
	for _, kind := range []error{store.ErrSuperseded, store.ErrHeld, store.ErrExpired, store.ErrNoRecord, store.ErrReceipt, store.ErrBusy, store.ErrDenied, store.ErrReadOnly, store.ErrUnreachable, store.ErrInvalid, fence.ErrStale} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	if err != nil {
		return "unexpected: " + err.Error()
	}
	return "done"
}

// roleTry opens a store, acquires once, and tells what came of it.
func roleTry(args []string) error {
	s, err := Open(context.Background(), args[0], nil)
	if err == nil {
		_, err = s.Acquire(context.Background(), claim("a", time.Minute))
		if closeErr := s.Close(); closeErr != nil {
			return closeErr
		}
	}
	fmt.Println(kindOfError(err))
	fmt.Println(err)
	return nil
}

// roleClock tells what this process takes for the host's time since boot.
func roleClock([]string) error {
	r, err := hostClock()
	if err != nil {
		return err
	}
	fmt.Println(int64(r.now.Mono), r.boot)
	return nil
}

// contended is how many elections roleContend contends for at once.
const contended = 4

// roleContend contends for elections until it is told to stop or killed. While it
// leads one, by its own clock, it appends "election token time" lines to a
// journal.
func roleContend(args []string) error {
	path, journal := args[0], args[1]
	out, err := os.OpenFile(journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	s, err := Open(ctx, path, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("contends")
	errs := make(chan error, contended)
	for i := range contended {
		go func() {
			var err error
			for err == nil && ctx.Err() == nil {
				err = lead(ctx, s, fmt.Sprint("election-", i), out)
			}
			errs <- err
		}()
	}
	for range contended {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// lead tries to acquire once, and leads for a random number of renewals.
func lead(ctx context.Context, s *Store, name string, out *os.File) error {
	const ttl = TTLMin
	r, err := hostClock()
	if err != nil {
		return err
	}
	l, err := s.Acquire(ctx, claim(name, ttl))
	if errors.Is(err, store.ErrHeld) || errors.Is(err, store.ErrBusy) || ctx.Err() != nil {
		time.Sleep(rand.N(20 * time.Millisecond))
		return nil
	}
	if err != nil {
		return err
	}
	until := r.now.Mono + ttl
	for range rand.N(20) {
		r, err := hostClock()
		if err != nil {
			return err
		}
		if r.now.Mono >= until {
			return nil
		}
		if _, err := fmt.Fprintf(out, "%s %d %d\n", name, l.Token, int64(r.now.Mono)); err != nil {
			return err
		}
		time.Sleep(rand.N(10 * time.Millisecond))
		next, err := s.Renew(ctx, l, attempt())
		if err == nil {
			l, until = next, r.now.Mono+ttl
		} else if store.OutcomeUnknown(err) || !errors.Is(err, store.ErrBusy) {
			if errors.Is(err, store.ErrExpired) || errors.Is(err, store.ErrSuperseded) || ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	if rand.N(10) == 0 {
		return nil // forgets to release
	}
	if err := s.Release(ctx, l, ""); err != nil && !errors.Is(err, store.ErrSuperseded) && !errors.Is(err, store.ErrBusy) && ctx.Err() == nil {
		return err
	}
	return nil
}

// roleWrite leads an election and writes behind the fence: a line "write" makes
// it write once more under the term it began with.
func roleWrite(args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, args[0], nil)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.Acquire(ctx, claim("invoices", TTLMin))
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", args[1])
	if err != nil {
		return err
	}
	defer db.Close()
	f := NewFence(db)
	stamp := fence.Stamp{Resource: "invoices", Token: l.Token, TermID: string(l.TermID)}
	if err := f.Enter(ctx, stamp); err != nil {
		return err
	}
	fmt.Println("entered", l.Token)
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		_, err := f.Do(ctx, stamp, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "insert into written values ('invoices', ?)", strconv.FormatInt(int64(l.Token), 10))
			return err
		})
		fmt.Println("write:", kindOfError(err))
	}
	return nil
}

// roleWait watches an election and tells when it hears of a vacancy, by the
// host's clock.
func roleWait(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := Open(ctx, args[0], nil)
	if err != nil {
		return err
	}
	defer s.Close()
	hints, err := s.Watch(ctx, args[1])
	if err != nil {
		return err
	}
	fmt.Println("watches")
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		cancel()
	}()
	for h := range hints {
		r, err := hostClock()
		if err != nil {
			return err
		}
		fmt.Println(h.Kind, int64(r.now.Mono))
	}
	return nil
}

// roleChurn acquires and releases an election each time it is told to, and tells
// when the release was done.
func roleChurn(args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, args[0], nil)
	if err != nil {
		return err
	}
	defer s.Close()
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		l, err := s.Acquire(ctx, claim(args[1], time.Minute))
		if err != nil {
			return err
		}
		if err := s.Release(ctx, l, ""); err != nil {
			return err
		}
		r, err := hostClock()
		if err != nil {
			return err
		}
		fmt.Println(int64(r.now.Mono))
	}
	return nil
}

// roleRemaining tells how long a lease still stands.
func roleRemaining(args []string) error {
	s, err := Open(context.Background(), args[0], nil)
	if err != nil {
		return err
	}
	defer s.Close()
	rec, err := s.Get(context.Background(), args[1])
	if err != nil {
		return err
	}
	fmt.Println(rec.Remaining)
	return nil
}
