package storetest

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

var inputCases = []Case{
	{
		"input/B32-names",
		"Names that differ must be different elections: folded, trimmed or cut ones block or admit the wrong process.",
		func(e *env) {
			var leases []store.Lease
			for _, name := range e.oddNames() {
				c := e.claim(name)
				c.Holder = "holder of " + strconv.Itoa(len(leases))
				leases = append(leases, e.grant(e.s, c))
			}
			other := e.open()
			for i, l := range leases {
				rec := e.inState(other, l.Name, store.Live, "with all names held")
				e.check(rec.Name == l.Name && rec.Token == l.Token && rec.TermID == l.TermID && rec.Holder == "holder of "+strconv.Itoa(i),
					"%q shows the record of another name: %+v", l.Name, rec)
				leases[i] = e.renew(other, l)
			}
			for i, l := range leases {
				if i%2 == 0 {
					e.release(e.s, l, "")
				}
			}
			for i, l := range leases {
				want := store.Live
				if i%2 == 0 {
					want = store.Vacant
				}
				e.inState(e.s, l.Name, want, "with every other name released, "+strconv.Quote(l.Name))
			}
		},
	},
	{
		"input/B32-names-refused",
		"A name that cannot be kept must be refused with the rule, not mapped to another.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			for _, name := range []string{
				"", e.name("nul\x00"), e.name("new\nline"), e.name("tab\t"), e.name("del\x7f"), e.name("c1\u0085"), e.name("latin1 \xe9"), e.name("cut \xf0\x9f\x98"),
				e.long(e.caps.NameMax + 1), e.long(256), e.long(1024),
			} {
				c := e.claim(name)
				_, err := e.s.Acquire(e.ctx, c)
				e.refused(err, store.ErrInvalid, "acquiring %q", name)
				_, err = e.s.Get(e.ctx, name)
				e.refused(err, store.ErrInvalid, "reading %q", name)
				e.refused(e.s.Abandon(e.ctx, name, c.Attempt), store.ErrInvalid, "abandoning %q", name)
				odd := l
				odd.Name = name
				e.notRenewed(e.s, odd, e.attempt(), store.ErrInvalid, "renewing "+strconv.Quote(name))
				e.refused(e.s.Release(e.ctx, odd, ""), store.ErrInvalid, "releasing %q", name)
			}
			e.renew(e.s, l)
		},
	},
	{
		"input/B32-holders",
		"A holder text that breaks the store's syntax or its column means a job that silently never runs.",
		func(e *env) {
			for i, holder := range []string{
				`it's "quoted"`, "`back` \\ slash", "'; drop table lease; --", `{"json": [1, null]}`, "%s %d %%", "ключ 鍵 🔑 e\u0301 é",
				" leading and trailing ", "<b>&amp;</b>", "$1 :name ?1 @x", strings.Repeat("h", store.HolderMax),
			} {
				c := e.claim(e.name("held-" + strconv.Itoa(i)))
				c.Holder = holder
				e.grant(e.s, c)
				rec := e.get(e.s, c.Name)
				e.check(rec.Holder == holder, "the holder %q became %q", holder, rec.Holder)
				held := e.held(e.s, e.claim(c.Name), "acquiring it")
				e.check(held.Holder == holder, "the holder %q became %q in the refusal", holder, held.Holder)
			}
			for _, holder := range []string{"", strings.Repeat("h", 10_000), strings.Repeat("h", store.HolderMax+1), "new\nline", "nul\x00", "\xff"} {
				c := e.claim(e.name("refused"))
				c.Holder = holder
				_, err := e.s.Acquire(e.ctx, c)
				e.refused(err, store.ErrInvalid, "acquiring for a holder of %d bytes", len(holder))
			}
			_, err := e.s.Get(e.ctx, e.name("refused"))
			e.refused(err, store.ErrNoRecord, "reading what was refused")
		},
	},
	{
		"input/meta",
		"What a holder publishes beside its name must come out as it went in.",
		func(e *env) {
			for i, meta := range []string{"", "http://10.0.0.1:8080/", "two\nlines\ttab", `{"a":"\"ü"}`, "'; --", strings.Repeat("m", store.MetaMax)} {
				c := e.claim(e.name(strconv.Itoa(i)))
				c.Meta = meta
				e.grant(e.s, c)
				rec := e.get(e.s, c.Name)
				e.check(rec.Meta == meta, "the meta %q became %q", meta, rec.Meta)
			}
			c := e.claim(e.name("refused"))
			c.Meta = strings.Repeat("m", store.MetaMax+1)
			_, err := e.s.Acquire(e.ctx, c)
			e.refused(err, store.ErrInvalid, "acquiring with a meta of %d bytes", len(c.Meta))
		},
	},
	{
		"input/B31-ttl",
		"A lifetime that is cut, rounded down or wrapped around ends a lease at once, or never.",
		func(e *env) {
			for i, ttl := range []time.Duration{
				math.MinInt64, -1, 0, 1, 400 * time.Millisecond, 999 * time.Millisecond, time.Second, 1500 * time.Millisecond, 1500*time.Millisecond + 1,
				9 * time.Second, 24 * time.Hour, (1 << 31) * time.Second, 1 << 53, math.MaxInt64 - 1, math.MaxInt64,
				e.caps.TTLMin - 1, e.caps.TTLMin, e.caps.TTLMin + 1, e.caps.TTLMax - 1, e.caps.TTLMax, e.caps.TTLMax + 1,
			} {
				c := e.claim(e.name(strconv.Itoa(i)))
				c.TTL = ttl
				began := time.Now()
				l, err := e.s.Acquire(e.ctx, c)
				if ttl < e.caps.TTLMin || ttl > e.caps.TTLMax {
					e.refused(err, store.ErrInvalid, "acquiring for %v, where %v to %v are allowed", ttl, e.caps.TTLMin, e.caps.TTLMax)
					_, err = e.s.Get(e.ctx, c.Name)
					e.refused(err, store.ErrNoRecord, "reading what was refused")
					continue
				}
				e.must(err, "acquiring for %v, where %v to %v are allowed", ttl, e.caps.TTLMin, e.caps.TTLMax)
				e.check(l.TTL >= ttl && l.TTL-ttl <= e.caps.Precision, "asked %v at a precision of %v, got %v", ttl, e.caps.Precision, l.TTL)
				rec := e.get(e.s, c.Name)
				e.check(rec.TTL == l.TTL, "the lease says %v, its record %v", l.TTL, rec.TTL)
				e.check(rec.Remaining <= l.TTL, "of a lease of %v, %v remain", l.TTL, rec.Remaining)
				// A hundredth for clocks that run at different rates.
				least := l.TTL - l.TTL/100 - time.Since(began) - e.caps.Precision
				e.check(rec.Remaining >= least, "of a lease of %v, granted %v ago, only %v remain", l.TTL, time.Since(began), rec.Remaining)
				if rec.State == store.Live {
					e.must(e.s.Abandon(e.ctx, c.Name, c.Attempt), "giving back")
				}
			}
		},
	},
	{
		"input/attempts",
		"An empty or odd attempt id would be shared by requests that have nothing in common.",
		func(e *env) {
			l := e.grant(e.s, e.claim(e.name("a")))
			before := e.get(e.s, l.Name)
			for _, a := range []store.Attempt{"", "with space", "new\nline", "ümlaut", "nul\x00", store.Attempt(strings.Repeat("a", store.AttemptMax+1))} {
				c := e.claim(e.name("refused"))
				c.Attempt = a
				_, err := e.s.Acquire(e.ctx, c)
				e.refused(err, store.ErrInvalid, "acquiring by the attempt %q", a)
				e.notRenewed(e.s, l, a, store.ErrInvalid, "renewing by the attempt "+strconv.Quote(string(a)))
				e.refused(e.s.Abandon(e.ctx, l.Name, a), store.ErrInvalid, "abandoning the attempt %q", a)
				if a != "" {
					e.refused(e.s.Release(e.ctx, l, a), store.ErrInvalid, "releasing with the pending attempt %q", a)
				}
			}
			e.unchanged(e.s, before, "requests by odd attempts")
			c := e.claim(e.name("longest"))
			c.Attempt = store.Attempt("!~'\"\\%" + strings.Repeat("a", store.AttemptMax-6))
			l = e.grant(e.s, c)
			a := store.Attempt(strings.Repeat("b", store.AttemptMax))
			r := e.renewBy(e.s, l, a)
			e.check(e.renewBy(e.s, l, a).Receipt == r.Receipt, "the replay of a renewal by the longest attempt differs")
			e.renew(e.s, r)
		},
	},
	{
		"input/claims",
		"A claim that makes no sense must be refused before anything is asked.",
		func(e *env) {
			name := e.name("refused")
			for what, change := range map[string]func(*store.Claim){
				"a floor below 0":                  func(c *store.Claim) { c.Floor = -1 },
				"a floor at the largest token":     func(c *store.Claim) { c.Floor = fence.MaxToken },
				"a floor above the largest token":  func(c *store.Claim) { c.Floor = math.MaxInt64 },
				"a takeover that does not exist":   func(c *store.Claim) { c.Takeover = 99 },
				"a takeover below the first":       func(c *store.Claim) { c.Takeover = -1 },
				"several faults at the same time ": func(c *store.Claim) { c.Floor, c.TTL, c.Holder = -1, -1, "" },
			} {
				c := e.claim(name)
				change(&c)
				_, err := e.s.Acquire(e.ctx, c)
				e.refused(err, store.ErrInvalid, "acquiring with %s", what)
			}
			c := e.claim(name)
			c.Takeover = store.OnDisconnect
			_, err := e.s.Acquire(e.ctx, c)
			e.check(err != nil, "a takeover on disconnect was granted without FencedOnly")
			if !e.caps.Takeover {
				c.FencedOnly = true
				_, err = e.s.Acquire(e.ctx, c)
				e.refused(err, store.ErrUnsupported, "asking for a takeover on disconnect, which this store does not have")
			}
			_, err = e.s.Get(e.ctx, name)
			e.refused(err, store.ErrNoRecord, "reading what was refused")
		},
	},
}

