package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience is how long a server may take for anything, on a busy machine.
const patience = time.Minute

// process is a running server with its children.
type process struct {
	pid    int
	ended  chan struct{} // closed when it was waited for
	result error         // of the wait; read after ended
}

// command returns a command that runs as the servers' user in folder.
func command(folder, name string, args ...string) (*exec.Cmd, error) {
	c, err := credential()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = folder
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	return cmd, nil
}

// run runs a command to its end.
func run(folder, name string, args ...string) error {
	cmd, err := command(folder, name, args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("servers: %s: %w\n%s", filepath.Base(name), err, out)
	}
	return nil
}

// start starts a server whose output goes to a file. It ends with this process,
// however that ends.
func start(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	p := &process{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal of Pdeathsig comes when the thread ends that started the child,
		// so this thread stays until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = out.Close() // the child has its own
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.result = cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

// running reports whether the server has not ended.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// wait waits for the server's end.
func (p *process) wait() error {
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("servers: process %d does not end", p.pid)
	}
}

// freeze stops the server and then its children: while it runs it can start more.
// All of them are stopped on return.
func (p *process) freeze() ([]int, error) {
	if err := stop(p.pid); err != nil {
		return nil, err
	}
	children := childrenOf(p.pid)
	for _, pid := range children {
		if err := stop(pid); err != nil {
			return nil, err
		}
	}
	return children, nil
}

// stop stops one process. One that has ended meanwhile is no error.
func stop(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return until(fmt.Sprintf("process %d to stop", pid), func() (bool, error) {
		return strings.Contains("TtZX", state(pid)), nil
	})
}

// thaw continues the server and its children.
func (p *process) thaw() error {
	var errs []error
	for _, pid := range append(childrenOf(p.pid), p.pid) {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// kill ends the server and all of its children as a crash does, and waits until
// they are gone.
func (p *process) kill() error {
	children, err := p.freeze()
	if err != nil {
		return err
	}
	for _, pid := range append(children, p.pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	if err := p.wait(); err != nil {
		return err
	}
	// The children are nobody's now, and perhaps nobody waits for them.
	return until("the server's children to end", func() (bool, error) {
		for _, pid := range children {
			if !strings.Contains("ZX", state(pid)) {
				return false, nil
			}
		}
		return true, nil
	})
}

// end ends the server the way sig asks for, or else by killing it.
func (p *process) end(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := p.thaw(); err != nil {
		return err
	}
	if err := syscall.Kill(p.pid, sig); err != nil {
		return err
	}
	if err := p.wait(); err != nil {
		return errors.Join(err, p.kill())
	}
	return nil
}

// state is the letter by which the kernel names a process's state, X if it is
// gone.
func state(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "X"
	}
	_, rest, _ := strings.Cut(string(text), ") ") // after the name
	return rest[:1]
}

func childrenOf(pid int) []int {
	var children []int
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // gone: it has none
	for _, word := range strings.Fields(string(text)) {
		if child, err := strconv.Atoi(word); err == nil {
			children = append(children, child)
		}
	}
	return children
}

// until asks every few milliseconds until the answer is yes or an error.
func until(what string, ask func() (bool, error)) error {
	for began := time.Now(); ; time.Sleep(3 * time.Millisecond) {
		done, err := ask()
		switch {
		case err != nil:
			return err
		case done:
			return nil
		case time.Since(began) > patience:
			return fmt.Errorf("servers: waited %v for %s", patience, what)
		}
	}
}

// freePort returns a port that nobody listens at. It is below those that the
// system gives to outgoing connections, so that a server which is restarted finds
// its port free.
func freePort() (int, error) {
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("servers: no free port from 12000 to 31999")
}

// tail is the end of a log, for people.
func tail(log string) string {
	const most = 3000
	text, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

// find returns the last file, by name, that a pattern of these matches.
func find(what string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", fmt.Errorf("servers: %s is missing: looked for %s", what, strings.Join(patterns, ", "))
}
