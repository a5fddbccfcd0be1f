package concurrency_test

import (
	"context"
	"fmt"
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
)

// newFamily returns limiters of these rates; those of the zero Config have none.
func newFamily(t testing.TB, rdb rratelimiter.Redis, cfgs ...rratelimiter.Config) *limitertest.Family {
	t.Helper()
	return limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), cfgs...)
}

func TestTryAcquireAll(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(5, time.Hour), limitertest.PerClient(7, time.Hour))
		assert.True(t, f.Try(t, 2))
		assert.Equal(t, []int64{8, 3, 5}, f.Free(t))
		assert.True(t, f.Try(t, 3))
		assert.Equal(t, []int64{5, 0, 2}, f.Free(t))
		assert.False(t, f.Try(t, 1))
		assert.Equal(t, []int64{5, 0, 2}, f.Free(t))

		require.NoError(t, f.Limiters[1].Release(t.Context(), 3))
		assert.False(t, f.Try(t, 3), "the last has 2")
		assert.Equal(t, []int64{5, 3, 2}, f.Free(t))
		assert.True(t, f.Try(t, 2))
		assert.Equal(t, []int64{3, 1, 0}, f.Free(t))
		f.CheckSums(t, rdb, 10, 5, 7)
	})
}

// Whichever refuses, the others are as they were.
func TestARefusalOfOneTakesFromNone(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for refuses := range 4 {
			f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(1000, time.Hour), limitertest.PerClient(10, time.Hour), limitertest.Every(10, time.Hour))
			require.True(t, f.Try(t, 3))
			l := f.Limiters[refuses]
			limitertest.MustAcquire(t, l, limitertest.Available(t, l)-1)
			before := f.State(t, rdb)
			assert.False(t, f.Try(t, 2))
			assert.Equal(t, before, f.State(t, rdb))
			assert.True(t, f.Try(t, 1))
		}
	})
}

func TestTryAcquireAllOfOneIsTryAcquire(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, rdb)
		for _, name := range []string{"orders", "a{b}c", "foo}bar"} {
			l := client.RateLimiter(name, rratelimiter.WithDefault(limitertest.Every(3, time.Second)))
			for i := range 5 {
				ok, err := client.TryAcquireAll(t.Context(), 1, 0, l)
				require.NoError(t, err, name)
				assert.Equal(t, i < 3, ok)
			}
			start := time.Now()
			ok, err := client.TryAcquireAll(t.Context(), 2, 2*time.Second, l)
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, time.Second, time.Since(start))
			_, err = client.TryAcquireAll(t.Context(), 4, 0, l)
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
			assert.ErrorContains(t, err, "TryAcquireAll \""+name+"\"")
			assert.NotContains(t, err.Error(), "TryAcquire \"")
		}
	})
}

