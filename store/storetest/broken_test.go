package storetest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/store/row"
	"github.com/tenure-go/tenure/store/storetest"
)

// broken is the reference store with some of its methods replaced.
type broken struct {
	*memstore.Store
	mem *memstore.Store // shares the records; for the replaced methods to look into them

	caps    func(store.Caps) store.Caps
	acquire func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error)
	renew   func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error)
	release func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error
	abandon func(b *broken, ctx context.Context, name string, a store.Attempt) error
	get     func(b *broken, ctx context.Context, name string) (store.Record, error)
	batch   func(b *broken, ctx context.Context, batch []store.Renewal) []store.Renewed
	evict   func(b *broken, ctx context.Context, e store.Eviction) (store.Record, error)
	watch   func(b *broken, ctx context.Context, name string) (<-chan store.Hint, error)
	list    func(b *broken, ctx context.Context) iter.Seq2[store.Record, error]
	history func(b *broken, ctx context.Context, name string, n int) ([]store.Entry, error)
	close   func(b *broken) error
}

func (b *broken) Caps() store.Caps {
	if b.caps != nil {
		return b.caps(b.Store.Caps())
	}
	return b.Store.Caps()
}

func (b *broken) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	if b.acquire != nil {
		return b.acquire(b, ctx, c)
	}
	return b.Store.Acquire(ctx, c)
}

func (b *broken) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	if b.renew != nil {
		return b.renew(b, ctx, l, a)
	}
	return b.Store.Renew(ctx, l, a)
}

func (b *broken) Release(ctx context.Context, l store.Lease, a store.Attempt) error {
	if b.release != nil {
		return b.release(b, ctx, l, a)
	}
	return b.Store.Release(ctx, l, a)
}

func (b *broken) Abandon(ctx context.Context, name string, a store.Attempt) error {
	if b.abandon != nil {
		return b.abandon(b, ctx, name, a)
	}
	return b.Store.Abandon(ctx, name, a)
}

func (b *broken) Get(ctx context.Context, name string) (store.Record, error) {
	if b.get != nil {
		return b.get(b, ctx, name)
	}
	return b.Store.Get(ctx, name)
}

func (b *broken) RenewBatch(ctx context.Context, batch []store.Renewal) []store.Renewed {
	if b.batch != nil {
		return b.batch(b, ctx, batch)
	}
	return b.Store.RenewBatch(ctx, batch)
}

func (b *broken) Evict(ctx context.Context, e store.Eviction) (store.Record, error) {
	if b.evict != nil {
		return b.evict(b, ctx, e)
	}
	return b.Store.Evict(ctx, e)
}

func (b *broken) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	if b.watch != nil {
		return b.watch(b, ctx, name)
	}
	return b.Store.Watch(ctx, name)
}

func (b *broken) List(ctx context.Context) iter.Seq2[store.Record, error] {
	if b.list != nil {
		return b.list(b, ctx)
	}
	return b.Store.List(ctx)
}

func (b *broken) History(ctx context.Context, name string, n int) ([]store.Entry, error) {
	if b.history != nil {
		return b.history(b, ctx, name, n)
	}
	return b.Store.History(ctx, name, n)
}

// edit changes an election's row behind the store's back.
func (b *broken) edit(name string, change func(*row.Row)) {
	snap := b.mem.Snapshot()
	r := snap[name]
	change(&r)
	snap[name] = r
	b.mem.Restore(snap)
}

func (b *broken) row(name string) row.Row { return b.mem.Snapshot()[name] }

