// Package limittest tests what all limiters by key have in common: figures that
// are right, callers who ask at once, grants undone, answers lost, input that is wrong
// and keys that hold something else. What is particular to one of them is left
// to its own tests.
package limittest

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Kind is a kind of limiter to test.
type Kind struct {
	// New returns a limiter that grants so many permits at once, and as many
	// again at most a window of whole seconds later.
	New func(rdb redis.UniversalClient, permits int64, window time.Duration) limit.Returner

	// Keys returns the Redis keys of a limiter key, all of type Type.
	Keys func(key string) []string
	Type string

	// Once tells that a request whose answer is lost is repeated, and takes its
	// permits once. Else its caller gets limit.ErrUnknownOutcome.
	Once bool
}

// Run runs all tests of a kind of limiter, as subtests.
func Run(t *testing.T, k Kind) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Kind){
		"RetryAfter":              testRetryAfter,
		"ResetAfter":              testResetAfter,
		"Remaining":               testRemaining,
		"Decisions":               testHistories,
		"Window":                  testWindow,
		"Idle":                    testIdle,
		"Peek":                    testPeek,
		"TakeUpTo":                testTakeUpTo,
		"TakeUpToLost":            testTakeUpToLost,
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
		"ScriptsFlushed":          testScriptsFlushed,
		"ContextEnded":            testContextEnded,
		"ContextEndsInFlight":     testContextEndsInFlight,
		"ContextEndsBehindABatch": testContextEndsBehindABatch,
		"AnswerLost":              testAnswerLost,
		"AnswersLostOfMany":       testAnswersLostOfMany,
		"LateCopy":                testLateCopy,
		"NeverSent":               testNeverSent,
		"RedisErrors":             testRedisErrors,
		"Input":                   testInput,
		"WrongType":               testWrongType,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// Key returns a new key. The keys beside it are in its slot of a cluster.
func Key(t testing.TB) string {
	t.Helper()
	return "{" + redistest.Name(t) + "}"
}

// Take takes n permits, and fails the test if there is an error.
func Take(t testing.TB, l limit.Limiter, key string, n int64) limit.Decision {
	t.Helper()
	d, err := l.Take(t.Context(), key, n)
	require.NoError(t, err)
	return d
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

// Unreachable returns a client that fails the test once it dials.
func Unreachable(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("Redis was asked")
		return nil, net.ErrClosed
	}, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// RequireRefused checks that all calls of a limiter of an [Unreachable] client
// fail as they should, and that the messages say so.
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

// Value is all that Redis holds under one key.
type Value struct {
	Type string
	Held any
	TTL  time.Duration
}

// Read returns what Redis holds under key.
func Read(t testing.TB, rdb redis.UniversalClient, key string) Value {
	t.Helper()
	ctx := t.Context()
	v := Value{Type: rdb.Type(ctx, key).Val(), TTL: rdb.PTTL(ctx, key).Val()}
	var err error
	switch v.Type {
	case "none":
	case "string":
		v.Held, err = rdb.Get(ctx, key).Result()
	case "hash":
		v.Held, err = rdb.HGetAll(ctx, key).Result()
	case "zset":
		v.Held, err = rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "list":
		v.Held, err = rdb.LRange(ctx, key, 0, -1).Result()
	default:
		t.Fatalf("%s is a %s", key, v.Type)
	}
	require.NoError(t, err)
	return v
}

// RequireCorrupt checks that a call fails with limit.ErrCorrupt and names what it
// should, and that the keys hold what they did.
func RequireCorrupt(t testing.TB, rdb redis.UniversalClient, keys []string, l limit.Limiter, key string, texts ...string) {
	t.Helper()
	var before []Value
	for _, key := range keys {
		before = append(before, Read(t, rdb, key))
	}
	d, err := l.Take(t.Context(), key, 1)
	require.ErrorIs(t, err, limit.ErrCorrupt)
	assert.Zero(t, d)
	for _, text := range append(texts, strconv.Quote(key)) {
		assert.ErrorContains(t, err, text)
	}
	for i, key := range keys {
		after := Read(t, rdb, key)
		assert.InDelta(t, before[i].TTL, after.TTL, float64(10*time.Second), "time to live of %s", key)
		after.TTL = before[i].TTL
		assert.Equal(t, before[i], after)
	}
}

// counter counts the commands that a client sends, those of pipelines one by
// one.
type counter struct {
	mu       sync.Mutex
	commands []string
}

func (c *counter) add(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		c.commands = append(c.commands, cmd.Name())
	}
}

// take returns what was sent since the last call.
func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.commands
	c.commands = nil
	return all
}

// DialHook is a part of redis.Hook.
func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is a part of redis.Hook.
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook is a part of redis.Hook.
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

