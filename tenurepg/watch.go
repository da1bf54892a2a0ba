package tenurepg

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenure-go/tenure/store"
)

const (
	// wireSlice is how long a follower waits for a tripwire at a time. A lock that is
	// waited for holds a snapshot, for which a vacuum and CREATE INDEX CONCURRENTLY
	// wait.
	wireSlice = 5 * time.Second
	// wireQueue is how often, at most, a follower looks whether the only place in the
	// queue for a tripwire is free.
	wireQueue = 30 * time.Second
	// wirePause follows a wire that was cut, or a wait that failed.
	wirePause = time.Second
	// wiresMax is how many tripwires a process waits for at most: each takes a
	// connection.
	wiresMax = 64

	// listenPauseMax is the longest pause before listening again.
	listenPauseMax = 5 * time.Second
)

// wireSlots are the connections that this process waits on.
var wireSlots = make(chan struct{}, wiresMax)

// watches are the Watch calls of a store: one goroutine that listens, or looks,
// while there is anybody to tell.
type watches struct {
	s *Store

	mu     sync.Mutex
	closed bool
	names  map[string]*watched
	ids    map[int32]string // of the records that are known
	cancel context.CancelFunc
	wake   context.CancelFunc // interrupts the listener: there is a new watch
	ended  chan struct{}      // the goroutine has
}

// watched is one election that somebody watches.
type watched struct {
	watchers map[*watcher]struct{}
	ready    chan struct{}      // closed when hints flow
	failed   error              // or why they do not; with ready
	last     sight              // what was last seen
	seen     bool               // it was looked at
	stopWire context.CancelFunc // ends the wait for the tripwire; nil: there is none
}

// watcher is one Watch call. Its channel has one slot, which always holds the
// newest hint that was not received yet.
type watcher struct {
	hints chan store.Hint
	stop  func() bool // stops waiting for the end of the watch's context
}

// sight is what a look at a record sees.
type sight struct {
	answer
	expires int64 // by the server's clock
}

func sightOf(a answer) sight { return sight{answer: a, expires: a.Now + a.Left} }

// Watch sends hints about an election until ctx ends or the store is closed, then
// closes the channel, see [store.Watcher]. It announces grants and renewals
// ([store.HintRenewed]), vacancies ([store.HintVacant], also when the connection of
// a holder broke whose claim said [store.OnDisconnect]), and whatever else happens
// to a record ([store.HintChanged]); an expiry by itself is not announced. The
// election need not exist yet.
//
// It blocks until hints flow, and fails if that takes longer than Options.Wait. On
// a direct connection the server pushes them, within milliseconds. Behind a pooler
// the store looks at the watched records every Options.Poll. When the connection
// broke, what happened meanwhile is hinted at once it is there again.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Hint, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	wait, cancel := context.WithTimeout(ctx, s.options.Wait)
	defer cancel()
	if err := s.check(wait); err != nil {
		return nil, err
	}
	return s.watches.watch(ctx, wait, name)
}

func (w *watches) watch(ctx, wait context.Context, name string) (<-chan store.Hint, error) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, store.ErrStoreClosed
	}
	if len(w.names) == 0 {
		w.start()
	}
	of := w.names[name]
	if of == nil {
		of = &watched{watchers: make(map[*watcher]struct{}), ready: make(chan struct{})}
		w.names[name] = of
		if w.wake != nil {
			w.wake()
		}
	}
	one := &watcher{hints: make(chan store.Hint, 1)}
	of.watchers[one] = struct{}{}
	one.stop = context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.end(name, one)
	})
	ready := of.ready
	w.mu.Unlock()

	var err error
	select {
	case <-ready:
		w.mu.Lock()
		err = of.failed
		w.mu.Unlock()
	case <-wait.Done():
		err = explain(wait.Err(), "watching "+strconv.Quote(name))
	}
	if err != nil {
		w.mu.Lock()
		w.end(name, one)
		w.mu.Unlock()
		return nil, err
	}
	return one.hints, nil
}

