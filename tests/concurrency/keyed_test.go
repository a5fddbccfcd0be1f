package concurrency_test

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

var fromMemory = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache()}

// A handle knows its lease and its last refusal, so each of a hundred thousand keys keeps its own.
func TestKeyed_KeepsHandlesInUse(t *testing.T) {
	t.Parallel()
	k := rratelimiter.New(answering{}).Keyed("users:", rratelimiter.PerMinute(100), fromMemory...)
	const keys = 100_000
	all := make([]*rratelimiter.RateLimiter, keys)
	for round := range 3 {
		another := 0
		for i := range all {
			l := k.Limiter("user-" + strconv.Itoa(i))
			if all[i] != l {
				another++
			}
			all[i] = l
		}
		assert.Equal(t, round == 0, another > 0, "%d are new", another)
	}
}

// Handles of keys that are not used go within a quarter of an hour.
func TestKeyed_ForgetsUnusedHandles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := rratelimiter.New(answering{}).Keyed("users:", rratelimiter.PerMinute(100))
		const keys = 20_000
		var all [keys]weak.Pointer[rratelimiter.RateLimiter]
		known := func(from, to int) (n int) {
			runtime.GC()
			for _, l := range all[from:to] {
				if l.Value() != nil {
					n++
				}
			}
			return n
		}
		use := func(from, to int) {
			for i := from; i < to; i++ {
				all[i] = weak.Make(k.Limiter(strconv.Itoa(i)))
			}
		}
		for range 4 {
			use(0, keys)
		}
		for range 4 {
			time.Sleep(4 * time.Minute)
			use(0, 10)
		}
		assert.Zero(t, known(10, keys))
		assert.Equal(t, 10, known(0, 10))
		runtime.KeepAlive(k)
	})
}

// Callers who come together for a new key get one handle, since a lease belongs to it.
func TestKeyed_MakesOneHandleForAll(t *testing.T) {
	t.Parallel()
	k := rratelimiter.New(answering{}).Keyed("users:", rratelimiter.PerMinute(100), fromMemory...)
	for i := range 100 {
		var got [4]*rratelimiter.RateLimiter
		limitertest.Together(len(got), func(c int) { got[c] = k.Limiter(strconv.Itoa(i)) })
		for _, l := range got[1:] {
			assert.Same(t, got[0], l)
		}
	}
}

// What a program passes to a Client is called without a lock, so it may use the limiter that calls it.
func TestKeyed_IsUsedByWhatItCalls(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		var k *rratelimiter.KeyedLimiter
		var called sync.Map // an observer is called on a goroutine of its own
		use := func(by string) {
			if _, before := called.LoadOrStore(by, true); k != nil && !before {
				take(t, k, by)
			}
		}
		client := limitertest.NewClient(t, rdb, limitertest.LogTo(t.Output()), rratelimiter.WithObserver(onEvent{use: use}),
			rratelimiter.WithNameMapper(func(name string) string {
				if strings.HasPrefix(name, "users:of:") {
					use("mapper")
				}
				return name
			}))
		client.Keyed("users:", rratelimiter.PerMinute(100)).Limiter("ann")
		k = client.KeyedFunc("users:of:", func(string) rratelimiter.Config {
			use("rates")
			return rratelimiter.PerMinute(100)
		})
		take(t, k, "ann")
		synctest.Wait()
		for _, by := range []string{"mapper", "rates", string(limit.PrefixesMeet)} {
			d, err := k.Peek(t.Context(), by, 0)
			require.NoError(t, err)
			assert.EqualValues(t, 99, d.Remaining, "used by %s", by)
		}
	})
}

// onEvent is an observer of rare events.
type onEvent struct {
	limit.NoObserver

	use func(string)
}

func (o onEvent) Happened(e limit.Event) { o.use(string(e.Kind)) }

func take(t *testing.T, k *rratelimiter.KeyedLimiter, key string) {
	t.Helper()
	d, err := k.Take(t.Context(), key, 1)
	require.NoError(t, err)
	assert.True(t, d.Granted)
}

// A new key takes its handle, its name, and its keys in Redis as texts and as words of a command.
//
//nolint:paralleltest // others' allocations would count
func TestKeyed_AllocationsOfANewKey(t *testing.T) {
	k := rratelimiter.New(answering{}, limitertest.Patient()).Keyed("users:", rratelimiter.PerMinute(100))
	keys := manyKeys(1000)
	for _, key := range keys[:500] {
		k.Limiter(key) // the tables grow meanwhile
	}
	i := 500
	assert.LessOrEqual(t, testing.AllocsPerRun(400, func() {
		k.Limiter(keys[i])
		i++
	}), 8.0)
	assert.Zero(t, testing.AllocsPerRun(100, func() { k.Limiter(keys[0]) }))
}
