package redisson_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// mixed is a limiter of 100,000 permits an hour whose set holds members of a
// Client among those of others.
type mixed struct {
	*rratelimiter.RateLimiter

	rdb    redis.UniversalClient
	client *rratelimiter.Client
	other  *rratelimiter.RateLimiter // another Client's handle
	keys   redisson.Keys             // Value and Permits are those in use
	theirs map[string]bool           // members of others, one permit each
	others int64                     // permits of others in use
}

const mixedRate = 100_000

func newMixed(t *testing.T, rdb redis.UniversalClient, kind rratelimiter.RateType, opts ...rratelimiter.Option) *mixed {
	t.Helper()
	const id = "the-client"
	opts = append(opts, rratelimiter.WithClientID(id))
	name := redistest.Name(t)
	m := &mixed{rdb: rdb, client: limitertest.NewClient(t, rdb, opts...), keys: redisson.KeysOf(name, id), theirs: map[string]bool{}}
	m.RateLimiter, m.other = m.client.RateLimiter(name), limitertest.NewClient(t, rdb, opts...).RateLimiter(name)
	limitertest.MustTrySetRate(t, m.RateLimiter, rratelimiter.Config{Type: kind, Rate: mixedRate, Interval: time.Hour})
	if kind == rratelimiter.PerClient {
		m.keys.Value, m.keys.Permits = m.keys.ClientValue, m.keys.ClientPermits
	}
	return m
}

// othersTake has others take one permit each, so many times, after all that was
// taken before.
func (m *mixed) othersTake(t *testing.T, count int) {
	t.Helper()
	time.Sleep(2 * time.Millisecond)
	if _, there := limitertest.StoredValue(t, m.rdb, m.keys.Value); !there {
		require.NoError(t, m.rdb.Set(t.Context(), m.keys.Value, mixedRate, 0).Err())
	}
	score := float64(limitertest.ServerNow(t, m.rdb))
	rows := make([]redis.Z, count)
	for i := range rows {
		member := limitertest.NewMember(t, codec.LayoutD2, 1)
		rows[i] = redis.Z{Score: score, Member: member}
		m.theirs[member] = true
	}
	require.NoError(t, m.rdb.ZAdd(t.Context(), m.keys.Permits, rows...).Err())
	require.NoError(t, m.rdb.DecrBy(t.Context(), m.keys.Value, int64(count)).Err())
	m.others += int64(count)
}

// check tells what is in use: so many permits of the Client's, beside those of
// others.
func (m *mixed) check(t *testing.T, own int64) {
	t.Helper()
	rows, err := m.rdb.ZRange(t.Context(), m.keys.Permits, 0, -1).Result()
	require.NoError(t, err)
	others := int64(0)
	for _, row := range rows {
		if m.theirs[row] {
			others++
		}
	}
	inUse := limitertest.InUse(t, m.rdb, m.keys.Permits)
	assert.Equal(t, own, inUse-others, "permits of the Client's in use")
	assert.Equal(t, m.others, others, "permits of others in use")
	value, _ := limitertest.StoredValue(t, m.rdb, m.keys.Value)
	assert.Equal(t, mixedRate-inUse, value)
}

