// Package sim runs many cores against a model of the world and checks after
// every event that what Tenure promises holds.
//
// It is a discrete-event simulator with one thread. One number, the seed,
// decides everything: how the election is configured, which faults a run may
// have, when they strike, what each process draws. A run is therefore replayed
// by its seed; on failure the tests print how.
//
// What is real: the state machine ([core.State]), the rule of the lease
// (package row), the rule of the fence (package fence). What is modelled: the
// shell around the core, with a single thread that can be stopped or copied
// between any two of its steps; each machine's three clocks; the network; one
// store and one resource; jobs that check, sleep, and write.
//
// What goes wrong: processes are stopped (with and without their clocks),
// suspended, killed and replaced; wall clocks step; clocks run at different
// rates, as far as the margin allows; timers fire late; messages are lost, late,
// and delivered again much later; processes are cut off; the store is down,
// refuses everything, is rolled back, loses its record; the resource loses
// writes; operators evict; users give up, stop and start. And processes are
// copied: now or from an image saved earlier, with or without what is on the
// network, with clocks that stood still meanwhile, while they lead, ask or
// drain, between drawing an attempt and sending it, and copies of copies.
//
// After the faults comes a calm, in which somebody must lead within a bounded
// time, and then everybody is stopped, which must end everything.
//
// # What is excused
//
// At most one process may answer valid ([OneValid]). No lease can keep that
// under all of the above, so pairs are excused, each for a reason that is known
// to the simulator and to nobody in it:
//
//   - Both hold the same term, which was copied. (That the two do not both go on
//     is OneRenews and ChainDescends.)
//   - The clocks of one went on, since its last answered attempt was drawn, by
//     less than the slowest allowed rate: they stood still, or a stale image was
//     restored.
//   - The term of one was copied and then released or given back by one of the
//     copies.
//   - The answer that one relies on was undone by a rollback of the store, or the
//     record was removed.
//   - In a fenced election: its term is burnt, or was evicted at once.
//
// Nothing else is. In particular a third process beside two copies is a
// violation, and so is anything that a stop, a suspend, a clock step or a
// message does.
//
// # What the chain does not do
//
// ChainDescends is about one lane, jobs that know what became of their last
// write before they make the next, and a resource that loses nothing. Beyond
// that the simulator has seen two copies go on side by side under one token:
//
//   - each in a lane of its own ([MarkLanesApart]), until one of them renews;
//   - in one lane, if a job writes on without waiting: its refused write is
//     overtaken by the next, which fits behind the other copy's (a mutant);
//   - in one lane, after the resource lost writes: positions are all that the
//     chain goes by, and both copies have one that fits ([MarkLinesMixed]).
//
// The store's own clock is trusted: it runs at its own rate but never steps.
// That is an assumption of every lease.
package sim
