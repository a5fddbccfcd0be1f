package concurrency_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// Requests beyond one batch's bounds go in the next, and all are answered.
func TestBatch_OverflowGoesInNext(t *testing.T) {
	t.Parallel()
	type row struct {
		count   int
		permits func(i int) int64
		upTo    bool
	}
	limitertest.Bubbles(t, map[string]row{
		"requests": {lane.MaxRequests + 10, func(int) int64 { return 1 }, false},
		"runs":     {300, func(i int) int64 { return int64(i%2 + 1) }, false},
		"permits":  {300, func(int) int64 { return 1 << 30 }, false},
		"TakeUpTo": {300, func(int) int64 { return 2 }, true},
	}, func(t *testing.T, row row) {
		rdb, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		c := rratelimiter.New(proxy.Client(t, nil), limitertest.Patient())
		l := limitertest.ByDefault(c, redistest.Name(t), rratelimiter.PerHour(1<<40))
		gate := make(chan struct{})
		proxy.OnCommand(redistest.Nth(1, l.Name(), redistest.Pass.When(gate)))
		go func() {
			synctest.Wait()
			close(gate)
		}()
		limitertest.Together(row.count, func(i int) {
			if !row.upTo {
				limitertest.MustAcquire(t, l, row.permits(i))
			} else if n, _, err := l.TakeUpTo(t.Context(), row.permits(i)); assert.NoError(t, err) {
				assert.Equal(t, row.permits(i), n)
			}
		})
		sum := int64(0)
		for i := range row.count {
			sum += row.permits(i)
		}
		require.NoError(t, c.Close(t.Context()))
		value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
		assert.Equal(t, int64(1<<40)-sum, value)
		assert.Equal(t, sum, limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits), "the members hold what was granted")
	})
}

// answering is a Redis that knows no limiter and answers every script at once.
type answering struct{}

func (answering) Pipeline() redis.Pipeliner { panic("no pipeline is wanted") }

func (answering) Process(_ context.Context, cmd redis.Cmder) error {
	reply := any(int64(0))
	switch cmd.Args()[1] {
	case lua.Available.SHA:
		reply = []any{int64(0), int64(0)}
	case lua.Acquire.SHA:
		taken := int64(0)
		// The sum stands behind the keys and the member, except for one permit.
		if args := cmd.Args()[4+cmd.Args()[2].(int):]; len(args) == 0 || args[0] == "1" {
			taken = 1
		}
		reply = []any{int64(9), int64(1), taken, int64(1000), int64(1000), int64(0), int64(0), int64(50)}
	}
	cmd.(interface{ SetVal(val any) }).SetVal(reply)
	return nil
}

// What a call allocates of its own: a closure that comes to need the heap shows here. The race detector adds one or two.
//
//nolint:paralleltest // others' allocations would count
func TestTryAcquire_Allocations(t *testing.T) {
	l := rratelimiter.New(answering{}, limitertest.Patient()).RateLimiter("orders", rratelimiter.WithExact())
	for _, ctx := range []context.Context{context.WithoutCancel(t.Context()), t.Context()} {
		for _, timeout := range []time.Duration{0, time.Minute} {
			allocations := math.Inf(1)
			for range 3 { // what tests before leave to end may allocate meanwhile
				allocations = min(allocations, testing.AllocsPerRun(1000, func() {
					if ok, err := l.TryAcquire(ctx, 1, timeout); err != nil || !ok {
						t.Error(ok, err)
					}
				}))
			}
			assert.LessOrEqual(t, allocations, 13.0, "timeout %v", timeout)
		}
	}
}

// crowdOn makes callers ask limiters at random. It returns how many permits each granted.
func crowdOn(t *testing.T, limiters []*rratelimiter.RateLimiter, callers, tries int) []int64 {
	t.Helper()
	granted := make([]int64, len(limiters))
	limitertest.Together(callers, func(int) {
		for range tries {
			i := rand.IntN(len(limiters))
			permits := 1 + rand.Int64N(3)
			ok, err := limiters[i].TryAcquire(context.Background(), permits, 0)
			assert.NoError(t, err)
			if ok {
				atomic.AddInt64(&granted[i], permits)
			}
		}
	})
	return granted
}