func testInput(t *testing.T, k Kind) {
	l := k.New(Unreachable(t), 10, time.Minute)
	for _, n := range []int64{0, -1, math.MinInt64} {
		RequireRefused(t, l, "orders", n, limit.ErrInvalidPermits, `orders"`, strconv.FormatInt(n, 10))
	}
	RequireRefused(t, l, "", 1, limit.ErrInvalidConfig, "key")
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil)} {
		RequireRefused(t, k.New(rdb, 10, time.Minute), "orders", 1, limit.ErrInvalidConfig)
	}

	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := k.New(rdb, 10, time.Minute)
		for _, n := range []int64{11, 400} {
			_, giveBack, err := l.TakeReturnable(t.Context(), "orders", n)
			require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
			assert.ErrorContains(t, err, `orders"`)
			assert.Nil(t, giveBack)
		}
		_, err := l.Take(t.Context(), "orders", math.MaxInt64)
		require.Error(t, err)
		assert.Zero(t, rdb.DBSize(t.Context()).Val())
		assert.True(t, Take(t, l, "orders", 10).Granted)
	})
}

func testWrongType(t *testing.T, k Kind) {
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l, ctx := k.New(rdb, 10, time.Minute), t.Context()
		for _, other := range []string{"list", "hash", "string", "zset"} {
			if other == k.Type {
				continue
			}
			for i := range k.Keys("") {
				key := Key(t)
				all := k.Keys(key)
				require.Equal(t, int64(3), Take(t, l, key, 7).Remaining)
				wrong := all[i]
				require.NoError(t, rdb.Del(ctx, wrong).Err())
				switch other {
				case "list":
					require.NoError(t, rdb.RPush(ctx, wrong, "1").Err())
				case "hash":
					require.NoError(t, rdb.HSet(ctx, wrong, "field", "1").Err())
				case "string":
					require.NoError(t, rdb.Set(ctx, wrong, "1", 0).Err())
				case "zset":
					require.NoError(t, rdb.ZAdd(ctx, wrong, redis.Z{Score: 1, Member: "a"}).Err())
				}
				require.NoError(t, rdb.Expire(ctx, wrong, time.Hour).Err())
				RequireCorrupt(t, rdb, all, l, key, strconv.Quote(wrong))
			}
		}
	})
}

func testRedisErrors(t *testing.T, k Kind) {
	rdb, m := redistest.Mini(t)
	l := k.New(rdb, 10, time.Minute)
	Take(t, l, "orders", 1)
	m.SetError("BOOM says Redis")
	_, err := l.Take(t.Context(), "orders", 1)
	_, isRedis := errors.AsType[redis.Error](err)
	assert.True(t, isRedis, "%v", err)
	assert.ErrorContains(t, err, "BOOM says Redis")
	assert.ErrorContains(t, err, `orders"`)

	m.SetError("")
	require.NoError(t, rdb.Close())
	_, err = l.Take(t.Context(), "orders", 1)
	assert.ErrorIs(t, err, redis.ErrClosed)
}

func testScriptsFlushed(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := k.New(rdb, 10, time.Hour)
		for i := range int64(12) {
			require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
			d, giveBack, err := l.TakeReturnable(t.Context(), "orders", 1)
			require.NoError(t, err)
			assert.Equal(t, i < 10, d.Granted)
			assert.Equal(t, max(0, 9-i), d.Remaining)
			if i == 5 {
				require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
				require.NoError(t, giveBack(t.Context()))
				assert.Equal(t, int64(4), Take(t, l, "orders", 1).Remaining)
			}
		}
	})
}

func testOneCommand(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := k.New(rdb, 10, time.Hour)
		Take(t, l, "another", 1)
		sent := &counter{}
		rdb.AddHook(sent)
		for range 20 {
			Take(t, l, "orders", 1)
			synctest.Wait()
			assert.Equal(t, []string{"evalsha"}, sent.take())
		}
	})
}

func testIdle(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		const window = 10 * time.Second
		l := k.New(rdb, 5, window)
		Take(t, l, "granted", 5)
		Take(t, l, "refused", 4)
		time.Sleep(window / 2)
		assert.False(t, Take(t, l, "refused", 5).Granted)
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			ttl := rdb.PTTL(t.Context(), key).Val()
			assert.Positive(t, ttl, "time to live of %s", key)
			assert.LessOrEqual(t, ttl, 2*window, "time to live of %s", key)
		}
		time.Sleep(2*window + time.Millisecond)
		assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
	})
}

func testWindow(t *testing.T, k Kind) {
	windowed, ok := k.New(Unreachable(t), 10, time.Minute).(limit.Windowed)
	require.True(t, ok)
	assert.Equal(t, time.Minute, windowed.Window())
}
