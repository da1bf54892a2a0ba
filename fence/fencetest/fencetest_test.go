package fencetest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tenure-go/tenure/fence"
	"github.com/tenure-go/tenure/fence/fencetest"
)

// memory is [fence.Memory] with lists to write to.
type memory struct {
	fence  fence.Memory
	mu     sync.Mutex
	values map[string][]string
}

func (m *memory) Enter(ctx context.Context, s fence.Stamp) error { return m.fence.Enter(ctx, s) }

func (m *memory) Write(_ context.Context, s fence.Stamp, value string) (bool, error) {
	return m.fence.Do(s, func() error { m.add(s.Resource, value); return nil })
}

func (m *memory) add(resource, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.values == nil {
		m.values = map[string][]string{}
	}
	m.values[resource] = append(m.values[resource], value)
}

func (m *memory) Written(_ context.Context, resource string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.values[resource]), nil
}

func (m *memory) Last(ctx context.Context, resource, lane string) (fence.LaneMark, error) {
	return m.fence.Last(ctx, resource, lane)
}

func TestMemory(t *testing.T) {
	var m memory
	h := fencetest.Harness{
		Open: func(context.Context) (fencetest.Fence, func() error, error) { return &m, nil, nil },
		Transaction: func(_ context.Context, _ fencetest.Fence, s fence.Stamp, value string, inside func() error) error {
			_, err := m.fence.Do(s, func() error {
				if err := inside(); err != nil {
					return err
				}
				m.add(s.Resource, value)
				return nil
			})
			return err
		},
	}
	for _, c := range fencetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := c.Run(t.Context(), h); err != nil {
				t.Fatalf("%v\nwhy this matters: %s", err, c.Why)
			}
		})
	}
}

func TestCasesAreNamedOnceAndSayWhy(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range fencetest.Cases() {
		if seen[c.Name] || strings.Count(c.Name, "/") != 1 {
			t.Errorf("%q: the name must be group/what, and used once", c.Name)
		}
		seen[c.Name] = true
		if !strings.HasSuffix(c.Why, ".") || len(c.Why) < 40 {
			t.Errorf("%s: why is no sentence: %q", c.Name, c.Why)
		}
	}
}

func TestHarnessWithoutAbilities(t *testing.T) {
	if err := fencetest.Cases()[0].Run(t.Context(), fencetest.Harness{}); err == nil || !strings.Contains(err.Error(), "no Open") {
		t.Errorf("a harness without Open: got %v", err)
	}
	var skipped []string
	for _, c := range fencetest.Cases() {
		var m memory
		closed := 0
		err := c.Run(t.Context(), fencetest.Harness{Open: func(context.Context) (fencetest.Fence, func() error, error) {
			closed++
			return &m, func() error { closed--; return nil }, nil
		}})
		var skip *fencetest.SkipError
		if errors.As(err, &skip) {
			skipped = append(skipped, c.Name)
		} else if err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if closed != 0 {
			t.Errorf("%s: %d fences were left open", c.Name, closed)
		}
	}
	if want := []string{"enter/rolled-back", "enter/open-write", "write/rolled-back"}; !slices.Equal(skipped, want) {
		t.Errorf("without Transaction %q were skipped, want %q", skipped, want)
	}
}

func TestCloseErrorIsReported(t *testing.T) {
	var m memory
	stuck := errors.New("connection is stuck")
	err := fencetest.Cases()[0].Run(t.Context(), fencetest.Harness{Open: func(context.Context) (fencetest.Fence, func() error, error) {
		return &m, func() error { return stuck }, nil
	}})
	if !errors.Is(err, stuck) {
		t.Errorf("got %v", err)
	}
}

// Without a fault the faulty fence passes, so what the cases find below is the
// fault.
func TestFaultyWithoutFault(t *testing.T) {
	for _, c := range fencetest.Cases() {
		if err := c.Run(t.Context(), newFaulty(fault{}).harness()); err != nil {
			t.Error(err)
		}
	}
}

func TestFaultsAreFound(t *testing.T) {
	cases := map[string]fencetest.Case{}
	for _, c := range fencetest.Cases() {
		cases[c.Name] = c
	}
	for _, k := range knownFaults() {
		t.Run(k.name, func(t *testing.T) {
			c, ok := cases[k.found]
			if !ok {
				t.Fatalf("there is no case %s", k.found)
			}
			err := c.Run(t.Context(), newFaulty(k.fault).harness())
			if err == nil {
				t.Errorf("%s did not find it", k.found)
			} else if !strings.HasPrefix(err.Error(), k.found+": ") {
				t.Errorf("the error does not begin with the case's name: %v", err)
			}
		})
	}
}

func TestEveryCaseFindsAFault(t *testing.T) {
	found := map[string]bool{}
	for _, k := range knownFaults() {
		found[k.found] = true
	}
	for _, c := range fencetest.Cases() {
		if !found[c.Name] {
			t.Errorf("%s finds no fault that is known", c.Name)
		}
	}
}
