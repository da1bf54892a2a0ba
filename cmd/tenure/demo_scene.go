package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"golang.org/x/sys/unix"
)

// scene is one telling of an act: the account, the contenders, and what is heard
// of them.
type scene struct {
	app  *app
	json bool
	act  demoAct
	dir  string
	ttl  time.Duration

	ledger  *ledger
	began   time.Time
	players []*player
	events  chan event
	over    chan struct{} // closed when nobody listens to events any more
}

func (s *scene) leases() string  { return filepath.Join(s.dir, "lease.db") }
func (s *scene) account() string { return filepath.Join(s.dir, "account.db") }

// perform tells the act, and ends everything that it started. If again is not
// nil, it was told before, and that is why it did not go so.
func (s *scene) perform(ctx context.Context, again error) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	var err error
	if s.ledger, err = newLedger(s.account()); err != nil {
		return err
	}
	defer s.ledger.close()
	s.events, s.over = make(chan event), make(chan struct{})
	defer s.clear()
	s.began = time.Now()
	if again != nil {
		if err := s.say(nil, "again", "This machine is busy: %v. Again, with a lease of %v.", again, s.ttl); err != nil {
			return err
		}
	} else if !s.json {
		fmt.Fprintf(s.app.stdout, "\n%-*s %-7s %7s\n", demoWidth, s.act.title, "running", "account")
	}
	return s.act.tell(s, ctx)
}

// clear ends every process of the scene.
func (s *scene) clear() {
	close(s.over)
	for _, p := range s.players {
		for gone := false; !gone; {
			below, _ := guard.Descendants(os.Getpid())
			for _, pid := range below {
				if strings.Contains(strings.Join(arguments(pid), " "), s.dir) {
					unix.Kill(pid, unix.SIGKILL)
				}
			}
			select {
			case <-p.gone:
				gone = true
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	// What outlived its parent has become a child of this process. Others that it
	// was started with may live on.
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		switch pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); {
		case errors.Is(err, unix.ECHILD):
			return
		case pid == 0:
			time.Sleep(time.Millisecond)
		}
	}
}

// demoWidth is up to where a line tells what happens.
const demoWidth = 63

// demoLine is a line of the story for programs.
type demoLine struct {
	Act     string   `json:"act"`
	AtMS    string   `json:"at_ms"` // since the act began
	Who     string   `json:"who,omitempty"`
	What    string   `json:"what"` // leads, waits, killed, gone, frozen, pays, refused, lost, outcome or again
	Token   string   `json:"token,omitempty"`
	Running []string `json:"running"` // the programs that run, without frozen ones
	Account string   `json:"account"`
	Text    string   `json:"text"`
}

// say tells what has happened to p, and beside it which programs run and what
// the account holds. Without p it is about the whole.
func (s *scene) say(p *player, what, format string, args ...any) error {
	at := time.Since(s.began)
	balance, err := s.ledger.balance(context.Background())
	if err != nil {
		return err
	}
	line := demoLine{
		Act: s.act.name, AtMS: decimal(at.Milliseconds()), What: what,
		Running: runningPrograms(s.account()), Account: decimal(balance), Text: fmt.Sprintf(format, args...),
	}
	if p != nil {
		line.Who, line.Token = p.name, p.token
	}
	switch {
	case s.json:
		return s.app.printJSON(line)
	case p == nil:
		_, err = fmt.Fprintf(s.app.stdout, "  => %s\n", line.Text)
	default:
		text := fmt.Sprintf("  %5.1f s  %s  %s", at.Seconds(), line.Who, line.Text)
		running := cmp.Or(strings.Join(line.Running, " "), "-")
		_, err = fmt.Fprintf(s.app.stdout, "%-*s %-7s %7s\n", demoWidth, text, running, line.Account)
	}
	return err
}

func (s *scene) outcome(text string) error { return s.say(nil, "outcome", "%s", text) }

// failed is the end of a demo that shows what must not be.
func (s *scene) failed(format string, args ...any) error {
	return exitf(exitNo, "this must not be, act %q: %s", s.act.name, fmt.Sprintf(format, args...))
}

// event is what is heard of a player.
type event struct {
	from  *player
	words []string // waits, decided TOKEN BALANCE RUNNING, paid BALANCE, refused TOKEN; nil: the player is gone
}

// is reports whether p says word.
func (e event) is(p *player, word string) bool {
	return e.from == p && e.words != nil && e.words[0] == word
}

// otherwise is what is wrong if e is not what comes next. A lease that was lost,
// or ran out early, is the busy machine's doing; anything else is no reason to try
// again.
func (e event) otherwise() error {
	switch {
	case e.words == nil && (e.from.code == exitLost || e.from.code > 128):
		return otherwise{e.from.epitaph()}
	case e.words == nil:
		return errors.New(e.from.epitaph())
	case e.words[0] == "decided":
		return otherwise{e.from.name + " leads, out of turn"}
	}
	return fmt.Errorf("%s said %q", e.from.name, e.words)
}

// hear is the next thing heard of anybody. A program that has found another one
// running when it started is the end of the demo.
func (s *scene) hear(ctx context.Context) (event, error) {
	select {
	case e := <-s.events:
		if e.is(e.from, "decided") && len(e.words) == 4 {
			e.from.token, e.from.balance = e.words[1], e.words[2]
			if running := e.words[3]; running != e.from.name {
				return e, s.failed("the programs %s run at once", running)
			}
		}
		return e, nil
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
}

// next is the next thing heard of anybody, apart from who waits.
func (s *scene) next(ctx context.Context) (event, error) {
	for {
		e, err := s.hear(ctx)
		if err != nil || !e.is(e.from, "waits") {
			return e, err
		}
	}
}

// leads waits until somebody leads, whose program has said what it saw, and so
// many others wait.
func (s *scene) leads(ctx context.Context, others int) (leader *player, err error) {
	waiting := make(map[*player]bool)
	for leader == nil || len(waiting) < others {
		e, err := s.hear(ctx)
		switch {
		case err != nil:
			return nil, err
		case e.is(e.from, "waits"):
			waiting[e.from] = true
		case e.is(e.from, "decided") && leader == nil:
			leader = e.from
		default:
			return nil, e.otherwise()
		}
	}
	return leader, nil
}

// ends waits until nothing of p is left.
func (s *scene) ends(ctx context.Context, p *player, code int) error {
	e, err := s.next(ctx)
	if err == nil && (e.from != p || e.words != nil || p.code != code) {
		err = e.otherwise()
	}
	return err
}

// freeze freezes p, but not in the middle of a renewal: the file of the lease
// would stay locked, and the next leader would wait for that.
func (s *scene) freeze(ctx context.Context, p *player) error {
	db, err := openDB(s.leases())
	if err != nil {
		return err
	}
	defer db.Close()
	for {
		if err := p.freeze(ctx); err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, busy := tx.ExecContext(ctx, "create table demo_probe (x)")
		if err := tx.Rollback(); err != nil {
			return err
		}
		if busy == nil {
			return nil
		}
		if err := p.thaw(); err != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// player is a contender: a `tenure run`, its guardian and its program. The
// program is told what to do by its standard input and says what it did on its
// standard output, a line each.
type player struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	frozen []int         // pids: the wrapper, the guardian, the program
	gone   chan struct{} // closed when no process of it is left

	code  int    // the wrapper's exit code, once gone
	fault string // what the wrapper complained of last

	token, balance string // as its program said
}

// contend starts a `tenure run` of this very program, whose command is the
// demo's writer.
func (s *scene) contend(name string) (*player, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"run", "payments", "--store", "sqlite:" + s.leases(), "--holder", name, "--ttl", s.ttl.String(), "--json"}
	writer := []string{"--", self, demoWriter, s.account(), name}
	if s.act.fenced {
		args = append(args, "--fence", "sqlite:"+s.account()+"#account")
		writer = append(writer, "--fenced")
	}
	cmd := exec.Command(self, append(args, writer...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+filepath.Dir(s.dir)) // also for what a killed one leaves behind
	// Ctrl-C is for this process, which ends the others.
	// It dies with this process, of whose thread the kernel keeps account.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &player{name: name, cmd: cmd, gone: make(chan struct{})}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.players = append(s.players, p)
	go s.follow(p, out, log)
	return p, nil
}

// follow sends what is heard of a player, until all its processes have ended:
// each of them holds its output open.
func (s *scene) follow(p *player, out, log io.Reader) {
	defer close(p.gone)
	tell := func(words []string) {
		select {
		case s.events <- event{p, words}:
		case <-s.over:
		}
	}
	var both sync.WaitGroup
	both.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			tell(strings.Fields(lines.Text()))
		}
	})
	both.Go(func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			var said struct{ Level, Msg, Error string }
			switch err := json.Unmarshal(lines.Bytes(), &said); {
			case err != nil:
				p.fault = lines.Text()
			case strings.HasPrefix(said.Msg, "waiting: another leads"):
				tell([]string{"waits"})
			case said.Level != "INFO":
				p.fault = strings.TrimSuffix(said.Msg+": "+said.Error, ": ")
			}
		}
	})
	both.Wait()
	p.cmd.Wait()
	p.code = p.cmd.ProcessState.ExitCode()
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		p.code = 128 + int(ws.Signal())
	}
	tell(nil)
}

