// Package limittest tests what all limiters by key have in common: figures that are right, callers who ask at once, grants undone,
// answers lost, input that is wrong and keys that hold something else. Particulars of one limiter are left to its own tests.
package limittest

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Limiter has the calls that all limiters by key have.
type Limiter interface {
	limit.Returner
	limit.Windowed
	Peek(ctx context.Context, key string, n int64) (limit.Decision, error)
	TakeUpTo(ctx context.Context, key string, n int64) (int64, limit.Decision, error)
	Reset(ctx context.Context, key string) error
}

// A Rule is a request by an article's script. It may pass if the answer is above 0.
type Rule = func(context.Context) (int64, error)

// A Kind is a kind of limiter to test.
type Kind struct {
	// New returns a limiter that grants that many permits at once, and as many again at most a window later.
	New func(client *rratelimiter.Client, permits int64, window time.Duration, opts ...rratelimiter.LimiterOption) Limiter

	// Keyed: it is a KeyedLimiter, which takes more options.
	Keyed bool

	// Keys returns the Redis keys of a limiter key, all of type Type. Fields are what errors call what they hold, if errors name it.
	Keys   func(key string) []string
	Type   string
	Fields []string

	// Corrupt are texts that none of the keys may hold, if they are strings.
	Corrupt []string

	// Shortest are windows that are as short as they can be, and odd ones.
	Shortest []time.Duration

	// Longest is the longest window, Most is the largest limit; 0 leaves out the test.
	Longest time.Duration
	Most    int64

	// Limit and Window are what errors call them.
	Limit, Window string

	// AtEdge is how many permits of a limit of 10 pass around a window's edge.
	AtEdge int

	// Articles are the rules that share the keys, with that limit for an hour.
	Articles func(rdb redis.Cmdable, key string, permits int64) []Rule

	// Once: a request whose answer is lost is repeated, and takes its permits once. Otherwise its caller gets limit.ErrUnknownOutcome.
	Once bool
}

// on returns a limiter of a patient Client of its own.
func (k Kind) on(rdb redistest.Client, permits int64, window time.Duration) Limiter {
	return k.New(limitertest.OpenClient(rdb), permits, window)
}

// exact returns one of an hour that sends no calls but its callers': no members are merged.
func (k Kind) exact(rdb redistest.Client, permits int64) Limiter {
	var opts []rratelimiter.LimiterOption
	if k.Keyed {
		opts = append(opts, rratelimiter.WithExact())
	}
	return k.New(limitertest.OpenClient(rdb), permits, time.Hour, opts...)
}

// Run runs all tests of a kind of limiter, as subtests.
func Run(t *testing.T, k Kind) {
	t.Helper()
	limitertest.Each(t, map[string]func(*testing.T, Kind){
		"RetryAndReset":           testRetryAndReset,
		"ShortWindows":            testShortWindows,
		"Edge":                    testEdge,
		"LargestFigures":          testLargestFigures,
		"Peek":                    testPeek,
		"TakeUpTo":                testTakeUpTo,
		"Reset":                   testReset,
		"GiveBack":                testGiveBack,
		"GiveBackTooLate":         testGiveBackTooLate,
		"ClockGoesBack":           testClockGoesBack,
		"ClockGoesBackAndForth":   testClockGoesBackAndForth,
		"GiveBackByAClockSetBack": testGiveBackByAClockSetBack,
		"ManyCallers":             testManyCallers,
		"CallersGather":           testCallersGather,
		"CallersWithinOneCall":    testCallersWithinOneCall,
		"OneCommand":              testOneCommand,
		"ContextEndIsNoOutage":    testContextEndIsNoOutage,
		"AnswerLost":              testAnswerLost,
		"LateCopy":                testLateCopy,
		"Twice":                   testTwice,
		"Input":                   testInput,
		"HoldsSomethingElse":      testHoldsSomethingElse,
		"Close":                   testClose,
		"CloseAwaitsGiveBacks":    testCloseAwaitsGiveBacks,
		"OptionsOfTheClient":      testOptionsOfTheClient,
		"NotReplicated":           testNotReplicated,
	}, func(t *testing.T, test func(*testing.T, Kind)) { test(t, k) })
}

