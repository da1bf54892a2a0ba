// Package draw draws attempt ids: values that no two requests, and no two copies
// of one process, may have in common.
//
// The kernel's randomness alone does not ensure that. The clones of one VM start
// with the same state of it and share what it gives out for as long as a minute.
// So an id mixes every source there is in which two copies may differ. One that
// differs is enough, and none has to be trusted: what all of them have in common
// is harmless, as long as one has not.
package draw

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Attempt draws an attempt id. nonce is what the store's server gave to the
// connection, or empty. It is safe for concurrent use and takes microseconds.
func Attempt(nonce string) store.Attempt { return mix(read(nonce)) }

// sources is what an id is mixed from, as read at one moment.
type sources struct {
	Kernel    [32]byte  // the kernel's randomness
	Processor [4]uint64 // the processor's own, which clones do not share; 0 where there is none
	Wall      int64     // the clocks, in nanoseconds: copies run on at different instants
	Monotonic int64
	Boot      int64  // 0 where it cannot be read
	Count     uint64 // ids drawn by this process so far
	Nonce     string // the server's
}

var (
	began = time.Now()
	drawn atomic.Uint64
)

func read(nonce string) sources {
	s := sources{Count: drawn.Add(1), Nonce: nonce}
	rand.Read(s.Kernel[:]) // never fails: the runtime ends the process instead
	for i := range s.Processor {
		s.Processor[i] = processor()
	}
	now := time.Now() // last, as near to the sending as can be
	s.Wall, s.Monotonic, s.Boot = now.UnixNano(), int64(now.Sub(began)), bootTime()
	return s
}

// mix returns 128 bits as 32 hexadecimal digits. All parts but the last have a
// fixed length, so different sources never run together into the same bytes.
func mix(s sources) store.Attempt {
	b := make([]byte, 0, 256)
	b = append(b, s.Kernel[:]...)
	for _, p := range s.Processor {
		b = binary.BigEndian.AppendUint64(b, p)
	}
	for _, n := range []uint64{uint64(s.Wall), uint64(s.Monotonic), uint64(s.Boot), s.Count} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(b, s.Nonce...)
	sum := sha256.Sum256(b)
	return store.Attempt(hex.EncodeToString(sum[:16]))
}