func limitersOf(t *testing.T, rdb redistest.Client, n int, cfg rratelimiter.Config) []*rratelimiter.RateLimiter {
	t.Helper()
	client := limitertest.NewClient(t, rdb)
	limiters := make([]*rratelimiter.RateLimiter, n)
	for i := range limiters {
		limiters[i] = limitertest.ByDefault(client, redistest.Name(t), cfg)
	}
	return limiters
}

// Callers of several limiters share script calls, and are granted what they would be one by one.
func TestCallersOfManyLimitersShareCalls(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		var calls, together atomic.Int64 // that decide about several limiters, and how many those are
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
			for _, cmd := range cmds {
				if args := cmd.Args(); len(args) > 2 && (args[1] == lua.AcquireMany.SHA || args[1] == lua.AcquireMany.Source) {
					calls.Add(1)
					n, _ := args[2].(int)
					together.Add(int64(n / 3))
				}
			}
		}))
		const rate = 100
		limiters := limitersOf(t, rdb, 10, limitertest.Every(rate, time.Hour))
		for i, granted := range crowdOn(t, limiters, 32, 60) {
			keys := limitertest.KeysOf(limiters[i])
			assert.LessOrEqual(t, granted, int64(rate))
			assert.Greater(t, granted, int64(rate-3), "what fits is granted")
			assert.Equal(t, granted, limitertest.InUse(t, rdb, keys.Permits))
			assert.Equal(t, fmt.Sprint(rate-granted), rdb.Get(t.Context(), keys.Value).Val())
		}
		if _, isCluster := rdb.(*redis.ClusterClient); isCluster {
			assert.Zero(t, calls.Load(), "keys of different slots can't share a call")
		} else {
			assert.Positive(t, calls.Load())
			assert.Greater(t, together.Load(), calls.Load())
		}
	})
}

// A damaged limiter fails its own callers, and puts no others in doubt.
func TestJointCall_DamagedLimiterFailsOnlyItsCallers(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		limiters := limitersOf(t, rdb, 8, limitertest.Every(10_000, time.Hour))
		crowdOn(t, limiters, 8, 10)
		damaged := limiters[3]
		limitertest.Damage(t, rdb, damaged, "SET permits text")
		limitertest.Together(32, func(int) {
			for range 20 {
				l := limiters[rand.IntN(len(limiters))]
				_, err := l.TryAcquire(context.Background(), 1, 0)
				if l == damaged {
					assert.ErrorIs(t, err, rratelimiter.ErrCorrupt)
				} else {
					assert.NoError(t, err)
				}
			}
		})
		for _, l := range limiters {
			assert.False(t, rdb.HExists(t.Context(), limitertest.KeysOf(l).Config, "answered").Val(), "no attempt was in doubt")
		}
	})
}

// Permits of callers that have gone are free within the time of a call, however many went.
func TestContext_HundredsOfCancelledCallersGiveBack(t *testing.T) {
	t.Parallel()
	const callers, waves, trip, callTime = 300, 3, 100 * ms, 1500 * ms
	type row struct {
		beside string
		names  int
		log    bool // they are keys of a sliding log
	}
	limitertest.Bubbles(t, map[string]row{
		"one limiter":                     {"3.35.0", 1, false},
		"as many limiters":                {"3.35.0", callers, false},
		"one limiter beside old releases": {"3.15.5", 1, false},
		"keys of a sliding log":           {"3.35.0", callers, true},
	}, func(t *testing.T, row row) {
		near, m := redistest.Mini(t)
		far := limitertest.FarAwayOf(t, m, trip)
		client := limitertest.NewClient(t, far, rratelimiter.WithRedissonVersion(row.beside), rratelimiter.WithCallTimeout(callTime))
		log := slidinglog.New(client, slidinglog.Config{Limit: 10, Window: time.Hour})
		for wave := range waves {
			ctx, cancel := context.WithTimeout(t.Context(), trip/2)
			limitertest.Together(callers/waves, func(i int) {
				name := strconv.Itoa((wave*callers/waves + i) % row.names)
				if row.log {
					_, _ = log.Take(ctx, name, 1)
				} else {
					_, _ = limitertest.ByDefault(client, name, limitertest.Every(100_000, time.Hour)).TryAcquire(ctx, 1, 0)
				}
			})
			cancel()
			time.Sleep(trip / 2)
		}
		time.Sleep(callTime)
		for i := range row.names {
			key := redisson.KeysOf(strconv.Itoa(i), "").Permits
			if row.log {
				key = strconv.Itoa(i)
			}
			assert.Zero(t, near.ZCard(t.Context(), key).Val(), "permits in use that no caller has")
		}
	})
}

