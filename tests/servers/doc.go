// Package servers starts real servers for the tests: PostgreSQL and pgbouncer, on
// loopback and free ports, with their files in temporary folders. Nothing of them
// outlives the test binary.
//
// A package that uses it runs its tests through [Run]:
//
//	func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }
//
// [Postgres] is what most tests want: a database of their own on a server that
// the whole test binary shares, within a few milliseconds. A test that stops,
// freezes, kills or configures its server starts one by [OwnPostgres], which takes
// about a quarter of a second; [Replica] follows such a server, [Bouncer] stands
// before one of either kind.
//
// What cannot be started fails the test; it is never skipped. All functions may be
// called from several tests at once, and only from the goroutine of the test.
package servers
