// Package faultstore wraps any store and makes it fail as real ones do: refuse,
// hang, answer late, carry a request out and lose the reply, deliver it twice,
// be cut off from the network.
//
//	f := faultstore.New(memstore.New(nil))
//	f.Add(faultstore.Rule{Op: faultstore.Renew, Nth: 2, Fault: faultstore.LoseReply()})
//
// It is for tests of what you build on a store. Everything that the wrapped
// store can do stays reachable through it, see [store.As], and is subject to the
// same faults; what it cannot do stays out of reach.
package faultstore
