package postgres

import (
	"os"
	"testing"

	"github.com/tenure-go/tenure/tests/servers"
)

// A process that is started with this in its environment plays a part instead of
// running tests. The parts are in roles; each returns the exit code.
const roleEnv = "TENURE_TEST_ROLE"

var roles = map[string]func() int{
	"fenced-leader": fencedLeaderRole,
}

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv(roleEnv)]; ok {
		os.Exit(role())
	}
	os.Exit(servers.Run(m))
}
