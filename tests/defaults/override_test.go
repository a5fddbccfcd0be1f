package defaults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// An override ends by itself however a busy limiter with a keep-alive time is asked, and the default is one again.
func TestOverride_EndsForEachWayToTake(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, takers, func(t *testing.T, open taker) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		take := open(t.Context(), client, limitertest.Alive(rratelimiter.Overall, 1, time.Minute))
		granted := func() bool { return limitertest.Must(take())(t) }
		l := limitertest.ByDefault(client, "user:ann", limitertest.Alive(rratelimiter.Overall, 1, time.Minute))
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerMinute(3), rratelimiter.For(20*time.Hour)))
		time.Sleep(10 * time.Hour) // unused for longer than the keep-alive time
		assert.Equal(t, 6, grantsOf(4, granted), "of 3 in each of two minutes, 59 s apart")
		time.Sleep(10*time.Hour - 4*59*time.Second + 30*time.Second)
		assert.LessOrEqual(t, grantsOf(2, granted), 2)
		assert.Equal(t, 5, grantsOf(10, granted))
		assert.Equal(t, limitertest.Alive(rratelimiter.Overall, 1, time.Minute), limitertest.ConfigOf(t, l))

		// Another program's default replaces it, as before the override.
		time.Sleep(time.Second)
		newer := limitertest.NewClient(t, rdb)
		take = open(t.Context(), newer, limitertest.Alive(rratelimiter.Overall, 2, time.Minute))
		assert.Equal(t, 10, grantsOf(10, granted))
		time.Sleep(3 * time.Minute)
		assert.Zero(t, rdb.Exists(t.Context(), "user:ann").Val())
	})
}

func TestOverride_KeepsWhatIsInUse(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		synctest.Test(t, func(t *testing.T) {
			rdb, _ := redistest.Mini(t)
			client := limitertest.NewClient(t, rdb)
			before := rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour}
			during := rratelimiter.Config{Type: kind, Rate: 100, Interval: time.Hour}
			l := limitertest.NewLimiterOf(t, client, "orders", before)
			limitertest.MustAcquire(t, l, 4)
			require.NoError(t, l.SetRate(t.Context(), during, rratelimiter.For(10*time.Minute)))
			assert.Equal(t, int64(96), limitertest.Available(t, l))
			limitertest.MustAcquire(t, l, 3)
			during.Rate = 50 // another override goes back to the same
			require.NoError(t, limitertest.Granted(l.UpdateRate(t.Context(), during, rratelimiter.For(20*time.Minute))))
			assert.Equal(t, during, limitertest.ConfigOf(t, l))
			o, overridden, err := l.Override(t.Context())
			require.NoError(t, err)
			require.True(t, overridden)
			assert.Equal(t, before, o.Then)
			assert.WithinDuration(t, time.Now().Add(20*time.Minute), o.Until, 0)

			// A wait is no longer than the override: with the old rate it may be over.
			assert.LessOrEqual(t, limitertest.Take(t, l, 50).RetryAfter, 20*time.Minute)
			time.Sleep(20 * time.Minute)
			_, overridden, err = l.Override(t.Context())
			require.NoError(t, err)
			assert.False(t, overridden)
			assert.Equal(t, before, limitertest.ConfigOf(t, l))
			assert.Equal(t, int64(3), limitertest.Available(t, l))
			limitertest.MustRefuse(t, l, 4)
			limitertest.MustAcquire(t, l, 3)
			time.Sleep(41 * time.Minute)
			assert.Equal(t, int64(7), limitertest.Available(t, l))
			assert.Equal(t, time.Duration(-1), rdb.PTTL(t.Context(), "orders").Val())
		})
	})
}

func TestOverride_EndsForGoodByOtherChanges(t *testing.T) {
	t.Parallel()
	hourly := rratelimiter.PerHour(7)
	type row struct {
		change  limitertest.Change
		between int64 // the rate after it
		want    int64 // and after the override would have ended
	}
	set := func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.TrySetRate(ctx, hourly))
	}
	thereAndBack := func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return errors.Join(limitertest.Rename(ctx, c, l), c.RateLimiter(limitertest.Besides(l.Name())).Rename(ctx, l.Name()))
	}
	limitertest.Virtual(t, map[string]row{
		"SetRate":              {limitertest.SetRate(hourly), 7, 7},
		"KeepState":            {limitertest.SetRate(hourly, rratelimiter.KeepState()), 7, 7},
		"UpdateRate":           {limitertest.UpdateRate(hourly), 7, 7},
		"TrySetRate":           {set, 100, 10},
		"a Redisson's setRate": {nil, 7, 7},
		"Delete":               {limitertest.MakeAnew(hourly), 7, 7},
		"Reset":                {limitertest.Reset, 100, 10},
		"Rename":               {thereAndBack, 100, 10},
		"Migrate":              {limitertest.Migrate, 100, 10},
	}, func(t *testing.T, rdb redistest.Client, row row) {
		client := limitertest.NewClient(t, rdb)
		l := limitertest.NewLimiterOf(t, client, redistest.Name(t), rratelimiter.PerHour(10))
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerHour(100), rratelimiter.For(time.Minute)))
		if row.change == nil {
			limitertest.Damage(t, rdb, l, "HSET config rate 7 interval 3600000 type 0")
		} else {
			require.NoError(t, row.change(t.Context(), client, l))
		}
		assert.Equal(t, row.between, limitertest.ConfigOf(t, l).Rate)
		time.Sleep(time.Minute)
		assert.Equal(t, row.want, limitertest.ConfigOf(t, l).Rate)
		assert.Equal(t, row.want, limitertest.Available(t, l))
		fields := rdb.HGetAll(t.Context(), l.Name()).Val()
		assert.False(t, strings.HasPrefix(fields["interval"], "0"), fields)
	})
}

