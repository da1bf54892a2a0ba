// Package property holds stores to the invariants under random requests: a state
// machine of processes that lose replies, are copied and come late (rapid), and
// histories of concurrent clients checked for linearizability (porcupine).
package property
