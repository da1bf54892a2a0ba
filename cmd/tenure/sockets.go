package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dirPattern are the names of the directories that privateDir makes.
const dirPattern = "tenure-*"

// privateDir makes a directory of this process's own, in a place whose path is
// no longer than longest: those of sockets must be short.
func privateDir(longest int) (string, error) {
	var errs []error
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if base == "" || len(base) > longest {
			continue
		}
		dir, err := os.MkdirTemp(base, dirPattern)
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// socketDir is the directory of a process's sockets. As long as that lives it
// holds a lock on a file in it, so that others of the same user can tell one that
// was left behind, by a process that was killed, and remove it.
type socketDir struct {
	path string
	lock *os.File
}

// lockName is the name of the file that is locked.
const lockName = "lock"

// newSocketDir makes the directory as [privateDir] does, and removes those beside
// it that were left behind.
func newSocketDir(longest int) (d *socketDir, err error) {
	const tries = 10
	for range tries {
		var path string
		if path, err = privateDir(longest); err != nil {
			return nil, err
		}
		removeLeftBehind(filepath.Dir(path))
		d = &socketDir{path: path}
		if err = d.take(); err == nil {
			return d, nil
		}
		d.remove()
	}
	return nil, err
}

// take locks the directory. It fails if another was so quick to look that it took
// the new directory for one left behind.
func (d *socketDir) take() (err error) {
	if d.lock, err = os.OpenFile(filepath.Join(d.path, lockName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return err
	}
	err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return nil // files cannot be locked here, so nobody takes it for left behind
	}
	if err == nil {
		_, err = os.Stat(d.lock.Name())
	}
	return err
}

func (d *socketDir) remove() {
	os.RemoveAll(d.path)
	if d.lock != nil {
		d.lock.Close()
	}
}

// removeLeftBehind removes the socket directories in base that are this user's
// and whose processes are gone. One without a lock file was just made.
func removeLeftBehind(base string) {
	dirs, err := filepath.Glob(filepath.Join(base, dirPattern))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			// Nothing but what belongs there: who has put more into it wants to keep it.
			for _, name := range []string{"control", "notify", lockName} {
				os.Remove(filepath.Join(dir, name))
			}
			os.Remove(dir)
		}
		lock.Close()
	}
}
