package redisson_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// defects are each named after something that Redisson 4.7.0 does wrong: it would fail on that, and if it leaves wrong state
// behind, they show that we cope with it. So do the tests below whose names begin with TestDefect.
var defects = map[string]scenario{
	"ReleasedPermitsComeBackTwice": {cfg: every(10, 10*second), both: true, steps: []step{
		take(3), release(2), wait(second), take(5), wait(9 * second), free(5), wait(second), free(10),
	}},
	"AValueThatRedissonRaisedIsNotLowered": {cfg: every(10, 10*second), steps: []step{
		take(6), func(p *play) { p.java().Release(p, 6) }, free(10), take(10), refuse(1),
	}},
	"KeepStateForgetsWhatIsOwed": {cfg: every(10, 10*second), both: true, steps: []step{
		take(4), wait(5 * second), take(4), update(true, every(5, 10*second), keep), free(0), decides(1, 0, 5*second),
		wait(5 * second), free(1), grants(1, 4),
	}},
	"SetWithoutValueGrantsAnotherRate": {cfg: every(10, 10*second), steps: []step{
		take(5), wait(second), take(3), loseValue, decides(3, 2, 9*second), grants(2, 5),
	}},
	"AvailablePermitsLeavesAValueWithoutTTL": {cfg: every(10, hour), both: true, steps: []step{expire(minute), free(10), ends(2, minute)}},
	"ConfigIsReadFromAReplica":               {cfg: every(1, hour), steps: []step{readsByScripts}},
	"RenameMovesTheConfigAlone": {cfg: every(10, hour), both: true, steps: []step{take(8), func(p *play) {
		to := p.client.RateLimiter("to")
		limitertest.MustTrySetRate(p, to, every(3, minute))
		limitertest.MustAcquire(p, to, 3)
		from := p.l.Name()
		require.NoError(p, p.l.Rename(p.Context(), "to"))
		assert.Equal(p, from, p.l.Name())
		assert.EqualValues(p, 2, limitertest.Available(p, to))
		assert.Empty(p, limitertest.LimiterKeys(p, p.rdb, from))
	}, exceeds(rratelimiter.ErrNotInitialized, 1)}},
	"TrySetRateAddsAKeepAliveTimeToAnOlderLimiter": {everywhere: true, steps: []step{
		put("rate", 10, "interval", 1000, "type", 0), untouched(trySet(false, keepAlive(20, second, hour))),
	}},
	"ClientKeysStayForEver": {cfg: perClient(10, 10*second), steps: []step{
		func(p *play) {
			for range 20 {
				limitertest.MustAcquire(p, limitertest.NewClient(p, p.rdb).RateLimiter(p.l.Name()), 3)
				assert.EqualValues(p, 10, limitertest.Available(p, limitertest.NewClient(p, p.rdb).RateLimiter(p.l.Name())))
			}
		},
		there(1 + 20*3),
		take(4), wait(9 * second), free(6), // its keys live as long as its permits are in use
		take(6), wait(9 * second), free(4), wait(11 * second), there(1), free(10),
	}},
	// KeepState counts by the new interval, as Redisson does: what was granted within
	// it is in use, even what the old interval had let go of.
	"KeepStateCountsByTheNewInterval": {cfg: every(10, second), steps: []step{take(4), wait(1500 * ms), take(1), set(every(10, minute), keep), free(5)}},
}

