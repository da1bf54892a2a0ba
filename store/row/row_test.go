package row_test

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

const ttl = 15 * time.Second

// TestScripts tells stories of one row. A line is a step and, after the arrow,
// what comes of it. A lease that was handed out is named token.renewal, or
// attempt.renewal for its term's attempt; "?" after it gives it a receipt that
// was never handed out, "!" none at all.
func TestScripts(t *testing.T) {
	for name, script := range map[string]string{
		"a term from grant to release": `
			get                      -> tenure: no record
			acquire c1               -> 1.0
			get                      -> live 15s, token 1, renewal 0
			after 5s
			renew 1.0 by r1          -> 1.1
			get                      -> live 15s, token 1, renewal 1
			release 1.1              -> ok
			get                      -> vacant, token 1, renewal 1
			acquire c2               -> 2.0`,

		"whoever is late is told by whom it is held": `
			acquire c1               -> 1.0
			after 4s
			acquire c2               -> held 11s
			after 10.999s
			acquire c2               -> held 1ms
			after 1ms
			get                      -> dead, token 1, renewal 0
			acquire c2               -> 2.0`,

		"a grant is replayed until its first renewal": `
			acquire c1               -> 1.0
			after 5s
			acquire c1               -> 1.0 replayed
			get                      -> live 10s, token 1, renewal 0
			renew 1.0 by r1          -> 1.1
			acquire c1               -> tenure: attempt already spent
			after 20s
			acquire c1               -> tenure: attempt already spent
			acquire c2               -> 2.0`,

		"a released or expired term's attempt is spent": `
			acquire c1               -> 1.0
			release 1.0              -> ok
			acquire c1               -> tenure: attempt already spent
			acquire c2               -> 2.0
			after 15s
			acquire c2               -> tenure: attempt already spent`,

		"a renewal is replayed to its own attempt, and moves nothing": `
			acquire c1               -> 1.0
			renew 1.0 by r1          -> 1.1
			after 5s
			renew 1.0 by r1          -> 1.1 replayed
			get                      -> live 10s, token 1, renewal 1
			renew 1.1 by r2          -> 1.2
			renew 1.0 by r1          -> tenure: receipt is not current
			renew 1.2 by r3          -> 1.3`,

		"an expired renewal is not replayed": `
			acquire c1               -> 1.0
			renew 1.0 by r1          -> 1.1
			after 15s
			renew 1.0 by r1          -> tenure: lease expired
			renew 1.1 by r2          -> tenure: lease expired
			renew 1.0 by r3          -> tenure: lease expired`,

		"a twin burns the term, and its expiry stands": `
			acquire c1               -> 1.0
			renew 1.0 by r1          -> 1.1
			after 5s
			renew 1.0 by r2          -> tenure: term was cloned
			get                      -> live 10s, token 1, renewal 1, burnt 1
			renew 1.1 by r3          -> tenure: term was cloned
			renew 1.0 by r1          -> tenure: term was cloned
			renew 1.0 by r2          -> tenure: term was cloned
			release 1.1              -> tenure: term was cloned
			release 1.0 pending r1   -> tenure: term was cloned
			abandon c1               -> ok
			acquire c1               -> tenure: attempt already spent
			acquire c2               -> held 10s burnt
			acquire c2 fenced        -> held 10s burnt
			get                      -> live 10s, token 1, renewal 1, burnt 1
			after 10s
			acquire c2               -> 2.0
			get                      -> live 15s, token 2, renewal 0, burned before
			renew 1.1 by r4          -> tenure: term was cloned
			release 1.1              -> tenure: term was cloned
			renew 2.0 by r5          -> 2.1`,

		"fenced work goes on at once": `
			acquire c1 fenced        -> 1.0
			renew 1.0 by r1          -> 1.1
			renew 1.0 by r2          -> tenure: term was cloned
			acquire c2               -> held 15s burnt
			acquire c3 fenced        -> 2.0
			acquire c4 fenced        -> held 15s
			renew 1.1 by r3          -> tenure: term was cloned`,

		"nothing is proven by an old or made-up receipt": `
			acquire c1               -> 1.0
			renew 1.0! by r1         -> tenure: receipt is not current
			renew 1.0? by r1         -> tenure: receipt is not current
			renew 1.0 by r1          -> 1.1
			renew 1.1 by r2          -> 1.2
			renew 1.0 by r3          -> tenure: receipt is not current
			renew 1.2? by r3         -> tenure: receipt is not current
			renew 1.2! by r3         -> tenure: receipt is not current
			renew 1.2 by r4          -> 1.3`,

		"a release takes the current receipt, or the consumed one with its attempt": `
			acquire c1               -> 1.0
			renew 1.0 by r1          -> 1.1
			release 1.0              -> tenure: receipt is not current
			release 1.0 pending r2   -> tenure: receipt is not current
			release 1.1?             -> tenure: receipt is not current
			release 1.1!             -> tenure: receipt is not current
			get                      -> live 15s, token 1, renewal 1
			release 1.0 pending r1   -> ok
			release 1.0 pending r1   -> ok
			release 1.1              -> ok
			renew 1.1 by r3          -> tenure: term was released
			renew 1.0 by r1          -> tenure: term was released`,

		"an empty receipt is none, whatever is pending": `
			acquire c1               -> 1.0
			release 1.0!             -> tenure: receipt is not current
			release 1.0! pending r1  -> tenure: receipt is not current
			get                      -> live 15s, token 1, renewal 0`,

		"a renewal that arrives after the release": `
			acquire c1               -> 1.0
			release 1.0 pending r1   -> ok
			renew 1.0 by r1          -> tenure: term was released`,

		"a past holder changes nothing": `
			acquire c1               -> 1.0
			after 15s
			acquire c2               -> 2.0
			renew 1.0 by r1          -> tenure: superseded by another term
			release 1.0              -> tenure: superseded by another term
			abandon c1               -> ok
			get                      -> live 15s, token 2, renewal 0`,

		"abandoning frees a grant that was never renewed": `
			abandon c1               -> ok
			get                      -> tenure: no record
			acquire c1               -> 1.0
			abandon c2               -> ok
			get                      -> live 15s, token 1, renewal 0
			abandon c1               -> ok
			abandon c1               -> ok
			get                      -> vacant, token 1, renewal 0
			acquire c1               -> tenure: attempt already spent
			acquire c2               -> 2.0
			renew 2.0 by r1          -> 2.1
			abandon c2               -> ok
			get                      -> live 15s, token 2, renewal 1`,

		"an eviction waits for the holder": `
			evict                    -> tenure: no record
			acquire c1               -> 1.0
			evict                    -> ok
			get                      -> live 15s, token 1, renewal 0, evicted
			acquire c1               -> tenure: attempt already spent
			acquire c2               -> held 15s
			renew 1.0 by r1          -> tenure: evicted by an operator
			release 1.0              -> ok
			evict                    -> tenure: vacant
			acquire c2               -> 2.0
			get                      -> live 15s, token 2, renewal 0`,

		"an eviction at once frees": `
			acquire c1               -> 1.0
			evict c9                 -> tenure: superseded by another term
			evict c1 now             -> ok
			get                      -> dead, token 1, renewal 0, evicted
			renew 1.0 by r1          -> tenure: evicted by an operator
			evict                    -> tenure: vacant
			acquire c2               -> 2.0
			renew 1.0 by r1          -> tenure: superseded by another term`,

		"an eviction of a burnt term": `
			acquire c1               -> 1.0
			renew 1.0 by r1          -> 1.1
			renew 1.0 by r2          -> tenure: term was cloned
			evict now                -> ok
			acquire c2               -> 2.0
			renew 1.1 by r3          -> tenure: term was cloned`,

		"floors raise and never lower": `
			acquire c1 above 100     -> 101.0
			release 101.0            -> ok
			acquire c2 above 7       -> 102.0
			release 102.0            -> ok
			acquire c3 above 4611686018427387903 -> 4611686018427387904.0
			release 4611686018427387904.0 -> ok
			acquire c4               -> tenure: out of tokens
			get                      -> vacant, token 4611686018427387904, renewal 0`,

		"a newer format is left alone": `
			acquire c1               -> 1.0
			upgrade
			get                      -> tenure: record has a newer format
			acquire c1               -> tenure: record has a newer format
			acquire c2               -> tenure: record has a newer format
			renew 1.0 by r1          -> tenure: record has a newer format
			release 1.0              -> tenure: record has a newer format
			abandon c1               -> tenure: record has a newer format
			evict                    -> tenure: record has a newer format`,

		"a store that was rolled back": `
			acquire c1               -> 1.0
			renew 1.0 by r1          -> 1.1
			save
			renew 1.1 by r2          -> 1.2
			release 1.2              -> ok
			acquire c2               -> 2.0
			roll back
			renew 2.0 by r3          -> tenure: superseded by another term
			renew 1.2 by r4          -> tenure: receipt is not current
			renew 1.1 by r5          -> 1.2
			get                      -> live 15s, token 1, renewal 2`,

		"a token that was handed out twice": `
			acquire c1               -> 1.0
			release 1.0              -> ok
			save
			acquire c2               -> 2.0
			roll back
			acquire c3               -> 2.0
			renew c2.0 by r1         -> tenure: superseded by another term
			release c2.0             -> tenure: superseded by another term
			release c2.0 pending r1  -> tenure: superseded by another term
			renew c3.0 by r1         -> 2.1
			renew c3.0 by r2         -> tenure: term was cloned
			renew c2.0 by r3         -> tenure: superseded by another term`,
	} {
		t.Run(name, func(t *testing.T) {
			s := &story{leases: map[string]store.Lease{}, now: row.Now{Mono: time.Hour, Wall: time.Unix(1e9, 0)}}
			for n, line := range strings.Split(strings.TrimSpace(script), "\n") {
				step, want, _ := strings.Cut(line, "->")
				before := s.row
				got, err := s.step(strings.Fields(step))
				if got != strings.TrimSpace(want) {
					t.Fatalf("line %d, %s: got %q", n+1, strings.TrimSpace(line), got)
				}
				if err != nil && !errors.Is(err, store.ErrCloned) && !reflect.DeepEqual(before, s.row) {
					t.Fatalf("line %d, %s: a refusal changed the row\nfrom %+v\nto   %+v", n+1, strings.TrimSpace(line), before, s.row)
				}
			}
		})
	}
}

