//go:build !linux

package tenure

import "time"

// boottime is not sampled here: the wall clock tells of a suspend.
func boottime() time.Duration { return 0 }
