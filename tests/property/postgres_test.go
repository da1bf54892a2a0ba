package property

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// TestPostgresIsLinearizable: while replies are lost and connections cut at random,
// through a pooler, and while the server is killed and started again, all histories
// are those of one election.
func TestPostgresIsLinearizable(t *testing.T) {
	s := servers.OwnPostgres(t, &servers.Options{Durable: true})
	for i, how := range []string{"cut", "cut", "pooled", "killed"} {
		seed := uint64(i)
		d := s.NewDatabase(t)
		if _, err := tenurepg.Migrate(t.Context(), servers.Connect(t, d.URL())); err != nil {
			t.Fatal(err)
		}
		url := d.URL()
		if how == "pooled" {
			url = servers.Bouncer(t, d, 2).URL()
		}
		var stores []store.Store
		for range 4 {
			st, err := tenurepg.Open(t.Context(), url, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			stores = append(stores, st)
		}
		ended, cut := make(chan struct{}), make(chan int)
		go func() {
			if how != "cut" {
				<-ended
				cut <- 1
				return
			}
			cut <- cutConnections(d.URL(), ended)
		}()
		var (
			verdict porcupine.CheckResult
			ops     []porcupine.Operation
			done    = make(chan struct{})
		)
		go func() {
			defer close(done)
			verdict, ops = run(t, seed, func() store.Store {
				st := stores[0]
				stores = stores[1:]
				if how == "killed" {
					return patient{st}
				}
				return st
			})
		}()
		if how == "killed" {
			s.Kill(t)
			s.Start(t)
		}
		<-done
		close(ended)
		if n := <-cut; n == 0 {
			t.Errorf("seed %d: nothing was cut", seed)
		}
		if verdict != porcupine.Ok {
			t.Fatalf("seed %d: %s\n%s", seed, verdict, describe(ops))
		}
	}
}

// patient asks a store only when there is a server again: a server that is killed
// must not end the history.
type patient struct{ store.Store }

func (p patient) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	p.wait(ctx, c.Name)
	return p.Store.Acquire(ctx, c)
}

func (p patient) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	p.wait(ctx, l.Name)
	return p.Store.Renew(ctx, l, a)
}

func (p patient) Release(ctx context.Context, l store.Lease, a store.Attempt) error {
	p.wait(ctx, l.Name)
	return p.Store.Release(ctx, l, a)
}

func (p patient) wait(ctx context.Context, name string) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if _, err := p.Get(ctx, name); !errors.Is(err, store.ErrUnreachable) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// cutConnections ends a session of a store now and then, and returns how many.
func cutConnections(url string, ended <-chan struct{}) (n int) {
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	var c *pgx.Conn
	for {
		select {
		case <-ended:
			if c != nil {
				_ = c.Close(context.Background())
			}
			return n
		case <-tick.C:
		}
		if c == nil || c.IsClosed() {
			c, _ = pgx.Connect(context.Background(), url)
			continue
		}
		tag, err := c.Exec(context.Background(), `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' order by random() limit 1`)
		if err == nil {
			n += int(tag.RowsAffected())
		}
	}
}
