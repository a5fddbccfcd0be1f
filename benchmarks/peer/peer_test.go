package peer_test

import (
	"errors"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMain(m *testing.M) {
	peer.Serve()
	os.Exit(m.Run())
}

// start starts a server for the test.
func start(t *testing.T) *server.Redis {
	t.Helper()
	redistest.SkipShort(t, "a real redis-server")
	redis, err := server.Start(t.Context(), "")
	if errors.Is(err, server.ErrNoServer) {
		redistest.SkipOrFail(t, err.Error())
	}
	require.NoError(t, err)
	t.Cleanup(redis.Close)
	return redis
}

// open opens a peer on it.
func open(t *testing.T, kind peer.Kind, redis *server.Redis) peer.Peer {
	t.Helper()
	p, err := peer.OpenApart(t.Context(), kind, redis.Addr, 8)
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Error())
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func TestPeersGrantAndRefuse(t *testing.T) {
	t.Parallel()
	for _, kind := range peer.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			redis := start(t)
			p := open(t, kind, redis)

			require.NoError(t, p.Make(ctx, "granting", 3, peer.Rule{Limit: 1_000_000, Interval: time.Minute}))
			l := load.Load{Callers: 4, Limiters: 3, Draw: load.Zipf, Length: 100 * time.Millisecond}
			before, err := redis.Usage(ctx)
			require.NoError(t, err)
			all, failed := int64(0), int64(0)
			require.Eventually(t, func() bool {
				r, err := p.Load(ctx, l)
				if !assert.NoError(t, err) {
					return true
				}
				assert.Zero(t, r.Refused)
				assert.Zero(t, r.Errors, r.FirstError)
				all, failed = all+r.All, failed+r.Failed
				return r.All > 0 && r.CPU > 0
			}, time.Minute, time.Millisecond)
			after, err := redis.Usage(ctx)
			require.NoError(t, err)
			assert.Positive(t, after.Since(before, kind.Commands).Took, "its commands are others than it says")
			if kind.Value != nil {
				got := used(t, redis, kind, 1_000_000)
				assert.GreaterOrEqual(t, got, all)
				assert.LessOrEqual(t, got, all+failed, "what a call took whose answer was not waited for, on a busy machine")
			}
			if kind.Floor {
				return
			}

			require.NoError(t, p.Make(ctx, "refusing", 3, peer.Rule{Limit: 1, Interval: time.Minute}))
			n, err := p.Each(ctx)
			require.NoError(t, err)
			require.Equal(t, 3, n)
			r, err := p.Load(ctx, l)
			require.NoError(t, err)
			assert.Zero(t, r.Granted)
			assert.Positive(t, r.All)
			assert.Zero(t, r.Errors, r.FirstError)

			require.NoError(t, p.Make(ctx, "small", 1, peer.Rule{Limit: 5, Interval: time.Minute}))
			grants, err := p.Crowd(ctx, load.Crowd{Callers: 2, From: 10 * time.Millisecond, To: 30 * time.Millisecond})
			require.NoError(t, err)
			n, err = p.Drain(ctx, 6)
			require.NoError(t, err)
			assert.Equal(t, 5, len(grants)+n)
		})
	}
}

func used(t *testing.T, redis *server.Redis, kind peer.Kind, limit int64) int64 {
	t.Helper()
	var used int64
	for _, name := range []string{"granting0", "granting1", "granting2"} {
		free, err := redis.Client().Get(t.Context(), kind.Value(name)).Int64()
		if errors.Is(err, goredis.Nil) { // no call of a short load was for it
			continue
		}
		require.NoError(t, err)
		used += limit - free
	}
	return used
}

func TestBare_TakesOurArguments(t *testing.T) {
	t.Parallel()
	redis := start(t)
	rdb := peer.NewClient(redis.Addr, 2)
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	take, err := peer.Bare(t.Context(), rdb, []string{"a", "b"})
	require.NoError(t, err)
	for i := range 2 {
		granted, err := take(t.Context(), i)
		require.NoError(t, err)
		assert.True(t, granted)
	}
	n, err := redis.Client().DBSize(t.Context()).Result()
	require.NoError(t, err)
	assert.Zero(t, n)
}

func TestErrorsFromJava(t *testing.T) {
	t.Parallel()
	redis := start(t)
	kind, ok := peer.Find(peer.Redisson)
	require.True(t, ok)
	p := open(t, kind, redis)
	require.NoError(t, p.Make(t.Context(), "one", 1, peer.Rule{Limit: 1, Interval: time.Second}))
	require.NoError(t, redis.Flush(t.Context()))
	_, err := p.Each(t.Context())
	require.ErrorContains(t, err, "not initialized")
	r, err := p.Load(t.Context(), load.Load{Callers: 1, Limiters: 1, Length: 10 * time.Millisecond})
	require.NoError(t, err)
	assert.Zero(t, r.All)
}
