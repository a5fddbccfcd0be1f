package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start is a whole second, as buckets count them.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// newServerAt is newServer with a clock that stands still until it is moved.
func newServerAt(t testing.TB, now time.Time) server {
	t.Helper()
	s := newServer(t)
	s.SetTime(now)
	s.ClockTTL(true)
	return s
}

func TestTakeOfEachLimiter(t *testing.T) {
	t.Parallel()
	s := newServerAt(t, start)
	for _, step := range []struct {
		after  time.Duration
		args   []string
		code   int
		stdout string
	}{
		{0, []string{"fixed-window", "w", "--limit", "100/1m"}, 0, "granted 1 permit, 99 left\n"},
		{0, []string{"counter", "w", "--limit", "100/1m", "-n", "99"}, 0, "granted 99 permits, 0 left\n"},
		{time.Second, []string{"fixed-window", "w", "--limit", "100/1m"}, 1, "denied 1 permit, 0 left, try again in 59s\n"},
		{time.Minute, []string{"counter", "w", "--limit", "100/1m"}, 0, "granted 1 permit, 99 left\n"},

		{0, []string{"sliding-log", "l", "--limit", "3/1m", "--permits", "2"}, 0, "granted 2 permits, 1 left\n"},
		{time.Second, []string{"sliding-log", "l", "--limit", "3/1m", "--permits", "2"}, 1, "denied 2 permits, 1 left, try again in 59s\n"},
		{time.Second, []string{"sliding-log", "l", "--limit", "3/1m", "--peek"}, 0, "1 of 3 left\n"},
		{time.Second, []string{"sliding-log", "l", "--limit", "3/1m", "--peek", "-n", "2"}, 1, "1 of 3 left, 2 permits in 59s\n"},

		{0, []string{"token-bucket", "b", "--capacity", "10", "--refill", "1/1s", "--peek"}, 0, "10 of 10 left\n"},
		{0, []string{"fixed-window", "w2", "--limit", "10/1s", "--peek"}, 0, "10 of 10 left\n"},
		{0, []string{"token-bucket", "b", "--capacity", "10", "--refill", "1/1s", "-n", "8"}, 0, "granted 8 permits, 2 left\n"},
		{0, []string{"token-bucket", "b", "--capacity", "10", "--refill", "1/1s", "-n", "3"}, 1, "denied 3 permits, 2 left, try again in 1s\n"},
		{0, []string{"token-bucket", "b", "--capacity", "10", "--refill", "1/1s", "--borrow", "1", "-n", "3"}, 0, "granted 3 permits, 0 left\n"},
		{0, []string{"token-bucket", "b", "--capacity", "10", "--refill", "1/1s"}, 1, "denied 1 permit, 0 left, try again in 2s\n"},
	} {
		s.SetTime(start.Add(step.after))
		got := s.rrl(append([]string{"take"}, step.args...)...)
		assert.Equal(t, outcome{step.code, step.stdout, ""}, got, "%q", step.args)
	}
}

func TestTakeAsJSONHasTheWholeDecision(t *testing.T) {
	t.Parallel()
	s := newServerAt(t, start)
	for _, step := range []struct {
		code int
		json string
	}{
		{0, `{"limiter":"sliding-log","key":"l","permits":2,"granted":true,"limit":3,"remaining":1,"retry_after_ms":0,"reset_after_ms":1500}`},
		{1, `{"limiter":"sliding-log","key":"l","permits":2,"granted":false,"limit":3,"remaining":1,"retry_after_ms":1500,"reset_after_ms":1500}`},
	} {
		got := s.rrl("take", "sliding-log", "l", "--limit", "3/1.5s", "-n", "2", "--json")
		require.Equal(t, step.code, got.code, "%+v", got)
		assert.JSONEq(t, step.json, got.stdout)
	}
}

