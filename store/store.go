package store

import (
	"context"
	"iter"
	"time"

	"github.com/tenure-go/tenure/fence"
)

// Attempt is an id drawn for one request and kept through its retries. No two
// requests, and no two copies of one process, may use the same one; package
// tenure draws them. A store remembers the last granted one only, so an attempt
// that a copy presents very late can be granted again, with a higher token: a
// term is named by its id and its token together. It is 1 to [AttemptMax] bytes of printable ASCII without
// spaces.
type Attempt string

// AttemptMax is the longest attempt id, in bytes.
const AttemptMax = 64

// Receipt is what a store hands out at every grant and renewal; the next
// renewal of the term must present it. It is opaque to everybody else.
type Receipt string

// Takeover says when an election may be taken from a holder that did not
// release it.
type Takeover int

const (
	// AtExpiry waits for the lease to run out: the default.
	AtExpiry Takeover = iota
	// OnDisconnect takes the lease as soon as the store sees that the holder's
	// connection is gone. Only for work whose every write is fenced.
	OnDisconnect
)

// Claim is a wish to lead.
type Claim struct {
	Name    string        // the election, see [CheckName]
	Holder  string        // a label for people; it grants nothing
	Attempt Attempt       // drawn for this claim; becomes the term id if it is granted
	TTL     time.Duration // how long the lease stands without a renewal
	Meta    string        // shown beside the holder; at most [MetaMax] bytes of UTF-8 without zero bytes
	Floor   fence.Token   // the granted token will be above it; 0: no floor
	// FencedOnly says that every write of the work is fenced. Such an election may
	// be taken over from a burnt term before its expiry. It belongs to the election,
	// not to the claim: all candidates must agree on it, since after such a takeover
	// a copy of the burnt term may still be valid.
	FencedOnly bool
	Takeover   Takeover
}

// Lease is a granted right, as of the last answered request about it.
type Lease struct {
	Name     string
	TermID   Attempt       // the attempt that was granted
	Token    fence.Token   // the term's fencing token
	Receipt  Receipt       // to be presented at the next renewal
	Renewal  int64         // how many renewals were answered; 0: just granted
	TTL      time.Duration // what was granted; may be longer than asked, by the store's precision
	Attempt  Attempt       // the attempt this answer belongs to
	Replayed bool          // the answer to an earlier delivery of the same attempt, given again
	// StoreNow is the store's clock when it answered, since an epoch of its own.
	// Only differences mean anything. Zero: the store has no clock to show.
	StoreNow time.Duration
}

// State is one of three answers. There is no fourth and no boolean: ignorance
// is an error, never "free".
type State int

const (
	// Vacant: nobody owns it. The last term was released or given back.
	Vacant State = iota
	// Live: a term holds it and its expiry lies ahead. The holder may still be
	// dead; the store cannot know before the expiry.
	Live
	// Dead: the last term was not released and its expiry has passed.
	Dead
)

// String returns "vacant", "live" or "dead".
func (s State) String() string {
	switch s {
	case Vacant:
		return "vacant"
	case Live:
		return "live"
	case Dead:
		return "dead"
	}
	return "unknown"
}

// Record is what a store knows of an election. It may be stale as soon as it is
// returned.
type Record struct {
	Name      string
	State     State
	Token     fence.Token // the last one granted; never falls
	TermID    Attempt
	Holder    string
	Meta      string
	Renewal   int64
	TTL       time.Duration
	Remaining time.Duration // until the expiry by the store's clock; 0 unless Live
	// AcquiredAt and RenewedAt are for people: the store's wall clock, which
	// decides nothing.
	AcquiredAt, RenewedAt time.Time
	FencedOnly            bool
	Evicted               string // why an operator asked this term to go; empty: nobody did
	// Foreign says that the record was written under another clock (another boot,
	// or a copied file), so Remaining is a full TTL from when that was first seen.
	Foreign bool
	Burns   []Burn // burnt terms, newest first, at most [BurnsMax]
}

// Burnt reports whether the record's current term is burnt.
func (r Record) Burnt() bool {
	return len(r.Burns) > 0 && r.Burns[0].TermID == r.TermID && r.Burns[0].Token == r.Token && r.TermID != ""
}

// BurnsMax is how many burnt terms a record remembers.
const BurnsMax = 8

// Burn is a term that was proven to have a twin.
type Burn struct {
	TermID  Attempt
	Token   fence.Token
	Receipt Receipt // the receipt that was presented twice
	First   Attempt // the attempt that consumed it
	Second  Attempt // the attempt that presented it again
	At      time.Time
}

// Store is what a back end implements. Package row has the rule every
// implementation follows, memstore is the reference, and storetest has the
// cases each must pass.
//
// All methods are safe for concurrent use, block until the store answered or
// ctx ends, and never grant anything on an error. Errors are told apart as the
// variables of this package say; [OutcomeUnknown] tells whether a failed
// request may have been carried out all the same. Whoever opens a store closes
// it.
type Store interface {
	// Acquire grants the claim if the election is vacant, dead, or was granted to
	// this same attempt and never renewed (Replayed). Otherwise *[HeldError].
	// [ErrSpent]: the attempt was used up; draw another.
	Acquire(ctx context.Context, c Claim) (Lease, error)

	// Renew moves the expiry to a full TTL from the store's now and returns a new
	// receipt, if l's term, token and receipt are the current ones. The same
	// attempt on the receipt it consumed is answered again (Replayed). Another
	// attempt on it proves a twin: the term is burnt, [ErrCloned].
	Renew(ctx context.Context, l Lease, a Attempt) (Lease, error)

	// Release frees the election and keeps its record. a is the renewal that is
	// pending on l, or empty. Releasing a released term again succeeds.
	Release(ctx context.Context, l Lease, a Attempt) error

	// Abandon gives back an acquire whose outcome stayed unknown. It frees the
	// election only if that attempt was granted and never renewed, and succeeds
	// when there is nothing to give back.
	Abandon(ctx context.Context, name string, a Attempt) error

	// Get reads the record. [ErrNoRecord]: there is none, which is not the same as
	// vacant.
	Get(ctx context.Context, name string) (Record, error)

	// Caps says what the store is and what it can promise. It does not block.
	Caps() Caps
}

