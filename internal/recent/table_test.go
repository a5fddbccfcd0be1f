package recent

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Lists stay short, so that finding a value takes as long in a large Map as in a small one.
func TestMap_TableGrowsWithItsEntries(t *testing.T) {
	t.Parallel()
	m := New[int, int](64 << 20)
	for i := range 10_000 {
		m.Add(i, i, 8, func(int) bool { return true })
	}
	all := m.parts.Load()
	for i := range all {
		assert.GreaterOrEqual(t, len(*all[i].table.Load()), all[i].count)
	}
}
