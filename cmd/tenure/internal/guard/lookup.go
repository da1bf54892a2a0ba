package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The codes of a [StartError]. The first two are those every shell gives.
const (
	CodeNotFound   = 127 // there is no such program
	CodeNotRunning = 126 // there is, but it cannot be executed
	CodeTooLate    = -1  // the term was over before the command could be started
	CodeInternal   = -2  // the guardian could not do its work
)

// StartError says that a command could not be started, and why.
type StartError struct {
	Code int
	Text string
}

func (e *StartError) Error() string { return e.Text }

// Lookup finds the program of a command the way a shell does: a name with a
// slash is a path, any other is searched in the directories of path. The error
// is a *[StartError].
func Lookup(name, path string) (string, error) {
	if name == "" {
		return "", &StartError{Code: CodeNotFound, Text: "the command is empty: allowed is the name or the path of a program"}
	}
	if strings.Contains(name, "/") {
		if err := executable(name); err != nil {
			return "", startError(name, err)
		}
		return name, nil
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		if !strings.Contains(file, "/") {
			file = "./" + file
		}
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			denied = startError(file, err)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &StartError{Code: CodeNotFound, Text: fmt.Sprintf("%s: no such program in PATH", name)}
}

func executable(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

func startError(file string, err error) *StartError {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &StartError{Code: CodeNotFound, Text: fmt.Sprintf("%s: no such program", file)}
	case errors.Is(err, unix.EACCES):
		return &StartError{Code: CodeNotRunning, Text: fmt.Sprintf("%s: not executable: %v", file, err)}
	}
	return &StartError{Code: CodeNotRunning, Text: fmt.Sprintf("%s: cannot be executed: %v", file, err)}
}
