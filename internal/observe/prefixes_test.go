package observe

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Limiters of keys that are made for each request, under prefixes without end, take no memory without end.
func TestPrefixes_AreBounded(t *testing.T) {
	t.Parallel()
	var p Prefixes
	for i := range 3 * maxPrefixes {
		p.Note(nil, fmt.Sprintf("%d:", i), limit.Rate{Permits: int64(i)})
	}
	assert.Len(t, p.rates, maxPrefixes)
	assert.Empty(t, p.told)
}
