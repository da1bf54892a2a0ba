package sim

import "time"

// kind says whose an event is, which decides what a freeze, a crash and a copy
// of the process do to it.
type kind int

const (
	world    kind = iota // nobody's
	shell                // a step of a process's shell: waits while the process is frozen, is copied with it
	drawing              // the end of a drawing, which keeps the shell busy until then
	work                 // a step of its job, likewise
	inbound              // on its way to a process; copied with it or not
	outbound             // on its way from a process: arrives whatever became of the sender
)

// event is something that happens at a moment of true time. fn gets the process
// as an argument and captures values only, so that the event can be copied
// together with the process.
type event struct {
	at   time.Duration
	seq  uint64
	kind kind
	late bool // a fault's doing: dropped once the faults stop
	p    *proc
	fn   func(*proc)
}

func (e event) before(o event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// queue is a heap of events; equal times keep the order of their making.
type queue []event

func (q *queue) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	*q = h
}

func (q *queue) pop() event {
	h := *q
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	for i := 0; ; {
		next := 2*i + 1
		if next >= last {
			break
		}
		if next+1 < last && h[next+1].before(h[next]) {
			next++
		}
		if !h[next].before(h[i]) {
			break
		}
		h[i], h[next] = h[next], h[i]
		i = next
	}
	*q = h
	return top
}
