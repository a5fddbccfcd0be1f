package limittest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/limit"
)

// A Clock is the time that passes in a history.
type Clock interface {
	// Now returns the server's time.
	Now() time.Time

	// Passed returns how much has passed in the history.
	Passed() time.Duration

	// Pause lets d pass.
	Pause(d time.Duration)

	// Same tells whether a decision is the one expected at this moment.
	Same(got, want limit.Decision) bool
}

// bubble is the clock of a bubble of testing/synctest.
type bubble struct{ start time.Time }

func (bubble) Now() time.Time                     { return time.Now() }
func (b bubble) Passed() time.Duration            { return time.Since(b.start) }
func (bubble) Pause(d time.Duration)              { time.Sleep(d) }
func (bubble) Same(got, want limit.Decision) bool { return got == want }

// aged is the clock of a history on servers whose time goes by itself: a pause makes
// what the keys hold older. Pauses, and all spans of time in the history, must be whole
// minutes: the time that really passes is less.
type aged struct {
	t      testing.TB
	rdb    redis.UniversalClient
	keys   []string
	passed time.Duration
}

func (a *aged) Now() time.Time {
	now, err := a.rdb.Time(a.t.Context()).Result()
	require.NoError(a.t, err)
	return now
}

func (a *aged) Passed() time.Duration { return a.passed }

func (a *aged) Pause(d time.Duration) {
	a.passed += d
	if d == 0 {
		return
	}
	ctx := a.t.Context()
	for _, key := range a.keys {
		switch kind := a.rdb.Type(ctx, key).Val(); {
		case kind == "none":
			continue
		case kind == "zset":
			for _, member := range a.rdb.ZRange(ctx, key, 0, -1).Val() {
				require.NoError(a.t, a.rdb.ZIncrBy(ctx, key, float64(-d.Milliseconds()), member).Err())
			}
		case strings.HasSuffix(key, "_time"):
			require.NoError(a.t, a.rdb.DecrBy(ctx, key, int64(d/time.Second)).Err())
		}
		left, err := a.rdb.PTTL(ctx, key).Result()
		require.NoError(a.t, err)
		if left > d {
			err = a.rdb.PExpire(ctx, key, left-d).Err()
		} else if left >= 0 {
			err = a.rdb.Del(ctx, key).Err()
		}
		require.NoError(a.t, err)
	}
}

func (a *aged) Same(got, want limit.Decision) bool {
	near := func(got, want time.Duration) bool {
		return (got == 0) == (want == 0) && want-got < time.Minute && got-want < time.Second
	}
	return got.Granted == want.Granted && got.Limit == want.Limit && got.Remaining == want.Remaining &&
		near(got.RetryAfter, want.RetryAfter) && near(got.ResetAfter, want.ResetAfter)
}

// Mismatch says what was answered and what should have been.
func Mismatch(who string, passed time.Duration, got, want any) string {
	return fmt.Sprintf("%s after %v: got %+v, want %+v", who, passed, got, want)
}
