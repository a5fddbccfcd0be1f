package rratelimiter_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A family is some limiters whose names share a hash tag, as handles of one
// Client.
type family struct {
	client   *rratelimiter.Client
	limiters []*rratelimiter.RateLimiter
	tag      string
}

// newFamily returns limiters of these rates; those of the zero Config have none.
func newFamily(t testing.TB, rdb rratelimiter.Redis, cfgs ...rratelimiter.Config) *family {
	t.Helper()
	return newFamilyOf(t, newClient(t, rdb), cfgs...)
}

func newFamilyOf(t testing.TB, client *rratelimiter.Client, cfgs ...rratelimiter.Config) *family {
	t.Helper()
	f := &family{client: client, tag: "{" + redistest.Name(t) + "}"}
	for i, cfg := range cfgs {
		l := client.RateLimiter(fmt.Sprintf("%s:%d", f.tag, i))
		f.limiters = append(f.limiters, l)
		if cfg != (rratelimiter.Config{}) {
			mustTrySetRate(t, l, cfg)
		}
	}
	return f
}

// seenBy returns another Client's handles of the same limiters.
func (f *family) seenBy(client *rratelimiter.Client, opts ...rratelimiter.LimiterOption) *family {
	other := &family{client: client, tag: f.tag}
	for _, l := range f.limiters {
		other.limiters = append(other.limiters, client.RateLimiter(l.Name(), opts...))
	}
	return other
}

// try asks once for permits of all.
func (f *family) try(t testing.TB, permits int64) bool {
	t.Helper()
	ok, err := f.client.TryAcquireAll(t.Context(), permits, 0, f.limiters...)
	require.NoError(t, err)
	return ok
}

// free returns the free permits of each.
func (f *family) free(t testing.TB) []int64 {
	t.Helper()
	var all []int64
	for _, l := range f.limiters {
		all = append(all, available(t, l))
	}
	return all
}

// state returns what Redis holds of all.
func (f *family) state(t testing.TB, rdb redis.UniversalClient) map[string]keyState {
	t.Helper()
	all := map[string]keyState{}
	for _, l := range f.limiters {
		maps.Copy(all, readState(t, rdb, l.Name()))
	}
	return all
}

// checkSums checks that free permits and those in use are the rate, of each
// limiter of type Overall.
func (f *family) checkSums(t testing.TB, rdb redis.UniversalClient, rates ...int64) {
	t.Helper()
	for i, l := range f.limiters {
		value, ok := storedValue(t, rdb, keysOf(l).Value)
		if ok {
			assert.Equal(t, rates[i], value+used(t, rdb, keysOf(l).Permits), "free and in use of %s", l.Name())
		}
	}
}

func TestTryAcquireAll(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFamily(t, rdb, every(10, time.Hour), every(5, time.Hour), perClient(7, time.Hour))
		assert.True(t, f.try(t, 2))
		assert.Equal(t, []int64{8, 3, 5}, f.free(t))
		assert.True(t, f.try(t, 3))
		assert.Equal(t, []int64{5, 0, 2}, f.free(t))
		assert.False(t, f.try(t, 1))
		assert.Equal(t, []int64{5, 0, 2}, f.free(t))

		require.NoError(t, f.limiters[1].Release(t.Context(), 3))
		assert.False(t, f.try(t, 3), "the last has 2")
		assert.Equal(t, []int64{5, 3, 2}, f.free(t))
		assert.True(t, f.try(t, 2))
		assert.Equal(t, []int64{3, 1, 0}, f.free(t))
		f.checkSums(t, rdb, 10, 5, 7)
	})
}

// Whichever refuses, the others are as they were.
func TestARefusalOfOneTakesFromNone(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for refuses := range 4 {
			f := newFamily(t, rdb, every(10, time.Hour), every(1000, time.Hour), perClient(10, time.Hour), every(10, time.Hour))
			require.True(t, f.try(t, 3))
			l := f.limiters[refuses]
			mustAcquire(t, l, available(t, l)-1)
			before := f.state(t, rdb)
			assert.False(t, f.try(t, 2))
			assert.Equal(t, before, f.state(t, rdb))
			assert.True(t, f.try(t, 1))
		}
	})
}

