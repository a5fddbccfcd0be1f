package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestTopAndWatch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "api:a", "10/1h").code)
	require.Zero(t, s.rrl("set-rate", "api:b", "10/1h").code)
	require.Zero(t, s.rrl("set-rate", "jobs", "10/1h").code)
	require.Zero(t, s.rrl("acquire", "api:b", "-n", "4").code)

	got := s.rrl("top", "--count", "1", "--rows", "2")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Regexp(t, `(?m)^api:b +40% +6 +10/1h +\S+ +####\.{6} +[0-9a-f]{8} 100%$`, got.stdout)
	assert.Len(t, strings.Split(strings.TrimSpace(got.stdout), "\n"), 5)
	assert.NotContains(t, got.stdout, "\x1b")

	got = s.rrl("top", "api:*", "--count", "2", "--interval", "100ms", "--sort", "name", "--reverse", "--json")
	require.Equal(t, exitYes, got.code, "%+v", got)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		limiters, _ := object(t, line)["limiters"].([]any)
		require.Len(t, limiters, 2)
		assert.Equal(t, "api:b", limiters[0].(map[string]any)["name"])
	}

	got = s.rrl("watch", "api:b", "--count", "2", "--interval", "100ms")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Regexp(t, `^(\d\d:\d\d:\d\d\.\d  free 6 of 10  in use 4  granted 0  by [0-9a-f]{8} 100%\n){2}$`, got.stdout)
	got = s.rrl("watch", "api:b", "--count", "1", "--json")
	assert.InDelta(t, 6, object(t, got.stdout)["free"], 0)
	assert.Equal(t, outcome{exitNo, "none: no such limiter\n", ""}, s.rrl("watch", "none"))
	assert.JSONEq(t, `{"name":"none","gone":true}`, s.rrl("watch", "none", "--json").stdout)
}

// Names that Clients have stand in place of what their members begin with.
func TestTopAndWatchNameClients(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	client := limitertest.NewClient(t, redistest.MiniClient(t, s.Miniredis, nil), rratelimiter.WithClientName("orders-7f9c"))
	limitertest.MustAcquire(t, client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10))), 4)
	own := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 10, Interval: time.Hour}
	limitertest.MustAcquire(t, client.RateLimiter("own", rratelimiter.WithDefault(own)), 4)
	require.Eventually(t, func() bool { return s.Exists("rratelimiter:clients") }, 10*time.Second, time.Millisecond)
	got := s.rrl("top", "--count", "1")
	assert.Regexp(t, `(?m)^orders .* orders-7f9c 100%$`, got.stdout)
	assert.Regexp(t, `(?m)^own .* orders-7f9c 100%$`, got.stdout)
	assert.Contains(t, s.rrl("watch", "orders", "--count", "1").stdout, "by orders-7f9c 100%")
}

func TestFlagsOfLiveCommands(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, c := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"top", "--interval", "1ms"}, "--interval 1ms: at least 100ms"},
		{[]string{"top", "--count", "-1"}, "--count is negative"},
		{[]string{"top", "--sort", "size"}, "want one of use, in-use, granted, free, rate, name"},
		{[]string{"top", "--reads", "5"}, "--reads is at least 100"},
		{[]string{"watch"}, "NAME is missing"},
		{[]string{"watch", "a", "--interval", "0s"}, "--interval 0s"},
		{[]string{"doctor", "--time", "0s"}, "--time is above 0"},
		{[]string{"bench", "now"}, `unexpected argument "now"`},
		{[]string{"bench", "--callers", "0"}, "each of --callers at least 1"},
	} {
		s.fails(c.stderr, c.args...)
	}
	reachNobody(t, []string{"top"}, []string{"watch", "a"}, []string{"doctor"}, []string{"bench"})
}

func TestLiveCommandsQuoteHostileNames(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, name := range []string{"a\nb\x1b[31m", "\u202egnp", strings.Repeat("\x1b]0;x\a", 700), "\xff\xfe"} {
		require.Zero(t, s.rrl("set-rate", name, "5/1s").code)
		for _, args := range [][]string{{"top", "--count", "1"}, {"watch", name, "--count", "1"}, {"watch", name + "?"}, {"doctor"}} {
			got := s.rrl(args...)
			for _, bad := range []string{"\x1b", "a\nb", "\u202e", "\a", "\xff"} {
				assert.NotContains(t, got.stdout+got.stderr, bad, args)
			}
		}
	}
}

func TestInterruptedLiveCommands(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "orders", "5/1h").code)
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"top"}, exitYes}, {[]string{"watch", "orders"}, exitYes}, {[]string{"bench"}, exitError},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		before := s.CommandCount()
		done := make(chan outcome, 1)
		go func() { done <- rrlWith(ctx, nil, append(c.args, "--redis", s.url())...) }()
		require.Eventually(t, func() bool { return s.CommandCount() > before+20 }, 20*time.Second, time.Millisecond)
		cancel()
		got := <-done
		assert.Equal(t, c.code, got.code, "%q: %+v", c.args, got)
	}
	for _, key := range s.Keys() {
		assert.NotContains(t, key, "rrl-bench")
	}
}

