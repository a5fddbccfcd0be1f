package compat_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestJavaCountsMergedMembers(t *testing.T) {
	t.Parallel()
	java, goes, rdb := newBoth(t)
	name := redistest.Name(t)
	set := layout.KeysOf(name, "")
	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(300)))

	limiter := goes.RateLimiter(name)
	require.Equal(t, 200, together(200, func() bool {
		ok, err := limiter.TryAcquire(t.Context(), 1, 0)
		return assert.NoError(t, err) && ok
	}))
	_, permits := stored(t, rdb, set.Value, set.Permits)
	require.Less(t, len(permits), 200, "no member stands for more than one grant")
	require.EqualValues(t, 100, java.Available(name))
	require.False(t, java.Try(name, 101))
	require.True(t, java.Try(name, 100))
	require.False(t, java.Try(name, 1))

	// Some of a merged member is given back; Java reads the rest.
	goes.Release(name, 150)
	require.EqualValues(t, 150, java.Available(name))
	java.KeepState(name, rratelimiter.PerHour(400))
	require.EqualValues(t, 250, java.Available(name))

	// The value gets lost, and the permits run out. Redisson then counts the
	// members that it sweeps.
	passTime(t, rdb, name, time.Hour)
	require.EqualValues(t, 400, java.Available(name))
	require.True(t, java.Try(name, 400))
	require.Zero(t, goes.Available(name))
}

// Java reads a rate that Go has set for a while as any other, also if it makes the value, and after its end until Go asks.
func TestJavaReadsOverrides(t *testing.T) {
	t.Parallel()
	java, goes, rdb := newBoth(t)
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		t.Run(kind.String(), func(t *testing.T) {
			java, goes := java.in(t), goes.in(t)
			name := redistest.Name(t)
			before := rratelimiter.Config{Type: kind, Rate: 5, Interval: time.Hour}
			during := rratelimiter.Config{Type: kind, Rate: 20, Interval: 2 * time.Hour}
			override := func() {
				t.Helper()
				require.NoError(t, goes.RateLimiter(name).SetRate(t.Context(), during, rratelimiter.For(time.Hour)))
			}
			goes.SetRate(name, before)
			override()
			require.Equal(t, during, java.Config(name))
			require.True(t, java.Try(name, 15)) // by a value that Java makes
			require.False(t, java.Try(name, 6))
			require.EqualValues(t, 5, java.Available(name))
			java.Release(name, 1)

			require.NoError(t, rdb.HSet(t.Context(), name, "override", "1000 5 3600000 0").Err()) // it has ended
			require.Equal(t, during, java.Config(name))
			require.True(t, java.Try(name, 1))
			goes.Available(name)
			require.Equal(t, before, java.Config(name))

			override()
			java.KeepState(name, before)
			_, overridden, err := goes.RateLimiter(name).Override(t.Context())
			require.NoError(t, err)
			require.False(t, overridden)
		})
	}
}

// A member of more permits than one signed number of 32 bits holds is read right too.
func TestJavaCountsMembersOfManyPermits(t *testing.T) {
	t.Parallel()
	java, goes, rdb := newBoth(t)
	for _, rate := range []int64{1 << 31, 1 << 32, 1e14, 1e15, rratelimiter.MaxRate - 1, rratelimiter.MaxRate} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			java, goes := java.in(t), goes.in(t)
			name := redistest.Name(t)
			free := func(want int64) {
				t.Helper()
				require.Equal(t, want, java.Available(name), "Java")
				require.Equal(t, want, goes.Available(name), "Go")
			}
			goes.SetRate(name, rratelimiter.PerHour(rate))
			require.Equal(t, rate, java.Config(name).Rate)
			free(rate)
			many := min(rate-5, rratelimiter.MaxPermits)
			require.True(t, goes.Try(name, many))
			free(rate - many)
			require.True(t, java.Try(name, 5))
			free(rate - many - 5)
			passTime(t, rdb, name, time.Hour)
			free(rate)
			require.True(t, java.Try(name, many))
			free(rate - many)
			goes.Release(name, many-1)
			free(rate - 1)
			passTime(t, rdb, name, time.Hour)
			require.True(t, java.Try(name, 1))
			free(rate - 1)
			goes.KeepState(name, rratelimiter.PerHour(rate-1))
			free(rate - 2)
			java.Release(name, 1)
			free(rate - 1)
		})
	}
}

