package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCmd is `tenure completion`.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: ${enum}."`
}

// Help is shown by `tenure completion --help`.
func (*completionCmd) Help() string {
	return `To have it in every shell:

  bash: source <(tenure completion bash)     (in ~/.bashrc)
  zsh:  tenure completion zsh >"${fpath[1]}/_tenure"
  fish: tenure completion fish >~/.config/fish/completions/tenure.fish`
}

// Run prints the script. It is made from the command line's own description, so
// it knows what this binary knows.
func (c *completionCmd) Run(a *app) error {
	commands := completions(a.model.Node)
	switch c.Shell {
	case "bash":
		writeBash(a.stdout, commands)
	case "zsh":
		writeZsh(a.stdout, commands)
	case "fish":
		writeFish(a.stdout, commands)
	}
	return nil
}

// completion is what can follow one command.
type completion struct {
	path  []string // without the program's own name
	words []word   // commands below it, or values of its argument
	flags []flag
	runs  bool // what follows "--" is a command of its own
}

type word struct{ name, help string }

type flag struct {
	word
	takesValue bool
	values     []string // all there are, if they are few
	file       bool     // its value is the name of a file
}

// completions walks the commands below n, itself first.
func completions(n *kong.Node) []completion {
	var all []completion
	var walk func(n *kong.Node, path []string)
	walk = func(n *kong.Node, path []string) {
		c := completion{path: path}
		for _, group := range n.AllFlags(true) {
			for _, f := range group {
				c.flags = append(c.flags, flag{
					word: word{"--" + f.Name, firstSentence(f.Help)}, takesValue: !f.IsBool(), values: enum(f.Value),
					file: f.Name == "marker" || f.Name == "store-file",
				})
			}
		}
		for _, p := range n.Positional {
			for _, v := range enum(p) {
				c.words = append(c.words, word{v, ""})
			}
			c.runs = c.runs || p.Passthrough
		}
		for _, child := range n.Children {
			if !child.Hidden {
				c.words = append(c.words, word{child.Name, firstSentence(child.Help)})
			}
		}
		all = append(all, c)
		for _, child := range n.Children {
			if !child.Hidden {
				walk(child, append(slices.Clone(path), child.Name))
			}
		}
	}
	walk(n, nil)
	return all
}

func enum(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return strings.Split(v.Enum, ",")
}

func firstSentence(text string) string {
	if i := strings.Index(text, ". "); i >= 0 {
		text = text[:i]
	}
	return strings.TrimSuffix(text, ".")
}

func (c completion) wordNames() string { return names(c.words) }

func (c completion) flagNames() string {
	var words []word
	for _, f := range c.flags {
		words = append(words, f.word)
	}
	return names(words)
}

func names(words []word) string {
	var all []string
	for _, w := range words {
		all = append(all, w.name)
	}
	return strings.Join(all, " ")
}

// valueFlags are the flags of c that take a value.
func (c completion) valueFlags() []flag {
	return slices.DeleteFunc(slices.Clone(c.flags), func(f flag) bool { return !f.takesValue })
}

// writeBash and writeZsh follow the words typed so far to the command they
// name, then offer what can follow it.
func writeBash(w io.Writer, commands []completion) {
	fmt.Fprint(w, `# bash completion for tenure
_tenure() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} found= i
	COMPREPLY=()
`)
	writePath(w, "${COMP_WORDS[i]}", "i = 1; i < COMP_CWORD; i++", commands, `		COMPREPLY=($(compgen -c -- "$cur")); [[ $cur == */* ]] && COMPREPLY=($(compgen -f -- "$cur")); return`)
	fmt.Fprint(w, "\tcase $found:$prev in\n")
	for _, c := range commands {
		for _, f := range c.valueFlags() {
			action := "return"
			switch {
			case f.file:
				action = `COMPREPLY=($(compgen -f -- "$cur")); return`
			case len(f.values) > 0:
				action = fmt.Sprintf(`COMPREPLY=($(compgen -W %s -- "$cur")); return`, quote(strings.Join(f.values, " ")))
			}
			fmt.Fprintf(w, "\t%s:%s) %s ;;\n", quote(strings.Join(c.path, " ")), f.name, action)
		}
	}
	fmt.Fprint(w, "\tesac\n\tcase $found in\n")
	for _, c := range commands {
		fmt.Fprintf(w, "\t%s)\n\t\tif [[ $cur == -* ]]; then COMPREPLY=($(compgen -W %s -- \"$cur\"))\n\t\telse COMPREPLY=($(compgen -W %s -- \"$cur\")); fi ;;\n",
			quote(strings.Join(c.path, " ")), quote(c.flagNames()), quote(c.wordNames()))
	}
	fmt.Fprint(w, "\tesac\n}\ncomplete -F _tenure tenure\n")
}

