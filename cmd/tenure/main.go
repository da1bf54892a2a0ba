// Command tenure runs any program on exactly one of several contenders: only
// while it leads, with a fencing token, and with nothing of it left when the
// lease can be another's. `tenure --help` says what there is.
package main

import (
	"os"

	"github.com/tenure-go/tenure/cmd/tenure/internal/guard"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == guard.Arg {
		guard.Guardian(os.Args[2:])
	}
	os.Exit(newApp().main(os.Args[1:]))
}
