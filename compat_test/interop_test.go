package compat_test

import (
	"context"
	"fmt"
	"maps"
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

// A play is a limiter that a service in Java shares with one in Go.
type play struct {
	*testing.T

	java, goes service
	rdb        redistest.Client
	name       string
	keys       layout.Keys
}

// playEach runs each as a subtest, with services of its own.
func playEach(t *testing.T, all map[string]func(p *play)) {
	t.Helper()
	driver := sharedDriver(t)
	limitertest.Each(t, all, func(t *testing.T, test func(p *play)) {
		p := &play{T: t, rdb: redistest.Redis(t), name: redistest.Name(t)}
		p.java, p.goes = driver.service(t, redistest.Shared(t).URL()), newGo(t, p.rdb)
		p.keys = layout.KeysOf(p.name, p.java.java.ID)
		test(p)
	})
}

// A deed is what one of the services does with a limiter.
type deed func(s service, limiter string)

func (s service) do(limiter string, deeds ...deed) {
	s.t.Helper()
	for _, do := range deeds {
		do(s, limiter)
	}
}

// Java has the service in Java do something, Go the other, and both each.
func (p *play) Java(deeds ...deed) { p.java.do(p.name, deeds...) }
func (p *play) Go(deeds ...deed)   { p.goes.do(p.name, deeds...) }
func (p *play) both(deeds ...deed) {
	p.Java(deeds...)
	p.Go(deeds...)
}

func (p *play) pass(d time.Duration) { passTime(p, p.rdb, p.name, d, p.java.java.ID) }

func sets(cfg rratelimiter.Config) deed {
	return func(s service, limiter string) { require.True(s.t, s.TrySetRate(limiter, cfg)) }
}

func keeps(cfg rratelimiter.Config) deed {
	return func(s service, limiter string) { s.KeepState(limiter, cfg) }
}

func has(cfg rratelimiter.Config) deed {
	return func(s service, limiter string) { require.Equal(s.t, cfg, s.Config(limiter)) }
}

func take(permits int64) deed {
	return func(s service, limiter string) { require.True(s.t, s.Try(limiter, permits), "%d permits", permits) }
}

func refuse(permits int64) deed {
	return func(s service, limiter string) { require.False(s.t, s.Try(limiter, permits), "%d permits", permits) }
}

func free(want int64) deed {
	return func(s service, limiter string) { require.Equal(s.t, want, s.Available(limiter)) }
}

func release(permits int64) deed {
	return func(s service, limiter string) { s.Release(limiter, permits) }
}

// reserve has Go reserve permits.
func (p *play) reserve(permits int64, opts ...rratelimiter.ReserveOption) *rratelimiter.Reservation {
	p.Helper()
	return limitertest.Reserve(p, p.goes.RateLimiter(p.name), permits, opts...)
}

func perClient(cfg rratelimiter.Config) rratelimiter.Config {
	cfg.Type = rratelimiter.PerClient
	return cfg
}

var tenAnHour = rratelimiter.PerHour(10)

var shared = map[string]func(p *play){
	"CountsMergedMembers": func(p *play) {
		p.Java(sets(rratelimiter.PerHour(300)))
		limiter := p.goes.RateLimiter(p.name)
		require.Equal(p, 200, together(200, func() bool {
			ok, err := limiter.TryAcquire(p.Context(), 1, 0)
			return assert.NoError(p, err) && ok
		}))
		_, permits := stored(p, p.rdb, p.keys.Value, p.keys.Permits)
		require.Less(p, len(permits), 200, "no member stands for more than one grant")
		p.Java(free(100), refuse(101), take(100), refuse(1))

		// Some of a merged member is given back; Java reads the rest.
		p.Go(release(150))
		p.Java(free(150), keeps(rratelimiter.PerHour(400)), free(250))

		// The permits run out. Redisson then counts the members that it sweeps.
		p.pass(time.Hour)
		p.Java(free(400), take(400))
		p.Go(free(0))
	},
	// What a hold keeps is free for Java when it is over, and not before. Settled in time it counts for an interval,
	// settled late from then on.
	"GetsWhatAHoldGivesBack": func(p *play) {
		p.Java(sets(tenAnHour))
		p.reserve(8, rratelimiter.Hold(20*time.Minute))
		p.Java(free(2), take(1))
		p.pass(19 * time.Minute)
		p.Java(refuse(2)) // before the hold is over
		p.pass(time.Minute)
		p.Java(take(9))
		p.Go(free(0))
		p.pass(time.Hour)

		settled := p.reserve(8, rratelimiter.Hold(20*time.Minute))
		p.pass(10 * time.Minute)
		require.NoError(p, settled.Settle(p.Context(), 6))
		p.Java(free(4))
		p.pass(49 * time.Minute)
		p.Java(refuse(5))
		p.pass(time.Minute)
		p.Java(free(10))

		late := p.reserve(8, rratelimiter.Hold(time.Millisecond))
		require.Eventually(p, func() bool { return p.java.Try(p.name, 10) }, time.Minute, time.Millisecond)
		require.NoError(p, late.Settle(p.Context(), 6))
		p.Java(refuse(1), free(-6))
		p.pass(time.Hour)
		p.both(free(10))
	},
	// A place is a permit in use for as long as it is renewed, and free once it is cancelled or its time is over.
	"SeesPlacesThatAreRenewed": func(p *play) {
		p.Java(sets(tenAnHour))
		whole, held := p.reserve(4), p.reserve(4, rratelimiter.Hold(40*time.Minute))
		for range 4 {
			p.pass(30 * time.Minute)
			require.NoError(p, whole.Renew(p.Context()))
			require.NoError(p, held.Renew(p.Context()))
			p.Java(refuse(3), free(2))
		}
		p.pass(39 * time.Minute)
		p.Java(refuse(3))
		p.pass(time.Minute)
		p.Java(take(6)) // the hold is over
		require.ErrorIs(p, held.Renew(p.Context()), rratelimiter.ErrSettled)
		require.NoError(p, whole.Cancel(p.Context()))
		p.Java(free(4), take(4), refuse(1))
	},
	"WaitsForGo": func(p *play) { p.waits(p.java, p.goes) },
	"HasGoWait":  func(p *play) { p.waits(p.goes, p.java) },
	// Several wait on both sides. All are served, at the limiter's pace.
	"WaitsBesideGo": func(p *play) {
		const interval = 300 * time.Millisecond
		p.Java(sets(limitertest.Every(6, interval)))
		begin := time.Now().Truncate(time.Millisecond)
		var next atomic.Int64
		served := together(30, func() bool {
			s := []service{p.java, p.goes}[next.Add(1)%2]
			return assert.NoError(p, s.Acquire(p.Context(), p.name, 1))
		})
		require.Equal(p, 30, served)
		require.GreaterOrEqual(p, time.Since(begin), 4*interval, "30 of 6 an interval")
	},
}

// waits has a caller that waits in one language be served when the permits of the other have run out.
func (p *play) waits(waits, holds service) {
	const interval = 400 * time.Millisecond
	slow := p.name + "slow"
	holds.do(slow, sets(rratelimiter.PerHour(4)), take(4))
	require.False(p, waits.Wait(slow, 1, 50*time.Millisecond))

	holds.do(p.name, sets(limitertest.Every(4, interval)))
	begin := time.Now().Truncate(time.Millisecond) // the clock of milliseconds is read before and after
	holds.do(p.name, take(4))
	require.True(p, waits.Wait(p.name, 3, time.Minute))
	require.GreaterOrEqual(p, time.Since(begin), interval)
	require.True(p, holds.Wait(p.name, 4, time.Minute))
	require.GreaterOrEqual(p, time.Since(begin), 2*interval)
}

// readsOverride has Java read a rate that Go has set for a while as any other, also if it makes the value, and after its end until Go asks.
func readsOverride(kind rratelimiter.RateType) func(p *play) {
	return func(p *play) {
		before := rratelimiter.Config{Type: kind, Rate: 5, Interval: time.Hour}
		during := rratelimiter.Config{Type: kind, Rate: 20, Interval: 2 * time.Hour}
		l := p.goes.RateLimiter(p.name)
		override := func() { require.NoError(p, l.SetRate(p.Context(), during, rratelimiter.For(time.Hour))) }
		p.Go(sets(before))
		override()
		p.Java(has(during), take(15), refuse(6), free(5), release(1)) // by a value that Java makes

		require.NoError(p, p.rdb.HSet(p.Context(), p.name, "override", "1000 5 3600000 0").Err()) // it has ended
		p.Java(has(during), take(1))
		p.goes.Available(p.name)
		p.Java(has(before))

		override()
		p.Java(keeps(before))
		_, overridden, err := l.Override(p.Context())
		require.NoError(p, err)
		require.False(p, overridden)
	}
}

// countsMany has a member of more permits than one signed number of 32 bits holds be read right too.
func countsMany(rate int64) func(p *play) {
	return func(p *play) {
		many := min(rate-5, rratelimiter.MaxPermits)
		p.Go(sets(rratelimiter.PerHour(rate)))
		require.Equal(p, rate, p.java.Config(p.name).Rate)
		p.both(free(rate))
		p.Go(take(many))
		p.both(free(rate - many))
		p.Java(take(5))
		p.both(free(rate - many - 5))
		p.pass(time.Hour)
		p.both(free(rate))
		p.Java(take(many))
		p.both(free(rate - many))
		p.Go(release(many - 1))
		p.both(free(rate - 1))
		p.pass(time.Hour)
		p.Java(take(1))
		p.both(free(rate - 1))
		p.Go(keeps(rratelimiter.PerHour(rate - 1)))
		p.both(free(rate - 2))
		p.Java(release(1))
		p.both(free(rate - 1))
	}
}

func TestJava(t *testing.T) {
	t.Parallel()
	requireRelease(t, "3.35.0")
	all := maps.Clone(shared)
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		all[fmt.Sprint("ReadsOverrides/", kind)] = readsOverride(kind)
	}
	for _, rate := range []int64{1 << 31, 1 << 32, 1e14, 1e15, rratelimiter.MaxRate - 1, rratelimiter.MaxRate} {
		all[fmt.Sprint("CountsMembersOfManyPermits/", rate)] = countsMany(rate)
	}
	playEach(t, all)
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
	java.do(name, sets(rratelimiter.PerHour(5)), take(2))
	goes.do(name, free(3))
	before := kept()
	goes.do(name, take(3))
	java.do(name, refuse(1))
	require.ElementsMatch(t, before, kept())
	require.Len(t, before, 3)
	require.True(t, goes.Delete(name))
	require.Empty(t, kept())

	goes.do(name, sets(perClient(rratelimiter.PerHour(5))), take(3))
	require.Len(t, kept(), 3)
	java.do(name, free(5), take(5))
	set, goSet := layout.KeysOf(prefix+name, java.java.ID), layout.KeysOf(prefix+name, goID)
	require.ElementsMatch(t, kept(), []string{set.Config, set.ClientValue, set.ClientPermits, goSet.ClientValue, goSet.ClientPermits})
	require.True(t, java.Delete(name))
	require.True(t, goes.Delete(name))
	require.Empty(t, kept())
}

