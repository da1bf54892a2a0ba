//go:build !linux

package tenuresqlite

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/tenure-go/tenure/store"
)

// TestUnsupported: where the store cannot judge an expiry it says so, and makes
// nothing.
func TestUnsupported(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "tenure.db"), nil)
	if s != nil || !errors.Is(err, store.ErrUnsupported) {
		t.Fatalf("%v, %v", s, err)
	}
}
