package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenure-go/tenure/fence"
)

// A leader is paused just before its write. Its lease runs out, another process
// is elected under a higher token and enters the resource. When the old leader
// wakes, its write is refused: it does not have to know that it is late.
func Example_stale() {
	var resource fence.Memory
	ctx := context.Background()
	invoices := []string{}
	write := func(who string, s fence.Stamp) {
		_, err := resource.Do(s, func() error {
			invoices = append(invoices, who)
			return nil
		})
		fmt.Printf("%s: %v\n", who, err)
	}

	first := fence.Stamp{Resource: "invoices", Token: 7, TermID: "term-a"}
	second := fence.Stamp{Resource: "invoices", Token: 8, TermID: "term-b"}

	if err := resource.Enter(ctx, first); err != nil {
		fmt.Println(err)
	}
	write("first leader", first)
	if err := resource.Enter(ctx, second); err != nil { // the first one sleeps
		fmt.Println(err)
	}
	write("second leader", second)
	write("first leader, awake again", first)

	fmt.Println(invoices)
	// Output:
	// first leader: <nil>
	// second leader: <nil>
	// first leader, awake again: fence: resource "invoices" refused stale token 7: a higher token was seen (seen 8)
	// [first leader second leader]
}

// A running leader was copied: a VM snapshot restored twice, say. Both copies
// have the same token and the same memory. The first to write goes on, the other
// is told of the fork; sending the same write again is no fork.
func ExampleCheckChain() {
	var mark fence.Mark
	var lane fence.LaneMark
	write := func(who, content string) {
		s := fence.Stamp{
			Resource: "ledger", Token: 7, TermID: "term-a",
			Position: 1, Digest: fence.NewDigest(who, []byte(content)),
		}
		var replayed bool
		var err error
		mark, lane, replayed, err = fence.CheckChain(mark, lane, s)
		fmt.Printf("%s: replayed %v, forked %v, its term is over %v\n", who, replayed, errors.Is(err, fence.ErrForked), fence.Refused(err))
	}

	write("one copy", "pay 5 to Ann")
	write("one copy", "pay 5 to Ann") // the reply was lost
	write("the other", "pay 5 to Bob")
	fmt.Println("the lane is at position", lane.Position)
	// Output:
	// one copy: replayed false, forked false, its term is over false
	// one copy: replayed true, forked false, its term is over false
	// the other: replayed false, forked true, its term is over true
	// the lane is at position 1
}

// Memory guards something inside this process. A write whose outcome the
// previous leader never learnt is found by its digest, not done twice.
func ExampleMemory() {
	var resource fence.Memory
	ctx := context.Background()
	balance := 100
	digest := fence.NewDigest("payment-17", []byte("withdraw 30"))
	withdraw := func() error {
		balance -= 30
		return nil
	}

	old := fence.Stamp{Resource: "account", Token: 7, TermID: "term-a", Position: 1, Digest: digest}
	if _, err := resource.Do(old, withdraw); err != nil {
		fmt.Println(err)
	}

	successor := fence.Stamp{Resource: "account", Token: 8, TermID: "term-b"}
	if err := resource.Enter(ctx, successor); err != nil {
		fmt.Println(err)
	}
	last, err := resource.Last(ctx, "account", "")
	if err != nil {
		fmt.Println(err)
	}
	if last.Digest == digest {
		fmt.Println("payment-17 is done already")
	}
	fmt.Println("balance", balance)
	// Output:
	// payment-17 is done already
	// balance 70
}
