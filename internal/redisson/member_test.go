package redisson_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

func TestIdentitiesAreAllDifferent(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 3 {
		ids := redisson.NewIdentities(redisson.NewestRules.Layout)
		for range 1000 {
			seen[string(ids.Next(nil, 1))] = true
		}
	}
	assert.Len(t, seen, 3000)
}
