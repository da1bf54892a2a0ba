package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/goleak"
)

// stock is what a process has: goroutines, open files, children, locks.
type stock struct {
	goroutines goleak.Option
	things     []string
}

// takeStock notes what there is now.
func takeStock() stock {
	// The runtime keeps its own two descriptors once any file was polled.
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	_, _ = r.Close(), w.Close()
	return stock{goleak.IgnoreCurrent(), things()}
}

// more returns what there is now and was not then. It waits a little for
// goroutines that are about to end.
func (s stock) more() []string {
	var more []string
	if err := goleak.Find(s.goroutines); err != nil {
		more = append(more, err.Error())
	}
	had := slices.Clone(s.things)
	for _, t := range things() {
		if i := slices.Index(had, t); i >= 0 {
			had = slices.Delete(had, i, i+1)
		} else {
			more = append(more, t)
		}
	}
	return more
}

func things() []string {
	var all []string
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil { // the one that listed them is closed again
			all = append(all, "open file "+to)
		}
	}
	children, _ := filepath.Glob("/proc/self/task/*/children")
	for _, c := range children {
		text, _ := os.ReadFile(c)
		for _, pid := range strings.Fields(string(text)) {
			all = append(all, "child process "+pid)
		}
	}
	return append(all, locksOf(os.Getpid())...)
}

// locksOf returns the locks on files that a process holds.
func locksOf(pid int) []string {
	var all []string
	text, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(text)) {
		// 1: POSIX  ADVISORY  WRITE 1234 fe:00:56789 120 120
		if f := strings.Fields(line); len(f) == 8 && f[4] == fmt.Sprint(pid) {
			all = append(all, "lock "+strings.Join(f[1:], " "))
		}
	}
	return all
}
