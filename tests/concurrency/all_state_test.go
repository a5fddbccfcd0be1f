package concurrency_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// damage runs commands, parted by semicolons, on what Redis holds of a limiter. config, value
// and permits stand for its keys, and now for the server's time.
func damage(t *testing.T, rdb redis.UniversalClient, l *rratelimiter.RateLimiter, commands string) {
	t.Helper()
	k := limitertest.KeysOf(l)
	words := map[string]string{
		"config": k.Config, "value": k.Value, "permits": k.Permits, "now": fmt.Sprint(limitertest.ServerNow(t, rdb)),
	}
	for command := range strings.SplitSeq(commands, ";") {
		var args []any
		for _, word := range strings.Fields(command) {
			if meaning, ok := words[word]; ok {
				word = meaning
			}
			args = append(args, word)
		}
		require.NoError(t, rdb.Do(t.Context(), args...).Err(), command)
	}
}

// What is wrong with one limiter is an error that names it, and nothing is
// taken from any, nor set up.
func TestTryAcquireAllNamesTheLimiterAtFault(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
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
				f := newFamily(t, rdb, slices.Repeat([]rratelimiter.Config{limitertest.Every(10, time.Hour)}, 3)...)
				require.True(t, f.Try(t, 1))
				at := f.Limiters[place]
				damage(t, rdb, at, tt.damage)
				fresh := byDefault(f.Client, f.Tag+":fresh", limitertest.Every(10, time.Hour))
				before := f.State(t, rdb)
				for _, timeout := range []time.Duration{0, time.Hour} {
					ok, err := f.Client.TryAcquireAll(t.Context(), 3, timeout, append([]*rratelimiter.RateLimiter{fresh}, f.Limiters...)...)
					require.ErrorIs(t, err, tt.want, "%s, limiter %d", name, place)
					assert.False(t, ok)
					assert.ErrorContains(t, err, fmt.Sprintf("TryAcquireAll %q", at.Name()), name)
					assert.ErrorContains(t, err, tt.says, name)
				}
				assert.Equal(t, before, f.State(t, rdb), name)
				assert.Empty(t, limitertest.ReadState(t, rdb, fresh.Name()), name)
			}
		}
	})
}

func TestTryAcquireAllRepairsWhatWasLost(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, tt := range map[string]struct {
			damage string
			older  time.Duration // all that is in use is dated back so far
			free   int64         // of 10, 6 of which were taken
		}{
			"value lost":           {damage: "DEL value", free: 4},
			"set lost":             {damage: "DEL permits", free: 10},
			"both lost":            {damage: "DEL value permits", free: 10},
			"permits leaked":       {damage: "DECRBY value 4", free: 4},
			"value above the rate": {damage: "INCRBY value 50", free: 10},
			"all has run out":      {older: 2 * time.Hour, free: 10},
			"dated in the future":  {older: -2 * time.Hour, free: 4},
		} {
			for place := range 2 {
				f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
				require.True(t, f.Try(t, 6))
				require.NoError(t, f.Limiters[1-place].Release(t.Context(), 6))
				k := limitertest.KeysOf(f.Limiters[place])
				for _, member := range rdb.ZRange(t.Context(), k.Permits, 0, -1).Val() {
					require.NoError(t, rdb.ZIncrBy(t.Context(), k.Permits, -float64(tt.older.Milliseconds()), member).Err())
				}
				if tt.damage != "" {
					damage(t, rdb, f.Limiters[place], tt.damage)
				}
				got := int64(0)
				if name == "set lost" {
					require.True(t, f.Try(t, 1))
					f.CheckSums(t, rdb, 10, 10)
					got++
				}
				for range 11 {
					if f.Try(t, 1) {
						got++
					}
				}
				assert.Equal(t, tt.free, got, name)
				value, _ := limitertest.StoredValue(t, rdb, k.Value)
				assert.Zero(t, value, name)
				assert.Equal(t, got, limitertest.InUse(t, rdb, limitertest.KeysOf(f.Limiters[1-place]).Permits), name)
			}
		}
	})
}

// Each layout is written as TryAcquire writes it, and read whatever it is.
func TestTryAcquireAllInEachLayout(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		var members []codec.Layout
		f := newFamily(t, rdb, limitertest.Every(100, time.Hour), limitertest.Every(50, time.Hour))
		for name, layout := range map[string]codec.Layout{
			"D2 merged": codec.LayoutD2, "D2": codec.LayoutD2, "D1": codec.LayoutD1, "C": codec.LayoutC, "B": codec.LayoutB,
		} {
			old := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(limitertest.MembersOf[name])))
			assert.True(t, old.Try(t, 3), name)
			assert.True(t, old.Try(t, 4), name)
			members = append(members, layout, layout)
		}
		for _, l := range f.Limiters {
			var found []codec.Layout
			for _, text := range rdb.ZRange(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val() {
				member, err := codec.Parse(text)
				require.NoError(t, err)
				found = append(found, member.Layout)
			}
			assert.ElementsMatch(t, members, found)
		}
		assert.Equal(t, []int64{65, 15}, f.Free(t))
		for name := range limitertest.MembersOf {
			old := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(limitertest.MembersOf[name])))
			assert.False(t, old.Try(t, 16), name)
			assert.True(t, old.Try(t, 3), name)
		}
		assert.False(t, f.Try(t, 1))
		f.CheckSums(t, rdb, 100, 50)
	})
}