func TestTryAcquireAllOfOneIsTryAcquire(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := newClient(t, rdb)
		for _, name := range []string{"orders", "a{b}c", "foo}bar"} {
			l := client.RateLimiter(name, rratelimiter.WithDefault(every(3, time.Second)))
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
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		upper := rratelimiter.WithNameMapper(strings.ToUpper)
		client, mapped := newClient(t, rdb), newClient(t, rdb, upper)
		other, old := newClient(t, rdb), newClient(t, rdb, rratelimiter.WithRedissonVersion("3.13.2"))
		bad := rratelimiter.New(rdb, rratelimiter.WithClientID(""))
		of := func(c *rratelimiter.Client, names ...string) []*rratelimiter.RateLimiter {
			var all []*rratelimiter.RateLimiter
			for _, name := range names {
				all = append(all, c.RateLimiter(name, rratelimiter.WithDefault(every(10, time.Second))))
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
			sent := countCommands(rdb)
			for _, timeout := range []time.Duration{0, time.Hour} {
				ok, err := tt.client.TryAcquireAll(t.Context(), tt.permits, timeout, tt.limiters...)
				require.ErrorIs(t, err, tt.want, name)
				assert.False(t, ok)
				for _, text := range append(tt.says, "TryAcquireAll") {
					assert.ErrorContains(t, err, text, name)
				}
			}
			assert.Zero(t, sent.total(), name)
		}
	})
}

// Names that share a tag with a name that has none are in its slot.
func TestANameIsItsOwnTag(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client, name := newClient(t, rdb), redistest.Name(t)
		hourly := rratelimiter.WithDefault(every(5, time.Hour))
		a, b := client.RateLimiter(name, hourly), client.RateLimiter("{"+name+"}:day", hourly)
		ok, err := client.TryAcquireAll(t.Context(), 2, 0, a, b)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.EqualValues(t, 3, available(t, a))
		assert.EqualValues(t, 3, available(t, b))
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
			client := newClient(t, rdb)
			for range 20 {
				f := newFamilyOf(t, client, every(10, time.Hour), every(2, time.Hour), every(5, time.Hour))
				assert.True(t, f.try(t, 2))
				assert.False(t, f.try(t, 1))
				assert.Equal(t, []int64{8, 0, 3}, f.free(t))
				ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
				_, err := client.TryAcquireAll(ctx, 2, time.Hour, f.limiters...)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, err = client.TryAcquireAll(t.Context(), 1, 0, f.limiters[0], client.RateLimiter("elsewhere"))
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
				return l.SetRate(t.Context(), every(2, time.Hour))
			}, rratelimiter.ErrPermitsExceedRate, "3 permits of 2"},
			"half a config": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.HDel(t.Context(), l.Name(), "interval").Err()
			}, rratelimiter.ErrCorrupt, "interval"},
			"a rate that is none": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.HSet(t.Context(), l.Name(), "rate", "many").Err()
			}, rratelimiter.ErrCorrupt, "rate"},
			"a value that is none": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Set(t.Context(), keysOf(l).Value, "few", 0).Err()
			}, rratelimiter.ErrCorrupt, ":value"},
			"a member of none": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				if err := rdb.Del(t.Context(), keysOf(l).Value, keysOf(l).Permits).Err(); err != nil {
					return err
				}
				return rdb.ZAdd(t.Context(), keysOf(l).Permits, redis.Z{Score: float64(serverNow(t, rdb)), Member: "x"}).Err()
			}, rratelimiter.ErrCorrupt, ":permits"},
			"a list for a hash": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				rdb.Del(t.Context(), l.Name())
				return rdb.LPush(t.Context(), l.Name(), "x").Err()
			}, rratelimiter.ErrCorrupt, "list"},
			"a string for a set": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				rdb.Del(t.Context(), keysOf(l).Value)
				return rdb.Set(t.Context(), keysOf(l).Permits, "x", 0).Err()
			}, rratelimiter.ErrCorrupt, ":permits"},
		} {
			for place := range 3 {
				f := newFamily(t, rdb, every(10, time.Hour), every(10, time.Hour), every(10, time.Hour))
				require.True(t, f.try(t, 1))
				at := f.limiters[place]
				require.NoError(t, tt.spoil(t, at), name)
				fresh := f.client.RateLimiter(f.tag+":fresh", rratelimiter.WithDefault(every(10, time.Hour)))
				before := f.state(t, rdb)
				for _, timeout := range []time.Duration{0, time.Hour} {
					ok, err := f.client.TryAcquireAll(t.Context(), 3, timeout, append([]*rratelimiter.RateLimiter{fresh}, f.limiters...)...)
					require.ErrorIs(t, err, tt.want, "%s, limiter %d", name, place)
					assert.False(t, ok)
					assert.ErrorContains(t, err, fmt.Sprintf("TryAcquireAll %q", at.Name()), name)
					assert.ErrorContains(t, err, tt.says, name)
				}
				assert.Equal(t, before, f.state(t, rdb), name)
				assert.Empty(t, readState(t, rdb, fresh.Name()), name)
			}
		}
	})
}

