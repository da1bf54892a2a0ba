package draw

import (
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tenure-go/tenure/store"
)

// Two copies whose sources are all equal but for one draw different ids,
// whichever it is. The sources are walked by reflection, so that one which is
// added and then forgotten in the mixing fails here.
func TestOneSourceIsEnough(t *testing.T) {
	frozen := read("nonce")
	if again := mix(frozen); again != mix(frozen) {
		t.Fatal("equal sources give different ids: something is mixed in that this test cannot freeze")
	}
	ids := map[store.Attempt]string{mix(frozen): "nothing"}
	differ := func(what string, s sources) {
		id := mix(s)
		if before, ok := ids[id]; ok {
			t.Errorf("a difference in %s gives the id of a difference in %s", what, before)
		}
		ids[id] = what
	}
	for i := range reflect.TypeFor[sources]().NumField() {
		name := reflect.TypeFor[sources]().Field(i).Name
		s := frozen
		switch v := reflect.ValueOf(&s).Elem().Field(i); v.Kind() {
		case reflect.Array:
			for j := range v.Len() { // every element counts
				s = frozen
				e := reflect.ValueOf(&s).Elem().Field(i).Index(j)
				e.SetUint(e.Uint() ^ 1)
				differ(name, s)
			}
		case reflect.Int64:
			v.SetInt(v.Int() + 1) // a nanosecond
			differ(name, s)
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
			differ(name, s)
		case reflect.String:
			v.SetString(v.String() + "x")
			differ(name, s)
		default:
			t.Errorf("%s: this test does not know how to change it", name)
		}
	}
}

func TestEverySourceIsRead(t *testing.T) {
	a, b := read("one"), read("two")
	if a.Kernel == b.Kernel || a.Kernel == [32]byte{} {
		t.Error("the kernel's randomness was not read")
	}
	if a.Wall == 0 || b.Wall < a.Wall {
		t.Errorf("the wall clock was not read: %d, %d", a.Wall, b.Wall)
	}
	if a.Monotonic == 0 || b.Monotonic < a.Monotonic {
		t.Errorf("the monotonic clock was not read: %d, %d", a.Monotonic, b.Monotonic)
	}
	if linux := runtime.GOOS == "linux"; linux != (a.Boot != 0) || b.Boot < a.Boot {
		t.Errorf("boot time on %s: %d, %d", runtime.GOOS, a.Boot, b.Boot)
	}
	if b.Count != a.Count+1 {
		t.Errorf("the second draw is number %d, the first was %d", b.Count, a.Count)
	}
	if a.Nonce != "one" || b.Nonce != "two" {
		t.Errorf("the nonces are %q and %q", a.Nonce, b.Nonce)
	}
}

// The processor is asked exactly where it can answer, and gives no number twice.
func TestProcessor(t *testing.T) {
	there := processor() != 0
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil && runtime.GOARCH == "amd64" {
		if listed := slices.Contains(strings.Fields(string(info)), "rdrand"); listed != there {
			t.Errorf("asked: %v, and the kernel lists RDRAND: %v", there, listed)
		}
	}
	seen := map[uint64]bool{}
	for range 1000 {
		v := processor()
		if (v != 0) != there {
			t.Fatalf("got %#x, after other numbers or none: %v", v, there)
		}
		if there && seen[v] {
			t.Fatalf("%#x was given twice", v)
		}
		seen[v] = true
	}
}

func TestAttempt(t *testing.T) {
	const drawers, draws = 8, 2000
	ids := make([][]store.Attempt, drawers)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			for range draws {
				ids[i] = append(ids[i], Attempt(""))
			}
		})
	}
	wg.Wait()
	seen := map[store.Attempt]bool{}
	for _, some := range ids {
		for _, id := range some {
			if err := store.CheckAttempt(id); err != nil {
				t.Fatal(err)
			}
			if len(id) != 32 || seen[id] {
				t.Fatalf("%q has %d digits, and was drawn before: %v", id, len(id), seen[id])
			}
			seen[id] = true
		}
	}
}
