package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func TestTopAndWatch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
set-rate api:a 10/1h  => ...
set-rate api:b 10/1h  => ...
set-rate jobs 10/1h   => ...
acquire api:b -n 4    => ...
`)
	got := s.rrl("top --count 1 --rows 2")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Regexp(t, `(?m)^api:b +40% +6 +10/1h +\S+ +####\.{6} +[0-9a-f]{8} 100%$`, got.stdout)
	assert.Len(t, strings.Split(strings.TrimSpace(got.stdout), "\n"), 5)
	assert.NotContains(t, got.stdout, "\x1b")

	got = s.rrl("top api:* --count 2 --interval 100ms --sort name --reverse --json")
	require.Equal(t, exitYes, got.code, "%+v", got)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		limiters, _ := object(t, line)["limiters"].([]any)
		require.Len(t, limiters, 2)
		assert.Equal(t, "api:b", limiters[0].(map[string]any)["name"])
	}

	got = s.rrl("watch api:b --count 2 --interval 100ms")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Regexp(t, `^(\d\d:\d\d:\d\d\.\d  free 6 of 10  in use 4  granted 0  by [0-9a-f]{8} 100%\n){2}$`, got.stdout)
	assert.InDelta(t, 6, object(t, s.rrl("watch api:b --count 1 --json").stdout)["free"], 0)
}

// Names that Clients have stand in place of what their members begin with.
func TestTopAndWatchNameClients(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	client := limitertest.NewClient(t, s.rdb, rratelimiter.WithClientName("orders-7f9c"))
	limitertest.MustAcquire(t, client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10))), 4)
	limitertest.MustAcquire(t, client.RateLimiter("own", rratelimiter.WithDefault(limitertest.PerClient(10, time.Hour))), 4)
	require.Eventually(t, func() bool { return s.Exists("rratelimiter:clients") }, time.Minute, time.Millisecond)
	got := s.rrl("top --count 1")
	assert.Regexp(t, `(?m)^orders .* orders-7f9c 100%$`, got.stdout)
	assert.Regexp(t, `(?m)^own .* orders-7f9c 100%$`, got.stdout)
	assert.Contains(t, s.rrl("watch orders --count 1").stdout, "by orders-7f9c 100%")
}

// findings runs doctor, and returns what it found by the checks.
func (s servers) findings() (outcome, map[any]map[string]any) {
	s.t.Helper()
	got := s.rrl("doctor --json --time 1m")
	found := map[any]map[string]any{}
	for _, f := range object(s.t, got.stdout)["findings"].([]any) {
		finding := f.(map[string]any)
		found[finding["check"]] = finding
	}
	return got, found
}

func TestDoctorJudgesLimiters(t *testing.T) {
	t.Parallel()
	s := alone(t)
	got, found := s.findings()
	want := exitYes
	if found["round trip"]["level"] == "warning" { // a busy machine's are slow
		want = exitNo
	}
	assert.Equal(t, want, got.code, "%+v", got)
	assert.Equal(t, "ok", found["rights"]["level"])

	written{hash: map[string]string{"rate": "10", "interval": "60000", "type": "1"}}.put(t, s.rdb, "own")
	require.NoError(t, s.rdb.Set(t.Context(), "{own}:value:ann", 9, 0).Err())
	limitertest.AddGrants(t, s.rdb, "{own}:permits:ann", 0, 1, 1)
	got, found = s.findings()
	assert.Equal(t, exitNo, got.code, "%+v", got)
	assert.Contains(t, found["client_no_ttl"]["text"], "1 limiter: own: keys of 1 client have no time to live")

	written{hash: config(10, 60_000), value: 8}.put(t, s.rdb, "mixed")
	limitertest.AddGrants(t, s.rdb, "{mixed}:permits", 0, 1, 1)
	now := float64(limitertest.ServerNow(t, s.rdb))
	require.NoError(t, s.rdb.Do(t.Context(), "zadd", "{mixed}:permits", now, limitertest.NewMember(t, codec.LayoutB, 1)).Err())
	got, found = s.findings()
	assert.Equal(t, exitError, got.code, "%+v", got)
	assert.Empty(t, got.stderr, "findings are no error of rrl's")
	assert.Equal(t, "error", found["mixed_layouts"]["level"])
	assert.Contains(t, found["old layouts"]["text"], "1 limiter with members of layout B")
	assert.NotEmpty(t, s.rrl("doctor").stdout)
}

// Doctor looks at all limiters while it has time, also at hashes that were meant for one.
func TestDoctorFindsTheOneThatIsBroken(t *testing.T) {
	t.Parallel()
	s := alone(t)
	pipe := s.rdb.Pipeline()
	const limiters = 2000
	for i := range limiters {
		pipe.HSet(t.Context(), fmt.Sprint("limiter:", i), config(10, 60_000))
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	// A busy machine's round trips are slow, of which doctor warns: exitNo.
	got := s.rrl("doctor --time 1m")
	assert.NotEqual(t, exitError, got.code, "%+v", got)
	assert.Contains(t, got.stdout, "all 2000 limiters looked at; nothing is wrong with what was looked at")
	got = s.rrl("doctor --time 1m --sample 100")
	assert.NotEqual(t, exitError, got.code, "%+v", got)
	assert.Regexp(t, `note +limiters: 100 of about \d+ limiters looked at, about 500 of 2000 keys walked; nothing is wrong`, got.stdout)
	assert.Contains(t, got.stdout, "--all looks at all of them")

	// SCAN shows this one last: a sample would not have it.
	names, _, err := s.rdb.Scan(t.Context(), 0, "", 10*limiters).Result()
	require.NoError(t, err)
	last := names[limiters-1]
	require.NoError(t, s.rdb.HSet(t.Context(), last, "rate", "ten").Err())
	got = s.rrl("doctor --time 1m")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, strings.Join(strings.Fields(got.stdout), " "), "bad_config: 1 limiter: "+last+`: field rate is "ten"`)
	assert.Contains(t, got.stdout, "all 2000 limiters looked at\n")
	require.NoError(t, s.rdb.HSet(t.Context(), last, "rate", 10).Err())
	require.NoError(t, s.rdb.Set(t.Context(), "{"+last+"}:permits", "x", 0).Err())
	got = s.rrl("doctor --all")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stdout, "wrong_type: 1 limiter")
}