// start starts the goroutine. The caller holds the lock.
func (w *watches) start() {
	ctx, cancel := context.WithCancel(context.Background())
	previous, ended := w.ended, make(chan struct{})
	w.names, w.ids, w.cancel, w.wake, w.ended = make(map[string]*watched), make(map[int32]string), cancel, nil, ended
	go func() {
		defer close(ended)
		if previous != nil {
			<-previous
		}
		w.run(ctx)
	}()
}

// end closes a watcher's channel, once, and ends the goroutine after the last. The
// caller holds the lock.
func (w *watches) end(name string, one *watcher) {
	of := w.names[name]
	if of == nil {
		return
	}
	if _, ok := of.watchers[one]; !ok {
		return
	}
	delete(of.watchers, one)
	one.stop()
	close(one.hints)
	if len(of.watchers) == 0 {
		of.unwire()
		delete(w.names, name)
		delete(w.ids, of.last.ID)
	}
	if len(w.names) == 0 {
		w.cancel()
	}
}

// close ends all watches and waits for the goroutine, or until ctx ends.
func (w *watches) close(ctx context.Context) {
	w.mu.Lock()
	w.closed = true
	for name, of := range w.names {
		for one := range of.watchers {
			w.end(name, one)
		}
	}
	ended := w.ended
	w.mu.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// run listens where that is possible, and looks where it is not, until ctx ends.
func (w *watches) run(ctx context.Context) {
	defer w.s.stopListening()
	pause := time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		err := w.listen(ctx)
		if errors.Is(err, errPooled) || errors.Is(err, errNotPgx) {
			w.poll(ctx)
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.fail(err)
		if time.Since(began) > listenPauseMax {
			pause = 0 // it worked for a while
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause + time.Millisecond)):
		}
		pause = min(2*pause+50*time.Millisecond, listenPauseMax)
	}
}

// errPooled says that the server's sessions are shared among clients.
var errPooled = errors.New("there is a pooler between")

// listen hears notifications until the connection breaks.
func (w *watches) listen(ctx context.Context) error {
	if err := w.subscribe(ctx); err != nil {
		return err
	}
	if err := w.look(ctx, true); err != nil {
		return err
	}
	for ctx.Err() == nil {
		wait, cancel := context.WithCancel(ctx)
		w.mu.Lock()
		w.wake = cancel
		fresh := w.unseen()
		w.mu.Unlock()
		if fresh {
			cancel()
			if err := w.look(ctx, true); err != nil {
				return err
			}
			continue
		}
		err := w.hear(ctx, wait, cancel)
		cancel()
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// hear waits for a notification and passes it on. It returns nil also when it was
// interrupted.
func (w *watches) hear(ctx, wait context.Context, cancel context.CancelFunc) error {
	h := w.s.home
	if !h.takeToListen(ctx, cancel) {
		return context.Canceled
	}
	l := h.link
	if l == nil || l.IsClosed() || !l.listening {
		h.give()
		return w.subscribe(ctx) // a request has made it anew
	}
	n, err := hear(wait, l)
	if err != nil && !errors.Is(err, errYield) {
		h.drop()
	}
	h.give()
	switch {
	case errors.Is(err, errYield):
		return nil
	case err != nil:
		return explain(err, "listening")
	case n == nil:
		return nil
	}
	w.notified(n.Channel, n.Payload)
	return nil
}

// subscribe makes the home connection listen.
func (w *watches) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.s.options.Wait)
	defer cancel()
	h := w.s.home
	if !h.take(ctx, true) {
		return store.ErrStoreClosed
	}
	defer h.give()
	l, err := h.open(ctx)
	switch {
	case err != nil:
		return connecting(err)
	case l.session == 0:
		return errPooled
	case l.listening:
		return nil
	}
	if _, err := l.Exec(ctx, sqlListen); err != nil {
		h.drop()
		return explain(err, "listening")
	}
	l.listening = true
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range w.names {
		of.seen = false // something may have happened meanwhile
	}
	return nil
}

