// Package marker keeps the file by which scripts see that a process on this
// host leads: it is there while the process leads.
//
// A file can be left behind, copied to another host or restored with a disk
// image, so it carries what makes that visible: the boot it was written in, and
// the process by pid and start time. A process can be there and lead no more, so
// it also carries the moment at which its term ends without a renewal, and is
// written anew at each renewal. A copy of a whole machine's memory shares all of
// that; the file is a hint for people and scripts, not a fence.
package marker

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
	"golang.org/x/sys/unix"
)

// Marker is the content of the file.
type Marker struct {
	BootID    string `json:"boot_id"`
	PID       int    `json:"pid"`
	StartTime string `json:"start_time"` // of the process, in clock ticks since boot
	Instance  string `json:"instance"`   // drawn by this process
	Name      string `json:"name"`       // the election
	Token     string `json:"token"`      // the fencing token, in decimal
	Term      string `json:"term"`       // the term id
	End       End    `json:"end"`        // of the term, unless it is renewed
}

// End is a moment on the three clocks of a [guard.Instant], in nanoseconds. It has
// passed as soon as any of them says so.
type End struct {
	Mono int64 `json:"mono_ns,string"`
	Boot int64 `json:"boot_ns,string"`
	Real int64 `json:"real_ns,string"`
}

// StaleError says that a marker is not that of a process of this host that leads,
// and how that is known.
type StaleError struct{ Why string }

func (e *StaleError) Error() string { return "the marker is stale: " + e.Why }

// ErrForeign: there is a file at the marker's path which is no marker, and it
// is left alone.
var ErrForeign = errors.New("it exists and is no marker of tenure")

// File is the marker file of one process.
type File struct {
	path string
	self Marker // without name, token, term and end
}

// NewFile prepares a marker file for this process. Nothing is written yet.
func NewFile(path string) (*File, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	start, _, err := lookAt(os.Getpid())
	if err != nil {
		return nil, err
	}
	return &File{path: path, self: Marker{BootID: boot, PID: os.Getpid(), StartTime: start, Instance: rand.Text()}}, nil
}

// Write puts the marker of a term in place, whole or not at all. end is when the
// term ends without a further renewal.
func (f *File) Write(name, token, term string, end guard.Instant) error {
	m := f.self
	m.Name, m.Token, m.Term, m.End = name, token, term, End(end)
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(f.path), ".tenure-marker-*")
	if err != nil {
		return f.wrap(err)
	}
	_, err = temp.Write(append(data, '\n'))
	err = errors.Join(err, temp.Chmod(0o644), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), f.path)
	}
	if err != nil {
		os.Remove(temp.Name())
		return f.wrap(err)
	}
	return nil
}

// Probe reports why a marker could not be written, before one has to be.
func (f *File) Probe() error {
	temp, err := os.CreateTemp(filepath.Dir(f.path), ".tenure-marker-*")
	if err != nil {
		return f.wrap(err)
	}
	temp.Close()
	return os.Remove(temp.Name())
}

// Remove removes the marker if it is this process's own or stale. One of
// another process that leads stays: it is that process's to remove. It is called
// before contending and at the end of each term.
func (f *File) Remove() error {
	m, err := Read(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case m.Instance != f.self.Instance && m.Check() == nil:
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.wrap(err)
	}
	return nil
}

func (f *File) wrap(err error) error { return fmt.Errorf("marker %s: %w", f.path, err) }

// sizeMax is more than any marker has.
const sizeMax = 16 << 10

// Read reads a marker file. It says nothing of whether the marker is stale. What
// is no regular file, and might never come to an end, is not read.
func Read(path string) (Marker, error) {
	fail := func(err error) (Marker, error) { return Marker{}, fmt.Errorf("marker %s: %w", path, err) }
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if !st.Mode().IsRegular() {
		return fail(ErrForeign)
	}
	data, err := io.ReadAll(io.LimitReader(f, sizeMax))
	if err != nil {
		return fail(err)
	}
	var m Marker
	if err := json.Unmarshal(data, &m); err != nil || m.BootID == "" || m.PID == 0 || m.StartTime == "" || m.Instance == "" {
		return fail(ErrForeign)
	}
	return m, nil
}

// Check returns nil if the process that wrote the marker runs on this host in
// this boot, and its term has not ended, as far as can be seen from here; and a
// *[StaleError] otherwise.
func (m Marker) Check() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if m.BootID != boot {
		return &StaleError{Why: "it was written on another host or before the last boot"}
	}
	start, state, err := lookAt(m.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &StaleError{Why: fmt.Sprintf("its process %d is gone", m.PID)}
	case err != nil:
		return err
	case start != m.StartTime:
		return &StaleError{Why: fmt.Sprintf("its process is gone, and %d is another by now", m.PID)}
	case strings.ContainsRune("ZX", state):
		return &StaleError{Why: fmt.Sprintf("its process %d has ended", m.PID)}
	case guard.Instant(m.End).Passed(guard.Now()):
		return &StaleError{Why: fmt.Sprintf("its lease has run out: process %d did not renew it in time", m.PID)}
	case strings.ContainsRune("Tt", state):
		return &StaleError{Why: fmt.Sprintf("its process %d is stopped, and renews nothing", m.PID)}
	}
	return nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// lookAt returns the start time of a process and the letter of its state: the
// 22nd field of /proc/PID/stat and the third. The second is the name in
// parentheses, which may itself contain anything.
func lookAt(pid int) (start string, state rune, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) { // it went between open and read
		err = fs.ErrNotExist
	}
	if err != nil {
		return "", 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return "", 0, fmt.Errorf("/proc/%d/stat has %d fields after the name, want 20 or more", pid, len(fields))
	}
	return string(fields[19]), rune(fields[0][0]), nil
}