// The table: what is broken, how, and the case that must find it.
var mutants = []struct {
	what   string
	caught string
	broken broken
}{
	{"a renewal ignores the receipt", "renew/made-up-receipt", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if r := b.row(l.Name); r.TermID == l.TermID && r.UsedBy != a {
				l.Receipt = r.Receipt
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"the receipt never changes", "renew/receipts", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if err == nil {
				r.Receipt = l.Receipt
				b.edit(l.Name, func(r *row.Row) { r.Receipt, r.Used = l.Receipt, "" })
			}
			return r, err
		},
	}},
	{"renewals are not numbered", "renew/receipts", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			r.Renewal = 0
			return r, err
		},
	}},
	{"a renewal does not move the expiry", "renew/extends", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			before := b.row(l.Name)
			r, err := b.Store.Renew(ctx, l, a)
			if err == nil {
				b.edit(l.Name, func(r *row.Row) { r.Expires = before.Expires })
			}
			return r, err
		},
	}},
	{"a renewal adds its TTL to the old expiry", "renew/extends", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			before := b.row(l.Name)
			r, err := b.Store.Renew(ctx, l, a)
			if err == nil && !r.Replayed {
				b.edit(l.Name, func(r *row.Row) { r.Expires = before.Expires + r.TTL })
			}
			return r, err
		},
	}},
	{"a renewal is not kept past the first TTL", "renew/outlives-ttl", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if err == nil && r.Renewal == 2 {
				b.edit(l.Name, func(r *row.Row) { r.Expires -= r.TTL - r.TTL/4 })
			}
			return r, err
		},
	}},
	{"a replayed renewal moves the expiry", "renew/replay", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if r.Replayed {
				b.edit(l.Name, func(r *row.Row) { r.Expires += time.Second })
			}
			return r, err
		},
	}},
	{"a lost reply burns the term", "renew/replay", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if b.row(l.Name).UsedBy == a {
				b.edit(l.Name, func(r *row.Row) { r.UsedBy = "somebody" })
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"a replayed renewal does not say that it is one", "renew/replay", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			r.Replayed = false
			return r, err
		},
	}},
	{"every renewal is replayed for ever", "renew/replay-of-an-older-one", broken{
		renew: func() func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			var mu sync.Mutex
			given := map[store.Attempt]store.Lease{}
			return func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
				mu.Lock()
				defer mu.Unlock()
				if again, ok := given[a]; ok && a != "" && b.row(l.Name).TermID == l.TermID && !b.row(l.Name).Released {
					again.Replayed = true
					return again, nil
				}
				r, err := b.Store.Renew(ctx, l, a)
				if err == nil {
					given[a] = r
				}
				return r, err
			}
		}(),
	}},
	{"an older receipt burns the term", "renew/older-receipt", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrReceipt) && b.row(l.Name).Renewal > l.Renewal+1 {
				b.burn(l, a)
			}
			return r, err
		},
	}},
	{"an empty receipt passes on a fresh term", "renew/first-receipt-made-up", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if r := b.row(l.Name); r.Renewal == 0 && l.Receipt == "" {
				l.Receipt = r.Receipt
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"a refusal comes with a lease", "renew/older-receipt", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if err != nil {
				r = l
			}
			return r, err
		},
	}},
	{"the term id is not compared", "renew/other-term-id", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if r := b.row(l.Name); r.Token == l.Token {
				l.TermID = r.TermID
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"a released term can be renewed", "renew/released", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if r := b.row(l.Name); r.Released && r.TermID == l.TermID && r.Receipt == l.Receipt {
				b.edit(l.Name, func(r *row.Row) { r.Released = false })
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"an expired term can be renewed", "renew/expired", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrExpired) {
				b.edit(l.Name, func(r *row.Row) { r.Expires += 1000 * time.Hour })
				r, err = b.Store.Renew(ctx, l, a)
			}
			return r, err
		},
	}},
	{"a renewal is replayed after the expiry", "renew/expired-replay", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrExpired) && b.row(l.Name).UsedBy == a {
				return store.Lease{Name: l.Name, Replayed: true}, nil
			}
			return r, err
		},
	}},
	{"a renewal goes by the name alone", "renew/B02-superseded", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrSuperseded) {
				b.edit(l.Name, func(r *row.Row) { r.Expires += time.Second })
			}
			return r, err
		},
	}},
	{"a record that is gone counts as superseded", "renew/no-record", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrNoRecord) {
				err = store.ErrSuperseded
			}
			return r, err
		},
	}},
	{"a renewal of a record that is gone puts it back", "record/B05-removed", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if !b.row(l.Name).Exists() && l.Renewal > 0 {
				return b.Store.Acquire(ctx, store.Claim{Name: l.Name, Holder: "h", Attempt: a, TTL: l.TTL})
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"the token alone names the term", "record/B02-overwritten", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if r := b.row(l.Name); r.Token == l.Token && r.TermID != l.TermID && strings.Contains(l.Name, "overwritten") {
				l.TermID, l.Receipt = r.TermID, r.Receipt
			}
			return b.Store.Release(ctx, l, a)
		},
	}},
	{"a burnt term's first copy goes on", "twin/burns", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrCloned) {
				b.edit(l.Name, func(r *row.Row) { r.Burns = nil })
			}
			return r, err
		},
	}},
	{"the proof of a twin names no attempts", "twin/evidence", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrCloned) {
				err = fmt.Errorf("%w", store.ErrCloned)
			}
			return r, err
		},
	}},
	{"the proof of a twin frees the election", "twin/expiry-stands", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrCloned) {
				b.edit(l.Name, func(r *row.Row) { r.Expires = 0 })
			}
			return r, err
		},
	}},
	{"the proof of a twin moves the expiry", "twin/expiry-stands", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrCloned) {
				b.edit(l.Name, func(r *row.Row) { r.Expires += time.Second })
			}
			return r, err
		},
	}},
	{"a grant forgets the burnt terms", "twin/next-term", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if err == nil {
				b.edit(c.Name, func(r *row.Row) { r.Burns = nil })
			}
			return l, err
		},
	}},
	{"a burnt term can be released", "twin/nothing-succeeds", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			err := b.Store.Release(ctx, l, a)
			if r := b.row(l.Name); errors.Is(err, store.ErrCloned) && r.TermID == l.TermID && r.Receipt == l.Receipt {
				b.edit(l.Name, func(r *row.Row) { r.Released = true })
				return nil
			}
			return err
		},
	}},
	{"fenced work waits for a burnt term", "twin/fenced-only", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			c.FencedOnly = false
			l, err := b.Store.Acquire(ctx, c)
			if err == nil {
				b.edit(c.Name, func(r *row.Row) { r.FencedOnly = true })
			}
			return l, err
		},
	}},
	{"the claim's word alone frees a burnt term", "twin/fenced-only-needs-both", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); c.FencedOnly && len(r.Burns) > 0 && r.Burns[0].TermID == r.TermID {
				b.edit(c.Name, func(r *row.Row) { r.FencedOnly = true })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the record's word alone frees a burnt term", "twin/fenced-only-needs-both", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.FencedOnly && len(r.Burns) > 0 && r.Burns[0].TermID == r.TermID {
				c.FencedOnly = true
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"fenced work does not wait for a live term", "twin/fenced-only-live", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); c.FencedOnly && r.FencedOnly && r.TermID != c.Attempt {
				b.edit(c.Name, func(r *row.Row) { r.Expires = 0 })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"only the last burnt term is known", "twin/burns-kept", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrCloned) {
				b.edit(l.Name, func(r *row.Row) { r.Burns = r.Burns[:1] })
			}
			return r, err
		},
	}},
	{"the compare-and-swap is none", "twin/at-once", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r := b.row(l.Name)
			if r.Receipt == l.Receipt && strings.Contains(l.Name, "at-once") {
				// Read, decide, write later: the other copy does the same meanwhile.
				time.Sleep(time.Millisecond)
				b.edit(l.Name, func(now *row.Row) {
					now.Receipt, now.Used, now.Renewal, now.Burns = r.Receipt, r.Used, r.Renewal, r.Burns
				})
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"a grant carries no term id", "acquire/grant", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			l.TermID = ""
			return l, err
		},
	}},
	{"a refusal does not say for how long", "acquire/held", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			var held *store.HeldError
			if errors.As(err, &held) {
				held.Remaining = 0
			}
			return l, err
		},
	}},
	{"a refusal is a plain error", "acquire/held", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, store.ErrHeld) {
				err = store.ErrHeld
			}
			return l, err
		},
	}},
	{"a holder of the same name gets in", "acquire/identity", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Exists() && !r.Released && r.Holder == c.Holder && len(r.Burns) == 0 && r.Renewal == 0 {
				c.Attempt = r.TermID
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"a release deletes the record, and the token with it", "acquire/after-release", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			err := b.Store.Release(ctx, l, a)
			if err == nil {
				b.mem.Delete(l.Name)
			}
			return err
		},
	}},
	{"the last second of a lease does not count", "acquire/not-before-expiry", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Exists() && r.TermID != c.Attempt && time.Since(r.RenewedAt) >= time.Second {
				b.edit(c.Name, func(r *row.Row) { r.Expires = 0 })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"an expired lease is held for ever", "acquire/after-expiry", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Exists() && !r.Released && r.TermID != c.Attempt {
				b.edit(c.Name, func(r *row.Row) { r.Expires += 1000 * time.Hour })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the token falls after an expiry", "acquire/tokens-rise", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if rec, err := b.Store.Get(ctx, c.Name); err == nil && rec.State == store.Dead && rec.Renewal > 0 {
				b.edit(c.Name, func(r *row.Row) { r.Token-- })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the token falls now and then", "acquire/rounds", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Token == 400 {
				b.edit(c.Name, func(r *row.Row) { r.Token = 256 })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"read first, then write", "acquire/one-winner", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			before := b.row(c.Name)
			if strings.Contains(c.Name, "one-winner") && (!before.Exists() || before.Released) {
				time.Sleep(time.Millisecond)
				if !before.Exists() {
					b.mem.Delete(c.Name)
				} else {
					b.edit(c.Name, func(r *row.Row) { *r = before })
				}
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the floor is ignored where there is a record", "acquire/floor", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if b.row(c.Name).Exists() {
				c.Floor = 0
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the token starts anew after the largest", "acquire/out-of-tokens", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if errors.Is(err, store.ErrTokens) {
				b.edit(c.Name, func(r *row.Row) { r.Token = 0 })
				l, err = b.Store.Acquire(ctx, c)
			}
			return l, err
		},
	}},
	{"a lost grant is not given again", "acquire/B19-replay", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if l.Replayed {
				return store.Lease{}, &store.HeldError{Name: c.Name, Holder: c.Holder, Token: l.Token, Remaining: l.TTL}
			}
			return l, err
		},
	}},
	{"a replayed grant moves the expiry", "acquire/B19-replay", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if l.Replayed {
				b.edit(c.Name, func(r *row.Row) { r.Expires += time.Second })
			}
			return l, err
		},
	}},
	{"a grant is replayed for ever", "acquire/spent-by-renewal", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if r := b.row(c.Name); errors.Is(err, store.ErrSpent) && r.Renewal > 0 && !r.Released {
				return store.Lease{Name: c.Name, TermID: r.TermID, Token: r.Token, Receipt: r.Receipt, Attempt: c.Attempt, Replayed: true}, nil
			}
			return l, err
		},
	}},
	{"a released term comes back by its attempt", "acquire/spent-by-release", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Released && r.TermID == c.Attempt {
				b.edit(c.Name, func(r *row.Row) { r.TermID = "another" })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"an abandoned grant comes back by its attempt", "acquire/spent-by-abandon", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Released && r.TermID == c.Attempt {
				b.edit(c.Name, func(r *row.Row) { r.Released = false })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"an expired term comes back by its attempt", "acquire/spent-by-expiry", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if rec, err := b.Store.Get(ctx, c.Name); err == nil && rec.State == store.Dead && rec.TermID == c.Attempt {
				b.edit(c.Name, func(r *row.Row) { r.Expires += 1000 * time.Hour })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"a release does nothing", "release/frees", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error { return nil },
	}},
	{"a repeated release is an error", "release/repeated", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if b.row(l.Name).Released {
				return store.ErrReleased
			}
			return b.Store.Release(ctx, l, a)
		},
	}},
	{"a release ignores the pending attempt", "release/pending-carried-out", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			return b.Store.Release(ctx, l, "")
		},
	}},
	{"a release with a pending attempt wants it carried out", "release/pending-not-carried-out", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if r := b.row(l.Name); a != "" && r.UsedBy != a && r.Receipt == l.Receipt {
				return &store.ReceiptError{Name: l.Name}
			}
			return b.Store.Release(ctx, l, a)
		},
	}},
	{"a release takes the consumed receipt from anybody", "release/consumed-receipt", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if r := b.row(l.Name); l.Receipt == r.Used {
				l.Receipt = r.Receipt
			}
			return b.Store.Release(ctx, l, a)
		},
	}},
	{"a release ignores the receipt", "release/made-up-receipt", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if r := b.row(l.Name); r.Renewal == 0 {
				l.Receipt = r.Receipt
			}
			return b.Store.Release(ctx, l, a)
		},
	}},
	{"a release deletes the newer term", "release/B02-superseded", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			err := b.Store.Release(ctx, l, a)
			if errors.Is(err, store.ErrSuperseded) {
				b.edit(l.Name, func(r *row.Row) { r.Released = true })
			}
			return err
		},
	}},
	{"a repeated release succeeds also under the next term", "release/of-the-released", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			err := b.Store.Release(ctx, l, a)
			if errors.Is(err, store.ErrSuperseded) {
				return nil
			}
			return err
		},
	}},
	{"a release goes by the token alone", "release/other-term-id", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if r := b.row(l.Name); r.Token == l.Token {
				l.TermID = r.TermID
			}
			return b.Store.Release(ctx, l, a)
		},
	}},
	{"a release of nothing succeeds", "release/no-record", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			if err := b.Store.Release(ctx, l, a); !errors.Is(err, store.ErrNoRecord) {
				return err
			}
			return nil
		},
	}},
	{"abandoning does nothing", "abandon/frees", broken{
		abandon: func(b *broken, ctx context.Context, name string, a store.Attempt) error { return ctx.Err() },
	}},
	{"abandoning frees a renewed term", "abandon/renewed", broken{
		abandon: func(b *broken, ctx context.Context, name string, a store.Attempt) error {
			if r := b.row(name); r.TermID == a && r.Renewal > 0 {
				b.edit(name, func(r *row.Row) { r.Released = true })
			}
			return b.Store.Abandon(ctx, name, a)
		},
	}},
	{"abandoning frees whoever holds it", "abandon/nothing-there", broken{
		abandon: func(b *broken, ctx context.Context, name string, a store.Attempt) error {
			if r := b.row(name); r.Exists() && r.Renewal == 0 {
				a = r.TermID
			}
			return b.Store.Abandon(ctx, name, a)
		},
	}},
	{"a dead term is shown as vacant", "record/three-answers", broken{
		get: func(b *broken, ctx context.Context, name string) (store.Record, error) {
			rec, err := b.Store.Get(ctx, name)
			if rec.State == store.Dead {
				rec.State = store.Vacant
			}
			return rec, err
		},
	}},
	{"no record is shown as vacant", "record/three-answers", broken{
		get: func(b *broken, ctx context.Context, name string) (store.Record, error) {
			rec, err := b.Store.Get(ctx, name)
			if errors.Is(err, store.ErrNoRecord) {
				return store.Record{Name: name}, nil
			}
			return rec, err
		},
	}},
	{"reading extends", "record/reading-changes-nothing", broken{
		get: func(b *broken, ctx context.Context, name string) (store.Record, error) {
			if b.row(name).Exists() {
				b.edit(name, func(r *row.Row) { r.Expires += time.Second })
			}
			return b.Store.Get(ctx, name)
		},
	}},
	{"the last term's meta stays", "record/next-term-starts-clean", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			c.Meta = cmp.Or(c.Meta, b.row(c.Name).Meta)
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the record's format is not looked at", "record/newer-format", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if b.row(l.Name).Format > store.Format {
				b.edit(l.Name, func(r *row.Row) { r.Format = store.Format })
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"a removed record's floor is ignored", "record/B05-removed-then-acquired", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if c.Floor == 1 {
				c.Floor = 0
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"names are folded to lower case", "input/B32-names", folded(strings.ToLower)},
	{"names lose their trailing spaces", "input/B32-names", folded(func(n string) string { return strings.TrimRight(n, " ") })},
	{"names lose double slashes", "input/B32-names", folded(func(n string) string { return strings.ReplaceAll(n, "//", "/") })},
	{"names are cut at 64 bytes", "input/B32-names", folded(func(n string) string { return n[:min(len(n), 64)] })},
	{"odd names are cleaned", "input/B32-names-refused", folded(func(n string) string { return strings.ToValidUTF8(strings.ReplaceAll(n, "\n", ""), "") })},
	{"long holders are cut", "input/B32-holders", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			c.Holder = c.Holder[:min(len(c.Holder), 100)]
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"meta is escaped", "input/meta", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			c.Meta = strings.ReplaceAll(c.Meta, "\n", `\n`)
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"a TTL of zero is a default", "input/B31-ttl", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if c.TTL == 0 {
				c.TTL = time.Minute
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"a TTL is cut to whole seconds", "input/B31-ttl", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if c.TTL >= time.Second {
				c.TTL = c.TTL.Truncate(time.Second)
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"the lease says what was asked, not what was granted", "input/B31-ttl", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if err == nil && c.TTL == 9*time.Second {
				b.edit(c.Name, func(r *row.Row) { r.TTL += time.Second; r.Expires += time.Second })
			}
			return l, err
		},
	}},
	{"attempts are cut", "input/attempts", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			return b.Store.Renew(ctx, l, a[:min(len(a), store.AttemptMax)])
		},
	}},
	{"floors are cut to what is allowed", "input/claims", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			c.Floor = max(0, min(c.Floor, fence.MaxToken-1))
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"capabilities promise no watch", "call/caps", broken{
		caps: func(c store.Caps) store.Caps { c.Watch = store.WatchNone; return c },
	}},
	{"an answer names the term instead of the attempt", "call/echo", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			r.Attempt = l.TermID
			return r, err
		},
	}},
	{"the store's clock stands still", "call/store-now", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			r.StoreNow = l.StoreNow
			return r, err
		},
	}},
	{"contexts are ignored", "call/cancelled", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			return b.Store.Acquire(context.WithoutCancel(ctx), c)
		},
	}},
	{"an acquire was done although its error denies it", "call/cancelled", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(context.WithoutCancel(ctx), c)
			if ctx.Err() != nil {
				return store.Lease{}, store.Undone(ctx.Err())
			}
			return l, err
		},
	}},
	{"a release ignores its context", "call/cancelled-release", broken{
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			return b.Store.Release(context.WithoutCancel(ctx), l, a)
		},
	}},
	{"closing does nothing", "call/closed", broken{
		close: func(*broken) error { return nil },
	}},
	{"a release is not announced", "watch/vacant", broken{
		watch: onlyHints(func(h store.Hint) bool { return h.Kind != store.HintVacant }),
	}},
	{"a renewal is not announced", "watch/renewed", broken{
		watch: onlyHints(func(h store.Hint) bool { return h.Kind != store.HintRenewed }),
	}},
	{"a renewal is announced with twice its time", "watch/renewed", broken{
		watch: mapHints(func(h store.Hint) store.Hint { h.Remaining *= 2; return h }),
	}},
	{"a watch of what has no record is refused", "watch/before-the-first-grant", broken{
		watch: func(b *broken, ctx context.Context, name string) (<-chan store.Hint, error) {
			if !b.row(name).Exists() {
				return nil, store.ErrNoRecord
			}
			return b.Store.Watch(ctx, name)
		},
	}},
	{"a slow receiver loses the newest hints", "watch/newest", broken{
		watch: keepOldest,
	}},
	{"a watch never ends", "watch/ends", broken{
		watch: func(b *broken, ctx context.Context, name string) (<-chan store.Hint, error) {
			return make(chan store.Hint), nil
		},
	}},
	{"an eviction is not announced", "evict/watch", broken{
		watch: onlyHints(func(h store.Hint) bool { return h.Kind == store.HintRenewed }),
	}},
	{"a list lacks the released", "list/all", broken{
		list: func(b *broken, ctx context.Context) iter.Seq2[store.Record, error] {
			return func(yield func(store.Record, error) bool) {
				for rec, err := range b.Store.List(ctx) {
					if (err != nil || rec.State != store.Vacant) && !yield(rec, err) {
						return
					}
				}
			}
		},
	}},
	{"a list ignores its context", "list/stops", broken{
		list: func(b *broken, ctx context.Context) iter.Seq2[store.Record, error] {
			return b.Store.List(context.WithoutCancel(ctx))
		},
	}},
	{"a batch answers in reverse", "batch/renews", broken{
		batch: func(b *broken, ctx context.Context, batch []store.Renewal) []store.Renewed {
			answers := b.Store.RenewBatch(ctx, batch)
			for i, j := 0, len(answers)-1; i < j; i, j = i+1, j-1 {
				answers[i], answers[j] = answers[j], answers[i]
			}
			return answers
		},
	}},
	{"a batch stops at its first error", "batch/one-harms-no-other", broken{
		batch: func(b *broken, ctx context.Context, batch []store.Renewal) []store.Renewed {
			answers := make([]store.Renewed, len(batch))
			var failed error
			for i, r := range batch {
				if failed == nil {
					answers[i].Lease, failed = b.Store.Renew(ctx, r.Lease, r.Attempt)
				}
				answers[i].Err = failed
			}
			return answers
		},
	}},
	{"a batch ignores its context", "batch/cancelled", broken{
		batch: func(b *broken, ctx context.Context, batch []store.Renewal) []store.Renewed {
			return b.Store.RenewBatch(context.WithoutCancel(ctx), batch)
		},
	}},
	{"an eviction is not told to the holder", "evict/asks-the-holder", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			if b.row(l.Name).Evicted != "" {
				b.edit(l.Name, func(r *row.Row) { r.Evicted = "" })
			}
			return b.Store.Renew(ctx, l, a)
		},
	}},
	{"an eviction frees at once", "evict/asks-the-holder", broken{
		evict: func(b *broken, ctx context.Context, e store.Eviction) (store.Record, error) {
			e.Now = true
			return b.Store.Evict(ctx, e)
		},
	}},
	{"a grant is replayed to the evicted", "evict/replay-of-the-grant", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			if r := b.row(c.Name); r.Evicted != "" && r.TermID == c.Attempt {
				b.edit(c.Name, func(r *row.Row) { r.Evicted = "" })
			}
			return b.Store.Acquire(ctx, c)
		},
	}},
	{"an eviction at once waits", "evict/now", broken{
		evict: func(b *broken, ctx context.Context, e store.Eviction) (store.Record, error) {
			e.Now = false
			return b.Store.Evict(ctx, e)
		},
	}},
	{"an eviction hits whichever term there is", "evict/which-term", broken{
		evict: func(b *broken, ctx context.Context, e store.Eviction) (store.Record, error) {
			e.TermID = ""
			return b.Store.Evict(ctx, e)
		},
	}},
	{"an eviction of nobody succeeds", "evict/nobody", broken{
		evict: func(b *broken, ctx context.Context, e store.Eviction) (store.Record, error) {
			rec, err := b.Store.Evict(ctx, e)
			if errors.Is(err, store.ErrNoRecord) || errors.Is(err, store.ErrVacant) {
				err = nil
			}
			return rec, err
		},
	}},
	{"the history is oldest first", "history/lines", broken{
		history: func(b *broken, ctx context.Context, name string, n int) ([]store.Entry, error) {
			es, err := b.Store.History(ctx, name, n)
			for i, j := 0, len(es)-1; i < j; i, j = i+1, j-1 {
				es[i], es[j] = es[j], es[i]
			}
			return es, err
		},
	}},
	{"the outcome of a refusal is called unknown", "acquire/held", broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			l, err := b.Store.Acquire(ctx, c)
			if err != nil {
				err = unknown{err}
			}
			return l, err
		},
	}},
	{"two refusals are mixed up in one error", "renew/B02-superseded", broken{
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			r, err := b.Store.Renew(ctx, l, a)
			if errors.Is(err, store.ErrSuperseded) {
				err = errors.Join(err, store.ErrExpired)
			}
			return r, err
		},
	}},
}

