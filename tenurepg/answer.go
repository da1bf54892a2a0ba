package tenurepg

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// answer is what the functions of the schema say. Which fields are there depends
// on the code. Times are in microseconds.
type answer struct {
	Code    string `json:"code"`
	Attempt string `json:"attempt"` // the request's, as an echo
	Now     int64  `json:"now"`     // the server's clock, since 1970
	Nonce   string `json:"nonce"`
	ID      int32  `json:"id"`

	Token   fence.Token   `json:"token"`
	Renewal int64         `json:"renewal"`
	Term    store.Attempt `json:"term"`
	Receipt store.Receipt `json:"receipt"`
	TTL     int64         `json:"ttl"`
	Holder  string        `json:"holder"`
	Left    int64         `json:"left"` // until the expiry; negative: since
	Burnt   bool          `json:"burnt"`
	Evicted string        `json:"evicted"`
	Format  int           `json:"format"`
	Wire    int32         `json:"wire"` // the server process that holds the tripwire

	Name       string `json:"name"`
	Meta       string `json:"meta"`
	Released   bool   `json:"released"`
	Acquired   int64  `json:"acquired"`
	Renewed    int64  `json:"renewed"`
	FencedOnly bool   `json:"fenced_only"`
	Burns      []burn `json:"burns"`
}

// reply is an answer to a request that is about a term.
type reply struct {
	N      int    `json:"n"` // which entry of a batch, from 1
	Answer answer `json:"answer"`
	Burn   *burn  `json:"burn"` // with the code "cloned"
}

type burn struct {
	Term    store.Attempt `json:"term"`
	Token   fence.Token   `json:"token"`
	Receipt store.Receipt `json:"receipt"`
	First   store.Attempt `json:"first"`
	Second  store.Attempt `json:"second"`
	At      int64         `json:"at"`
}

func (b burn) burn() store.Burn {
	return store.Burn{TermID: b.Term, Token: b.Token, Receipt: b.Receipt, First: b.First, Second: b.Second, At: instant(b.At)}
}

// entry is a line of the history.
type entry struct {
	At     int64         `json:"at"`
	What   string        `json:"what"`
	Token  fence.Token   `json:"token"`
	Term   store.Attempt `json:"term"`
	Holder string        `json:"holder"`
	Detail string        `json:"detail"`
}

func decode[T any](text string) (T, error) {
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return v, &failure{kind: store.ErrUnreachable, unknown: true, cause: err, text: "the server's answer cannot be read"}
	}
	return v, nil
}

func span(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func instant(us int64) time.Time { return time.UnixMicro(us) }

// known refuses a record of a newer format.
func (a answer) known(name string) error {
	if a.Format > store.Format {
		return fmt.Errorf("%w: %q has format %d, this program knows %d: upgrade it", store.ErrFormat, name, a.Format, store.Format)
	}
	return nil
}

func (a answer) lease(name string) store.Lease {
	return store.Lease{
		Name: name, TermID: a.Term, Token: a.Token, Receipt: a.Receipt, Renewal: a.Renewal, TTL: span(a.TTL),
		Attempt: store.Attempt(a.Attempt), Replayed: a.Code == "replayed", StoreNow: span(a.Now),
	}
}

func (a answer) record() (store.Record, error) {
	if err := a.known(a.Name); err != nil {
		return store.Record{}, err
	}
	rec := store.Record{
		Name: a.Name, Token: a.Token, TermID: a.Term, Holder: a.Holder, Meta: a.Meta, Renewal: a.Renewal, TTL: span(a.TTL),
		AcquiredAt: instant(a.Acquired), RenewedAt: instant(a.Renewed), FencedOnly: a.FencedOnly, Evicted: a.Evicted,
	}
	switch {
	case a.Released:
		rec.State = store.Vacant
	case a.Left > 0:
		rec.State, rec.Remaining = store.Live, span(a.Left)
	default:
		rec.State = store.Dead
	}
	for _, b := range a.Burns {
		rec.Burns = append(rec.Burns, b.burn())
	}
	return rec, nil
}

// notGranted is why a claim was refused.
func (a answer) notGranted(c store.Claim) error {
	switch a.Code {
	case "format":
		return a.known(c.Name)
	case "spent":
		return fmt.Errorf("%w: %s on %q", store.ErrSpent, c.Attempt, c.Name)
	case "held":
		return &store.HeldError{Name: c.Name, Holder: a.Holder, Token: a.Token, Remaining: span(a.Left), Burnt: a.Burnt}
	case "tokens":
		return fmt.Errorf("%w: %q is at %d and the largest is %d", store.ErrTokens, c.Name, max(a.Token, c.Floor), fence.MaxToken)
	}
	return a.odd()
}

// refusal is why a request about l's term was refused.
func (r reply) refusal(l store.Lease) error {
	a := r.Answer
	switch a.Code {
	case "no-record":
		return fmt.Errorf("%w: %q", store.ErrNoRecord, l.Name)
	case "format":
		return a.known(l.Name)
	case "cloned":
		if r.Burn == nil {
			return a.odd()
		}
		return &store.ClonedError{Name: l.Name, Burn: r.Burn.burn()}
	case "superseded":
		return fmt.Errorf("%w: %q has token %d, this term had %d", store.ErrSuperseded, l.Name, a.Token, l.Token)
	case "released":
		return fmt.Errorf("%w: token %d of %q", store.ErrReleased, l.Token, l.Name)
	case "evicted":
		return &store.EvictedError{Name: l.Name, Reason: a.Evicted}
	case "expired":
		return fmt.Errorf("%w: token %d of %q, %v ago", store.ErrExpired, l.Token, l.Name, (-span(a.Left)).Round(time.Millisecond))
	case "receipt":
		return &store.ReceiptError{Name: l.Name, Token: a.Token, Presented: l.Renewal, Current: a.Renewal}
	case "busy":
		return &failure{kind: store.ErrBusy, text: fmt.Sprintf("the row of %q is locked by somebody else", l.Name)}
	}
	return a.odd()
}

// odd is the error of an answer that this package does not know.
func (a answer) odd() error {
	return &failure{kind: store.ErrFormat, text: fmt.Sprintf("the schema tenure answers %q, which this program does not know: use a newer version of it", a.Code)}
}
