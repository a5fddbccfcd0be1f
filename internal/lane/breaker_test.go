package lane_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// shards is a client of several servers.
type shards struct {
	script.Redis

	of map[string]*redis.Client // by key
}

func (s *shards) GetShardClientForKey(key string) (*redis.Client, error) { return s.of[key], nil }

// A decision that goes well asks for the breaker, which takes no lock.
func TestLanes_BreakerIsFoundWithoutLock(t *testing.T) {
	t.Parallel()
	a, b := &redis.Client{}, &redis.Client{}
	s := &shards{of: map[string]*redis.Client{"one": a, "two": b}}
	lanes := lane.New(script.NewConn(s, 0), nil)
	one, two := lanes.Breaker(t.Context(), "one"), lanes.Breaker(t.Context(), "two")
	assert.NotSame(t, one, two, "each master has its own")
	locked := lanes.Lock(t.Context(), "two")
	defer locked.Unlock()
	assert.NotNil(t, lanes.Breaker(t.Context(), "unknown"))
	s.of["one"] = b
	assert.Same(t, two, lanes.Breaker(t.Context(), "one"), "the key has moved")
}