// doubt draws what becomes of a call.
func doubt(dice *rand.Rand, cmd redistest.Command) redistest.Action {
	late := time.Duration(1+dice.IntN(20)) * ms
	switch n := dice.IntN(12); {
	case cmd.Name() != "evalsha":
		return redistest.Pass
	case n == 0:
		return redistest.DropAnswer.After(late)
	case n == 1:
		return redistest.Cut.After(late)
	case n == 2:
		return redistest.Swallow
	}
	return redistest.Pass.After(late)
}

// callAny makes a random call, and returns how long it may take.
func callAny(ctx context.Context, draw *rand.Rand, f *limitertest.Family) (bound time.Duration) {
	l, call := f.Limiters[draw.IntN(3)], 3*time.Second
	switch draw.IntN(9) {
	case 0, 1:
		_, _ = l.TryAcquire(ctx, 1+draw.Int64N(4), 0)
	case 2:
		_, _ = l.TryAcquire(ctx, 1+draw.Int64N(40), 300*ms)
		return 400 * ms
	case 3:
		_, _ = l.Take(ctx, 1)
		return 2 * call // a second question may be what its figures take
	case 4, 5:
		_ = l.Release(ctx, 1+draw.Int64N(8))
		return 3 * call // in several calls, behind the end of a lease
	case 6:
		order := draw.Perm(3)
		timeout := time.Duration(draw.IntN(2)) * 200 * ms
		_, _ = f.Client.TryAcquireAll(ctx, timeout, f.Limiters[order[0]].Claim(1), f.Limiters[order[1]].Claim(1))
	case 7:
		_ = l.SetRate(ctx, limitertest.Every(100, time.Minute), rratelimiter.KeepState())
		return 2 * call // behind the end of a lease
	case 8:
		_, _ = l.Migrate(ctx)
		return 2 * call
	}
	return call
}

// Whatever is in doubt at the same time, nothing waits for another that waits for
// it: each call ends in time, and all that was granted and not given back is in use.
func TestCalls_InDoubtDoNotDeadlock(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Seeds(5), func(t *testing.T, seed uint64) {
		_, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		c := limitertest.NewClient(t, proxy.Client(t, &redistest.Options{PoolSize: 256, ReadTimeout: 700 * ms}))
		hundred := limitertest.Every(100, time.Minute)
		f := limitertest.NewFamilyOf(t, c, hundred, hundred, hundred)
		f.Limiters[2] = c.RateLimiter(f.Limiters[2].Name(), rratelimiter.WithLease(rratelimiter.Lease{Permits: 8, Life: time.Second}))
		require.True(t, f.Try(t, 1))
		dice := rand.New(rand.NewPCG(seed, 0))
		proxy.OnCommand(func(cmd redistest.Command) redistest.Action { return doubt(dice, cmd) })
		limitertest.Together(24, func(worker int) {
			draw := rand.New(rand.NewPCG(seed, 1+uint64(worker)))
			for range 12 {
				ctx, cancel := context.WithCancel(t.Context())
				if draw.IntN(3) == 0 {
					time.AfterFunc(time.Duration(draw.IntN(100))*ms, cancel)
				}
				start := time.Now()
				bound := callAny(ctx, draw, f)
				assert.LessOrEqual(t, time.Since(start), bound)
				cancel()
			}
		})
		proxy.OnCommand(nil)
		time.Sleep(10 * time.Second)
		for _, l := range f.Limiters {
			start := time.Now()
			require.NoError(t, l.SetRate(t.Context(), hundred))
			limitertest.MustAcquire(t, l, 100)
			require.NoError(t, l.Release(t.Context(), 100))
			assert.Less(t, time.Since(start), 10*ms)
		}
	})
}

