package tenuresqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// notifier hears from the kernel when the file is touched, which every change of
// Tenure's ends with, or when it appears. It watches the directory for these
// events alone, so a job's own writes to the file do not wake it.
type notifier struct {
	f      *os.File
	base   string
	wake   chan struct{} // closed when there will be no more
	remote bool          // the file system may not tell of changes made elsewhere
}

// newNotifier returns nil if the system cannot announce changes, or the
// directory does not exist yet. The channel is closed when that ends.
func newNotifier(path string) *notifier {
	real, err := filepath.EvalSymlinks(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		real = path
	} else if err != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	// Journals come and go all the time, so new files are of interest only while
	// ours is missing.
	mask := uint32(unix.IN_ATTRIB | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR)
	if missing {
		mask |= unix.IN_CREATE
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(real), mask); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	fsys, err := fileSystem(filepath.Dir(real))
	n := &notifier{
		f:      os.NewFile(uintptr(fd), "inotify"),
		base:   filepath.Base(real),
		wake:   make(chan struct{}, 1),
		remote: err != nil || fsys.remote,
	}
	return n
}

// close ends the notifier. A nil one has nothing to end.
func (n *notifier) close() {
	if n == nil {
		return
	}
	_ = n.f.Close()
	for range n.wake {
		continue
	}
}

// run reads events until the notifier is closed or the directory is gone.
func (n *notifier) run() {
	defer close(n.wake)
	buf := make([]byte, 4096)
	for {
		got, err := n.f.Read(buf)
		if err != nil {
			return
		}
		wake, gone := n.concerns(buf[:got])
		if wake || gone {
			select {
			case n.wake <- struct{}{}:
			default:
			}
		}
		if gone {
			return
		}
	}
}

// concerns reports whether any of the events is about the file, or the directory
// is no longer what it was.
func (n *notifier) concerns(events []byte) (wake, gone bool) {
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[4:])
		size := int(binary.NativeEndian.Uint32(events[12:]))
		events = events[unix.SizeofInotifyEvent:]
		name := string(bytes.TrimRight(events[:size], "\x00"))
		events = events[size:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			wake = true // some events were lost; any could have been ours
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
			gone = true
		case name == n.base:
			wake = true
			// Once there, further creations are the journals'.
			gone = gone || mask&unix.IN_CREATE != 0
		}
	}
	return wake, gone
}