// ClockKind says whose clock judges an expiry.
type ClockKind string

// The kinds of clock.
const (
	ClockStore    ClockKind = "store"    // the store's own
	ClockHost     ClockKind = "host"     // this host's, shared by every process on it
	ClockObserver ClockKind = "observer" // each waiter's own, against an unchanged record
)

// WatchKind says how a store tells that a vacancy may exist.
type WatchKind string

// The kinds of watch.
const (
	WatchNone WatchKind = "none" // waiters poll
	WatchPush WatchKind = "push" // the store announces vacancies and renewals
)

// Caps are a store's capabilities.
type Caps struct {
	Store     string        // its short name: "memory", "sqlite", …
	Clock     ClockKind     // whose clock judges the expiry
	Precision time.Duration // a granted TTL is rounded up to a multiple of it
	TTLMin    time.Duration // the shortest TTL it takes
	TTLMax    time.Duration // the longest
	Watch     WatchKind
	Token     string // where tokens come from, for people
	NameMax   int    // the longest election name, in bytes; at most [NameMax]
	Nonce     bool   // whether its connections carry a nonce of the server, see [Noncer]
	Takeover  bool   // whether it can do [OnDisconnect]
	Scope     string // what it excludes and what it does not, for people
}

// HintKind says what a [Hint] is about.
type HintKind int

// The kinds of hint.
const (
	HintChanged HintKind = iota // something changed; ask
	HintVacant                  // the election may be vacant
	HintRenewed                 // the term was renewed and stands for Remaining
)

// Hint is a sign that something happened to an election. Hints may be lost,
// late, repeated or wrong; they are never proof.
type Hint struct {
	Kind      HintKind
	Remaining time.Duration // with HintRenewed
}

// Watcher is a store that can announce changes.
type Watcher interface {
	// Watch sends hints about an election until ctx ends, then closes the channel.
	// A slow receiver loses hints, never the newest.
	Watch(ctx context.Context, name string) (<-chan Hint, error)
}

// Noncer is a store whose server gave this connection a value that no other
// connection has. It goes into the drawing of attempt ids, so that two copies
// of a process on two connections draw different ones.
type Noncer interface {
	// Nonce returns the current connection's value, or nothing if there is none
	// yet. It does not block.
	Nonce() string
}

// Lister is a store that can list its elections.
type Lister interface {
	// List yields every record, in the order of the names' bytes. An error ends
	// the sequence.
	List(ctx context.Context) iter.Seq2[Record, error]
}

// Renewal is one entry of a batch.
type Renewal struct {
	Lease   Lease
	Attempt Attempt
}

// Renewed is the answer to one entry of a batch.
type Renewed struct {
	Lease Lease
	Err   error
}

// BatchRenewer is a store that renews many leases in one request.
type BatchRenewer interface {
	// RenewBatch renews each entry as Renew would and returns one answer for each,
	// in the same order. One entry that cannot be renewed harms no other.
	RenewBatch(ctx context.Context, batch []Renewal) []Renewed
}

// Eviction is an operator's wish that a term ends.
type Eviction struct {
	Name   string
	TermID Attempt // which term; empty: whichever holds it
	Reason string  // for people; required
	// Now frees the election at once, instead of waiting for the holder's
	// acknowledgement or the expiry. Only for work whose every write is fenced.
	Now bool
}

// Evictor is a store that can mark a term so that its next renewal is refused
// with [ErrEvicted].
type Evictor interface {
	// Evict marks the current term and returns the record as it then is.
	// [ErrNoRecord] or [ErrVacant]: there is nobody to evict.
	Evict(ctx context.Context, e Eviction) (Record, error)
}

// Entry is a line of an election's history.
type Entry struct {
	At     time.Time
	Name   string
	What   string // "granted", "released" (also: given back), "expired", "burnt", "evicted"
	Token  fence.Token
	TermID Attempt
	Holder string
	Detail string
}

// Historian is a store that remembers who led when.
type Historian interface {
	// History returns the newest entries of an election, newest first, at most n.
	History(ctx context.Context, name string, n int) ([]Entry, error)
}

// Finding is something a store wants its operator to know.
type Finding struct {
	OK   bool
	What string // the thing looked at
	Text string // what was found, and what to do about it
}

// Diagnoser is a store that can look at its own setting-up.
type Diagnoser interface {
	Diagnose(ctx context.Context) ([]Finding, error)
}

// Initializer is a store that has something to set up before its first use.
type Initializer interface {
	// Init sets up what is missing, changes nothing that is there, and returns a
	// line for people that says what was done.
	Init(ctx context.Context) (string, error)
}

// As finds the first store in s's chain of wrappers that implements T, as
// [errors.As] does for errors. A wrapper has a method Unwrap() Store.
func As[T any](s Store) (T, bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		w, ok := s.(interface{ Unwrap() Store })
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var zero T
	return zero, false
}
