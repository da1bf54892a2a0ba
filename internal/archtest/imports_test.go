package archtest

import (
	"slices"
	"strings"
	"testing"
)

// layer is a part of the project and what it may import of the rest. The table
// is a statement of policy: a package gets a place in it before it is written.
type layer struct {
	folder string   // this folder and what is below it, unless a longer entry says otherwise
	may    []string // folders of this project besides its own; "…" at the end stands for all below
	std    bool     // nothing from outside the standard library either
	why    string
}

// adapters may import what a back end needs. None of it knows an Elector.
var adapters = []string{"fence", "store", "store/row", "once", "fleet"}

const (
	whyFence   = "fence is the bottom of everything: resources and scripts use it where nothing else of Tenure is"
	whyStore   = "the contract of a back end must not know who leads with it: an Elector, a test or an operator"
	whyCore    = "the state machine decides without a store, a clock or a goroutine of its own, or the simulator could not replay it"
	whyRoot    = "whoever embeds an Elector gets the standard library and nothing else"
	whyAdapter = "an adapter is a back end for anybody: it knows the contract and its own client, never the Elector or its internals"
	whyCommand = "the command is a user of the library like any other, and the only place where all stores meet"
	whySidecar = "the sidecar serves an Elector that it is given, whatever store is below it"
)

var layers = []layer{
	{folder: "fence", std: true, why: whyFence},
	{folder: "fence/fencetest", may: []string{"fence"}, std: true, why: whyFence},
	{folder: "fence/httpfence", may: []string{"fence"}, std: true, why: whyFence},

	{folder: "store", may: []string{"fence"}, std: true, why: whyStore},
	{folder: "store/row", may: []string{"fence", "store"}, std: true, why: whyStore},
	{folder: "store/memstore", may: []string{"fence", "store", "store/row"}, std: true, why: whyStore},
	{folder: "store/storetest", may: []string{"fence", "store", "store/row"}, std: true, why: whyStore},
	{folder: "store/faultstore", may: []string{"fence", "store"}, std: true, why: whyStore},

	{folder: "once", may: []string{"fence", "store"}, std: true, why: whyStore},
	{folder: "fleet", may: []string{"fence", "store"}, std: true, why: whyStore},
	{folder: "disrupt", std: true, why: whyRoot},
	{folder: "schedule", may: []string{".", "fence", "store", "once"}, std: true, why: whyRoot},

	{folder: "internal/core", may: []string{"fence", "store"}, std: true, why: whyCore},
	{folder: "internal/draw", may: []string{"store"}, std: true, why: whyCore},
	{folder: "internal/sim", may: []string{"fence", "store", "store/row", "internal/core"}, std: true, why: whyCore},
	{folder: "internal/archtest", std: true, why: "the rules are read from the source, so that they need nothing that builds"},

	{folder: ".", may: []string{"fence", "store", "internal/core", "internal/draw", "disrupt"}, std: true, why: whyRoot},

	{folder: "tenuresqlite", may: adapters, why: whyAdapter},
	{folder: "tenurepg", may: adapters, why: whyAdapter},
	{folder: "tenureredis", may: adapters, why: whyAdapter},
	{folder: "tenureetcd", may: adapters, why: whyAdapter},
	{folder: "tenureconsul", may: adapters, why: whyAdapter},
	{folder: "tenurezk", may: adapters, why: whyAdapter},
	{folder: "tenurekube", may: adapters, why: whyAdapter},
	{folder: "tenures3", may: adapters, why: whyAdapter},
	{folder: "tenureprom", may: []string{".", "fence", "store"}, why: whyAdapter},
	{folder: "tenureotel", may: []string{".", "fence", "store"}, why: whyAdapter},

	{folder: "sidecar", may: []string{".", "fence", "store", "once", "fleet", "disrupt"}, why: whySidecar},
	{
		folder: "cmd/tenure",
		may: []string{
			".", "fence", "store", "store/memstore", "store/storetest", "once", "fleet", "schedule", "disrupt", "sidecar",
			"tenuresqlite", "tenurepg", "tenureredis", "tenureetcd", "tenureconsul", "tenurezk", "tenurekube", "tenureprom", "tenureotel",
		},
		why: whyCommand,
	},

	{folder: "tools", why: "the tools check the project and know nothing of it"},
	{folder: "tests", may: []string{"…"}, why: "the tests against real servers may use everything"},
	{folder: "bench", may: []string{"…"}, why: "the benchmarks may use everything"},
	{folder: "examples", may: []string{"…"}, why: "the examples may use everything a user can"},
}

// layerOf returns the longest entry that a folder is in.
func layerOf(folder string) (layer, bool) {
	var best layer
	found := false
	for _, l := range layers {
		if (within(folder, l.folder) && l.folder != "." || folder == l.folder) && (!found || len(l.folder) > len(best.folder)) {
			best, found = l, true
		}
	}
	return best, found
}

