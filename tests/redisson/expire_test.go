package redisson_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
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
		require.NoError(p, limitertest.Second(p.client.TryAcquireAll(p.Context(), 0, p.l.Claim(1), second.Claim(1))))
	},
	"AvailablePermits": does("AvailablePermits"),
	"Release":          does("Release"),
	"Migrate":          migrate,
	"Expire":           does("Expire"),
	"ExpireAt":         does("ExpireAt"),
	"ClearExpire":      does("ClearExpire"),
	"KeepState": func(p *play) {
		cfg := limitertest.ConfigOf(p, p.l)
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
var keepAlives = limitertest.Rows[time.Duration](0, 5*second)

// A Client's own pair goes when it has not been used for an interval, or for the KeepAlive
// time, whatever was done to it last and whatever the limiter's own time to live is.
func TestPerClient_PairExpiresAfterLastUse(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]step{
		"used": wait(0), "ClearExpire": does("ClearExpire"), "Expire": expire(hour), "lost value": loseValue,
	}, func(t *testing.T, before step) {
		limitertest.Each(t, keepAlives, func(t *testing.T, d time.Duration) {
			cfg := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 10, Interval: second, KeepAlive: d}
			perform(t, uses(nil, func(use step) scenario {
				// A server keeps a key to the end of its last millisecond.
				return scenario{cfg: cfg, steps: []step{take(3), before, use, wait(max(second, d) + ms), noPair}}
			}))
		})
	})
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
func TestPerClient_PairExpiresAfterClockWentBack(t *testing.T) {
	t.Parallel()
	leave := []string{"Rename", "Migrate"} // the ends as they are
	for version, but := range map[string][]string{
		newest: leave, windowed: append(leave, "TryAcquireAll", "Release", "KeepState"), // which need a record of each grant
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			limitertest.Each(t, keepAlives, func(t *testing.T, d time.Duration) {
				of := func(use step) scenario {
					cfg := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 10, Interval: second, KeepAlive: d}
					back := func(p *play) { p.setClock(-hour) }
					return scenario{cfg: cfg, version: version, steps: []step{take(3), takeReturnable, back, use, pairEnds(max(second, d))}}
				}
				all := uses(but, of)
				all["giving back"] = of(giveBack)
				perform(t, all)
			})
		})
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

