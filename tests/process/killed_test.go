package process

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Five processes contend; every little while one of them is killed, the leader as
// often as not, and another is started in its place. The journal and the ledger
// show one leader at a time all through.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	const (
		ttl   = time.Second // the least that the store takes
		kills = 14          // of leaders
	)
	f := newField(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	started := 0
	start := func() *proc {
		started++
		return f.candidate(fmt.Sprintf("p%d", started), f.plan(ttl))
	}
	crowd := make([]*proc, 5)
	for i := range crowd {
		crowd[i] = start()
	}
	var (
		at     int
		leader event
		pauses []time.Duration
		killed time.Duration
	)
	for n := 0; ; {
		leader, at = f.await("a leader", at, func(e event) bool { return e.Kind == "acquired" })
		if killed != 0 && leader.At > killed { // else it led no more when it was killed
			pauses = append(pauses, leader.At-killed)
		}
		if n == kills {
			break
		}
		// It is struck at any moment: before its first write, in one, in a renewal.
		if some := random.IntN(40); some > 0 {
			_, at = f.await("some writes", at, func(e event) bool {
				if e.Kind == "wrote" && e.Token == leader.Token {
					some--
				}
				return some == 0 || e.Kind == "lost" && e.Token == leader.Token || e.Kind == "exit" && e.from == leader.from
			})
		}
		for i, p := range crowd {
			if leads := p == leader.from; leads || random.IntN(8) == 0 {
				at := p.kill()
				crowd[i] = start()
				if leads {
					n, killed = n+1, at
				}
			}
		}
	}
	t.Logf("%d processes, takeovers after %v", started, pauses)
	leader.from.await("wrote", func(e event) bool { return e.Token == leader.Token })
	for _, p := range crowd {
		p.stop()
	}
	if all := f.stints(); len(all) <= kills {
		t.Errorf("%d terms in the journal, want more than %d", len(all), kills)
	}
}
