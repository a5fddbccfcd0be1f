package rratelimiter

import (
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// Limiters of keys that are made for each request, under prefixes without end, take no
// memory without end.
func TestPrefixesWithoutEnd(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	c := New(rdb)
	for i := range 3 * maxPrefixes {
		c.Keyed(fmt.Sprintf("%d:", i), PerMinute(5)).Limiter("ann")
	}
	assert.Len(t, c.prefixes.rates, maxPrefixes)
	assert.Empty(t, c.prefixes.told)
	assert.NoError(t, c.Close(t.Context()))
}
