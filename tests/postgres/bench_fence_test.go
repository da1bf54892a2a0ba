package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// BenchmarkFence measures small transactions of 8 connections on a server that
// writes to its disk: one row each. The fenced and the plain ones take turns of a
// quarter of a second, so that both see the same machine, and each is compared with
// a plain transaction of as many round trips:
//
//	begin    the check goes with BEGIN, against BEGIN, insert, COMMIT
//	statement  it is a statement of its own, against BEGIN, insert, COMMIT
//	select   it is a statement of its own, against BEGIN, select, insert, COMMIT
//	chained  the chained check goes with BEGIN, a lane for each connection
func BenchmarkFence(b *testing.B) {
	const connections = 8
	s := servers.OwnPostgres(b, &servers.Options{Durable: true, Settings: map[string]string{"shared_buffers": "64MB", "max_wal_size": "1GB"}})
	migrate(b, &s.Database)
	p := pool(b, s.URL(fmt.Sprint("pool_max_conns=", connections)))
	if _, err := p.Exec(b.Context(), createWritten); err != nil {
		b.Fatal(err)
	}
	f := tenurepg.NewFence(p, nil)
	stamp := fence.Stamp{Resource: "r", Token: 7, TermID: "a", Renewal: 3}
	next := [connections]int64{}

	plain := func(ctx context.Context, first string) error {
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			if first != "" {
				if _, err := tx.Exec(ctx, first); err != nil {
					return err
				}
			}
			return insert(ctx, "r", "v")(tx)
		})
	}
	unfenced := func(ctx context.Context, _ int) error { return plain(ctx, "") }
	unfenced4 := func(ctx context.Context, _ int) error { return plain(ctx, "select 1") }
	withBegin := func(ctx context.Context, _ int) error {
		_, err := f.Do(ctx, stamp, insert(ctx, "r", "v"))
		return err
	}
	chained := func(ctx context.Context, i int) error {
		next[i]++
		s := stamp
		s.Lane, s.Position, s.Digest = fmt.Sprint("lane", i), next[i], fmt.Sprint("w", next[i])
		_, err := f.Do(ctx, s, insert(ctx, "r", "v"))
		return err
	}
	statement := func(ctx context.Context, _ int) error {
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
		{"begin", withBegin, unfenced},
		{"chained", chained, unfenced},
		{"statement", statement, unfenced},
		{"select", statement, unfenced4},
	} {
		b.Run(c.name, func(b *testing.B) {
			var fenced, simple rate
			for b.Loop() {
				simple.add(turn(b, connections, c.simple))
				fenced.add(turn(b, connections, c.fenced))
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

// turn runs transactions on n goroutines for a quarter of a second.
func turn(b *testing.B, n int, do func(ctx context.Context, i int) error) (done int, took time.Duration) {
	b.Helper()
	counts, errs := make(chan int, n), make(chan error, n)
	began := time.Now()
	for i := range n {
		go func() {
			count := 0
			for time.Since(began) < 250*time.Millisecond {
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