func TestTryAcquireAllSetsUpDefaults(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client := newClient(t, rdb)
		f := newFamilyOf(t, client, every(10, time.Hour))
		kept := rratelimiter.Config{Rate: 4, Interval: time.Minute, KeepAlive: time.Hour}
		own := perClient(3, time.Minute)
		keep := client.RateLimiter(f.tag+":keep", rratelimiter.WithDefault(kept))
		mine := client.RateLimiter(f.tag+":own", rratelimiter.WithDefault(own))
		f.limiters = append(f.limiters, keep, mine)
		sent := countCommands(rdb)
		assert.True(t, f.try(t, 2))
		assert.LessOrEqual(t, sent.scripts(), 2, "one call; another where the server did not know the script")
		for l, want := range map[*rratelimiter.RateLimiter]rratelimiter.Config{f.limiters[0]: every(10, time.Hour), keep: kept, mine: own} {
			cfg, err := l.Config(t.Context())
			require.NoError(t, err)
			assert.Equal(t, want, cfg)
		}
		assert.Equal(t, []int64{8, 2, 1}, f.free(t))
		for key, ttl := range ttls(t, rdb, keep.Name()) {
			assert.InDelta(t, time.Hour, ttl, float64(10*time.Second), key)
		}

		late := client.RateLimiter(f.tag+":late", rratelimiter.WithDefault(every(4, time.Minute)))
		f.limiters = append(f.limiters, late)
		assert.False(t, f.try(t, 2), "the PerClient one has 1")
		cfg, err := late.Config(t.Context())
		require.NoError(t, err, "a refusal is an answer")
		assert.Equal(t, every(4, time.Minute), cfg)
	})
}

// What a lost limiter of that name left behind does not go before its time.
func TestTryAcquireAllSetsUpBesideWhatIsLeft(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, every(100, time.Hour), every(10, time.Hour))
		_, err := f.limiters[1].Expire(t.Context(), time.Minute)
		require.NoError(t, err)
		require.True(t, f.try(t, 4))
		require.NoError(t, rdb.Del(t.Context(), f.limiters[1].Name()).Err())
		f = f.seenBy(f.client, rratelimiter.WithDefault(every(10, time.Hour)))
		assert.True(t, f.try(t, 4))
		time.Sleep(2 * time.Minute)
		assert.False(t, f.try(t, 3))
		assert.True(t, f.try(t, 2))
		assert.EqualValues(t, -1, rdb.PTTL(t.Context(), keysOf(f.limiters[1]).Permits).Val())
	})
}

