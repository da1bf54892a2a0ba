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

// sleepers are the files that may call time.Sleep, each with what it waits for
// that no event tells. A test that imports testing/synctest may as well: in a
// bubble a sleep takes no time.
var sleepers = map[string]string{
	"hub.go":                                 "renewals that are due within a few milliseconds are gathered; nobody waits for one that was cancelled",
	"cmd/tenure/internal/guard/main_test.go": "helper processes poll for files of each other, and write down the time for as long as they live",
	"tenuresqlite/foreign_test.go":           "a lease's end by the host's boot clock is waited out, as a waiter must",
	"tenuresqlite/helper_test.go":            "polls what another process or the system brings about",
	"tenuresqlite/roles_test.go":             "contending processes renew at random moments",
	"tenuresqlite/watch_test.go":             "a benchmark measures what waiting costs while time passes",
}

func library(f *file) bool { return shipping(f) && !f.pkg.command() }

var bannedCalls = []call{
	{"time", []string{"Sleep"}, func(f *file) bool {
		return f.test && sleepers[f.path] == "" && f.imports()["testing/synctest"] == ""
	}, "wait for the event, use a synctest bubble, or list the file with its reason in sleepers"},
	{"time", []string{"Sleep"}, func(f *file) bool {
		return library(f) && sleepers[f.path] == ""
	}, "a sleep cannot be cancelled: use a timer and the context, or list the file with its reason in sleepers"},
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
	for name, reason := range sleepers {
		i := slices.IndexFunc(repo.files, func(f *file) bool { return f.path == name })
		if reason == "" || i < 0 || !strings.Contains(string(repo.files[i].src), "time.Sleep(") {
			t.Errorf("sleepers lists %s without need or reason", name)
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
