package redisson_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// resets leaves the configuration and its time to live.
func resets(p *play) {
	name := p.l.Name()
	before, lives := limitertest.ReadState(p, p.rdb, name)[name], limitertest.TTLs(p, p.rdb, name)[name]
	require.NoError(p, p.l.Reset(p.Context()))
	assert.Equal(p, before, limitertest.ReadState(p, p.rdb, name)[name])
	assert.Equal(p, lives, limitertest.TTLs(p, p.rdb, name)[name])
}

// Reset leaves what Redisson takes for a limiter of which nothing is in use: no value and
// no set.
func TestReset(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for _, version := range []string{newest, "3.16.8", windowed} {
		for kind, then := range map[rratelimiter.RateType]step{
			rratelimiter.Overall:   there(1),
			rratelimiter.PerClient: other(free(3)), // what others keep stays
		} {
			cfg := keepAlive(5, minute, hour)
			cfg.Type = kind
			all[fmt.Sprint(version, " ", kind)] = scenario{cfg: cfg, version: version, steps: []step{
				take(3), other(take(2)), wait(second), resets, then, take(5), refuse(1), func(p *play) {
					d, err := p.l.Peek(p.Context(), 1)
					require.NoError(p, err)
					assert.Equal(p, minute, d.RetryAfter)
				},
			}}
		}
	}
	perform(t, all)
}

func TestResetWithoutARate(t *testing.T) {
	t.Parallel()
	perform(t, map[string]scenario{
		"none": {everywhere: true, steps: []step{
			fails(rratelimiter.ErrNotInitialized, func(p *play) error { return p.l.Reset(p.Context()) }),
		}},
		"by default": {cfg: every(3, hour), byDefault: true, everywhere: true, steps: []step{
			does("Reset"), take(3), loseConfig, does("Reset"), take(3),
		}},
	})
}

func TestResetWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, every(3, hour))
		limitertest.MustAcquire(t, s.RateLimiter, 3)
		c := s.StartAcquire(t.Context(), 2)
		s.Until(time.Second)
		require.NoError(t, s.Reset(t.Context()))
		synctest.Wait()
		assert.Equal(t, "true at 1s", c.Outcome())
		assert.EqualValues(t, 1, limitertest.Available(t, s.RateLimiter))
	})
}

func TestResetEndsLeases(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb, limitertest.Ahead(0), rratelimiter.WithDefault(every(1000, hour)))
		for range 200 {
			limitertest.MustAcquire(t, l, 1)
		}
		require.NoError(t, l.Reset(t.Context()))
		assert.EqualValues(t, 1000, limitertest.Available(t, l))
		d, err := l.Take(t.Context(), 1000)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		limitertest.MustRefuse(t, l, 1)
	})
}

func TestResetIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
	limitertest.MustAcquire(t, w.RateLimiter, 6)
	w.On(lua.Reset, redistest.DropAnswer)
	require.ErrorIs(t, w.Reset(t.Context()), rratelimiter.ErrUnknownOutcome)
	assert.Equal(t, 1, w.Sent(lua.Reset))
	w.CheckHeld(t, 0, "reset")
	w.On(lua.Reset, redistest.Cut)
	require.ErrorIs(t, w.Reset(t.Context()), rratelimiter.ErrUnknownOutcome)
}
