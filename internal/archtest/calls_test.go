package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// call is a function that must not be called, where, and why. The name is
// matched as it is written, by the import's path and the selector.
type call struct {
	path  string
	names []string
	where func(*file) bool
	why   string
}

// sleepers are the files and folders that may call time.Sleep, each with what it
// waits for that no event tells. A test that imports testing/synctest may as well:
// in a bubble a sleep takes no time.
var sleepers = map[string]string{
	"hub.go":         "renewals that are due within a few milliseconds are gathered; nobody waits for one that was cancelled",
	"tests/process":  "other processes are polled, kept frozen for as long as a lease, and ask for their term's validity all the time",
	"tests/postgres": "servers and other processes are polled",
	"tests/property": "a store that is broken on purpose looks away between reading and writing",

	"cmd/tenure/fieldcases_test.go":           "other processes are polled",
	"cmd/tenure/script_test.go":               "scripts poll for what the command in the background writes",
	"cmd/tenure/internal/guard/main_test.go":  "helper processes poll for files of each other, and write down the time for as long as they live",
	"cmd/tenure/internal/guard/guard_test.go": "signals are sent until a process that reads none of them has ended",
	"tenuresqlite/contend_test.go":            "contending processes are killed at random moments",
	"tenuresqlite/foreign_test.go":            "a lease's end by the host's boot clock is waited out, as a waiter must",
	"tenuresqlite/helper_test.go":             "polls what another process or the system brings about",
	"tenuresqlite/roles_test.go":              "contending processes renew at random moments",
	"tenuresqlite/watch_test.go":              "a benchmark measures what waiting costs while time passes",
}

// maySleep reports whether a file is among the sleepers.
func maySleep(f *file) bool {
	for where := range sleepers {
		if within(f.path, where) {
			return true
		}
	}
	return false
}

func library(f *file) bool { return shipping(f) && !f.pkg.command() }

var bannedCalls = []call{
	{"time", []string{"Sleep"}, func(f *file) bool {
		return f.test && !maySleep(f) && f.imports()["testing/synctest"] == ""
	}, "wait for the event, use a synctest bubble, or list it with its reason in sleepers"},
	{"time", []string{"Sleep"}, func(f *file) bool {
		return library(f) && !maySleep(f)
	}, "a sleep cannot be cancelled: use a timer and the context, or list it with its reason in sleepers"},
	{"time", []string{"Tick"}, shipping, "its ticker is never stopped: use time.NewTicker"},
	{"time", []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker"}, pure, whyPure},
	{"fmt", []string{"Print", "Printf", "Println"}, library, "a library writes nothing to its user's output: it returns it, or logs to the logger that it is given"},
	{"os", []string{"Exit"}, library, "a library does not end its user's program"},
	{"os", []string{"Getenv", "LookupEnv", "Environ"}, library, "a library does not read the environment: what it needs is an argument"},
	{"context", []string{"TO" + "DO"}, func(*file) bool { return true }, "decide which context it is"},
	{"testing", []string{"Short"}, func(*file) bool { return true }, "there is one way to run the tests, and it runs all of them"},
}

func TestBannedCalls(t *testing.T) {
	repo := read(t)
	for _, f := range repo.files {
		imports := f.imports()
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			for _, c := range bannedCalls {
				if imports[c.path] == x.Name && slices.Contains(c.names, sel.Sel.Name) && c.where(f) {
					t.Errorf("%s uses %s.%s: %s", repo.at(n), c.path, sel.Sel.Name, c.why)
				}
			}
			return true
		})
	}
}

func TestPurePackagesStartNothing(t *testing.T) {
	repo := read(t)
	for _, f := range repo.files {
		if !pure(f) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				t.Errorf("%s starts a goroutine or uses a channel: %s", repo.at(n), whyPure)
			}
			return true
		})
	}
}

func TestSleepersAreNeeded(t *testing.T) {
	repo := read(t)
	for where, reason := range sleepers {
		sleeps := func(f *file) bool { return within(f.path, where) && strings.Contains(string(f.src), "time.Sleep(") }
		if reason == "" || !slices.ContainsFunc(repo.files, sleeps) {
			t.Errorf("sleepers lists %s without need or reason", where)
		}
	}
}

// Errors are matched with errors.Is: adapters wrap them. An Is method is where a
// typed error compares itself with its kind.
func TestErrorsAreNotCompared(t *testing.T) {
	repo := read(t)
	isErr := func(e ast.Expr) bool {
		switch x := e.(type) {
		case *ast.Ident:
			return len(x.Name) > 3 && strings.HasPrefix(x.Name, "Err") && ast.IsExported(x.Name[3:])
		case *ast.SelectorExpr:
			pkg, ok := x.X.(*ast.Ident)
			return ok && (strings.HasPrefix(x.Sel.Name, "Err") && len(x.Sel.Name) > 3 && ast.IsExported(x.Sel.Name[3:]) || pkg.Name == "io" && x.Sel.Name == "EOF")
		}
		return false
	}
	for _, f := range repo.files {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "Is" {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				b, ok := n.(*ast.BinaryExpr)
				if ok && (b.Op == token.EQL || b.Op == token.NEQ) && (isErr(b.X) || isErr(b.Y)) {
					t.Errorf("%s compares an error with %s: use errors.Is, since errors are wrapped on their way", repo.at(n), b.Op)
				}
				return true
			})
		}
	}
}

func TestNothingIsUnfinished(t *testing.T) {
	repo := read(t)
	marks := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "unimple" + "mented", "not imple" + "mented"}
	for _, f := range repo.files {
		for i, line := range strings.Split(string(f.src), "\n") {
			for _, m := range marks {
				if strings.Contains(line, m) {
					t.Errorf("%s:%d says %s: finish it, or leave it out and say so in the documents", f.path, i+1, m)
				}
			}
		}
	}
}