func TestRedissonsDefects(t *testing.T) {
	t.Parallel()
	all := maps.Clone(defects)
	for name, steps := range map[string][]step{
		"take": {take(9)}, "one by one": {grants(9, 20)}, "available": {free(9)}, "KeepState": {set(every(20, hour), keep), free(19)},
	} {
		all["PermitsLeakedByDuplicatesAreLostForGood/"+name] = scenario{cfg: every(10, hour), steps: slices.Concat([]step{resent}, steps)}
	}
	for _, n := range []int64{-3, 2, 13} {
		all[fmt.Sprint("ValueWithoutSetFailsForGood/", n)] = scenario{cfg: every(10, hour), steps: []step{putValue(n), decides(5, 5, 0)}}
	}
	for _, n := range []int64{3, 100} {
		all[fmt.Sprint("AGrantAfterTheSetWasLostLeaksPermits/", n)] = scenario{
			cfg: every(100, hour), steps: []step{putValue(n), take(1), take(1), value(98)},
		}
	}
	for name, call := range map[string]step{
		"grants": does("TryAcquire"), "available": does("AvailablePermits"), "Release": release(1), "KeepState": set(every(10, hour), keep),
	} {
		all["ValueAboveTheRate/"+name] = scenario{cfg: every(10, 10*second), steps: []step{overfull, call, wholeAtMost}}
	}
	for name, call := range map[string]step{"SetRate": set(every(20, second)), "KeepState": set(every(20, second), keep)} {
		all["SetRateLeavesAnOldTTL/"+name] = scenario{cfg: keepAlive(10, second, 5*second), steps: []step{
			take(1), expire(5 * second), call, take(1), ends(3, noEnd), wait(10 * second), config(every(20, second)),
		}}
	}
	for name, call := range map[string]step{
		"TrySetRate": trySet(true, every(10, hour)), "SetRate": set(every(10, hour), keep), "WithDefault": wait(0),
	} {
		all["AnOldTTLOfThePairEndsPermitsInUse/"+name] = scenario{cfg: every(10, hour), byDefault: true, steps: []step{
			take(6), expire(minute), loseConfig, call, take(4), wait(2 * minute), refuse(1),
		}}
	}
	for rate, want := range map[int64]int64{20: 17, 10: 7, 5: 5} {
		all[fmt.Sprint("ANewRateReachesTheCallersPairAlone/", rate)] = scenario{cfg: perClient(10, hour), steps: []step{
			other(take(3)), set(perClient(rate, hour)), other(free(want)),
		}}
	}
	perform(t, all)
}

func resent(p *play) {
	member := limitertest.NewMember(p, codec.LayoutD2, 1)
	for range 9 {
		require.NoError(p, limitertest.Second(p.java().Resend(p, 1, member)))
	}
}

// overfull leaves a value of 13 in a limiter of rate 10, as Redisson does, and a grant.
func overfull(p *play) {
	require.NoError(p, limitertest.Granted(p.java().TryAcquire(p, 3)))
	p.java().Release(p, 3)
	time.Sleep(10 * second)
	require.EqualValues(p, 13, p.java().AvailablePermits(p))
	limitertest.AddGrants(p, p.rdb, p.keys().Permits, second, 1, 2)
}

func wholeAtMost(p *play) {
	stored, _ := limitertest.StoredValue(p, p.rdb, p.keys().Value)
	assert.LessOrEqual(p, stored, int64(10))
	assert.LessOrEqual(p, limitertest.Grants(p, p.l, 20), 10)
}

// readsByScripts reads: commands that only read may go to a replica, scripts do not.
func readsByScripts(p *play) {
	sent := limitertest.CountCommands(p.rdb)
	times(1, does("Config"), does("AvailablePermits"), does("TTL"))(p)
	assert.Equal(p, sent.Total(), sent.Scripts())
}

func TestDefectLargeRatesBreakTheValue(t *testing.T) {
	t.Parallel()
	const most, permits = rratelimiter.MaxRate, rratelimiter.MaxPermits
	var steps []step
	for left := int64(most - permits); left >= most-3*permits; left -= permits {
		steps = append(steps, decides(permits, left, 0), free(left), value(left))
	}
	tooHigh := func(rate int64) step {
		return fails(rratelimiter.ErrInvalidConfig, func(p *play) error { return p.l.SetRate(p.Context(), every(rate, hour)) })
	}
	scenario{cfg: every(most, hour), everywhere: true, steps: slices.Concat(steps, []step{
		loseValue, free(most - 3*permits), // rebuilt from the set
		set(every(1, hour), keep), value(1 - 3*permits), set(every(most, hour), keep), free(most - 3*permits),
		release(most), free(most), set(every(300, hour), keep), free(300), set(every(most, hour), keep), value(most),
		take(1), putValue(-3), free(most - 1), take(1), release(most - 1), free(most), tooHigh(most + 1), tooHigh(math.MaxInt64),
	})}.perform(t)
}

func TestDefectAnotherTypeLeavesTheOldKeys(t *testing.T) {
	t.Parallel()
	anew := func(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) step {
		return times(1, set(cfg, opts...), there(1), take(4), there(3))
	}
	scenario{cfg: every(10, hour), steps: []step{
		take(4), anew(perClient(10, hour)), anew(every(10, hour)), anew(perClient(10, hour), keep), anew(every(10, hour), keep),
	}}.perform(t)
}

// Others lower and raise the rate while a client has all of the one before in use: its own KeepState adds no permits to those.
func TestKeepState_PerClientCountsPermitsInUse(t *testing.T) {
	t.Parallel()
	to := func(rate int64) step { return update(true, perClient(rate, hour), keep) }
	scenario{cfg: perClient(17, hour), everywhere: true, steps: []step{
		take(17), other(to(10)), to(21), free(4), other(to(10)), to(12), free(0), release(17), free(12),
	}}.perform(t)
}