func writeZsh(w io.Writer, commands []completion) {
	fmt.Fprint(w, `#compdef tenure
_tenure() {
	local cur=${words[CURRENT]} prev=${words[CURRENT-1]} found= i
	local -a offers
`)
	writePath(w, "${words[i]}", "i = 2; i < CURRENT; i++", commands, "\t\t_command_names -e; _files; return")
	fmt.Fprint(w, "\tcase $found:$prev in\n")
	for _, c := range commands {
		for _, f := range c.valueFlags() {
			action := "return"
			switch {
			case f.file:
				action = "_files; return"
			case len(f.values) > 0:
				action = "compadd -- " + strings.Join(f.values, " ") + "; return"
			}
			fmt.Fprintf(w, "\t(%s:%s) %s ;;\n", quote(strings.Join(c.path, " ")), f.name, action)
		}
	}
	fmt.Fprint(w, "\tesac\n\tcase $found in\n")
	for _, c := range commands {
		fmt.Fprintf(w, "\t(%s)\n\t\tif [[ $cur == -* ]]; then offers=(%s)\n\t\telse offers=(%s); fi ;;\n",
			quote(strings.Join(c.path, " ")), zshOffers(flagWords(c.flags)), zshOffers(c.words))
	}
	fmt.Fprint(w, "\tesac\n\t(( $#offers )) && _describe tenure offers\n}\n"+
		"if [[ ${funcstack[1]} == _tenure ]]; then _tenure \"$@\"; else compdef _tenure tenure; fi\n")
}

func flagWords(flags []flag) []word {
	var words []word
	for _, f := range flags {
		words = append(words, f.word)
	}
	return words
}

func zshOffers(words []word) string {
	var all []string
	for _, w := range words {
		all = append(all, quote(strings.ReplaceAll(w.name, ":", `\:`)+":"+w.help))
	}
	return strings.Join(all, " ")
}

// writePath writes the loop, the same in bash and zsh, that finds the command
// typed so far. Flags, their values and arguments are passed over.
func writePath(w io.Writer, typed, loop string, commands []completion, afterDashes string) {
	fmt.Fprintf(w, "\tfor ((%s)); do\n\t\tcase $found:%s in\n", loop, typed)
	for _, c := range commands {
		path := strings.Join(c.path, " ")
		if c.runs {
			fmt.Fprintf(w, "\t\t%s:--)\n%s ;;\n", quote(path), afterDashes)
		}
	}
	for _, c := range commands[1:] {
		above := strings.Join(c.path[:len(c.path)-1], " ")
		fmt.Fprintf(w, "\t\t%s:%s) found=%s ;;\n", quote(above), c.path[len(c.path)-1], quote(strings.Join(c.path, " ")))
	}
	fmt.Fprint(w, "\t\tesac\n\tdone\n")
}

func writeFish(w io.Writer, commands []completion) {
	fmt.Fprint(w, "# fish completion for tenure\ncomplete -c tenure -f\n")
	for _, c := range commands {
		condition := "__fish_use_subcommand"
		if len(c.path) > 0 {
			condition = "__fish_seen_subcommand_from " + c.path[0]
			for _, p := range c.path[1:] {
				condition += "; and __fish_seen_subcommand_from " + p
			}
			if below := c.wordNames(); below != "" && len(c.flags) == 1 { // nothing but --help: a command of commands
				condition += "; and not __fish_seen_subcommand_from " + below
			}
		}
		for _, word := range c.words {
			fmt.Fprintf(w, "complete -c tenure -n %s -a %s -d %s\n", fishQuote(condition), word.name, fishQuote(word.help))
		}
		for _, f := range c.flags {
			fmt.Fprintf(w, "complete -c tenure -n %s -l %s -d %s", fishQuote(condition), strings.TrimPrefix(f.name, "--"), fishQuote(f.help))
			switch {
			case f.file:
				fmt.Fprint(w, " -r -F")
			case len(f.values) > 0:
				fmt.Fprintf(w, " -x -a %s", fishQuote(strings.Join(f.values, " ")))
			case f.takesValue:
				fmt.Fprint(w, " -x")
			}
			fmt.Fprintln(w)
		}
		if c.runs {
			fmt.Fprintf(w, "complete -c tenure -n %s -a '(__fish_complete_subcommand --fcs-skip=3)'\n", fishQuote(condition+"; and contains -- -- (commandline -opc)"))
		}
	}
}

// quote quotes for bash and zsh.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func fishQuote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