// stopListening makes the home connection one for requests alone, or ends it if it
// was made for listening.
func (s *Store) stopListening() {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.Wait)
	defer cancel()
	h := s.home
	if !h.take(ctx, true) {
		return
	}
	defer h.give()
	if h.link == nil || !h.link.listening {
		return
	}
	h.link.listening = false
	if _, isOwn := s.run.(*own); !isOwn {
		h.drop()
		return
	}
	if _, err := h.link.Exec(ctx, sqlUnlisten); err != nil {
		h.drop()
	}
}

// poll looks at the watched records again and again until ctx ends.
func (w *watches) poll(ctx context.Context) {
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, w.s.options.Poll*3/4+rand.N(w.s.options.Poll/2+1))
		w.mu.Lock()
		w.wake = cancel
		fresh := w.unseen()
		w.mu.Unlock()
		if !fresh {
			<-wait.Done()
		}
		cancel()
		if err := w.look(ctx, false); err != nil && ctx.Err() == nil {
			w.fail(err)
			if fresh { // it is tried again, but not as fast as it fails
				select {
				case <-ctx.Done():
				case <-time.After(w.s.options.Poll):
				}
			}
		}
	}
}

// unseen reports whether a watched record was not looked at yet. The caller holds
// the lock.
func (w *watches) unseen() bool {
	for _, of := range w.names {
		if !of.seen {
			return true
		}
	}
	return false
}

// fail tells those who wait for their watch to begin why it does not.
func (w *watches) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range w.names {
		select {
		case <-of.ready:
		default:
			of.failed = err
			close(of.ready)
			of.ready = make(chan struct{})
		}
	}
}

// look reads the watched records and hints at what is new. wires: whether to wait
// for tripwires.
func (w *watches) look(ctx context.Context, wires bool) error {
	w.mu.Lock()
	names := make([]string, 0, len(w.names))
	for name, of := range w.names {
		if !wires || !of.seen {
			names = append(names, name)
		}
	}
	w.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	answers, err := w.s.read(ctx, "looking at the watched elections", names)
	if err != nil {
		return err
	}
	found := make(map[string]sight, len(answers))
	for _, a := range answers {
		found[a.Name] = sightOf(a)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		of := w.names[name]
		if of == nil {
			continue
		}
		now := found[name]
		if now.ID != 0 {
			w.ids[now.ID] = name
		}
		known := of.known()
		if hint, ok := hintOf(of.last, now); ok && known {
			of.tell(hint)
		}
		of.last, of.seen, of.failed = now, true, nil
		if !known {
			close(of.ready)
		}
		if wires {
			w.wire(name, of, now.ID, now.Wire)
		}
	}
	return nil
}

// known reports whether hints flow. The caller holds the lock.
func (of *watched) known() bool {
	select {
	case <-of.ready:
		return true
	default:
		return false
	}
}

// hintOf says what a change of a record means for those who wait.
func hintOf(before, after sight) (store.Hint, bool) {
	switch {
	case before.Token == after.Token && before.Renewal == after.Renewal && before.Released == after.Released && before.expires == after.expires:
		return store.Hint{Kind: store.HintChanged}, before.Evicted != after.Evicted || len(before.Burns) != len(after.Burns)
	case after.ID == 0, after.Released, after.Left <= 0: // removed, released or expired
		return store.Hint{Kind: store.HintVacant}, true
	}
	return store.Hint{Kind: store.HintRenewed, Remaining: span(after.Left)}, true
}

// tell sends a hint to the watchers. The caller holds the lock.
func (of *watched) tell(h store.Hint) {
	for one := range of.watchers {
		// This is the only sender, so there is room after making some.
		select {
		case <-one.hints:
		default:
		}
		one.hints <- h
	}
}

