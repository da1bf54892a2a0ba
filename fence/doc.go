// Package fence is the check at the resource: the half of leader election that
// stops a leader which does not know that it no longer is one.
//
// A lease alone cannot do it. A process can be paused between asking "am I
// still the leader?" and the arrival of its write, for as long as you like. So
// every write carries a [Stamp], and the resource compares it, in the same
// atomic step as the write, with the [Mark] it keeps.
//
// There are two rules. [Mark.Check] is the monotone one: a token below the
// highest seen is refused, which stops the past. [CheckChain] is the chained
// one: each write also carries the next position in its lane and a digest, so
// of two byte-identical copies of one leader only one line of descent goes on,
// which stops the twin. That holds within a lane: copies that write to
// different lanes, or one chained and one plain, are not seen to collide.
//
// A term enters a resource before it reads or writes there: it commits the
// raised mark by itself. Otherwise it could read data from before its
// predecessor's last commit, and a transaction rolled back would take the mark
// back with it.
//
// The package is pure: no clock, no I/O, nothing but the rule. [Memory] applies
// it to resources inside one process and is the reference for every other
// fence; package fencetest has the cases each of them must pass.
package fence
