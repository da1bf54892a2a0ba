package tenurepg

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

// Store is a store in a PostgreSQL database. It is safe for concurrent use. The
// zero Store is not usable; call [Open], [New] or [NewSQL].
type Store struct {
	options Options
	run     runner
	home    *home // for requests, if Open made it, and for listening
	caps    store.Caps

	watches watches
	wires   wires

	checked atomic.Bool               // the schema was looked at and is right
	serverN atomic.Pointer[string]    // the newest nonce
	quiet   atomic.Pointer[time.Time] // until then nothing is announced: the server's queue is full

	mu       sync.Mutex
	closing  chan struct{} // closed by Close
	calls    sync.WaitGroup
	isClosed bool
}

var (
	_ store.Store        = (*Store)(nil)
	_ store.Watcher      = (*Store)(nil)
	_ store.Noncer       = (*Store)(nil)
	_ store.Lister       = (*Store)(nil)
	_ store.BatchRenewer = (*Store)(nil)
	_ store.Evictor      = (*Store)(nil)
	_ store.Historian    = (*Store)(nil)
	_ store.Initializer  = (*Store)(nil)
)

// Open opens the store in the database that url names, which is what libpq takes:
// postgres://USER@HOST1,HOST2:PORT/DATABASE?OPTIONS, or "host=… dbname=…". o may be
// nil.
//
// The store has connections of its own, so that whatever else the process does
// with the database cannot hold up a renewal: one at rest, [Options].Connections
// at most for requests, and one for each election whose tripwire it waits for. Of
// several hosts it uses the first that takes writes, and looks for it again when a
// connection breaks or its node is demoted.
//
// Open connects, within ctx, and fails if it cannot ([store.ErrUnreachable],
// [store.ErrDenied], [store.ErrReadOnly], [store.ErrBusy]), and with
// [store.ErrFormat] if the schema is newer than this program. A database without
// the schema, or with an older one, is opened: requests fail with
// [store.ErrFormat] until [Store.Init] or [Migrate].
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if _, err := parse(url); err != nil {
		return nil, err
	}
	h := newHome(urlDialer(url, options.Password))
	run, err := newOwn(h, url, options)
	if err != nil {
		return nil, err
	}
	s := newStore(options, run, h)
	if err := s.greetServer(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// greetServer connects the store's own connection and looks at the schema.
func (s *Store) greetServer(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	s.home.take(ctx, true)
	l, err := s.home.open(ctx)
	s.home.give()
	if err != nil {
		return connecting(err)
	}
	s.caps.Takeover = l.session != 0
	err = s.check(ctx)
	var old *oldSchemaError
	if errors.As(err, &old) {
		return nil
	}
	return err
}

// New returns a store that sends its requests on the connections of a pool, which
// stays the caller's: closing the store does not close it. o may be nil. Nothing
// is sent before the first request.
//
// While the job has all of the pool's connections nobody renews, and requests fail
// with a [store.ErrBusy] that says so: prefer [Open], or a pool of its own. For
// watching the store makes one connection besides, as the pool makes its own.
func New(pool *pgxpool.Pool, o *Options) (*Store, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, store.Invalid("pool is nil: allowed is a *pgxpool.Pool")
	}
	return newStore(options, pooled{pool}, newHome(poolDialer(pool))), nil
}

// NewSQL is [New] for a *sql.DB, of whatever driver for PostgreSQL. With that of
// pgx it works behind a transaction pooler and hears of changes at once; with
// another one neither need be so.
func NewSQL(db *sql.DB, o *Options) (*Store, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, store.Invalid("db is nil: allowed is a *sql.DB")
	}
	return newStore(options, throughSQL{db}, newHome(sqlDialer(db))), nil
}

func newStore(o Options, run runner, h *home) *Store {
	s := &Store{options: o, run: run, home: h, closing: make(chan struct{})}
	s.watches.s, s.wires.s = s, s
	s.caps = store.Caps{
		Store:     "postgres",
		Clock:     store.ClockStore,
		Precision: time.Microsecond,
		TTLMin:    TTLMin,
		TTLMax:    TTLMax,
		Watch:     store.WatchPush,
		Token:     "a column of the row, raised in the transaction that grants",
		NameMax:   store.NameMax,
		Nonce:     true,
		Scope: "excludes candidates that use the same database; an asynchronous failover or a restore may lose the last grants, " +
			"and then hand out their tokens again under other term ids",
	}
	return s
}

// Caps says what this store is. It does not block, and answers on a closed store
// too.
func (s *Store) Caps() store.Caps { return s.caps }

