package postgres

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// TestRuleInSQL holds the functions on the server to package row: whatever is
// asked, in whatever order, both answer the same, in the same words, and keep the
// same row and the same history. The server's clock is one that the test sets.
func TestRuleInSQL(t *testing.T) {
	d := schema(t)
	c := servers.Connect(t, d.URL())
	for _, sql := range []string{
		"create table public.clock (at timestamptz not null)",
		"insert into public.clock values ('2024-03-31 00:59:59.5Z')", // half a second before a change to summer time
		"create or replace function tenure.clock() returns timestamptz language sql volatile as 'select at from public.clock'",
	} {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, d.URL(), nil)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &rule{t: rt, s: s, c: c, name: fmt.Sprintf("run %d", run)}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			m.step()
		}
	})
}

// rule compares a store with package row, on one election.
type rule struct {
	t    *rapid.T
	s    *tenurepg.Store
	c    *pgx.Conn
	name string

	row     row.Row
	history []store.Entry
	leases  []store.Lease // all that were handed out
}

func (m *rule) now() row.Now {
	var at time.Time
	if err := m.c.QueryRow(m.t.Context(), "select at from public.clock").Scan(&at); err != nil {
		m.t.Fatal(err)
	}
	return row.Now{Mono: time.Duration(at.UnixMicro()) * time.Microsecond, Wall: at}
}

func (m *rule) attempt(label string) store.Attempt {
	return store.Attempt(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(m.t, label))
}

// lease draws one that was handed out, or something near it.
func (m *rule) lease() store.Lease {
	l := store.Lease{Name: m.name, TermID: "a", Token: 1, Receipt: "0.a"}
	if len(m.leases) > 0 {
		// The newest ones most of the time.
		i := len(m.leases) - 1 - min(rapid.IntRange(0, 8).Draw(m.t, "age")/2, len(m.leases)-1)
		l = m.leases[i]
	}
	switch rapid.IntRange(0, 11).Draw(m.t, "change") {
	case 0:
		l.Receipt = ""
	case 1:
		l.TermID = m.attempt("term")
	case 2:
		l.Token++
	case 3:
		l.Receipt = store.Receipt(fmt.Sprintf("%d.%s", l.Renewal, m.attempt("receipt")))
	}
	return l
}

func (m *rule) step() {
	switch rapid.IntRange(0, 9).Draw(m.t, "what") {
	case 0, 1:
		c := store.Claim{
			Name: m.name, Holder: rapid.SampledFrom([]string{"h1", "h2"}).Draw(m.t, "holder"), Attempt: m.attempt("attempt"),
			TTL:        time.Second + time.Duration(rapid.IntRange(0, 2000).Draw(m.t, "ns"))*time.Nanosecond,
			Meta:       rapid.SampledFrom([]string{"", "m", "two\nlines, \"quoted\" and \\"}).Draw(m.t, "meta"),
			FencedOnly: rapid.Bool().Draw(m.t, "fenced"),
			Floor:      rapid.SampledFrom([]fence.Token{0, 0, 0, 0, 7, fence.MaxToken - 2}).Draw(m.t, "floor"),
		}
		m.compare(func(r row.Row, now row.Now) (row.Row, any, error) {
			next, l, err := row.Acquire(r, c, (c.TTL + time.Microsecond - 1).Truncate(time.Microsecond), now)
			return next, l, err
		}, func() (any, error) {
			l, err := m.s.Acquire(m.t.Context(), c)
			m.keep(l, err)
			return l, err
		})
	case 2, 3, 4, 5:
		l, a := m.lease(), m.attempt("attempt")
		m.compare(func(r row.Row, now row.Now) (row.Row, any, error) {
			next, l, err := row.Renew(r, l, a, now)
			return next, l, err
		}, func() (any, error) {
			var renewed store.Renewed
			if rapid.Bool().Draw(m.t, "batch") {
				renewed = m.s.RenewBatch(m.t.Context(), []store.Renewal{{Lease: l, Attempt: a}})[0]
			} else {
				renewed.Lease, renewed.Err = m.s.Renew(m.t.Context(), l, a)
			}
			m.keep(renewed.Lease, renewed.Err)
			return renewed.Lease, renewed.Err
		})
	case 6:
		l, pending := m.lease(), store.Attempt("")
		if rapid.Bool().Draw(m.t, "pending") {
			pending = m.attempt("pending attempt")
		}
		m.compare(func(r row.Row, now row.Now) (row.Row, any, error) {
			next, err := row.Release(r, l, pending, now)
			return next, nil, err
		}, func() (any, error) { return nil, m.s.Release(m.t.Context(), l, pending) })
	case 7:
		a := m.attempt("attempt")
		m.compare(func(r row.Row, now row.Now) (row.Row, any, error) {
			next, err := row.Abandon(r, a, now)
			return next, nil, err
		}, func() (any, error) { return nil, m.s.Abandon(m.t.Context(), m.name, a) })
	case 8:
		e := store.Eviction{Name: m.name, Reason: rapid.SampledFrom([]string{"r1", "r2"}).Draw(m.t, "reason"), Now: rapid.Bool().Draw(m.t, "at once")}
		if rapid.Bool().Draw(m.t, "a term") {
			e.TermID = m.attempt("term")
		}
		m.compare(func(r row.Row, now row.Now) (row.Row, any, error) {
			next, err := row.Evict(r, e, now)
			if err != nil {
				return next, store.Record{}, err
			}
			rec, err := next.Record(now)
			return next, inUTC(rec), err
		}, func() (any, error) {
			rec, err := m.s.Evict(m.t.Context(), e)
			return inUTC(rec), err
		})
	case 9:
		us := rapid.SampledFrom([]int{1, 1000, 400_000, 999_999, 1_000_000, 1_000_001, 3_600_000_000}).Draw(m.t, "passes")
		if _, err := m.c.Exec(m.t.Context(), "update public.clock set at = at + $1 * interval '1 microsecond'", us); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *rule) keep(l store.Lease, err error) {
	if err == nil {
		m.leases = append(m.leases, l)
	}
}

func (m *rule) compare(model func(row.Row, row.Now) (row.Row, any, error), real func() (any, error)) {
	now := m.now()
	next, want, wantErr := model(m.row, now)
	got, gotErr := real()
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
		m.t.Fatalf("got  %+v, %v\nwant %+v, %v\non %+v", got, gotErr, want, wantErr, m.row)
	}
	if wantErr != nil {
		for _, kind := range []error{store.ErrHeld, store.ErrSpent, store.ErrCloned, store.ErrReceipt, store.ErrEvicted, store.ErrSuperseded, store.ErrExpired, store.ErrReleased} {
			if errors.Is(gotErr, kind) != errors.Is(wantErr, kind) {
				m.t.Fatalf("got an error %v, want %v", gotErr, wantErr)
			}
		}
	}
	m.history = append(m.history, row.History(m.row, next, now)...)
	m.row = next
	if kept := m.kept(); !reflect.DeepEqual(kept, plain(next)) {
		m.t.Fatalf("after %v\nthe server keeps %+v\nwant             %+v", gotErr, kept, plain(next))
	}
	m.compareHistory()
}

