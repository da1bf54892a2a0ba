package sim

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// mutants are mistakes, each with the invariant that must find it.
var mutants = []struct {
	name   string
	catch  Invariant
	rules  Rules
	faults []string // those that must meet to show it; nil: any
}{
	{"the token counter starts anew after a release", TokensRise, Rules{
		Acquire: func(r row.Row, c store.Claim, ttl time.Duration, now row.Now) (row.Row, store.Lease, error) {
			if r.Released {
				r = row.Row{}
			}
			return row.Acquire(r, c, ttl, now)
		},
	}, nil},
	{"a claim is granted a little before the expiry", OneValid, Rules{
		Acquire: func(r row.Row, c store.Claim, ttl time.Duration, now row.Now) (row.Row, store.Lease, error) {
			r.Expires -= ttl / 2
			return row.Acquire(r, c, ttl, now)
		},
	}, nil},
	{"a grant is replayed for ever", YesStands, Rules{
		Acquire: func(r row.Row, c store.Claim, ttl time.Duration, now row.Now) (row.Row, store.Lease, error) {
			if r.Exists() && r.TermID == c.Attempt {
				return r, store.Lease{Name: r.Name, TermID: r.TermID, Token: r.Token, Receipt: r.Receipt, TTL: r.TTL, Attempt: c.Attempt, Replayed: true}, nil
			}
			return row.Acquire(r, c, ttl, now)
		},
	}, nil},
	{"a released term is renewed", YesStands, Rules{
		Renew: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, store.Lease, error) {
			released := r.Released
			r.Released = false
			r, l, err := row.Renew(r, l, a, now)
			r.Released = released
			return r, l, err
		},
	}, nil},
	{"a renewal needs no receipt", OneRenews, Rules{
		Renew: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, store.Lease, error) {
			if a != r.UsedBy {
				l.Receipt = r.Receipt
			}
			return row.Renew(r, l, a, now)
		},
	}, nil},
	{"a receipt is a bare number", OneRenews, Rules{
		Renew: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, store.Lease, error) {
			next, l, err := row.Renew(r, l, a, now)
			if err == nil && !l.Replayed {
				next.Receipt = store.Receipt(strconv.FormatInt(next.Renewal, 10))
				l.Receipt = next.Receipt
			}
			return next, l, err
		},
	}, []string{"roll the store back", "copy a process", "stop a process, its clocks run on"}},
	{"proof of a twin frees the lease", BurntStands, Rules{
		Renew: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, store.Lease, error) {
			burns := len(r.Burns)
			r, l, err := row.Renew(r, l, a, now)
			if len(r.Burns) > burns {
				r.Expires = now.Mono
			}
			return r, l, err
		},
	}, nil},
	{"a burnt term can be released", BurntStands, Rules{
		Release: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, error) {
			if r.TermID == l.TermID && r.Token == l.Token {
				r.Released = true
			}
			return r, nil
		},
	}, nil},
	{"a release does not look whose term it is", OneValid, Rules{
		Release: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, error) {
			r.Released = r.Exists()
			return r, nil
		},
	}, nil},
	{"a release takes any receipt", OneValid, Rules{
		Release: func(r row.Row, l store.Lease, a store.Attempt, now row.Now) (row.Row, error) {
			l.Receipt = r.Receipt
			return row.Release(r, l, a, now)
		},
	}, nil},
	{"a renewed grant can be given back", OneValid, Rules{
		Abandon: func(r row.Row, a store.Attempt, now row.Now) (row.Row, error) {
			if r.TermID == a {
				r.Released = true
			}
			return r, nil
		},
	}, nil},
	{"an eviction frees the election before it is acknowledged", OneValid, Rules{
		Evict: func(r row.Row, e store.Eviction, now row.Now) (row.Row, error) {
			e.Now = true
			return row.Evict(r, e, now)
		},
	}, nil},
	{"a burnt term is never got over", Liveness, Rules{
		Acquire: func(r row.Row, c store.Claim, ttl time.Duration, now row.Now) (row.Row, store.Lease, error) {
			if len(r.Burns) > 0 && r.Burns[0].TermID == r.TermID && r.Burns[0].Token == r.Token {
				return r, store.Lease{}, &store.HeldError{Name: r.Name, Remaining: time.Second, Burnt: true}
			}
			return row.Acquire(r, c, ttl, now)
		},
	}, nil},

	{"hints are not listened to", Liveness, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			if _, ok := ev.(core.Hint); ok {
				return s, nil
			}
			return s.Step(now, ev)
		},
	}, nil},

	{"the fence accepts everything", FenceRises, Rules{
		Check: func(_ fence.Mark, s fence.Stamp) (fence.Mark, error) {
			return fence.Mark{Token: s.Token, TermID: s.TermID, Renewal: s.Renewal}, nil
		},
	}, nil},
	{"the fence looks at the token alone", FenceRises, Rules{
		Check: func(m fence.Mark, s fence.Stamp) (fence.Mark, error) {
			s.TermID = ""
			return m.Check(s)
		},
	}, nil},
	{"the chain is off", ChainDescends, Rules{
		Chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) (fence.Mark, fence.LaneMark, bool, error) {
			m, err := m.Check(s)
			return m, l, false, err
		},
	}, nil},
	{"the chain takes a twin's write for its own", ChainDescends, Rules{
		Chain: func(m fence.Mark, l fence.LaneMark, s fence.Stamp) (fence.Mark, fence.LaneMark, bool, error) {
			if l.Token == s.Token && l.Position == s.Position {
				s.Digest = l.Digest
			}
			return fence.CheckChain(m, l, s)
		},
	}, nil},
	{"a job writes on before it knows what became of the last write", ChainDescends, Rules{Hasty: true}, nil},

	{"the deadline counts from the resend", OneValid, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			next, acts := s.Step(now, ev)
			for _, a := range acts {
				switch a.(type) {
				case core.Ask, core.Renew:
					next.DrawnAt = now
				}
			}
			return next, acts
		},
	}, nil},
	{"the deadline counts from the reply", OneValid, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			if _, ok := ev.(core.Reply); ok {
				s.DrawnAt = now
			}
			return s.Step(now, ev)
		},
	}, nil},
	{"validity is a stored flag", OneValid, Rules{
		Valid: func(s core.State, _ core.Reading) bool {
			return (s.Phase == core.Leading || s.Phase == core.Draining) && !s.Lost
		},
	}, nil},
	{"only the wall clock counts", OneValid, Rules{
		Look: func(r core.Reading) core.Reading { return core.Reading{Wall: r.Wall, Mono: r.Wall} },
	}, nil},
	{"only the monotonic clock counts", OneValid, Rules{
		Look: func(r core.Reading) core.Reading { return core.Reading{Mono: r.Mono} },
	}, nil},
	{"there is no margin", OneValid, Rules{
		Config: func(c core.Config) core.Config {
			c.Margin = 0
			return c
		},
	}, nil},
	{"the job is not joined", StartStop, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			next, acts := s.Step(now, ev)
			for _, a := range acts {
				switch a.(type) {
				case core.End, core.Drain:
					s, more := next.Step(now, core.JobDone{})
					return s, append(acts, more...)
				}
			}
			return next, acts
		},
	}, nil},
	{"a late yes revives a term", StaysEnded, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			if r, ok := ev.(core.Reply); ok && r.Op == core.OpRenew && r.Err == nil && s.Phase == core.Draining {
				s.Lost = false
			}
			return s.Step(now, ev)
		},
	}, nil},
	{"every retry draws anew", NoFalseAlarm, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			next, acts := s.Step(now, ev)
			if r, ok := ev.(core.Reply); ok && r.Op == core.OpRenew && r.Err != nil {
				next.Pending = ""
			}
			return next, acts
		},
	}, nil},
	{"a confirmation does not wait for the renewal that is out", OneAttempt, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			next, acts := s.Step(now, ev)
			if _, ok := ev.(core.Confirm); ok && next.Phase == core.Leading && !next.Drawing {
				next.Drawing, acts = true, append(acts, core.Draw{})
			}
			return next, acts
		},
	}, nil},
	{"a request has no time-out", Wedged, Rules{
		Step: func(s core.State, now core.Reading, ev core.Event) (core.State, []core.Action) {
			if r, ok := ev.(core.Reply); ok && errors.Is(r.Err, errTimeout) {
				return s, nil
			}
			next, acts := s.Step(now, ev)
			if next.Flying {
				next.RetryAt = now.Mono + 1e6*time.Hour
			}
			return next, acts
		},
	}, nil},
}

// TestMutants makes one mistake at a time and demands that it is found, by the
// invariant that is there to find it.
func TestMutants(t *testing.T) {
	const seedsMax = 10_000
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			others := map[string]int{}
			for seed := int64(1); seed <= seedsMax; seed++ {
				switch v := Run(seed, Options{Rules: m.rules, Faults: m.faults}).Violation; {
				case v == nil:
				case v.Invariant == m.catch:
					t.Logf("found by seed %d: %v", seed, v)
					return
				default:
					others[v.Invariant.Name]++
				}
			}
			t.Errorf("%s did not find it in %d seeds; others did: %v", m.catch.Name, seedsMax, others)
		})
	}
}

// TestEveryInvariantHasAMutant shows that no invariant is idle.
func TestEveryInvariantHasAMutant(t *testing.T) {
	for _, i := range Invariants {
		found := false
		for _, m := range mutants {
			found = found || m.catch == i
		}
		if !found {
			t.Errorf("no mutant shows that %s can fail", i.Name)
		}
	}
}