// Each layout is written as TryAcquire writes it, and read whatever it is.
func TestTryAcquireAllInEachLayout(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		var members []codec.Layout
		f := newFamily(t, rdb, every(100, time.Hour), every(50, time.Hour))
		for name, layout := range map[string]codec.Layout{
			"D2 merged": codec.LayoutD2, "D2": codec.LayoutD2, "D1": codec.LayoutD1, "C": codec.LayoutC, "B": codec.LayoutB,
		} {
			old := f.seenBy(newClient(t, rdb, rratelimiter.WithRedissonVersion(membersOf[name])))
			assert.True(t, old.try(t, 3), name)
			assert.True(t, old.try(t, 4), name)
			members = append(members, layout, layout)
		}
		for _, l := range f.limiters {
			var found []codec.Layout
			for _, text := range rdb.ZRange(t.Context(), keysOf(l).Permits, 0, -1).Val() {
				member, err := codec.Parse(text)
				require.NoError(t, err)
				found = append(found, member.Layout)
			}
			assert.ElementsMatch(t, members, found)
		}
		assert.Equal(t, []int64{65, 15}, f.free(t))
		for name := range membersOf {
			old := f.seenBy(newClient(t, rdb, rratelimiter.WithRedissonVersion(membersOf[name])))
			assert.False(t, old.try(t, 16), name)
			assert.True(t, old.try(t, 3), name)
		}
		assert.False(t, f.try(t, 1))
		f.checkSums(t, rdb, 100, 50)
	})
}

// For Redissons that must not find many, nothing that has run out stays.
func TestTryAcquireAllSweepsForOldRedissons(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamilyOf(t, newClient(t, rdb, rratelimiter.WithRedissonVersion("3.15.5")), every(1000, time.Minute), every(1000, time.Hour))
		for range 40 {
			require.True(t, f.try(t, 1))
		}
		time.Sleep(30 * time.Second)
		require.True(t, f.try(t, 1))
		time.Sleep(30 * time.Second)
		require.True(t, f.try(t, 1))
		assert.EqualValues(t, 2, rdb.ZCard(t.Context(), keysOf(f.limiters[0]).Permits).Val())
		assert.EqualValues(t, 42, rdb.ZCard(t.Context(), keysOf(f.limiters[1]).Permits).Val())
	})
}

// Members that have run out stay few though there is always enough.
func TestTryAcquireAllLeavesFewThatHaveRunOut(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, every(1000, time.Second), every(100000, time.Hour))
		for range 200 {
			require.True(t, f.try(t, 1))
			time.Sleep(10 * ms)
		}
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), keysOf(f.limiters[0]).Permits).Val(), int64(100+32))
		f.checkSums(t, rdb, 1000, 100000)
	})
}

func TestTryAcquireAllRepairsWhatWasLost(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, tt := range map[string]struct {
			spoil func(t *testing.T, l *rratelimiter.RateLimiter) error
			free  int64 // of 10, 6 of which were taken
		}{
			"value lost": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), keysOf(l).Value).Err()
			}, 4},
			"set lost": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), keysOf(l).Permits).Err()
			}, 10},
			"both lost": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.Del(t.Context(), keysOf(l).Value, keysOf(l).Permits).Err()
			}, 10},
			"permits leaked": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.DecrBy(t.Context(), keysOf(l).Value, 4).Err()
			}, 4},
			"value above the rate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return rdb.IncrBy(t.Context(), keysOf(l).Value, 50).Err()
			}, 10},
			"all has run out": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return makeOlder(t, rdb, l, 2*time.Hour)
			}, 10},
			"dated in the future": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
				return makeOlder(t, rdb, l, -2*time.Hour)
			}, 4},
		} {
			for place := range 2 {
				f := newFamily(t, rdb, every(10, time.Hour), every(10, time.Hour))
				require.True(t, f.try(t, 6))
				require.NoError(t, f.limiters[1-place].Release(t.Context(), 6))
				require.NoError(t, tt.spoil(t, f.limiters[place]), name)
				got := int64(0)
				if name == "set lost" {
					require.True(t, f.try(t, 1))
					f.checkSums(t, rdb, 10, 10)
					got++
				}
				for range 11 {
					if f.try(t, 1) {
						got++
					}
				}
				assert.Equal(t, tt.free, got, name)
				value, _ := storedValue(t, rdb, keysOf(f.limiters[place]).Value)
				assert.Zero(t, value, name)
				assert.Equal(t, got, used(t, rdb, keysOf(f.limiters[1-place]).Permits), name)
			}
		}
	})
}