// epitaph is how a player that is gone ended.
func (p *player) epitaph() string {
	return strings.TrimSuffix(fmt.Sprintf("%s ended with %d: %s", p.name, p.code, p.fault), ": ")
}

func (p *player) tell(line string) error {
	_, err := io.WriteString(p.in, line+"\n")
	return err
}

// kill kills the `tenure run` alone.
func (p *player) kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		return otherwise{p.name + " ended before it could be killed"}
	}
	return err
}

// freeze stops the `tenure run`, its guardian and its program, and returns when
// they stand still.
func (p *player) freeze(ctx context.Context) error {
	below, err := guard.Descendants(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if len(below) != 2 {
		return otherwise{fmt.Sprintf("%s has %d processes below it, not a guardian and a program", p.name, len(below))}
	}
	p.frozen = append([]int{p.cmd.Process.Pid}, below...)
	if err := p.signalFrozen(unix.SIGSTOP); err != nil {
		return err
	}
	for _, pid := range p.frozen {
		for !stopped(pid) {
			if len(arguments(pid)) == 0 {
				return otherwise{p.name + " ended before it could be frozen"}
			}
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// thawProgram lets the program alone go on, and thaw all of it.
func (p *player) thawProgram() error { return unix.Kill(p.frozen[2], unix.SIGCONT) }
func (p *player) thaw() error        { return p.signalFrozen(unix.SIGCONT) }

func (p *player) signalFrozen(sig syscall.Signal) error {
	var err error
	for _, pid := range p.frozen {
		if e := unix.Kill(pid, sig); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// runningPrograms names the programs that are to pay from the account and run
// now, as /proc shows them. A frozen one does not run.
func runningPrograms(account string) []string {
	running := []string{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if args := arguments(pid); len(args) > 3 && args[1] == demoWriter && args[2] == account && !stopped(pid) {
			running = append(running, args[3])
		}
	}
	return running
}

// arguments are a process's, or nil if it has ended.
func arguments(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(string(line), "\x00")
}

// stopped reports whether a process stands still because of a signal.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T"))
}
