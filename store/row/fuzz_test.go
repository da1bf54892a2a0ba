package row_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// FuzzSequences takes three bytes for each operation on one row: which, and two
// choices among all leases and attempts there ever were, so that every lease may
// be in the hands of any number of copies and every request be late.
func FuzzSequences(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x02\x00\x01\x03\x00\x00"))
	f.Add([]byte{0, 0, 0, 2, 0, 0, 2, 1, 0, 2, 0, 9, 6, 200, 0, 1, 0, 0, 3, 2, 0})
	f.Add([]byte{1, 0, 0, 2, 0, 0, 2, 0, 7, 1, 0, 0, 2, 1, 1, 3, 1, 0, 4, 0, 0, 5, 1, 0})
	f.Add([]byte{0, 0, 0, 5, 0, 0, 0, 0, 0, 2, 1, 0, 6, 255, 0, 0, 1, 1, 3, 1, 1, 5, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) { runSequence(t, ops) })
}

// TestSequences runs the same on random sequences, where nobody is fuzzing. Its
// few attempts and leases make them meet.
func TestSequences(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		ops := make([]byte, 0, 3*60)
		for range 60 {
			ops = append(ops, byte(rnd.IntN(256)), byte(rnd.IntN(20)), byte(rnd.IntN(20)))
		}
		if !t.Run("", func(t *testing.T) { runSequence(t, ops) }) {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runSequence(t *testing.T, ops []byte) {
	w := &world{t: t, now: row.Now{Mono: time.Hour, Wall: time.Unix(1e9, 0)}, terms: map[term]*fate{}}
	for len(ops) >= 3 {
		w.step(ops[0], int(ops[1]), int(ops[2]))
		ops = ops[3:]
	}
}

// term names one, as nothing but both of them does.
type term struct {
	id    store.Attempt
	token fence.Token
}

// fate is what was said of a term so far, by the answers alone.
type fate struct {
	until     time.Duration // no answer lets a holder believe in it for longer
	receipts  map[int64]store.Receipt
	used      map[store.Receipt]store.Attempt
	renewed   bool
	released  bool // released, abandoned or evicted at once
	burnt     bool
	fenced    bool
	fencedOff bool // burnt, and followed before its expiry by a term for fenced work
}

// world is one row, everything that was ever handed out, and what must be true.
type world struct {
	t        *testing.T
	row      row.Row
	now      row.Now
	leases   []store.Lease
	attempts []store.Attempt
	terms    map[term]*fate
	current  *fate
	highest  fence.Token
	trace    []string
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nafter %q\nrow %+v", fmt.Sprintf(format, args...), w.trace, w.row)
}

// attempt picks an old attempt, or draws a new one.
func (w *world) attempt(n int) store.Attempt {
	if n < len(w.attempts) {
		return w.attempts[n]
	}
	a := store.Attempt(fmt.Sprintf("a%d", len(w.attempts)))
	w.attempts = append(w.attempts, a)
	return a
}

// lease picks a lease that was handed out, newest first.
func (w *world) lease(n int) (store.Lease, bool) {
	if len(w.leases) == 0 {
		return store.Lease{}, false
	}
	return w.leases[len(w.leases)-1-n%len(w.leases)], true
}

func (w *world) step(op byte, x, y int) {
	before := w.row
	var err error
	changesNothing := false
	switch op % 7 {
	case 0, 1:
		c := store.Claim{Name: "a", Holder: "h", Attempt: w.attempt(x), TTL: ttl, FencedOnly: op%7 == 1, Floor: fence.Token(y % 8)}
		w.trace = append(w.trace, fmt.Sprintf("acquire %s fenced=%v floor=%d", c.Attempt, c.FencedOnly, c.Floor))
		var l store.Lease
		w.row, l, err = row.Acquire(before, c, ttl, w.now)
		if err == nil {
			w.granted(before, c, l)
			changesNothing = l.Replayed
		}
	case 2:
		l, ok := w.lease(x)
		if !ok {
			return
		}
		a := w.attempt(y)
		w.trace = append(w.trace, fmt.Sprintf("renew %d.%d by %s", l.Token, l.Renewal, a))
		var r store.Lease
		w.row, r, err = row.Renew(before, l, a, w.now)
		switch {
		case err == nil:
			w.renewed(l, a, r)
			changesNothing = r.Replayed
		case errors.Is(err, store.ErrCloned):
			w.cloned(l, a)
		}
	case 3:
		l, ok := w.lease(x)
		if !ok {
			return
		}
		var pending store.Attempt
		if y > 0 {
			pending = w.attempt(y - 1)
		}
		w.trace = append(w.trace, fmt.Sprintf("release %d.%d pending %q", l.Token, l.Renewal, pending))
		w.row, err = row.Release(before, l, pending, w.now)
		if err == nil {
			w.freed(l, pending)
		}
	case 4:
		a := w.attempt(x)
		w.trace = append(w.trace, fmt.Sprintf("abandon %s", a))
		w.row, err = row.Abandon(before, a, w.now)
		if err != nil {
			w.failf("abandoning failed: %v", err)
		}
		if w.row.Released && !before.Released {
			if w.row.TermID != a || w.current.renewed || w.current.burnt {
				w.failf("abandoning %s freed term %s (renewed: %v, burnt: %v)", a, w.row.TermID, w.current.renewed, w.current.burnt)
			}
			w.current.released = true
		}
	case 5:
		e := store.Eviction{Name: "a", Reason: "test", Now: y%2 == 1}
		if l, ok := w.lease(x); ok && x%3 == 0 {
			e.TermID = l.TermID
		}
		w.trace = append(w.trace, fmt.Sprintf("evict %s now=%v", e.TermID, e.Now))
		w.row, err = row.Evict(before, e, w.now)
		if err == nil && e.Now {
			w.current.released = true
		}
	case 6:
		d := time.Duration(x) * ttl / 100
		w.trace = append(w.trace, fmt.Sprintf("after %v", d))
		w.now.Mono, w.now.Wall = w.now.Mono+d, w.now.Wall.Add(d)
		changesNothing = true
	}
	if (changesNothing || err != nil && !errors.Is(err, store.ErrCloned)) && !reflect.DeepEqual(before, w.row) {
		w.failf("the row changed beside %v", err)
	}
	w.always(before)
}

// granted: nobody else may believe to hold it, unless both sides are fenced and
// the last term is burnt.
func (w *world) granted(before row.Row, c store.Claim, l store.Lease) {
	id := term{l.TermID, l.Token}
	if l.TermID != c.Attempt || l.Attempt != c.Attempt || l.Renewal != 0 {
		w.failf("claim %+v was answered with %+v", c, l)
	}
	if l.Replayed {
		f := w.terms[id]
		if f == nil || f != w.current || f.renewed || f.released || f.burnt || w.now.Mono >= f.until {
			w.failf("a grant was replayed that is %+v at %v", f, w.now.Mono)
		}
		return
	}
	if l.Token <= w.highest || l.Token <= c.Floor {
		w.failf("token %d was granted after %d with a floor of %d", l.Token, w.highest, c.Floor)
	}
	for other, f := range w.terms {
		if f.burnt && f.fenced && c.FencedOnly {
			f.fencedOff = true // from now on, also for claims that are not for fenced work
		}
		if !f.released && !f.fencedOff && w.now.Mono < f.until {
			w.failf("token %d was granted at %v while %+v stands: %+v", l.Token, w.now.Mono, other, f)
		}
	}
	w.highest = l.Token
	w.current = &fate{
		until: w.now.Mono + l.TTL, fenced: c.FencedOnly,
		receipts: map[int64]store.Receipt{0: l.Receipt}, used: map[store.Receipt]store.Attempt{},
	}
	w.terms[id] = w.current
	w.leases = append(w.leases, l)
	if len(w.row.Burns) != len(before.Burns) {
		w.failf("a grant forgot burnt terms")
	}
}

func (w *world) renewed(l store.Lease, a store.Attempt, r store.Lease) {
	f := w.terms[term{l.TermID, l.Token}]
	if f != w.current || f.released || f.burnt || w.now.Mono >= f.until {
		w.failf("renewed at %v a term that is %+v (the current one: %v)", w.now.Mono, f, f == w.current)
	}
	if r.TermID != l.TermID || r.Token != l.Token || r.Attempt != a || r.Renewal != l.Renewal+1 {
		w.failf("renewing %+v by %s was answered with %+v", l, a, r)
	}
	by, was := f.used[l.Receipt]
	if r.Replayed {
		if !was || by != a || f.receipts[r.Renewal] != r.Receipt {
			w.failf("replayed to %s what %s had asked for: %+v", a, by, r)
		}
		return
	}
	if was {
		w.failf("the receipt of %+v was consumed by %s and again by %s", l, by, a)
	}
	if other, ok := f.receipts[r.Renewal]; ok {
		w.failf("renewal %d has two receipts, %s and %s", r.Renewal, other, r.Receipt)
	}
	for n, other := range f.receipts {
		if other == r.Receipt {
			w.failf("renewals %d and %d have one receipt, %s", n, r.Renewal, other)
		}
	}
	f.used[l.Receipt], f.receipts[r.Renewal] = a, r.Receipt
	f.renewed, f.until = true, w.now.Mono+r.TTL
	w.leases = append(w.leases, r)
}

// cloned: the receipt just consumed by another attempt, or a term burnt before.
func (w *world) cloned(l store.Lease, a store.Attempt) {
	f := w.terms[term{l.TermID, l.Token}]
	by, was := f.used[l.Receipt]
	if !f.burnt && (!was || by == a || f != w.current || f.released || w.now.Mono >= f.until) {
		w.failf("attempt %s burnt a term with a receipt consumed by %q; it was %+v", a, by, f)
	}
	f.burnt = true
}

func (w *world) freed(l store.Lease, pending store.Attempt) {
	f := w.terms[term{l.TermID, l.Token}]
	if f != w.current || f.burnt {
		w.failf("released a term that is %+v (the current one: %v)", f, f == w.current)
	}
	newest := f.receipts[int64(len(f.receipts)-1)]
	if by := f.used[l.Receipt]; !f.released && l.Receipt != newest && (pending == "" || by != pending) {
		w.failf("released %+v with the pending attempt %q, consumed by %q", l, pending, by)
	}
	f.released = true
}

// always is true after every step.
func (w *world) always(before row.Row) {
	if w.row.Token < before.Token {
		w.failf("the token fell from %d to %d", before.Token, w.row.Token)
	}
	if !w.row.Exists() {
		return
	}
	if w.row.Expires > w.now.Mono+w.row.TTL {
		w.failf("the expiry lies %v ahead, the ttl is %v", w.row.Expires-w.now.Mono, w.row.TTL)
	}
	if len(w.row.Burns) > store.BurnsMax {
		w.failf("%d burnt terms are kept", len(w.row.Burns))
	}
	rec, err := w.row.Record(w.now)
	if err != nil {
		w.failf("the record cannot be shown: %v", err)
	}
	want := store.Dead
	switch {
	case w.row.Released:
		want = store.Vacant
	case w.now.Mono < w.row.Expires:
		want = store.Live
	}
	if rec.State != want || (rec.State == store.Live) != (rec.Remaining > 0) || rec.Burnt() != w.current.burnt {
		w.failf("the record is %+v, want it %v and burnt %v", rec, want, w.current.burnt)
	}
	if rec.State == store.Live && rec.Remaining != w.current.until-w.now.Mono {
		w.failf("%v remain, by the answers %v", rec.Remaining, w.current.until-w.now.Mono)
	}
}