var allTests = limitertest.Tests[redistest.Client]{
	// Whichever refuses, the others are as they were.
	"a refusal of one takes from none": func(t *testing.T, rdb redistest.Client) {
		for refuses := range 4 {
			f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(10, time.Hour),
				limitertest.Every(1000, time.Hour), limitertest.PerClient(10, time.Hour), limitertest.Every(10, time.Hour))
			require.True(t, f.Try(t, 3))
			l := f.Limiters[refuses]
			limitertest.MustAcquire(t, l, limitertest.Available(t, l)-1)
			before := f.State(t, rdb)
			assert.False(t, f.Try(t, 2))
			assert.Equal(t, before, f.State(t, rdb))
			assert.True(t, f.Try(t, 1))
		}
	},
	"repairs what was lost": func(t *testing.T, rdb redistest.Client) {
		for damage, free := range map[string]int64{"DEL value": 4, "DEL permits": 10, "DECRBY value 4": 4} { // of 10, 6 of which were taken
			f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
			require.True(t, f.Try(t, 6))
			require.NoError(t, f.Limiters[1].Release(t.Context(), 6))
			limitertest.Damage(t, rdb, f.Limiters[0], damage)
			got := int64(0)
			for range 11 {
				if f.Try(t, 1) {
					got++
				}
				f.CheckSums(t, rdb, 10, 10)
			}
			assert.Equal(t, free, got, damage)
		}
	},
	// An error names the limiter that is wrong; nothing is taken from any, nor set up.
	"names the limiter at fault": func(t *testing.T, rdb redistest.Client) {
		for name, tt := range map[string]struct {
			damage string
			want   error
			says   string
		}{
			"no rate":              {"DEL config", rratelimiter.ErrNotInitialized, "TrySetRate"},
			"a lower rate":         {"HSET config rate 2; DEL value permits", rratelimiter.ErrPermitsExceedRate, "3 permits of 2"},
			"half a config":        {"HDEL config interval", rratelimiter.ErrCorrupt, "interval"},
			"a rate that is none":  {"HSET config rate many", rratelimiter.ErrCorrupt, "rate"},
			"a value that is none": {"SET value few", rratelimiter.ErrCorrupt, ":value"},
			"a member of none":     {"DEL value permits; ZADD permits now x", rratelimiter.ErrCorrupt, ":permits"},
			"a list for a hash":    {"DEL config; LPUSH config x", rratelimiter.ErrCorrupt, "list"},
			"a string for a set":   {"DEL value permits; SET permits x", rratelimiter.ErrCorrupt, ":permits"},
		} {
			for place := range 3 {
				f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), slices.Repeat([]rratelimiter.Config{limitertest.Every(10, time.Hour)}, 3)...)
				require.True(t, f.Try(t, 1))
				at := f.Limiters[place]
				limitertest.Damage(t, rdb, at, tt.damage)
				fresh := limitertest.ByDefault(f.Client, f.Tag+":fresh", limitertest.Every(10, time.Hour))
				before := f.State(t, rdb)
				for _, timeout := range []time.Duration{0, time.Hour} {
					ok, err := f.Client.TryAcquireAll(t.Context(), timeout, limitertest.Claims(3, append([]*rratelimiter.RateLimiter{fresh}, f.Limiters...)...)...)
					require.ErrorIs(t, err, tt.want, "%s, limiter %d", name, place)
					assert.False(t, ok)
					assert.ErrorContains(t, err, fmt.Sprintf("TryAcquireAll %q", at.Name()), name)
					assert.ErrorContains(t, err, tt.says, name)
				}
				assert.Equal(t, before, f.State(t, rdb), name)
				assert.Empty(t, limitertest.ReadState(t, rdb, fresh.Name()), name)
			}
		}
	},
}