// What a hold keeps is free for Java when it is over, and not before. Settled in time it counts for an interval,
// settled late from then on.
func TestJavaGetsWhatAHoldGivesBack(t *testing.T) {
	t.Parallel()
	java, goes, rdb := newBoth(t)
	name := redistest.Name(t)
	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(10)))
	reserve := func(d time.Duration) *rratelimiter.Reservation {
		t.Helper()
		return limitertest.Reserve(t, goes.RateLimiter(name), 8, rratelimiter.Hold(d))
	}
	reserve(20 * time.Minute)
	require.EqualValues(t, 2, java.Available(name))
	require.True(t, java.Try(name, 1))
	passTime(t, rdb, name, 19*time.Minute)
	require.False(t, java.Try(name, 2), "before the hold is over")
	passTime(t, rdb, name, time.Minute)
	require.True(t, java.Try(name, 9), "after it")
	require.Zero(t, goes.Available(name))
	passTime(t, rdb, name, time.Hour)

	settled := reserve(20 * time.Minute)
	passTime(t, rdb, name, 10*time.Minute)
	require.NoError(t, settled.Settle(t.Context(), 6))
	require.EqualValues(t, 4, java.Available(name))
	passTime(t, rdb, name, 49*time.Minute)
	require.False(t, java.Try(name, 5))
	passTime(t, rdb, name, time.Minute)
	require.EqualValues(t, 10, java.Available(name))

	late := reserve(time.Millisecond)
	require.Eventually(t, func() bool { return java.Try(name, 10) }, time.Minute, time.Millisecond)
	require.NoError(t, late.Settle(t.Context(), 6))
	require.False(t, java.Try(name, 1))
	require.EqualValues(t, -6, java.Available(name))
	passTime(t, rdb, name, time.Hour)
	require.EqualValues(t, 10, java.Available(name))
	require.EqualValues(t, 10, goes.Available(name))
}

// To Java a place is a permit in use for as long as it is renewed, and free once it is cancelled or its time is over.
func TestJavaSeesPlacesThatAreRenewed(t *testing.T) {
	t.Parallel()
	java, goes, rdb := newBoth(t)
	name := redistest.Name(t)
	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(10)))
	whole := limitertest.Reserve(t, goes.RateLimiter(name), 4)
	held := limitertest.Reserve(t, goes.RateLimiter(name), 4, rratelimiter.Hold(40*time.Minute))
	for range 4 {
		passTime(t, rdb, name, 30*time.Minute)
		require.NoError(t, whole.Renew(t.Context()))
		require.NoError(t, held.Renew(t.Context()))
		require.False(t, java.Try(name, 3))
		require.EqualValues(t, 2, java.Available(name))
	}
	passTime(t, rdb, name, 39*time.Minute)
	require.False(t, java.Try(name, 3))
	passTime(t, rdb, name, time.Minute)
	require.True(t, java.Try(name, 6), "the hold is over")
	require.ErrorIs(t, held.Renew(t.Context()), rratelimiter.ErrSettled)
	require.NoError(t, whole.Cancel(t.Context()))
	require.EqualValues(t, 4, java.Available(name))
	require.True(t, java.Try(name, 4))
	require.False(t, java.Try(name, 1))
}

// goID is the client id of the Go services that are given one.
const goID = "gopher"

// oddNames are names with braces, which decide on the cluster slot, and what else may stand in
// one.
var oddNames = []string{
	"a{b}c", "foo}bar", "a{b", "{{a}}", "a}", "{}x", "x{}", "{x}", "a b", "ü限", "a:b*?[c]\\", "50%+1", "\nbreak", "\"'",
}

func TestNamesOfAnyKind(t *testing.T) {
	t.Parallel()
	driver, rdb := sharedDriver(t), redistest.Redis(t)
	requireRelease(t, "3.35.0")
	for _, prefix := range []string{"", "shop:", "{shop}:", "sh{op"} { // put before all names by a mapper
		args, opts := []any{redistest.Shared(t).URL()}, []rratelimiter.Option{rratelimiter.WithClientID(goID)}
		if prefix != "" {
			args = append(args, prefix)
			opts = append(opts, rratelimiter.WithNameMapper(func(name string) string { return prefix + name }))
		}
		java, goes := service{nil, driver.openBy(t, "open", args...), t}, newGo(t, rdb, opts...)
		for _, odd := range oddNames {
			t.Run(prefix+odd, func(t *testing.T) {
				testSameKeys(t, java.in(t), goes.in(t), prefix, odd+redistest.Name(t))
				testSameKeys(t, java.in(t), goes.in(t), prefix, redistest.Name(t)+odd)
			})
		}
	}
}

