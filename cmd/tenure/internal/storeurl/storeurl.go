// Package storeurl reads the URLs by which the command is told where the leases
// are kept, and keeps the passwords in them out of everything it says.
//
// A text that is no store's URL may hold a password anywhere, so no error of this
// package repeats any of it: an error names the scheme, if that is one of the
// table below, what is wrong and what is allowed. Only a [URL], which was read to
// its end, can be shown.
package storeurl

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// URL says where a store is. It never prints its password.
type URL struct {
	Scheme string // in lower case, one of [Schemes]
	Path   string // of the file, for sqlite
	shown  string // the URL without its password
	raw    string // as it was given; empty: no password can be in it
}

// scheme is a kind of store that Tenure has.
type scheme struct {
	name  string
	forms []string                                // how its URLs look; none: this program was built without it
	parse func(rest string) (u URL, fault string) // rest follows the colon; the fault repeats nothing of it
}

// schemes is all that this package knows of the stores: a further one is a
// further line.
var schemes = []scheme{
	{name: "sqlite", forms: []string{"sqlite:PATH", "sqlite:///ABSOLUTE/PATH"}, parse: parseFile},
	{name: "postgres"},
	{name: "postgresql"},
	{name: "redis"},
	{name: "rediss"},
	{name: "redlock"},
	{name: "etcd"},
	{name: "consul"},
	{name: "zk"},
	{name: "k8s"},
}

// Schemes lists the schemes of the URLs that [Parse] accepts.
func Schemes() (names []string) {
	for _, s := range schemes {
		if s.parse != nil {
			names = append(names, s.name)
		}
	}
	return names
}

// Forms lists how the URLs look that [Parse] accepts.
func Forms() (forms []string) {
	for _, s := range schemes {
		forms = append(forms, s.forms...)
	}
	return forms
}

// Parse reads a store's URL. The error, an *[Error], says what is wrong and what
// is allowed, and repeats nothing of the text but a scheme that Tenure knows.
func Parse(text string) (URL, error) {
	if strings.TrimSpace(text) == "" {
		return URL{}, fault("is empty")
	}
	name, rest, found := cutScheme(text)
	if !found {
		return URL{}, fault("has no scheme")
	}
	for _, s := range schemes {
		switch {
		case s.name != name:
			continue
		case s.parse == nil:
			return URL{}, fault("names %s, which is not built into this program", name)
		}
		u, wrong := s.parse(rest)
		if wrong != "" {
			return URL{}, fault("of %s %s", name, wrong)
		}
		u.Scheme, u.raw = name, text
		return u, nil
	}
	return URL{}, fault("has an unknown scheme")
}

// File returns the URL of a SQLite file at any path.
func File(path string) URL {
	return URL{Scheme: "sqlite", Path: path, shown: "sqlite:" + path}
}

// parseFile reads what follows "sqlite:". The characters that begin the
// parameters and the fragment of a URL are not taken for a part of the path: a
// file would be made whose name is not what was meant.
func parseFile(rest string) (u URL, fault string) {
	path := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(after, "/") {
			return URL{}, "names a host, which a file has not: three slashes or none"
		}
		path = after
	}
	switch {
	case path == "":
		return URL{}, "has no path"
	case path == ":memory:" || strings.HasPrefix(path, "file:"):
		return URL{}, "is not the path of a file (a database in memory is seen by no other process)"
	case strings.Contains(path, "?"):
		return URL{}, "has a question mark in it: there are no parameters, nor files of such a name"
	case strings.Contains(path, "#"):
		return URL{}, "has a # in it: a resource is for --fence alone, and there are no files of such a name"
	case strings.HasSuffix(path, "/"):
		return URL{}, "is that of a directory, not of a file"
	}
	return File(path), ""
}

// Error says what is wrong with a text that is no store's URL.
type Error struct {
	Wrong string // what follows "the URL"
}

func (e *Error) Error() string {
	return "the store URL " + e.Wrong + ": allowed are " + strings.Join(Forms(), " and ")
}

