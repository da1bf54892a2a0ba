package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
)

// statusCmd is `tenure status`.
type statusCmd struct {
	storeFlags
	jsonFlag
	Name string `arg:"" optional:"" help:"The election. Default: all of them."`
}

// Help is shown by `tenure status --help`.
func (*statusCmd) Help() string {
	return `There are three answers. live: a term holds the election and its lease has not run out; its process may still be dead,
which the store cannot know before then. dead: the last term was not released and its lease has run out. vacant: the last
term was released. Exit code 1: the store knows nothing of that election, which is not the same as vacant.`
}

// Run prints one record or all.
func (c *statusCmd) Run(ctx context.Context, a *app) error {
	s, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer s.close()
	var records []store.Record
	if c.Name != "" {
		r, err := s.get(ctx, c.Name)
		if err != nil {
			return err
		}
		records = append(records, r)
	} else if records, err = s.list(ctx); err != nil {
		return err
	}
	if c.JSON {
		for _, r := range records {
			if err := a.printJSON(toJSON(r)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(records) == 0 {
		fmt.Fprintf(a.stderr, "tenure: no elections in %s\n", s.url)
		return nil
	}
	rows := [][]string{{"NAME", "STATE", "TOKEN", "HOLDER", "REMAINING", "SINCE", ""}}
	for _, r := range records {
		rows = append(rows, statusRow(r))
	}
	return table(a.stdout, rows)
}

func statusRow(r store.Record) []string {
	remaining, since := "-", "-"
	if r.State == store.Live {
		remaining = short(r.Remaining)
		since = r.AcquiredAt.Local().Format(time.DateTime)
	}
	return []string{r.Name, r.State.String(), fmt.Sprint(r.Token), r.Holder, remaining, since, remarks(r)}
}

// remarks are what a person should know of a record beside its state.
func remarks(r store.Record) string {
	switch {
	case r.Burnt():
		return "burnt: a copy of its process used the same term; the expiry stands"
	case r.Evicted != "":
		return "evicted: " + r.Evicted
	case r.Foreign:
		return "written before this host started, or in another copy of the file: waited out for a full TTL"
	}
	return ""
}

// get reads a record.
func (s *openStore) get(ctx context.Context, name string) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := s.Get(ctx, name)
	return r, clean(s.url, err)
}

// list reads all records.
func (s *openStore) list(ctx context.Context) ([]store.Record, error) {
	l, ok := store.As[store.Lister](s.Store)
	if !ok {
		return nil, fmt.Errorf("%w: listing elections; name one", store.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var all []store.Record
	for r, err := range l.List(ctx) {
		if err != nil {
			return nil, clean(s.url, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// evictCmd is `tenure evict`.
type evictCmd struct {
	storeFlags
	jsonFlag
	Name   string `arg:"" help:"The election."`
	Reason string `required:"" placeholder:"TEXT" help:"Why, for whoever finds it in the log and the history."`
	Term   string `placeholder:"ID" help:"Only if this term still leads. Default: whichever does."`
	Now    bool   `help:"Free the election at once, without waiting for the leader to stop. Only for work whose every write is fenced: until the leader notices, two act at once."`
}

// Help is shown by `tenure evict --help`.
func (*evictCmd) Help() string {
	return `The leader learns it at its next renewal, ends its job and frees the election; the next one waits for that, or for the
expiry. Exit code 1: there is nobody to evict.`
}

// Run marks the current term.
func (c *evictCmd) Run(ctx context.Context, a *app) error {
	s, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer s.close()
	e, ok := store.As[store.Evictor](s.Store)
	if !ok {
		return fmt.Errorf("%w: evicting", store.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := e.Evict(ctx, store.Eviction{Name: c.Name, TermID: store.Attempt(c.Term), Reason: c.Reason, Now: c.Now})
	switch {
	case errors.Is(err, store.ErrSuperseded):
		return exitf(exitNo, "%q is held by another term than %s", c.Name, c.Term)
	case err != nil:
		return clean(s.url, err)
	case c.JSON:
		return a.printJSON(toJSON(r))
	case c.Now:
		fmt.Fprintf(a.stdout, "evicted %s (token %d) from %s; the election is free now\n", r.Holder, r.Token, c.Name)
	default:
		fmt.Fprintf(a.stdout, "evicted %s (token %d) from %s; it has at most %s left\n", r.Holder, r.Token, c.Name, short(r.Remaining))
	}
	return nil
}
