// Package row is the rule of the lease: what one record of an election becomes
// when somebody claims, renews, releases, gives back or evicts.
//
// It is pure, and the executable specification of every store. A store that can
// read a record, decide and write it back in one atomic step (memory, SQLite)
// applies these functions as they are; the others say the same in their own
// language and are held to it by storetest. The simulator checks the
// invariants against these very functions.
//
// Each function returns the row to keep, also beside an error: proof of a twin
// is both a refusal and a change. A caller keeps the returned row in the same
// atomic step, whatever the error.
package row

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// Row is the record of one election. The zero Row stands for no record; a row
// that exists has Format set. It is never deleted: the token must outlive every
// term.
type Row struct {
	Format int
	Name   string

	Token  fence.Token   // the last one granted
	TermID store.Attempt // the attempt it was granted to
	Holder string
	Meta   string

	TTL        time.Duration
	Expires    time.Duration // by the store's clock
	Receipt    store.Receipt // what the next renewal must present
	Renewal    int64
	Used       store.Receipt // the receipt the last renewal consumed
	UsedBy     store.Attempt // and the attempt that consumed it
	Released   bool          // released or given back; TermID still names the term
	Evicted    string        // why an operator asked the term to go
	FencedOnly bool

	AcquiredAt, RenewedAt time.Time // the store's wall clock, for people
	Burns                 []store.Burn
}

// Now is the store's clock: Mono judges expiries, since any epoch that all of
// the store's users share; Wall is written down for people.
type Now struct {
	Mono time.Duration
	Wall time.Time
}

// Exists reports whether there is a record.
func (r Row) Exists() bool { return r.Format != 0 }

// live reports whether a term stands in the way of a claim.
func (r Row) live(now Now) bool { return r.Exists() && !r.Released && now.Mono < r.Expires }

func (r Row) burnt() bool {
	return len(r.Burns) > 0 && r.Burns[0].TermID == r.TermID && r.Burns[0].Token == r.Token
}

func (r Row) known() error {
	if r.Format > store.Format {
		return fmt.Errorf("%w: %q has format %d, this program knows %d: upgrade it", store.ErrFormat, r.Name, r.Format, store.Format)
	}
	return nil
}

// receipt names the n-th renewal of a term by the attempt that made it, so that
// two lines of descent never hold equal receipts, not even after the store was
// rolled back and counted again.
func receipt(n int64, a store.Attempt) store.Receipt {
	return store.Receipt(strconv.FormatInt(n, 10) + "." + string(a))
}

func (r Row) lease(a store.Attempt, replayed bool, now Now) store.Lease {
	return store.Lease{
		Name: r.Name, TermID: r.TermID, Token: r.Token, Receipt: r.Receipt, Renewal: r.Renewal, TTL: r.TTL,
		Attempt: a, Replayed: replayed, StoreNow: now.Mono,
	}
}

// Acquire grants c on r, if it may. c was validated. ttl is what the store
// grants: c.TTL rounded up to its precision.
func Acquire(r Row, c store.Claim, ttl time.Duration, now Now) (Row, store.Lease, error) {
	if err := r.known(); err != nil {
		return r, store.Lease{}, err
	}
	if r.Exists() && r.TermID == c.Attempt {
		if r.live(now) && r.Evicted == "" && r.Renewal == 0 {
			return r, r.lease(c.Attempt, true, now), nil
		}
		return r, store.Lease{}, fmt.Errorf("%w: %s on %q", store.ErrSpent, c.Attempt, c.Name)
	}
	if r.live(now) && !(r.burnt() && r.FencedOnly && c.FencedOnly) {
		return r, store.Lease{}, &store.HeldError{
			Name: r.Name, Holder: r.Holder, Token: r.Token, Remaining: r.Expires - now.Mono, Burnt: r.burnt(),
		}
	}
	last := max(r.Token, c.Floor)
	if last >= fence.MaxToken {
		return r, store.Lease{}, fmt.Errorf("%w: %q is at %d and the largest is %d", store.ErrTokens, c.Name, last, fence.MaxToken)
	}
	next := Row{
		Format: store.Format, Name: c.Name,
		Token: last + 1, TermID: c.Attempt, Holder: c.Holder, Meta: c.Meta,
		TTL: ttl, Expires: now.Mono + ttl, Receipt: receipt(0, c.Attempt),
		FencedOnly: c.FencedOnly, AcquiredAt: now.Wall, RenewedAt: now.Wall, Burns: r.Burns,
	}
	return next, next.lease(c.Attempt, false, now), nil
}