// A Release takes this Client's members first, however many of others are newer.
func TestReleaseFindsItsOwnBehindOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		version string
		take    func(t *testing.T, m *mixed)
		give    int64
		own     int64 // permits of the Client's in use in the end
	}{
		"one": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			m.othersTake(t, 300)
		}, give: 3},
		"a part of one": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			m.othersTake(t, 300)
		}, give: 2, own: 1},
		"behind thousands": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			m.othersTake(t, 6000)
		}, give: 3},
		"behind thousands that came much later": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			time.Sleep(10 * time.Minute)
			m.othersTake(t, 6000)
			time.Sleep(10 * time.Minute)
		}, give: 3},
		"several, apart from each other": {take: func(t *testing.T, m *mixed) {
			for range 4 {
				limitertest.MustAcquire(t, m.RateLimiter, 3)
				time.Sleep(time.Minute)
				m.othersTake(t, 1500)
				time.Sleep(time.Minute)
			}
		}, give: 10, own: 2},
		"some new, some old": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			time.Sleep(time.Minute)
			m.othersTake(t, 1500)
			limitertest.MustAcquire(t, m.RateLimiter, 3)
		}, give: 5, own: 1},
		"many": {take: func(t *testing.T, m *mixed) {
			for range 300 {
				limitertest.MustAcquire(t, m.RateLimiter, 1)
				m.othersTake(t, 5)
			}
			m.othersTake(t, 300)
		}, give: 290, own: 10},
		"shrunk by its own Release": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 5)
			m.othersTake(t, 300)
			require.NoError(t, m.Release(t.Context(), 2))
			m.othersTake(t, 300)
		}, give: 2, own: 1},
		"shrunk by another Client": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 5)
			require.NoError(t, m.other.Release(t.Context(), 2))
			m.othersTake(t, 300)
		}, give: 2, own: 1},
		"taken after a Release that found none": {take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 1)
			m.othersTake(t, 1000)
			require.NoError(t, m.Release(t.Context(), 401))
			m.others -= 400
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			m.othersTake(t, 1000)
		}, give: 3},
		"beside others' that have run out": {take: func(t *testing.T, m *mixed) {
			m.othersTake(t, 2000)
			time.Sleep(30 * time.Minute)
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			m.othersTake(t, 1000)
			time.Sleep(30 * time.Minute)
			limitertest.Available(t, m.RateLimiter)
			m.others -= 2000
		}, give: 3},
		"taken with all limiters": {take: func(t *testing.T, m *mixed) {
			second := m.client.RateLimiter("{" + m.Name() + "}second")
			first := m.client.RateLimiter("{" + m.Name() + "}first")
			for _, l := range []*rratelimiter.RateLimiter{first, second} {
				limitertest.MustTrySetRate(t, l, limitertest.Every(mixedRate, time.Hour))
			}
			ok, err := m.client.TryAcquireAll(t.Context(), 3, 0, first, second)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, second.Rename(t.Context(), m.Name()))
			m.othersTake(t, 300)
		}, give: 3},
		"in layout D1": {version: "3.20.1", take: func(t *testing.T, m *mixed) {
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			m.othersTake(t, 300)
		}, give: 3},
	} {
		for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			t.Run(name+", "+kind.String(), func(t *testing.T) {
				t.Parallel()
				if name == "taken with all limiters" && kind == rratelimiter.PerClient {
					t.Skip("a limiter that is renamed brings its type along")
				}
				redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
					var opts []rratelimiter.Option
					if tt.version != "" {
						opts = append(opts, rratelimiter.WithRedissonVersion(tt.version))
					}
					m := newMixed(t, rdb, kind, opts...)
					tt.take(t, m)
					require.NoError(t, m.Release(t.Context(), tt.give))
					m.check(t, tt.own)
				})
			})
		}
	}
}

// Layouts B and C have no mark of the Client: the newest are taken.
func TestReleaseTakesTheNewestWhereMembersBearNoMark(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.15.5", "3.16.8"} {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			m := newMixed(t, rdb, rratelimiter.Overall, rratelimiter.WithRedissonVersion(version))
			limitertest.MustAcquire(t, m.RateLimiter, 3)
			time.Sleep(time.Minute)
			m.othersTake(t, 300)
			require.NoError(t, m.Release(t.Context(), 3))
			m.others -= 3
			m.check(t, 3)
		})
	}
}

// What is asked for beyond this Client's own comes off the newest of others.
func TestReleaseTakesOthersWhereItsOwnAreTooFew(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		m := newMixed(t, rdb, rratelimiter.Overall)
		m.othersTake(t, 500)
		limitertest.MustAcquire(t, m.RateLimiter, 3)
		time.Sleep(time.Minute)
		m.othersTake(t, 500)
		require.NoError(t, m.Release(t.Context(), 303))
		m.others -= 300
		m.check(t, 0)
		before := strconv.FormatInt(limitertest.ServerNow(t, rdb)-time.Second.Milliseconds(), 10)
		newer, err := rdb.ZCount(t.Context(), m.keys.Permits, before, "+inf").Result()
		require.NoError(t, err)
		assert.EqualValues(t, 200, newer)
		require.NoError(t, m.Release(t.Context(), 5000))
		assert.Zero(t, rdb.Exists(t.Context(), m.keys.Permits).Val())
		assert.EqualValues(t, mixedRate, limitertest.Available(t, m.RateLimiter))
	})
}

