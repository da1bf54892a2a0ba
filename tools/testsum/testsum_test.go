package main

import (
	"strings"
	"testing"
)

// What go test -json prints for one passing and one skipped test.
const run = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.5}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"no server\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0.7}
`

func TestReport(t *testing.T) {
	const skipB = "p TestB  # there is no server on a laptop\n"
	for _, c := range []struct {
		name, run, skips string
		ok               bool
		want             []string // parts of the output
		wantNot          string
		count            string // the last line
	}{
		{
			name: "an allowed skip is shown with its reason",
			run:  run, skips: skipB, ok: true,
			want:    []string{"ok    p (2 tests, 0.7s)", "skip allowed: p TestB: there is no server on a laptop", "0.50s  p TestA"},
			wantNot: "quiet",
			count:   "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "any other skip fails the run", run: run,
			want:  []string{"FAIL  skipped: p TestB", "no server"},
			count: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "an allowed skip whose test is gone fails the run",
			run:  run, skips: skipB + "p TestGone  # was here once\n",
			want:  []string{"FAIL  an allowed skip names a test that is gone: p TestGone"},
			count: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "an allowed skip of a package that was not run stays",
			run:  run, skips: skipB + "q TestGone  # needs a kernel that we have not\n", ok: true,
			count: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "a failure shows its output",
			run: `{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA/x","Elapsed":0.1}
{"Action":"fail","Package":"p","Elapsed":0.2}
`,
			want:  []string{"FAIL  p TestA/x (0.10s)\ngot 1, want 2\n", "FAIL  failed: p TestA/x"},
			count: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a test that dies with its package counts as failed",
			run: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: oh\n"}
{"Action":"output","Package":"p","Output":"exit status 2\n"}
{"Action":"fail","Package":"p","Elapsed":0.2}
`,
			want:  []string{"FAIL  p TestA (never ended)\npanic: oh\n", "exit status 2"},
			count: "0 passed, 1 failed, 0 skipped",
		},
		{
			name:  "a package that fails without a failing test fails the run",
			run:   run + `{"Action":"output","Package":"q","Output":"TestMain: no\n"}` + "\n" + `{"Action":"fail","Package":"q","Elapsed":0.2}` + "\n",
			skips: skipB,
			want:  []string{"FAIL  failed: q", "TestMain: no"},
			count: "1 passed, 0 failed, 1 skipped",
		},
		{
			name:  "a run that was cut off fails",
			run:   strings.TrimSuffix(run, `{"Action":"pass","Package":"p","Elapsed":0.7}`+"\n"),
			skips: skipB,
			want:  []string{"FAIL  failed: p never ended"},
			count: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "a build that fails is shown and fails the run",
			run: run + `{"ImportPath":"q","Action":"build-output","Output":"q.go:1: undefined: x\n"}
{"ImportPath":"q","Action":"build-fail"}
`,
			skips: skipB,
			want:  []string{"q.go:1: undefined: x", "FAIL  1 builds failed"},
			count: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "a run without a test fails", run: `{"Action":"skip","Package":"p","Elapsed":0}` + "\n",
			want:  []string{"-     p (no test files)", "FAIL  no test ran"},
			count: "0 passed, 0 failed, 0 skipped",
		},
		{
			name: "other lines pass through", run: "go: downloading x\n" + run, skips: skipB, ok: true,
			want:  []string{"go: downloading x\n"},
			count: "1 passed, 0 failed, 1 skipped",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			allowed, err := parseSkips("skips", c.skips)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			s := newSummary(&out)
			if err := s.read(strings.NewReader(c.run)); err != nil {
				t.Fatal(err)
			}
			if ok := s.report(allowed, 10); ok != c.ok {
				t.Errorf("ok is %v, want %v", ok, c.ok)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q", want)
				}
			}
			if c.wantNot != "" && strings.Contains(out.String(), c.wantNot) {
				t.Errorf("output has %q", c.wantNot)
			}
			if !strings.HasSuffix(out.String(), "\n"+c.count+"\n") {
				t.Errorf("last line is not %q", c.count)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func TestParseSkips(t *testing.T) {
	list, err := parseSkips("f", "# a comment\n\np TestA/b  # because\n")
	if err != nil || len(list) != 1 || list[testID{"p", "TestA/b"}] != "because" {
		t.Errorf("got %v, %v", list, err)
	}
	_, err = parseSkips("f", "p TestA\np TestB #\np # why\np TestC # x\np TestC # y\n")
	if err == nil {
		t.Fatal("four bad lines were taken")
	}
	for _, want := range []string{"f:1: p TestA: has no reason", "f:2: p TestB: has no reason", `f:3: "p # why": an entry is`, "f:5: p TestC: is listed twice"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

func TestReadRefusesBrokenLine(t *testing.T) {
	if err := newSummary(new(strings.Builder)).read(strings.NewReader("{\"Action\":\n")); err == nil {
		t.Error("a broken line was taken")
	}
}
