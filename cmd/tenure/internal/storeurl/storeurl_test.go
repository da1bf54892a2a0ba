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
		"sqlite:./a b.db":             "./a b.db",
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
		if HasPassword(text) {
			t.Errorf("%q: a password was seen where there is none", text)
		}
	}
	for text, want := range map[string]string{
		"":                       "is empty",
		"  ":                     "is empty",
		"/var/lib/t.db":          "has no scheme",
		"tenure.db":              "has no scheme",
		"//host/db":              "has no scheme",
		":x":                     "has no scheme",
		"1x:y":                   "has no scheme",
		"sqlite:":                "of sqlite has no path",
		"sqlite://":              "three slashes or none",
		"sqlite://host/x":        "three slashes or none",
		"sqlite::memory:":        "not the path of a file",
		"sqlite:file:x":          "not the path of a file",
		"sqlite:x?mode=ro":       "there are no parameters",
		"sqlite:x#name":          "--fence alone",
		"sqlite:dir/":            "is that of a directory",
		"mysql://localhost/x":    "has an unknown scheme",
		"postgres://localhost/x": "names postgres, which is not built into this program",
		"redis://localhost":      "names redis, which is not built into this program",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "allowed are sqlite:PATH and sqlite:///ABSOLUTE/PATH") {
			t.Errorf("Parse(%q): %v; want %q and what is allowed", text, err, want)
		}
	}
	// A path that no URL names is still one of a file.
	if u := File("/home/a?b#c/t.db"); u.Path != "/home/a?b#c/t.db" || u.String() != "sqlite:/home/a?b#c/t.db" {
		t.Errorf("File = %#v", u)
	}
}

// Nothing that stands after the scheme comes out of an error, however odd the
// text and wherever in it a password may be.
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
		"postgres://u:pw@h/db user=x password=hunter2",
		"postgres:/user:hunter2@host/db",
		"postgres//u:hunter2@h",
		"redis://host?auth_token=hunter2",
		"redis://h/0?auth=hunter2",
		"unknown://user:hunter2@host",
		"://user:hunter2@host",
		"a b://user:hunter2@host",
		"postgres://user:hunter2\n@host",
		"user:hunter2@host/db",
		"host=localhost password=hunter2",
		"foo?password=hunter2",
		"sqlite://user:hunter2@host/path",
		"sqlite:file:x?password=hunter2",
		"sqlite:/x?password=hunter2/",
		"sqlite:/x?password=hunter2",
	} {
		u, err := Parse(text)
		if err == nil {
			t.Errorf("Parse(%q) succeeded", text)
		}
		raw := URL{shown: "shown", raw: text}
		for what, said := range map[string]string{
			"error": fmt.Sprint(err),
			"Clean": raw.Clean("dial " + text + ": refused"),
			"%v":    fmt.Sprintf("%v %+v %#v %v %+v %#v", u, u, u, raw, raw, raw),
		} {
			if strings.Contains(said, secret) {
				t.Errorf("%q: %s shows the password: %s", text, what, said)
			}
		}
		if !HasPassword(text) || !IsPlace(text) {
			t.Errorf("%q: HasPassword %v, IsPlace %v; want true", text, HasPassword(text), IsPlace(text))
		}
	}
	// A password that no pattern finds is not repeated either.
	for _, text := range []string{"hunter2", "hunter2:x", "x:hunter2", "sqlite:hunter2/", "postgres:hunter2", "sqlite://hunter2"} {
		if _, err := Parse(text); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("Parse(%q): %v", text, err)
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
		if HasPassword(text) {
			t.Errorf("%q: a password was seen where there is none", text)
		}
	}
}

func TestIsPlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"invoices": false, "a b": false, "a b:c": false, "/srv/x": false, "tenants/42": false, "me@home": false,
		"sqlite:x": true, "SQLITE:x#n": true, "postgres://h/db": true, "tenant:42": true, "1://x": true,
	} {
		if got := IsPlace(text); got != want {
			t.Errorf("IsPlace(%q) = %v, want %v", text, got, want)
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
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o604: true, 0o620: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got, open, err := ReadFile(path); err != nil || got != "sqlite:x" || open != want {
			t.Errorf("ReadFile with mode %o = %q, %v, %v; want open %v", mode, got, open, err, want)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "\n", "sqlite:x\nsqlite:y\n"} {
		write(text)
		if _, _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "allowed is one line") {
			t.Errorf("ReadFile of %q: %v", text, err)
		}
	}
	if _, _, err := ReadFile(path + "x"); err == nil {
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
