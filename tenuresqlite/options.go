package tenuresqlite

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Bounds of this store, and what the zero Options mean.
const (
	// TTLMin is the shortest TTL it takes: a busy disk can make a commit wait for
	// some hundred milliseconds.
	TTLMin = time.Second
	// TTLMax is the longest.
	TTLMax = 365 * 24 * time.Hour

	// WaitDefault is how long a request waits for the file if its context has no
	// deadline.
	WaitDefault = 5 * time.Second
	// HistoryMaxDefault is how many lines of history are kept of each election.
	HistoryMaxDefault = 1000
	// HistoryAgeDefault is how long they are kept.
	HistoryAgeDefault = 90 * 24 * time.Hour
)

// Journal is how SQLite keeps a file whole while it is written.
type Journal string

// The journal modes.
const (
	// WAL is the write-ahead log: readers and the writer do not wait for one
	// another. It needs a file system that can map shared memory.
	WAL Journal = "wal"
	// Rollback is the rollback journal. It works everywhere; a reader delays the
	// writer's commit.
	Rollback Journal = "delete"
)

// Options change how a store is opened. The zero Options, and nil, are the
// defaults.
type Options struct {
	// Journal is the journal mode of a file that this store creates; empty: [WAL].
	// A file that exists keeps its own.
	Journal Journal
	// Wait bounds a request whose context has no deadline, and Close. 0:
	// [WaitDefault].
	Wait time.Duration
	// HistoryMax is how many lines of history are kept of each election. 0:
	// [HistoryMaxDefault].
	HistoryMax int
	// HistoryAge is how long they are kept. 0: [HistoryAgeDefault].
	HistoryAge time.Duration

	clock clockFunc // of tests; nil: this host's
}

// withDefaults returns the options with every zero replaced, or an
// [store.ErrInvalid] that joins all faults.
func (o *Options) withDefaults() (Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, store.Invalid(fmt.Sprintf(format, args...))) }
	switch v.Journal {
	case "":
		v.Journal = WAL
	case WAL, Rollback:
	default:
		fault("Options.Journal is %q: allowed are %q and %q", v.Journal, WAL, Rollback)
	}
	switch {
	case v.Wait == 0:
		v.Wait = WaitDefault
	case v.Wait < 0:
		fault("Options.Wait is %v: allowed are durations above 0, or 0 for %v", v.Wait, WaitDefault)
	}
	switch {
	case v.HistoryMax == 0:
		v.HistoryMax = HistoryMaxDefault
	case v.HistoryMax < 0:
		fault("Options.HistoryMax is %d: allowed are 1 and more, or 0 for %d", v.HistoryMax, HistoryMaxDefault)
	}
	switch {
	case v.HistoryAge == 0:
		v.HistoryAge = HistoryAgeDefault
	case v.HistoryAge < 0:
		fault("Options.HistoryAge is %v: allowed are durations above 0, or 0 for %v", v.HistoryAge, HistoryAgeDefault)
	}
	if v.clock == nil {
		v.clock = hostClock
	}
	return v, errors.Join(faults...)
}
