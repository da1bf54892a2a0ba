package tenuresqlite

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/row"
)

// supported says why the store cannot work on this system, or nil.
func supported() error { return nil }

const (
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
	offsetsFile = "/proc/self/timens_offsets"
)

// hostClock reads the time since boot. It asks for the boot id and the offset of
// the time namespace each time: a process that was checkpointed and restored
// elsewhere has others than before.
func hostClock() (reading, error) {
	boot, err := readProc(bootIDFile)
	if err != nil {
		return reading{}, unsupportedClock(err)
	}
	offset, err := boottimeOffset()
	if err != nil {
		return reading{}, unsupportedClock(err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return reading{}, unsupportedClock(err)
	}
	return reading{
		now:  row.Now{Mono: time.Duration(ts.Nano()) - offset, Wall: time.Now().Round(0)},
		boot: strings.TrimSpace(boot),
	}, nil
}

// readProc reads a small file of the kernel's. [os.ReadFile] takes several times
// as long, and every request reads two of them.
func readProc(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var buf [512]byte
	for {
		n, err := unix.Read(fd, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &fs.PathError{Op: "read", Path: path, Err: err}
		default:
			return string(buf[:n]), nil
		}
	}
}

func unsupportedClock(err error) error {
	return &failure{kind: store.ErrUnsupported, text: "the sqlite store needs this host's boot time and boot id", cause: err}
}

// boottimeOffset returns what this process's time namespace adds to the host's
// time since boot.
func boottimeOffset() (time.Duration, error) {
	text, err := readProc(offsetsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // a kernel without time namespaces
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "boottime" {
			continue
		}
		sec, err1 := strconv.ParseInt(f[1], 10, 64)
		nsec, err2 := strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, fmt.Errorf("%s: %w", offsetsFile, err)
		}
		return time.Duration(sec)*time.Second + time.Duration(nsec), nil
	}
	return 0, fmt.Errorf("%s has no line for boottime", offsetsFile)
}

// identify returns the identity of the regular file at path. It never opens it:
// closing any descriptor of a file drops every lock that this process holds on
// it, also those of a database connection.
func identify(path string) (fileID, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileID{}, err
	}
	if !info.Mode().IsRegular() {
		return fileID{}, &failure{kind: store.ErrInvalid, text: fmt.Sprintf("%s is %s: allowed is a path to a file", path, kindOf(info.Mode()))}
	}
	st := info.Sys().(*syscall.Stat_t)
	return fileID{dev: uint64(st.Dev), ino: st.Ino}, nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// accessFault says why path cannot be read, or written, with the rights of this
// process, or nil if the system would let it.
func accessFault(path string, write bool) *failure {
	verb, mode := "read", uint32(unix.R_OK)
	if write {
		verb, mode = "write", unix.R_OK|unix.W_OK
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return accessError(err, verb, path)
	}
	// SQLite keeps its journal beside the file, for readers too.
	dir := filepath.Dir(path)
	err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	switch {
	case errors.Is(err, unix.EROFS):
		return accessError(err, "write", path)
	case err != nil:
		return accessError(err, "create SQLite's journal files in", dir)
	}
	return nil
}

func accessError(err error, verb, path string) *failure {
	switch {
	case errors.Is(err, unix.EROFS):
		return &failure{kind: store.ErrReadOnly, text: fmt.Sprintf("%s is on a read-only file system", path)}
	case errors.Is(err, unix.EPERM):
		return &failure{kind: store.ErrReadOnly, text: fmt.Sprintf("%s is marked immutable", path)}
	case errors.Is(err, unix.EACCES):
		return &failure{kind: store.ErrDenied, text: fmt.Sprintf("user %d may not %s %s", os.Geteuid(), verb, path)}
	}
	return &failure{kind: store.ErrUnreachable, text: path, cause: err}
}

// createFile makes an empty file that only its owner may use, and the directory
// that holds it if only that is missing. A file that somebody else made
// meanwhile is as good.
func createFile(path string) error {
	dir := filepath.Dir(path)
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return createFault(err, dir)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return danglingLink(path)
	}
	if err != nil {
		return createFault(err, path)
	}
	if err := f.Close(); err != nil {
		return err
	}
	return syncDir(dir)
}

// danglingLink returns an error if path is a symbolic link to nothing: it has a
// name already and still no file.
func danglingLink(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return &failure{kind: store.ErrInvalid, text: fmt.Sprintf("%s is a symbolic link to nothing: allowed is a path to a file, or of one that can be made", path)}
	}
	return nil
}

