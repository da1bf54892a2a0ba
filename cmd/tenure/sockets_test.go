package main

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Many that start and end at once, each looking for what was left behind, leave
// one another's directories alone, and those that are not theirs.
func TestSocketDirs(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", base)
	left := filepath.Join(base, "tenure-left")
	kept := filepath.Join(base, "tenure-kept")
	fresh := filepath.Join(base, "tenure-fresh") // no lock yet
	for _, path := range []string{left, kept, fresh} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(left, "control"), filepath.Join(left, lockName), filepath.Join(kept, lockName), filepath.Join(kept, "precious")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				d, err := newSocketDir(len(base))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(filepath.Join(d.path, lockName)); err != nil || filepath.Dir(d.path) != base {
					t.Errorf("%s was taken for left behind: %v", d.path, err)
				}
				d.remove()
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 2 || names[0] != "tenure-fresh" || names[1] != "tenure-kept" {
		t.Errorf("there are %q at the end, want tenure-fresh and tenure-kept", names)
	}
	if _, err := os.Stat(filepath.Join(kept, "precious")); err != nil {
		t.Error(err)
	}
}
