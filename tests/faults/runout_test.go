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

// Two attempts were granted 4 permits, and all of them came back before the third: it is decided anew, as long as what
// they were granted can't be in use any more, of several limiters in none. A refusal would name a wait although all is free.
func TestRepeat_AsksAnewOnceItsGrantHasRunOut(t *testing.T) {
	t.Parallel()
	type row struct {
		intervals []time.Duration // of each limiter
		ask       func(ctx context.Context, f *limitertest.Family) (bool, error)
		released  bool // of the last limiter, during the interval, by another program
	}
	second := []time.Duration{time.Second}
	take := func(ctx context.Context, f *limitertest.Family) (bool, error) {
		d, err := f.Limiters[0].Take(ctx, 4)
		return d.Granted, err
	}
	reserve := func(opts ...rratelimiter.ReserveOption) func(ctx context.Context, f *limitertest.Family) (bool, error) {
		return func(ctx context.Context, f *limitertest.Family) (bool, error) {
			r, err := f.Limiters[0].Reserve(ctx, 4, 0, opts...)
			return err == nil && r.Granted, err
		}
	}
	all := func(ctx context.Context, f *limitertest.Family) (bool, error) {
		return f.Client.TryAcquireAll(ctx, 0, limitertest.Claims(4, f.Limiters...)...)
	}
	for what, c := range map[string]row{
		"TryAcquire": {second, func(ctx context.Context, f *limitertest.Family) (bool, error) {
			return f.Limiters[0].TryAcquire(ctx, 4, 0)
		}, false},
		"Take": {second, take, false},
		"TakeUpTo": {second, func(ctx context.Context, f *limitertest.Family) (bool, error) {
			n, _, err := f.Limiters[0].TakeUpTo(ctx, 4)
			return n == 4, err
		}, false},
		"Reserve":                        {second, reserve(), false},
		"Hold":                           {[]time.Duration{time.Hour}, reserve(rratelimiter.Hold(time.Second)), false},
		"released, in a longer interval": {[]time.Duration{time.Minute}, take, true},
		"TryAcquireAll":                  {[]time.Duration{time.Second, 2 * time.Second}, all, false},
		"TryAcquireAll, released in the longer one": {[]time.Duration{time.Second, time.Minute}, all, true},
	} {
		eachLayout(t, what, func(t *testing.T, version string) {
			redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
				var cfgs []rratelimiter.Config
				for _, interval := range c.intervals {
					cfgs = append(cfgs, limitertest.Every(10, interval))
				}
				f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)), cfgs...)
				others := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)))
				loseTwo(t, rdb, func() {
					if c.released {
						require.NoError(t, others.Limiters[len(cfgs)-1].Release(t.Context(), 4))
					}
					step(time.Duration(len(cfgs)) * time.Second)
					for _, l := range others.Limiters {
						require.True(t, limitertest.Take(t, l, 6).Granted) // what has run out goes
					}
				})
				got, err := c.ask(t.Context(), f)
				require.NoError(t, err)
				assert.Equal(t, !c.released, got)
				want := int64(10)
				if c.released {
					want = 6
				}
				for i, l := range f.Limiters {
					assert.Equal(t, want, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits))
					assert.Equal(t, 10-want, limitertest.Available(t, others.Limiters[i]))
				}
			})
		})
	}
}
