// Package tenurepg keeps leases in a PostgreSQL database, version 13 or newer.
//
//	s, err := tenurepg.Open(ctx, "postgres://app@db1,db2/app", nil)
//	if err != nil { … }
//	defer s.Close()
//	e, err := tenure.NewElector(s, "nightly-invoice", nil)
//
// Set the database up once with "tenure init" or [Migrate]: everything is in the
// schema tenure.
//
// # What it excludes, and what not
//
// Candidates that use the same database. The lease is a row, judged by the
// server's clock, and each request is one statement, which is its own
// transaction: no connection's end drops a lease, and a client that stands still
// has nothing locked.
//
// What was answered outlives a crash of the server (synchronous_commit is turned
// on for these statements, if it is off). It outlives the loss of the machine if
// there is a synchronous standby. After an asynchronous failover, or a restore,
// the last grants may be lost, and their tokens are handed out again to other
// terms: a fence tells those apart by their term ids.
//
// The clock is the server's wall clock. If it is set forward, leases end early by
// as much; if it is set back, they stand longer.
//
// # The token
//
// A column of the election's row, raised in the statement that grants. Rows are
// not deleted.
//
// # Connections
//
// [Open] makes connections of the store's own, which nothing else in the process
// can exhaust; [New] and [NewSQL] use a pool that is there. Statements are not
// prepared and leave nothing behind in a session, so that a transaction pooler may
// be between. There, and through a driver other than pgx, the server cannot
// announce changes: the store looks at the records that somebody watches every
// [Options].Poll.
//
// A store finds out by itself whether a session is its own: the handshake must
// name the server process that then answers. Only in such a session does it LISTEN
// or hold a lock.
//
// Of several hosts the store uses the one that takes writes, and it reads nothing
// about leases from one that does not: a standby may lag. When a connection breaks,
// or its node is demoted, the hosts are tried again from the first.
//
// # Taking over from a holder that is disconnected
//
// With [store.OnDisconnect], on a store that [Open] made on a direct connection,
// the session of the leader holds a lock for as long as it leads. One follower waits
// for it, on a connection of its own. When the leader's process dies its connection
// ends, the follower is told at once, and takes the lease with a higher token. The
// leader may live on without its connection, so every write must be fenced.
// Without [store.OnDisconnect] there is no such lock: the lease's expiry must be
// waited for in any case.
//
// # History
//
// The table tenure.history has who held which token when, from where, how each
// term ended, twins and refusals; the view tenure.election who leads now. How much
// is kept is in the table tenure.setting.
package tenurepg
