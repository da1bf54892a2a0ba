package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// versionCmd is `tenure version`.
type versionCmd struct {
	jsonFlag
}

// Run prints what this binary was built from.
func (c *versionCmd) Run(a *app) error {
	v := version()
	if c.JSON {
		return a.printJSON(v)
	}
	fmt.Fprintf(a.stdout, "tenure %s", v.Version)
	if v.Commit != "" {
		fmt.Fprintf(a.stdout, " (commit %s%s)", v.Commit, map[bool]string{true: ", changed"}[v.Changed])
	}
	_, err := fmt.Fprintf(a.stdout, ", %s %s/%s\n", v.Go, v.OS, v.Arch)
	return err
}

type versionJSON struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Changed bool   `json:"changed,omitempty"` // the source differs from the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func version() versionJSON {
	v := versionJSON{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Changed = s.Value == "true"
		}
	}
	return v
}
