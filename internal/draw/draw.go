// Package draw draws attempt ids.
package draw

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Attempt draws an attempt id. nonce is what the store's server gave to this
// connection, or empty.
func Attempt(nonce string) store.Attempt {
	var kernel [32]byte
	rand.Read(kernel[:])
	sum := sha256.Sum256(fmt.Appendf(nil, "%x %d %s", kernel, time.Now().UnixNano(), nonce))
	return store.Attempt(hex.EncodeToString(sum[:16]))
}