func TestDoctorJudgesLimiters(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	doctor := func() (outcome, map[string]map[string]any) {
		got := rrl(t, "doctor", "--json", "--redis", server.URL())
		found := map[string]map[string]any{}
		findings, _ := object(t, got.stdout)["findings"].([]any)
		for _, f := range findings {
			f := f.(map[string]any)
			found[fmt.Sprint(f["check"])] = f
		}
		return got, found
	}
	got, found := doctor()
	want := exitYes
	if found["round trip"]["level"] == "warning" { // a busy machine's are slow
		want = exitNo
	}
	assert.Equal(t, want, got.code, "%+v", got)
	assert.Equal(t, "ok", found["rights"]["level"])

	require.NoError(t, rdb.HSet(t.Context(), "own", "rate", 10, "interval", 60_000, "type", 1).Err())
	require.NoError(t, rdb.Set(t.Context(), "{own}:value:ann", 9, 0).Err())
	limitertest.AddGrants(t, rdb, "{own}:permits:ann", 0, 1, 1)
	got, found = doctor()
	assert.Equal(t, exitNo, got.code, "%+v", got)
	assert.Contains(t, found["client_no_ttl"]["text"], "1 limiter: own: keys of 1 client have no time to live")

	require.NoError(t, rdb.HSet(t.Context(), "mixed", "rate", 10, "interval", 60_000, "type", 0).Err())
	require.NoError(t, rdb.Set(t.Context(), "{mixed}:value", 8, 0).Err())
	limitertest.AddGrants(t, rdb, "{mixed}:permits", 0, 1, 1)
	now := float64(limitertest.ServerNow(t, rdb))
	require.NoError(t, rdb.Do(t.Context(), "zadd", "{mixed}:permits", now, limitertest.NewMember(t, codec.LayoutB, 1)).Err())
	got, found = doctor()
	assert.Equal(t, exitError, got.code, "%+v", got)
	assert.Empty(t, got.stderr, "findings are no error of rrl's")
	assert.Equal(t, "error", found["mixed_layouts"]["level"])
	assert.Contains(t, found["old layouts"]["text"], "1 limiter with members of layout B")
	assert.NotEmpty(t, rrl(t, "doctor", "--redis", server.URL()).stdout)
}

func TestLiveCommandsOnEachTopology(t *testing.T) {
	t.Parallel()
	for name, start := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			on := func(args ...string) outcome {
				got := s.rrl(t, args...)
				require.Equal(t, exitYes, got.code, "%q: %+v", args, got)
				return got
			}
			const limiters = 12 // that fall to all of three servers
			for i := range limiters {
				on("set-rate", fmt.Sprint("api:", i), "20/1h")
				on("acquire", fmt.Sprint("api:", i), "-n", fmt.Sprint(i+1))
			}
			var top struct {
				Known    int
				Limiters []struct {
					Name string
					Free int
				}
			}
			require.NoError(t, json.Unmarshal([]byte(on("top", "api:*", "--count", "1", "--json").stdout), &top))
			require.Equal(t, limiters, top.Known)
			for i, l := range top.Limiters {
				assert.Equal(t, fmt.Sprint("api:", limiters-1-i), l.Name)
				assert.Equal(t, 20-limiters+i, l.Free)
			}
			for i := range limiters {
				assert.Contains(t, on("watch", fmt.Sprint("api:", i), "--count", "1").stdout, fmt.Sprintf("free %d of 20", 19-i))
			}
			checked, _ := object(t, on("doctor", "api:*", "--json").stdout)["limiters"].(map[string]any)
			assert.InDelta(t, limiters, checked["checked"], 0)
			results, _ := object(t, on("bench", "--prefix", "api:", "--time", "300ms", "--callers", "4", "--limiters", "30", "--json").stdout)["results"].([]any)
			assert.Len(t, results, 3)
			assert.Equal(t, limiters, strings.Count(on("ls", "api:*", "--json").stdout, `"name"`), "the bench's are gone")
		})
	}
}

func TestAServerThatHangsKeepsNobodyFromLeaving(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	proxy := redistest.StartProxy(t, server.Addr())
	require.Zero(t, rrl(t, "set-rate", "orders", "5/1h", "--redis", server.Addr()).code)
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"top"}, exitYes}, {[]string{"watch", "orders"}, exitYes}, {[]string{"doctor"}, exitError},
	} {
		held := make(chan struct{}, 100)
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() == "hello" || c.Name() == "client" {
				return redistest.Action{} // of connecting
			}
			held <- struct{}{}
			return redistest.Action{}.After(time.Hour)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan outcome, 1)
		go func() { done <- rrlWith(ctx, nil, append(c.args, "--redis", proxy.Addr())...) }()
		<-held
		cancel()
		start := time.Now()
		got := <-done
		assert.Equal(t, c.code, got.code, "%q: %+v", c.args, got)
		assert.Less(t, time.Since(start), 2*time.Second, c.args)
	}
}
