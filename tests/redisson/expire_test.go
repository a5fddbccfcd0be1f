package redisson_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// uses returns a scenario for each of the calls by which a Client uses its pair of a limiter or changes
// how long that lives, but those left out.
func uses(of func(use step) scenario, but ...string) map[string]scenario {
	all := map[string]scenario{}
	for name, use := range map[string]step{
		"TryAcquire": does("TryAcquire"),
		"a refusal": func(p *play) {
			require.NoError(p, limitertest.Second(p.l.TryAcquire(p.Context(), 10, 0)))
		},
		"TryAcquireAll": func(p *play) {
			second := p.client.RateLimiter(limitertest.Besides(p.l.Name()), rratelimiter.WithDefault(every(9, second)))
			require.NoError(p, limitertest.Second(p.client.TryAcquireAll(p.Context(), 0, p.l.Claim(1), second.Claim(1))))
		},
		"AvailablePermits": does("AvailablePermits"),
		"Release":          does("Release"),
		"Expire":           does("Expire"),
		"ClearExpire":      does("ClearExpire"),
		"KeepState": func(p *play) {
			cfg := limitertest.ConfigOf(p, p.l)
			cfg.Rate++
			require.NoError(p, p.l.SetRate(p.Context(), cfg, keep))
		},
	} {
		if !slices.Contains(but, name) {
			all[name] = of(use)
		}
	}
	return all
}

// When the server's clock goes back, all ends move away as far. Whatever the next
// call is sets those of a Client's own pair right, so that nothing stays behind if
// it was the last one.
func TestPerClient_PairExpiresAfterClockWentBack(t *testing.T) {
	t.Parallel()
	of := func(use step) scenario {
		back := func(p *play) { p.setClock(-hour) }
		return scenario{cfg: perClient(10, second), steps: []step{take(3), takeReturnable, back, use, pairEnds(second)}}
	}
	all := uses(of)
	all["giving back"] = of(giveBack)
	perform(t, all)
}

// pairEnds compares the times to live of the Client's pair.
func pairEnds(most time.Duration) step {
	return func(p *play) {
		for key, ttl := range limitertest.TTLs(p, p.rdb, p.l.Name()) {
			if key != p.l.Name() {
				assert.LessOrEqual(p, ttl, most, key)
				assert.Positive(p, ttl, key)
			}
		}
	}
}

// With a longer interval, what other clients have in use counts longer. Their
// pairs live on by it from their next call on.
func TestPerClient_PairFollowsLongerIntervalAtNextCall(t *testing.T) {
	t.Parallel()
	perform(t, uses(func(use step) scenario {
		return scenario{cfg: perClient(10, minute), steps: []step{
			take(10), other(set(perClient(10, hour), keep)), wait(50 * second), use, wait(58 * minute), refuse(1),
		}}
	}, "Release", "KeepState")) // which change the permits in use
}

// beyondCounting are ends of a configuration so far away that Redis can't count there from now:
// PEXPIRE refuses them, given how far away they are.
func beyondCounting(p *play) {
	require.NoError(p, p.rdb.Do(p.Context(), "PEXPIREAT", p.l.Name(), int64(math.MaxInt64)).Err())
}

// whole checks that the value is the permits not in use.
func whole(p *play) {
	stored, _ := limitertest.StoredValue(p, p.rdb, p.keys().Value)
	assert.Equal(p, limitertest.ConfigOf(p, p.l).Rate, stored+limitertest.InUse(p, p.rdb, p.keys().Permits))
}

// A Redisson, or a person, may have given the configuration any end.
func TestConfig_AnyEndFailsNoCallHalfway(t *testing.T) {
	t.Parallel()
	perform(t, uses(func(use step) scenario {
		return scenario{cfg: every(100, hour), both: true, everywhere: true, steps: []step{
			take(5), beyondCounting, times(3, use, whole), does("TTL"),
		}}
	}))
}

// Others may have written intervals and keep-alive times up to the largest exact number.
func TestConfig_AnyIntervalFailsNoCallHalfway(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for _, version := range []string{newest, windowed} {
		for _, d := range []int64{0, 1<<53 - 1} {
			for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
				all[fmt.Sprint(version, " keep alive ", d, " ", kind)] = scenario{version: version, everywhere: true, steps: []step{
					put("rate", 10, "interval", int64(1<<53-1), "type", int(kind), "keepAliveTime", d),
					grants(10, 11), free(0), does("Expire"), does("ClearExpire"), free(0), refuse(1),
				}}
			}
		}
	}
	perform(t, all)
}

// A rate of 100 is lost alone while 10 are in use, as Redisson's unlink or an eviction leaves it; the free permits by the new
// one follow from the permits in use, whatever the value is.
func TestLostConfig_PermitsInUseCount(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{
		// Members that have run out show nothing either: a Redisson would take the value for the free permits.
		"all has run out": {cfg: every(50, hour), steps: []step{
			take(1), wait(2 * minute), loseConfig, set(every(2, minute), keep), there(1), grants(2, 20),
		}},
		// A value that ends with a configuration that had a time to live is no window if it counts nothing: a Redisson
		// that finds it gone, beside permits in use, would grant the whole rate.
		"a value that counts nothing": {cfg: every(10, minute), steps: []step{
			take(3), expire(2 * minute), release(3), wait(90 * second), loseConfig, trySet(true, every(10, minute)),
			take(10), wait(45 * second), value(0), exists(true), there(3),
		}},
	}
	for rate, free := range map[int64]int{15: 5, 5: 0} {
		cfg := every(rate, minute)
		for what, makeAnew := range map[string]step{
			"TrySetRate": trySet(true, cfg), "KeepState": set(cfg, keep),
			"WithDefault": func(p *play) { p.l = p.client.RateLimiter(p.l.Name(), rratelimiter.WithDefault(p.of(cfg))) },
		} {
			all[fmt.Sprint(what, " of ", rate)] = scenario{cfg: every(100, minute), both: true, steps: []step{
				take(4), wait(20 * second), take(6), loseConfig, makeAnew, grants(free, 10),
			}}
		}
	}
	perform(t, all)
}

// A lost value is rebuilt from a large set in several calls. Permits that are given
// back between them take their rows out of it; no other is left out for that.
func TestLostValue_IsRebuiltWhileOthersGiveBack(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(100_000, hour), steps: []step{func(p *play) {
		limitertest.AddGrants(p, p.rdb, p.keys().Permits, minute, 600, 100)
		putValue(100_000 - 600*100)(p)
		others := limitertest.NewClient(p, p.rdb).Keyed("", p.cfg)
		var undos []func(context.Context) error
		for range 20 {
			_, undo, err := others.TakeReturnable(p.Context(), p.l.Name(), 1)
			require.NoError(p, err)
			undos = append(undos, undo)
			time.Sleep(ms)
		}
		times(1, take(1), loseValue)(p)
		calls := 0
		p.rdb.AddHook(limitertest.BeforeScript(lua.Acquire, func() {
			if calls++; calls == 2 {
				for _, undo := range undos {
					require.NoError(p, undo(p.Context()))
				}
			}
		}))
		take(1)(p)
		assert.GreaterOrEqual(p, calls, 3)
	}, inUse(600*100 + 2), value(100_000 - 600*100 - 2)}}.perform(t)
}