func TestTryAcquireAllRefusesBadArguments(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		upper := rratelimiter.WithNameMapper(strings.ToUpper)
		client, mapped := limitertest.NewClient(t, rdb), limitertest.NewClient(t, rdb, upper)
		other, old := limitertest.NewClient(t, rdb), limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.13.2"))
		bad := rratelimiter.New(rdb, rratelimiter.WithClientID(""))
		of := func(c *rratelimiter.Client, names ...string) []*rratelimiter.RateLimiter {
			var all []*rratelimiter.RateLimiter
			for _, name := range names {
				all = append(all, c.RateLimiter(name, rratelimiter.WithDefault(limitertest.Every(10, time.Second))))
			}
			return all
		}
		many := make([]string, rratelimiter.MaxLimiters+1)
		for i := range many {
			many[i] = fmt.Sprintf("{x}%d", i)
		}
		for name, tt := range map[string]struct {
			client   *rratelimiter.Client
			permits  int64
			limiters []*rratelimiter.RateLimiter
			want     error
			says     []string
		}{
			"none":               {client, 1, nil, rratelimiter.ErrInvalidConfig, []string{"0 limiters"}},
			"too many":           {client, 1, of(client, many...), rratelimiter.ErrInvalidConfig, []string{"33 limiters", "32"}},
			"nil":                {client, 1, append(of(client, "{x}a"), nil), rratelimiter.ErrInvalidConfig, []string{"limiter 2 of 2 is nil"}},
			"only nil":           {client, 1, []*rratelimiter.RateLimiter{nil}, rratelimiter.ErrInvalidConfig, []string{"limiter 1 of 1 is nil"}},
			"another Client's":   {client, 1, append(of(client, "{x}a"), of(other, "{x}b")...), rratelimiter.ErrInvalidConfig, []string{`"{x}b"`, "another Client"}},
			"nobody's":           {client, 1, []*rratelimiter.RateLimiter{{}}, rratelimiter.ErrInvalidConfig, []string{"another Client"}},
			"twice":              {client, 1, of(client, "{x}a", "{x}b", "{x}a"), rratelimiter.ErrInvalidConfig, []string{`"{x}a"`, "twice"}},
			"twice by the map":   {mapped, 1, of(mapped, "{x}a", "{x}A"), rratelimiter.ErrInvalidConfig, []string{`"{x}A"`, "twice"}},
			"a key of another's": {client, 1, of(client, "{x}a", "{x}a:value"), rratelimiter.ErrInvalidConfig, []string{`"{x}a"`, `"{x}a:value"`}},
			"no tag":             {client, 1, of(client, "second", "hour"), rratelimiter.ErrUnsupported, []string{`"second"`, `"hour"`, `"{shop}:second"`}},
			"other tags":         {client, 1, of(client, "{x}a", "{x}b", "{y}c"), rratelimiter.ErrUnsupported, []string{`"{x}a"`, `"{y}c"`, "hash tag"}},
			"mapped apart":       {mapped, 1, of(mapped, "{x}a", "b"), rratelimiter.ErrUnsupported, []string{`"{X}A"`, `"B"`}},
			"keys apart":         {client, 1, of(client, "a{b", "{b}c"), rratelimiter.ErrUnsupported, []string{`"a{b"`, "hash tag"}},
			"no permits":         {client, 0, of(client, "{x}a", "{x}b"), rratelimiter.ErrInvalidPermits, []string{"0 is not between"}},
			"fewer":              {client, -1, of(client, "{x}a", "{x}b"), rratelimiter.ErrInvalidPermits, nil},
			"too many permits":   {client, rratelimiter.MaxPermits + 1, of(client, "{x}a", "{x}b"), rratelimiter.ErrInvalidPermits, nil},
			"bad Client":         {bad, 1, of(bad, "{x}a", "{x}b"), rratelimiter.ErrInvalidConfig, []string{"WithClientID"}},
			"bad default": {
				client, 1,
				append(of(client, "{x}a"), client.RateLimiter("{x}b", rratelimiter.WithDefault(rratelimiter.PerHour(0)))),
				rratelimiter.ErrInvalidConfig,
				[]string{`"{x}b"`, "WithDefault"},
			},
			"no name":     {client, 1, append(of(client, "{x}a"), client.RateLimiter("")), rratelimiter.ErrInvalidConfig, []string{"empty"}},
			"old windows": {old, 1, of(old, "{x}a", "{x}b"), rratelimiter.ErrUnsupported, []string{"record of each grant", "3.13.2"}},
		} {
			sent := limitertest.CountCommands(rdb)
			for _, timeout := range []time.Duration{0, time.Hour} {
				ok, err := tt.client.TryAcquireAll(t.Context(), tt.permits, timeout, tt.limiters...)
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

// Names that share a tag with a name that has none are in its slot.
func TestANameIsItsOwnTag(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client, name := limitertest.NewClient(t, rdb), redistest.Name(t)
		hourly := rratelimiter.WithDefault(limitertest.Every(5, time.Hour))
		a, b := client.RateLimiter(name, hourly), client.RateLimiter("{"+name+"}:day", hourly)
		ok, err := client.TryAcquireAll(t.Context(), 2, 0, a, b)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.EqualValues(t, 3, limitertest.Available(t, a))
		assert.EqualValues(t, 3, limitertest.Available(t, b))
	})
}

func TestTryAcquireAllOnSeveralServers(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(t *testing.T) redis.UniversalClient{
		"cluster": func(t *testing.T) redis.UniversalClient { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring":    func(t *testing.T) redis.UniversalClient { return redistest.StartRing(t, 3).Client(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t)
			client := limitertest.NewClient(t, rdb)
			for range 20 {
				f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Hour), limitertest.Every(2, time.Hour), limitertest.Every(5, time.Hour))
				assert.True(t, f.Try(t, 2))
				assert.False(t, f.Try(t, 1))
				assert.Equal(t, []int64{8, 0, 3}, f.Free(t))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				_, err := client.TryAcquireAll(ctx, 2, time.Hour, f.Limiters...)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, err = client.TryAcquireAll(t.Context(), 1, 0, f.Limiters[0], client.RateLimiter("elsewhere"))
				require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			}
		})
	}
}

