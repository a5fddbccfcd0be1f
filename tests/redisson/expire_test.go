package redisson_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// pairUses are the calls by which a Client uses its pair of a limiter or changes
// how long that lives.
var pairUses = map[string]step{
	"TryAcquire": does("TryAcquire"),
	"a refusal": func(p *play) {
		require.NoError(p, limitertest.Second(p.l.TryAcquire(p.Context(), 10, 0)))
	},
	"Take": does("Take"),
	"TryAcquireAll": func(p *play) {
		second := p.client.RateLimiter(limitertest.Besides(p.l.Name()), rratelimiter.WithDefault(every(9, second)))
		require.NoError(p, limitertest.Second(p.client.TryAcquireAll(p.Context(), 1, 0, p.l, second)))
	},
	"AvailablePermits": does("AvailablePermits"),
	"Release":          does("Release"),
	"Migrate":          migrate,
	"Expire":           does("Expire"),
	"ExpireAt":         does("ExpireAt"),
	"ClearExpire":      does("ClearExpire"),
	"KeepState": func(p *play) {
		cfg, err := p.l.Config(p.Context())
		require.NoError(p, err)
		cfg.Rate++
		require.NoError(p, p.l.SetRate(p.Context(), cfg, keep))
	},
	"Rename": does("Rename"),
}

// uses returns a scenario for each of pairUses but those left out.
func uses(but []string, of func(use step) scenario) map[string]scenario {
	all := map[string]scenario{}
	for name, use := range pairUses {
		if !slices.Contains(but, name) {
			all[name] = of(use)
		}
	}
	return all
}

// keepAlives are times after which a limiter goes that is not used.
var keepAlives = []time.Duration{0, 5 * second}

// A Client's own pair goes when it has not been used for an interval, or for the KeepAlive
// time, whatever was done to it last and whatever the limiter's own time to live is.
func TestAClientsPairGoesAfterItsLastUse(t *testing.T) {
	t.Parallel()
	for what, before := range map[string]step{
		"": wait(0), "ClearExpire": does("ClearExpire"), "Expire": expire(hour), "lost value": loseValue,
	} {
		for _, d := range keepAlives {
			t.Run(fmt.Sprint(what, " keep alive ", d), func(t *testing.T) {
				t.Parallel()
				cfg := perClient(10, second)
				cfg.KeepAlive = d
				perform(t, uses(nil, func(use step) scenario {
					// A server keeps a key to the end of its last millisecond.
					return scenario{cfg: cfg, steps: []step{take(3), before, use, wait(max(second, d) + ms), noPair}}
				}))
			})
		}
	}
}

// noPair has the Client's pair be gone, of a limiter that was renamed too.
func noPair(p *play) {
	for _, name := range []string{p.l.Name(), limitertest.Besides(p.l.Name())} {
		k := redisson.KeysOf(name, ownID)
		assert.Zero(p, p.rdb.Exists(p.Context(), k.ClientValue, k.ClientPermits).Val(), "%v", limitertest.TTLs(p, p.rdb, name))
	}
}

// When the server's clock goes back, all ends move away as far. Whatever the next
// call is sets those of a Client's own pair right, so that nothing stays behind if
// it was the last one.
func TestAClientsPairGoesAfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	leave := []string{"Rename", "Migrate"} // the ends as they are
	for version, but := range map[string][]string{
		newest: leave, windowed: append(leave, "TryAcquireAll", "Release", "KeepState"), // which need a record of each grant
	} {
		for _, d := range keepAlives {
			t.Run(fmt.Sprint(version, " keep alive ", d), func(t *testing.T) {
				t.Parallel()
				cfg := perClient(10, second)
				cfg.KeepAlive = d
				of := func(use step) scenario {
					back := func(p *play) { p.setClock(-hour) }
					return scenario{cfg: cfg, version: version, steps: []step{take(3), takeReturnable, back, use, pairEnds(max(second, d))}}
				}
				all := uses(but, of)
				all["giving back"] = of(giveBack)
				perform(t, all)
			})
		}
	}
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

