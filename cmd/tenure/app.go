package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
)

// app is what every command works with.
type app struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	json           bool // --json was given: what is said on standard error is JSON, too
	model          *kong.Application
	args           []string // as given
}

func newApp() *app {
	return &app{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
}

// grammar is the command line, a command each.
type grammar struct {
	Run        runCmd        `cmd:"" help:"Run a command only while this process leads an election."`
	Status     statusCmd     `cmd:"" help:"Show who leads."`
	Watch      watchCmd      `cmd:"" help:"Follow who leads, a line at each change."`
	History    historyCmd    `cmd:"" help:"Show who led when."`
	Evict      evictCmd      `cmd:"" help:"Make a leader go, as an operator."`
	Check      checkCmd      `cmd:"" help:"Inside a job: am I still leader?"`
	Progress   progressCmd   `cmd:"" help:"Inside a job: tell the watchdog that it goes on."`
	Resign     resignCmd     `cmd:"" help:"Inside a job: give the leadership up."`
	Init       initCmd       `cmd:"" help:"Set a store up."`
	Store      storeCmd      `cmd:"" help:"Look at a store itself."`
	Demo       demoCmd       `cmd:"" help:"See leaders killed and frozen, and what a fence is for (in some 7 s)."`
	DemoWriter demoWriterCmd `cmd:"" hidden:"" help:"The job of the demo."`
	Completion completionCmd `cmd:"" help:"Print a script that completes this command in a shell."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

const description = `Makes one process do what must not be done twice.

Exit codes: run passes the command's own on (128+n for a signal). 64 usage, 69 the store cannot be asked,
75 held by another, 76 leadership lost, 77 permission denied.`

// exited is how kong's help leaves the parser.
type exited struct{ code int }

// main runs the command line and returns the exit code.
func (a *app) main(args []string) (code int) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exited:
			code = p.code
		default:
			panic(p)
		}
	}()
	var g grammar
	parser, err := kong.New(&g,
		kong.Name("tenure"),
		kong.Description(description),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(code int) { panic(exited{code}) }),
		kong.ConfigureHelp(kong.HelpOptions{WrapUpperBound: 100, NoAppDescFormat: true, NoExpandSubcommands: true}),
		kong.TypeMapper(durationType, kong.MapperFunc(decodeDuration)),
		kong.KindMapper(reflect.String, kong.MapperFunc(decodeString)),
		kong.Help(printHelp),
		kong.Bind(a),
	)
	if err != nil {
		panic(err) // the grammar above is wrong, whatever the arguments
	}
	a.model, a.args = parser.Model, args
	if len(args) == 0 {
		args = []string{"--help"}
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		a.json = asksForJSON(args)
		return a.finish(parseError(err, args))
	}
	a.json = jsonFlagOf(ctx)
	out := &outlet{w: a.stdout}
	a.stdout = out
	ctx.BindTo(context.Background(), (*context.Context)(nil))
	err = ctx.Run()
	if lost := out.failed(); err == nil && lost != nil {
		err = noOutput(lost)
	}
	return a.finish(err)
}

// printHelp is kong's help with the usage lines of [usageOf].
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	var text bytes.Buffer
	out := ctx.Stdout
	ctx.Stdout = &text
	err := kong.DefaultHelpPrinter(options, ctx)
	ctx.Stdout = out
	if err != nil {
		return err
	}
	shown := text.String()
	if n := ctx.Selected(); n != nil {
		shown = strings.Replace(shown, "tenure "+n.Summary(), usageOf(n), 1)
	}
	_, err = io.WriteString(out, shown)
	return err
}

// usageOf is how a command is called.
func usageOf(n *kong.Node) string {
	if n.Path() == "run" { // kong knows nothing of the --, nor that flags after the command are the command's
		return runUsage
	}
	return "tenure " + n.Summary()
}

// parseError is what is wrong with the command line, what is allowed, and where
// that is explained.
func parseError(err error, args []string) error {
	var (
		parse   *kong.ParseError
		written *fs.PathError
	)
	if errors.As(err, &written) { // by the help
		return noOutput(err)
	}
	if !errors.As(err, &parse) || parse.Context == nil || parse.Context.Selected() == nil {
		wrong := err.Error()
		if strings.HasPrefix(wrong, "unknown flag") {
			wrong += ": flags come after the subcommand"
		}
		return usage("%s (see tenure --help)", wrong)
	}
	n := parse.Context.Selected()
	wrong, allowed := err.Error(), ""
	for _, begin := range []string{"expected \"", "missing flags: ", "unexpected argument "} {
		if strings.HasPrefix(wrong, begin) {
			allowed = ": allowed is " + usageOf(n)
		}
	}
	if missing, ok := strings.CutPrefix(wrong, "expected "); ok && allowed != "" {
		wrong = "there is no " + strings.Trim(strings.ReplaceAll(missing, " ...", ""), `"`)
		if n.Path() == "run" && slices.Contains(args, "--") { // what follows it was taken for the NAME
			wrong = noName
		}
	}
	return usage("%s%s (see tenure %s --help)", wrong, allowed, firstWords(parse.Context.Command()))
}

// jsonFlagOf reports whether a command line that was understood has --json.
func jsonFlagOf(ctx *kong.Context) bool {
	for _, f := range ctx.Flags() {
		if f.Name == "json" {
			yes, _ := ctx.FlagValue(f).(bool)
			return yes
		}
	}
	return false
}

// asksForJSON reports whether one that was not understood seems to have it.
func asksForJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--json":
			return true
		case "--":
			return false
		}
	}
	return false
}

// outlet is standard output. It remembers that something was lost, which callers
// of [fmt.Fprintln] do not look at.
type outlet struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (o *outlet) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.w.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

func (o *outlet) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func noOutput(err error) error { return exitf(exitInternal, "standard output takes nothing: %v", err) }

// firstWords are the command's own words, without those of its arguments.
func firstWords(command string) string {
	var words []string
	for _, w := range strings.Fields(command) {
		if strings.HasPrefix(w, "<") {
			break
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// finish prints why a command failed and returns its exit code.
func (a *app) finish(err error) int {
	if err == nil {
		return 0
	}
	code, text := exitCode(err), tidy(err.Error())
	var command *commandError // it has said itself why
	switch {
	case a.json:
		newLog(a.stderr, true, slog.LevelInfo).Error("ended", "error", text, "code", code)
	case text != "" && !errors.As(err, &command):
		fmt.Fprintf(a.stderr, "tenure: %s\n", text)
	}
	return code
}

// tidy removes the package's name from errors that are printed under it.
func tidy(text string) string {
	return strings.NewReplacer(": tenure: ", ": ", "; tenure: ", "; ").Replace(strings.TrimPrefix(text, "tenure: "))
}

// requestTimeout bounds a command's single request to a store.
const requestTimeout = 5 * time.Second
