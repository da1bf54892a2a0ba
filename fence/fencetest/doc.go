// Package fencetest is what every fence must do, as cases: data that a Go test
// and a program can run alike. It does not import testing.
//
// The author of a fence writes a [Harness] and runs the cases:
//
//	for _, c := range fencetest.Cases() {
//		t.Run(c.Name, func(t *testing.T) {
//			if err := c.Run(t.Context(), harness); err != nil {
//				t.Fatalf("%v\nwhy this matters: %s", err, c.Why)
//			}
//		})
//	}
//
// Each case uses resources of its own, so that cases can run side by side and on
// data that is in use. Nothing is cleaned up: a mark outlives every term.
package fencetest