// Nonce returns the newest value that the server gave to this store, see
// [store.Noncer]. It does not block.
func (s *Store) Nonce() string {
	if n := s.serverN.Load(); n != nil {
		return *n + s.run.nonce()
	}
	return s.run.nonce()
}

// Close ends all watches and waits for requests that are under way, at most
// Options.Wait; then it closes the store's own connections. Later calls fail with
// [store.ErrStoreClosed]. Terms are not released: that is their holder's to do.
// Closing again does nothing. The error is always nil.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	s.isClosed = true
	close(s.closing)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.options.Wait)
	defer cancel()
	s.watches.close(ctx)
	ended := make(chan struct{})
	go func() {
		s.calls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	s.home.close()
	s.run.close(ctx)
	return nil
}

// begin counts a call that Close waits for.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return store.Undone(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return store.ErrStoreClosed
	}
	s.calls.Add(1)
	return nil
}

// bound gives a context without a deadline one.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.options.Wait)
}

// patience is how long the server may wait for a locked row, in milliseconds: a
// little less than the caller waits, so that its answer gets there.
func patience(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return WaitDefault.Milliseconds()
	}
	return max(1, (time.Until(deadline) * 7 / 8).Milliseconds())
}

// call sends a statement until it is answered, ctx ends, or trying again makes no
// sense. Almost every request can be sent twice: one that was carried out is
// answered again. But a refusal of the second may be the consequence of the first
// and of what others did since: unsure, the error of a try that may have been
// carried out, is then the truer answer. It is nil if there was none.
func (s *Store) call(ctx context.Context, st statement, patient bool) (unsure, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	return s.try(ctx, st, patient)
}

// How often a request is sent on another connection after one broke, and the
// pause between two tries after a collision with other transactions.
const (
	reconnects = 3
	pauseMax   = 50 * time.Millisecond
)

func (s *Store) try(ctx context.Context, st statement, patient bool) (unsure, err error) {
	pause, broken := time.Millisecond, 0
	for {
		err := explain(s.run.run(ctx, st, patient), st.what)
		if err == nil {
			return unsure, nil
		}
		if unsure != nil {
			err = asUnknown(err)
		}
		if store.OutcomeUnknown(err) {
			unsure = err
			if st.once {
				return unsure, err
			}
		}
		switch thenOf(err) {
		case quietly:
			until := time.Now().Add(quietTime)
			s.quiet.Store(&until)
			if broken++; broken > reconnects {
				return unsure, err
			}
		case elsewhere:
			if broken++; broken > reconnects || isConnecting(err) {
				return unsure, err
			}
		case again:
			select {
			case <-time.After(rand.N(pause)):
			case <-ctx.Done():
				return unsure, err
			}
			pause = min(2*pause, pauseMax)
		default:
			return unsure, err
		}
	}
}

// quietTime is how long nothing is announced after the server's queue of
// notifications was full.
const quietTime = 10 * time.Second

// announces reports whether a request shall announce what it does.
func (s *Store) announces() bool {
	until := s.quiet.Load()
	return until == nil || time.Now().After(*until)
}

func isConnecting(err error) bool {
	var c *connectError
	return errors.As(err, &c)
}

// oldSchemaError says that the database has no schema yet, or an older one.
type oldSchemaError struct{ error }

func (e *oldSchemaError) Unwrap() error { return e.error }

// check looks at the version of the schema, once.
func (s *Store) check(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	var found struct {
		Version  int
		Encoding string
		Server   int
		Nonce    string
	}
	_, err := s.try(ctx, statement{
		what: "looking at the schema", sql: sqlCheck,
		args: func(int32) []any { return nil },
		each: func(text string) (err error) { return json.Unmarshal([]byte(text), &found) },
	}, false)
	if e, _, ok := stateOf(err); ok && (e.Code == "3F000" || e.Code == "42P01") {
		return &oldSchemaError{olderSchema(0)}
	}
	switch {
	case err != nil:
		return store.Undone(err)
	case found.Server < 130000:
		return &failure{kind: store.ErrUnsupported, text: fmt.Sprintf("the server is of version %d: allowed is PostgreSQL 13 and newer", found.Server/10000)}
	case found.Encoding != "UTF8":
		return &failure{kind: store.ErrUnsupported, text: fmt.Sprintf("the database's encoding is %s: allowed is UTF8", found.Encoding)}
	case found.Version > schemaVersion:
		return newerSchema(found.Version)
	case found.Version < schemaVersion:
		return &oldSchemaError{olderSchema(found.Version)}
	}
	s.serverN.Store(&found.Nonce)
	s.checked.Store(true)
	return nil
}