func TestOverride_NeedsWhatToGoBackTo(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := limitertest.NewClient(t, rdb)
	name := redistest.Name(t)
	l, byDefault := client.RateLimiter(name), limitertest.ByDefault(client, name, rratelimiter.PerHour(10))
	hour := rratelimiter.For(time.Hour)
	require.ErrorIs(t, l.SetRate(t.Context(), rratelimiter.PerHour(100), hour), rratelimiter.ErrNotInitialized)
	assert.False(t, limitertest.Must(byDefault.UpdateRate(t.Context(), rratelimiter.PerHour(100), hour))(t))
	assert.Zero(t, rdb.Exists(t.Context(), name).Val())
	require.NoError(t, byDefault.SetRate(t.Context(), rratelimiter.PerHour(100), hour))
	o, _, err := l.Override(t.Context())
	require.NoError(t, err)
	assert.Equal(t, rratelimiter.PerHour(10), o.Then)
	require.ErrorIs(t, l.SetRate(t.Context(), limitertest.PerClient(5, time.Hour), hour), rratelimiter.ErrInvalidConfig)
	assert.Equal(t, rratelimiter.PerHour(100), limitertest.ConfigOf(t, l))
	old := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.12.0")).RateLimiter(name)
	require.ErrorIs(t, old.SetRate(t.Context(), rratelimiter.PerHour(5), hour), rratelimiter.ErrUnsupported)
}

// At the end the interval and the value change together, once, whichever calls come then.
func TestOverride_EndsOnce(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for name, call := range limitertest.Operations {
			if name == "Delete" || name == "SetRate" || name == "UpdateRate" {
				continue
			}
			l := limitertest.NewLimiterOf(t, limitertest.NewClient(t, rdb), redistest.Name(t)+strings.ReplaceAll(name, " ", "-"), rratelimiter.PerHour(10))
			limitertest.MustAcquire(t, l, 4)
			require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerHour(100), rratelimiter.For(time.Hour)))
			keys := limitertest.KeysOf(l)
			require.NoError(t, rdb.HSet(t.Context(), keys.Config, "override", "1000 10 3600000 0").Err())
			_ = call(t.Context(), l)
			if name == "Rename" || rdb.Exists(t.Context(), keys.Config).Val() == 0 {
				continue
			}
			require.NoError(t, limitertest.Second(l.Peek(t.Context(), 1)), name)
			fields := rdb.HMGet(t.Context(), keys.Config, "rate", "interval", "override").Val()
			if fields[0] == "10" {
				assert.Equal(t, []any{"10", "3600000", nil}, fields, name)
			}
			value, there := limitertest.StoredValue(t, rdb, keys.Value)
			if there {
				assert.LessOrEqual(t, value+limitertest.InUse(t, rdb, keys.Permits), int64(10), name)
			}
		}
	})
}

// A program that may not write learns at the end what the next request finds, and leaves the end to that.
func TestOverride_EndIsReadWithoutTheRightToWrite(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		name := redistest.Name(t)
		ann := rratelimiter.WithClientID("ann")
		reader := limitertest.NewClient(t, redistest.AddUser(t, server, nil, "+@read +@scripting +time", "~*"), ann).RateLimiter(name)
		l := limitertest.NewClient(t, rdb, ann).RateLimiter(name)
		before := rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour}
		for rate, taken := range map[int64]int64{100: 7, 5: 4} {
			require.NoError(t, l.SetRate(t.Context(), before))
			limitertest.MustAcquire(t, l, 3)
			during := before
			during.Rate = rate
			require.NoError(t, l.SetRate(t.Context(), during, rratelimiter.For(time.Hour)))
			limitertest.MustAcquire(t, l, taken-3)
			require.NoError(t, rdb.HSet(t.Context(), name, "override", "1000 10 3600000 0").Err()) // it has ended
			var before limit.Decision
			limitertest.RequireUntouched(t, rdb, name, func() { before = limitertest.Must(reader.Peek(t.Context(), 1))(t) })
			assert.Equal(t, 10-taken, before.Remaining+1)
			after := limitertest.Must(l.Peek(t.Context(), 1))(t)
			after.ResetAfter = before.ResetAfter
			assert.Equal(t, after, before)
		}
	})
}