// What has run out is not in use, though it may be in the set still: of this
// Client's, too.
func TestReleaseLeavesWhatHasRunOut(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		m := newMixed(t, rdb, rratelimiter.Overall)
		for range 300 {
			limitertest.MustAcquire(t, m.RateLimiter, 1)
		}
		time.Sleep(time.Hour)
		m.othersTake(t, 10)
		require.NoError(t, m.Release(t.Context(), 5))
		m.others -= 5
		m.check(t, 300-256) // which the call has reclaimed
		assert.EqualValues(t, mixedRate-5, limitertest.Available(t, m.RateLimiter))
	})
}

// By a clock that has gone back its own members are dated later than it took them.
func TestReleaseFindsItsOwnByAClockSetBack(t *testing.T) {
	t.Parallel()
	for _, back := range []time.Duration{10 * time.Second, 10 * time.Minute} {
		t.Run(back.String(), func(t *testing.T) {
			t.Parallel()
			redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
				m := newMixed(t, rdb, rratelimiter.Overall)
				limitertest.MustAcquire(t, m.RateLimiter, 3)
				m.othersTake(t, 1000)
				time.Sleep(time.Minute)
				step(-back)
				require.NoError(t, m.Release(t.Context(), 3))
				m.check(t, 0)
			})
		})
	}
}

// Nobody's members are looked through for those of a Client that took none, or
// none since a Release found none.
func TestReleaseLooksForItsOwnOnlyWhereThereMayBeSome(t *testing.T) {
	t.Parallel()
	w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(mixedRate), false)
	m := &mixed{RateLimiter: w.RateLimiter, rdb: w.Redis, keys: w.Keys, theirs: map[string]bool{}}
	m.othersTake(t, 5000)
	require.NoError(t, w.Release(t.Context(), 1))
	assert.Zero(t, w.Sent(lua.FindOwn), "it took none")
	limitertest.MustAcquire(t, w.RateLimiter, 1)
	require.NoError(t, w.Release(t.Context(), 1))
	assert.Zero(t, w.Sent(lua.FindOwn), "it is the newest")
	require.NoError(t, w.Release(t.Context(), 1))
	looks := w.Sent(lua.FindOwn)
	assert.Positive(t, looks, "there may be more")
	require.NoError(t, w.Release(t.Context(), 1))
	assert.Equal(t, looks, w.Sent(lua.FindOwn), "there were none")
}

// A look for members may be lost and made again; a call that may have given
// permits back is not.
func TestReleaseInManyCallsMeetsFaults(t *testing.T) {
	t.Parallel()
	newScene := func(t *testing.T) (*limitertest.Wire, *mixed) {
		w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(mixedRate), false)
		m := &mixed{RateLimiter: w.RateLimiter, rdb: w.Redis, keys: w.Keys, theirs: map[string]bool{}}
		for range 2 {
			limitertest.MustAcquire(t, w.RateLimiter, 3)
			m.othersTake(t, 2000)
		}
		return w, m
	}
	t.Run("a look", func(t *testing.T) {
		t.Parallel()
		w, m := newScene(t)
		w.On(lua.FindOwn, redistest.DropAnswer, redistest.Cut, redistest.Pass, redistest.Swallow)
		require.NoError(t, w.Release(t.Context(), 5))
		m.check(t, 1)
	})
	t.Run("a give-back in the middle", func(t *testing.T) {
		t.Parallel()
		w, m := newScene(t)
		// The first finds none among the newest, the second takes a member, the
		// third a part of another.
		w.On(lua.Release, redistest.Pass, redistest.Pass, redistest.DropAnswer)
		err := w.Release(t.Context(), 5)
		require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		m.check(t, 1)
		assert.ErrorContains(t, err, "3 of 5 permits are given back")
	})
}
