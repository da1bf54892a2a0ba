package tenurepg

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// home is the connection of a store's own. Requests and the listener share it:
// a process that waits needs no second one. It is made when it is first needed
// and again when it broke.
type home struct {
	dial dialer

	mu      sync.Mutex
	holder  holder
	yield   context.CancelFunc // makes the listener let go of the connection
	waiting int                // requests that wait for their turn
	freed   chan struct{}      // closed when the holder lets go, or the last one waiting gave up
	closed  bool

	link *link // owned by the holder
}

// holder is who uses the connection.
type holder int

const (
	nobody holder = iota
	listener
	request
)

func newHome(d dialer) *home { return &home{dial: d, freed: make(chan struct{})} }

// take gets the connection for a request. If another request has it and the
// caller is not patient, it does not wait. It reports whether it got it.
func (h *home) take(ctx context.Context, patient bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.closed:
			return false
		case h.holder == nobody:
			h.holder = request
			return true
		case h.holder == request && !patient:
			return false
		case h.holder == listener:
			h.yield()
		}
		if !h.wait(ctx, 1) {
			return false
		}
	}
}

// takeToListen gets the connection for the listener once no request wants it.
// yield is called when one does.
func (h *home) takeToListen(ctx context.Context, yield context.CancelFunc) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.holder != nobody || h.waiting > 0 {
		if h.closed || !h.wait(ctx, 0) {
			return false
		}
	}
	if h.closed {
		return false
	}
	h.holder, h.yield = listener, yield
	return true
}

// wait waits until somebody lets go of the connection. The caller holds the lock,
// which is released meanwhile.
func (h *home) wait(ctx context.Context, n int) bool {
	freed := h.freed
	h.waiting += n
	h.mu.Unlock()
	ok := true
	select {
	case <-freed:
	case <-ctx.Done():
		ok = false
	}
	h.mu.Lock()
	h.waiting -= n
	if !ok && n > 0 && h.waiting == 0 {
		h.wake()
	}
	return ok
}

// wake wakes whoever waits for the connection. The caller holds the lock.
func (h *home) wake() {
	close(h.freed)
	h.freed = make(chan struct{})
}

// give lets go of the connection.
func (h *home) give() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holder, h.yield = nobody, nil
	if h.closed {
		h.drop()
	}
	h.wake()
}

// open returns the connection, made if there is none. The caller is the holder.
func (h *home) open(ctx context.Context) (*link, error) {
	if h.link != nil && !h.link.IsClosed() {
		return h.link, nil
	}
	h.link = nil
	l, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}
	h.link = l
	return l, nil
}

// drop ends the connection without waiting for the server. The caller is the
// holder.
func (h *home) drop() {
	if h.link == nil {
		return
	}
	hangUp(h.link.PgConn())
	h.link = nil
}

// close ends the connection now, or when its holder lets go of it. Nobody gets it
// any more.
func (h *home) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	switch h.holder {
	case nobody:
		h.drop()
	case listener:
		h.yield()
	}
	h.wake()
}

// hangUp says good-bye to the server, which a dead one does not hear, and closes
// the connection.
func hangUp(c *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = c.Close(ctx) // it is of no more use either way
}

// errYield ends the listener's wait on the connection.
var errYield = errors.New("a request wants the connection")

// hear waits on the connection for a notification, at most until ctx ends. The
// caller is the listener. A connection on which nothing came is as good as before.
func hear(ctx context.Context, l *link) (*pgconn.Notification, error) {
	n, err := l.WaitForNotification(ctx)
	if err != nil && ctx.Err() != nil && !l.IsClosed() {
		return nil, errYield
	}
	return n, err
}
