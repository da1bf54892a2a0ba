package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/tenure-go/tenure/store"
	"github.com/tenure-go/tenure/store/storetest"
)

// initCmd is `tenure init`.
type initCmd struct {
	storeFlags
	jsonFlag
}

// doneJSON is what was done, for programs.
type doneJSON struct {
	Store string `json:"store"`
	Done  string `json:"done"` // in words
}

// Help is shown by `tenure init --help`.
func (*initCmd) Help() string {
	return `Sets up what is missing and changes nothing that is there. A SQLite store does it by itself at its first use.`
}

// Run sets the store up and prints what was done.
func (c *initCmd) Run(ctx context.Context, a *app) error {
	s, err := c.openToWrite(ctx, a)
	if err != nil {
		return err
	}
	defer s.close()
	done := "nothing to set up in " + s.url.String()
	if i, ok := store.As[store.Initializer](s.Store); ok {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		if done, err = i.Init(ctx); err != nil {
			return clean(s.url, err)
		}
	}
	if c.JSON {
		return a.printJSON(doneJSON{Store: s.url.String(), Done: s.url.Clean(done)})
	}
	_, err = fmt.Fprintln(a.stdout, s.url.Clean(done))
	return err
}

// storeCmd is `tenure store`.
type storeCmd struct {
	Check storeCheckCmd `cmd:"" help:"Try out whether a store does what every store must."`
}

// storeCheckCmd is `tenure store check`.
type storeCheckCmd struct {
	jsonFlag
	URL   string   `arg:"" name:"url" help:"The store."`
	Cases []string `arg:"" optional:"" help:"Only the cases whose names match, such as renew or 'acquire/*'. Default: all."`
}

// Help is shown by `tenure store check --help`.
func (*storeCheckCmd) Help() string {
	return `Runs the conformance cases that Tenure's own stores are tested with against yours, with elections of their own whose
names begin with "store-check-". Other elections in the store are not touched; the records of these stay.
Exit code 1: a case failed.`
}

// resultJSON is a case's result for programs.
type resultJSON struct {
	Case    string `json:"case"`
	Result  string `json:"result"` // ok, failed or skipped
	TookMS  string `json:"took_ms"`
	Why     string `json:"why"`
	Problem string `json:"problem,omitempty"`
}

// Run runs the cases and prints a table.
func (c *storeCheckCmd) Run(ctx context.Context, a *app) error {
	u, err := a.urlArgument(c.URL, "<url>", "")
	if err != nil {
		return err
	}
	first, err := openURL(ctx, u, false)
	if err != nil {
		return err
	}
	defer first.close()
	harness := storetest.Harness{
		Prefix:   "store-check-" + rand.Text()[:8],
		Parallel: 8,
		Open: func(ctx context.Context) (store.Store, func() error, error) {
			s, err := openURL(ctx, first.url, false)
			if err != nil {
				return nil, nil, err
			}
			return s.Store, s.close, nil
		},
	}
	began := time.Now()
	counts := make(map[string]int)
	for r := range storetest.Run(ctx, harness, c.Cases...) {
		if r.Case.Name == "" {
			return usage("%v", r.Err)
		}
		j := resultJSON{Case: r.Case.Name, Result: "ok", TookMS: decimal(r.Took.Milliseconds()), Why: r.Case.Why, Problem: r.Skipped}
		switch {
		case r.Err != nil:
			j.Result, j.Problem = "failed", first.url.Clean(r.Err.Error())
		case r.Skipped != "":
			j.Result = "skipped"
		}
		counts[j.Result]++
		if err := c.print(a, j, r.Took); err != nil {
			return err
		}
	}
	if !c.JSON {
		fmt.Fprintf(a.stdout, "%d ok, %d failed, %d skipped in %s: %s\n", counts["ok"], counts["failed"], counts["skipped"], short(time.Since(began)), first.url)
	}
	if n := counts["failed"]; n > 0 {
		return exitf(exitNo, "%s does not do what every store must: %d cases failed", first.url, n)
	}
	return nil
}

func (c *storeCheckCmd) print(a *app, j resultJSON, took time.Duration) error {
	if c.JSON {
		return a.printJSON(j)
	}
	_, err := fmt.Fprintf(a.stdout, "%-8s %-36s %8s", j.Result, j.Case, short(took))
	if err == nil && j.Problem != "" {
		_, err = fmt.Fprintf(a.stdout, "  %s", j.Problem)
	}
	if err == nil && j.Result == "failed" {
		_, err = fmt.Fprintf(a.stdout, "\n         why this matters: %s", j.Why)
	}
	if err == nil {
		_, err = fmt.Fprintln(a.stdout)
	}
	return err
}