// unknown says of any error that the outcome is unknown.
type unknown struct{ error }

func (u unknown) Unwrap() error      { return u.error }
func (unknown) OutcomeUnknown() bool { return true }

// burn burns l's term, whatever receipt was presented.
func (b *broken) burn(l store.Lease, a store.Attempt) {
	b.edit(l.Name, func(r *row.Row) {
		r.Burns = append([]store.Burn{{TermID: r.TermID, Token: r.Token, Receipt: l.Receipt, First: r.UsedBy, Second: a}}, r.Burns...)
	})
}

// folded maps names to other ones, and shows the caller its own again.
func folded(fold func(string) string) broken {
	return broken{
		acquire: func(b *broken, ctx context.Context, c store.Claim) (store.Lease, error) {
			name := c.Name
			c.Name = fold(name)
			l, err := b.Store.Acquire(ctx, c)
			if err == nil {
				l.Name = name
			}
			return l, err
		},
		renew: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
			name := l.Name
			l.Name = fold(name)
			r, err := b.Store.Renew(ctx, l, a)
			if err == nil {
				r.Name = name
			}
			return r, err
		},
		release: func(b *broken, ctx context.Context, l store.Lease, a store.Attempt) error {
			l.Name = fold(l.Name)
			return b.Store.Release(ctx, l, a)
		},
		get: func(b *broken, ctx context.Context, name string) (store.Record, error) {
			rec, err := b.Store.Get(ctx, fold(name))
			rec.Name = name
			return rec, err
		},
	}
}

