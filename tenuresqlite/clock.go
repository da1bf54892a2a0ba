package tenuresqlite

import (
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store/row"
)

// reading is one look at this host's clock.
type reading struct {
	now  row.Now // Mono: time since the host's boot, the same in every time namespace
	boot string  // names this boot of this host
}

type clockFunc func() (reading, error)

// fileID tells a file from every other on this host, a copy of it included.
type fileID struct{ dev, ino uint64 }

// clockID names the clock of a record: a boot of a host, and the file. Under
// another boot the numbers mean nothing; in a copied file they would let the
// copies of a host judge, by one clock, records that nobody renews any more.
func clockID(boot string, id fileID) string {
	return fmt.Sprintf("%s/%x:%x", boot, id.dev, id.ino)
}

// left returns how long a row still stands, and whether it is foreign: written
// under another clock than id, so that its expiry says nothing and a full TTL
// must be waited out. An expiry further ahead than the TTL is foreign too: the
// clock went back, as it does when a machine is restored from a snapshot beside
// a newer disk.
func (e entry) left(id string, now row.Now) (remaining time.Duration, foreign bool) {
	if !e.row.Exists() || e.row.Released {
		return 0, false
	}
	remaining = e.row.Expires - now.Mono
	if e.clock != id || remaining > e.row.TTL {
		return e.row.TTL, true
	}
	return remaining, false
}
