package faults_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// loseTwo loses the first two answers of calls for permits. Before the second is lost it calls meanwhile.
func loseTwo(t *testing.T, rdb redistest.Client, meanwhile func()) {
	t.Helper()
	for _, s := range []*lua.Script{lua.Acquire, lua.AcquireAll} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	lost := 0
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		err := next()
		if lost == 2 || !redistest.Calls(cmds[0], lua.Acquire.SHA) && !redistest.Calls(cmds[0], lua.AcquireAll.SHA) {
			return err
		}
		if lost++; lost == 2 {
			meanwhile()
		}
		return redistest.Fail(cmds, errors.New("the line is dead"))
	}))
}

// takeSix takes 6 permits of each limiter, and what has run out goes.
func takeSix(t *testing.T, limiters ...*rratelimiter.RateLimiter) {
	t.Helper()
	for _, l := range limiters {
		d, err := l.Take(t.Context(), 6)
		require.NoError(t, err)
		require.True(t, d.Granted)
	}
}

// Two attempts were granted 4 permits, and all of them came back before the third: it is decided anew, as long as what
// they were granted can't be in use any more. A refusal would name a wait although all is free.
func TestRepeat_AsksAnewOnceItsGrantHasRunOut(t *testing.T) {
	t.Parallel()
	take := func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) {
		d, err := l.Take(ctx, 4)
		return d.Granted, err
	}
	type row struct {
		interval time.Duration
		ask      func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error)
		released bool // during the interval, by another program
		want     bool
	}
	for what, c := range map[string]row{
		"TryAcquire": {time.Second, func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) { return l.TryAcquire(ctx, 4, 0) }, false, true},
		"Take":       {time.Second, take, false, true},
		"TakeUpTo": {time.Second, func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) {
			n, _, err := l.TakeUpTo(ctx, 4)
			return n == 4, err
		}, false, true},
		"Reserve": {time.Second, func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) {
			r, err := l.Reserve(ctx, 4, 0)
			return err == nil && r.Granted, err
		}, false, true},
		"Hold": {time.Hour, func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) {
			r, err := l.Reserve(ctx, 4, 0, rratelimiter.Hold(time.Second))
			return err == nil && r.Granted, err
		}, false, true},
		"released, in a longer interval": {time.Minute, take, true, false},
	} {
		eachLayout(t, what, func(t *testing.T, version string) {
			redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
				client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
				l := client.RateLimiter(redistest.Name(t))
				require.NoError(t, l.SetRate(t.Context(), limitertest.Every(10, c.interval)))
				other := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter(l.Name())
				loseTwo(t, rdb, func() {
					if c.released {
						require.NoError(t, other.Release(t.Context(), 4))
					}
					step(time.Second)
					takeSix(t, other)
				})
				got, err := c.ask(t.Context(), l)
				require.NoError(t, err)
				assert.Equal(t, c.want, got)
				want := int64(6)
				if c.want {
					want = 10
				}
				assert.Equal(t, want, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
				assert.Equal(t, 10-want, limitertest.Available(t, other))
			})
		})
	}
}

// Of several limiters an attempt is decided anew once what it was granted has run out in all.
func TestTryAcquireAll_AsksAnewOnceItsGrantHasRunOut(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		longer time.Duration // of the second
		want   bool
	}{"all": {2 * time.Second, true}, "released in the longer one": {time.Minute, false}} {
		eachLayout(t, what, func(t *testing.T, version string) {
			redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
				client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
				f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Second), limitertest.Every(10, c.longer))
				others := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)))
				loseTwo(t, rdb, func() {
					if !c.want {
						require.NoError(t, others.Limiters[1].Release(t.Context(), 4))
					}
					step(2 * time.Second)
					takeSix(t, others.Limiters...)
				})
				assert.Equal(t, c.want, f.Try(t, 4))
				for _, l := range f.Limiters {
					want := int64(6)
					if c.want {
						want = 10
					}
					assert.Equal(t, want, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
				}
			})
		})
	}
}
