package main

import (
	"bytes"
	stdflag "flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = stdflag.Bool("update", false, "rewrite the help texts in docs/cli.md")

// TestDocs holds docs/cli.md to what the command prints, and to having all
// commands. `go test ./cmd/tenure -run TestDocs -update` rewrites it.
func TestDocs(t *testing.T) {
	const path = "../../docs/cli.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	shown := make(map[string]bool)
	block := regexp.MustCompile("<!-- help: (.*) -->\n(\n### .*\n\n```text\n(?s:.*?)```\n)?")
	want := block.ReplaceAllStringFunc(string(data), func(found string) string {
		command := block.FindStringSubmatch(found)[1]
		shown[command] = true
		return "<!-- help: " + command + " -->\n\n### tenure " + command + "\n\n```text\n" + helpOf(t, command) + "```\n"
	})
	for _, command := range commands(t) {
		if !shown[command] {
			t.Errorf("%s has no marker for %q", path, command)
		}
	}
	switch {
	case want == string(data):
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not show what the command prints; rewrite it with -update", path)
	}
}

// helpOf is what `tenure COMMAND --help` prints.
func helpOf(t *testing.T, command string) string {
	t.Helper()
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
	if code := a.main(append(strings.Fields(command), "--help")); code != 0 {
		t.Fatalf("%s --help exits with %d:\n%s", command, code, out.String())
	}
	return out.String()
}

// commands lists what a user can call.
func commands(t *testing.T) []string {
	t.Helper()
	a := &app{stdout: new(bytes.Buffer), stderr: new(bytes.Buffer), getenv: func(string) string { return "" }}
	a.main([]string{"version"})
	var list []string
	for _, leaf := range a.model.Leaves(true) {
		list = append(list, firstWords(fullName(leaf)))
	}
	return list
}

// fullName is a command's words, without the program's.
func fullName(n *kong.Node) string {
	_, words, _ := strings.Cut(n.FullPath(), " ")
	return words
}
