package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// Members of grants of one slice of a large limiter become one, and show says by how much that makes permits late.
func TestShowOfMergedMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	limiter := limitertest.NewClient(t, s.rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerDay(10_000)))
	taken := int64(0)
	require.Eventually(t, func() bool {
		limitertest.MustAcquire(t, limiter, 1)
		taken++
		return taken > 60 && s.show("%q", name).States[0].Merged > 0
	}, time.Minute, time.Millisecond)
	found := s.show("%q", name)
	assert.Empty(t, found.Anomalies)
	st := found.States[0]
	assert.Equal(t, taken, st.InUse)
	assert.Less(t, st.Members, taken)
	assert.Equal(t, (22*time.Minute + 30*time.Second).Milliseconds(), st.LateMS)
	assert.Regexp(t, `(?m)^  merged +\d+ of them, whose permits come back up to 22m30s late$`, s.rrl("show %q", name).stdout)
}

// Settled reservations stand for one grant each.
func TestShowOfSettledReservations(t *testing.T) {
	t.Parallel()
	s := shared(t)
	limiter := limitertest.NewClient(t, s.rdb).RateLimiter(redistest.Name(t), rratelimiter.WithDefault(rratelimiter.PerDay(10_000)), rratelimiter.WithExact())
	for used := range int64(3) {
		require.NoError(t, limitertest.Reserve(t, limiter, 1, rratelimiter.Hold(time.Hour)).Settle(t.Context(), used+1))
	}
	st := s.show("%q", limiter.Name()).States[0]
	assert.EqualValues(t, 1+2+3, st.InUse)
	assert.Zero(t, st.Merged)
	assert.NotContains(t, s.rrl("show %q", limiter.Name()).stdout, "late")
}

func TestShowReadsABoundedPartOfALargeSet(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate orders 10000/1h => ...\n")
	limitertest.AddGrants(t, s.rdb, "{orders}:permits", 0, look.MaxMembers+1, 1)
	found := s.show("orders")
	require.Len(t, found.Anomalies, 1)
	assert.Equal(t, "not_all_read", found.Anomalies[0].Kind)
	assert.Nil(t, found.States[0].Free)
	assert.EqualValues(t, look.MaxMembers+1, found.States[0].Members)
	assert.Len(t, found.States[0].Permits, 20)
}

