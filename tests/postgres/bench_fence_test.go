package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// BenchmarkFence measures small transactions of 8 connections on a server that
// writes to its disk: one row each. The fenced and the plain ones take short turns,
// so that both see the same machine, and each is compared with a plain transaction
// of as many round trips:
//
//	begin    the check goes with BEGIN; BEGIN, insert, COMMIT
//	role     the same, for a role with the time-outs that the check sets otherwise
//	chained  the chained check goes with BEGIN, a lane for each connection
//	within   the check is in the statement that writes; one statement, no BEGIN
//	own      the check is a statement of its own; BEGIN, select, insert, COMMIT
//	none     two times the plain one, to see what the figures are worth
func BenchmarkFence(b *testing.B) {
	const connections = 8
	s := servers.OwnPostgres(b, &servers.Options{Durable: true, Settings: map[string]string{"shared_buffers": "64MB", "max_wal_size": "1GB"}})
	migrate(b, &s.Database)
	admin := servers.Connect(b, s.URL())
	for _, statement := range []string{
		createWritten, "create role tuned login superuser",
		"alter role tuned set idle_in_transaction_session_timeout = '10s'", "alter role tuned set tcp_user_timeout = '10s'",
	} {
		if _, err := admin.Exec(b.Context(), statement); err != nil {
			b.Fatal(err)
		}
	}
	size := fmt.Sprint("pool_max_conns=", connections)
	p, tuned := pool(b, s.URL(size)), pool(b, s.URL(size, "user=tuned"))
	f, fTuned := tenurepg.NewFence(p, nil), tenurepg.NewFence(tuned, nil)
	stamp := fence.Stamp{Resource: "r", Token: 7, TermID: "a", Renewal: 3}
	if err := f.Enter(b.Context(), stamp); err != nil {
		b.Fatal(err)
	}
	next := [connections]int64{}

	plain := func(ctx context.Context, p *pgxpool.Pool, first string) error {
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			if first != "" {
				if _, err := tx.Exec(ctx, first, 1); err != nil {
					return err
				}
			}
			return insert(ctx, "r", "v")(tx)
		})
	}
	three := func(ctx context.Context, _ int) error { return plain(ctx, p, "") }
	threeTuned := func(ctx context.Context, _ int) error { return plain(ctx, tuned, "") }
	four := func(ctx context.Context, _ int) error { return plain(ctx, p, "select $1::int") }
	one := func(ctx context.Context, _ int) error {
		_, err := p.Exec(ctx, insertWritten, "r", "v")
		return err
	}
	begin := func(ctx context.Context, _ int) error {
		_, err := f.Do(ctx, stamp, insert(ctx, "r", "v"))
		return err
	}
	role := func(ctx context.Context, _ int) error {
		_, err := fTuned.Do(ctx, stamp, insert(ctx, "r", "v"))
		return err
	}
	within := func(ctx context.Context, _ int) error {
		_, err := p.Exec(ctx, insertChecked, "r", "v", "r", int64(stamp.Token), stamp.TermID, stamp.Renewal)
		return err
	}
	chained := func(ctx context.Context, i int) error {
		next[i]++
		s := stamp
		s.Lane, s.Position, s.Digest = fmt.Sprint("lane", i), next[i], fmt.Sprint("w", next[i])
		_, err := f.Do(ctx, s, insert(ctx, "r", "v"))
		return err
	}
	own := func(ctx context.Context, _ int) error {
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			if _, err := tenurepg.Check(ctx, tx, stamp); err != nil {
				return err
			}
			return insert(ctx, "r", "v")(tx)
		})
	}
	for _, c := range []struct {
		name           string
		fenced, simple func(ctx context.Context, i int) error
	}{
		{"begin", begin, three},
		{"role", role, threeTuned},
		{"chained", chained, three},
		{"within", within, one},
		{"own", own, four},
		{"none", three, three},
	} {
		b.Run(c.name, func(b *testing.B) {
			var fenced, simple rate
			for b.Loop() {
				simple.add(turn(b, connections, c.simple))
				fenced.add(turn(b, connections, c.fenced))
				fenced.add(turn(b, connections, c.fenced))
				simple.add(turn(b, connections, c.simple))
			}
			b.ReportMetric(fenced.perSecond(), "fenced/s")
			b.ReportMetric(simple.perSecond(), "plain/s")
			b.ReportMetric(fenced.perSecond()/simple.perSecond(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

type rate struct {
	n    int
	took time.Duration
}

func (r *rate) add(n int, took time.Duration) { r.n += n; r.took += took }

func (r *rate) perSecond() float64 { return float64(r.n) / r.took.Seconds() }

// turnTime is short, so that whatever else the machine does meets both alike.
const turnTime = 40 * time.Millisecond

// turn runs transactions on n goroutines for a while.
func turn(b *testing.B, n int, do func(ctx context.Context, i int) error) (done int, took time.Duration) {
	b.Helper()
	counts, errs := make(chan int, n), make(chan error, n)
	began := time.Now()
	for i := range n {
		go func() {
			count := 0
			for time.Since(began) < turnTime {
				if err := do(b.Context(), i); err != nil {
					errs <- err
					break
				}
				count++
			}
			counts <- count
		}()
	}
	for range n {
		done += <-counts
	}
	took = time.Since(began)
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
	return done, took
}
