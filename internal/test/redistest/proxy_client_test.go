package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A fair client gives up what an action keeps back, and nothing else.
func TestFairClient(t *testing.T) {
	t.Parallel()
	p := redistest.StartProxy(t, redistest.Shared(t).Addr())
	const readTimeout = 50 * time.Millisecond
	rdb := p.FairClient(t, &redis.Options{MaxRetries: -1, ReadTimeout: readTimeout})
	require.NoError(t, rdb.Ping(t.Context()).Err())

	open := make(chan struct{})
	p.OnCommand(redistest.Nth(1, "ping", redistest.Pass.Until(open)))
	time.AfterFunc(5*readTimeout, func() { close(open) })
	assert.NoError(t, rdb.Ping(t.Context()).Err(), "the test takes its time")

	held := make(chan struct{})
	for what, action := range map[string]redistest.Action{
		"held": redistest.Pass.When(held), "late": redistest.Late.When(held), "swallowed": redistest.Swallow,
	} {
		p.OnCommand(redistest.Nth(1, "ping", action))
		assert.ErrorContains(t, rdb.Ping(t.Context()).Err(), "i/o timeout", what)
	}
	close(held)
}
