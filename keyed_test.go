package rratelimiter_test

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestKeyed(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(rdb redis.UniversalClient, permits int64, window time.Duration) limit.Returner {
			// Any prefix would do, but for a user who may touch the test's own keys only.
			return rratelimiter.New(rdb).Keyed("", every(permits, window)).(limit.Returner)
		},
		Keys: func(string) []string { return nil },
		Once: true,
	})
}

// newKeyed returns a limiter of keys, and the prefix of their limiters' names.
func newKeyed(t *testing.T, rdb rratelimiter.Redis, cfg rratelimiter.Config) (*rratelimiter.Client, limit.Returner, string) {
	t.Helper()
	client, prefix := newClient(t, rdb), redistest.Name(t)+":"
	return client, client.Keyed(prefix, cfg).(limit.Returner), prefix
}

// A key's limiter is the RateLimiter of prefix+key, set up at first use.
func TestKeyedNames(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client, l, prefix := newKeyed(t, rdb, every(5, time.Hour))
		ann := client.RateLimiter(prefix + "ann")
		exists, err := ann.Exists(t.Context())
		require.NoError(t, err)
		assert.False(t, exists, "nothing is set up before")

		assert.Equal(t, int64(3), limittest.Take(t, l, "ann", 2).Remaining)
		assert.EqualValues(t, 3, available(t, ann))
		cfg, err := ann.Config(t.Context())
		require.NoError(t, err)
		assert.Equal(t, rratelimiter.Config{Rate: 5, Interval: time.Hour, KeepAlive: time.Hour}, cfg)
		mustAcquire(t, ann, 3)
		assert.False(t, limittest.Take(t, l, "ann", 1).Granted)
		assert.Equal(t, 5, limittest.Grants(t, l, "bob", 7), "each key has permits of its own")
		_, other, _ := newKeyed(t, rdb, every(5, time.Hour))
		assert.Equal(t, 5, limittest.Grants(t, other, "ann", 7), "and so has each prefix")
	})
}

// A key that is given a rate of its own keeps it.
func TestKeyedRateOfItsOwn(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client, l, prefix := newKeyed(t, rdb, every(5, time.Hour))
		assert.Equal(t, 5, limittest.Grants(t, l, "ann", 7))
		ann := client.RateLimiter(prefix + "ann")
		require.NoError(t, ann.SetRate(t.Context(), every(8, time.Hour), rratelimiter.KeepState()))
		d := limittest.Take(t, l, "ann", 1)
		assert.True(t, d.Granted)
		assert.Equal(t, int64(8), d.Limit)
		assert.Equal(t, 2, limittest.Grants(t, l, "ann", 4))
	})
}

// A key that nobody asks for leaves nothing behind; how long it stays can be
// chosen.
func TestKeyedKeepAlive(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ given, want time.Duration }{
		"the interval, by default": {0, time.Minute},
		"longer":                   {time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, rdb *redis.Client) {
				_, l, prefix := newKeyed(t, rdb, rratelimiter.Config{Rate: 5, Interval: time.Minute, KeepAlive: tc.given})
				limittest.Take(t, l, "ann", 1)
				time.Sleep(tc.want - time.Millisecond)
				assert.NotEmpty(t, readState(t, rdb, prefix+"ann"))
				time.Sleep(2 * time.Millisecond)
				assert.Empty(t, readState(t, rdb, prefix+"ann"))
				assert.Equal(t, 5, limittest.Grants(t, l, "ann", 7))
			})
		})
	}
}

// More keys than there is room for handles are limited all the same.
func TestKeyedManyKeys(t *testing.T) {
	t.Parallel()
	_, l, _ := newKeyed(t, redistest.Redis(t), every(1, time.Minute))
	grants := func(keys int) int64 {
		const callers = 64
		var granted atomic.Int64
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := c; i < keys; i += callers {
					d, err := l.Take(t.Context(), strconv.Itoa(i), 1)
					if assert.NoError(t, err) && d.Granted {
						granted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		return granted.Load()
	}
	assert.EqualValues(t, 11_000, grants(11_000))
	assert.Zero(t, grants(500), "those whose handles were forgotten")
}

func TestKeyedInput(t *testing.T) {
	t.Parallel()
	rdb := limittest.Unreachable(t)
	client, l, prefix := newKeyed(t, rdb, every(5, time.Hour))
	limittest.RequireRefused(t, l, "", 1, rratelimiter.ErrInvalidConfig, "key is empty", prefix)
	limittest.RequireRefused(t, l, "ann", 1<<32, rratelimiter.ErrInvalidPermits, prefix+"ann")
	for name, cfg := range map[string]rratelimiter.Config{
		"nothing":    {},
		"rate":       {Interval: time.Second},
		"interval":   {Rate: 1, Interval: time.Microsecond},
		"keep-alive": {Rate: 1, Interval: time.Minute, KeepAlive: time.Second},
		"type":       {Type: 7, Rate: 1, Interval: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			limittest.RequireRefused(t, client.Keyed("a:", cfg).(limit.Returner), "ann", 1, rratelimiter.ErrInvalidConfig, "a:ann")
		})
	}
	require.NoError(t, client.Close(t.Context()))
	limittest.RequireRefused(t, l, "ann", 1, rratelimiter.ErrClosed)
}

// The names that outsiders choose keys for stay within their prefix.
func TestKeyedHostileKeys(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		_, l, prefix := newKeyed(t, rdb, every(2, time.Hour))
		for _, key := range []string{"a b", "\x00", "\xff\xfe", "{", "}", "{}", "{a}b", "*", "a\r\nFLUSHALL\r\n", strings.Repeat("x", 5000), "ünï"} {
			assert.Equal(t, 2, limittest.Grants(t, l, key, 3), "%q", key)
		}
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			assert.Contains(t, key, prefix)
		}
	})
}