func fault(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// IsPlace reports whether text says where something is, or was meant to, instead
// of being a plain name: it begins with a scheme, known or not, contains "://", or
// carries what looks like a password.
func IsPlace(text string) bool {
	_, _, found := cutScheme(text)
	return found || strings.Contains(text, "://") || HasPassword(text)
}

// cutScheme cuts text at the colon after its scheme, which it returns in lower
// case.
func cutScheme(text string) (name, rest string, found bool) {
	name, rest, found = strings.Cut(text, ":")
	name = strings.ToLower(name)
	return name, rest, found && isScheme(name)
}

// isScheme reports whether s, in lower case, is a URL's scheme.
func isScheme(s string) bool {
	for i, c := range s {
		letter := c >= 'a' && c <= 'z'
		other := c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'
		if !letter && (i == 0 || !other) {
			return false
		}
	}
	return s != ""
}

// String returns the URL without its password.
func (u URL) String() string { return u.shown }

// GoString keeps %#v from showing the password.
func (u URL) GoString() string { return u.shown }

// Clean takes the URL's password out of a text, such as an error of a library.
func (u URL) Clean(text string) string {
	for _, secret := range secrets(u.raw) {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	return text
}

// hidden stands for what is not shown.
const hidden = "xxxxx"

// HasPassword reports whether text, which need not be a URL, seems to carry a
// password.
func HasPassword(text string) bool { return len(secrets(text)) > 0 }

// secrets returns what must not be shown of text, as it stands there and without
// its escapes. It does not rely on text being a well-formed URL.
func secrets(text string) (all []string) {
	for _, s := range append(parameterPasswords(text), userPassword(text)) {
		if s == "" {
			continue
		}
		all = append(all, s)
		if plain, err := url.PathUnescape(s); err == nil && plain != s {
			all = append(all, plain)
		}
		if plain, err := url.QueryUnescape(s); err == nil && plain != s {
			all = append(all, plain)
		}
	}
	return all
}

// userPassword returns the password in USER:PASSWORD@HOST, after "//" or at the
// beginning. A password that should have been escaped may hold any character, so
// everything up to the last @ is taken for it. In a file's URL it is a part of
// the path.
func userPassword(text string) string {
	if name, rest, found := cutScheme(text); found && name == "sqlite" && !strings.HasPrefix(rest, "//") {
		return ""
	}
	if _, after, found := strings.Cut(text, "//"); found {
		text = after
	}
	end := strings.LastIndexByte(text, '@')
	if end < 0 {
		return ""
	}
	_, password, _ := strings.Cut(text[:end], ":")
	return password
}

// parameterPasswords returns the values of the parameters whose names say that
// they are secret, in a URL or in a list of words such as "host=h password=p".
func parameterPasswords(text string) (all []string) {
	for pair := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune("?&;# \t\r\n", r) }) {
		name, value, _ := strings.Cut(pair, "=")
		name = strings.ToLower(name)
		for _, word := range []string{"pass", "secret", "token", "pwd", "auth"} {
			if value != "" && strings.Contains(name, word) {
				all = append(all, value)
				break
			}
		}
	}
	return all
}

// ReadFile reads a URL from a file: its only line. open: others than the file's
// owner may read it, so that a password in it is not kept from them.
func ReadFile(path string) (text string, open bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return "", false, err
	}
	line, rest, _ := strings.Cut(string(data), "\n")
	line = strings.TrimSpace(line)
	if line == "" || strings.TrimSpace(rest) != "" {
		return "", false, fmt.Errorf("%s: allowed is one line, a store URL", path)
	}
	return line, st.Mode().Perm()&0o077 != 0, nil
}

// Default returns the path of the store that is used when none is named: one
// for the whole host if the user is root, else one of the user's own.
func Default(uid int, getenv func(string) string) (string, error) {
	if uid == 0 {
		return "/var/lib/tenure/tenure.db", nil
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // a relative one is to be ignored, by its specification
		return filepath.Join(dir, "tenure", "tenure.db"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "tenure", "tenure.db"), nil
	}
	return "", errors.New("there is no default store, since neither HOME nor XDG_STATE_HOME is an absolute path: name one with --store")
}