// story is one row, the leases that were handed out, and the time.
type story struct {
	row, saved row.Row
	now        row.Now
	leases     map[string]store.Lease
}

// step carries a line out and returns what came of it.
func (s *story) step(words []string) (string, error) {
	var l store.Lease
	var err error
	switch op, args := words[0], words[1:]; op {
	case "after":
		d, err := time.ParseDuration(args[0])
		s.now.Mono, s.now.Wall = s.now.Mono+d, s.now.Wall.Add(d)
		return "", err
	case "upgrade":
		s.row.Format++
		return "", nil
	case "save":
		s.saved = s.row
		return "", nil
	case "roll":
		s.row = s.saved
		return "", nil
	case "get":
		return s.show()
	case "acquire":
		c := store.Claim{Name: "a", Holder: "h", Attempt: store.Attempt(args[0]), TTL: ttl}
		for i, arg := range args {
			switch arg {
			case "fenced":
				c.FencedOnly = true
			case "above":
				n, _ := strconv.ParseInt(args[i+1], 10, 64)
				c.Floor = fence.Token(n)
			}
		}
		s.row, l, err = row.Acquire(s.row, c, ttl, s.now)
	case "renew":
		s.row, l, err = row.Renew(s.row, s.lease(args[0]), store.Attempt(args[2]), s.now)
	case "release":
		var pending store.Attempt
		if len(args) > 1 {
			pending = store.Attempt(args[2])
		}
		s.row, err = row.Release(s.row, s.lease(args[0]), pending, s.now)
	case "abandon":
		s.row, err = row.Abandon(s.row, store.Attempt(args[0]), s.now)
	case "evict":
		e := store.Eviction{Name: "a", Reason: "test"}
		for _, arg := range args {
			if arg == "now" {
				e.Now = true
			} else {
				e.TermID = store.Attempt(arg)
			}
		}
		s.row, err = row.Evict(s.row, e, s.now)
	default:
		return "no such step", nil
	}
	var held *store.HeldError
	switch {
	case errors.As(err, &held):
		got := fmt.Sprintf("held %v", held.Remaining)
		if held.Burnt {
			got += " burnt"
		}
		return got, err
	case err != nil:
		return kind(err), err
	case l.Name == "":
		return "ok", nil
	}
	id := fmt.Sprintf("%d.%d", l.Token, l.Renewal)
	s.leases[id] = l
	s.leases[fmt.Sprintf("%s.%d", l.TermID, l.Renewal)] = l
	if l.Replayed {
		id += " replayed"
	}
	return id, nil
}