// makeOlder dates what is in use back.
func makeOlder(t testing.TB, rdb redis.UniversalClient, l *rratelimiter.RateLimiter, age time.Duration) error {
	t.Helper()
	for _, member := range rdb.ZRange(t.Context(), keysOf(l).Permits, 0, -1).Val() {
		if err := rdb.ZIncrBy(t.Context(), keysOf(l).Permits, -float64(age.Milliseconds()), member).Err(); err != nil {
			return err
		}
	}
	return nil
}

// A window of Redisson before 3.13.3 is left as it is: no call fills it or moves
// its end.
func TestTryAcquireAllBesideAWindow(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, every(10, time.Minute), every(100, time.Hour))
		require.True(t, asRedisson3123(t, rdb, f.limiters[0], 7))
		time.Sleep(20 * time.Second)
		assert.True(t, f.try(t, 2))
		assert.False(t, f.try(t, 2))
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), keysOf(f.limiters[0]).Value).Val())
		start := time.Now()
		ok, err := f.client.TryAcquireAll(t.Context(), 2, time.Hour, f.limiters...)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.InDelta(t, 40*time.Second, time.Since(start), float64(2*ms))
	})
}

func TestTryAcquireAllKeepsTimesToLive(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, every(10, time.Minute),
			rratelimiter.Config{Rate: 1, Interval: time.Minute, KeepAlive: 10 * time.Minute}, perClient(10, time.Minute))
		_, err := f.limiters[0].Expire(t.Context(), time.Hour)
		require.NoError(t, err)
		for _, granted := range []bool{true, false} {
			assert.Equal(t, granted, f.try(t, 1))
			for i, want := range []time.Duration{time.Hour, 10 * time.Minute, time.Minute} {
				for key, ttl := range ttls(t, rdb, f.limiters[i].Name()) {
					if i == 2 && key == f.limiters[i].Name() {
						want = -1
					}
					assert.Equal(t, want, ttl, "%s, granted %v", key, granted)
					want = []time.Duration{time.Hour, 10 * time.Minute, time.Minute}[i]
				}
			}
			_, err := f.limiters[0].Expire(t.Context(), time.Hour)
			require.NoError(t, err)
			time.Sleep(time.Second)
			_, err = f.limiters[0].Expire(t.Context(), time.Hour)
			require.NoError(t, err)
		}
	})
}