func TestTheTimeToLiveOfALimiterAndOfAClientsPair(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{
		// The one that a Client's own pair always has is none of the limiter's.
		"clear": {cfg: every(10, minute), both: true, steps: []step{
			take(1), clearExpire(false), expire(hour), clearExpire(true), clearExpire(false),
		}},
		"a pair lives for the keep-alive time": {
			cfg:   rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 10, Interval: second, KeepAlive: 5 * second},
			steps: []step{take(1), does("ClearExpire"), wait(3 * second), there(3)},
		},
		"a pair goes before a long-lived config": {cfg: perClient(10, minute), steps: []step{
			expire(hour), take(1), wait(61 * second), there(1),
		}},
	}
	for name, op := range map[string]step{"clear": clearExpire(true), "expire": expire(hour)} {
		// The permits in use count although an earlier end of the limiter would have taken the
		// pair away.
		all[name+", after an end that is taken back"] = scenario{cfg: perClient(10, minute), steps: []step{
			take(10), expire(second), op, wait(59 * second), refuse(1),
		}}
	}
	for name, op := range map[string]step{"clear": does("ClearExpire"), "expire": expire(hour)} {
		// What a Client keeps of a limiter that others have made a shared one is in no
		// one's way, and goes as it would have.
		all[name+", of a pair that is not in use"] = scenario{cfg: perClient(10, second), steps: []step{
			take(1), other(set(every(10, second))), op, wait(second + ms), there(1),
		}}
	}
	perform(t, all)
}

// With a longer interval, what other clients have in use counts longer. Their
// pairs live on by it from their next call on.
func TestALongerIntervalReachesAClientsPairByItsNextCall(t *testing.T) {
	t.Parallel()
	// The first is for the pairs of others too; the rest change what is in use, or where.
	but := []string{"Migrate", "Release", "KeepState", "Rename"}
	perform(t, uses(but, func(use step) scenario {
		return scenario{cfg: perClient(10, minute), steps: []step{
			take(10), other(set(perClient(10, hour), keep)), wait(50 * second), use, wait(58 * minute), refuse(1),
		}}
	}))
}

// beyondCounting are ends of a configuration so far away that Redis can't count
// there from now: PEXPIRE refuses them, once it is told how far it is.
func beyondCounting(p *play) {
	require.NoError(p, p.rdb.Do(p.Context(), "PEXPIREAT", p.l.Name(), int64(math.MaxInt64)).Err())
}

// whole has the value be what is not in use.
func whole(p *play) {
	cfg, err := p.l.Config(p.Context())
	require.NoError(p, err)
	stored, _ := limitertest.StoredValue(p, p.rdb, p.keys().Value)
	assert.Equal(p, cfg.Rate, stored+limitertest.InUse(p, p.rdb, p.keys().Permits))
}

// A Redisson, or a person, may have given the configuration any end.
func TestNoEndOfTheConfigurationFailsACallHalfway(t *testing.T) {
	t.Parallel()
	perform(t, uses([]string{"Rename"}, func(use step) scenario {
		return scenario{cfg: every(100, hour), both: true, everywhere: true, steps: []step{
			take(5), beyondCounting, times(3, use, whole), does("TTL"),
		}}
	}))
}

// Calls of several limiters go together, in one script call.
func TestNoEndOfTheConfigurationFailsAJointCallHalfway(t *testing.T) {
	t.Parallel()
	scenario{everywhere: true, steps: []step{func(p *play) {
		var all []*rratelimiter.RateLimiter
		client := limitertest.NewClient(p, p.rdb, rratelimiter.WithCallTimeout(time.Minute))
		for range 40 {
			its := *p
			its.l = client.RateLimiter(redistest.Name(p))
			times(1, trySet(true, every(100, hour)), take(1), beyondCounting)(&its)
			all = append(all, its.l)
		}
		for range 20 {
			var callers sync.WaitGroup
			for _, l := range all {
				callers.Go(func() {
					granted, err := l.TryAcquire(p.Context(), 1, 0)
					assert.True(p, granted)
					assert.NoError(p, err)
				})
			}
			callers.Wait()
		}
		for _, l := range all {
			assert.EqualValues(p, 79, limitertest.Available(p, l))
		}
	}}}.perform(t)
}

// Others may have written intervals and keep-alive times as long as a number can
// be told exactly.
func TestNoIntervalOrKeepAliveTimeFailsACallHalfway(t *testing.T) {
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
