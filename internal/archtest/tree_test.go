package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the import path of the root module. Every other module of the
// repository is named for its folder below it.
const module = "github.com/tenure-go/tenure"

// root is the top of the repository, from where the tests run.
const root = "../.."

// tree is everything the tests look at.
type tree struct {
	fset     *token.FileSet
	files    []*file
	docs     []string            // Markdown files, by path
	packages map[string]*pkg     // by folder
	modules  map[string][]string // folders of go.mod files, to their lines
}

// pkg is the package of a folder, with its tests.
type pkg struct {
	folder string // "." for the root
	module string // the folder of its module
	files  []*file
}

// file is a Go file.
type file struct {
	path string // from the top of the repository, with slashes
	pkg  *pkg
	test bool
	src  []byte
	ast  *ast.File
}

// name is the package's name, without the _test of an external test.
func (p *pkg) name() string { return strings.TrimSuffix(p.files[0].ast.Name.Name, "_test") }

// ships reports whether users of the project get the package: it is not one of
// the project's own tools or tests.
func (p *pkg) ships() bool {
	if p.folder == "internal/archtest" || p.folder == "internal/sim" {
		return false
	}
	return !slices.Contains([]string{"tools", "tests", "bench", "examples"}, top(p.folder)) && slices.ContainsFunc(p.files, func(f *file) bool { return !f.test })
}

// command reports whether the package is part of a program, which may print,
// exit and read its environment.
func (p *pkg) command() bool { return p.name() == "main" || within(p.folder, "cmd") }

// internal reports whether only the project can import the package.
func (p *pkg) internal() bool { return slices.Contains(strings.Split(p.folder, "/"), "internal") }

func top(folder string) string {
	first, _, _ := strings.Cut(folder, "/")
	return first
}

// within reports whether a folder is another one or below it.
func within(folder, above string) bool {
	return folder == above || strings.HasPrefix(folder, above+"/")
}

// ours returns the folder of an import path of this project.
func ours(importPath string) (folder string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// imports returns the import paths of a file, each with the name it has there.
func (f *file) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		names[p] = path.Base(p)
		if parent := path.Dir(p); versionSuffix(path.Base(p)) {
			names[p] = path.Base(parent)
		}
		if spec.Name != nil {
			names[p] = spec.Name.Name
		}
	}
	return names
}

// versionSuffix reports whether the last part of an import path is a major
// version, as in math/rand/v2, and so not the package's name.
func versionSuffix(last string) bool {
	_, err := strconv.Atoi(strings.TrimPrefix(last, "v"))
	return err == nil && strings.HasPrefix(last, "v")
}

// read returns the repository, which is read once for all tests.
func read(t *testing.T) *tree {
	t.Helper()
	repo, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

var load = sync.OnceValues(func() (*tree, error) {
	repo := &tree{fset: token.NewFileSet(), packages: map[string]*pkg{}, modules: map[string][]string{}}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(p, root+string(filepath.Separator)))
		if d.IsDir() {
			if p != root && (d.Name() == "testdata" || d.Name() == "bin" || d.Name()[0] == '.' || d.Name()[0] == '_') {
				return filepath.SkipDir
			}
			return nil
		}
		switch {
		case d.Name() == "go.mod":
			src, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			repo.modules[path.Dir(name)] = strings.Split(string(src), "\n")
		case path.Ext(name) == ".md":
			repo.docs = append(repo.docs, name)
		case path.Ext(name) == ".go":
			return repo.add(p, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range repo.packages {
		for p.module = p.folder; repo.modules[p.module] == nil; p.module = path.Dir(p.module) {
			if p.module == "." {
				return nil, fmt.Errorf("%s: no go.mod at the top of the repository", p.folder)
			}
		}
	}
	return repo, nil
})

func (repo *tree) add(osPath, name string) error {
	src, err := os.ReadFile(osPath)
	if err != nil {
		return err
	}
	parsed, err := parser.ParseFile(repo.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	folder := path.Dir(name)
	p := repo.packages[folder]
	if p == nil {
		p = &pkg{folder: folder}
		repo.packages[folder] = p
	}
	f := &file{path: name, pkg: p, test: strings.HasSuffix(name, "_test.go"), src: src, ast: parsed}
	p.files = append(p.files, f)
	repo.files = append(repo.files, f)
	return nil
}

// at names a place in the source for a person.
func (repo *tree) at(n ast.Node) string {
	pos := repo.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

// sorted returns the packages by folder.
func (repo *tree) sorted() []*pkg {
	var all []*pkg
	for _, p := range repo.packages {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *pkg) int { return strings.Compare(a.folder, b.folder) })
	return all
}

func TestTreeIsRead(t *testing.T) {
	repo := read(t)
	for _, folder := range []string{"fence", "store", "internal/archtest"} {
		if repo.packages[folder] == nil {
			t.Errorf("%s was not found: the other tests here look at nothing", folder)
		}
	}
	if repo.modules["."] == nil || repo.modules["tools"] == nil {
		t.Errorf("modules were not found, only %v", repo.modules)
	}
}