// Notes of attempts that nobody needs any more go, as by TryAcquire.
func TestTryAcquireAllForgetsOldNotes(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		f := newFamily(t, rdb, every(10, time.Hour), every(10, time.Hour))
		note := fmt.Sprintf("%d:00;", time.Now().UnixMilli())
		for _, l := range f.limiters {
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", note).Err())
		}
		for _, noted := range []bool{true, false} {
			assert.True(t, f.try(t, 1))
			for _, l := range f.limiters {
				exists, err := rdb.HExists(t.Context(), l.Name(), "answered").Result()
				require.NoError(t, err)
				assert.Equal(t, noted, exists)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// Much that has run out, in many limiters, is a bounded piece of work a call.
func TestTryAcquireAllDoesBoundedWork(t *testing.T) {
	t.Parallel()
	const limiters, crowd = 16, 2000
	for name, tt := range map[string]struct {
		age     map[time.Duration]int // members of one permit each
		value   int64                 // below 0: missing
		version string
		permits int64
		want    bool
		wait    time.Duration
	}{
		"half has run out":                        {map[time.Duration]int{2 * time.Hour: crowd / 2, time.Hour / 2: crowd / 2}, 0, "4.7.0", 900, true, 0},
		"half has run out, beside an old release": {map[time.Duration]int{2 * time.Hour: crowd / 2, time.Hour / 2: crowd / 2}, 10, "3.15.5", 5, true, 0},
		"all in use":                              {map[time.Duration]int{time.Hour / 2: crowd}, 0, "4.7.0", 100, false, time.Hour / 2},
		"all in use, no value":                    {map[time.Duration]int{time.Hour / 2: crowd}, -1, "4.7.0", 10, false, time.Hour / 2},
		"dated in the future":                     {map[time.Duration]int{-time.Hour: crowd}, 0, "4.7.0", 1, false, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartRedis(t)
			rdb := server.Client(t, nil)
			cfgs := make([]rratelimiter.Config, limiters)
			for i := range cfgs {
				cfgs[i] = every(crowd, time.Hour)
			}
			f := newFamilyOf(t, newClient(t, rdb, rratelimiter.WithRedissonVersion(tt.version)), cfgs...)
			for _, l := range f.limiters {
				for age, count := range tt.age {
					addGrants(t, rdb, keysOf(l).Permits, age, count, 1)
				}
				if tt.value >= 0 {
					require.NoError(t, rdb.Set(t.Context(), keysOf(l).Value, tt.value, 0).Err())
				}
			}
			watch := monitor(t, server.Addr())
			ok, err := f.client.TryAcquireAll(t.Context(), tt.permits, 0, f.limiters...)
			require.NoError(t, err)
			assert.Equal(t, tt.want, ok)
			require.NoError(t, rdb.Echo(t.Context(), "done").Err())
			watch(t)
			if !tt.want {
				return
			}
			for _, l := range f.limiters {
				assert.Equal(t, crowd/2-tt.permits, available(t, l)-tt.value)
			}
		})
	}
}

// What is taken between the calls of one decision is missing in it.
func TestTryAcquireAllSeesWhatIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		taken int64 // of the first of 1000, from which 600 are wanted
		want  bool
	}{"too many": {401, false}, "as many as it can bear": {400, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, rdb *redis.Client) {
				f := newFamily(t, rdb, every(1000, time.Hour), every(1000, time.Hour))
				others := f.seenBy(newClient(t, rdb))
				addGrants(t, rdb, keysOf(f.limiters[1]).Permits, 2*time.Hour, 800, 1)
				addGrants(t, rdb, keysOf(f.limiters[1]).Permits, time.Minute, 200, 1)
				require.NoError(t, rdb.Set(t.Context(), keysOf(f.limiters[1]).Value, 0, 0).Err())
				require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
				calls := 0
				rdb.AddHook(beforeScript{lua.AcquireAll, func() {
					if calls++; calls == 2 {
						mustAcquire(t, others.limiters[0], tt.taken)
					}
				}})
				assert.Equal(t, tt.want, f.try(t, 600))
				assert.GreaterOrEqual(t, calls, 2)
				f.checkSums(t, rdb, 1000, 1000)
				free := []int64{1000 - tt.taken, 800}
				if tt.want {
					free = []int64{0, 200}
				}
				assert.Equal(t, free, f.free(t))
			})
		})
	}
}

// beforeScript does something before each call of a script.
type beforeScript struct {
	script *lua.Script
	do     func()
}

func (beforeScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b beforeScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == b.script.SHA {
			b.do()
		}
		return next(ctx, cmd)
	}
}

func (beforeScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestTryAcquireAllWaitsUpToItsTimeout(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeout time.Duration
		want    string
	}{
		{math.MinInt64, "false at 250ms"},
		{0, "false at 250ms"},
		{1, "false at 250.000001ms"},
		{749 * ms, "false at 999ms"},
		{1750*ms - 1, "false at 1.999999999s"},
		{1750 * ms, "true at 2s"},
		{5 * time.Second, "true at 2s"},
		{math.MaxInt64, "true at 2s"},
	} {
		for name, context := range map[string]func(context.Context) context.Context{
			"cancellable":     func(ctx context.Context) context.Context { return ctx },
			"not cancellable": context.WithoutCancel,
		} {
			t.Run(tt.timeout.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					// The first could grant at 1s, the second at 2s, the third at once.
					s, f := newBundleScene(t, every(2, time.Second), every(1, 2*time.Second), every(9, time.Hour))
					require.True(t, f.seenBy(s.rival).try(t, 1))
					mustAcquire(t, s.rival.RateLimiter(f.limiters[0].Name()), 1)
					s.until(250 * ms)
					if name == "cancellable" {
						slices.Reverse(f.limiters)
					}
					c := s.tryAll(context(t.Context()), f, 1, tt.timeout)
					s.until(forever)
					assert.Equal(t, tt.want, c.outcome())
					assert.LessOrEqual(t, s.sent.scripts(), 2, "it asks at first, and when both can grant")
				})
			})
		}
	}
}

