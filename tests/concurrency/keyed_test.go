package concurrency_test

import (
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
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

// manyKeys returns that many keys.
func manyKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "user-" + strconv.Itoa(i)
	}
	return keys
}
