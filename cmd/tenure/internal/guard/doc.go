// Package guard runs a command of which nothing is left after a given moment,
// whatever happens to the process that ordered it.
//
// Three processes take part. The wrapper (the process that calls [Start])
// starts a guardian, a second copy of its own binary, and the guardian starts
// the command:
//
//	wrapper ── guardian ── command ── whatever the command starts
//
// The wrapper tells the guardian, by a pipe, each new pair of moments: the
// step-down, at which the job is asked to end, and the kill, at which it is
// ended. The guardian keeps them by itself. A wrapper that is frozen, killed or
// too busy changes nothing about them, and a wrapper that dies (its end of the
// pipe closes) is taken as an order to stop.
//
// The guardian is a child subreaper, so every process the command ever started,
// also one that left its session and lost its parent, stays its descendant; the
// job is gone when the guardian has no child left, which the kernel tells it.
//
// If the guardian is killed, the kernel kills the command (its parent-death
// signal), everything else falls to the wrapper, itself a subreaper, and the
// wrapper kills it. If both are killed at once, only the command itself is sure
// to die: what it started may live on. A process that gained privileges the
// guardian lacks (a set-user-ID program) cannot be killed by it; then the job is
// never reported as gone.
//
// The guardian needs a mounted /proc to find processes that left the command's
// process group, and says so if there is none. Linux only.
package guard
