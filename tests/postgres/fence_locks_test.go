package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// pool opens a pool that is closed when the test ends.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// written returns a database with the schema and a table to write to.
func written(t testing.TB) *servers.Database {
	t.Helper()
	d := schema(t)
	if err := execer(t, d)(t.Context(), createWritten); err != nil {
		t.Fatal(err)
	}
	return d
}

// insert returns the write of one value behind the fence.
func insert(ctx context.Context, resource, value string) func(tx pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertWritten, resource, value)
		return err
	}
}

// values are what was written to a resource.
func values(t testing.TB, p *pgxpool.Pool, resource string) []string {
	t.Helper()
	rows, err := p.Query(t.Context(), selectWritten, resource)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// waiting waits until n sessions of the database wait for a lock.
func waiting(t testing.TB, p *pgxpool.Pool, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d sessions to wait for a lock", n), func() bool {
		var have int
		err := p.QueryRow(t.Context(), "select count(distinct pid) from pg_locks join pg_stat_activity using (pid) where not granted and datname = current_database()").Scan(&have)
		if err != nil {
			t.Fatal(err)
		}
		return have >= n
	})
}

// until polls for what the server brings about.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

func deadlocks(t testing.TB, p *pgxpool.Pool) (n int) {
	t.Helper()
	// The collector of PostgreSQL 15 is told when a transaction ends.
	if err := p.QueryRow(t.Context(), "select deadlocks from pg_stat_database where datname = current_database()").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Eight workers of a leader that was just elected write at once: the first to come
// raises the mark, and none fails, whether or not the term has entered, and whether
// or not the resource was ever touched.
func TestFenceFirstWritesAtOnce(t *testing.T) {
	const workers, rounds = 8, 10
	for _, iso := range isolations {
		t.Run(string(iso), func(t *testing.T) {
			t.Parallel()
			d := written(t)
			p := pool(t, d.URL("pool_max_conns=16"))
			token := fence.Token(0)
			for round := range rounds {
				for _, entering := range []bool{true, false} {
					// A resource of its own for the odd rounds, one for all of the others.
					token++
					s := fence.Stamp{Resource: "shared", Token: token, TermID: fmt.Sprint("t", token), Renewal: 3}
					if round%2 == 1 {
						s.Resource = fmt.Sprint("r", round, entering)
					}
					f := tenurepg.NewFence(p, &tenurepg.FenceOptions{Isolation: iso})
					errs := make([]error, workers)
					var wg sync.WaitGroup
					for i := range workers {
						wg.Go(func() {
							_, errs[i] = retried(t.Context(), func() (bool, error) {
								if entering {
									return f.Do(t.Context(), s, insert(t.Context(), s.Resource, "v"))
								}
								return false, writeOnly(t.Context(), p, s, iso)
							})
						})
					}
					wg.Wait()
					if err := errors.Join(errs...); err != nil {
						t.Fatalf("round %d, entering %v: %v", round, entering, err)
					}
				}
			}
			if n := deadlocks(t, p); n > 0 {
				t.Errorf("%d deadlocks", n)
			}
			want := rounds / 2 * 2 * workers
			if got := len(values(t, p, "shared")); got != want {
				t.Errorf("%d writes landed, want %d", got, want)
			}
		})
	}
}

// writeOnly writes without entering.
func writeOnly(ctx context.Context, p *pgxpool.Pool, s fence.Stamp, iso pgx.TxIsoLevel) error {
	c, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	tx, _, err := tenurepg.BeginTx(ctx, c.Conn(), s, pgx.TxOptions{IsoLevel: iso})
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if err := insert(ctx, s.Resource, "v")(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// A successor that waits for the open writes of its predecessor is in front of
// every write that comes later, so a stream of overlapping writers cannot keep it
// out; and those later ones are refused.
func TestFenceSuccessorIsNotStarved(t *testing.T) {
	for _, iso := range isolations {
		t.Run(string(iso), func(t *testing.T) {
			t.Parallel()
			d := written(t)
			p := pool(t, d.URL("pool_max_conns=8"))
			a := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
			b := fence.Stamp{Resource: "r", Token: 8, TermID: "b"}
			f := tenurepg.NewFence(p, &tenurepg.FenceOptions{Isolation: iso})
			entered, late := make(chan error, 1), make(chan error, 1)

			_, err := f.Do(t.Context(), a, func(tx pgx.Tx) error {
				go func() { entered <- tenurepg.NewFence(p, nil).Enter(t.Context(), b) }()
				waiting(t, p, 1)
				go func() {
					_, err := f.Do(t.Context(), a, insert(t.Context(), "r", "late"))
					late <- err
				}()
				waiting(t, p, 2)
				select {
				case err := <-entered:
					t.Errorf("the successor was in while a write of its predecessor was open: %v", err)
				case err := <-late:
					t.Errorf("a write got past the successor that waits: %v", err)
				default:
				}
				return insert(t.Context(), "r", "open")(tx)
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-entered; err != nil {
				t.Errorf("entering: %v", err)
			}
			if err := <-late; !errors.Is(err, fence.ErrStale) {
				t.Errorf("the write that came after the successor: want stale, got %v", err)
			}
			if got := values(t, p, "r"); !slices.Equal(got, []string{"open"}) {
				t.Errorf("written: %q", got)
			}
		})
	}
}

// The same with writers that never pause, each transaction overlapping others:
// measured on a fence of row locks alone, a successor waited for eleven seconds.
func TestFenceSuccessorAmongManyWriters(t *testing.T) {
	const writers = 6
	d := written(t)
	p := pool(t, d.URL("pool_max_conns=12"))
	a := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	f := tenurepg.NewFence(p, nil)
	first := make(chan struct{}, writers)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for n := 0; ; n++ {
				_, err := f.Do(t.Context(), a, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), "select pg_sleep(0.02)")
					return errors.Join(err, insert(t.Context(), "r", "a")(tx))
				})
				if n == 0 {
					first <- struct{}{}
				}
				if errors.Is(err, fence.ErrStale) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range writers {
		<-first
	}
	began := time.Now()
	if err := tenurepg.NewFence(p, nil).Enter(t.Context(), fence.Stamp{Resource: "r", Token: 8, TermID: "b"}); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	landed := len(values(t, p, "r"))
	wg.Wait()
	if now := len(values(t, p, "r")); now != landed {
		t.Errorf("%d writes landed after the successor was in", now-landed)
	}
	t.Logf("the successor was in after %v", took)
}

// A transaction that has read before it is checked sees the past above READ
// COMMITTED. The check must see the present.
func TestFenceSeesThePresent(t *testing.T) {
	d := written(t)
	p := pool(t, d.URL("pool_max_conns=8"))
	a := fence.Stamp{Resource: "r", Token: 7, TermID: "a", Renewal: 3}
	later := a
	later.Renewal = 5
	b := fence.Stamp{Resource: "r", Token: 8, TermID: "b"}
	chained := a
	chained.Position, chained.Digest = 1, "d"

	for _, c := range []struct {
		name      string
		before    []fence.Stamp // entered before the transaction
		meanwhile fence.Stamp   // entered while it is open
		s         fence.Stamp   // checked in it then
	}{
		{"a successor", []fence.Stamp{a}, b, a},
		{"a successor, chained", []fence.Stamp{a}, b, chained},
		{"a successor, the resource was untouched", nil, b, a},
		{"two renewals", []fence.Stamp{a}, later, a},
		{"another term owns the token", []fence.Stamp{{Resource: "r", Token: 7}}, fence.Stamp{Resource: "r", Token: 7, TermID: "x"}, a},
	} {
		for _, iso := range isolations {
			t.Run(c.name+"/"+string(iso), func(t *testing.T) {
				t.Parallel()
				in := func(s fence.Stamp) fence.Stamp {
					s.Resource = t.Name()
					return s
				}
				f := tenurepg.NewFence(p, nil)
				for _, s := range c.before {
					if err := f.Enter(t.Context(), in(s)); err != nil {
						t.Fatal(err)
					}
				}
				tx, err := p.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: iso})
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(t.Context())
				var n int
				if err := tx.QueryRow(t.Context(), "select count(*) from written").Scan(&n); err != nil {
					t.Fatal(err)
				}
				if err := f.Enter(t.Context(), in(c.meanwhile)); err != nil {
					t.Fatal(err)
				}
				_, err = tenurepg.Check(t.Context(), tx, in(c.s))
				if iso == pgx.ReadCommitted && !fence.Refused(err) {
					t.Errorf("want a refusal, got %v", err)
				}
				if !fence.Refused(err) && !(errors.Is(err, store.ErrBusy) && !store.OutcomeUnknown(err)) {
					t.Errorf("want a refusal, or a collision after which the transaction is done again, got %v", err)
				}
			})
		}
	}
}

// While a leader's write is open, the leader enters again with a later renewal, and
// its other writers go on: a renewal holds up nobody.
func TestFenceRenewalHoldsUpNobody(t *testing.T) {
	d := written(t)
	p := pool(t, d.URL("pool_max_conns=8"))
	for _, iso := range isolations {
		t.Run(string(iso), func(t *testing.T) {
			f := tenurepg.NewFence(p, &tenurepg.FenceOptions{Isolation: iso})
			s := fence.Stamp{Resource: string(iso), Token: 7, TermID: "a"}
			write := func() error {
				_, err := f.Do(t.Context(), s, insert(t.Context(), s.Resource, "v"))
				return err
			}
			if err := write(); err != nil {
				t.Fatal(err)
			}
			_, err := f.Do(t.Context(), s, func(tx pgx.Tx) error {
				s.Renewal++
				return errors.Join(write(), write(), insert(t.Context(), s.Resource, "long")(tx))
			})
			if err != nil {
				t.Fatal(err)
			}
			s.Renewal++
			if err := write(); err != nil {
				t.Fatal(err)
			}
			s.Renewal -= 2
			if err := write(); !errors.Is(err, fence.ErrStale) {
				t.Errorf("two renewals ago: want stale, got %v", err)
			}
		})
	}
}

// A check waits no longer than it was told to, and what it set for its waits it
// puts back.
func TestFenceWaitsAreBounded(t *testing.T) {
	d := written(t)
	p := pool(t, d.URL("pool_max_conns=8"))
	f := tenurepg.NewFence(p, nil)
	a := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	_, err := f.Do(t.Context(), a, func(tx pgx.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := f.Enter(ctx, fence.Stamp{Resource: "r", Token: 8, TermID: "b"})
		if !errors.Is(err, store.ErrBusy) || fence.Refused(err) {
			t.Errorf("entering beside an open write: want busy, got %v", err)
		}
		if ctx.Err() != nil {
			t.Errorf("the server did not answer before the caller's patience ended: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	c := servers.Connect(t, d.URL())
	ask := func(setting string) (v string) {
		if err := c.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, now := range []struct{ lock, idle, tcp, fenceIdle, wantIdle, wantTCP string }{
		{"0", "0", "0", "", "10s", "10000"},
		{"3s", "1min", "60000", "", "10s", "10000"},
		{"3s", "7s", "6000", "", "7s", "6000"},
		{"1h", "0", "0", "1500ms", "1500ms", "1500"},
		{"0", "0", "0", "2500", "2500ms", "2500"},
		{"0", "1min", "0", "0", "1min", "0"},
	} {
		for setting, v := range map[string]string{
			"lock_timeout": now.lock, "idle_in_transaction_session_timeout": now.idle, "tcp_user_timeout": now.tcp, "tenure.fence_idle": now.fenceIdle,
		} {
			if _, err := c.Exec(t.Context(), "select set_config($1, $2, false)", setting, v); err != nil {
				t.Fatal(err)
			}
		}
		chained := a
		chained.Position, chained.Digest = 1, "d"
		for _, s := range []fence.Stamp{a, chained} {
			tx, _, err := tenurepg.BeginTx(t.Context(), c, s, pgx.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if lock, idle, tcp := ask("lock_timeout"), ask("idle_in_transaction_session_timeout"), ask("tcp_user_timeout"); lock != now.lock || idle != now.wantIdle || tcp != now.wantTCP {
				t.Errorf("%+v, %+v: in the transaction lock_timeout is %s, the idle one %s, the one of TCP %s", now, s, lock, idle, tcp)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if idle, tcp := ask("idle_in_transaction_session_timeout"), ask("tcp_user_timeout"); idle != now.idle || tcp != now.tcp {
				t.Errorf("%+v: after the transaction the idle time-out is %s, the one of TCP %s", now, idle, tcp)
			}
		}
	}
}