func TestTakeReadsThresholds(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	take := []string{"take", "sliding-log", "limit:ann:/", "--limit", "1/1h", "--thresholds", "rate:limit:config"}
	assert.Equal(t, outcome{0, "granted 1 permit, 0 left\n", ""}, s.rrl(take...))
	assert.Equal(t, outcome{0, "limit:ann:/ has a threshold of 3\n", ""}, s.rrl("threshold", "limit:ann:/", "3"))
	assert.Equal(t, outcome{0, "granted 1 permit, 1 left\n", ""}, s.rrl(take...))
	assert.Equal(t, "3", s.HGet("rate:limit:config", "limit:ann:/"))

	assert.Equal(t, outcome{0, "limit:ann:/ has a threshold of 0\n", ""}, s.rrl("threshold", "limit:ann:/", "0"))
	assert.Equal(t, outcome{1, "denied 1 permit, 0 left, try again in 1h\n", ""}, s.rrl(take...))
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, step := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{[]string{"k"}, 1, "k has no threshold\n"},
		{[]string{"k", "--json"}, 1, `{"key":"k","threshold":null}` + "\n"},
		{[]string{"k", "5"}, 0, "k has a threshold of 5\n"},
		{[]string{"k"}, 0, "k has a threshold of 5\n"},
		{[]string{"k", "--json"}, 0, `{"key":"k","threshold":5}` + "\n"},
		{[]string{"k", "7", "--thresholds", "other"}, 0, "k has a threshold of 7\n"},
		{[]string{"k", "--reset"}, 0, "k has no threshold\n"},
		{[]string{"k"}, 1, "k has no threshold\n"},
		{[]string{"k", "--thresholds", "other"}, 0, "k has a threshold of 7\n"},
		{[]string{"a\nb", "1"}, 0, `"a\nb" has a threshold of 1` + "\n"},
	} {
		got := s.rrl(append([]string{"threshold"}, step.args...)...)
		assert.Equal(t, outcome{step.code, step.stdout, ""}, got, "%q", step.args)
	}
}

func TestTakeErrors(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.HSet("hash", "k", "many")
	for _, c := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"take"}, "the limiter is missing; usage: rrl take LIMITER KEY, with one of counter, fixed-window, sliding-log, token-bucket"},
		{[]string{"take", "window", "k"}, `unknown limiter "window": want one of counter,`},
		{[]string{"take", "counter", "--limit", "1/1s"}, "KEY is missing; usage: rrl take counter KEY"},
		{[]string{"take", "counter", "a", "b", "--limit", "1/1s"}, `unexpected argument "b"`},
		{[]string{"take", "counter", "", "--limit", "1/1s"}, "the key is empty"},
		{[]string{"take", "counter", "k"}, "--limit is missing"},
		{[]string{"take", "fixed-window", "k", "--limit", "100"}, "want permits/interval, such as 100/s"},
		{[]string{"take", "fixed-window", "k", "--limit", "5/1m", "-n", "6"}, "permits exceed the rate"},
		{[]string{"take", "fixed-window", "k", "--limit", "5/1m", "-n", "0"}, "invalid number of permits"},
		{[]string{"take", "fixed-window", "hash", "--limit", "5/1m"}, "corrupt state"},
		{[]string{"take", "sliding-log", "k"}, "--limit is missing"},
		{[]string{"take", "sliding-log", "k", "--limit", "5/1m", "--thresholds", "hash"}, `threshold "k" is no whole number`},
		{[]string{"take", "token-bucket", "k", "--capacity", "5"}, "--refill is missing"},
		{[]string{"take", "token-bucket", "k", "--capacity", "5", "--refill", "1/100ms"}, "interval 100ms is not a whole number of seconds"},
		{[]string{"take", "token-bucket", "k", "--capacity", "5", "--refill", "1/1s", "--borrow", "-1"}, "borrowing of -1 tokens"},
		{[]string{"threshold"}, "KEY is missing"},
		{[]string{"threshold", "k", "5", "6"}, `unexpected argument "6"`},
		{[]string{"threshold", "k", "5", "--reset"}, "--reset and a threshold exclude each other"},
		{[]string{"threshold", "k", "many"}, `threshold "many" is not a whole number`},
		{[]string{"threshold", "k", "--thresholds", "hash"}, "is no whole number"},
		{[]string{"threshold", "k", "--thresholds", ""}, "names no hash"},
	} {
		s.fails(c.stderr, c.args...)
	}
	assert.Equal(t, []string{"hash"}, s.Keys(), "nothing was taken")
}

func TestTakeFromAServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	reachNobody(t,
		[]string{"take", "counter", "k", "--limit", "1/1s"},
		[]string{"take", "sliding-log", "k", "--limit", "1/1s"},
		[]string{"take", "token-bucket", "k", "--capacity", "1", "--refill", "1/1s"},
		[]string{"threshold", "k"})
}