// A rateOf takes a permit of the key {ann}, and returns the limit that the answer shows, if it shows one.
type rateOf func(t *testing.T, c *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64

var rateCalls = map[string]rateOf{
	"Take": func(t *testing.T, _ *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		return limittest.Take(t, k, "{ann}", 1).Limit
	},
	"TryAcquire": func(t *testing.T, _ *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		limitertest.MustAcquire(t, k.Limiter("{ann}"), 1)
		return 0
	},
	"TakeAll": func(t *testing.T, c *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		return limitertest.Must(c.TakeAll(t.Context(), k.Claim("{ann}", 1), k.Claim("{ann}:other", 1)))(t)[0].Limit
	},
	"Peek": func(t *testing.T, _ *rratelimiter.Client, k *rratelimiter.KeyedLimiter) int64 {
		return limitertest.Must(k.Peek(t.Context(), "{ann}", 1))(t).Limit
	},
}

// A program's own later answer holds at once, however far the server's clock is from the program's.
func TestKeyedFunc_OwnLaterAnswerHoldsWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	calls := map[string]rateOf{"Take": rateCalls["Take"], "TakeAll": rateCalls["TakeAll"]}
	for _, off := range []time.Duration{0, 3 * time.Second, -3 * time.Second, time.Hour, -time.Hour} {
		limitertest.Stepping(t, calls, func(t *testing.T, rdb redistest.Client, step func(time.Duration), call rateOf) {
			step(off)
			rate := int64(0)
			client := limitertest.NewClient(t, rdb)
			plans := client.KeyedFunc("plan:", func(string) rratelimiter.Config { return rratelimiter.PerHour(rate) })
			for _, rate = range []int64{10, 50, 10, 20} {
				assert.Equal(t, rate, call(t, client, plans), "off by %v", off)
				assert.Equal(t, rate, call(t, client, plans), "off by %v", off)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

// After the server's clock went back, as at a failover to a slower one, a default learnt since replaces one that is
// dated ahead by then. Of two programs the one that learnt later keeps it.
func TestDefault_OneDatedAheadKeepsNoLaterOneOut(t *testing.T) {
	t.Parallel()
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
		old := limitertest.NewClient(t, rdb).Keyed("user:", rratelimiter.PerHour(10))
		limittest.Take(t, old, "ann", 1)
		ofAnother(t, rdb, "user:ann")
		step(-30 * time.Second)
		time.Sleep(time.Second)
		later := limitertest.NewClient(t, rdb).Keyed("user:", rratelimiter.PerHour(20))
		for range 3 {
			assert.EqualValues(t, 20, limittest.Take(t, later, "ann", 1).Limit)
			time.Sleep(time.Minute)
			assert.EqualValues(t, 20, limittest.Take(t, old, "ann", 1).Limit)
		}
	})
}

// ofAnother makes the limiter's default that of a program which is none of this process.
func ofAnother(t *testing.T, rdb redistest.Client, name string) {
	t.Helper()
	text := rdb.HGet(t.Context(), name, "default").Val()
	require.NoError(t, rdb.HSet(t.Context(), name, "default", text[:strings.LastIndexByte(text, ' ')]+" other.1").Err())
}

// An answer that shows another rate makes the next request compare: the program before has made the limiter again.
func TestDefault_AnswerWithAnotherRateIsCompared(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, rateCalls, func(t *testing.T, rdb redistest.Client, call rateOf) {
		var log bytes.Buffer
		old := limitertest.NewClient(t, rdb)
		client := limitertest.NewClient(t, rdb, limitertest.LogTo(&log))
		before, users := old.Keyed("user:", rratelimiter.PerSecond(5)), client.Keyed("user:", rratelimiter.PerSecond(8))
		take := rateCalls["Take"]
		take(t, client, users)
		for range 3 {
			time.Sleep(2 * time.Second) // the limiter has gone
			assert.EqualValues(t, 5, take(t, old, before))
			call(t, client, users)
			assert.EqualValues(t, 8, take(t, client, users))
			assert.EqualValues(t, 8, take(t, old, before), "it began before")
		}
		synctest.Wait()
		assert.Equal(t, 1, strings.Count(log.String(), "rate replaced"), log.String())
	})
}

// A rate that was set on purpose shows in each answer, and is compared no more often for that.
func TestDefault_OverrideIsComparedOnce(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		users := client.Keyed("user:", rratelimiter.PerHour(8))
		limittest.Take(t, users, "ann", 1)
		require.NoError(t, client.RateLimiter("user:ann").SetRate(t.Context(), rratelimiter.PerHour(100)))
		compared := 0
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
			for _, cmd := range cmds {
				if args := cmd.Args(); redistest.Calls(cmd, lua.Acquire.SHA) && strings.Contains(fmt.Sprint(args[3+args[2].(int)+3]), "d") {
					compared++
				}
			}
		}))
		for range 20 {
			assert.EqualValues(t, 100, limittest.Take(t, users, "ann", 1).Limit)
		}
		assert.Equal(t, 1, compared)
	})
}