func TestTimeToLive_OfLimiterAndClientsPair(t *testing.T) {
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
func TestPerClient_PairFollowsLongerIntervalAtNextCall(t *testing.T) {
	t.Parallel()
	// The first is for the pairs of others too; the rest change the permits in use, or their place.
	but := []string{"Migrate", "Release", "KeepState", "Rename"}
	perform(t, uses(but, func(use step) scenario {
		return scenario{cfg: perClient(10, minute), steps: []step{
			take(10), other(set(perClient(10, hour), keep)), wait(50 * second), use, wait(58 * minute), refuse(1),
		}}
	}))
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
	perform(t, uses([]string{"Rename"}, func(use step) scenario {
		return scenario{cfg: every(100, hour), both: true, everywhere: true, steps: []step{
			take(5), beyondCounting, times(3, use, whole), does("TTL"),
		}}
	}))
}

// Calls of several limiters go together, in one script call.
func TestConfig_AnyEndFailsNoJointCallHalfway(t *testing.T) {
	t.Parallel()
	scenario{everywhere: true, steps: []step{func(p *play) {
		var all []*rratelimiter.RateLimiter
		client := limitertest.NewClient(p, p.rdb)
		for range 40 {
			its := *p
			its.l = client.RateLimiter(redistest.Name(p))
			times(1, trySet(true, every(100, hour)), take(1), beyondCounting)(&its)
			all = append(all, its.l)
		}
		for range 20 {
			limitertest.Together(len(all), func(i int) {
				granted, err := all[i].TryAcquire(p.Context(), 1, 0)
				assert.True(p, granted)
				assert.NoError(p, err)
			})
		}
		for _, l := range all {
			assert.EqualValues(p, 79, limitertest.Available(p, l))
		}
	}}}.perform(t)
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

// madeAnew are the calls that give a limiter a configuration, after its own was
// lost alone, as Redisson's unlink or an eviction leaves it.
var madeAnew = map[string]func(cfg rratelimiter.Config) step{
	"TrySetRate": func(cfg rratelimiter.Config) step { return trySet(true, cfg) },
	"KeepState":  func(cfg rratelimiter.Config) step { return set(cfg, keep) },
	"WithDefault": func(cfg rratelimiter.Config) step {
		return func(p *play) { p.l = p.client.RateLimiter(p.l.Name(), rratelimiter.WithDefault(cfg)) }
	},
	"TryAcquireAll": func(cfg rratelimiter.Config) step {
		return func(p *play) {
			beside := p.client.RateLimiter(limitertest.Besides(p.l.Name()))
			limitertest.MustTrySetRate(p, beside, every(1, hour))
			limitertest.MustAcquire(p, beside, 1)
			l := p.client.RateLimiter(p.l.Name(), rratelimiter.WithDefault(cfg))
			require.False(p, limitertest.TryAll(p, p.client, 1, l, beside))
			p.l = p.client.RateLimiter(p.l.Name())
		}
	},
}

// The permits in use count if nothing says of which rate the value is the rest, so that no
// more than the new rate is granted.
func TestLostConfig_KeepStateCountsPermitsInUse(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{
		// Members that have run out show nothing either: a Redisson would take the value for
		// the free permits.
		"all has run out": {cfg: every(50, hour), steps: []step{
			take(1), wait(2 * minute), loseConfig, set(every(2, minute), keep), there(1), grants(2, 20),
		}},
	}
	for _, cfg := range []rratelimiter.Config{every(1, hour), every(2, hour), every(9, hour), perClient(2, hour)} {
		before := cfg
		before.Rate = 5
		all[fmt.Sprint(cfg.Type, " ", cfg.Rate)] = scenario{cfg: before, everywhere: true, steps: []step{
			take(1), loseConfig, set(cfg, keep), grants(int(cfg.Rate)-1, 20),
		}}
	}
	perform(t, all)
}

// A rate of 100 is lost while 10 are in use; the free permits by the new one follow from the
// permits in use, whatever the value is.
func TestLostConfig_PermitsInUseCount(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for what, makeAnew := range madeAnew {
		for version, kind := range map[string]rratelimiter.RateType{
			newest: rratelimiter.PerClient, "3.52.0": rratelimiter.Overall, "3.27.2": rratelimiter.Overall,
			"3.20.1": rratelimiter.Overall, "3.16.8": rratelimiter.Overall, "3.15.5": rratelimiter.PerClient,
		} {
			old, steps := every(100, minute), []step{}
			old.Type = kind
			for _, tc := range []struct{ rate, free, later int }{{10, 0, 4}, {15, 5, 9}, {5, 0, 0}, {200, 190, 194}} {
				for value, damage := range map[string]step{
					"its own": wait(0), "90": keepTTL("90"), "0": keepTTL("0"), "-7": keepTTL("-7"), "gone": loseValue,
				} {
					cfg, many := every(int64(tc.rate), minute), max(0, tc.free-20)
					cfg.Type = kind
					steps = append(steps,
						another(fmt.Sprintf("of %d beside value %s", tc.rate, value)),
						take(4), wait(20*second), take(6), loseConfig, damage, makeAnew(cfg),
						times(min(many, 1), take(int64(many))), grants(tc.free-many, tc.free-many+1),
						wait(40*second), grants(tc.later-tc.free, tc.later-tc.free+1), // four are back
						wait(minute), free(int64(tc.rate)),
					)
				}
			}
			all[what+"/"+version] = scenario{cfg: old, version: version, steps: steps}
		}
	}
	perform(t, all)
}

// another goes on with a new limiter of the same rate, which failures name so.
func another(what string) step {
	return func(p *play) {
		p.Log(what)
		p.l = p.client.RateLimiter(redistest.Name(p))
		limitertest.MustTrySetRate(p, p.l, p.cfg)
	}
}

// keepTTL writes the value, and leaves its end.
func keepTTL(value string) step {
	return func(p *play) { require.NoError(p, p.rdb.Set(p.Context(), p.keys().Value, value, redis.KeepTTL).Err()) }
}

// A value without a set beside it is the rest of nothing: the set was lost too.
// All that is in use of another type counts no more.
func TestLostConfig_ValueWithoutSetIsFree(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	kinds := []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient}
	for what, makeAnew := range madeAnew {
		for _, was := range kinds {
			for _, is := range kinds {
				old, cfg := every(100, hour), every(10, hour)
				old.Type, cfg.Type = was, is
				steps := []step{take(97), loseConfig}
				if was == is {
					steps = append(steps, losePermits)
				}
				all[fmt.Sprint(what, "/", was, " to ", is)] = scenario{cfg: old, steps: append(steps, makeAnew(cfg), func(p *play) {
					stored, there := limitertest.StoredValue(p, p.rdb, keysInUse(p.l.Name(), is).Value)
					assert.True(p, what == "WithDefault" || !there || stored == 10, "a Redisson would take the value for what is free")
				}, grants(10, 11))}
			}
		}
	}
	perform(t, all)
}

func TestLostConfig_Values(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for what, makeAnew := range madeAnew {
		// Nothing says of which rate a window's value is the rest, but the set tells what at
		// least is in use.
		all["a window/"+what] = scenario{cfg: every(100, minute), steps: []step{
			oldTakes(1), take(8), loseConfig, makeAnew(every(10, minute)), grants(2, 3), valueEnds(minute),
		}}
		// Its interval is all that the keep-alive time is: both may end in the same second.
		all["a window that ends with the limiter/"+what] = scenario{cfg: every(100, minute), steps: []step{
			oldTakes(93), loseConfig, makeAnew(keepAlive(100, minute, minute)), grants(7, 8), wait(50 * second), refuse(1),
			valueEnds(10 * second), wait(10*second + ms), free(100),
		}}
		// A value that ends with a configuration that had a time to live is no window
		// if it counts nothing: a Redisson that finds it gone, beside permits in use,
		// would grant the whole rate.
		all["a value that counts nothing/"+what] = scenario{cfg: every(10, minute), steps: []step{
			take(3), expire(2 * minute), release(3), wait(90 * second), loseConfig, makeAnew(every(10, minute)),
			take(10), wait(45 * second),
			func(p *play) {
				stored, there := limitertest.StoredValue(p, p.rdb, p.keys().Value)
				assert.True(p, there)
				assert.Zero(p, stored)
			},
		}}
	}
	perform(t, all)
}

// The steps of a large set change nothing until the last, so that one whose
// answer was lost leaves nothing half done; nothing is granted before.
func TestLostConfig_IsMadeInLastStep(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for name, tc := range map[string]struct {
			script *lua.Script
			args   []any
			token  int
		}{
			"TrySetRate":    {lua.SetRate, []any{1000, 3_600_000, 0, 0, 1, "new", ""}, 6},
			"KeepState":     {lua.SetRate, []any{1000, 3_600_000, 0, 0, 1, "", ""}, 6},
			"WithDefault":   {lua.Acquire, []any{limitertest.NewMember(t, codec.LayoutD2, 1), 1, "1000 3600000 0 0", "", "", ""}, 5},
			"TryAcquireAll": {lua.AcquireAll, []any{limitertest.NewMember(t, codec.LayoutD2, 1), 1, "", "", "", "1000 3600000 0 0"}, 4},
		} {
			l := limitertest.NewHandle(t, rdb)
			k := limitertest.KeysOf(l)
			require.NoError(t, rdb.Set(t.Context(), k.Value, 77, 0).Err())
			limitertest.AddGrants(t, rdb, k.Permits, time.Minute, 600, 1)
			for step := 0; ; step++ {
				before := limitertest.ReadState(t, rdb, l.Name())
				answer, err := rdb.Eval(t.Context(), tc.script.Source, k.List(), tc.args...).Result()
				require.NoError(t, err, name)
				if again, ok := answer.([]any); ok && again[0] == "again" {
					require.Equal(t, before, limitertest.ReadState(t, rdb, l.Name()), name)
					tc.args[tc.token] = again[1]
					continue
				}
				assert.Equal(t, 2, step, name)
				value, _ := limitertest.StoredValue(t, rdb, k.Value)
				assert.Equal(t, 1000-limitertest.InUse(t, rdb, k.Permits), value, name)
				break
			}
		}
	})
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