// The keys of other limiters are named for what they look like. Nothing calls them broken, or would have them deleted.
func TestShow_NamesKeysOfOtherLimiters(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
take fixed-window win --limit 10/1h                   => ...
take sliding-log log --limit 10/1h --thresholds hash  => ...
take token-bucket bucket --limit 10+1/1h              => ...
threshold log 5 --thresholds hash                     => ...
`)
	require.NoError(t, s.Set("text", "x"))
	for name, like := range map[string]string{
		"win": "a string that expires in 1h, as of a fixed window or a token bucket", "log": "a sorted set that expires in 1h, as of a sliding log",
		"bucket": "a string that expires in ", "hash": "a hash, which may be the thresholds of sliding logs", "text": "a string\n",
	} {
		shown := s.rrl("show %s", name)
		assert.Equal(t, exitNo, shown.code, name)
		assert.Contains(t, shown.stdout, "key "+name+" is no RateLimiter's. It is "+like)
		found := object(t, s.rrl("show %s --json", name).stdout)
		assert.NotContains(t, found, "broken", name)
		assert.NotContains(t, found, "state", name)
		for _, command := range []string{"show", "delete", "reset", "expire --clear", "release", "watch --count 1"} {
			got := s.rrl("%s %s", command, name)
			assert.NotContains(t, got.stdout+got.stderr, "--force", command)
			assert.NotContains(t, got.stdout+got.stderr, "broken", command)
		}
		assert.True(t, s.Exists(name), name)
	}
}

// A hold's member is dated as if it had lasted an interval: it shows when the permits come back, not how old they are.
func TestShow_SaysWhenHoldsComeBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	l := limitertest.NewClient(t, s.rdb).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerDay(2)))
	limitertest.Reserve(t, l, 2, rratelimiter.Hold(time.Minute))
	shown := s.rrl("show orders").stdout
	assert.Regexp(t, `\n  - by a client without a name, \w+ +2, the first back in (1m|59)`, shown)
	assert.Regexp(t, `\n  BACK IN +PERMITS +LAYOUT +ID\n  (1m|59)`, shown)
	assert.Regexp(t, `next permit in (1m|59).*, none granted for up to 23h59m`, shown)
	assert.NotContains(t, shown, "oldest")
}

// A large set takes several calls of the script, and permits that have run out are no
// longer in use.
func TestReleaseOfManyMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	s.play(fmt.Sprintf("set-rate %[1]s 10000/1h => ...\nredis SET {%[1]s}:value 8950\n", name))
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", 2*time.Hour, 50, 1)
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", time.Second, 1000, 1)
	s.play(`
release NAME -n 300  => gave back 300 permits
release NAME -n 5000 => gave back 700 permits, no more were in use
`, "NAME", name)
	assert.EqualValues(t, 10_000, *s.show("%q", name).States[0].Free)
}

// What may have happened is not done twice, and not said to have been done.
func TestRelease_LostAnswerIsUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := alone(t)
	proxy := redistest.StartProxy(t, s.addr)
	s.play("set-rate orders 10/1h => ...\nacquire orders -n 9 => ...\n")
	var sent atomic.Int64
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() == "evalsha" && c.Args[1] == lua.Release.SHA || c.Name() == "eval" && c.Args[1] == lua.Release.Source {
			sent.Add(1)
			if c.Name() == "eval" {
				return redistest.DropAnswer
			}
		}
		return redistest.Pass
	})
	got := rrl(t, "release orders -n 3 --redis %s", proxy.Addr())
	assert.Equal(t, exitError, got.code)
	assert.Empty(t, got.stdout)
	assert.Regexp(t, `^rrl: orders: outcome unknown`, got.stderr)
	assert.LessOrEqual(t, sent.Load(), int64(2), "by its hash, then by its source")
	assert.EqualValues(t, 4, *s.show("orders").States[0].Free)
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for text, want := range map[string]rratelimiter.Config{
		"100/1s": rratelimiter.PerSecond(100), "5/500ms": limitertest.Every(5, 500*time.Millisecond), "1000/1h": rratelimiter.PerHour(1000),
		"1/1ms": limitertest.Every(1, time.Millisecond), "7/1m30s": limitertest.Every(7, 90*time.Second),
		"3/1.5s": limitertest.Every(3, 1500*time.Millisecond), "9007199254740991/1s": rratelimiter.PerSecond(rratelimiter.MaxRate),
		"10/s": rratelimiter.PerSecond(10), "10/m": rratelimiter.PerMinute(10), "10/h": rratelimiter.PerHour(10), "10/d": rratelimiter.PerDay(10),
		"10/ms": limitertest.Every(10, time.Millisecond), "10/1d": rratelimiter.PerDay(10), "5/90s": limitertest.Every(5, 90*time.Second),
		"5/1d12h": limitertest.Every(5, 36*time.Hour), "5/0.5d": limitertest.Every(5, day/2), "1/106751d": limitertest.Every(1, 106_751*day),
	} {
		permits, interval, err := parseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, limitertest.Every(permits, interval), text)
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	for why, texts := range map[string][]string{
		"want permits/interval, such as 100/s, 5/500ms or 1000/1d": {"", "100"},
		"PERMITS is not a number of permits, 1 to 9007199254740991": {
			"/1s", "0/s", "0/1s", "many/1s", "1.5/1s", "-1/1s", "9007199254740992/1s",
		},
		"INTERVAL is not a whole number of milliseconds": {"1/1.5ms"},
		"INTERVAL is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d": {
			"1/", "1/1", "1/min", "1/1s/1s", "1/0s", "1/0d", "1/-1s", "1/1us", "1/106752d", "1/99999999999d", "1/1d-1s", "1/2h1d", "1/1dd",
		},
	} {
		for _, text := range texts {
			permits, interval, _ := strings.Cut(text, "/")
			want := strings.NewReplacer("PERMITS", strconv.Quote(permits), "INTERVAL", strconv.Quote(interval)).Replace(why)
			_, _, err := parseRate(text)
			assert.ErrorContains(t, err, want, text)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s", "10/d",
		"1/106751d1h", "1/0.1d2h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		permits, interval, err := parseRate(text)
		if err != nil {
			if permits != 0 || interval != 0 {
				t.Errorf("%q: %d, %v beside %v", text, permits, interval, err)
			}
			return
		}
		if permits < 1 || permits > rratelimiter.MaxRate || interval < time.Millisecond || interval%time.Millisecond != 0 {
			t.Errorf("%q: %d, %v", text, permits, interval)
		}
		written := words.ShortRate(permits, interval.Milliseconds())
		if again, same, err := parseRate(written); err != nil || again != permits || same != interval {
			t.Errorf("%q is written as %q, which is %d, %v, %v", text, written, again, same, err)
		}
	})
}