type watchFunc = func(b *broken, ctx context.Context, name string) (<-chan store.Hint, error)

func onlyHints(want func(store.Hint) bool) watchFunc {
	return passHints(func(h store.Hint) (store.Hint, bool) { return h, want(h) })
}

func mapHints(change func(store.Hint) store.Hint) watchFunc {
	return passHints(func(h store.Hint) (store.Hint, bool) { return change(h), true })
}

func passHints(pass func(store.Hint) (store.Hint, bool)) watchFunc {
	return func(b *broken, ctx context.Context, name string) (<-chan store.Hint, error) {
		in, err := b.Store.Watch(ctx, name)
		if err != nil {
			return nil, err
		}
		out := make(chan store.Hint, 100)
		go func() {
			defer close(out)
			for h := range in {
				if h, ok := pass(h); ok {
					out <- h
				}
			}
		}()
		return out, nil
	}
}

// keepOldest has a slot for one hint, which is taken, and drops what comes.
func keepOldest(b *broken, ctx context.Context, name string) (<-chan store.Hint, error) {
	in, err := b.Store.Watch(ctx, name)
	if err != nil {
		return nil, err
	}
	out := make(chan store.Hint, 1)
	out <- store.Hint{Kind: store.HintRenewed, Remaining: time.Second}
	go func() {
		defer close(out)
		for h := range in {
			select {
			case out <- h:
			default:
			}
		}
	}()
	return out, nil
}

