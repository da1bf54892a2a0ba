//go:build linux

package tenuresqlite

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
)

// TestContend: eight processes contend for some seconds and are killed at random
// moments, also in the middle of a commit. Terms never overlap, tokens rise, the
// file stays whole.
func TestContend(t *testing.T) {
	forEachJournal(t, func(t *testing.T, journal Journal) {
		path := file(t)
		s := open(t, path, &Options{Journal: journal, HistoryMax: 1 << 20})
		if _, err := s.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		writes := filepath.Join(t.TempDir(), "journal")
		contender := func() *process {
			p := start(t, "contend", path, writes)
			p.expect("contends")
			return p
		}
		var ps []*process
		for range 8 {
			ps = append(ps, contender())
		}
		// At least so many kills and grants, however long they take.
		for kills, grants := 0, 0; kills < 20 || grants < 60; kills++ {
			time.Sleep(rand.N(200 * time.Millisecond))
			i := rand.N(len(ps))
			ps[i].kill()
			ps[i] = contender()
			grants = 0
			for rec, err := range s.List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				grants += int(rec.Token)
			}
		}
		for _, p := range ps {
			p.say("stop")
			if err := p.wait(); err != nil {
				t.Errorf("a contender ended with %v", err)
			}
		}
		if got := ask[string](t, path, "pragma integrity_check"); got != "ok" {
			t.Errorf("integrity: %s", got)
		}
		for i := range contended {
			noOverlap(t, s, fmt.Sprint("election-", i), writes)
		}
	})
}

// noOverlap reads what was written to a journal under the terms of an election,
// and what the store remembers of them.
func noOverlap(t *testing.T, s *Store, name, writes string) {
	type term struct{ first, last time.Duration }
	terms := make(map[fence.Token]term)
	f, err := os.Open(writes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var (
			of    string
			token fence.Token
			at    time.Duration
		)
		if _, err := fmt.Sscan(sc.Text(), &of, &token, &at); err != nil {
			t.Fatalf("%q: %v", sc.Text(), err)
		}
		if of != name {
			continue
		}
		lines++
		span, ok := terms[token]
		if !ok {
			span.first = at
		}
		terms[token] = term{first: min(span.first, at), last: max(span.last, at)}
	}
	var last fence.Token
	for _, token := range slices.Sorted(maps.Keys(terms)) {
		if last != 0 && terms[token].first < terms[last].last {
			t.Errorf("%s: term %d began %v before term %d ended", name, token, terms[last].last-terms[token].first, last)
		}
		last = token
	}
	if len(terms) == 0 {
		t.Errorf("%s: nobody ever led", name)
	}

	h, err := s.History(t.Context(), name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var before fence.Token
	for _, e := range slices.Backward(h) {
		if e.What != "granted" {
			continue
		}
		if e.Token != before+1 {
			t.Errorf("%s: token %d was granted after %d", name, e.Token, before)
		}
		before = e.Token
	}
	if last > before {
		t.Errorf("%s: term %d wrote, but %d was the last that was granted", name, last, before)
	}
	t.Logf("%s: %d grants, %d terms that wrote, %d writes", name, before, len(terms), lines)
}