// The wait is the time until enough members have run out, whenever it is asked
// for.
func TestTryAcquireAllWaitsForEnoughMembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := newBundleScene(t, every(3, time.Second), every(9, time.Hour))
		for range 3 {
			mustAcquire(t, s.rival.RateLimiter(f.limiters[0].Name()), 1)
			s.until(s.now() + 200*ms)
		}
		assert.False(t, f.try(t, 1))
		two, three := s.tryAll(t.Context(), f, 2, 600*ms), s.tryAll(t.Context(), f, 3, forever)
		s.until(forever)
		assert.Equal(t, "true at 1.2s", two.outcome())
		assert.Equal(t, "true at 2.2s", three.outcome())
	})
}

// A bundleScene is a heldScene for several limiters.
type bundleScene struct {
	*heldScene

	rival *rratelimiter.Client // past the proxy
}

// newBundleScene must be called in a bubble.
func newBundleScene(t *testing.T, cfgs ...rratelimiter.Config) (*bundleScene, *family) {
	t.Helper()
	s := &bundleScene{heldScene: newHeldSceneOf(t, every(1, time.Second), &redis.Options{ReadTimeout: time.Minute})}
	s.rival = newClient(t, s.mini)
	f := newFamilyOf(t, s.rival, cfgs...)
	s.sent = countCommands(s.rdb)
	return s, f.seenBy(s.client)
}

// tryAll is TryAcquireAll beside the test.
func (s *bundleScene) tryAll(ctx context.Context, f *family, permits int64, timeout time.Duration) *caller {
	return s.call(func() (bool, error) { return f.client.TryAcquireAll(ctx, permits, timeout, f.limiters...) })
}

// checkAll checks what is in use of each, and that all else is free.
func (s *bundleScene) checkAll(t *testing.T, f *family, rates, inUse []int64) {
	t.Helper()
	synctest.Wait()
	for i, l := range f.limiters {
		assert.Equal(t, inUse[i], used(t, s.mini, keysOf(l).Permits), "permits in use of %s", l.Name())
		if value, ok := storedValue(t, s.mini, keysOf(l).Value); ok {
			assert.Equal(t, rates[i]-inUse[i], value, "free permits of %s", l.Name())
		}
	}
}

func TestThoseThatWaitForAllAreWoken(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wake func(t *testing.T, l *rratelimiter.RateLimiter) error
		want string // "": the limiter is gone at once
	}{
		"SetRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			return l.SetRate(t.Context(), every(5, time.Second))
		}, "true at 300ms"},
		"UpdateRate": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), every(3, time.Second), rratelimiter.KeepState())
			return err
		}, "true at 300ms"},
		"a longer interval": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.UpdateRate(t.Context(), every(2, 2*time.Second), rratelimiter.KeepState())
			return err
		}, "true at 2s"},
		"Delete": {func(t *testing.T, l *rratelimiter.RateLimiter) error {
			_, err := l.Delete(t.Context())
			return err
		}, ""},
	} {
		for place := range 2 {
			t.Run(fmt.Sprint(name, place), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s, f := newBundleScene(t, every(2, time.Second), every(2, time.Second))
					mustAcquire(t, s.rival.RateLimiter(f.limiters[place].Name()), 2)
					c := s.tryAll(t.Context(), f, 1, forever)
					s.until(300 * ms)
					require.NoError(t, tt.wake(t, s.client.RateLimiter(f.limiters[place].Name())))
					s.until(forever)
					if tt.want == "" {
						c.requireEnd(t, rratelimiter.ErrNotInitialized, 300*ms)
						return
					}
					assert.Equal(t, tt.want, c.outcome())
				})
			})
		}
	}
}

func TestAContextThatEndsWhileItWaitsForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := newBundleScene(t, every(2, time.Second), every(1, time.Hour))
		require.True(t, f.seenBy(s.rival).try(t, 1))
		ended, cancel := context.WithCancel(t.Context())
		waits := s.tryAll(ended, f, 1, forever)
		s.until(300 * ms)
		cancel()
		synctest.Wait()
		waits.requireEnd(t, context.Canceled, 300*ms)
		before := s.sent.total()
		_, err := s.client.TryAcquireAll(ended, 1, 0, f.limiters...)
		require.ErrorIs(t, err, context.Canceled)
		s.until(forever)
		assert.Equal(t, before, s.sent.total())
		s.checkAll(t, f, []int64{2, 1}, []int64{1, 1})
	})
}