// uses returns a scenario for each of the calls by which a Client uses its pair of a limiter or changes
// how long that lives, but those left out.
func uses(of func(use step) scenario, but ...string) map[string]scenario {
	all := map[string]scenario{}
	for name, use := range map[string]step{
		"TryAcquire": does("TryAcquire"),
		"a refusal":  func(p *play) { limitertest.Try(p, p.l, 10) },
		"TryAcquireAll": func(p *play) {
			second := p.client.RateLimiter(limitertest.Besides(p.l.Name()), rratelimiter.WithDefault(every(9, second)))
			require.NoError(p, limitertest.Second(p.client.TryAcquireAll(p.Context(), 0, p.l.Claim(1), second.Claim(1))))
		},
		"Take":             does("Take"),
		"AvailablePermits": does("AvailablePermits"),
		"Release":          does("Release"),
		"Expire":           does("Expire"),
		"ExpireAt":         does("ExpireAt"),
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

// When the server's clock goes back, all ends move away as far. Whatever the next call is sets those of a Client's own pair
// right, so that nothing stays behind if it was the last one.
func TestPerClient_PairExpiresAfterClockWentBack(t *testing.T) {
	t.Parallel()
	of := func(use step) scenario {
		back := func(p *play) { p.setClock(-hour) }
		return scenario{cfg: perClient(10, second), steps: []step{take(3), takeReturnable, back, use, pairEnds(second)}}
	}
	all := uses(of)
	all["giving back"] = of(giveBack)
	all["Migrate of a lost value"] = scenario{cfg: perClient(10, second), steps: []step{take(3), loseValue, migrate, pairEnds(second)}}
	perform(t, all)
}

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

// With a longer interval, what other clients have in use counts longer. Their pairs live on by it from their next call on.
func TestPerClient_PairFollowsLongerIntervalAtNextCall(t *testing.T) {
	t.Parallel()
	perform(t, uses(func(use step) scenario {
		return scenario{cfg: perClient(10, minute), steps: []step{
			take(10), other(set(perClient(10, hour), keep)), wait(50 * second), use, wait(58 * minute), refuse(1),
		}}
	}, "Release", "KeepState")) // which change the permits in use
}

// A Redisson, or a person, may have given the configuration any end, also so far away that Redis can't count there from
// now: PEXPIRE refuses it, given how far away it is.
func TestConfig_AnyEndFailsNoCallHalfway(t *testing.T) {
	t.Parallel()
	perform(t, uses(func(use step) scenario {
		return scenario{cfg: every(100, hour), both: true, everywhere: true, steps: []step{
			take(5), func(p *play) {
				require.NoError(p, p.rdb.Do(p.Context(), "PEXPIREAT", p.l.Name(), int64(math.MaxInt64)).Err())
			},
			times(3, use, func(p *play) {
				value(limitertest.ConfigOf(p, p.l).Rate - limitertest.InUse(p, p.rdb, p.keys().Permits))(p)
			}), does("TTL"),
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
		"of a set that one call does not read": {cfg: every(1000, hour), steps: []step{
			rows(600, minute), loseConfig, func(p *play) {
				p.l = p.client.RateLimiter(p.l.Name(), rratelimiter.WithDefault(every(1000, hour)))
				require.True(p, limitertest.TryAll(p, p.client, 1, p.l, limitertest.ByDefault(p.client, limitertest.Besides(p.l.Name()), every(9, second))))
			}, free(399),
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

func TestDefectOlderLayoutsAreUnreadable(t *testing.T) {
	t.Parallel()
	layouts := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2}
	add := func(age time.Duration) step {
		return func(p *play) {
			for i, layout := range layouts {
				p.add(age+time.Duration(i)*ms, limitertest.NewMember(p, layout, uint32(i+1)))
			}
		}
	}
	scenario{cfg: every(100, hour), everywhere: true, steps: []step{
		add(30 * minute), loseValue, free(90), // a value rebuilt from members side by side
		add(2 * hour), add(minute), free(80), // what has run out comes back
		func(p *play) { assert.Len(p, members(p, p.rdb, p.keys().Permits), 8) },
		release(15), free(95), inUse(5),
		func(p *play) {
			for _, m := range members(p, p.rdb, p.keys().Permits) {
				assert.True(p, slices.Contains(layouts, m.Layout))
			}
			d := limitertest.Take(p, p.l, 96)
			assert.False(p, d.Granted)
			assert.EqualValues(p, 95, d.Remaining)
		},
	}}.perform(t)
}
