package limitertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A Change is what a program may do to a limiter beside taking permits.
type Change func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error

// Release gives permits back.
func Release(permits int64) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.Release(ctx, permits)
	}
}

// SetRate sets that rate.
func SetRate(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.SetRate(ctx, cfg, opts...)
	}
}

// UpdateRate sets that rate in place of the one that there is.
func UpdateRate(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return Second(l.UpdateRate(ctx, cfg, opts...))
	}
}

// Delete is the Change that deletes a limiter.
func Delete(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return Second(l.Delete(ctx))
}

// Expire lets a limiter live no longer than that.
func Expire(in time.Duration) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return Second(l.Expire(ctx, in))
	}
}

// Rename is the Change that gives a limiter another name, by Besides.
func Rename(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return l.Rename(ctx, Besides(l.Name()))
}

// ReplaceBy renames a limiter of that rate to the name of the one it changes.
func ReplaceBy(cfg rratelimiter.Config) Change {
	return func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		other := c.RateLimiter(Besides(l.Name()))
		if _, err := other.TrySetRate(ctx, cfg); err != nil {
			return err
		}
		return other.Rename(ctx, l.Name())
	}
}

// MakeAnew deletes a limiter and gives it that rate.
func MakeAnew(cfg rratelimiter.Config) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		if _, err := l.Delete(ctx); err != nil {
			return err
		}
		return Second(l.TrySetRate(ctx, cfg))
	}
}

// PileUp adds members of one permit, a number of each age, and sets the value unless it is below 0.
func PileUp(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, members map[time.Duration]int, value int64) {
	t.Helper()
	for age, count := range members {
		AddGrants(t, rdb, KeysOf(l).Permits, age, count, 1)
	}
	if value >= 0 {
		require.NoError(t, rdb.Set(t.Context(), KeysOf(l).Value, value, 0).Err())
	}
}

// Damage runs commands, parted by semicolons, on what Redis holds of a limiter. config, value
// and permits stand for its keys, and now for the server's time.
func Damage(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, commands string) {
	t.Helper()
	k := KeysOf(l)
	words := map[string]string{"config": k.Config, "value": k.Value, "permits": k.Permits, "now": fmt.Sprint(ServerNow(t, rdb))}
	for command := range strings.SplitSeq(commands, ";") {
		var args []any
		for word := range strings.FieldsSeq(command) {
			if meaning, ok := words[word]; ok {
				word = meaning
			}
			args = append(args, word)
		}
		require.NoError(t, rdb.Do(t.Context(), args...).Err(), command)
	}
}
