package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/cmd/tenure/internal/notify"
	"github.com/tenure-go/tenure/store"
)

// observe hears what happens to the election: it tells people and the service
// manager, and the guardian each new limit.
func (r *runner) observe(e tenure.Event) {
	log := r.log.With("election", r.c.Name)
	switch e := e.(type) {
	case tenure.Waiting:
		if before := r.asked(e.Held); !sameHolder(before, e.Held) {
			log.Info("waiting: another leads", "holder", e.Held.Holder, "token", e.Held.Token, "remaining", e.Held.Remaining)
			notify.Send(r.outer, "STATUS=waiting: held by "+oneLine(e.Held.Holder))
		}
	case tenure.AskFailed:
		r.asked(e.Err)
		log.Warn("the store gave no answer; asking again", "error", e.Err)
		if errors.Is(e.Err, store.ErrDenied) { // patience does not help
			r.cancel(e.Err)
		}
	case tenure.Acquired:
		log.Info("leading", "token", e.Term.Token, "term", e.Term.ID, "holder", e.Term.Holder)
		notify.Send(r.outer, fmt.Sprintf("STATUS=leading with token %d", e.Term.Token))
	case tenure.Renewed:
		log.Debug("renewed", "token", e.Term.Token, "renewal", e.Term.Renewal)
		r.renewed()
	case tenure.RenewFailed:
		log.Warn("a renewal failed; trying again", "token", e.Term.Token, "left", e.Left, "error", e.Err)
	case tenure.Draining:
		log.Info("ending the command, then freeing the election", "token", e.Term.Token)
	case tenure.Lost:
		log.Error("leadership lost; ending the command", "token", e.Term.Token, "reason", tenure.Reason(e.Err.Cause), "error", e.Err)
	case tenure.Overdue:
		time.AfterFunc(overdueGrace, func() {
			if r.running() != nil {
				log.Error("the command still runs after its deadline; another leader may be at work", "token", e.Term.Token)
			}
		})
	case tenure.Released:
		switch {
		case errors.Is(e.Err, tenure.ErrSuperseded), errors.Is(e.Err, tenure.ErrExpired):
			log.Info("nothing to free: the lease is not this term's any more", "token", e.Term.Token)
		case e.Err != nil:
			log.Warn("could not free the election; its lease runs out by itself", "token", e.Term.Token, "error", e.Err)
		case e.Free:
			log.Info("freed", "token", e.Term.Token)
		}
	}
}

// overdueGrace is how long a command may be overdue before that is said. After a
// thaw of this process the guardian has long ended it, and this process only has
// to learn that.
const overdueGrace = 200 * time.Millisecond

func sameHolder(before error, now *store.HeldError) bool {
	var held *store.HeldError
	return errors.As(before, &held) && held.Holder == now.Holder && held.Token == now.Token
}

// asked keeps the last answer to a try to win the election and returns the one
// before.
func (r *runner) asked(err error) (before error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.lastAsk = r.lastAsk, err
	return before
}
