package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenurepg"
	"github.com/tenure-go/tenure/tests/servers"
)

// TestFenceRule holds the functions in the database to package fence: whatever is
// sent in whatever order, both accept and refuse the same, for the same reason, and
// then remember the same.
//
// They differ in one thing, on purpose: a write does not raise the number of
// renewals, only entering does. So the reference forgets it, too.
func TestFenceRule(t *testing.T) {
	d := schema(t)
	c := servers.Connect(t, d.URL())
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		reference := ruleModel{lanes: map[string]fence.LaneMark{}}
		resource := fmt.Sprint("r", run)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			s := drawStamp(rt, resource)
			if m := reference.mark; m.Token > 0 && rapid.Bool().Draw(rt, "of the term that was seen") {
				s.Token, s.TermID = m.Token, m.TermID
				s.Renewal = m.Renewal + int64(rapid.IntRange(-3, 1).Draw(rt, "renewals later"))
			}
			enter := rapid.IntRange(0, 3).Draw(rt, "enter") == 0
			before := reference

			wantReplayed, want := reference.apply(s, enter)
			gotReplayed, got := onServer(t, c, s, enter, rapid.IntRange(0, 1).Draw(rt, "way"))
			if gotReplayed != wantReplayed || !sameRefusal(got, want) {
				rt.Fatalf("%+v, enter %v, after %+v\n got %v, %#v\nwant %v, %#v", s, enter, before, gotReplayed, got, wantReplayed, want)
			}
			if have := remembered(t, c, resource); have != reference.mark {
				rt.Fatalf("after %+v, enter %v: got %+v, want %+v", s, enter, have, reference.mark)
			}
			for lane, want := range reference.lanes {
				have, err := tenurepg.Last(t.Context(), c, resource, lane)
				if err != nil || have != want {
					rt.Fatalf("after %+v: lane %q: got %+v, %v, want %+v", s, lane, have, err, want)
				}
			}
		}
	})
}

// ruleModel is what a resource remembers, by package fence.
type ruleModel struct {
	mark  fence.Mark
	lanes map[string]fence.LaneMark
}

func (m *ruleModel) apply(s fence.Stamp, enter bool) (replayed bool, err error) {
	next, lane := m.mark, m.lanes[s.Lane]
	switch {
	case enter:
		next, err = m.mark.Check(s)
	case s.Chained():
		next, lane, replayed, err = fence.CheckChain(m.mark, lane, s)
	default:
		next, err = m.mark.Check(s)
	}
	if err != nil {
		return false, err
	}
	if !enter && next.Token == m.mark.Token && next.TermID == m.mark.TermID {
		next.Renewal = m.mark.Renewal
	}
	m.mark = next
	if s.Chained() && !enter {
		m.lanes[s.Lane] = lane
	}
	return replayed, nil
}

// drawStamp draws a stamp in a small space, where collisions of every kind are
// common, and now and then one that is malformed.
func drawStamp(rt *rapid.T, resource string) fence.Stamp {
	s := fence.Stamp{
		Resource: resource,
		Token:    fence.Token(rapid.IntRange(1, 4).Draw(rt, "token")),
		TermID:   rapid.SampledFrom([]string{"", "a", "b", "a "}).Draw(rt, "term"),
		Renewal:  int64(rapid.IntRange(0, 5).Draw(rt, "renewal")),
	}
	if rapid.Bool().Draw(rt, "chained") {
		s.Lane = rapid.SampledFrom([]string{"", "x", "X", "it's \\ $1 é"}).Draw(rt, "lane")
		s.Position = int64(rapid.IntRange(1, 4).Draw(rt, "position"))
		s.Digest = rapid.SampledFrom([]string{"d", "e", "D"}).Draw(rt, "digest")
	}
	switch rapid.IntRange(0, 40).Draw(rt, "fault") {
	case 0:
		s.Token = rapid.SampledFrom([]fence.Token{0, -1, fence.MaxToken + 1}).Draw(rt, "bad token")
	case 1:
		s.Renewal = -1
	case 2:
		s.TermID = rapid.SampledFrom([]string{strings.Repeat("t", 65), strings.Repeat("é", 33), "\u0085", "\t"}).Draw(rt, "bad term")
	case 3:
		s.Position, s.Digest, s.Lane = -1, "d", ""
	case 4:
		if s.Chained() {
			s.Digest = rapid.SampledFrom([]string{"", strings.Repeat("d", 129), "\x7f"}).Draw(rt, "bad digest")
		}
	}
	return s
}

// onServer sends a stamp as it is, past the checks of the Go helpers. A write is
// sent by itself, so that the transaction ends with it.
func onServer(t *testing.T, c *pgx.Conn, s fence.Stamp, enter bool, way int) (replayed bool, err error) {
	ctx := t.Context()
	switch {
	case enter && s.Chained() && s.Validate() != nil:
		return false, s.Validate() // entering takes no position, so only Go can see what is wrong with it
	case enter:
		_, err = c.Exec(ctx, "select tenure.enter($1, $2, $3, $4)", s.Resource, int64(s.Token), s.TermID, s.Renewal)
	case s.Chained() && way == 0:
		err = c.QueryRow(ctx, "select tenure.fence_chain_replayed($1, $2, $3, $4, $5, $6, $7)",
			s.Resource, s.Lane, int64(s.Token), s.Position, s.Digest, s.TermID, s.Renewal).Scan(&replayed)
	case s.Chained():
		replayed, err = chainOnServer(ctx, c, s)
	default:
		_, err = c.Exec(ctx, "select tenure.fence($1, $2, $3, $4)", s.Resource, int64(s.Token), s.TermID, s.Renewal)
	}
	return replayed, tenurepg.FenceError(s, err)
}

// chainOnServer sends a chained write, and what a replay keeps by entering, since
// its transaction fails.
func chainOnServer(ctx context.Context, c *pgx.Conn, s fence.Stamp) (bool, error) {
	_, err := c.Exec(ctx, "select tenure.fence_chain($1, $2, $3, $4, $5, $6, $7)",
		s.Resource, s.Lane, int64(s.Token), s.Position, s.Digest, s.TermID, s.Renewal)
	var e interface{ SQLState() string }
	if !errors.As(err, &e) || e.SQLState() != "TN005" {
		return false, err
	}
	var replayed bool
	err = c.QueryRow(ctx, "select tenure.fence_chain_replayed($1, $2, $3, $4, $5, $6, $7)",
		s.Resource, s.Lane, int64(s.Token), s.Position, s.Digest, s.TermID, s.Renewal).Scan(&replayed)
	return replayed, err
}

func remembered(t *testing.T, c *pgx.Conn, resource string) (m fence.Mark) {
	err := c.QueryRow(t.Context(), "select token, term, renewal from tenure.fence_list($1)", resource).Scan(&m.Token, &m.TermID, &m.Renewal)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return m
}

// sameRefusal reports whether two errors tell the same, in every field. The words
// for a malformed stamp are each side's own.
func sameRefusal(got, want error) bool {
	if errors.Is(want, fence.ErrInvalid) {
		return errors.Is(got, fence.ErrInvalid)
	}
	return reflect.DeepEqual(got, want)
}