// testSameKeys checks that both services mean the same keys by a name.
func testSameKeys(t *testing.T, java, goes service, prefix, name string) {
	t.Helper()
	rdb := redistest.Redis(t)
	kept := func() (all []string) {
		t.Helper()
		escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(prefix + name)
		it := rdb.Scan(t.Context(), 0, "*"+escaped+"*", 1000).Iterator()
		for it.Next(t.Context()) {
			all = append(all, it.Val())
		}
		require.NoError(t, it.Err())
		return all
	}
	require.Empty(t, kept())
	require.True(t, java.TrySetRate(name, rratelimiter.PerHour(5)))
	require.True(t, java.Try(name, 2))
	require.EqualValues(t, 3, goes.Available(name))
	before := kept()
	require.True(t, goes.Try(name, 3))
	require.False(t, java.Try(name, 1))
	require.ElementsMatch(t, before, kept())
	require.Len(t, before, 3)
	require.True(t, goes.Delete(name))
	require.Empty(t, kept())

	require.True(t, goes.TrySetRate(name, perClient(rratelimiter.PerHour(5))))
	require.True(t, goes.Try(name, 3))
	require.Len(t, kept(), 3)
	require.EqualValues(t, 5, java.Available(name))
	require.True(t, java.Try(name, 5))
	set, goSet := layout.KeysOf(prefix+name, java.java.ID), layout.KeysOf(prefix+name, goID)
	require.ElementsMatch(t, kept(), []string{set.Config, set.ClientValue, set.ClientPermits, goSet.ClientValue, goSet.ClientPermits})
	require.True(t, java.Delete(name))
	require.True(t, goes.Delete(name))
	require.Empty(t, kept())
}

// TestWaiting: a caller that waits in one language is served when the permits of
// the other have run out.
func TestWaiting(t *testing.T) {
	t.Parallel()
	java, goes, _ := newBoth(t)
	const interval = 400 * time.Millisecond
	for what, order := range map[string][2]service{"Java waits for Go": {goes, java}, "Go waits for Java": {java, goes}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			holds, waits := order[0].in(t), order[1].in(t)
			name, slow := redistest.Name(t), redistest.Name(t)
			require.True(t, holds.TrySetRate(slow, rratelimiter.PerHour(4)))
			require.True(t, holds.Try(slow, 4))
			require.False(t, waits.Wait(slow, 1, 50*time.Millisecond))

			require.True(t, holds.TrySetRate(name, rratelimiter.Config{Rate: 4, Interval: interval}))
			// The clock of milliseconds is read before and after.
			begin := time.Now().Truncate(time.Millisecond)
			require.True(t, holds.Try(name, 4))
			require.True(t, waits.Wait(name, 3, time.Minute))
			require.GreaterOrEqual(t, time.Since(begin), interval)
			require.True(t, holds.Wait(name, 4, time.Minute))
			require.GreaterOrEqual(t, time.Since(begin), 2*interval)
		})
	}
}

// Several wait on both sides. All are served, at the limiter's pace.
func TestWaitingOnBothSides(t *testing.T) {
	t.Parallel()
	java, goes, _ := newBoth(t)
	name := redistest.Name(t)
	const interval = 300 * time.Millisecond
	require.True(t, java.TrySetRate(name, rratelimiter.Config{Rate: 6, Interval: interval}))
	begin := time.Now().Truncate(time.Millisecond)
	var next atomic.Int64
	served := together(30, func() bool {
		s := []service{java, goes}[next.Add(1)%2]
		return assert.NoError(t, s.Acquire(t.Context(), name, 1))
	})
	require.Equal(t, 30, served)
	require.GreaterOrEqual(t, time.Since(begin), 4*interval, "30 of 6 an interval")
}

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
			v.service = driver.service(t, redistest.Shared(t).URL())
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
			_, err := v.service.take(ctx, v.name, 2, 0)
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
		_, err := v.service.take(v.t.Context(), v.name, 1, 0)
		require.ErrorContains(v.t, err, "not an integer")
	},
	"TrySetRate changes an older limiter": func(v *victim) {
		require.True(v.t, v.TrySetRate(v.name, tenAnHour))
		require.NoError(v.t, v.rdb.HDel(v.t.Context(), v.name, "keepAliveTime").Err())
		require.False(v.t, v.TrySetRate(v.name, keepingAlive(tenAnHour, time.Hour)))
		v.take(1)
		assert.InDelta(v.t, time.Hour, v.rdb.PTTL(v.t.Context(), v.name).Val(), float64(20*time.Minute))
	},
	"AvailablePermits leaves a value for ever": func(v *victim) {
		require.True(v.t, v.TrySetRate(v.name, tenAnHour))
		_, err := ask[bool](v.t.Context(), v.java, "expire", v.name, time.Hour.Milliseconds())
		require.NoError(v.t, err)
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
