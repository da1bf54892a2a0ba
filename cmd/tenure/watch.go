package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
)

// watchCmd is `tenure watch`.
type watchCmd struct {
	storeFlags
	jsonFlag
	Name string `arg:"" help:"The election."`
}

// watchPause is the longest time between two looks at the store: hints can be
// lost, and a lease that runs out gives none.
const watchPause = time.Second

// Run prints a line at each change, until it is interrupted.
func (c *watchCmd) Run(ctx context.Context, a *app) error {
	if err := store.CheckName(c.Name); err != nil {
		return err
	}
	s, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	last := ""
	show := func(r seen) error {
		now := essence(r)
		if now == last {
			return nil
		}
		last = now
		return c.print(a, r)
	}
	for s.unborn() {
		if err := show(seen{Record: store.Record{Name: c.Name}, none: true}); err != nil {
			return err
		}
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if s, err = c.open(ctx, a); err != nil {
			return err
		}
	}
	defer s.close()
	hints := make(<-chan store.Hint) // none, unless the store gives some
	if w, ok := store.As[store.Watcher](s.Store); ok {
		if hints, err = w.Watch(ctx, c.Name); err != nil {
			return clean(s.url, err)
		}
	}
	for {
		r, pause, err := s.look(ctx, c.Name)
		if err != nil {
			return err
		}
		if err := show(r); err != nil {
			return err
		}
		select {
		case _, ok := <-hints:
			if !ok {
				hints = nil
			}
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// seen is a record, or that there is none.
type seen struct {
	store.Record
	none bool
}

// look reads the record and says how long it is worth waiting for the next.
func (s *openStore) look(ctx context.Context, name string) (seen, time.Duration, error) {
	r, err := s.get(ctx, name)
	switch {
	case errors.Is(err, store.ErrNoRecord):
		return seen{Record: store.Record{Name: name}, none: true}, watchPause, nil
	case err != nil:
		return seen{}, 0, err
	case r.State == store.Live:
		return seen{Record: r}, min(watchPause, r.Remaining+time.Millisecond), nil
	}
	return seen{Record: r}, watchPause, nil
}

// essence is what makes a change: not a renewal.
func essence(r seen) string {
	return fmt.Sprint(r.none, r.State, r.Token, r.TermID, r.Evicted, r.Burnt())
}

func (c *watchCmd) print(a *app, r seen) error {
	if c.JSON {
		j := toJSON(r.Record)
		if r.none {
			j = recordJSON{Name: c.Name, State: "none"}
		}
		return a.printJSON(struct {
			At time.Time `json:"at"`
			recordJSON
		}{time.Now(), j})
	}
	var text string
	switch {
	case r.none:
		text = "none: the store knows nothing of it"
	case r.State == store.Live:
		text = fmt.Sprintf("live: %s, token %d, %s left", r.Holder, r.Token, short(r.Remaining))
	default:
		text = fmt.Sprintf("%s: last held by %s, token %d", r.State, r.Holder, r.Token)
	}
	if more := remarks(r.Record); more != "" {
		text += " (" + more + ")"
	}
	_, err := fmt.Fprintf(a.stdout, "%s %s %s\n", time.Now().Format(time.TimeOnly), c.Name, text)
	return err
}

// historyCmd is `tenure history`.
type historyCmd struct {
	storeFlags
	jsonFlag
	Name  string `arg:"" help:"The election."`
	Lines int    `short:"n" default:"20" placeholder:"N" help:"How many lines, the newest first. Default: ${default}."`
}

// entryJSON is a line of history for programs.
type entryJSON struct {
	At     time.Time `json:"at"`
	Name   string    `json:"name"`
	What   string    `json:"what"`
	Token  string    `json:"token,omitempty"`
	Term   string    `json:"term,omitempty"`
	Holder string    `json:"holder,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// Run prints the newest entries.
func (c *historyCmd) Run(ctx context.Context, a *app) error {
	if c.Lines < 1 {
		return usage("--lines is %d: allowed are 1 and more", c.Lines)
	}
	s, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer s.close()
	h, ok := store.As[store.Historian](s.Store)
	if !ok {
		return fmt.Errorf("%w: history", store.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	entries, err := h.History(ctx, c.Name, c.Lines)
	if err != nil {
		return clean(s.url, err)
	}
	rows := [][]string{{"AT", "WHAT", "TOKEN", "HOLDER", "DETAIL"}}
	for _, e := range entries {
		if c.JSON {
			if err := a.printJSON(entryJSON{e.At, e.Name, e.What, decimal(int64(e.Token)), string(e.TermID), e.Holder, e.Detail}); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{e.At.Local().Format("2006-01-02 15:04:05.000"), e.What, fmt.Sprint(e.Token), e.Holder, e.Detail})
	}
	switch {
	case len(entries) == 0:
		return exitf(exitNo, "the store knows nothing of %q", c.Name)
	case c.JSON:
		return nil
	}
	return table(a.stdout, rows)
}
