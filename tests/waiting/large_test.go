package waiting_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// A largeRequest waits for permits of the limiter "key:a".
type largeRequest func(ctx context.Context, c *rratelimiter.Client, keyed *rratelimiter.KeyedLimiter, permits int64) error

var large = map[string]largeRequest{
	"Acquire": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.KeyedLimiter, permits int64) error {
		return c.RateLimiter("key:a").Acquire(ctx, permits)
	},
	"TryAcquire": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.KeyedLimiter, permits int64) error {
		return limitertest.Granted(c.RateLimiter("key:a").TryAcquire(ctx, permits, forever))
	},
	"Reserve": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.KeyedLimiter, permits int64) error {
		r, err := c.RateLimiter("key:a").Reserve(ctx, permits, forever, rratelimiter.Hold(500*ms))
		return limitertest.Granted(err == nil && r.Granted, err)
	},
	"Keyed": func(ctx context.Context, _ *rratelimiter.Client, keyed *rratelimiter.KeyedLimiter, permits int64) error {
		return keyed.Acquire(ctx, "a", permits)
	},
	"transport": func(ctx context.Context, _ *rratelimiter.Client, keyed *rratelimiter.KeyedLimiter, permits int64) error {
		transport := httplimit.NewTransport(upstream{}, keyed,
			httplimit.WithKey(func(*http.Request) (string, error) { return "a", nil }),
			httplimit.WithCost(func(*http.Request) (int64, error) { return permits, nil }))
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.org/", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	},
}

// upstream answers each request at once.
type upstream struct{}

func (upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// A request for most of the permits is served in its turn, an interval after it became the first at most, though many
// smaller ones were in line before it and come again and again.
func TestLine_LargeRequestIsServedBehindALongLine(t *testing.T) {
	t.Parallel()
	const rate, permits, others, small, trip = 1000, 900, 48, 60, 3 * ms
	limitertest.Bubbles(t, large, func(t *testing.T, acquire largeRequest) {
		client := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		cfg := limitertest.Every(rate, time.Second)
		l, keyed := limitertest.ByDefault(client, "key:a", cfg), client.Keyed("key:", cfg)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range others {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 7 * ms)
				for l.Acquire(ctx, small) == nil {
					time.Sleep(ms)
				}
			})
		}
		time.Sleep(1500 * ms)
		// What was in line before it, and its own interval.
		soon, end := context.WithTimeout(t.Context(), (others*small/rate+2)*time.Second)
		assert.NoError(t, acquire(soon, client, keyed, permits))
		end()
		cancel()
		wg.Wait()
		require.NoError(t, client.Close(t.Context()))
	})
}
