package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store/memstore"
	"github.com/tenure-go/tenure/tenurepg"
)

// What the documents show does what they say.
func TestShownFence(t *testing.T) {
	d := schema(t)
	p := pool(t, d.URL())
	for _, statement := range []string{"create table invoices (n int)", "create table payments (id text)"} {
		if _, err := p.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	e, err := tenure.NewElector(memstore.New(nil), "nightly", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.RunOnce(t.Context(), func(ctx context.Context, term *tenure.Term) error {
		for range 2 {
			if err := sendInvoices(ctx, p, term); err != nil {
				return err
			}
		}
		for _, position := range []int64{1, 1, 2} { // one of them is sent again
			if err := payInvoice(ctx, p, term, position, []string{"Ann", "Bob"}[position-1]); err != nil {
				return err
			}
		}
		// A successor comes.
		s := fence.Stamp{Resource: "invoices", Token: term.Token() + 1}
		if err := tenurepg.NewFence(p, nil).Enter(ctx, s); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		for what, late := range map[string]error{"sendInvoices": sendInvoices(ctx, p, term), "payInvoice": payInvoice(ctx, p, term, 3, "Eve")} {
			if !fence.Refused(late) {
				t.Errorf("%s after a successor entered: want a refusal, got %v", what, late)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var invoices, payments int
	if err := p.QueryRow(t.Context(), "select (select count(*) from invoices), (select count(*) from payments)").Scan(&invoices, &payments); err != nil || invoices != 2 || payments != 2 {
		t.Errorf("%d invoices and %d payments, %v; want 2 and 2", invoices, payments, err)
	}
}