// through makes Redisson use a proxy, on whose acquires act then acts.
func (p *play) through(act func(redistest.Command) redistest.Action) *redistest.Proxy {
	p.Helper()
	proxy := redistest.StartProxy(p, redistest.Shared(p).Addr())
	p.java.java = p.java.java.driver.open(p, "redis://"+proxy.Addr())
	p.Java(sets(rratelimiter.PerHour(20)), take(1))
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if strings.HasPrefix(c.Name(), "eval") && c.Contains(p.keys.Permits) {
			return act(c)
		}
		return redistest.Pass
	})
	return proxy
}

var defects = map[string]func(p *play){
	"an acquire that is sent twice": func(p *play) {
		proxy := p.through(func(redistest.Command) redistest.Action { return redistest.Duplicate })
		for range 9 {
			p.Java(take(1))
		}
		proxy.Settle(p)
		proxy.OnCommand(nil)
		p.Java(free(1))
		p.pass(time.Hour)
		p.Java(free(11))
	},
	"a cancelled acquire keeps its permits": func(p *play) {
		// The answer comes after the caller has gone.
		gone, under := make(chan struct{}), make(chan struct{}, 100)
		proxy := p.through(func(redistest.Command) redistest.Action {
			under <- struct{}{}
			return redistest.Pass.When(gone)
		})
		ctx, cancel := context.WithCancel(p.Context())
		errs := make(chan error)
		go func() { errs <- limitertest.Second(p.java.take(ctx, p.name, 2, 0)) }()
		<-under
		cancel()
		require.ErrorIs(p, <-errs, context.Canceled)
		close(gone)
		proxy.Settle(p)
		p.Java(free(17))
	},
	"a value above the rate": func(p *play) {
		p.Java(sets(tenAnHour), take(3), release(3))
		p.pass(time.Hour)
		p.Java(free(13))
		p.Go(free(10)) // which sets it right
		p.Java(free(10))
	},
	"a set without a value": func(p *play) {
		p.Java(sets(tenAnHour), take(10))
		require.NoError(p, p.rdb.Del(p.Context(), p.keys.Value).Err())
		p.Java(take(10))
	},
	"permits out of range": func(p *play) {
		const rate = 1 << 33
		p.Java(sets(rratelimiter.PerHour(rate)), take(10), take(0), take(-5), take(1<<32+7))
		value, permits := stored(p, p.rdb, p.keys.Value, p.keys.Permits)
		assert.Equal(p, int64(rate-10+5-(1<<32+7)), value)
		assert.ElementsMatch(p, []int64{10, 0, 1<<32 - 5, 7}, permits)

		require.True(p, p.java.Delete(p.name))
		p.Java(sets(rratelimiter.PerHour(1<<63-1)), take(1))
		p.pass(time.Hour)
		require.ErrorContains(p, limitertest.Second(p.java.take(p.Context(), p.name, 1, 0)), "not an integer")
	},
	"TrySetRate changes an older limiter": func(p *play) {
		keepingAlive := tenAnHour
		keepingAlive.KeepAlive = time.Hour
		p.Java(sets(tenAnHour))
		require.NoError(p, p.rdb.HDel(p.Context(), p.name, "keepAliveTime").Err())
		require.False(p, p.java.TrySetRate(p.name, keepingAlive))
		p.Java(take(1))
		assert.InDelta(p, time.Hour, p.rdb.PTTL(p.Context(), p.name).Val(), float64(20*time.Minute))
	},
	"AvailablePermits leaves a value for ever": func(p *play) {
		p.Java(sets(tenAnHour))
		require.NoError(p, limitertest.Second(ask[bool](p.Context(), p.java.java, "expire", p.name, time.Hour.Milliseconds())))
		p.Java(free(10))
		p.pass(time.Hour)
		assert.EqualValues(p, 1, p.rdb.Exists(p.Context(), p.keys.Value).Val())
	},
	"rename moves the configuration alone": func(p *play) {
		p.Java(sets(tenAnHour), take(10))
		to := p.name + ":new"
		require.NoError(p, limitertest.Second(ask[string](p.Context(), p.java.java, "rename", p.name, to)))
		p.java.do(to, take(10)) // 20 in one interval
	},
}

// TestDefects shows that Redisson gets wrong what docs/differences.md says, as far as the traces
// of TestGolden don't. The tests which that page names show that this module gets it right.
func TestDefects(t *testing.T) {
	t.Parallel()
	if *redissonVersion != newestRedisson {
		t.Skip("the defects are those of Redisson " + newestRedisson)
	}
	playEach(t, defects)
}
