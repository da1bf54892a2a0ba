package postgres

import (
	"os"
	"testing"

	"github.com/tenure-go/tenure/tests/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }
