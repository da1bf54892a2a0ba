package servers

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// folders begins the name of each test binary's folder; its process id follows.
const folders = "tenure-servers-"

// binary is what the test binary has of its own.
var binary struct {
	sync.Mutex
	running bool
	folder  string // of all its servers; made at the first use
	shared  *Server
	data    string // a fresh data directory, to be copied
	made    int    // numbers folders and databases
}

// Run runs the tests and ends the servers that they shared. It returns the exit
// code.
func Run(m *testing.M) int {
	removeAbandoned()
	binary.running = true
	code := m.Run()
	if s := binary.shared; s != nil {
		if err := s.end(); err != nil {
			fmt.Fprintln(os.Stderr, "servers: ending the shared server:", err)
			code = max(code, 1)
		}
	}
	if binary.folder != "" {
		if err := os.RemoveAll(binary.folder); err != nil {
			fmt.Fprintln(os.Stderr, "servers:", err)
			code = max(code, 1)
		}
	}
	return code
}

// removeAbandoned removes what test binaries left behind that were killed.
func removeAbandoned() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), folders+"*"))
	for _, folder := range left {
		text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), folders), "-")
		pid, err := strconv.Atoi(text)
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.RemoveAll(folder) // it is another user's, then
		}
	}
}

// newFolder makes a folder that the servers' user can write to. The caller holds
// the lock of binary.
func newFolder(name string) (string, error) {
	if !binary.running {
		return "", fmt.Errorf("servers: the package's TestMain must call servers.Run")
	}
	if binary.folder == "" {
		top, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", folders, os.Getpid()))
		if err != nil {
			return "", err
		}
		if err := give(top); err != nil {
			return "", err
		}
		binary.folder = top
	}
	binary.made++
	folder := filepath.Join(binary.folder, fmt.Sprint(name, binary.made))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	return folder, give(folder)
}

// give lets the servers' user write to a folder, and everybody pass through it.
func give(folder string) error {
	if err := os.Chmod(folder, 0o755); err != nil {
		return err
	}
	c, err := credential()
	if err != nil || c == nil {
		return err
	}
	return os.Chown(folder, int(c.Uid), int(c.Gid))
}

// credential is the user that servers run as: postgres if this process is root,
// which the servers refuse to run as, and otherwise nil, for the user of this
// process.
var credential = sync.OnceValues(func() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("servers: as root, they run as the user postgres: %w", err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("servers: the user postgres has the ids %q and %q", u.Uid, u.Gid)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
})