// Init brings the schema to the version that this program works with, see
// [Migrate] and [store.Initializer].
func (s *Store) Init(ctx context.Context) (string, error) {
	if err := s.begin(ctx); err != nil {
		return "", err
	}
	defer s.calls.Done()
	ctx, cancel := s.bound(ctx)
	defer cancel()
	l, err := s.home.dial(ctx)
	if err != nil {
		return "", connecting(err)
	}
	defer hangUp(l.PgConn())
	applied, err := Migrate(ctx, l.Conn)
	if err != nil {
		return "", err
	}
	if len(applied) == 0 {
		return fmt.Sprintf("the schema tenure is of version %d already", schemaVersion), nil
	}
	return fmt.Sprintf("the schema tenure is of version %d now (applied: %s)", schemaVersion, strings.Join(applied, ", ")), nil
}

// one sends a statement that has one row. unsure is as in call.
func one[T any](ctx context.Context, s *Store, what, sql string, patient bool, args func(session int32) []any) (answer T, unsure, err error) {
	var text string
	unsure, err = s.call(ctx, statement{
		what: what, sql: sql, args: args,
		each: func(row string) error { text = row; return nil },
	}, patient)
	if err == nil {
		answer, err = decode[T](text)
	}
	return answer, unsure, err
}

func (s *Store) heard(a answer) {
	if a.Nonce != "" {
		s.serverN.Store(&a.Nonce)
	}
}

// Acquire grants the claim, see [store.Store]. It never waits for a holder.
func (s *Store) Acquire(ctx context.Context, c store.Claim) (store.Lease, error) {
	if err := c.Validate(s.caps); err != nil {
		return store.Lease{}, err
	}
	wired := c.Takeover == store.OnDisconnect
	ttl := (c.TTL + time.Microsecond - 1) / time.Microsecond // rounded up
	a, unsure, err := one[answer](ctx, s, fmt.Sprintf("acquiring %q", c.Name), sqlAcquire, wired, func(on int32) []any {
		return []any{
			c.Name, c.Holder, string(c.Attempt), int64(ttl), c.Meta, int64(c.Floor), c.FencedOnly, wired, on, s.announces(), patience(ctx),
		}
	})
	if err != nil {
		return store.Lease{}, s.blamed(ctx, c.Name, err)
	}
	s.heard(a)
	if a.Code != "granted" && a.Code != "replayed" {
		s.wires.stands(c.Name, a.Token)
		return store.Lease{}, cmp.Or(unsure, a.notGranted(c))
	}
	if a.Attempt != string(c.Attempt) {
		return store.Lease{}, notOurs(c.Attempt, a)
	}
	if wired {
		s.wires.granted(c.Name, a)
	}
	return a.lease(c.Name), nil
}

// notOurs is the error of an answer to somebody else: two copies of this process
// share the connection.
func notOurs(asked store.Attempt, a answer) error {
	return &failure{kind: store.ErrUnreachable, unknown: true, text: fmt.Sprintf("the answer to attempt %s names attempt %s", asked, a.Attempt)}
}

// item is an entry of a batch as the server reads it.
type item struct {
	Name    string        `json:"name"`
	Term    store.Attempt `json:"term"`
	Token   fence.Token   `json:"token"`
	Receipt store.Receipt `json:"receipt"`
	Renewal int64         `json:"renewal"`
	Attempt store.Attempt `json:"attempt"`
	Wire    bool          `json:"wire"`
}

// Renew renews the lease, see [store.Store].
func (s *Store) Renew(ctx context.Context, l store.Lease, a store.Attempt) (store.Lease, error) {
	answer := s.renew(ctx, fmt.Sprintf("renewing %q", l.Name), []store.Renewal{{Lease: l, Attempt: a}}, false)[0]
	return answer.Lease, s.blamed(ctx, l.Name, answer.Err)
}

// RenewBatch renews all entries in one statement, see [store.BatchRenewer]. An
// entry whose row somebody else has locked is answered with a [store.ErrBusy]
// instead of being waited for.
func (s *Store) RenewBatch(ctx context.Context, batch []store.Renewal) []store.Renewed {
	return s.renew(ctx, fmt.Sprintf("renewing %d elections", len(batch)), batch, true)
}

