package faultstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
)

// Op is an operation of a store.
type Op string

// The operations.
const (
	Acquire    Op = "acquire"
	Renew      Op = "renew"       // alone or as an entry of a batch
	RenewBatch Op = "renew-batch" // a batch as a whole
	Release    Op = "release"
	Abandon    Op = "abandon"
	Get        Op = "get"
	Evict      Op = "evict"
	List       Op = "list"
	History    Op = "history"
	Watch      Op = "watch" // the beginning of a watch
	Hint       Op = "hint"  // one hint on its way to a watcher; whatever the fault, it is lost
)

// Rule says which calls a fault strikes. Of several rules that match a call the
// one added first wins, but all of them count it.
type Rule struct {
	Op    Op     // empty: every operation but [Hint]
	Name  string // the election; empty: every one. A batch has the names of its entries
	Nth   int    // only the n-th call that matches since the rule was added, the first is 1; 0: every one
	Fault Fault
}

// Fault is what happens to a call. Its String is for people. The zero Fault is
// none: a rule with it spares the calls that later rules would strike.
type Fault struct {
	kind  kind
	delay time.Duration
	err   error
	value any
}

type kind int

const (
	none kind = iota
	fail
	wait
	hang
	stick
	loseReply
	hangReply
	duplicate
	late
	panics
)

// Fail returns err, or [store.ErrUnreachable] if it is nil, and does not deliver
// the request.
func Fail(err error) Fault {
	if err == nil {
		err = store.ErrUnreachable
	}
	return Fault{kind: fail, err: err}
}

// Delay delivers the request after d, unless its context ends before.
func Delay(d time.Duration) Fault { return Fault{kind: wait, delay: d} }

// Hang does not deliver the request and returns the context's error when the
// context ends: a packet lost on its way there.
func Hang() Fault { return Fault{kind: hang} }

// Stick does not deliver the request and does not return, not even when the
// context ends, until [Store.Free]: a client library that ignores its context.
// The call then fails with [ErrStuck].
func Stick() Fault { return Fault{kind: stick} }

// LoseReply has the request carried out, also if its context ends meanwhile,
// and returns [ErrReplyLost] instead of the answer.
func LoseReply() Fault { return Fault{kind: loseReply} }

// HangReply has the request carried out, also if its context ends meanwhile, and
// returns the context's error when the context ends: a packet lost on its way
// back.
func HangReply() Fault { return Fault{kind: hangReply} }

// Duplicate delivers the request as it is, and once more at the next
// [Store.Deliver].
func Duplicate() Fault { return Fault{kind: duplicate} }

// Late returns the context's error when the context ends, and delivers the
// request at the next [Store.Deliver]: a packet that was held up.
func Late() Fault { return Fault{kind: late} }

// Panic panics with value and does not deliver the request.
func Panic(value any) Fault { return Fault{kind: panics, value: value} }

// String names the fault.
func (f Fault) String() string {
	switch f.kind {
	case fail:
		return fmt.Sprintf("fail: %v", f.err)
	case wait:
		return fmt.Sprintf("delay %v", f.delay)
	case hang:
		return "hang"
	case stick:
		return "stick"
	case loseReply:
		return "lose the reply"
	case hangReply:
		return "hang the reply"
	case duplicate:
		return "duplicate"
	case late:
		return "late"
	case panics:
		return fmt.Sprintf("panic: %v", f.value)
	}
	return "none"
}

// What a struck call returns where no other error says it better. After either
// the outcome is unknown.
var (
	// ErrReplyLost: the request was delivered and its answer dropped.
	ErrReplyLost = errors.New("faultstore: the reply was lost")
	// ErrStuck: the call was stuck until Free.
	ErrStuck = errors.New("faultstore: the call was stuck")
)
