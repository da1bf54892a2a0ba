//go:build !linux

package tenuresqlite

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/tenure-go/tenure/store"
)

// supported says why the store cannot work on this system. The fence works
// everywhere; the store judges expiry by a clock that only Linux shows to every
// process of a host alike, with the id of the boot.
func supported() error {
	return &failure{kind: store.ErrUnsupported, text: fmt.Sprintf("the sqlite store works on Linux only, this is %s: use a server's store", runtime.GOOS)}
}

// What follows is never reached: Open refuses first.

var errNotLinux = errors.New("not Linux")

func hostClock() (reading, error)        { return reading{}, errNotLinux }
func identify(string) (fileID, error)    { return fileID{}, errNotLinux }
func accessFault(string, bool) *failure  { return nil }
func createFile(string) error            { return errNotLinux }
func creatable(string) error             { return errNotLinux }
func touch(string) error                 { return errNotLinux }
func lockHolder(string, bool) string     { return "" }
func fileSystem(string) (fsInfo, error)  { return fsInfo{}, errNotLinux }
func fileFacts(string) (fileInfo, error) { return fileInfo{}, errNotLinux }

type stamp struct{}

func stampOf(string) stamp { return stamp{} }

type notifier struct {
	wake   chan struct{}
	remote bool
}

func newNotifier(string) *notifier { return nil }
func (n *notifier) run()           {}
func (n *notifier) close()         {}
