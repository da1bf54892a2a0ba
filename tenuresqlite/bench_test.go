//go:build linux

package tenuresqlite

import (
	"testing"
	"time"
)

// BenchmarkRenew measures one renewal, its commit included.
func BenchmarkRenew(b *testing.B) {
	for _, journal := range journals {
		b.Run(string(journal), func(b *testing.B) {
			s := open(b, file(b), &Options{Journal: journal})
			l := acquire(b, s, claim("a", time.Minute))
			for b.Loop() {
				l = renewed(b, s, l)
			}
		})
	}
}

// BenchmarkGet measures one look at a record.
func BenchmarkGet(b *testing.B) {
	for _, journal := range journals {
		b.Run(string(journal), func(b *testing.B) {
			s := open(b, file(b), &Options{Journal: journal})
			acquire(b, s, claim("a", time.Minute))
			for b.Loop() {
				get(b, s, "a")
			}
		})
	}
}
