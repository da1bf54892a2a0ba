package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == guard.Arg { // the command's own second process
		guard.Guardian(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == demoWriter { // the program of the demo, which starts this file under its own name
		main()
	}
	testscript.Main(m, map[string]func(){"tenure": main})
}

// patience is how long a script waits for something that should happen at once.
const patience = 3 * time.Minute

// TestScripts runs the command as a user would, a script for each subject. Each
// has a store of its own in $TENURE_STORE, and beside the usual commands:
//
//	exits CODE COMMAND…    run it; the exit code must be CODE
//	until FILE REGEXP      wait until the file has a match
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("DB", e.WorkDir+"/leases.db")
			e.Setenv("TENURE_STORE", "sqlite:"+e.WorkDir+"/leases.db")
			e.Setenv("XDG_STATE_HOME", e.WorkDir+"/state")
			e.Setenv("LONG", strings.Repeat("n", 201))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"until": until,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: until FILE REGEXP")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var data []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		data, err = os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && pattern.Match(data) {
			return
		}
	}
	ts.Fatalf("no match of %q in %s after %v: %v\n%s", args[1], args[0], patience, err, data)
}