func (s *Store) renew(ctx context.Context, what string, batch []store.Renewal, skip bool) []store.Renewed {
	answers := make([]store.Renewed, len(batch))
	var items []item
	var at []int // which entry an item is
	wired := false
	for i, b := range batch {
		if err := checkRenewal(b); err != nil {
			answers[i].Err = err
			continue
		}
		wired = wired || s.wires.has(b.Lease)
		items = append(items, item{
			Name: b.Lease.Name, Term: b.Lease.TermID, Token: b.Lease.Token, Receipt: b.Lease.Receipt, Renewal: b.Lease.Renewal, Attempt: b.Attempt,
		})
		at = append(at, i)
	}
	if len(items) == 0 {
		return answers
	}
	var replies []reply
	unsure, err := s.call(ctx, statement{
		what: what, sql: sqlRenew,
		args: func(on int32) []any {
			replies = nil
			if wired {
				for i := range items {
					items[i].Wire = s.wires.cut(batch[at[i]].Lease, on)
				}
			}
			text, _ := json.Marshal(items) // plain values cannot fail
			return []any{string(text), skip, on, s.announces(), patience(ctx)}
		},
		each: func(row string) error {
			r, err := decode[reply](row)
			replies = append(replies, r)
			return err
		},
	}, wired)
	for _, i := range at {
		answers[i].Err = err
		if err == nil {
			answers[i].Err = &failure{kind: store.ErrUnreachable, unknown: true, text: "the server did not answer this entry"}
		}
	}
	if err != nil {
		return answers
	}
	for _, r := range replies {
		if r.N < 1 || r.N > len(at) {
			continue
		}
		i := at[r.N-1]
		b := batch[i]
		s.heard(r.Answer)
		switch {
		case r.Answer.Code != "renewed" && r.Answer.Code != "replayed":
			answers[i].Err = cmp.Or(unsure, r.refusal(b.Lease))
			if r.Answer.Code != "busy" {
				s.wires.lost(b.Lease)
			}
		case r.Answer.Attempt != string(b.Attempt):
			answers[i].Err = notOurs(b.Attempt, r.Answer)
		default:
			answers[i] = store.Renewed{Lease: r.Answer.lease(b.Lease.Name)}
			if wired {
				s.wires.renewed(b.Lease, r.Answer)
			}
		}
	}
	return answers
}

func checkRenewal(b store.Renewal) error {
	return cmp.Or(store.CheckName(b.Lease.Name), store.CheckAttempt(b.Attempt), checkLease(b.Lease))
}

// checkLease refuses a lease with text that no store hands out and that the server
// cannot take.
func checkLease(l store.Lease) error {
	if strings.ContainsRune(string(l.TermID)+string(l.Receipt), 0) {
		return store.Invalid("the lease's term id or receipt has a zero byte")
	}
	return nil
}

// Release frees the lease, see [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease, pending store.Attempt) error {
	if err := cmp.Or(store.CheckName(l.Name), checkLease(l)); err != nil {
		return err
	}
	if pending != "" {
		if err := store.CheckAttempt(pending); err != nil {
			return err
		}
	}
	r, unsure, err := one[reply](ctx, s, fmt.Sprintf("releasing %q", l.Name), sqlRelease, s.wires.has(l), func(on int32) []any {
		return []any{l.Name, string(l.TermID), int64(l.Token), string(l.Receipt), string(pending), on, s.announces(), patience(ctx)}
	})
	if err != nil {
		return s.blamed(ctx, l.Name, err)
	}
	s.heard(r.Answer)
	if r.Answer.Code != "ok" {
		return cmp.Or(unsure, r.refusal(l))
	}
	s.wires.released(l)
	return nil
}

// Abandon gives back the grant of a, see [store.Store].
func (s *Store) Abandon(ctx context.Context, name string, a store.Attempt) error {
	if err := cmp.Or(store.CheckName(name), store.CheckAttempt(a)); err != nil {
		return err
	}
	r, unsure, err := one[reply](ctx, s, fmt.Sprintf("giving back %q", name), sqlAbandon, s.wires.any(name), func(on int32) []any {
		return []any{name, string(a), on, s.announces(), patience(ctx)}
	})
	if err != nil {
		return s.blamed(ctx, name, err)
	}
	s.heard(r.Answer)
	if r.Answer.Code != "ok" {
		return cmp.Or(unsure, r.refusal(store.Lease{Name: name}))
	}
	return nil
}