// TestBroken proves that the cases can fail: each broken store is caught by the
// case that is there for it.
func TestBroken(t *testing.T) {
	byName := map[string]storetest.Case{}
	for _, c := range storetest.Cases() {
		byName[c.Name] = c
	}
	caught := map[string]bool{"init/again": true, "nonce/differs": true} // memory is neither an Initializer nor a Noncer
	for _, m := range mutants {
		caught[m.caught] = true
		t.Run(m.what, func(t *testing.T) {
			c, ok := byName[m.caught]
			if !ok {
				t.Fatalf("there is no case %q", m.caught)
			}
			synctest.Test(t, func(t *testing.T) {
				err := c.Run(t.Context(), breakMemory(m.broken))
				var skip *storetest.SkipError
				if err == nil || errors.As(err, &skip) {
					t.Errorf("%s let it pass: %v", c.Name, err)
				}
				t.Log(err)
			})
		})
	}
	for name := range byName {
		if !caught[name] {
			t.Errorf("no broken store is there for %s: can it fail?", name)
		}
	}
}

// breakMemory is the harness of the reference store broken in one way.
func breakMemory(with broken) storetest.Harness {
	var mem *memstore.Store
	h := memory(func(s store.Store) store.Store {
		b := with
		b.Store, b.mem = s.(*memstore.Store), mem
		return &b
	})
	open := h.Open
	h.Open = func(ctx context.Context) (store.Store, func() error, error) {
		s, closeStore, err := open(ctx)
		if with.close != nil {
			return s, func() error { return with.close(s.(*broken)) }, err
		}
		return s, closeStore, err
	}
	s, _, err := open(context.Background())
	if err != nil {
		panic(err)
	}
	mem = s.(*broken).Store
	return h
}
