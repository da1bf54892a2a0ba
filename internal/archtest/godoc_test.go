package archtest

import (
	"go/ast"
	"go/doc/comment"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// public reports whether users read the documentation of the file's package.
func public(f *file) bool { return shipping(f) && !f.pkg.internal() && f.pkg.name() != "main" }

func TestPackagesAreDocumented(t *testing.T) {
	for _, p := range read(t).sorted() {
		code := slices.DeleteFunc(slices.Clone(p.files), func(f *file) bool { return f.test })
		if len(code) == 0 {
			continue
		}
		docs := 0
		for _, f := range code {
			if f.ast.Doc == nil {
				continue
			}
			docs++
			what, name := "Package", p.name()
			if name == "main" {
				what, name = "Command", path.Base(p.folder)
			}
			first, second, _ := strings.Cut(f.ast.Doc.Text(), " ")
			if program := what == "Command" && strings.EqualFold(first, name); !program && (first != what || !beginsWith(second, name)) {
				t.Errorf("%s: the package comment begins %.40q, want \"%s %s …\"", f.path, f.ast.Doc.Text(), what, name)
			}
		}
		if docs != 1 {
			t.Errorf("%s has %d package comments, want one", p.folder, docs)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	repo := read(t)
	for _, f := range repo.files {
		if !public(f) {
			continue
		}
		missing := func(n ast.Node, what string) { t.Errorf("%s: %s has no comment", repo.at(n), what) }
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				checkFuncDoc(t, repo, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if !s.Name.IsExported() {
							continue
						}
						doc := s.Doc
						if doc == nil && len(d.Specs) == 1 {
							doc = d.Doc
						}
						if doc == nil {
							missing(s, "type "+s.Name.Name)
						} else if !beginsWith(doc.Text(), s.Name.Name) {
							t.Errorf("%s: the comment of %s begins %.40q, want the name", repo.at(s), s.Name.Name, doc.Text())
						}
						// The comment of an interface with one method speaks for the method.
						if i, ok := s.Type.(*ast.InterfaceType); ok && len(i.Methods.List) > 1 {
							for _, m := range i.Methods.List {
								if len(m.Names) > 0 && m.Names[0].IsExported() && m.Doc == nil && m.Comment == nil {
									missing(m, s.Name.Name+"."+m.Names[0].Name)
								}
							}
						}
					case *ast.ValueSpec:
						for _, name := range s.Names {
							// A group with a comment of its own speaks for its members.
							if name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
								missing(name, name.Name)
							}
						}
					}
				}
			}
		}
	}
}

func checkFuncDoc(t *testing.T, repo *tree, d *ast.FuncDecl) {
	t.Helper()
	name := d.Name.Name
	if !d.Name.IsExported() {
		return
	}
	if d.Recv != nil {
		recv := strings.TrimPrefix(exprString(d.Recv.List[0].Type), "*")
		if !ast.IsExported(recv) || slices.Contains([]string{"Error", "Unwrap", "String"}, name) && d.Type.Params.NumFields() == 0 {
			return // what every error has says nothing new
		}
	}
	if d.Doc == nil {
		t.Errorf("%s: %s has no comment", repo.at(d), name)
	} else if !beginsWith(d.Doc.Text(), name) {
		t.Errorf("%s: the comment of %s begins %.40q, want the name", repo.at(d), name, d.Doc.Text())
	}
}

// beginsWith reports whether a comment begins with a name, as go doc wants it.
func beginsWith(text, name string) bool {
	for _, article := range []string{"A ", "An ", "The "} {
		text = strings.TrimPrefix(text, article)
	}
	rest, ok := strings.CutPrefix(text, name)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], " \n:,.'’"))
}

func exprString(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return "*" + exprString(e.X)
	case *ast.IndexExpr:
		return exprString(e.X)
	case *ast.IndexListExpr:
		return exprString(e.X)
	}
	return ""
}

// docLink finds what looks like a link of go doc: [Name], [Type.Method],
// [pkg.Name].
var docLink = regexp.MustCompile(`\[\*?([A-Za-z][A-Za-z0-9_/]*(?:\.[A-Z][A-Za-z0-9_]*){0,2})\]`)

// A link that leads nowhere is shown with its brackets, and is usually what is
// left of a name that was changed.
func TestDocLinksResolve(t *testing.T) {
	repo := read(t)
	for _, f := range repo.files {
		if !public(f) {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, m := range docLink.FindAllStringSubmatch(group.Text(), -1) {
				if link := m[1]; !repo.resolves(f.pkg, link) {
					t.Errorf("%s: the link [%s] leads nowhere (a package must be one that this one imports)", repo.at(group), link)
				}
			}
		}
	}
}

func (repo *tree) resolves(p *pkg, link string) bool {
	parts := strings.Split(link, ".")
	if ast.IsExported(parts[0]) && !strings.Contains(parts[0], "/") {
		return p.declares(parts)
	}
	for _, f := range p.files {
		for imported, name := range f.imports() {
			if f.test || name != parts[0] && imported != parts[0] {
				continue
			}
			folder, own := ours(imported)
			if !own {
				return true // the standard library's or an SDK's: not read here
			}
			return len(parts) == 1 || repo.packages[folder].declares(parts[1:])
		}
	}
	if len(parts) == 1 {
		return !strings.Contains(link, "/") // a word in brackets, as in a usage line
	}
	_, std := comment.DefaultLookupPackage(parts[0])
	return std
}

// declares reports whether a package has an exported name, or a type with a
// method or field.
func (p *pkg) declares(parts []string) bool {
	for _, f := range p.files {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if len(parts) == 1 && d.Recv == nil && d.Name.Name == parts[0] {
					return true
				}
				if len(parts) == 2 && d.Recv != nil && d.Name.Name == parts[1] && strings.TrimPrefix(exprString(d.Recv.List[0].Type), "*") == parts[0] {
					return true
				}
			case *ast.GenDecl:
				if slices.ContainsFunc(d.Specs, func(s ast.Spec) bool { return specDeclares(s, parts) }) {
					return true
				}
			}
		}
	}
	return false
}

func specDeclares(spec ast.Spec, parts []string) bool {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		return len(parts) == 1 && slices.ContainsFunc(s.Names, func(n *ast.Ident) bool { return n.Name == parts[0] })
	case *ast.TypeSpec:
		if s.Name.Name != parts[0] {
			return false
		}
		if len(parts) == 1 {
			return true
		}
		var members *ast.FieldList
		switch t := s.Type.(type) {
		case *ast.StructType:
			members = t.Fields
		case *ast.InterfaceType:
			members = t.Methods
		default:
			return false
		}
		return slices.ContainsFunc(members.List, func(m *ast.Field) bool {
			return slices.ContainsFunc(m.Names, func(n *ast.Ident) bool { return n.Name == parts[1] })
		})
	}
	return false
}
