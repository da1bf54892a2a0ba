package guard

import (
	"errors"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// Reaper waits for every child of the wrapper: its guardians, what falls to it
// when a guardian is killed, and, as PID 1 of a container, every orphan there
// is. A process that has a Reaper must not wait for children in any other way;
// os/exec would find their status taken.
type Reaper struct {
	before map[int]uint64 // children that were there first: pid and start time

	mu       sync.Mutex
	awaited  map[int]chan unix.WaitStatus
	children chan os.Signal
	done     chan struct{}
}

// NewReaper makes the process a child subreaper and starts to reap. Children
// that it already has (an exec'ing shell can leave some) are reaped as well when
// they end, but never taken for a part of a job.
func NewReaper() (*Reaper, error) {
	if err := errors.Join(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), checkProc()); err != nil {
		return nil, &StartError{Code: CodeInternal, Text: err.Error()}
	}
	r := &Reaper{
		before:   make(map[int]uint64),
		awaited:  make(map[int]chan unix.WaitStatus),
		children: make(chan os.Signal, 1),
		done:     make(chan struct{}),
	}
	old, err := descendants(os.Getpid(), nil)
	if err != nil {
		return nil, &StartError{Code: CodeInternal, Text: err.Error()}
	}
	for _, p := range old {
		r.before[p.pid] = p.start
	}
	signal.Notify(r.children, unix.SIGCHLD)
	go r.loop()
	r.children <- unix.SIGCHLD // for those that ended before
	return r, nil
}

// Close stops reaping.
func (r *Reaper) Close() {
	signal.Stop(r.children)
	close(r.children)
	<-r.done
}

func (r *Reaper) loop() {
	defer close(r.done)
	for range r.children {
		r.reap()
	}
}

func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reapLocked()
}

func (r *Reaper) reapLocked() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		delete(r.before, pid)
		if c, ok := r.awaited[pid]; ok {
			c <- status
			delete(r.awaited, pid)
		}
	}
}

// start runs fork, which starts a child, and returns a channel that gets the
// child's wait status. Nothing is reaped in between.
func (r *Reaper) start(fork func() (int, error)) (int, <-chan unix.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return 0, nil, err
	}
	c := make(chan unix.WaitStatus, 1)
	r.awaited[pid] = c
	return pid, c, nil
}

// kill kills a child that start has started, and reports whether it was still
// alive. Its pid is its own as long as it is awaited.
func (r *Reaper) kill(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reapLocked()
	_, alive := r.awaited[pid]
	if alive {
		unix.Kill(pid, unix.SIGKILL)
	}
	return alive
}

// orphans are the wrapper's descendants apart from those that were there
// before it.
func (r *Reaper) orphans() ([]process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return descendants(os.Getpid(), r.before)
}
