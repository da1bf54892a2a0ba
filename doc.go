// Package tenure makes one process do what must not be done twice, on compute
// that can be paused, killed, restored from a snapshot and cloned. It elects one
// leader through a lease in a store the user already runs, gives it a fencing
// token, and helps the resource that the work writes to refuse a stale or cloned
// leader's write.
//
// # What is guaranteed, and what is not
//
// A lease alone does not guarantee mutual exclusion: between asking "am I the
// leader?" and the arrival of a write, a process can be paused for as long as
// you like. Tenure promises, as long as clocks run at nearly the same rate (the
// margin allows 0.2 % and 50 ms):
//
//   - At most one process gets nil from [Term.Err] at a time, unless a machine's
//     clocks stood still (a paused or restored virtual machine), a process was
//     copied, or the lease was taken from a term without waiting for it: by
//     [Options].Takeover or FencedOnly, or by an eviction that does not
//     wait. Every acquisition has a higher token than the one before.
//   - A resource that checks the token with each write (package fence) accepts no
//     write of an older term after one of a newer term, whatever any clock did.
//   - Of two copies of one leader at most one goes on renewing, and at most one
//     line of descent goes on writing where writes are chained. Both copies learn
//     [ErrCloned].
//
// It does not promise that a job which ignores its context stops: [Overdue] says
// so, the command kills it. It does not promise that the token survives the loss
// of the store's data: see [Options].Floor.
//
// # A program
//
// The package's first example contends for an election and leads once; the
// directory examples/embed is a whole program, which shows its stamp with each
// write.
//
// # States
//
//	waiting → acquiring → leading → draining → released → waiting
//	                         │ loss     ↑
//	                         └──────────┘ without a release
//
// # When a term is valid
//
// A right counts from the moment the answered request was drawn, before it was
// sent, and by the clock that went furthest since (wall, monotonic, and boot time
// where it is sampled). Step-down comes 2·TTL/3 later: the term ends, and the job
// is told to stop. At TTL minus a margin the last of the job must be gone; only
// then can the lease expire. Validity is computed when asked. It is never a
// stored flag, which would still say yes in the first moments after a pause.
//
// Renewals go out every TTL/3 with a time-out of TTL/9 each, so a slow or lost
// one is tried again twice before step-down. A request without an answer may have
// been carried out, so it is sent again under the same attempt id and recognised.
// Every renewal must present the receipt of the last one, which is how a copy is
// found out.
//
// # What happens when
//
//	the store is down, slow or cut off   the term ends at step-down, by this process's own clocks
//	one renewal is lost                  it is sent again; nothing ends
//	this process is paused               the first answer afterwards is no, if the pause was long enough
//	this process is copied               one copy renews; both learn ErrCloned; nobody else gets in meanwhile
//	the job returns, fails or panics     the term ends and is released at once
//	ctx ends                             the job is told, then waited for, then the term is released
//	the release is lost                  it is repeated for TTL/3; after that the lease runs out
//	the record is deleted                the term ends with ErrRecordGone at its next renewal
//	an operator evicts                   the term ends at its next renewal; the release follows the job's end
//
// # Choosing durations
//
// TTL is how long nobody leads after a crash. Half a minute of TTL costs half a
// minute then; a second of TTL costs three renewals a second and leaves 111 ms
// for each request. [NewElector] refuses durations that do not add up:
//
//	RequestTimeout ≤ TTL/9
//	RenewEvery + 3·RequestTimeout ≤ StepDown
//	StepDown + KillAfter ≤ TTL - Margin
//	Margin ≥ TTL/500 + 50 ms
//
// # Concurrency
//
// All methods of all types are safe for concurrent use. An [Elector] contends
// once at a time; a process may have any number of electors, and those on one
// store share their renewal requests where the store can.
package tenure