// notified passes on a notification. What is not one of ours is passed over.
//
//	g ID:TTL WIRE NAME    a grant
//	r ID:TTL ID:TTL …     renewals
//	v ID                  a vacancy
//	c ID                  another change
func (w *watches) notified(channel, payload string) {
	kind, rest, _ := strings.Cut(payload, " ")
	if channel != notifyChannel || rest == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch kind {
	case "g":
		parts := strings.SplitN(rest, " ", 3)
		if len(parts) != 3 {
			return
		}
		id, ttl, ok := idAndTTL(parts[0])
		wire, err := strconv.ParseInt(parts[1], 10, 32)
		of := w.names[parts[2]]
		if !ok || err != nil || of == nil {
			return
		}
		w.ids[id] = parts[2]
		of.last.ID = id
		of.tell(store.Hint{Kind: store.HintRenewed, Remaining: ttl})
		w.wire(parts[2], of, id, int32(wire))
	case "r":
		for _, part := range strings.Fields(rest) {
			if id, ttl, ok := idAndTTL(part); ok {
				w.tellID(id, store.Hint{Kind: store.HintRenewed, Remaining: ttl})
			}
		}
	case "v", "c":
		id, err := strconv.ParseInt(rest, 10, 32)
		if err != nil {
			return
		}
		h := store.Hint{Kind: store.HintChanged}
		if kind == "v" {
			h.Kind = store.HintVacant
		}
		w.tellID(int32(id), h)
	}
}

func idAndTTL(text string) (int32, time.Duration, bool) {
	left, right, _ := strings.Cut(text, ":")
	id, err := strconv.ParseInt(left, 10, 32)
	us, errTTL := strconv.ParseInt(right, 10, 64)
	if err != nil || errTTL != nil || us < 0 || us > TTLMax.Microseconds() {
		return 0, 0, false
	}
	return int32(id), span(us), true
}

// tellID hints to those who watch the record. The caller holds the lock.
func (w *watches) tellID(id int32, h store.Hint) {
	if of := w.names[w.ids[id]]; of != nil {
		of.tell(h)
	}
}

// wire waits for the tripwire of an election whose holder has one, or ends the
// wait. The caller holds the lock.
func (w *watches) wire(name string, of *watched, id, holder int32) {
	of.unwire()
	if holder == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	of.stopWire = cancel
	go func() {
		defer cancel()
		w.s.awaitWire(ctx, id, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.names[name] == of && ctx.Err() == nil {
				of.tell(store.Hint{Kind: store.HintVacant})
			}
		})
	}()
}

func (of *watched) unwire() {
	if of.stopWire != nil {
		of.stopWire()
		of.stopWire = nil
	}
}

// awaitWire waits until a tripwire is cut, tells so, and begins again, until ctx
// ends. One follower of all waits; the others look now and then whether its place
// is free.
func (s *Store) awaitWire(ctx context.Context, id int32, cut func()) {
	pause := rand.N(wirePause) // not all at once
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		select {
		case wireSlots <- struct{}{}:
			pause = s.waitOnWire(ctx, id, cut)
			<-wireSlots
		default:
			pause = wireQueue
		}
	}
}

// waitOnWire waits on a connection of its own, until the wire was cut or the place
// is another one's. It returns the pause after which to come again.
func (s *Store) waitOnWire(ctx context.Context, id int32, cut func()) (pause time.Duration) {
	connect, cancel := context.WithTimeout(ctx, s.options.Wait)
	defer cancel()
	l, err := s.home.dial(connect)
	if err != nil || l.session == 0 {
		if err == nil {
			hangUp(l.PgConn())
		}
		return wireQueue
	}
	defer hangUp(l.PgConn())
	for {
		var said string
		// The server answers after a slice; a server that does not is left alone.
		slice, cancel := context.WithTimeout(ctx, 2*wireSlice)
		err := ask(slice, l.Conn, sqlAwait, []any{id, wireSlice.Milliseconds()}, func(text string) error { said = text; return nil })
		cancel()
		switch {
		case err != nil:
			return wirePause + rand.N(wirePause)
		case said == "cut":
			cut()
			return wirePause
		case said == "queued":
			return wireQueue/2 + rand.N(wireQueue/2)
		}
	}
}
