// Package memstore is the store that lives in this process's memory: the
// reference for every other store, and the one to write tests and examples on.
//
// It applies the rule of package row under a mutex and judges expiry by
// [time.Now], so a test inside a testing/synctest bubble sees hours of lease
// pass in an instant. It excludes candidates within one process only, and
// everything in it ends with the process.
//
// For tests of what you build on it there are a few doors that no other store
// has: [Store.Share] opens the same records again, as a second process would;
// [Store.Snapshot] and [Store.Restore] roll the store back; [Store.Delete]
// removes a record behind everybody's back.
package memstore
