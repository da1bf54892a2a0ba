package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every folder at the top is one that the table of layers knows, or one of these.
var otherFolders = map[string]string{
	"cmd":      "the commands, each a module",
	"internal": "what only the root module uses",
	"docs":     "the documents",
	"spec":     "the model and how to check it",
}

func TestLayout(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || name == "bin" || strings.HasPrefix(name, ".") || otherFolders[name] != "" {
			continue
		}
		if _, ok := layerOf(name); !ok {
			t.Errorf("%s: the layout does not know this folder: give it a place in the table of layers", name)
		}
	}
	for folder := range read(t).packages {
		if folder == "cmd" || folder == "internal" || within(folder, "docs") {
			t.Errorf("%s: no package belongs there", folder)
		}
	}
}

const placeholder = "v0.0.0-00010101000000-000000000000"

func TestModules(t *testing.T) {
	repo := read(t)
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		t.Fatal(err)
	}
	uses := strings.Fields(string(work))

	for _, line := range repo.modules["."] {
		if strings.HasPrefix(strings.TrimSpace(line), "require") || strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod has %q: the root module requires nothing, so that whoever imports it gets no dependencies of ours", line)
		}
	}
	for folder, lines := range repo.modules {
		want := module
		if folder != "." {
			want += "/" + folder
		}
		if lines[0] != "module "+want {
			t.Errorf("%s/go.mod begins with %q, want module %s: a module is named for its folder", folder, lines[0], want)
		}
		for _, line := range lines {
			if strings.HasPrefix(strings.TrimSpace(line), "toolchain ") {
				t.Errorf("%s/go.mod has %q: which toolchain builds it is the user's choice", folder, line)
			}
		}
		if folder == "tools" {
			if slices.Contains(uses, "./tools") {
				t.Error("go.work has ./tools: the linters' dependencies would choose versions for every other module")
			}
			continue
		}
		if folder == "." {
			if !slices.Contains(uses, ".") {
				t.Error("go.work lacks the root module")
			}
			continue
		}
		if !slices.Contains(uses, "./"+folder) {
			t.Errorf("go.work lacks ./%s: its tests are not run", folder)
		}
		for name := range repo.modules {
			path := module
			if name != "." {
				path += "/" + name
			}
			checkRequirement(t, folder, lines, path, name)
		}
	}
}

// checkRequirement holds a module's requirement of another one of this project
// to the shape that works before the first release.
func checkRequirement(t *testing.T, folder string, lines []string, required, requiredFolder string) {
	t.Helper()
	require := regexp.MustCompile(`^(?:require)?\s*` + regexp.QuoteMeta(required) + ` (v\S+)`)
	relative, err := filepath.Rel(folder, requiredFolder)
	if err != nil {
		t.Fatal(err)
	}
	replace := required + " => " + filepath.ToSlash(relative)
	for _, line := range lines {
		m := require.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[1] != placeholder {
			t.Errorf("%s/go.mod requires %s %s: until a release it is %s", folder, required, m[1], placeholder)
		}
		if !slices.ContainsFunc(lines, func(l string) bool {
			return strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(l, "replace ")), "/") == replace
		}) {
			t.Errorf("%s/go.mod lacks the replacement %q: without it the module does not build outside the workspace", folder, replace)
		}
	}
}
