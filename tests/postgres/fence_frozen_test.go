package postgres

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/tenurepg"
)

// fencedLeaderRole is a leader that opens a fenced transaction, says so, and goes
// on when it is told to, by a line on its standard input. It says what became of
// the transaction.
func fencedLeaderRole() int {
	ctx := context.Background()
	p, err := pgxpool.New(ctx, os.Getenv("TENURE_TEST_URL"))
	if err != nil {
		fmt.Println("cannot begin:", err)
		return 1
	}
	defer p.Close()
	stdin := bufio.NewReader(os.Stdin)
	proceed := func() {
		fmt.Println("open")
		_, _ = stdin.ReadString('\n')
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	_, err = tenurepg.NewFence(p, nil).Do(ctx, fence.Stamp{Resource: "r", Token: 7, TermID: "a"}, func(tx pgx.Tx) error {
		if err := insert(ctx, "r", "frozen")(tx); err != nil {
			return err
		}
		if os.Getenv("TENURE_TEST_MODE") == "idle" {
			proceed()
			return nil
		}
		// Far more than fits into what lies between server and client.
		rows, err := tx.Query(ctx, "select repeat('x', 10000) from generate_series(1, 100000)")
		if err != nil {
			return err
		}
		defer rows.Close()
		for n := 0; rows.Next(); n++ {
			if n == 0 {
				proceed()
			}
		}
		return rows.Err()
	})
	fmt.Println("ended:", err)
	return 0
}

// A leader that is frozen in the middle of a fenced transaction holds up its
// successor no longer than the setting says: the server ends the transaction. When
// it wakes up, its transaction is gone.
func TestFenceFrozenLeader(t *testing.T) {
	const bound = 2 * time.Second
	for _, mode := range []string{"idle", "reading"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := written(t)
			p := pool(t, d.URL())
			if _, err := p.Exec(t.Context(), fmt.Sprintf("alter database %s set tenure.fence_idle = '%dms'", d.Name, bound.Milliseconds())); err != nil {
				t.Fatal(err)
			}
			leader := exec.Command(os.Args[0])
			leader.Env = append(os.Environ(), roleEnv+"=fenced-leader", "TENURE_TEST_MODE="+mode, "TENURE_TEST_URL="+d.URL())
			leader.Stderr = os.Stderr
			orders, err := leader.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := leader.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := leader.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = leader.Process.Kill() // it has ended, usually
				_ = leader.Wait()
			})
			said := bufio.NewScanner(out)
			if !said.Scan() || said.Text() != "open" {
				t.Fatalf("the leader said %q, %v", said.Text(), said.Err())
			}
			if err := leader.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}

			began := time.Now()
			// Without a bound it would wait in vain, for as long as it waits at all.
			if err := tenurepg.NewFence(p, nil).Enter(t.Context(), fence.Stamp{Resource: "r", Token: 8, TermID: "b"}); err != nil {
				t.Errorf("the successor of a frozen leader: %v", err)
			}
			t.Logf("the successor was in after %v, the bound is %v", time.Since(began).Round(time.Millisecond), bound)

			if err := leader.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintln(orders); err != nil {
				t.Fatal(err)
			}
			if !said.Scan() || !strings.HasPrefix(said.Text(), "ended:") || strings.Contains(said.Text(), "<nil>") {
				t.Errorf("the leader woke up and said %q", said.Text())
			}
			if got := values(t, p, "r"); len(got) > 0 {
				t.Errorf("what the frozen leader wrote landed: %q", got)
			}
		})
	}
}
