package process

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// journal is where the jobs of all candidates of a test write down what they do.
type journal struct{ f *os.File }

// What a line of the journal says.
const (
	begin = 'B' // the job of a term began
	step  = 'S' // it asked whether the term is valid, was told so, and worked
	deaf  = 'D' // it worked without asking
	wrote = 'W' // the resource has accepted write N
	end   = 'E' // it has returned
)

// line is one line of a journal. For a step, At is the time before it asked: a
// process that is frozen between the answer and this line was right to be told
// yes.
type line struct {
	What  rune
	At    time.Duration
	PID   int
	Token int64
	N     int
}

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{f}, err
}

// write appends a line, in one system call, so that lines of several processes
// do not mix.
func (j *journal) write(what rune, at time.Duration, token int64, n int) {
	if _, err := fmt.Fprintf(j.f, "%c %d %d %d %d\n", what, at, os.Getpid(), token, n); err != nil {
		panic(err)
	}
}

func readJournal(t testing.TB, path string) []line {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []line
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var l line
		if _, err := fmt.Sscanf(scan.Text(), "%c %d %d %d %d", &l.What, &l.At, &l.PID, &l.Token, &l.N); err != nil {
			t.Fatalf("journal line %q: %v", scan.Text(), err)
		}
		lines = append(lines, l)
	}
	return lines
}

// stint is one term's job, as the journal tells it.
type stint struct {
	Token      int64
	PID        int
	Begin, End time.Duration // End is 0 if the job never returned
	Last       time.Duration // its last step; 0 if it took none
	Wrote      []int         // which writes the resource has accepted
}

// stints is terms, and checks besides that no job was told that its term is
// valid after a later one was told so of its own. That holds for processes that
// were frozen, too.
func stints(t testing.TB, lines []line) []stint {
	t.Helper()
	all := terms(t, lines)
	var latest int64 // the highest token of a step so far
	for _, l := range lines {
		if l.What != step {
			continue
		}
		if l.Token < latest {
			t.Errorf("overlap: at %v process %d was told that token %d is valid, after token %d was", l.At, l.PID, l.Token, latest)
		}
		latest = max(latest, l.Token)
	}
	return all
}

// terms sorts a journal by time and by terms, and checks that the tokens rise
// from one to the next and that each has one process.
func terms(t testing.TB, lines []line) []stint {
	t.Helper()
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.At, b.At) })
	var (
		inOrder []*stint
		byToken = make(map[int64]*stint)
	)
	for _, l := range lines {
		s := byToken[l.Token]
		switch {
		case l.What == begin && s != nil:
			t.Errorf("token %d was granted twice, to process %d and to process %d", l.Token, s.PID, l.PID)
			continue
		case l.What == begin:
			if n := len(inOrder); n > 0 && inOrder[n-1].Token >= l.Token {
				t.Errorf("token %d was granted after token %d", l.Token, inOrder[n-1].Token)
			}
			s = &stint{Token: l.Token, PID: l.PID, Begin: l.At}
			byToken[l.Token], inOrder = s, append(inOrder, s)
		case s == nil || s.PID != l.PID:
			t.Errorf("process %d works under token %d, which was not granted to it", l.PID, l.Token)
			continue
		}
		switch l.What {
		case step, deaf:
			s.Last = l.At
		case wrote:
			s.Wrote = append(s.Wrote, l.N)
		case end:
			s.End = l.At
		}
	}
	all := make([]stint, len(inOrder))
	for i, s := range inOrder {
		all[i] = *s
	}
	return all
}

// disjoint checks that each job had returned before the next began. It is for
// tests in which no process is frozen or killed, and in which the jobs have the
// time to return.
func disjoint(t testing.TB, all []stint) {
	t.Helper()
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.End == 0 || a.End >= b.Begin {
			t.Errorf("overlap: the job of token %d returned at %v, that of token %d began at %v", a.Token, a.End, b.Token, b.Begin)
		}
	}
}
