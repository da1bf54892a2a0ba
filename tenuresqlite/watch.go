package tenuresqlite

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

const (
	// lookGap is the shortest time between two looks at the file, so that a burst
	// of changes costs few.
	lookGap = 5 * time.Millisecond
	// lookSlow is how often the file is looked at though nobody announced a change.
	// It finds what was never announced: a change made by hand, or by a process
	// that was killed between its commit and its announcement.
	lookSlow = 5 * time.Second
	// lookFast is how often the file's times are looked at where the system does
	// not announce changes.
	lookFast = 25 * time.Millisecond
	// lookTime is how long one look may take.
	lookTime = time.Second
)

// hub watches the file for all Watch calls of a store: one goroutine and one
// notifier, while there is anybody to tell.
type hub struct {
	s *Store

	mu     sync.Mutex
	closed bool
	names  map[string]*watched
	poke   chan struct{}   // a new watch wants a look
	cancel func()          // ends the goroutine
	ended  <-chan struct{} // it has ended
}

// watched is one election that somebody watches.
type watched struct {
	last     entry
	watchers map[*watcher]struct{}
}

// watcher is one Watch call. Its channel has one slot, which always holds the
// newest hint that was not received yet.
type watcher struct {
	hints chan store.Hint
	stop  func() bool // stops waiting for the end of the watch's context
}

// Watch sends hints about an election until ctx ends or the store is closed,
// then closes the channel, see [store.Watcher]. It announces grants and renewals
// ([store.HintRenewed]), vacancies ([store.HintVacant]) and whatever else
// happens to a record ([store.HintChanged]); an expiry by itself is not
// announced. The election, and the file, need not exist yet. Hints come within
// milliseconds of the change, from any process on this host. What nobody
// announced, such as a change by hand, is seen within some eight seconds.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	now, err := read(ctx, s, func(c *conn) (entry, error) { return loadEntry(c, name) })
	if err != nil && !errors.Is(err, errNoFile) {
		return nil, err
	}
	return s.hub.watch(ctx, name, now)
}

func (h *hub) watch(ctx context.Context, name string, now entry) (<-chan store.Hint, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, store.ErrStoreClosed
	}
	if len(h.names) == 0 {
		h.start()
	}
	of := h.names[name]
	if of == nil {
		of = &watched{last: now, watchers: make(map[*watcher]struct{})}
		h.names[name] = of
	}
	w := &watcher{hints: make(chan store.Hint, 1)}
	of.watchers[w] = struct{}{}
	w.stop = context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.end(name, w)
	})
	// What happened between reading the record and now is found by a look.
	select {
	case h.poke <- struct{}{}:
	default:
	}
	return w.hints, nil
}

// start starts the goroutine. The caller holds the lock.
func (h *hub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	previous, ended := h.ended, make(chan struct{})
	h.names, h.poke, h.cancel, h.ended = make(map[string]*watched), make(chan struct{}, 1), cancel, ended
	poke := h.poke
	go func() {
		defer close(ended)
		if previous != nil {
			<-previous
		}
		h.run(ctx, poke)
	}()
}

// end closes a watcher's channel, once, and ends the goroutine after the last.
// The caller holds the lock.
func (h *hub) end(name string, w *watcher) {
	of := h.names[name]
	if of == nil {
		return
	}
	if _, ok := of.watchers[w]; !ok {
		return
	}
	delete(of.watchers, w)
	w.stop()
	close(w.hints)
	if len(of.watchers) == 0 {
		delete(h.names, name)
	}
	if len(h.names) == 0 {
		h.cancel()
	}
}

// close ends all watches and waits for the goroutine.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	for name, of := range h.names {
		for w := range of.watchers {
			h.end(name, w)
		}
	}
	ended := h.ended
	h.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// run looks at the file when a change is announced, and slowly besides, until
// ctx ends.
func (h *hub) run(ctx context.Context, poke <-chan struct{}) {
	var (
		n      *notifier // nil: the system cannot announce changes
		events <-chan struct{}
		seen   stamp     // what the file looked like when it was last looked at
		looked time.Time // when that was
		tried  time.Time // when the notifier was last set up
		failed bool      // that did not succeed
	)
	defer func() { n.close() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		every := lookSlow
		if events == nil || n.remote || failed {
			every = lookFast
		}
		timer.Reset(every/2 + rand.N(every))
		select {
		case <-ctx.Done():
			return
		case <-poke:
		case _, ok := <-events:
			if !ok {
				events, tried = nil, time.Time{} // the file appeared, or its directory went
			}
		case <-timer.C:
			if !failed && stampOf(h.s.path) == seen && time.Since(looked) < lookSlow {
				continue
			}
		}
		if events == nil && time.Since(tried) >= lookSlow/2 {
			tried = time.Now()
			n.close()
			if n = newNotifier(h.s.path); n != nil {
				events = n.wake
				go n.run()
			}
		}
		// The stamp is taken before the look, so that a change during it is seen.
		seen, looked = stampOf(h.s.path), time.Now()
		failed = !h.look(ctx)

		timer.Reset(lookGap)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// sight is what one look at the file saw.
type sight struct {
	entries map[string]entry
	clock   string
	now     row.Now
}

// look reads every watched row and tells the watchers what is new. It reports
// whether it could.
func (h *hub) look(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	h.mu.Lock()
	names := make([]string, 0, len(h.names))
	for name := range h.names {
		names = append(names, name)
	}
	h.mu.Unlock()

	saw, err := read(ctx, h.s, func(c *conn) (sight, error) {
		saw := sight{entries: make(map[string]entry, len(names))}
		for _, name := range names {
			e, err := loadEntry(c, name)
			if isDamaged(err) {
				continue
			}
			if err != nil {
				return sight{}, err
			}
			saw.entries[name] = e
		}
		r, err := h.s.options.clock()
		saw.clock, saw.now = clockID(r.boot, c.id), r.now
		return saw, err
	})
	switch {
	case errors.Is(err, errNoFile):
		saw.entries = make(map[string]entry)
		for _, name := range names {
			saw.entries[name] = entry{}
		}
	case err != nil:
		return false
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	for name, e := range saw.entries {
		of := h.names[name]
		if of == nil {
			continue
		}
		hint, ok := saw.hint(of.last, e)
		of.last = e
		if !ok {
			continue
		}
		for w := range of.watchers {
			// This is the only sender, so there is room after making some.
			select {
			case <-w.hints:
			default:
			}
			w.hints <- hint
		}
	}
	return true
}

// hint says what a change of an entry means for those who wait.
func (s sight) hint(before, after entry) (store.Hint, bool) {
	if reflect.DeepEqual(before, after) {
		return store.Hint{}, false
	}
	remaining, _ := after.left(s.clock, s.now)
	switch {
	case remaining <= 0: // released, removed or expired
		return store.Hint{Kind: store.HintVacant}, true
	case after.row.Token != before.row.Token, after.row.Renewal != before.row.Renewal, after.row.Expires != before.row.Expires:
		return store.Hint{Kind: store.HintRenewed, Remaining: remaining}, true
	}
	return store.Hint{Kind: store.HintChanged}, true
}
