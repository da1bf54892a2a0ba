package archtest

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// block is a fenced block of a Markdown file.
type block struct {
	lang   string
	line   int // of its opening fence
	text   string
	before string // the last line before it that is not empty
}

// blocks returns the fenced blocks of a Markdown text, and the text without them.
func blocks(text string) (found []block, prose string) {
	var open *block
	var rest []string
	before := ""
	for i, line := range strings.Split(text, "\n") {
		lang, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open == nil:
			open = &block{lang: lang, line: i + 1, before: before}
		case isFence:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		default:
			rest = append(rest, line)
		}
		if strings.TrimSpace(line) != "" {
			before = strings.TrimSpace(line)
		}
	}
	return found, strings.Join(rest, "\n")
}

// from is the marker above a Go block: <!-- from: FILE --> shows the whole file,
// <!-- from: FILE:FUNC --> the body of a function up to its Output comment.
var from = regexp.MustCompile(`^<!-- from: ([^:\s]+)(?::(\w+))? -->$`)

// What a reader copies from a document is what the tests ran.
func TestShownGoCodeIsTested(t *testing.T) {
	repo := read(t)
	for _, doc := range repo.docs {
		text, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		found, _ := blocks(string(text))
		for _, b := range found {
			if b.lang != "go" {
				continue
			}
			m := from.FindStringSubmatch(b.before)
			if m == nil {
				t.Errorf("%s:%d: a block of Go needs the line <!-- from: FILE:FUNC --> above it, which names the tested code it shows", doc, b.line)
				continue
			}
			want, err := repo.shown(path.Join(path.Dir(doc), m[1]), m[2])
			if err != nil {
				t.Errorf("%s:%d: %v", doc, b.line, err)
			} else if b.text != want {
				t.Errorf("%s:%d: the block is not what %s has\n--- shown\n%s--- tested\n%s", doc, b.line, m[0], b.text, want)
			}
		}
	}
}

// shown returns the code that a marker names.
func (repo *tree) shown(name, function string) (string, error) {
	i := slices.IndexFunc(repo.files, func(f *file) bool { return f.path == name })
	if i < 0 {
		return "", fmt.Errorf("there is no Go file %s", name)
	}
	f := repo.files[i]
	offset := func(n ast.Node) int { return repo.fset.Position(n.Pos()).Offset }
	if function == "" {
		return string(f.src), nil
	}
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != function {
			continue
		}
		if f.test && !strings.HasPrefix(function, "Example") {
			return "", fmt.Errorf("%s of %s is no example: its code is not run as it is shown", function, name)
		}
		end := repo.fset.Position(fn.Body.Rbrace).Offset
		for _, c := range f.ast.Comments {
			if c.Pos() > fn.Body.Lbrace && c.End() < fn.Body.Rbrace && strings.HasPrefix(strings.ToLower(strings.TrimPrefix(c.Text(), "Unordered ")), "output:") {
				end = offset(c)
			}
		}
		return dedent(string(f.src[repo.fset.Position(fn.Body.Lbrace).Offset+1 : end])), nil
	}
	return "", fmt.Errorf("%s has no function %s", name, function)
}

// dedent takes the indentation of a function's body away.
func dedent(body string) string {
	lines := strings.Split(strings.Trim(body, "\n\t"), "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "\t")
	}
	return strings.Join(lines, "\n") + "\n"
}

var link = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)

func TestMarkdownLinksResolve(t *testing.T) {
	for _, doc := range read(t).docs {
		for _, target := range links(t, doc) {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			name, anchor, _ := strings.Cut(target, "#")
			name = path.Join(path.Dir(doc), name)
			if target[0] == '#' {
				name = doc
			}
			if _, err := os.Stat(filepath.Join(root, name)); err != nil || strings.HasPrefix(name, "..") {
				t.Errorf("%s links to %s, which is not there", doc, target)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(t, name), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", doc, target, name)
			}
		}
	}
}

func links(t *testing.T, doc string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	_, prose := blocks(string(text))
	var targets []string
	for _, m := range link.FindAllStringSubmatch(prose, -1) {
		targets = append(targets, m[1])
	}
	return targets
}

// anchors returns the names by which the headings of a Markdown file are linked.
func anchors(t *testing.T, doc string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	_, prose := blocks(string(text))
	var names []string
	for _, line := range strings.Split(prose, "\n") {
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || line[0] != '#' {
			continue
		}
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(heading)))
	}
	return names
}

// named is a test, or with a … all whose names begin so.
var named = regexp.MustCompile("`((?:Test|Benchmark|Fuzz|Example)[A-Z]\\w*)(…?)`")

// A document that names the test behind a claim names one that is there.
func TestNamedTestsExist(t *testing.T) {
	repo := read(t)
	var there []string
	for _, f := range repo.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				there = append(there, fn.Name.Name)
			}
		}
	}
	for _, doc := range repo.docs {
		text, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found := slices.ContainsFunc(there, func(name string) bool {
				return name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1])
			})
			if !found {
				t.Errorf("%s names %s, and there is no such test", doc, m[0])
			}
		}
	}
}
