package main

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestReleaseSaysHowManyWentBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	release := func(want string, args ...string) {
		t.Helper()
		assert.Equal(t, outcome{exitYes, want + "\n", ""}, s.rrl(append([]string{"release", "orders"}, args...)...))
	}
	require.Zero(t, s.rrl("set-rate", "orders", "100/1h").code)
	release("gave back nothing, no permits were in use")
	for range 3 {
		require.Zero(t, s.rrl("acquire", "orders", "-n", "30").code)
	}
	release("gave back 1 permit")
	release("gave back 40 permits", "-n", "40")
	assert.Equal(t, "denied 52 permits, 51 left, try again in 1h\n", s.rrl("acquire", "orders", "-n", "52").stdout)
	assert.JSONEq(t, `{"name":"orders","released":49}`, s.rrl("release", "orders", "-n", "200", "--json").stdout)
	release("gave back nothing, no permits were in use", "-n", "200")
	require.Zero(t, s.rrl("acquire", "orders", "-n", "5").code)
	release("gave back 5 permits, no more were in use", "-n", "200")
	release("gave back 0 permits", "-n", "0")

	require.Zero(t, s.rrl("set-rate", "own", "10/1h", "--type", "per-client").code)
	require.Zero(t, s.rrl("acquire", "own", "-n", "4", "--client-id", "ann").code)
	s.fails("own: each client has permits of its own: --client-id says whose", "release", "own")
	assert.Equal(t, "gave back 4 permits, no more were in use\n", s.rrl("release", "own", "-n", "9", "--client-id", "ann").stdout)
	assert.Equal(t, "gave back nothing, no permits were in use\n", s.rrl("release", "own", "-n", "9", "--client-id", "bob").stdout)
}

// A large set takes several calls of the script, and permits that have run out are no
// longer in use.
func TestReleaseOfManyMembers(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	name := redistest.Name(t)
	require.NoError(t, rdb.HSet(t.Context(), name, config(10_000, 3_600_000)).Err())
	require.NoError(t, rdb.Set(t.Context(), "{"+name+"}:value", 10_000-1000-50, 0).Err())
	limitertest.AddGrants(t, rdb, "{"+name+"}:permits", 2*time.Hour, 50, 1)
	limitertest.AddGrants(t, rdb, "{"+name+"}:permits", time.Second, 1000, 1)
	on := func(args ...string) outcome { return rrl(t, append(args, "--redis", server.URL())...) }
	assert.Equal(t, outcome{exitYes, "gave back 300 permits\n", ""}, on("release", name, "-n", "300"))
	assert.Equal(t, outcome{exitYes, "gave back 700 permits, no more were in use\n", ""}, on("release", name, "-n", "5000"))
	assert.Equal(t, int64(10_000), *shownBy(t, server.URL(), name).States[0].Free)
}

func TestReleaseOfABrokenLimiter(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for i, key := range []string{"{%s}:permits", "{%s}:value", "%s"} {
		name := fmt.Sprint("limiter", i)
		require.Zero(t, s.rrl("set-rate", name, "10/1h").code)
		s.Del(fmt.Sprintf(key, name))
		require.NoError(t, s.Set(fmt.Sprintf(key, name), "x"))
		s.fails(fmt.Sprintf("key "+key, name)[len("key "):], "release", name)
	}
}

// What may have happened is not done twice, and not said to have been done.
func TestReleaseWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	proxy := redistest.StartProxy(t, server.Addr())
	on := func(args ...string) outcome { return rrl(t, append(args, "--redis", server.Addr())...) }
	require.Zero(t, on("set-rate", "orders", "10/1h").code)
	require.Zero(t, on("acquire", "orders", "-n", "9").code)
	var sent atomic.Int64
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() == "evalsha" && c.Args[1] == script.SHA(lua.Release) || c.Name() == "eval" && c.Args[1] == lua.Release.Source {
			sent.Add(1)
			if c.Name() == "eval" {
				return redistest.DropAnswer
			}
		}
		return redistest.Pass
	})
	got := rrl(t, "release", "orders", "-n", "3", "--redis", proxy.Addr())
	assert.Equal(t, exitError, got.code)
	assert.Empty(t, got.stdout)
	assert.Regexp(t, `^rrl: orders: outcome unknown`, got.stderr)
	assert.LessOrEqual(t, sent.Load(), int64(2), "by its hash, then by its source")
	assert.Equal(t, int64(4), *shownBy(t, server.URL(), "orders").States[0].Free)
}
