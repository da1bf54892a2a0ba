package tenurepg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Bounds of this store, and what the zero Options mean.
const (
	// TTLMin is the shortest TTL it takes.
	TTLMin = time.Second
	// TTLMax is the longest.
	TTLMax = 365 * 24 * time.Hour

	// WaitDefault is how long a request waits for the server if its context has no
	// deadline.
	WaitDefault = 5 * time.Second
	// ConnectionsDefault is how many connections a store has at most for requests
	// that come at once.
	ConnectionsDefault = 4
	// PollDefault is how often the records that somebody watches are looked at
	// where the server cannot announce changes.
	PollDefault = time.Second
)

// Options change how a store works. The zero Options, and nil, are the defaults.
type Options struct {
	// Wait bounds a request whose context has no deadline, and Close. 0:
	// [WaitDefault].
	Wait time.Duration
	// Poll is how often the records that somebody watches are looked at where the
	// server cannot announce changes: behind a pooler, or through a driver other
	// than pgx. One statement serves all watches of a store. 0: [PollDefault].
	Poll time.Duration

	// The following are for [Open] alone.

	// Connections is how many connections the store has at most for requests that
	// come at once. All but one are closed again when they are not needed. 0:
	// [ConnectionsDefault].
	Connections int
	// Password is asked for the password at each connect. Nil: the URL's, or that
	// of the environment, or of the password file, which is read at each connect.
	Password func(ctx context.Context) (string, error)
}

// withDefaults returns the options with every zero replaced, or an
// [store.ErrInvalid] that joins all faults.
func (o *Options) withDefaults() (Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	var faults []error
	span := func(name string, d *time.Duration, standard time.Duration) {
		switch {
		case *d == 0:
			*d = standard
		case *d < 0:
			faults = append(faults, store.Invalid(fmt.Sprintf("Options.%s is %v: allowed are durations above 0, or 0 for %v", name, *d, standard)))
		}
	}
	span("Wait", &v.Wait, WaitDefault)
	span("Poll", &v.Poll, PollDefault)
	switch {
	case v.Connections == 0:
		v.Connections = ConnectionsDefault
	case v.Connections < 0:
		faults = append(faults, store.Invalid(fmt.Sprintf("Options.Connections is %d: allowed are 1 and more, or 0 for %d", v.Connections, ConnectionsDefault)))
	}
	return v, errors.Join(faults...)
}