// oddNames are names that some store or other has mixed up.
func (e *env) oddNames() []string {
	var names []string
	for _, n := range []string{
		"jobs", "jobs/a", "jobs/a/b", "jobs//a", "/jobs", "jobs/", "jobs%2Fa", "jobs%2fa", "Jobs", "JOBS", "jobs ", " jobs", "jobsx", "job",
		".", "..", "../jobs", "./jobs", "jobs/..", "caf\u00e9", "cafe\u0301", "cafe", "лок", "🔒", "a:b", "a::b", "{x}y", "{xy}", "xy",
		"jobs*", "jobs?", "jobs[a]", "jobs_a", "jobs%", "jobs+a", "jobs a", "jobs#a", "jobs&a", "'", "\"", "\\", "`", "--", "null", "0", "00",
		"ﬁ", "fi", "ı", "i", "I", "İ", "ß", "ss", "K", "\u212a", "\ufeffjobs", "jo\u200bbs",
	} {
		names = append(names, e.name(n))
	}
	for _, n := range []int{63, 64, 65, 127, 128, 129, e.caps.NameMax - 1, e.caps.NameMax} {
		if name := e.long(n); len(name) == n && n <= e.caps.NameMax && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// long returns a name of exactly n bytes, or this run's shortest.
func (e *env) long(n int) string {
	name := e.name("long")
	return name + strings.Repeat("x", max(0, n-len(name)))
}
