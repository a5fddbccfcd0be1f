package server

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMain(m *testing.M) {
	Serve()
	os.Exit(m.Run())
}

func start(t *testing.T) *Redis {
	t.Helper()
	redistest.SkipShort(t, "a real redis-server")
	s, err := Start(t.Context(), "")
	if errors.Is(err, ErrNoServer) {
		redistest.SkipOrFail(t, err.Error())
	}
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func TestCostCountsNothingTwice(t *testing.T) {
	t.Parallel()
	before := &Usage{cpu: time.Second, commands: map[string]command{"get": {10, 10}, "eval": {1, 100}}}
	after := &Usage{cpu: 3 * time.Second, commands: map[string]command{
		"get": {40, 70}, "eval": {11, 1100}, "set": {10, 500}, "info": {1, 10_000},
	}}
	// Of 30 GETs 10 were those of the 10 scripts; all SETs were.
	cost := after.Since(before, map[string]float64{"get": 1, "eval": 0, "set": 1})
	assert.Equal(t, Cost{CPU: 2 * time.Second, Scripts: 10, Took: 40 + 1000}, cost)
}

func TestUsageMemoryAndLongest(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := start(t)
	db := s.Client()
	before, err := s.Usage(ctx)
	require.NoError(t, err)
	const busy = `for i = 1, 20000 do redis.call('GET', KEYS[1]) end return 1`
	longest, err := s.Longest(ctx, func() error { return db.Eval(ctx, busy, []string{"k"}).Err() })
	require.NoError(t, err)
	after, err := s.Usage(ctx)
	require.NoError(t, err)
	cost := after.Since(before, map[string]float64{"eval": 0})
	assert.EqualValues(t, 1, cost.Scripts)
	assert.InDelta(t, longest, cost.Took, float64(time.Millisecond))

	bytes, err := s.Memory(ctx)
	require.NoError(t, err)
	assert.Zero(t, bytes)
	require.NoError(t, db.Set(ctx, "k", make([]byte, 1000), 0).Err())
	require.NoError(t, db.Set(ctx, "l", make([]byte, 1000), 0).Err())
	bytes, err = s.Memory(ctx)
	require.NoError(t, err)
	assert.InDelta(t, 2200, bytes, 300)
	require.NoError(t, s.Flush(ctx))
	bytes, err = s.Memory(ctx)
	require.NoError(t, err)
	assert.Zero(t, bytes)
}

func TestDelayHoldsBackBothWays(t *testing.T) {
	t.Parallel()
	s := start(t)
	const each = 20 * time.Millisecond
	d, err := StartDelay(t.Context(), s.Addr, each)
	if errors.Is(err, ErrNoDelay) {
		redistest.SkipOrFail(t, err.Error())
	}
	require.NoError(t, err)
	t.Cleanup(d.Close)
	rdb := redis.NewClient(&redis.Options{Addr: d.Addr, PoolSize: 4, MaxRetries: -1})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })

	large := make([]byte, 3*chunkSize)
	for i := range large {
		large[i] = byte(i / 251)
	}
	began := time.Now()
	require.NoError(t, rdb.Set(t.Context(), "k", large, 0).Err())
	got, err := rdb.Get(t.Context(), "k").Bytes()
	require.NoError(t, err)
	assert.Equal(t, large, got)
	assert.GreaterOrEqual(t, time.Since(began), 4*each)

	// What one connection waits for does not hold up the others, nor what it
	// sends behind it.
	_, err = rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 100 {
			p.RPush(t.Context(), "list", i)
		}
		return nil
	})
	require.NoError(t, err)
	list, err := s.Client().LRange(t.Context(), "list", 0, -1).Result()
	require.NoError(t, err)
	for i, text := range list {
		assert.Equal(t, fmt.Sprint(i), text)
	}
	assert.Len(t, list, 100)
}
