package compat_test

import (
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
		members := p.rdb.ZCard(p.Context(), layout.KeysOf(p.name, "").Permits).Val()
		require.Less(p, members, int64(200), "no member stands for more than one grant")
		p.Java(free(100), refuse(101), take(100), refuse(1))

		// Some of a merged member is given back; Java reads the rest.
		p.Go(release(150))
		p.Java(free(150), keeps(rratelimiter.PerHour(400)), free(250))

		// The permits run out. Redisson then counts the members that it sweeps.
		p.pass(time.Hour)
		p.Java(free(400), take(400))
		p.Go(free(0))
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
		p.Go(sets(rratelimiter.PerHour(rate)), take(many))
		p.both(free(rate - many))
		p.Java(take(5))
		p.both(free(rate - many - 5))
		p.pass(time.Hour)
		p.Java(take(many))
		p.both(free(rate - many))
		p.Go(release(many-1), keeps(rratelimiter.PerHour(rate-1)))
		p.both(free(rate - 2))
	}
}

func TestJava(t *testing.T) {
	t.Parallel()
	requireRelease(t, "3.35.0")
	all := maps.Clone(shared)
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		all[fmt.Sprint("ReadsOverrides/", kind)] = readsOverride(kind)
	}
	for _, rate := range []int64{1 << 31, 1 << 32, rratelimiter.MaxRate} {
		all[fmt.Sprint("CountsMembersOfManyPermits/", rate)] = countsMany(rate)
	}
	driver := sharedDriver(t)
	limitertest.Each(t, all, func(t *testing.T, test func(p *play)) {
		p := &play{T: t, rdb: redistest.Redis(t), name: redistest.Name(t)}
		p.java, p.goes = driver.service(t, redistest.Shared(t).URL()), newGo(t, p.rdb)
		test(p)
	})
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
