package tenure

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// DefaultTTL is the lease's lifetime unless [Options].TTL is set.
const DefaultTTL = 15 * time.Second

// Options are what an [Elector] may be told. The zero value, and nil, mean the
// defaults. All durations are checked against one another by [NewElector].
type Options struct {
	// Holder is a label for people, shown to whoever asks who leads. It grants
	// nothing. Default: host name and process id. At most 200 bytes.
	Holder string
	// Meta is shown beside it. At most 2000 bytes.
	Meta string

	// TTL is how long the lease stands without a renewal: how long a takeover
	// takes after a crash. Default: 15 s. The store has bounds of its own.
	TTL time.Duration
	// RenewEvery is the time between renewals. Default: TTL/3.
	RenewEvery time.Duration
	// RequestTimeout bounds each request to the store. Default, and most: TTL/9.
	RequestTimeout time.Duration
	// StepDown is how long after the sending of the last answered renewal the term
	// ends and the job is told to stop. Default: 2·TTL/3. At least RenewEvery +
	// 3·RequestTimeout.
	StepDown time.Duration
	// KillAfter is how long the job then has until it must be gone. Default: what
	// is left of TTL. StepDown + KillAfter is at most TTL - Margin.
	KillAfter time.Duration
	// Margin is kept free before the lease can expire, for clocks that run at
	// different rates and for the killing. Default, and least: TTL/500 + 50 ms.
	Margin time.Duration

	// MinHold keeps a term for at least this long, renewing it, also when its job
	// returns earlier: a job started twice by clocks that differ runs once. If ctx
	// ends meanwhile the lease is left to run out by itself.
	MinHold time.Duration
	// Rejoin is the pause of [Elector.Run] before contending again after a term
	// whose job returned, that was given up, or that a resource refused. Default:
	// RenewEvery. After an eviction or a stall it pauses for a TTL, so that another
	// takes over; after any other loss it contends at once.
	Rejoin time.Duration
	// StallAfter ends a term whose job has not called [Term.Progress] for so long,
	// counted from the term's begin at first. Default: 0, never.
	StallAfter time.Duration

	// Floor starts the election's tokens above it: for a move between stores, or
	// after a store lost its counter.
	Floor fence.Token
	// FencedOnly says that every write of the job is fenced. A burnt term may then
	// be taken over before its expiry. All candidates of an election must agree on
	// it.
	FencedOnly bool
	// Takeover says when the election may be taken from a holder that is gone.
	Takeover store.Takeover

	// Observer hears what happens. Nil: nobody.
	Observer Observer
	// Logger gets a line for each thing an operator should know. Nil:
	// [slog.Default], as it is when contending begins. Use
	// slog.New(slog.DiscardHandler) for silence.
	Logger *slog.Logger
}

// prepare checks everything at once and returns options without zero values,
// and the timing.
func (o *Options) prepare(name string, caps store.Caps) (Options, core.Config, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.TTL == 0 {
		opts.TTL = DefaultTTL
	}
	if opts.Holder == "" {
		opts.Holder = defaultHolder()
	}
	cfg := core.Config{
		TTL: opts.TTL, Renew: opts.RenewEvery, Timeout: opts.RequestTimeout, StepDown: opts.StepDown, KillAfter: opts.KillAfter,
		Margin: opts.Margin, MinHold: opts.MinHold, Rejoin: opts.Rejoin,
	}
	faults := []error{opts.claim(name, "check").Validate(caps)}
	if opts.StallAfter < 0 {
		faults = append(faults, fmt.Errorf("StallAfter is %v: allowed is 0 (never) or more", opts.StallAfter))
	}
	if store.CheckTTL(opts.TTL, caps) == nil { // all timing derives from it
		cfg = cfg.WithDefaults(caps.Watch != store.WatchNone)
		faults = append(faults, cfg.Validate())
	}
	if err := errors.Join(faults...); err != nil {
		return opts, cfg, fmt.Errorf("tenure: cannot contend for %q: %w", name, invalid{err})
	}
	return opts, cfg, nil
}

// invalid marks an error as [store.ErrInvalid] and joins its lines into one.
type invalid struct{ error }

func (e invalid) Error() string        { return strings.ReplaceAll(e.error.Error(), "\n", "; ") }
func (e invalid) Unwrap() error        { return e.error }
func (e invalid) Is(target error) bool { return target == store.ErrInvalid }

func (o Options) claim(name string, a store.Attempt) store.Claim {
	return store.Claim{
		Name: name, Holder: o.Holder, Attempt: a, TTL: o.TTL, Meta: o.Meta, Floor: o.Floor, FencedOnly: o.FencedOnly, Takeover: o.Takeover,
	}
}

func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown-host"
	}
	if most := store.HolderMax - 20; len(host) > most {
		host = host[:most]
	}
	return fmt.Sprintf("%s:%d", strings.ToValidUTF8(host, "?"), os.Getpid())
}
