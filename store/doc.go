// Package store is what a back end of Tenure implements, and the words it uses:
// claims, leases, records, capabilities and errors.
//
// Users of Tenure need it for the values that its answers carry. Authors of a
// back end implement [Store], apply the rule of package row in one atomic step
// of their database, and run the cases of package storetest.
package store
