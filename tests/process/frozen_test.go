package process

import (
	"maps"
	"testing"
	"time"
)

// A leader is frozen for two TTLs and thawed. Its first answer is no, and its
// job's context ends, although the store can be asked nothing at that moment; its
// late writes are refused, its late requests change nothing, and it contends
// again like anybody.
func TestB02_FrozenAndThawed(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	f := newField(t)
	plan := f.plan(ttl)
	plan.Ask = true
	a := f.candidate("a", plan)
	a.await("acquired", nil)
	a.await("wrote", nil)
	plan.TTL = time.Minute // so that its record stays as it is for a while
	b := f.candidate("b", plan)
	b.await("waiting", nil)

	a.skip()
	a.await("renewed", nil)
	frozen := a.freeze()
	token := b.await("acquired", nil).Token
	b.await("wrote", func(e event) bool { return e.At-frozen >= 2*ttl })

	before := f.row()
	unlock := f.lock("lease.db")
	thawed := a.thaw()
	first := a.await("answer", func(e event) bool { return e.At >= thawed })
	if first.Reason != "expired" || first.Token != 0 {
		t.Errorf("the first answer after the thaw: token %d, %q", first.Token, first.Error)
	}
	told := a.await("told", nil)
	if told.Reason != "expired" {
		t.Errorf("the job was told to stop because of %q", told.Reason)
	}
	for _, c := range told.Calls {
		if c.Began >= thawed || !c.Done {
			t.Errorf("the store was asked between the thaw and the end of the context: %+v", c)
		}
	}
	lost := a.await("lost", nil)
	t.Logf("first answer %v after the thaw, context ended after %v", first.At-thawed, told.At-thawed)
	unlock()

	for {
		want := map[string]string{"renew": "superseded", "release": "superseded", "abandon": "ok", "write": "stale", "stamp": "invalid"}
		if got := a.order("late").Answers; !maps.Equal(got, want) {
			t.Errorf("late requests came to %v, want %v", got, want)
		}
		after := f.row()
		if maps.Equal(after, before) {
			break
		}
		if after["renewal"] == before["renewal"] || after["token"] != before["token"] {
			t.Fatalf("late requests changed the record:\n%v\n%v", before, after)
		}
		before = after // b renewed meanwhile, which says nothing
	}

	a.await("waiting", func(e event) bool { return e.Token == token })
	b.stop()
	if again := a.await("acquired", nil); again.Token <= token || again.Token <= lost.Token {
		t.Errorf("token %d after %d and %d", again.Token, lost.Token, token)
	}
	a.stop()
	if all := f.stints(); len(all) < 3 {
		t.Errorf("%d terms, want at least 3: %+v", len(all), all)
	}
}
