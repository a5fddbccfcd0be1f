package waiting_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// freed are changes by which another program frees permits of a limiter of 2 an hour, which is
// also its default.
var freed = map[string]limitertest.Change{
	"UpdateRate": limitertest.UpdateRate(rratelimiter.PerSecond(1000)),
	"SetRate":    limitertest.SetRate(rratelimiter.PerSecond(1000)),
	"Reset": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.Reset(ctx)
	},
	"Release": limitertest.Release(2),
	"Delete":  limitertest.Delete,
	"expiry":  limitertest.Expire(2 * time.Second),
}

// A caller who joins a line makes it ask, so that what another program frees is not missed.
func TestLine_AsksWhenACallerJoins(t *testing.T) {
	t.Parallel()
	for verb, try := range map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{
		"TryAcquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			return limitertest.Granted(l.TryAcquire(ctx, 1, time.Second))
		},
		"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Acquire(ctx, 1) },
		"Reserve": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			r, err := l.Reserve(ctx, 1, time.Second)
			return limitertest.Granted(err == nil && r.Granted, err)
		},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			limitertest.Bubbles(t, freed, func(t *testing.T, free limitertest.Change) {
				cfg := limitertest.Every(2, time.Hour)
				s := limitertest.NewScene(t, cfg, rratelimiter.WithDefault(cfg))
				limitertest.MustAcquire(t, s.Other, 2)
				first := s.Go(func() (bool, error) { return s.TryAcquire(t.Context(), 1, forever) })
				s.Until(time.Second / 2)
				require.NoError(t, free(t.Context(), nil, s.Other))
				s.Until(3 * time.Second)
				before := s.Sent.Scripts()
				require.NoError(t, try(t.Context(), s.RateLimiter))
				assert.Less(t, s.Now(), 3100*ms)
				assert.LessOrEqual(t, s.Sent.Scripts()-before, 2)
				synctest.Wait()
				end, done := first.Ended()
				assert.True(t, done && end.Ok)
				assert.Less(t, end.At, 3100*ms)
			})
		})
	}
}
