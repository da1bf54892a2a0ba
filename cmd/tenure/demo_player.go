package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenuresqlite"
	"golang.org/x/sys/unix"
)

// player is one of the two programs of the demo, with the `tenure run` above
// it. It is told what to do by its standard input and says what it did on its
// standard output, a line each.
type player struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	frozen []int // pids: the wrapper, the guardian, the command
	once   sync.Once
	result error

	token, balance string // as it said
}

func startPlayer(cmd *exec.Cmd, name string) (*player, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &player{name: name, cmd: cmd, in: in, out: bufio.NewScanner(out)}, nil
}

func (p *player) tell(line string) error {
	_, err := io.WriteString(p.in, line+"\n")
	return err
}

func (p *player) hearAny() ([]string, error) {
	if !p.out.Scan() {
		return nil, fmt.Errorf("%s ended: %w", p.name, errors.Join(p.out.Err(), p.wait(), io.ErrUnexpectedEOF))
	}
	words := strings.Fields(p.out.Text())
	if len(words) < 2 {
		return nil, fmt.Errorf("%s said %q", p.name, p.out.Text())
	}
	return words, nil
}

// hear waits for the word, a token and a balance.
func (p *player) hear(word string) error {
	words, err := p.hearAny()
	if err != nil {
		return err
	}
	if words[0] != word || len(words) != 3 {
		return fmt.Errorf("%s said %q, want %s", p.name, words, word)
	}
	p.token, p.balance = words[1], words[2]
	return nil
}

// freeze stops the `tenure run`, its guardian and its command.
func (p *player) freeze() error {
	below, err := guard.Descendants(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if len(below) != 2 {
		return fmt.Errorf("%s has %d processes below it, want its guardian and its command", p.name, len(below))
	}
	p.frozen = append([]int{p.cmd.Process.Pid}, below...)
	return p.signalFrozen(unix.SIGSTOP)
}

// thawCommand lets the command alone go on, and thawRest the other two.
func (p *player) thawCommand() error { return unix.Kill(p.frozen[2], unix.SIGCONT) }
func (p *player) thawRest() error    { return p.signalFrozen(unix.SIGCONT) }

func (p *player) signalFrozen(sig syscall.Signal) error {
	var err error
	for _, pid := range p.frozen {
		if e := unix.Kill(pid, sig); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (p *player) wait() error {
	p.once.Do(func() { p.result = p.cmd.Wait() })
	return p.result
}

// end ends whatever is left.
func (p *player) end() {
	below, _ := guard.Descendants(p.cmd.Process.Pid)
	for _, pid := range append(below, p.cmd.Process.Pid) {
		if p.cmd.ProcessState == nil {
			unix.Kill(pid, syscall.SIGKILL)
		}
	}
	p.in.Close()
	p.wait()
}

// ledger is the account.
type ledger struct{ db *sql.DB }

func newLedger(path string) (*ledger, error) {
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(`create table account (balance integer not null); insert into account values (100)`); err != nil {
		db.Close()
		return nil, err
	}
	return &ledger{db}, nil
}

func (l *ledger) close() { l.db.Close() }

func (l *ledger) balance(ctx context.Context) (n int64, err error) {
	err = l.db.QueryRowContext(ctx, `select balance from account`).Scan(&n)
	return n, err
}

// pay takes 100 off. With a stamp the account's fence checks it, in the
// transaction that writes.
func (l *ledger) pay(ctx context.Context, stamp *fence.Stamp) error {
	const statement = `update account set balance = balance - 100`
	if stamp == nil {
		_, err := l.db.ExecContext(ctx, statement)
		return err
	}
	_, err := tenuresqlite.NewFence(l.db).Do(ctx, *stamp, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
	return err
}