// What is granted to a caller that has gone goes back to every limiter, and
// serves those that wait for any of them.
func TestAContextThatEndsWhileAllAreAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := newBundleScene(t, every(3, time.Hour), every(9, time.Hour), every(5, time.Hour))
		require.NoError(t, s.mini.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		letGo := s.hold(t, lua.AcquireAll, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
		defer cancel()
		gone := s.tryAll(ctx, f, 3, forever)
		s.checkAll(t, f, []int64{3, 9, 5}, []int64{3, 3, 3})
		one := s.call(func() (bool, error) { return f.limiters[0].TryAcquire(t.Context(), 1, forever) })
		other := &family{client: f.client, limiters: f.limiters[:2]}
		both := s.tryAll(t.Context(), other, 2, forever)
		s.until(500 * ms)
		gone.requireEnd(t, context.DeadlineExceeded, 200*ms)
		letGo()
		assert.Equal(t, "true at 500ms", one.outcome())
		assert.Equal(t, "true at 500ms", both.outcome())
		s.checkAll(t, f, []int64{3, 9, 5}, []int64{3, 2, 0})
	})
}

func TestCloseEndsTheWaitForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := newBundleScene(t, every(1, time.Second), every(1, time.Hour))
		require.True(t, f.seenBy(s.rival).try(t, 1))
		waiting := []*caller{s.tryAll(t.Context(), f, 1, forever), s.tryAll(context.WithoutCancel(t.Context()), f, 1, forever)}
		s.until(300 * ms)
		before := s.sent.total()
		require.NoError(t, s.client.Close(t.Context()))
		synctest.Wait()
		for _, c := range waiting {
			c.requireEnd(t, rratelimiter.ErrClosed, 300*ms)
		}
		_, err := s.client.TryAcquireAll(t.Context(), 1, 0, f.limiters...)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)
		s.until(forever)
		assert.Equal(t, before, s.sent.total())
	})
}

func TestCloseWaitsForWhatAllAreAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, f := newBundleScene(t, every(5, time.Hour), every(9, time.Hour))
		require.NoError(t, s.mini.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		held := make(chan struct{})
		s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Contains(lua.AcquireAll.SHA) {
				return redistest.Pass.When(held)
			}
			return redistest.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		kept := s.tryAll(t.Context(), f, 2, 0)
		gone := s.tryAll(ctx, f, 1, 0)
		refused := s.tryAll(t.Context(), f, 4, forever)
		s.until(100 * ms)
		closed := s.close(t.Context())
		cancel()
		s.until(200 * ms)
		assert.Equal(t, "waits", closed.outcome())
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 200ms", kept.outcome())
		gone.requireEnd(t, context.Canceled, 100*ms)
		refused.requireEnd(t, rratelimiter.ErrClosed, 200*ms)
		assert.Equal(t, "true at 200ms", closed.outcome())
		s.checkAll(t, f, []int64{5, 9}, []int64{2, 2})
	})
}

// One limiter is brought up to date before another turns out to be damaged.
func TestAValueMadeBesideAnErrorEndsToo(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t, nil)
	f := newFamily(t, rdb, every(10, time.Hour), every(10, time.Hour))
	require.True(t, f.try(t, 1))
	first, second := keysOf(f.limiters[0]), keysOf(f.limiters[1])
	_, err := f.limiters[0].Expire(t.Context(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, rdb.Del(t.Context(), first.Value).Err())
	require.NoError(t, rdb.ZAdd(t.Context(), second.Permits, redis.Z{Score: 1, Member: "junk"}).Err())
	_, err = f.client.TryAcquireAll(t.Context(), 10, 0, f.limiters...)
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
	if rdb.Exists(t.Context(), first.Value).Val() == 1 {
		assert.Positive(t, rdb.PTTL(t.Context(), first.Value).Val())
	}
}
