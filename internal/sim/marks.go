package sim

import (
	"github.com/tenure-go/tenure/internal/core"
	"github.com/tenure-go/tenure/store"
)

// Mark is a situation that must occur over many runs: without it the simulator
// would be blind to what it is there to find.
type Mark int

// The situations. A mark's name says what occurred.
const (
	MarkBurnt Mark = iota
	MarkReplayedGrant
	MarkReplayedRenewal // directly after MarkReplayedGrant, as OpRenew after OpAcquire
	MarkOlderReceipt
	MarkSpent
	MarkReleased
	MarkAcknowledged
	MarkGivingBack
	MarkGivenBack
	MarkMinHold
	MarkOverdue
	MarkHalt
	MarkLateReply
	MarkCopied
	MarkCopyDrawn
	MarkCopyOfCopy
	MarkRestored
	MarkTwins
	MarkFellBehind
	MarkFreedUnder
	MarkBurntTaken
	MarkOusted
	MarkForgotten
	MarkEvicted
	MarkRolledBack
	MarkRecordLost
	MarkRemoved
	MarkResourceRolledBack
	MarkForked
	MarkGap
	MarkStale
	MarkReplayedWrite
	MarkLanesApart
	MarkLinesMixed
	MarkLost // and one for each of causes
	marks    = MarkLost + Mark(causesLen)
)

const causesLen = 10

var causes = [causesLen]error{
	store.ErrExpired, store.ErrSuperseded, store.ErrCloned, core.ErrDisrupted, store.ErrEvicted, core.ErrStalled, core.ErrFenced, core.ErrRecordGone,
	store.ErrDenied, core.ErrClosed,
}

var markNames = [MarkLost]string{
	"a term was burnt",
	"a grant was replayed",
	"a renewal was replayed",
	"an older receipt was refused",
	"a spent attempt was refused",
	"a term was released",
	"an eviction was acknowledged",
	"an acquire's outcome stayed unknown",
	"a grant was given back",
	"a term was held for its minimum without a job",
	"a job outlived its deadline",
	"a candidate stopped",
	"a reply came after its call had ended",
	"a process was copied",
	"a process was copied between drawing an attempt and sending it",
	"a copy was copied",
	"a saved process was restored later",
	"two copies were valid at once",
	"a process whose clocks fell behind was valid beside another",
	"a copy was valid although the other had released the term",
	"a burnt term was taken over before its expiry in a fenced election",
	"a term was valid although an operator had freed it",
	"a term was valid on an answer that a rollback had undone",
	"a term was evicted",
	"the store was rolled back",
	"the record was lost in a rollback",
	"the record was removed",
	"the resource lost writes",
	"a fork was refused by the resource",
	"a gap was refused by the resource",
	"a stale write was refused by the resource",
	"a chained write was replayed",
	"two copies went on under one token, each in a lane of its own",
	"two copies wrote in one lane under one token, after the resource had lost writes",
}

func (m Mark) String() string {
	if m < MarkLost {
		return markNames[m]
	}
	return "a term ended: " + causes[m-MarkLost].Error()
}

// Marks counts how often each situation occurred.
type Marks [marks]int

func (m *Marks) hit(k Mark) { m[k]++ }

// Add adds another run's marks.
func (m *Marks) Add(o Marks) {
	for i, n := range o {
		m[i] += n
	}
}