func createFault(err error, path string) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return &failure{kind: store.ErrReadOnly, text: fmt.Sprintf("%s cannot be created on a read-only file system", path), cause: err}
	case errors.Is(err, fs.ErrPermission):
		return &failure{kind: store.ErrDenied, text: fmt.Sprintf("user %d may not create %s", os.Geteuid(), path), cause: err}
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Dir(path)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return &failure{kind: store.ErrUnreachable, text: fmt.Sprintf("%s cannot be created: make the directory %s first", path, dir), cause: err}
		}
	}
	return &failure{kind: store.ErrUnreachable, text: fmt.Sprintf("%s cannot be created", path), cause: err}
}

// creatable says why createFile would fail, as far as that can be told without
// making anything.
func creatable(path string) error {
	if err := danglingLink(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		path, dir = dir, filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	switch {
	case err != nil:
		return createFault(err, path)
	case !info.IsDir():
		return &failure{kind: store.ErrInvalid, text: fmt.Sprintf("%s cannot be created: %s is no directory", path, dir)}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return createFault(err, path)
	}
	return nil
}

// syncDir makes a new name in a directory survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// touch sets the file's times to now. It changes nothing that anybody relies on
// and is how a change is announced: the kernel tells those who watch the
// directory, after the commit and once for each.
func touch(path string) error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, now, 0)
}

// lockHolder says which process holds a lock that another's write to the file
// must wait for, for people; empty if it cannot be told. The lock is one of a
// reader if reader is true, otherwise that of the writer.
func lockHolder(path string, reader bool) string {
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	kind := "WRITE"
	if reader {
		kind = "READ"
	}
	var files []string
	for _, p := range []string{path, path + "-shm"} {
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil {
			files = append(files, fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino))
		}
	}
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		// 1: POSIX  ADVISORY  WRITE 1234 fe:00:56789 120 120
		if len(f) != 8 || f[3] != kind || !slices.Contains(files, f[5]) {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		switch {
		case err != nil || pid <= 0:
			return "" // in another namespace
		case pid == os.Getpid() && reader:
			continue // a reader has a lock of its own in each process
		case pid == os.Getpid():
			return "another connection of this process"
		}
		return describe(pid)
	}
	return ""
}

// describe names a process, and says so if it is stopped: then it keeps its lock
// until somebody lets it go on or kills it.
func describe(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	// 1234 (name) T ..., where the name may contain anything.
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open || len(stat) < end+3 {
		return fmt.Sprintf("process %d", pid)
	}
	text := fmt.Sprintf("process %d (%s)", pid, stat[open+1:end])
	if state := stat[end+2]; state == 'T' || state == 't' {
		text += ", which is stopped,"
	}
	return text
}

// stamp is what changes of a file can be seen by without opening it.
type stamp struct {
	id           fileID
	mtime, ctime unix.Timespec
}

func stampOf(path string) stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return stamp{}
	}
	return stamp{id: fileID{dev: st.Dev, ino: st.Ino}, mtime: st.Mtim, ctime: st.Ctim}
}

// fileSystem says what lies under dir.
func fileSystem(dir string) (fsInfo, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fsInfo{}, err
	}
	info := fsInfo{free: st.Bavail * uint64(st.Bsize)}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC:
		info.kind, info.remote = "NFS", true
	case unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.SMB_SUPER_MAGIC:
		info.kind, info.remote = "SMB", true
	case unix.V9FS_MAGIC:
		info.kind, info.remote = "9p", true
	case unix.FUSE_SUPER_MAGIC:
		info.kind, info.remote = "FUSE", true
	case unix.CEPH_SUPER_MAGIC:
		info.kind, info.remote = "Ceph", true
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC, unix.CODA_SUPER_MAGIC:
		info.kind, info.remote = "a network file system", true
	case unix.OCFS2_SUPER_MAGIC:
		info.kind, info.remote = "OCFS2", true
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		info.kind, info.volatile = "a file system in memory", true
	case unix.OVERLAYFS_SUPER_MAGIC:
		info.kind, info.volatile = "an overlay, as containers have", true
	case unix.EXT4_SUPER_MAGIC:
		info.kind = "ext4"
	case unix.XFS_SUPER_MAGIC:
		info.kind = "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		info.kind = "btrfs"
	default:
		info.kind = fmt.Sprintf("file system type %#x", uint32(st.Type))
	}
	return info, nil
}

// fileFacts looks at the file without opening it.
func fileFacts(path string) (fileInfo, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileInfo{}, err
	}
	info := fileInfo{mode: st.Mode & 0o777, uid: st.Uid, links: uint64(st.Nlink)}
	if err := unix.Stat(filepath.Dir(path), &st); err != nil {
		return fileInfo{}, err
	}
	info.open = st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0
	return info, nil
}