func TestTryAcquireAll(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, allTests, func(t *testing.T, test func(t *testing.T, rdb redistest.Client)) { redistest.Everywhere(t, test) })
}

// named returns a Client's limiters of those names, which have a default.
func named(c *rratelimiter.Client, names ...string) (all []*rratelimiter.RateLimiter) {
	for _, name := range names {
		all = append(all, limitertest.ByDefault(c, name, limitertest.Every(10, time.Hour)))
	}
	return all
}

func TestTryAcquireAllRefusesBadArguments(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		invalid, unsupported, badPermits := rratelimiter.ErrInvalidConfig, rratelimiter.ErrUnsupported, rratelimiter.ErrInvalidPermits
		client, other := limitertest.NewClient(t, rdb), limitertest.NewClient(t, rdb)
		mapped := limitertest.NewClient(t, rdb, rratelimiter.WithNameMapper(strings.ToUpper))
		old := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.13.2"))
		var many []string
		for i := range rratelimiter.MaxLimiters + 1 {
			many = append(many, fmt.Sprintf("{x}%d", i))
		}
		a := named(client, "{x}a")
		ab := named(client, "{x}a", "{x}b")
		noRate := limitertest.ByDefault(client, "{x}b", rratelimiter.PerHour(0))
		type limiters = []*rratelimiter.RateLimiter
		for name, tt := range map[string]struct {
			client   *rratelimiter.Client
			permits  int64
			limiters limiters
			want     error
			says     []string
		}{
			"none":               {client, 1, nil, invalid, []string{"0 limiters"}},
			"too many":           {client, 1, named(client, many...), invalid, []string{"33 limiters", "32"}},
			"nil":                {client, 1, append(a, nil), invalid, []string{"limiter 2 of 2 is nil"}},
			"another Client's":   {client, 1, append(a, named(other, "{x}b")...), invalid, []string{`"{x}b"`, "another Client"}},
			"twice":              {client, 1, append(ab, a...), invalid, []string{`"{x}a"`, "twice"}},
			"twice by the map":   {mapped, 1, named(mapped, "{x}a", "{x}A"), invalid, []string{`"{x}A"`, "twice"}},
			"a key of another's": {client, 1, named(client, "{x}a", "{x}a:value"), invalid, []string{`"{x}a"`, `"{x}a:value"`}},
			"no tag":             {client, 1, named(client, "second", "hour"), unsupported, []string{`"second"`, `"hour"`, `"{shop}:second"`}},
			"mapped apart":       {mapped, 1, named(mapped, "{x}a", "b"), unsupported, []string{`"{X}A"`, `"B"`}},
			"no permits":         {client, 0, ab, badPermits, []string{"0 is not between"}},
			"bad default":        {client, 1, append(a, noRate), invalid, []string{`"{x}b"`, "WithDefault"}},
			"old windows":        {old, 1, named(old, "{x}a", "{x}b"), unsupported, []string{"record of each grant", "3.13.2"}},
		} {
			sent := limitertest.CountCommands(rdb)
			for _, timeout := range []time.Duration{0, time.Hour} {
				ok, err := tt.client.TryAcquireAll(t.Context(), timeout, limitertest.Claims(tt.permits, tt.limiters...)...)
				require.ErrorIs(t, err, tt.want, name)
				assert.False(t, ok)
				for _, text := range append(tt.says, "TryAcquireAll") {
					assert.ErrorContains(t, err, text, name)
				}
			}
			assert.Zero(t, sent.Total(), name)
		}
	})
}

