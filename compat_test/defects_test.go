package compat_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestDefects shows that Redisson gets wrong what docs/differences.md says, as far as the traces
// of TestGolden don't. The tests which that page names show that this module gets it right.
func TestDefects(t *testing.T) {
	t.Parallel()
	driver := sharedDriver(t)
	if *redissonVersion != newestRedisson {
		t.Skip("the defects are those of Redisson " + newestRedisson)
	}
	for name, show := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &victim{t: t, rdb: redistest.Redis(t), name: redistest.Name(t)}
			v.service = service{nil, driver.open(t, redistest.Shared(t).URL()), t}
			v.goes = newGo(t, v.rdb)
			v.keys = layout.KeysOf(v.name, v.java.ID)
			show(v)
		})
	}
}

// victim is a limiter of a service in Java; one in Go may look after it.
type victim struct {
	service

	t    *testing.T
	goes service
	rdb  redistest.Client
	name string
	keys layout.Keys
}

// begin sets a rate, and takes permits.
func (v *victim) begin(cfg rratelimiter.Config, permits int64) {
	v.t.Helper()
	require.True(v.t, v.TrySetRate(v.name, cfg))
	v.take(permits)
}

func (v *victim) take(permits int64) {
	v.t.Helper()
	require.True(v.t, v.Try(v.name, permits))
}

func (v *victim) pass(d time.Duration) {
	v.t.Helper()
	passTime(v.t, v.rdb, v.name, d, v.java.ID)
}

func (v *victim) free(want int64) {
	v.t.Helper()
	assert.Equal(v.t, want, v.Available(v.name))
}

func (v *victim) lose(key string) {
	v.t.Helper()
	require.NoError(v.t, v.rdb.Del(v.t.Context(), key).Err())
}

// through makes Redisson use a proxy, on whose acquires act then acts.
func (v *victim) through(act func(redistest.Command) redistest.Action) *redistest.Proxy {
	v.t.Helper()
	proxy := redistest.StartProxy(v.t, redistest.Shared(v.t).Addr())
	v.java = v.java.driver.open(v.t, "redis://"+proxy.Addr())
	v.begin(rratelimiter.PerHour(20), 1)
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if strings.HasPrefix(c.Name(), "eval") && c.Contains(v.keys.Permits) {
			return act(c)
		}
		return redistest.Pass
	})
	return proxy
}

func perClient(cfg rratelimiter.Config) rratelimiter.Config {
	cfg.Type = rratelimiter.PerClient
	return cfg
}

func keepingAlive(cfg rratelimiter.Config, ttl time.Duration) rratelimiter.Config {
	cfg.KeepAlive = ttl
	return cfg
}

var tenAnHour = rratelimiter.PerHour(10)

var defects = map[string]func(v *victim){
	"an acquire that is sent twice": func(v *victim) {
		proxy := v.through(func(redistest.Command) redistest.Action { return redistest.Duplicate })
		for range 9 {
			v.take(1)
		}
		proxy.Settle(v.t)
		proxy.OnCommand(nil)
		v.free(1)
		v.pass(time.Hour)
		v.free(11)
	},
	"a cancelled acquire keeps its permits": func(v *victim) {
		// The answer comes after the caller has gone.
		gone, under := make(chan struct{}), make(chan struct{}, 100)
		proxy := v.through(func(redistest.Command) redistest.Action {
			under <- struct{}{}
			return redistest.Pass.When(gone)
		})
		ctx, cancel := context.WithCancel(v.t.Context())
		errs := make(chan error)
		go func() {
			_, err := v.service.take(ctx, v.name, 2)
			errs <- err
		}()
		<-under
		cancel()
		require.ErrorIs(v.t, <-errs, context.Canceled)
		close(gone)
		proxy.Settle(v.t)
		v.free(17)
	},
	"a value above the rate": func(v *victim) {
		v.begin(tenAnHour, 3)
		v.Release(v.name, 3)
		v.pass(time.Hour)
		v.free(13)
		assert.EqualValues(v.t, 10, v.goes.Available(v.name), "Go looks")
		v.free(10)
	},
	"a set without a value": func(v *victim) {
		v.begin(tenAnHour, 10)
		v.lose(v.keys.Value)
		v.take(10)
	},
	"permits out of range": func(v *victim) {
		const rate = 1 << 33
		v.begin(rratelimiter.PerHour(rate), 10)
		for _, permits := range []int64{0, -5, 1<<32 + 7} {
			v.take(permits)
		}
		value, permits := stored(v.t, v.rdb, v.keys.Value, v.keys.Permits)
		assert.Equal(v.t, int64(rate-10+5-(1<<32+7)), value)
		assert.ElementsMatch(v.t, []int64{10, 0, 1<<32 - 5, 7}, permits)

		require.True(v.t, v.Delete(v.name))
		v.begin(rratelimiter.PerHour(1<<63-1), 1)
		v.pass(time.Hour)
		_, err := v.service.take(v.t.Context(), v.name, 1)
		require.ErrorContains(v.t, err, "not an integer")
	},
	"TrySetRate changes an older limiter": func(v *victim) {
		require.True(v.t, v.TrySetRate(v.name, tenAnHour))
		require.NoError(v.t, v.rdb.HDel(v.t.Context(), v.name, "keepAliveTime").Err())
		require.False(v.t, v.TrySetRate(v.name, keepingAlive(tenAnHour, time.Hour)))
		v.take(1)
		assert.InDelta(v.t, time.Hour, v.TTL(v.name), float64(20*time.Minute))
	},
	"AvailablePermits leaves a value for ever": func(v *victim) {
		require.True(v.t, v.TrySetRate(v.name, tenAnHour))
		require.True(v.t, v.Expire(v.name, time.Hour))
		v.free(10)
		v.pass(time.Hour)
		assert.EqualValues(v.t, 1, v.rdb.Exists(v.t.Context(), v.keys.Value).Val())
	},
	"rename moves the configuration alone": func(v *victim) {
		v.begin(tenAnHour, 10)
		to := v.name + ":new"
		_, err := ask[string](v.t.Context(), v.java, "rename", v.name, to)
		require.NoError(v.t, err)
		assert.True(v.t, v.Try(to, 10), "20 in one interval")
	},
}
