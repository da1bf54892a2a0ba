package core

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/store"
)

var rewrite = flag.Bool("rewrite", false, "write what the core does now into the scripts of testdata; commit it only if you can say why it changed")

// TestScripts plays testdata/*.txt. A line is a comment (#), a command, or, if it
// is indented, what the command before it must have printed. Commands:
//
//	config ttl=12s renew=3s watched   a new candidate; every field of Config by its name
//	contend [once], wake, round, confirm, jobdone, yield, stop
//	advance 5s       time passes and the shell wakes whenever the core wished
//	nap              time passes until the core wished to be woken
//	freeze 5s        time passes and nothing runs (SIGSTOP), then the shell wakes
//	pass 5s          likewise, but the next command comes first
//	suspend 5s       likewise, and the monotonic clock stands still
//	wall +1h         the wall clock steps
//	drawn a1 [ago=2s]   answers a Draw, after "manual"; otherwise it is answered at once
//	reply acquire|renew|abandon ATTEMPT ok|ERR [token=1 ttl=12s renewal=1 term=a1 replayed]
//	reply release ok|ERR
//	hint vacant|changed|renewed [remaining=5s]
//	revoke CAUSE
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := string(data)
			got, err := play(want)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if got == want {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s: %s", file, firstDifference(got, want))
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	command := ""
	for i := range min(len(g), len(w)) {
		if !strings.HasPrefix(g[i], " ") {
			command = g[i]
		}
		if g[i] != w[i] {
			return fmt.Sprintf("line %d, after %q\n got: %s\nwant: %s", i+1, command, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// play runs a script and returns it with what each command printed.
func play(script string) (string, error) {
	var out strings.Builder
	p := &player{}
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		if strings.HasPrefix(line, " ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.do(strings.Fields(line)); err != nil {
			return "", fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
		for _, l := range p.lines {
			out.WriteString("  " + l + "\n")
		}
		p.lines = nil
	}
	return out.String(), nil
}

// player is a shell whose time is moved by hand.
type player struct {
	s      State
	now    Reading
	start  time.Duration
	manual bool
	drawn  int
	lines  []string
}

func (p *player) do(words []string) error {
	args, err := parse(words[1:])
	if err != nil {
		return err
	}
	if words[0] != "config" && p.s.Cfg.TTL == 0 {
		return errors.New("there is no candidate yet: config comes first")
	}
	switch words[0] {
	case "config":
		return p.config(args)
	case "manual":
		p.manual = true
		return nil
	case "contend":
		p.step(p.now, Contend{Once: args.has("once")})
	case "wake":
		p.step(p.now, Wake{})
	case "round":
		p.step(p.now, Round{})
	case "confirm":
		p.step(p.now, Confirm{})
	case "jobdone":
		p.step(p.now, JobDone{})
	case "yield":
		p.step(p.now, Yield{})
	case "stop":
		p.step(p.now, Stop{})
	case "advance":
		return p.advance(args.first())
	case "nap":
		d, ok := p.s.Next(p.now)
		if !ok {
			return errors.New("the core waits for an event only")
		}
		p.pass(d, d)
		p.step(p.now, Wake{})
	case "pass":
		d, err := time.ParseDuration(args.first())
		if err != nil {
			return err
		}
		p.pass(d, d)
	case "freeze":
		d, err := time.ParseDuration(args.first())
		if err != nil {
			return err
		}
		p.pass(d, d)
		p.step(p.now, Wake{})
	case "suspend":
		d, err := time.ParseDuration(args.first())
		if err != nil {
			return err
		}
		p.pass(d, 0)
		p.step(p.now, Wake{})
	case "wall":
		d, err := time.ParseDuration(strings.TrimPrefix(args.first(), "+"))
		if err != nil {
			return err
		}
		p.now.Wall += d
		p.step(p.now, Wake{})
	case "drawn":
		r := p.now
		if args.has("ago") {
			d := args.duration("ago")
			r.Wall, r.Mono, r.Boot = r.Wall-d, r.Mono-d, r.Boot-d
		}
		p.step(r, Drawn{Attempt: store.Attempt(args.first())})
	case "reply":
		ev, err := p.reply(args)
		if err != nil {
			return err
		}
		p.step(p.now, ev)
	case "hint":
		kinds := map[string]store.HintKind{"vacant": store.HintVacant, "changed": store.HintChanged, "renewed": store.HintRenewed}
		kind, ok := kinds[args.first()]
		if !ok {
			return fmt.Errorf("no such hint: allowed are vacant, changed and renewed")
		}
		p.step(p.now, Hint{Hint: store.Hint{Kind: kind, Remaining: args.duration("remaining")}})
	case "revoke":
		cause, ok := namedErrors[args.first()]
		if !ok {
			return fmt.Errorf("no such cause: %q", args.first())
		}
		p.step(p.now, Revoke{Cause: cause})
	default:
		return errors.New("no such command")
	}
	p.status()
	return nil
}

func (p *player) config(args arguments) error {
	c := Config{
		TTL: args.duration("ttl"), Renew: args.duration("renew"), Timeout: args.duration("timeout"), StepDown: args.duration("stepdown"),
		KillAfter: args.duration("killafter"), Margin: args.duration("margin"), Poll: args.duration("poll"), MinHold: args.duration("minhold"),
		Rejoin: args.duration("rejoin"),
	}.WithDefaults(args.has("watched"))
	if err := c.Validate(); err != nil {
		return err
	}
	*p = player{s: New(c, 1), now: Reading{Wall: 1000 * time.Hour, Mono: time.Hour, Boot: 2 * time.Hour}, start: time.Hour}
	return nil
}

// pass lets the wall and boot clocks go on by d, and the monotonic one by mono.
func (p *player) pass(d, mono time.Duration) {
	p.now.Wall += d
	p.now.Boot += d
	p.now.Mono += mono
}

func (p *player) advance(text string) error {
	left, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	for range 1000 {
		d, ok := p.s.Next(p.now)
		if !ok || d > left {
			p.pass(left, left)
			p.status()
			return nil
		}
		p.pass(d, d)
		left -= d
		p.step(p.now, Wake{})
	}
	return errors.New("the core wants to be woken for ever")
}

func (p *player) step(at Reading, ev Event) {
	next, acts := p.s.Step(at, ev)
	p.s = next
	for _, a := range acts {
		p.printf("@%v %s", p.at(), show(a))
		if _, ok := a.(Draw); ok && !p.manual {
			p.drawn++
			p.step(p.now, Drawn{Attempt: store.Attempt("a" + strconv.Itoa(p.drawn))})
		}
	}
}

func (p *player) at() time.Duration { return ms(p.now.Mono - p.start) }

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func (p *player) printf(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

// status prints what can be seen of the state from outside, and what decides.
func (p *player) status() {
	s := p.s
	text := fmt.Sprintf("@%v %v", p.at(), s.Phase)
	if s.Valid(p.now) {
		text += fmt.Sprintf(", valid for %v", ms(s.Cfg.StepDown-p.now.Since(s.Anchor)))
	}
	for _, flag := range []struct {
		on   bool
		name string
	}{{s.Drawing, "drawing"}, {s.Pending != "", "pending " + string(s.Pending)}, {s.Job, "job"}, {s.Job && s.Lost, "lost"}, {s.Overdue && s.Job, "overdue"}} {
		if flag.on {
			text += ", " + flag.name
		}
	}
	if d, ok := s.Next(p.now); ok {
		text += fmt.Sprintf("; next in %v", ms(d))
	}
	p.printf("%s", text)
}

func (p *player) reply(args arguments) (Reply, error) {
	ops := map[string]Op{"acquire": OpAcquire, "renew": OpRenew, "release": OpRelease, "abandon": OpAbandon}
	op, ok := ops[args.first()]
	if !ok {
		return Reply{}, fmt.Errorf("no such request: %q", args.first())
	}
	words := args.words[1:]
	r := Reply{Op: op, Attempt: p.s.Lease.TermID}
	if op != OpRelease {
		if len(words) == 0 {
			return Reply{}, errors.New("no attempt")
		}
		r.Attempt, words = store.Attempt(words[0]), words[1:]
	}
	if len(words) == 0 {
		return Reply{}, errors.New("no answer: ok or an error")
	}
	if words[0] == "ok" {
		r.Lease = p.lease(op, r.Attempt, args)
		return r, nil
	}
	switch words[0] {
	case "held":
		r.Err = &store.HeldError{Name: "e", Holder: "another", Remaining: args.duration("remaining")}
	case "receipt":
		r.Err = &store.ReceiptError{Name: "e", Presented: args.number("presented"), Current: args.number("current")}
	default:
		r.Err, ok = namedErrors[words[0]]
		if !ok {
			return Reply{}, fmt.Errorf("no such error: %q", words[0])
		}
	}
	return r, nil
}

// lease is what a store would answer, but for what the script says.
func (p *player) lease(op Op, a store.Attempt, args arguments) store.Lease {
	l := store.Lease{Name: "e", TermID: a, Token: 1, TTL: p.s.Cfg.TTL, Attempt: a, Replayed: args.has("replayed")}
	switch op {
	case OpAcquire:
	case OpRenew:
		l.TermID, l.Token, l.Renewal = p.s.Lease.TermID, p.s.Lease.Token, p.s.Lease.Renewal+1
	default:
		return store.Lease{}
	}
	if args.has("token") {
		l.Token = fence.Token(args.number("token"))
	}
	if args.has("renewal") {
		l.Renewal = args.number("renewal")
	}
	if args.has("term") {
		l.TermID = store.Attempt(args.value("term"))
	}
	if args.has("echo") {
		l.Attempt = store.Attempt(args.value("echo"))
	}
	if args.has("ttl") {
		l.TTL = args.duration("ttl")
	}
	l.Receipt = store.Receipt(fmt.Sprintf("%d.%s", l.Renewal, a))
	return l
}

var namedErrors = map[string]error{
	"spent": store.ErrSpent, "norecord": store.ErrNoRecord, "superseded": store.ErrSuperseded, "expired": store.ErrExpired,
	"released": store.ErrReleased, "cloned": store.ErrCloned, "evicted": store.ErrEvicted, "denied": store.ErrDenied,
	"unreachable": store.ErrUnreachable, "refused": store.Undone(store.ErrUnreachable), "busy": store.ErrBusy, "readonly": store.ErrReadOnly,
	"format": store.ErrFormat, "timeout": errors.New("no reply in time"), "panicked": ErrPanicked, "disrupted": ErrDisrupted,
	"stalled": ErrStalled, "fenced": ErrFenced,
}

// show prints an action.
func show(a Action) string {
	why := func(err error) string {
		if err == nil {
			return ""
		}
		return ": " + err.Error()
	}
	lease := func(l store.Lease) string { return fmt.Sprintf("token %d renewal %d", l.Token, l.Renewal) }
	switch a := a.(type) {
	case Draw:
		return "draw"
	case Ask:
		return fmt.Sprintf("acquire %s", a.Attempt)
	case Renew:
		return fmt.Sprintf("renew %s with receipt %s", a.Attempt, a.Lease.Receipt)
	case Release:
		return fmt.Sprintf("release %s, pending %q", lease(a.Lease), a.Attempt)
	case Abandon:
		return fmt.Sprintf("abandon %s", a.Attempt)
	case Cancel:
		return "cancel the calls that are out"
	case Begin:
		return fmt.Sprintf("BEGIN %s", lease(a.Lease))
	case Extend:
		return fmt.Sprintf("extend %s", lease(a.Lease))
	case Drain:
		return "drain"
	case End:
		return fmt.Sprintf("END %s%s%s", lease(a.Lease), why(a.Cause), why(a.Err))
	case Overdue:
		return "overdue"
	case Over:
		return fmt.Sprintf("over, released %v%s%s", a.Released, why(a.Cause), why(a.Err))
	case Halt:
		return "halt"
	case Held:
		return fmt.Sprintf("held for %v", a.Err.Remaining)
	case AskFailed:
		return fmt.Sprintf("asking failed%s", why(a.Err))
	case RenewFailed:
		return fmt.Sprintf("renewal failed, %v left%s", ms(a.Left), why(a.Err))
	}
	return fmt.Sprintf("%T", a)
}

// arguments are the words after a command, and what stands after an = sign.
type arguments struct {
	words  []string
	values map[string]string
}

func parse(words []string) (arguments, error) {
	a := arguments{values: map[string]string{}}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			a.words = append(a.words, w)
			a.values[w] = ""
			continue
		}
		_, errD := time.ParseDuration(value)
		_, errN := strconv.ParseInt(value, 10, 64)
		if errD != nil && errN != nil && name != "term" && name != "echo" {
			return a, fmt.Errorf("%s=%s is neither a duration nor a number", name, value)
		}
		a.values[name] = value
	}
	return a, nil
}

func (a arguments) first() string {
	if len(a.words) == 0 {
		return ""
	}
	return a.words[0]
}

func (a arguments) has(name string) bool { _, ok := a.values[name]; return ok }

func (a arguments) value(name string) string { return a.values[name] }

func (a arguments) duration(name string) time.Duration {
	d, err := time.ParseDuration(a.values[name])
	if err != nil {
		return 0
	}
	return d
}

func (a arguments) number(name string) int64 {
	n, err := strconv.ParseInt(a.values[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