func (l layer) allows(folder string) bool {
	if own, ok := layerOf(folder); ok && own.folder == l.folder {
		return true
	}
	return slices.ContainsFunc(l.may, func(m string) bool {
		below, all := strings.CutSuffix(m, "…")
		return folder == m || all && strings.HasPrefix(folder, below)
	})
}

func TestImportRule(t *testing.T) {
	repo := read(t)
	for _, p := range repo.sorted() {
		l, ok := layerOf(p.folder)
		if !ok {
			t.Errorf("%s: the layout does not know this package: give it a place in the table of layers", p.folder)
			continue
		}
		for _, f := range p.files {
			for imported := range f.imports() {
				folder, own := ours(imported)
				switch {
				case own && !f.test && !l.allows(folder):
					t.Errorf("%s imports %s, which %s may not: %s", f.path, imported, p.folder, l.why)
				case !own && l.std && strings.Contains(strings.Split(imported, "/")[0], "."):
					t.Errorf("%s imports %s from outside the standard library, which %s may not (tests that need it live in tests/): %s", f.path, imported, p.folder, l.why)
				}
			}
		}
	}
}

// Tests may build on the reference store and the suites, but an adapter's tests
// stay away from the internals of the root as its code does.
func TestImportRuleOfTests(t *testing.T) {
	repo := read(t)
	for _, f := range repo.files {
		for imported := range f.imports() {
			folder, own := ours(imported)
			if own && f.pkg.module != "." && within(folder, "internal") && top(f.pkg.folder) != "tests" {
				t.Errorf("%s imports %s: the internals of the root module belong to it alone", f.path, imported)
			}
		}
	}
}

func TestLayerTableIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range layers {
		if seen[l.folder] || l.why == "" {
			t.Errorf("%s: is in the table twice, or gives no reason", l.folder)
		}
		seen[l.folder] = true
	}
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"fence", "store", false},
		{"store", "fence", true},
		{"store", ".", false},
		{"store", "store/row", false},
		{"fence", "fence/fencetest", false},
		{"store/memstore", "internal/core", false},
		{"internal/core", "store/memstore", false},
		{".", "internal/core", true},
		{".", "store/memstore", false},
		{".", "tenuresqlite", false},
		{"tenuresqlite", "store/row", true},
		{"tenuresqlite", ".", false},
		{"tenuresqlite", "internal/draw", false},
		{"tenuresqlite/sub", "tenuresqlite", true},
		{"cmd/tenure", "tenuresqlite", true},
		{"cmd/tenure", "internal/core", false},
		{"cmd/tenure/internal/guard", "cmd/tenure/internal/marker", true},
		{"tests/pg", "internal/core", true},
	} {
		l, ok := layerOf(c.from)
		if !ok || l.allows(c.to) != c.want {
			t.Errorf("%s may import %s: %v, want %v", c.from, c.to, !c.want, c.want)
		}
	}
}

// ban is a package that must not be imported, where, and why.
type ban struct {
	path  string // and all below it
	where func(*file) bool
	why   string
}

func shipping(f *file) bool { return !f.test && f.pkg.ships() }

// pure are the packages that decide and do nothing else.
func pure(f *file) bool {
	return !f.test && slices.Contains([]string{"fence", "store/row", "internal/core"}, f.pkg.folder)
}

const whyPure = "a pure package decides by its arguments alone, so that a seed replays it"

var bannedImports = []ban{
	{"testing", shipping, "it registers flags and pulls test machinery into the programs of users"},
	{"net/http/httptest", shipping, "it pulls test machinery into the programs of users"},
	{"log", func(f *file) bool { return shipping(f) && !strings.HasPrefix(f.pkg.folder, "cmd/") }, "the library logs with log/slog, to the logger that it is given"},
	{"math/rand", func(f *file) bool { return slices.Contains(keys(f.imports()), "math/rand") }, "math/rand/v2 takes its place"},
	{"os", pure, whyPure},
	{"net", pure, whyPure},
	{"syscall", pure, whyPure},
	{"crypto/rand", pure, whyPure},
	{"runtime", pure, whyPure},
}

// allowedImports are exceptions to the bans of a whole subtree.
var allowedImports = []string{"log/slog", "math/rand/v2"}

func TestBannedImports(t *testing.T) {
	for _, f := range read(t).files {
		for imported := range f.imports() {
			if slices.Contains(allowedImports, imported) {
				continue
			}
			for _, b := range bannedImports {
				if within(imported, b.path) && b.where(f) {
					t.Errorf("%s imports %s: %s", f.path, imported, b.why)
				}
			}
		}
	}
}

func TestPackageNames(t *testing.T) {
	for _, p := range read(t).sorted() {
		switch p.name() {
		case "util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "types":
			t.Errorf("%s: the name %s says nothing of what belongs there", p.folder, p.name())
		}
	}
}

func keys(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}
