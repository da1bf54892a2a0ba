// Package tenuresqlite keeps leases in a SQLite file: the store for programs on
// one host, which need no server. It also has a fence for SQLite databases.
//
//	s, err := tenuresqlite.Open(ctx, "/var/lib/myjob/tenure.db", nil)
//	if err != nil { … }
//	defer s.Close()
//	e, err := tenure.NewElector(s, "nightly-invoice", nil)
//
// # What it excludes, and what not
//
// Processes on one host that use the very same file, in whatever container they
// run. Not processes on two hosts, whatever they share. A copy of the disk, or a
// machine restored twice from a snapshot, has a copy of the store: each copy then
// has elections of its own. A record that was written before the host's last
// start, or in the file that this one is a copy of, is called foreign. It is
// never free: it is waited out for a full TTL from when it was first met, and a
// holder that renews meanwhile keeps its lease. That stops a copy from acting at
// once, not for ever. Two machines restored from one memory snapshot have the
// same boot id and cannot be told apart here at all. For work that must survive
// being copied, use a server's store and fence every write.
//
// # The token
//
// A counter in the election's row, raised in the transaction that grants. Rows
// are not deleted. A row that somebody deletes by hand leaves its token behind,
// and its holder is not overrun. Whoever deletes the whole file, or puts an older
// copy in its place, sets the tokens back: start the elections above the last one
// with a claim's floor.
//
// # The clock
//
// Expiry is judged by this host's time since boot (CLOCK_BOOTTIME, without what a
// time namespace adds), which goes on while the machine is suspended and which
// nobody can set. It is kept with the boot id and the file's identity. The wall
// clock decides nothing. Linux only: elsewhere [Open] fails with
// [store.ErrUnsupported], and the fence works.
//
// TTLs are from [TTLMin] to [TTLMax], exact to the nanosecond. A commit waits for
// the disk, some milliseconds as a rule and much longer on a busy one, so choose a
// TTL of some seconds at least.
//
// # What is kept through a crash
//
// Everything that was answered: each commit is forced to the disk
// (synchronous=extra). A process that is killed leaves its lease to expire, and
// no lock. A process that is stopped (SIGSTOP, a frozen container) in the
// milliseconds of a commit keeps SQLite's lock on the file: until it is resumed or
// killed nobody can renew or acquire, and the error names it. The store has no
// server, so it has no nonce for attempt ids ([store.Noncer]).
//
// # Busy files
//
// SQLite has one writer at a time. Every request waits for it until its context
// ends, or [Options].Wait if that has no deadline, and then fails with
// [store.ErrBusy] and was not carried out. So a lease may lie in the job's own
// file, but a write of the job that takes longer than the lease loses it. Use a
// file of its own.
//
// Do not let another copy of SQLite (a cgo driver, say) open the same file in the
// same process: the system drops all of a process's locks on a file when any of
// its descriptors is closed.
//
// # Watching
//
// A change is announced by touching the file after the commit, which the kernel
// tells to whoever watches its directory (inotify): waiters neither poll nor wake
// up for what the job writes. Where the system has no more inotify instances, or
// the file system is a network's, they look at the file's times forty times a
// second instead.
//
// # The fence
//
// [Fence] keeps the marks of package fence in the database that it guards, and
// checks and raises them in the transaction that writes: [Fence.Do] opens one,
// [Check] works in the caller's own.
package tenuresqlite