var allInTime = tests[*redis.Client]{
	// For Redissons that must not find many, nothing that has run out stays.
	"sweeps for old Redissons": func(t *testing.T, rdb *redis.Client) {
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
	// Members that have run out stay few though there is always enough.
	"leaves few that have run out": func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(1000, time.Second), limitertest.Every(100000, time.Hour))
		for range 200 {
			require.True(t, f.Try(t, 1))
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[0]).Permits).Val(), int64(100+32))
		f.CheckSums(t, rdb, 1000, 100000)
	},
	// A window of Redisson before 3.13.3 is left as it is: no call fills it or moves
	// its end.
	"beside a window": func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Minute), limitertest.Every(100, time.Hour))
		require.True(t, limitertest.AsRedisson3123(t, rdb, f.Limiters[0], 7))
		time.Sleep(20 * time.Second)
		assert.True(t, f.Try(t, 2))
		assert.False(t, f.Try(t, 2))
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), limitertest.KeysOf(f.Limiters[0]).Value).Val())
		start := time.Now()
		ok, err := f.Client.TryAcquireAll(t.Context(), 2, time.Hour, f.Limiters...)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.InDelta(t, 40*time.Second, time.Since(start), float64(2*time.Millisecond))
	},
	"keeps times to live": func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Minute),
			rratelimiter.Config{Rate: 1, Interval: time.Minute, KeepAlive: 10 * time.Minute}, limitertest.PerClient(10, time.Minute))
		_, err := f.Limiters[0].Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		for _, granted := range []bool{true, false} {
			assert.Equal(t, granted, f.Try(t, 1))
			for i, want := range []time.Duration{time.Hour, 10 * time.Minute, time.Minute} {
				for key, ttl := range limitertest.TTLs(t, rdb, f.Limiters[i].Name()) {
					if i == 2 && key == f.Limiters[i].Name() {
						want = -1
					}
					assert.Equal(t, want, ttl, "%s, granted %v", key, granted)
					want = []time.Duration{time.Hour, 10 * time.Minute, time.Minute}[i]
				}
			}
			_, err := f.Limiters[0].Expire(t.Context(), time.Hour)
			require.NoError(t, err)
			time.Sleep(time.Second)
			_, err = f.Limiters[0].Expire(t.Context(), time.Hour)
			require.NoError(t, err)
		}
	},
	// Notes of attempts that nobody needs any more go, as by TryAcquire.
	"forgets old notes": func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
		note := fmt.Sprintf("%d:00;", time.Now().UnixMilli())
		for _, l := range f.Limiters {
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", note).Err())
		}
		for _, noted := range []bool{true, false} {
			assert.True(t, f.Try(t, 1))
			for _, l := range f.Limiters {
				exists, err := rdb.HExists(t.Context(), l.Name(), "answered").Result()
				require.NoError(t, err)
				assert.Equal(t, noted, exists)
			}
			time.Sleep(2 * time.Minute)
		}
	},
}

func TestTryAcquireAllInTime(t *testing.T) {
	t.Parallel()
	onVirtual(t, allInTime)
}

// What is taken between the calls of one decision is missing in it.
func TestTryAcquireAllSeesWhatIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	// Taken of the first of 1000, from which 600 are wanted.
	virtual(t, map[string]int64{"too many": 401, "as many as it can bear": 400}, func(t *testing.T, rdb *redis.Client, taken int64) {
		f := newFamily(t, rdb, limitertest.Every(1000, time.Hour), limitertest.Every(1000, time.Hour))
		others := f.SeenBy(limitertest.NewClient(t, rdb))
		pileUp(t, rdb, f.Limiters[1], map[time.Duration]int{2 * time.Hour: 800, time.Minute: 200}, 0)
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		calls := 0
		rdb.AddHook(limitertest.BeforeScript{Script: lua.AcquireAll, Do: func() {
			if calls++; calls == 2 {
				limitertest.MustAcquire(t, others.Limiters[0], taken)
			}
		}})
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

// One limiter is brought up to date before another turns out to be damaged.
func TestAValueMadeBesideAnErrorEndsToo(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t, nil)
	f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
	require.True(t, f.Try(t, 1))
	value := limitertest.KeysOf(f.Limiters[0]).Value
	_, err := f.Limiters[0].Expire(t.Context(), time.Minute)
	require.NoError(t, err)
	damage(t, rdb, f.Limiters[0], "DEL value")
	damage(t, rdb, f.Limiters[1], "ZADD permits 1 junk")
	_, err = f.Client.TryAcquireAll(t.Context(), 10, 0, f.Limiters...)
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
	if rdb.Exists(t.Context(), value).Val() == 1 {
		assert.Positive(t, rdb.PTTL(t.Context(), value).Val())
	}
}
