// Package storetest is what every store must do, as cases: data that a Go test,
// the command and an author's own program can run alike. It does not import
// testing.
//
// The author of a store writes a [Harness] and runs the cases:
//
//	for _, c := range storetest.Cases() {
//		t.Run(c.Name, func(t *testing.T) {
//			err := c.Run(t.Context(), harness)
//			if skip := (*storetest.SkipError)(nil); errors.As(err, &skip) {
//				t.Skip(skip.Reason)
//			}
//			if err != nil {
//				t.Fatalf("%v\nwhy it matters: %s", err, c.Why)
//			}
//		})
//	}
//
// or [Run], which runs several at once and tells failures and skips apart. Each
// case uses election names of its own, so that they can run side by side and
// against a store that is in use. Nothing is cleaned up: records outlive terms
// by design.
package storetest