// Evict asks the current term to go, see [store.Evictor].
func (s *Store) Evict(ctx context.Context, e store.Eviction) (store.Record, error) {
	if err := e.Validate(); err != nil {
		return store.Record{}, err
	}
	if strings.ContainsRune(string(e.TermID), 0) {
		return store.Record{}, store.Invalid("the term id has a zero byte")
	}
	var text string
	_, err := s.call(ctx, statement{
		what: fmt.Sprintf("evicting from %q", e.Name), sql: sqlEvict,
		args: func(int32) []any {
			return []any{e.Name, string(e.TermID), e.Reason, e.Now, s.announces(), patience(ctx)}
		},
		each: func(row string) error { text = row; return nil },
		once: true, // again it would find nobody to evict
	}, false)
	if err != nil {
		return store.Record{}, s.blamed(ctx, e.Name, err)
	}
	r, err := decode[reply](text)
	if err != nil {
		return store.Record{}, err
	}
	switch r.Answer.Code {
	case "":
	case "vacant":
		return store.Record{}, fmt.Errorf("%w: %q", store.ErrVacant, e.Name)
	case "superseded":
		return store.Record{}, fmt.Errorf("%w: %q has token %d now", store.ErrSuperseded, e.Name, r.Answer.Token)
	default:
		return store.Record{}, r.refusal(store.Lease{Name: e.Name})
	}
	a, err := decode[answer](text)
	if err != nil {
		return store.Record{}, err
	}
	s.heard(a)
	return a.record()
}

// Get reads the record, see [store.Store].
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	if err := store.CheckName(name); err != nil {
		return store.Record{}, err
	}
	var text string
	_, err := s.call(ctx, statement{
		what: fmt.Sprintf("reading %q", name), sql: sqlGet,
		args: func(int32) []any { return []any{name, patience(ctx)} },
		each: func(row string) error { text = row; return nil },
	}, false)
	switch {
	case err != nil:
		return store.Record{}, err
	case text == "":
		return store.Record{}, fmt.Errorf("%w: %q", store.ErrNoRecord, name)
	}
	a, err := decode[answer](text)
	if err != nil {
		return store.Record{}, err
	}
	s.heard(a)
	return a.record()
}

// List yields every record, in the order of the names' bytes, as they all were at
// one moment. It blocks before the first.
func (s *Store) List(ctx context.Context) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		answers, err := s.read(ctx, "listing the elections", nil)
		if err != nil {
			yield(store.Record{}, err)
			return
		}
		for _, a := range answers {
			rec, err := a.record()
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// read reads the records of some names, or all.
func (s *Store) read(ctx context.Context, what string, names []string) ([]answer, error) {
	which := ""
	if names != nil {
		text, _ := json.Marshal(names) // strings cannot fail
		which = string(text)
	}
	var answers []answer
	_, err := s.call(ctx, statement{
		what: what, sql: sqlList,
		args: func(int32) []any { answers = nil; return []any{which, patience(ctx)} },
		each: func(row string) error {
			a, err := decode[answer](row)
			answers = append(answers, a)
			return err
		},
	}, false)
	return answers, err
}

// History returns the newest entries of an election, newest first, at most n.
// Besides what [store.Entry] names there are lines "refused": a term came back
// after its end, or with an old receipt. How much is kept is in the table
// tenure.setting. An election the store never had has none, which is no error.
func (s *Store) History(ctx context.Context, name string, n int) ([]store.Entry, error) {
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	var entries []store.Entry
	_, err := s.call(ctx, statement{
		what: fmt.Sprintf("reading the history of %q", name), sql: sqlPast,
		args: func(int32) []any { entries = nil; return []any{name, min(max(n, 0), 1<<30), patience(ctx)} },
		each: func(row string) error {
			e, err := decode[entry](row)
			entries = append(entries, store.Entry{At: instant(e.At), Name: name, What: e.What, Token: e.Token, TermID: e.Term, Holder: e.Holder, Detail: e.Detail})
			return err
		},
	}, false)
	return entries, err
}

// blamed adds to an error about a locked row whose session has it, if that can be
// found out in what is left of the time.
func (s *Store) blamed(ctx context.Context, name string, err error) error {
	e, _, ok := stateOf(err)
	if !ok || e.Code != "55P03" {
		return err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	var who string
	if s.run.run(ctx, statement{
		sql: sqlBlocker, args: func(int32) []any { return []any{name} },
		each: func(row string) error { who = row; return nil },
	}, false) != nil || who == "" {
		return err
	}
	return &failure{kind: store.ErrBusy, text: "the row of " + strconv.Quote(name) + " is locked by " + who, cause: err}
}