// Renew renews l by a, if it may, or burns its term.
func Renew(r Row, l store.Lease, a store.Attempt, now Now) (Row, store.Lease, error) {
	if err := r.owned(l); err != nil {
		return r, store.Lease{}, err
	}
	switch {
	case r.Released:
		return r, store.Lease{}, fmt.Errorf("%w: token %d of %q", store.ErrReleased, l.Token, l.Name)
	case r.Evicted != "":
		return r, store.Lease{}, &store.EvictedError{Name: r.Name, Reason: r.Evicted}
	case now.Mono >= r.Expires:
		return r, store.Lease{}, fmt.Errorf("%w: token %d of %q, %v ago", store.ErrExpired, l.Token, l.Name, (now.Mono - r.Expires).Round(time.Millisecond))
	case l.Receipt == r.Receipt:
		r.Used, r.UsedBy = r.Receipt, a
		r.Renewal++
		r.Receipt = receipt(r.Renewal, a)
		r.Expires, r.RenewedAt = now.Mono+r.TTL, now.Wall
		return r, r.lease(a, false, now), nil
	case r.Renewal == 0:
		// Nothing was consumed yet: Used is empty, and an empty receipt is none.
	case l.Receipt == r.Used && a == r.UsedBy:
		return r, r.lease(a, true, now), nil
	case l.Receipt == r.Used:
		b := store.Burn{TermID: r.TermID, Token: r.Token, Receipt: l.Receipt, First: r.UsedBy, Second: a, At: now.Wall}
		r.Burns = append([]store.Burn{b}, r.Burns...)
		r.Burns = slices.Clip(r.Burns[:min(len(r.Burns), store.BurnsMax)])
		return r, store.Lease{}, &store.ClonedError{Name: r.Name, Burn: b}
	}
	return r, store.Lease{}, &store.ReceiptError{Name: r.Name, Token: r.Token, Presented: l.Renewal, Current: r.Renewal}
}

// owned returns nil if l's term is the record's and not burnt, or why not.
func (r Row) owned(l store.Lease) error {
	if err := r.known(); err != nil {
		return err
	}
	if !r.Exists() {
		return fmt.Errorf("%w: %q", store.ErrNoRecord, l.Name)
	}
	for _, b := range r.Burns {
		if b.TermID == l.TermID && b.Token == l.Token {
			return &store.ClonedError{Name: r.Name, Burn: b}
		}
	}
	if r.TermID != l.TermID || r.Token != l.Token {
		return fmt.Errorf("%w: %q has token %d, this term had %d", store.ErrSuperseded, l.Name, r.Token, l.Token)
	}
	return nil
}

// Release frees l's term. pending is the renewal that is under way on l, or
// empty.
func Release(r Row, l store.Lease, pending store.Attempt, _ Now) (Row, error) {
	if err := r.owned(l); err != nil {
		return r, err
	}
	switch {
	case r.Released:
		return r, nil
	case l.Receipt == r.Receipt, pending != "" && l.Receipt == r.Used && pending == r.UsedBy:
		r.Released = true
		return r, nil
	}
	return r, &store.ReceiptError{Name: r.Name, Token: r.Token, Presented: l.Renewal, Current: r.Renewal}
}

// Abandon frees the grant of a, if it was never renewed.
func Abandon(r Row, a store.Attempt, _ Now) (Row, error) {
	if err := r.known(); err != nil {
		return r, err
	}
	if r.Exists() && r.TermID == a && r.Renewal == 0 {
		r.Released = true
	}
	return r, nil
}

// Evict marks the current term, or frees it at once.
func Evict(r Row, e store.Eviction, now Now) (Row, error) {
	if err := r.known(); err != nil {
		return r, err
	}
	switch {
	case !r.Exists():
		return r, fmt.Errorf("%w: %q", store.ErrNoRecord, e.Name)
	case !r.live(now):
		return r, fmt.Errorf("%w: %q", store.ErrVacant, e.Name)
	case e.TermID != "" && e.TermID != r.TermID:
		return r, fmt.Errorf("%w: %q has token %d now", store.ErrSuperseded, e.Name, r.Token)
	}
	r.Evicted = e.Reason
	if e.Now {
		r.Expires = now.Mono
	}
	return r, nil
}

// Record shows r as of now.
func (r Row) Record(now Now) (store.Record, error) {
	if err := r.known(); err != nil {
		return store.Record{}, err
	}
	rec := store.Record{
		Name: r.Name, Token: r.Token, TermID: r.TermID, Holder: r.Holder, Meta: r.Meta, Renewal: r.Renewal, TTL: r.TTL,
		AcquiredAt: r.AcquiredAt, RenewedAt: r.RenewedAt, FencedOnly: r.FencedOnly, Evicted: r.Evicted, Burns: slices.Clone(r.Burns),
	}
	switch {
	case r.Released:
		rec.State = store.Vacant
	case r.live(now):
		rec.State, rec.Remaining = store.Live, r.Expires-now.Mono
	default:
		rec.State = store.Dead
	}
	return rec, nil
}

// History returns what happened between two states of a row, as entries for
// people, oldest first. A plain renewal is none.
func History(before, after Row, now Now) []store.Entry {
	var es []store.Entry
	add := func(r Row, what, detail string) {
		es = append(es, store.Entry{At: now.Wall, Name: after.Name, What: what, Token: r.Token, TermID: r.TermID, Holder: r.Holder, Detail: detail})
	}
	if after.TermID != before.TermID || after.Token != before.Token {
		if before.Exists() && !before.Released {
			detail := ""
			if before.Evicted != "" {
				detail = "after an eviction"
			}
			add(before, "expired", detail)
		}
		add(after, "granted", "")
		return es
	}
	if after.burnt() && !before.burnt() {
		b := after.Burns[0]
		add(after, "burnt", fmt.Sprintf("receipt %s was presented by attempt %s and again by attempt %s", b.Receipt, b.First, b.Second))
	}
	if after.Evicted != "" && before.Evicted != after.Evicted {
		detail := after.Evicted
		if after.Expires < before.Expires {
			detail = "at once: " + detail
		}
		add(after, "evicted", detail)
	}
	if after.Released && !before.Released {
		add(after, "released", "")
	}
	return es
}