func (s *story) lease(id string) store.Lease {
	l := s.leases[strings.TrimRight(id, "?!")]
	switch id[len(id)-1] {
	case '?':
		l.Receipt += "0"
	case '!':
		l.Receipt = ""
	}
	return l
}

func (s *story) show() (string, error) {
	if !s.row.Exists() {
		return store.ErrNoRecord.Error(), nil
	}
	rec, err := s.row.Record(s.now)
	if err != nil {
		return kind(err), err
	}
	got := rec.State.String()
	if rec.Remaining != 0 {
		got += " " + rec.Remaining.String()
	}
	got += fmt.Sprintf(", token %d, renewal %d", rec.Token, rec.Renewal)
	switch {
	case rec.Burnt():
		got += fmt.Sprintf(", burnt %d", len(rec.Burns))
	case len(rec.Burns) > 0:
		got += ", burned before"
	}
	if rec.Evicted != "" {
		got += ", evicted"
	}
	return got, nil
}

// kind returns the text of the sentinel that err is.
func kind(err error) string {
	for _, k := range []error{
		store.ErrSpent, store.ErrNoRecord, store.ErrVacant, store.ErrSuperseded, store.ErrExpired, store.ErrReleased,
		store.ErrCloned, store.ErrReceipt, store.ErrEvicted, store.ErrTokens, store.ErrFormat,
	} {
		if errors.Is(err, k) {
			return k.Error()
		}
	}
	return err.Error()
}

