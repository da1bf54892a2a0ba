package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process is an entry of /proc. The pid alone names it only until it is reaped;
// with the start time it is named for good.
type process struct {
	pid, ppid int
	group     int
	session   int
	start     uint64 // in clock ticks since boot
	zombie    bool
}

// checkProc makes sure that /proc shows this process under the pid it knows of
// itself: there is a /proc, and it is that of our own pid namespace.
func checkProc() error {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return fmt.Errorf("the guardian needs a mounted /proc: %w", err)
	}
	if self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("the guardian needs the /proc of its own pid namespace: this one shows it as %s and it is %d", self, os.Getpid())
	}
	return nil
}

// readProcess reads one entry of /proc.
func readProcess(pid int) (process, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	return parseStat(pid, stat)
}

// parseStat takes "pid (name) state ppid …". The name may hold anything, also
// parentheses and newlines, so the fields are counted from its last one.
func parseStat(pid int, stat []byte) (process, error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return process{}, fmt.Errorf("/proc/%d/stat: no name in %q", pid, stat)
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat: %d fields after the name, want 20 or more", pid, len(fields))
	}
	var ids [3]int // ppid, group, session
	for i := range ids {
		n, err := strconv.Atoi(string(fields[1+i]))
		if err != nil {
			return process{}, fmt.Errorf("/proc/%d/stat: field %d after the name: %w", pid, 1+i, err)
		}
		ids[i] = n
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	state := fields[0][0]
	return process{
		pid: pid, ppid: ids[0], group: ids[1], session: ids[2], start: start, zombie: state == 'Z' || state == 'X',
	}, nil
}

// processes returns every process that /proc shows and keep wants.
func processes(keep func(process) bool) ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil && keep(p) { // an error: it ended since
			all = append(all, p)
		}
	}
	return all, nil
}

// descendants returns every process below root that /proc shows, parents before
// children, leaving out the trees that except holds (by pid and start time).
func descendants(root int, except map[int]uint64) ([]process, error) {
	all, err := processes(func(p process) bool {
		start, ok := except[p.pid]
		return !ok || start != p.start
	})
	if err != nil {
		return nil, err
	}
	children := make(map[int][]process)
	for _, p := range all {
		children[p.ppid] = append(children[p.ppid], p)
	}
	tree := children[root]
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i].pid]...)
	}
	return tree, nil
}

// Descendants returns the pids of every process below one, parents before
// children. They may be stale on return.
func Descendants(pid int) ([]int, error) {
	tree, err := descendants(pid, nil)
	pids := make([]int, 0, len(tree))
	for _, p := range tree {
		pids = append(pids, p.pid)
	}
	return pids, err
}

// send signals exactly this process, never a later one with its pid. A process
// that has ended is no error.
func (p process) send(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // gone, or the pid is now a thread's
		return nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // an old kernel or sandbox: no descriptor to be had
		fd = -1
	case err != nil:
		return err
	default:
		defer unix.Close(fd)
	}
	// The pid belonged to p when it was read before, and if it does now it did
	// when the descriptor was opened in between.
	if now, err := readProcess(p.pid); err != nil || now.start != p.start {
		return nil
	}
	if fd < 0 {
		err = unix.Kill(p.pid, sig)
	} else {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// sendAll signals every live process of the tree and returns the first refusal.
func sendAll(tree []process, sig unix.Signal) error {
	var first error
	for _, p := range tree {
		if p.zombie {
			continue
		}
		if err := p.send(sig); err != nil && first == nil {
			first = fmt.Errorf("process %d: %w", p.pid, err)
		}
	}
	return first
}

// hunt kills what is left of a job, again and again until nothing is.
type hunt struct {
	command int            // pid of the command, which led a group of its own
	killed  map[int]uint64 // by pid: the start time
	pause   time.Duration  // before the next time
}

// Killed processes need a moment to end. The pause doubles from huntPauseMin to
// huntPauseMax while nothing new is found, for the sake of processes that may not
// be killed.
const (
	huntPauseMin = 5 * time.Millisecond
	huntPauseMax = 500 * time.Millisecond
)

// kill kills a tree of processes below this one, and returns the first refusal.
func (h *hunt) kill(tree []process) error {
	h.pause = min(max(2*h.pause, huntPauseMin), huntPauseMax)
	if h.anew(tree) {
		h.pause = huntPauseMin
	}
	h.killGroups(tree)
	return sendAll(tree, unix.SIGKILL)
}

// anew remembers the tree's live processes, and reports whether one was not known.
func (h *hunt) anew(tree []process) (found bool) {
	if h.killed == nil {
		h.killed = make(map[int]uint64)
	}
	for _, p := range tree {
		if start, ok := h.killed[p.pid]; !p.zombie && (!ok || start != p.start) {
			h.killed[p.pid] = p.start
			found = true
		}
	}
	return found
}

// killGroups kills the process groups of a tree, as far as they are the job's
// own. Processes that fork and end all the time are gone before they can be killed
// one by one; a signal to their group leaves none out.
func (h *hunt) killGroups(tree []process) {
	self, err := readProcess(os.Getpid())
	if err != nil {
		return
	}
	below := make(map[int]bool)
	for _, p := range tree {
		below[p.pid] = true
	}
	done := make(map[int]bool)
	for _, p := range tree {
		// Groups that the job may have joined, instead of having made them, are within
		// the session that it was started in. 0 is a group of another pid namespace.
		own := p.group == h.command || p.session != self.session || below[p.group]
		if !own || p.group <= 1 || p.group == self.group || p.zombie || done[p.group] {
			continue
		}
		// A group's number is its own while it has a member. If p is still one, the
		// number cannot come round until the next line.
		if now, err := readProcess(p.pid); err == nil && now.start == p.start && now.group == p.group {
			unix.Kill(-p.group, unix.SIGKILL)
			done[p.group] = true
		}
	}
}
