package postgres

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// pair starts a primary with the schema and a replica of it.
func pair(t *testing.T) (primary, replica *servers.Server) {
	t.Helper()
	primary = servers.OwnPostgres(t, nil)
	migrate(t, &primary.Database)
	if err := execer(t, &primary.Database)(t.Context(), createWritten); err != nil {
		t.Fatal(err)
	}
	return primary, servers.Replica(t, primary, nil)
}

// A node that takes no writes may lag: it answers nothing about marks and lanes,
// neither that a stamp is good nor that a write is not there.
func TestS16FenceOnReplica(t *testing.T) {
	primary, replica := pair(t)
	f := tenurepg.NewFence(pool(t, primary.URL()), nil)
	s := fence.Stamp{Resource: "r", Token: 7, TermID: "a", Position: 1, Digest: "d"}
	if _, err := f.Do(t.Context(), s, insert(t.Context(), "r", "v")); err != nil {
		t.Fatal(err)
	}
	replica.CaughtUp(t, primary)

	c := servers.Connect(t, replica.URL())
	plain := s
	plain.Position, plain.Digest = 0, ""
	for what, ask := range map[string]func() error{
		"enter": func() error { return tenurepg.Enter(t.Context(), c, s) },
		"a check": func() error {
			_, _, err := tenurepg.BeginTx(t.Context(), c, plain, pgx.TxOptions{})
			return err
		},
		"a chained check": func() error {
			_, _, err := tenurepg.BeginTx(t.Context(), c, s, pgx.TxOptions{})
			return err
		},
		"last": func() error { _, err := tenurepg.Last(t.Context(), c, "r", ""); return err },
	} {
		if err := ask(); !errors.Is(err, store.ErrReadOnly) || fence.Refused(err) || store.OutcomeUnknown(err) {
			t.Errorf("%s on a replica: want read-only, got %v", what, err)
		}
		if c.IsClosed() { // it is of no use to a writer
			c = servers.Connect(t, replica.URL())
		}
	}
}

// The primary is demoted while the job's pool is connected to it, and another node
// takes over. The job's next write finds the new primary by itself, and the mark is
// there.
func TestB22FencedWriterAfterFailover(t *testing.T) {
	primary, replica := pair(t)
	both := fmt.Sprintf("postgres://test@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write&pool_max_conns=3", primary.Port, replica.Port)
	p := pool(t, both)
	f := tenurepg.NewFence(p, nil)
	s := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
	if _, err := f.Do(t.Context(), s, insert(t.Context(), "r", "1")); err != nil {
		t.Fatal(err)
	}
	replica.CaughtUp(t, primary)

	// The demoted node answers, and keeps its connections.
	demote := servers.Connect(t, primary.URL())
	for _, statement := range []string{"alter system set default_transaction_read_only = on", "select pg_reload_conf()"} {
		if _, err := demote.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	replica.Disconnect(t)
	replica.Promote(t)
	until(t, "the old primary to refuse writes", func() bool {
		_, err := servers.Connect(t, primary.URL()).Exec(t.Context(), "create table no_more()")
		return err != nil
	})

	if _, err := f.Do(t.Context(), s, insert(t.Context(), "r", "2")); err != nil {
		t.Errorf("the write after the failover: %v", err)
	}
	s.Position, s.Digest = 1, "d"
	if _, err := f.Do(t.Context(), s, insert(t.Context(), "r", "3")); err != nil {
		t.Errorf("the chained write after the failover: %v", err)
	}
	if got := values(t, pool(t, replica.URL()), "r"); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("on the new primary is %q", got)
	}
	if got := values(t, pool(t, primary.URL()), "r"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("on the old primary is %q", got)
	}
	if err := f.Enter(t.Context(), fence.Stamp{Resource: "r", Token: 6, TermID: "z"}); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a predecessor after the failover: want stale, got %v", err)
	}
}

// An asynchronous failover loses the last grants, so the new primary hands out a
// token again that the old one has handed out. The term ids differ, and the
// resource lets in one of the two, whichever comes first. A claim above the token
// ends the trouble.
func TestFenceAfterLostGrants(t *testing.T) {
	const election = "nightly"
	primary, replica := pair(t)
	resources := servers.OwnPostgres(t, nil)
	migrate(t, &resources.Database)
	if err := execer(t, &resources.Database)(t.Context(), createWritten); err != nil {
		t.Fatal(err)
	}

	acquire := func(s *tenurepg.Store, attempt store.Attempt, floor fence.Token) store.Lease {
		t.Helper()
		l, err := s.Acquire(t.Context(), store.Claim{Name: election, Holder: string(attempt), Attempt: attempt, TTL: time.Minute, Floor: floor})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	before := open(t, primary.URL(), nil)
	first := acquire(before, "first", 0)
	if err := before.Release(t.Context(), first, ""); err != nil {
		t.Fatal(err)
	}
	replica.CaughtUp(t, primary)
	replica.Disconnect(t)
	lost := acquire(before, "lost", 0) // the replica never hears of it
	primary.Kill(t)
	replica.Promote(t)
	after := open(t, replica.URL(), nil)
	again := acquire(after, "again", 0)
	if again.Token != lost.Token || again.TermID == lost.TermID {
		t.Fatalf("the failover was to hand out a token twice, under two term ids: %+v and %+v", lost, again)
	}
	if err := after.Release(t.Context(), again, ""); err != nil {
		t.Fatal(err)
	}
	raised := acquire(after, "raised", again.Token)

	for _, place := range []struct {
		name string
		url  string
	}{{"in another database", resources.URL()}, {"in the database that failed over", replica.URL()}} {
		for i, order := range [][2]store.Lease{{lost, again}, {again, lost}} {
			t.Run(fmt.Sprint(place.name, "/", order[0].TermID, " comes first"), func(t *testing.T) {
				p := pool(t, place.url)
				write := func(l store.Lease) error {
					// Each is a process of its own.
					s := fence.Stamp{Resource: fmt.Sprint("r", i), Token: l.Token, TermID: string(l.TermID), Renewal: l.Renewal}
					_, err := tenurepg.NewFence(p, nil).Do(t.Context(), s, insert(t.Context(), s.Resource, string(l.TermID)))
					return err
				}
				if err := write(order[0]); err != nil {
					t.Fatal(err)
				}
				if err := write(order[1]); !errors.Is(err, fence.ErrForked) {
					t.Errorf("the second holder of the token: want forked, got %v", err)
				}
				if err := write(order[0]); err != nil {
					t.Errorf("the first holder, again: %v", err)
				}
				if err := write(raised); err != nil {
					t.Errorf("a leader above both: %v", err)
				}
				for _, l := range order {
					if err := write(l); !errors.Is(err, fence.ErrStale) {
						t.Errorf("%s, after that: want stale, got %v", l.TermID, err)
					}
				}
				want := []string{string(order[0].TermID), string(order[0].TermID), string(raised.TermID)}
				if got := values(t, p, fmt.Sprint("r", i)); !slices.Equal(got, want) {
					t.Errorf("written %q, want %q", got, want)
				}
			})
		}
	}
}
