package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// Each role has the rights that the documents name, and what it is for works; all
// else is refused, by a word that says so.
func TestGrants(t *testing.T) {
	d := written(t)
	admin := servers.Connect(t, d.URL())
	grants := map[string]string{"elect": "grant_elect", "write": "grant_fence", "look": "grant_look", "repair": "grant_repair"}
	urls := map[string]string{}
	for what, function := range grants {
		name := role(t, d, what)
		urls[what] = d.URL("user=" + name)
		if _, err := admin.Exec(t.Context(), "select tenure."+function+"($1)", name); err != nil {
			t.Fatal(err)
		}
		if what == "write" {
			if _, err := admin.Exec(t.Context(), "grant insert on written to "+name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tenurepg.NewFence(pool(t, d.URL()), nil).Enter(t.Context(), fence.Stamp{Resource: "r", Token: 3}); err != nil {
		t.Fatal(err)
	}
	// A term that stands, for those who look and those who meddle.
	owner := open(t, d.URL(), nil)
	held, err := owner.Acquire(t.Context(), store.Claim{Name: "held", Holder: "h", Attempt: "held", TTL: tenure.DefaultTTL})
	if err != nil {
		t.Fatal(err)
	}

	works := map[string]func(ctx context.Context, url string) error{
		"elect": func(ctx context.Context, url string) error {
			s, err := tenurepg.Open(ctx, url, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			// An elector goes on trying when it is denied: rights can be given meanwhile.
			l, err := s.Acquire(ctx, store.Claim{Name: "asked", Holder: "h", Attempt: "asked", TTL: tenure.DefaultTTL})
			if err != nil {
				return err
			}
			if err := s.Release(ctx, l, ""); err != nil {
				return err
			}
			e, err := tenure.NewElector(s, "led", nil)
			if err != nil {
				return err
			}
			return e.RunOnce(ctx, func(ctx context.Context, term *tenure.Term) error {
				if err := term.Confirm(ctx); err != nil {
					return err
				}
				_, err := e.Leader(ctx)
				return err
			})
		},
		"look": func(ctx context.Context, url string) error {
			s, err := tenurepg.Open(ctx, url, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			_, err = s.Get(ctx, "held")
			if err != nil {
				return err
			}
			for _, err := range s.List(ctx) {
				if err != nil {
					return err
				}
			}
			past, err := s.History(ctx, "held", 10)
			if err == nil && len(past) == 0 {
				err = errors.New("the history is empty")
			}
			return err
		},
		"write": func(ctx context.Context, url string) error {
			f := tenurepg.NewFence(pool(t, url), nil)
			s := fence.Stamp{Resource: "r", Token: 7, TermID: "a"}
			if err := f.Enter(ctx, s); err != nil {
				return err
			}
			put := func(tx pgx.Tx) error { return insert(ctx, "r", "v")(tx) }
			if _, err := f.Do(ctx, s, put); err != nil {
				return err
			}
			s.Position, s.Digest = 1, "d"
			if _, err := f.Do(ctx, s, put); err != nil {
				return err
			}
			_, err := f.Last(ctx, "r", "")
			return err
		},
		"repair": func(ctx context.Context, url string) error {
			f := tenurepg.NewFence(pool(t, url), nil)
			marks, err := f.List(ctx, "r")
			if err != nil {
				return err
			}
			if _, err := f.Lower(ctx, "r", marks[0].Token-1, "to see whether it may"); err != nil {
				return err
			}
			_, err = servers.Connect(t, url).Exec(ctx, "select * from tenure.audit")
			return err
		},
	}
	// What one role is for another may not do, but for looking, which electors may.
	for role, url := range urls {
		for work, do := range works {
			err := do(t.Context(), url)
			allowed := role == work || role == "elect" && work == "look"
			if allowed && err != nil {
				t.Errorf("%s: the role that may %s cannot: %v", work, role, err)
			}
			if !allowed && !errors.Is(err, store.ErrDenied) {
				t.Errorf("%s: the role that may %s: want denied, got %v", work, role, err)
			}
		}
		c := servers.Connect(t, url)
		for _, statement := range []string{
			"update tenure.lease set token = 1", "delete from tenure.lease", "insert into tenure.lease (name) values ('x')",
			"delete from tenure.history", "update tenure.setting set history_max = 1",
			"update tenure.fence_mark set token = 1", "delete from tenure.fence_lane", "delete from tenure.audit",
			"select tenure.grant_fence('public')", "create table tenure.mine()", "select tenure.evict('held', '', '', true, true, 1)",
		} {
			_, err := c.Exec(t.Context(), statement)
			var e interface{ SQLState() string }
			if !errors.As(err, &e) || e.SQLState() != "42501" {
				t.Errorf("%s: the role that may %s: want 42501, got %v", statement, role, err)
			}
		}
	}
	if rec, err := owner.Get(t.Context(), "held"); err != nil || rec.TermID != held.TermID {
		t.Errorf("the term that stood: %+v, %v", rec, err)
	}
}
