package process

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenure-go/tenure/store/faultstore"
)

// A process that is started with these plays a part instead of running tests.
const (
	roleEnv = "TENURE_TEST_ROLE"
	planEnv = "TENURE_TEST_PLAN"
)

// roles are the parts that this binary can play. A role returns the exit code.
var roles = map[string]func(plan) int{
	"candidate": candidateRole,
	"many":      manyRole,
	"stuck":     stuckRole,
	"churn":     churnRole,
}

func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv(roleEnv)]
	if !ok {
		moreAtOnce()
		os.Exit(m.Run())
	}
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(planEnv)), &p); err != nil {
		fmt.Fprintln(os.Stderr, "cannot read the plan:", err)
		os.Exit(1)
	}
	os.Exit(role(p))
}

// moreAtOnce lets more tests run at once than there are processors, unless the
// command line says how many: they wait most of the time.
func moreAtOnce() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return
	}
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
}

// plan tells a process what to do.
type plan struct {
	File     string // the lease file
	Rollback bool   // make it with a rollback journal
	Election string
	TTL      time.Duration
	Margin   time.Duration // 0: the default
	Rejoin   time.Duration // 0: the default

	Journal string        // where the job writes down what it does
	Ledger  string        // the resource that it writes to; empty: none
	Linger  time.Duration // how long the job goes on after it was told to stop
	Deaf    bool          // the job heeds nothing, and its process ends when the time is up
	Ask     bool          // ask the term all the time whether it is valid
	N       int           // how many elections, or rounds
}

// event is something that a process has to tell.
type event struct {
	At      time.Duration `json:"at"` // by mono, in the process that tells it
	Kind    string        `json:"kind"`
	PID     int           `json:"pid,omitempty"`
	Name    string        `json:"name,omitempty"`
	Token   int64         `json:"token,omitempty"`
	Renewal int64         `json:"renewal,omitempty"`
	Reason  string        `json:"reason,omitempty"`
	Error   string        `json:"error,omitempty"`
	Free    bool          `json:"free,omitempty"`
	Code    int           `json:"code,omitempty"`
	// Answers are what late requests came to, by request.
	Answers map[string]string `json:"answers,omitempty"`
	Calls   []storeCall       `json:"calls,omitempty"`
	// Left is what a process still has that it had not at its beginning.
	Left []string `json:"left,omitempty"`

	from *proc
}

// storeCall is a call of the store, as its caller saw it.
type storeCall struct {
	Op    faultstore.Op `json:"op"`
	Began time.Duration `json:"began"`
	Done  bool          `json:"done"`
	Error string        `json:"error,omitempty"`
}

var telling struct {
	sync.Mutex
	*json.Encoder
}

// tell tells an event. Its time, unless it has one, is now.
func tell(e event) {
	if e.At == 0 {
		e.At = mono()
	}
	telling.Lock()
	defer telling.Unlock()
	if telling.Encoder == nil {
		telling.Encoder = json.NewEncoder(os.Stdout)
	}
	_ = telling.Encode(e) // the test that listened is gone, and this process with it
}

// mono is the host's monotonic clock, also in a time namespace of its own.
func mono() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano()) - monoOffset()
}

// monoOffset is what this process's time namespace adds to the monotonic clock.
var monoOffset = sync.OnceValue(func() time.Duration {
	text, _ := os.ReadFile("/proc/self/timens_offsets") // missing: the kernel has no time namespaces
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "monotonic" {
			continue
		}
		sec, err1 := strconv.ParseInt(f[1], 10, 64)
		nsec, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 != nil || err2 != nil {
			panic("unreadable time namespace: " + line)
		}
		return time.Duration(sec)*time.Second + time.Duration(nsec)
	}
	return 0
})