// What is wrong with one limiter is an error that names it, and nothing is
// taken from any, nor set up.
func TestTryAcquireAllNamesTheLimiterAtFault(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, tt := range map[string]struct {
			spoil func(t *testing.T, l *rratelimiter.RateLimiter) error
			want  error
			says  string
		}{
			"no rate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), l.Name()).Err()
			}, rratelimiter.ErrNotInitialized, "TrySetRate"},
			"a lower rate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return l.SetRate(t.Context(), limitertest.Every(2, time.Hour))
			}, rratelimiter.ErrPermitsExceedRate, "3 permits of 2"},
			"half a config": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.HDel(t.Context(), l.Name(), "interval").Err()
			}, rratelimiter.ErrCorrupt, "interval"},
			"a rate that is none": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.HSet(t.Context(), l.Name(), "rate", "many").Err()
			}, rratelimiter.ErrCorrupt, "rate"},
			"a value that is none": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Set(t.Context(), limitertest.KeysOf(l).Value, "few", 0).Err()
			}, rratelimiter.ErrCorrupt, ":value"},
			"a member of none": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				if err := rdb.Del(t.Context(), limitertest.KeysOf(l).Value, limitertest.KeysOf(l).Permits).Err(); err != nil {
					return err
				}
				return rdb.ZAdd(t.Context(), limitertest.KeysOf(l).Permits, redis.Z{Score: float64(limitertest.ServerNow(t, rdb)), Member: "x"}).Err()
			}, rratelimiter.ErrCorrupt, ":permits"},
			"a list for a hash": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				rdb.Del(t.Context(), l.Name())
				return rdb.LPush(t.Context(), l.Name(), "x").Err()
			}, rratelimiter.ErrCorrupt, "list"},
			"a string for a set": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				rdb.Del(t.Context(), limitertest.KeysOf(l).Value)
				return rdb.Set(t.Context(), limitertest.KeysOf(l).Permits, "x", 0).Err()
			}, rratelimiter.ErrCorrupt, ":permits"},
		} {
			for place := range 3 {
				f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
				require.True(t, f.Try(t, 1))
				at := f.Limiters[place]
				require.NoError(t, tt.spoil(t, at), name)
				fresh := f.Client.RateLimiter(f.Tag+":fresh", rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
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

func TestTryAcquireAllSetsUpDefaults(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client := limitertest.NewClient(t, rdb)
		f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Hour))
		kept := rratelimiter.Config{Rate: 4, Interval: time.Minute, KeepAlive: time.Hour}
		own := limitertest.PerClient(3, time.Minute)
		keep := client.RateLimiter(f.Tag+":keep", rratelimiter.WithDefault(kept))
		mine := client.RateLimiter(f.Tag+":own", rratelimiter.WithDefault(own))
		f.Limiters = append(f.Limiters, keep, mine)
		sent := limitertest.CountCommands(rdb)
		assert.True(t, f.Try(t, 2))
		assert.LessOrEqual(t, sent.Scripts(), 2, "one call; another where the server did not know the script")
		for l, want := range map[*rratelimiter.RateLimiter]rratelimiter.Config{f.Limiters[0]: limitertest.Every(10, time.Hour), keep: kept, mine: own} {
			cfg, err := l.Config(t.Context())
			require.NoError(t, err)
			assert.Equal(t, want, cfg)
		}
		assert.Equal(t, []int64{8, 2, 1}, f.Free(t))
		for key, ttl := range limitertest.TTLs(t, rdb, keep.Name()) {
			assert.InDelta(t, time.Hour, ttl, float64(10*time.Second), key)
		}

		late := client.RateLimiter(f.Tag+":late", rratelimiter.WithDefault(limitertest.Every(4, time.Minute)))
		f.Limiters = append(f.Limiters, late)
		assert.False(t, f.Try(t, 2), "the PerClient one has 1")
		cfg, err := late.Config(t.Context())
		require.NoError(t, err, "a refusal is an answer")
		assert.Equal(t, limitertest.Every(4, time.Minute), cfg)
	})
}

// What a lost limiter of that name left behind does not go before its time.
func TestTryAcquireAllSetsUpBesideWhatIsLeft(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(100, time.Hour), limitertest.Every(10, time.Hour))
		_, err := f.Limiters[1].Expire(t.Context(), time.Minute)
		require.NoError(t, err)
		require.True(t, f.Try(t, 4))
		require.NoError(t, rdb.Del(t.Context(), f.Limiters[1].Name()).Err())
		f = f.SeenBy(f.Client, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		assert.True(t, f.Try(t, 4))
		time.Sleep(2 * time.Minute)
		assert.False(t, f.Try(t, 3))
		assert.True(t, f.Try(t, 2))
		assert.EqualValues(t, -1, rdb.PTTL(t.Context(), limitertest.KeysOf(f.Limiters[1]).Permits).Val())
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

// For Redissons that must not find many, nothing that has run out stays.
func TestTryAcquireAllSweepsForOldRedissons(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.15.5")), limitertest.Every(1000, time.Minute), limitertest.Every(1000, time.Hour))
		for range 40 {
			require.True(t, f.Try(t, 1))
		}
		time.Sleep(30 * time.Second)
		require.True(t, f.Try(t, 1))
		time.Sleep(30 * time.Second)
		require.True(t, f.Try(t, 1))
		assert.EqualValues(t, 2, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[0]).Permits).Val())
		assert.EqualValues(t, 42, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[1]).Permits).Val())
	})
}

// Members that have run out stay few though there is always enough.
func TestTryAcquireAllLeavesFewThatHaveRunOut(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, limitertest.Every(1000, time.Second), limitertest.Every(100000, time.Hour))
		for range 200 {
			require.True(t, f.Try(t, 1))
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[0]).Permits).Val(), int64(100+32))
		f.CheckSums(t, rdb, 1000, 100000)
	})
}
