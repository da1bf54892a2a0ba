// Package storeurl reads the URLs by which the command is told where the leases
// are kept, and keeps the passwords in them out of everything it says.
package storeurl

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// URL says where a store is. It never prints its password.
type URL struct {
	Scheme string // in lower case
	Path   string // of the file, for sqlite
	raw    string
}

// Built are the forms of URL this program can open.
var Built = []string{"sqlite:PATH", "sqlite:///ABSOLUTE/PATH"}

// coming are schemes that Tenure knows and this program was built without.
var coming = []string{"postgres", "postgresql", "redis", "rediss", "redlock", "etcd", "consul", "zk", "k8s"}

// Parse reads a store's URL. The error names what is wrong and what is allowed,
// and shows no password.
func Parse(text string) (URL, error) {
	if strings.TrimSpace(text) == "" {
		return URL{}, fault("the store URL is empty")
	}
	scheme, rest, found := strings.Cut(text, ":")
	scheme = strings.ToLower(scheme)
	if !found || !isScheme(scheme) {
		hint := ""
		if !strings.Contains(text, "://") && !strings.ContainsAny(text, "@\n") {
			hint = fmt.Sprintf(" (for a file: sqlite:%s)", text)
		}
		return URL{}, fault("store URL %q has no scheme%s", Redact(text), hint)
	}
	u := URL{Scheme: scheme, raw: text}
	switch {
	case scheme == "sqlite":
		err := u.parseFile(rest)
		return u, err
	case slices.Contains(coming, scheme):
		return URL{}, fault("store URL %q: %s is not built into this program", Redact(text), scheme)
	}
	return URL{}, fault("store URL %q: unknown scheme %q", Redact(text), scheme)
}

func (u *URL) parseFile(rest string) error {
	path := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(after, "/") {
			return fault("store URL %q: a file has no host, so three slashes or none", Redact(u.raw))
		}
		path = after
	}
	switch {
	case path == "":
		return fault("store URL %q has no path", u.raw)
	case path == ":memory:" || strings.HasPrefix(path, "file:"):
		return fault("store URL %q is not the path of a file: a database in memory is seen by no other process", u.raw)
	case strings.HasSuffix(path, "/"):
		return fault("store URL %q is a directory, not a file", u.raw)
	}
	u.Path = path
	return nil
}

func fault(format string, args ...any) error {
	return fmt.Errorf(format+": allowed are "+strings.Join(Built, " and "), args...)
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
func (u URL) String() string {
	if u.Scheme == "sqlite" {
		return "sqlite:" + u.Path
	}
	return Redact(u.raw)
}

// GoString keeps %#v from showing the password.
func (u URL) GoString() string { return u.String() }

// Clean takes the URL's password out of a text, such as an error of a library.
func (u URL) Clean(text string) string {
	for _, secret := range secrets(u.raw) {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	return text
}

// HasPassword reports whether the URL text carries a password.
func HasPassword(text string) bool { return len(secrets(text)) > 0 }

// hidden stands for what is not shown.
const hidden = "xxxxx"

// Redact returns text, which should be a URL, without its passwords. It does not
// rely on the URL being well formed.
func Redact(text string) string {
	// Rebuilt rather than replaced, so that a password that is also a part of the
	// host's name leaves that readable.
	head, password, tail := splitPassword(text)
	if password != "" {
		text = head + hidden + tail
	}
	for _, secret := range queryPasswords(text) {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	return text
}

// secrets returns the passwords of a URL, as they are written and as they are
// meant.
func secrets(text string) []string {
	var all []string
	_, password, _ := splitPassword(text)
	for _, s := range append([]string{password}, queryPasswords(text)...) {
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

// splitPassword cuts a URL around the password of its user. A password that
// should have been escaped may hold any character, so everything up to the last
// @ is taken for it.
func splitPassword(text string) (head, password, tail string) {
	start := strings.Index(text, "://")
	if start < 0 {
		return text, "", ""
	}
	start += len("://")
	end := strings.LastIndexByte(text, '@')
	if end < start {
		return text, "", ""
	}
	colon := strings.IndexByte(text[start:end], ':')
	if colon < 0 {
		return text, "", ""
	}
	colon += start + 1
	return text[:colon], text[colon:end], text[end:]
}

// queryPasswords returns the values of a URL's parameters whose names say that
// they are secret.
func queryPasswords(text string) []string {
	_, query, found := strings.Cut(text, "?")
	if !found {
		return nil
	}
	var all []string
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' || r == '#' }) {
		name, value, _ := strings.Cut(pair, "=")
		name = strings.ToLower(name)
		for _, word := range []string{"pass", "secret", "token", "pwd"} {
			if value != "" && strings.Contains(name, word) {
				all = append(all, value)
				break
			}
		}
	}
	return all
}

// ReadFile reads a URL from a file, where a password is not seen by others: its
// first line.
func ReadFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return "", err
	}
	line, rest, _ := strings.Cut(string(data), "\n")
	line = strings.TrimSpace(line)
	if line == "" || strings.TrimSpace(rest) != "" {
		return "", fmt.Errorf("%s: allowed is one line, a store URL", path)
	}
	return line, nil
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