// compareHistory leaves out what package row does not write: refusals, and where a
// grant came from.
func (m *rule) compareHistory() {
	entries, err := m.s.History(m.t.Context(), m.name, 1000)
	if err != nil {
		m.t.Fatal(err)
	}
	slices.Reverse(entries)
	line := func(e store.Entry) string {
		if e.What == "granted" {
			e.Detail = ""
		}
		return fmt.Sprintf("%d %s %d %s %s %s", e.At.UnixMicro(), e.What, e.Token, e.TermID, e.Holder, e.Detail)
	}
	var got, want []string
	for _, e := range entries {
		if e.What != "refused" {
			got = append(got, line(e))
		}
	}
	for _, e := range m.history {
		want = append(want, line(e))
	}
	if !slices.Equal(got, want) {
		m.t.Fatalf("the history says\n%q\nwant\n%q", got, want)
	}
}

// kept reads the row as it lies in the table.
func (m *rule) kept() row.Row {
	var (
		r        row.Row
		ttl, exp int64
		burns    []struct {
			Term, Receipt, First, Second string
			Token, At                    int64
		}
	)
	err := m.c.QueryRow(m.t.Context(), `select format, name, token, term_id, holder, meta, tenure.us(ttl), tenure.us(expires_at), receipt, renewal, used, used_by,
		released, evicted, fenced_only, acquired_at, renewed_at, burns from tenure.lease where name = $1`, m.name).Scan(
		&r.Format, &r.Name, &r.Token, &r.TermID, &r.Holder, &r.Meta, &ttl, &exp, &r.Receipt, &r.Renewal, &r.Used, &r.UsedBy,
		&r.Released, &r.Evicted, &r.FencedOnly, &r.AcquiredAt, &r.RenewedAt, &burns)
	if errors.Is(err, pgx.ErrNoRows) {
		return row.Row{}
	}
	if err != nil {
		m.t.Fatal(err)
	}
	r.TTL, r.Expires = time.Duration(ttl)*time.Microsecond, time.Duration(exp)*time.Microsecond
	for _, b := range burns {
		r.Burns = append(r.Burns, store.Burn{
			TermID: store.Attempt(b.Term), Token: fence.Token(b.Token), Receipt: store.Receipt(b.Receipt),
			First: store.Attempt(b.First), Second: store.Attempt(b.Second), At: time.UnixMicro(b.At),
		})
	}
	return plain(r)
}

// plain shows times as instants, so that rows can be compared.
func plain(r row.Row) row.Row {
	r.AcquiredAt, r.RenewedAt = r.AcquiredAt.UTC(), r.RenewedAt.UTC()
	r.Burns = burnsInUTC(r.Burns)
	return r
}

func inUTC(rec store.Record) store.Record {
	rec.AcquiredAt, rec.RenewedAt = rec.AcquiredAt.UTC(), rec.RenewedAt.UTC()
	rec.Burns = burnsInUTC(rec.Burns)
	return rec
}

func burnsInUTC(burns []store.Burn) []store.Burn {
	var all []store.Burn
	for _, b := range burns {
		b.At = b.At.UTC()
		all = append(all, b)
	}
	return all
}
