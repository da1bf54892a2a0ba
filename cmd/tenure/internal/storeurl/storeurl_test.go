package storeurl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"sqlite:tenure.db":            "tenure.db",
		"sqlite:./a b?c#d.db":         "./a b?c#d.db",
		"sqlite:/var/lib/t/t.db":      "/var/lib/t/t.db",
		"sqlite:///var/lib/t/t.db":    "/var/lib/t/t.db",
		"SQLite:x":                    "x",
		"sqlite:user:pw@not-a-server": "user:pw@not-a-server",
	} {
		u, err := Parse(text)
		if err != nil || u.Path != want || u.Scheme != "sqlite" {
			t.Errorf("Parse(%q) = %+v, %v; want path %q", text, u, err, want)
		}
		if got := u.String(); got != "sqlite:"+want {
			t.Errorf("Parse(%q).String() = %q", text, got)
		}
	}
	for text, want := range map[string]string{
		"":                          "empty",
		"  ":                        "empty",
		"/var/lib/t.db":             "has no scheme (for a file: sqlite:/var/lib/t.db)",
		"tenure.db":                 "has no scheme",
		"//host/db":                 "has no scheme",
		":x":                        "has no scheme",
		"1x:y":                      "has no scheme",
		"sqlite:":                   "no path",
		"sqlite://":                 "three slashes or none",
		"sqlite://host/x":           "three slashes or none",
		"sqlite::memory:":           "not the path of a file",
		"sqlite:file:x?mode=memory": "not the path of a file",
		"sqlite:dir/":               "is a directory",
		"mysql://localhost/x":       `unknown scheme "mysql"`,
		"postgres://localhost/x":    "postgres is not built into this program",
		"redis://localhost":         "redis is not built into this program",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "allowed are sqlite:PATH and sqlite:///ABSOLUTE/PATH") {
			t.Errorf("Parse(%q): %v; want %q and what is allowed", text, err, want)
		}
	}
}

// No password comes out of any of these, however odd the URL.
func TestNoPassword(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, text := range []string{
		"postgres://user:hunter2@host/db",
		"postgres://user:hunter2@host:5432/db?sslmode=disable",
		"postgres://:hunter2@host/db",
		"postgres://user:@hunter2@host/db",
		"postgres://user:a/hunter2#?%zz@host/db",
		"postgres://host/db?password=hunter2",
		"postgres://host/db?user=u&sslPassword=hunter2&x=y",
		"redis://host?auth_token=hunter2",
		"unknown://user:hunter2@host",
		"://user:hunter2@host",
		"a b://user:hunter2@host",
		"postgres://user:hunter2\n@host",
		"sqlite://user:hunter2@host/path",
	} {
		_, err := Parse(text)
		for what, said := range map[string]string{
			"error":  fmt.Sprint(err),
			"Redact": Redact(text),
			"Clean":  URL{raw: text}.Clean("dial " + text + ": refused"),
			"%v":     fmt.Sprintf("%v %+v %#v", URL{raw: text}, URL{raw: text}, URL{raw: text}),
		} {
			if strings.Contains(said, secret) {
				t.Errorf("%q: %s shows the password: %s", text, what, said)
			}
		}
		if err == nil {
			t.Errorf("Parse(%q) succeeded", text)
		}
		if !HasPassword(text) {
			t.Errorf("HasPassword(%q) is false", text)
		}
	}
	if got := (URL{raw: "postgres://u:hunter2@h/"}).Clean("password hunter2 is wrong"); got != "password xxxxx is wrong" {
		t.Errorf("Clean left %q", got)
	}
	// Escaped, it is found in both forms.
	if got := (URL{raw: "postgres://u:hunt%20er@h/"}).Clean("bad hunt%20er, bad hunt er"); strings.Contains(got, "er,") || strings.HasSuffix(got, "er") {
		t.Errorf("Clean left %q", got)
	}
	for _, text := range []string{"sqlite:a.db", "postgres://user@host/db", "postgres://host:5432/db?sslmode=x", "redis://host"} {
		if HasPassword(text) || Redact(text) != text {
			t.Errorf("%q: a password was seen where there is none: %q", text, Redact(text))
		}
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "url")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(" sqlite:x \n\n")
	if got, err := ReadFile(path); err != nil || got != "sqlite:x" {
		t.Errorf("ReadFile = %q, %v", got, err)
	}
	for _, text := range []string{"", "\n", "sqlite:x\nsqlite:y\n"} {
		write(text)
		if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "allowed is one line") {
			t.Errorf("ReadFile of %q: %v", text, err)
		}
	}
	if _, err := ReadFile(path + "x"); err == nil {
		t.Error("ReadFile of a missing file succeeded")
	}
}

func TestDefault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		uid         int
		state, home string
		want        string
	}{
		{0, "/s", "/root", "/var/lib/tenure/tenure.db"},
		{1000, "/s", "/home/u", "/s/tenure/tenure.db"},
		{1000, "", "/home/u", "/home/u/.local/state/tenure/tenure.db"},
		{1000, "relative", "/home/u", "/home/u/.local/state/tenure/tenure.db"},
		{1000, "", "", ""},
	} {
		got, err := Default(tt.uid, func(name string) string { return map[string]string{"XDG_STATE_HOME": tt.state, "HOME": tt.home}[name] })
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("Default(%d, %q, %q) = %q, %v; want %q", tt.uid, tt.state, tt.home, got, err, tt.want)
		}
	}
}