func TestTryAcquireAllOnSeveralServers(t *testing.T) {
	t.Parallel()
	servers := map[string]func(t *testing.T) redistest.Client{
		"cluster": func(t *testing.T) redistest.Client { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring":    func(t *testing.T) redistest.Client { return redistest.StartRing(t, 3).Client(t, nil) },
	}
	limitertest.Each(t, servers, func(t *testing.T, connect func(t *testing.T) redistest.Client) {
		client := limitertest.NewClient(t, connect(t))
		for range 20 {
			f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Hour), limitertest.Every(2, time.Hour), limitertest.Every(5, time.Hour))
			assert.True(t, f.Try(t, 2))
			assert.False(t, f.Try(t, 1))
			assert.Equal(t, []int64{8, 0, 3}, f.Free(t))
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			_, err := client.TryAcquireAll(ctx, time.Hour, limitertest.Claims(2, f.Limiters...)...)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, err = client.TryAcquireAll(t.Context(), 0, f.Limiters[0].Claim(1), client.RateLimiter("elsewhere").Claim(1))
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		}
	})
}

var allInTime = limitertest.Tests[redistest.Client]{
	// For Redissons that must not find many, nothing that has run out stays.
	"sweeps for old Redissons": func(t *testing.T, rdb redistest.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.15.5")),
			limitertest.Every(1000, time.Minute), limitertest.Every(1000, time.Hour))
		for range 40 {
			require.True(t, f.Try(t, 1))
		}
		time.Sleep(30 * time.Second)
		require.True(t, f.Try(t, 1))
		time.Sleep(30 * time.Second)
		require.True(t, f.Try(t, 1))
		assert.EqualValues(t, 2, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[0]).Permits).Val())
		assert.EqualValues(t, 42, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[1]).Permits).Val())
	},
	"forgets old notes of attempts": func(t *testing.T, rdb redistest.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
		for _, l := range f.Limiters {
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", fmt.Sprintf("%d:00;", time.Now().UnixMilli())).Err())
		}
		for _, noted := range []bool{true, false} {
			assert.True(t, f.Try(t, 1))
			for _, l := range f.Limiters {
				assert.Equal(t, noted, rdb.HExists(t.Context(), l.Name(), "answered").Val())
			}
			time.Sleep(2 * time.Minute)
		}
	},
	// No call fills a window of Redisson before 3.13.3 or moves its end.
	"beside a window": func(t *testing.T, rdb redistest.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(10, time.Minute), limitertest.Every(100, time.Hour))
		require.True(t, limitertest.AsRedisson3123(t, rdb, f.Limiters[0], 7))
		time.Sleep(20 * time.Second)
		assert.True(t, f.Try(t, 2))
		assert.False(t, f.Try(t, 2))
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), limitertest.KeysOf(f.Limiters[0]).Value).Val())
		start := time.Now()
		require.NoError(t, limitertest.Granted(f.Client.TryAcquireAll(t.Context(), time.Hour, limitertest.Claims(2, f.Limiters...)...)))
		assert.InDelta(t, 40*time.Second, time.Since(start), float64(2*time.Millisecond))
	},
}

func TestTryAcquireAll_InVirtualTime(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, allInTime, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// Permits taken between the calls of one decision are missing in it.
func TestTryAcquireAllSeesPermitsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	// Taken of the first of 1000, from which 600 are wanted.
	limitertest.Virtual(t, map[string]int64{"too many": 401, "as many as it can bear": 400}, func(t *testing.T, rdb redistest.Client, taken int64) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(1000, time.Hour), limitertest.Every(1000, time.Hour))
		others := f.SeenBy(limitertest.NewClient(t, rdb))
		limitertest.PileUp(t, rdb, f.Limiters[1], map[time.Duration]int{2 * time.Hour: 800, time.Minute: 200}, 0)
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		calls := 0
		rdb.AddHook(limitertest.BeforeScript(lua.AcquireAll, func() {
			if calls++; calls == 2 {
				limitertest.MustAcquire(t, others.Limiters[0], taken)
			}
		}))
		assert.Equal(t, taken == 400, f.Try(t, 600))
		assert.GreaterOrEqual(t, calls, 2)
		f.CheckSums(t, rdb, 1000, 1000)
		free := []int64{1000 - taken, 800}
		if taken == 400 {
			free = []int64{0, 200}
		}
		assert.Equal(t, free, f.Free(t))
	})
}