func TestHistory(t *testing.T) {
	s := &story{leases: map[string]store.Lease{}, now: row.Now{Mono: time.Hour, Wall: time.Unix(1e9, 0)}}
	var got []string
	for _, step := range []string{
		"acquire c1", "acquire c1", "renew 1.0 by r1", "renew 1.0 by r1", "acquire c2", "release 1.1", "release 1.1",
		"acquire c2", "after 20s", "acquire c3", "renew 3.0 by r1", "renew 3.0 by r2", "renew 3.0 by r3",
		"evict now", "evict now", "acquire c4", "evict", "evict", "release 4.0", "acquire c5", "abandon c5",
	} {
		before := s.row
		s.step(strings.Fields(step))
		for _, e := range row.History(before, s.row, s.now) {
			if e.Name != "a" || !e.At.Equal(s.now.Wall) || e.Holder != "h" {
				t.Errorf("%s: %+v", step, e)
			}
			got = append(got, fmt.Sprintf("%s: %s %d %s", step, e.What, e.Token, e.TermID))
		}
	}
	want := []string{
		"acquire c1: granted 1 c1",
		"release 1.1: released 1 c1",
		"acquire c2: granted 2 c2",
		"acquire c3: expired 2 c2", "acquire c3: granted 3 c3",
		"renew 3.0 by r2: burnt 3 c3",
		"evict now: evicted 3 c3",
		"acquire c4: expired 3 c3", "acquire c4: granted 4 c4",
		"evict: evicted 4 c4",
		"release 4.0: released 4 c4",
		"acquire c5: granted 5 c5",
		"abandon c5: released 5 c5",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestReceiptsOfTwoLinesDiffer: after a roll back the same renewal may be made
// again by another attempt; the two receipts must not be equal.
func TestReceiptsOfTwoLinesDiffer(t *testing.T) {
	now := row.Now{Mono: time.Hour}
	r, l, err := row.Acquire(row.Row{}, store.Claim{Name: "a", Attempt: "c1", TTL: ttl}, ttl, now)
	if err != nil {
		t.Fatal(err)
	}
	_, first, err1 := row.Renew(r, l, "r1", now)
	_, second, err2 := row.Renew(r, l, "r2", now)
	if err1 != nil || err2 != nil || first.Receipt == second.Receipt {
		t.Errorf("two renewals have the receipts %q and %q (%v, %v)", first.Receipt, second.Receipt, err1, err2)
	}
}

// TestBurnsAreNotShared: a row is a value; what becomes of a copy must not show
// in the row it was copied from.
func TestBurnsAreNotShared(t *testing.T) {
	now := row.Now{Mono: time.Hour}
	burn := func(r row.Row, n int) row.Row {
		a := store.Attempt(fmt.Sprintf("c%d", n))
		r, l, err := row.Acquire(r, store.Claim{Name: "a", Attempt: a, TTL: ttl, FencedOnly: true}, ttl, now)
		if err != nil {
			t.Fatal(err)
		}
		r, _, _ = row.Renew(r, l, a+"-r1", now)
		r, _, err = row.Renew(r, l, a+"-r2", now)
		if !errors.Is(err, store.ErrCloned) {
			t.Fatal(err)
		}
		return r
	}
	r := row.Row{}
	for n := range store.BurnsMax + 2 {
		before := r
		kept := fmt.Sprint(before.Burns)
		one, other := burn(r, 2*n), burn(r, 2*n+1)
		if one.Burns[0] == other.Burns[0] {
			t.Fatalf("two copies share their newest burnt term: %+v", one.Burns[0])
		}
		rec, err := one.Record(now)
		if err != nil {
			t.Fatal(err)
		}
		rec.Burns[0].Token = 0
		if one.Burns[0].Token == 0 {
			t.Fatal("a record shares its burnt terms with the row")
		}
		if fmt.Sprint(before.Burns) != kept {
			t.Fatalf("burning a copy changed the row it was copied from: %+v", before.Burns)
		}
		if want := min(n+1, store.BurnsMax); len(one.Burns) != want {
			t.Fatalf("after %d burnt terms %d are kept, want %d", n+1, len(one.Burns), want)
		}
		r = one
	}
}
