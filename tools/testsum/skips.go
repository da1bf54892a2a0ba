package main

import (
	"errors"
	"fmt"
	"strings"
)

// testID names one test: its package and its full name, subtests included.
type testID struct{ pkg, test string }

func (id testID) String() string { return id.pkg + " " + id.test }

// skipList has the reason for each test that may be skipped.
type skipList map[testID]string

// parseSkips reads a list of allowed skips and returns all its faults at once.
func parseSkips(file, text string) (skipList, error) {
	list := skipList{}
	var faults []error
	for i, line := range strings.Split(text, "\n") {
		entry, reason, _ := strings.Cut(line, "#")
		fields := strings.Fields(entry)
		if len(fields) == 0 {
			continue
		}
		id := testID{fields[0], strings.Join(fields[1:], " ")}
		reason = strings.TrimSpace(reason)
		switch {
		case len(fields) != 2:
			faults = append(faults, fmt.Errorf("%s:%d: %q: an entry is PACKAGE TEST  # reason", file, i+1, line))
		case reason == "":
			faults = append(faults, fmt.Errorf("%s:%d: %s: has no reason after a #", file, i+1, id))
		case list[id] != "":
			faults = append(faults, fmt.Errorf("%s:%d: %s: is listed twice", file, i+1, id))
		default:
			list[id] = reason
		}
	}
	return list, errors.Join(faults...)
}