// Key returns a new key. The keys beside it are in its slot of a cluster.
func Key(t testing.TB) string {
	t.Helper()
	return "{" + redistest.Name(t) + "}"
}

// Take takes n permits, and fails the test if there is an error.
func Take(t testing.TB, l limit.Limiter, key string, n int64) limit.Decision {
	t.Helper()
	return limitertest.Must(l.Take(t.Context(), key, n))(t)
}

// Returnable takes n permits that are free, and returns what gives them back.
func Returnable(t testing.TB, l limit.Returner, key string, n int64) (giveBack func(context.Context) error) {
	t.Helper()
	d, giveBack, err := l.TakeReturnable(t.Context(), key, n)
	require.NoError(t, err)
	require.True(t, d.Granted)
	return giveBack
}

// Grants asks for one permit, tries times, and returns how often it was granted.
func Grants(t testing.TB, l limit.Limiter, key string, tries int) int {
	t.Helper()
	granted := 0
	for range tries {
		if Take(t, l, key, 1).Granted {
			granted++
		}
	}
	return granted
}

// RequireRefused checks that all calls of a limiter of an [Unreachable] client fail as they should, and that the messages say so.
func RequireRefused(t testing.TB, l limit.Returner, key string, n int64, want error, texts ...string) {
	t.Helper()
	d, err := l.Take(t.Context(), key, n)
	_, giveBack, sameErr := l.TakeReturnable(t.Context(), key, n)
	for _, err := range []error{err, sameErr} {
		require.ErrorIs(t, err, want)
		for _, text := range texts {
			assert.ErrorContains(t, err, text)
		}
	}
	assert.Zero(t, d)
	assert.Nil(t, giveBack)
}

// value is all that Redis holds under one key.
type value struct {
	redistest.Value

	ttl time.Duration
}

func read(t testing.TB, rdb redistest.Client, key string) value {
	t.Helper()
	return value{redistest.Read(t, rdb, key), rdb.PTTL(t.Context(), key).Val()}
}

// RequireCorrupt checks that a call fails with limit.ErrCorrupt and names what it should, and that the keys hold what they did.
func RequireCorrupt(t testing.TB, rdb redistest.Client, keys []string, l limit.Limiter, key string, texts ...string) {
	t.Helper()
	var before []value
	for _, key := range keys {
		before = append(before, read(t, rdb, key))
	}
	d, err := l.Take(t.Context(), key, 1)
	require.ErrorIs(t, err, limit.ErrCorrupt)
	assert.Zero(t, d)
	for _, text := range append(texts, strconv.Quote(key)) {
		assert.ErrorContains(t, err, text)
	}
	for i, key := range keys {
		after := read(t, rdb, key)
		assert.InDelta(t, before[i].ttl, after.ttl, float64(10*time.Second), "time to live of %s", key)
		assert.Equal(t, before[i].Value, after.Value)
	}
}

func testInput(t *testing.T, k Kind) {
	l := k.on(Unreachable(t), 10, time.Minute)
	for _, n := range []int64{0, -1, math.MinInt64} {
		RequireRefused(t, l, "orders", n, limit.ErrInvalidPermits, `orders"`, strconv.FormatInt(n, 10))
	}
	RequireRefused(t, l, "", 1, limit.ErrInvalidConfig, "key")
	d, err := l.Take(limitertest.EndedContext(t), "orders", 1)
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, d)
	limits := []int64{0, -1, math.MinInt64}
	if k.Most > 0 {
		limits = append(limits, k.Most+1)
	}
	invalid := func(l limit.Returner, text string) {
		RequireRefused(t, l, "orders", 1, limit.ErrInvalidConfig, text, `orders"`)
		checked, ok := l.(interface{ Err() error })
		require.True(t, ok)
		require.ErrorIs(t, checked.Err(), limit.ErrInvalidConfig)
		assert.ErrorContains(t, checked.Err(), text)
	}
	for _, n := range limits {
		invalid(k.on(Unreachable(t), n, time.Minute), fmt.Sprint(k.Limit, " ", n))
	}
	for _, window := range []time.Duration{0, -time.Second, time.Microsecond, time.Second + 500*time.Microsecond} {
		invalid(k.on(Unreachable(t), 10, window), fmt.Sprint(k.Window, " ", window))
	}
	for _, rdb := range []redistest.Client{nil, redistest.NilClient()} {
		invalid(k.on(rdb, 10, time.Minute), "Redis client is nil")
	}
	invalid(k.on(redistest.WrappedNilClient(), 10, time.Minute), "wraps one that is nil")
	client := limitertest.OpenClient(Unreachable(t))
	invalid(k.New(client, 10, time.Minute, rratelimiter.WithName("")), "WithName")
	invalid(k.New(client, 10, time.Minute, rratelimiter.WithFailure(limit.FailLocal(2))), "WithFailure")
	if !k.Keyed {
		invalid(k.New(nil, 10, time.Minute), "the Client is nil")
		for _, opt := range []rratelimiter.LimiterOption{
			rratelimiter.WithDefault(rratelimiter.PerHour(1)), rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache(),
		} {
			invalid(k.New(client, 10, time.Minute, opt), "are for RateLimiters")
		}
	}
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := k.on(rdb, 10, time.Minute)
		for _, n := range []int64{11, 400} {
			_, giveBack, err := l.TakeReturnable(t.Context(), "orders", n)
			require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
			assert.ErrorContains(t, err, `orders"`)
			assert.Nil(t, giveBack)
		}
		require.Error(t, limitertest.Second(l.Take(t.Context(), "orders", math.MaxInt64)))
		assert.Zero(t, rdb.DBSize(t.Context()).Val())
		assert.True(t, Take(t, l, "orders", 10).Granted)
	})
}

// A key that holds something else is an error that names it, and stays as it is.
func testHoldsSomethingElse(t *testing.T, k Kind) {
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		l, ctx := k.on(rdb, 10, time.Minute), t.Context()
		wrong := map[string]func(key string) error{
			"list":   func(key string) error { return rdb.RPush(ctx, key, "1").Err() },
			"hash":   func(key string) error { return rdb.HSet(ctx, key, "field", "1").Err() },
			"string": func(key string) error { return rdb.Set(ctx, key, "1", 0).Err() },
			"zset":   func(key string) error { return rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: "a"}).Err() },
		}
		delete(wrong, k.Type)
		for _, text := range k.Corrupt {
			wrong["text "+text] = func(key string) error { return rdb.Set(ctx, key, text, 0).Err() }
		}
		for what, write := range wrong {
			for place := range k.Keys("") {
				key := Key(t)
				all := k.Keys(key)
				require.Equal(t, int64(3), Take(t, l, key, 7).Remaining)
				require.NoError(t, rdb.Del(ctx, all[place]).Err())
				require.NoError(t, write(all[place]), what)
				for _, key := range all {
					require.NoError(t, rdb.Expire(ctx, key, time.Hour).Err())
				}
				texts := []string{strconv.Quote(all[place])}
				if k.Fields != nil && strings.HasPrefix(what, "text ") {
					texts = append(texts, k.Fields[place])
				}
				RequireCorrupt(t, rdb, all, l, key, texts...)
			}
		}
	})
}

func testOneCommand(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := k.exact(rdb, 10)
		Take(t, l, "another", 1)
		var sent []string
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
			for _, cmd := range cmds {
				sent = append(sent, cmd.Name())
			}
		}))
		for range 20 {
			Take(t, l, "orders", 1)
			synctest.Wait()
			assert.Equal(t, []string{"evalsha"}, sent)
			sent = nil
		}
	})
}
