package waiting_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A meanwhileScene is a limiter of which nothing is free, and whose refusals can be kept back.
type meanwhileScene struct {
	*limitertest.HeldScene

	reservation, other *rratelimiter.Reservation
	undo               func(context.Context) error
	land               func() // the last grant, which is on its way
	leave              func() // its caller, before it lands
}

func newMeanwhileScene(t *testing.T) *meanwhileScene {
	t.Helper()
	cfg := limitertest.Every(10, time.Hour)
	s := &meanwhileScene{HeldScene: limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: 20})}
	s.RateLimiter = limitertest.ByDefault(s.Client, s.Name(), cfg)
	s.reservation, s.other = limitertest.Reserve(t, s.RateLimiter, 4), limitertest.Reserve(t, s.RateLimiter, 4)
	var err error
	_, s.undo, err = s.Client.Keyed("", cfg).TakeReturnable(t.Context(), s.Name(), 1)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan struct{})
	s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, redistest.Pass.When(granted)))
	s.StartTryAcquire(ctx, 1, 0)
	s.land = sync.OnceFunc(func() { close(granted) })
	t.Cleanup(s.land)
	s.leave = func() {
		cancel()
		time.Sleep(ms)
		s.land()
	}
	return s
}

// frees are what frees permits by the same Client.
var frees = map[string]func(ctx context.Context, s *meanwhileScene) error{
	"SetRate": func(ctx context.Context, s *meanwhileScene) error { return s.SetRate(ctx, rratelimiter.PerSecond(20)) },
	"UpdateRate": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.Second(s.UpdateRate(ctx, rratelimiter.PerSecond(20)))
	},
	"Delete": func(ctx context.Context, s *meanwhileScene) error { return limitertest.Second(s.Delete(ctx)) },
	"Expire": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.Second(s.Expire(ctx, time.Millisecond))
	},
	"Reset": func(ctx context.Context, s *meanwhileScene) error { return s.Reset(ctx) },
	"Release": func(ctx context.Context, s *meanwhileScene) error {
		s.land() // otherwise it would wait
		return s.Release(ctx, 4)
	},
	"Rename": func(ctx context.Context, s *meanwhileScene) error {
		return limitertest.ReplaceBy(rratelimiter.PerSecond(20))(ctx, s.Client, s.RateLimiter)
	},
	"Settle": func(ctx context.Context, s *meanwhileScene) error { return s.reservation.Settle(ctx, 1) },
	"Cancel": func(ctx context.Context, s *meanwhileScene) error { return s.reservation.Cancel(ctx) },
	"undo":   func(ctx context.Context, s *meanwhileScene) error { return s.undo(ctx) },
	"a caller leaves a grant": func(_ context.Context, s *meanwhileScene) error {
		s.leave()
		return nil
	},
}

// A refusal may be older than permits that were freed while it was on its way: the caller who got it asks again at once.
func TestRefusal_OlderThanPermitsFreedMeanwhile(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]func(t *testing.T, s *meanwhileScene) (letGo func(), waiting *limitertest.Caller){
		"the first of a line": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			letGo := s.Hold(t, lua.Acquire, 1)
			return letGo, s.StartAcquire(t.Context(), 1)
		},
		"in line": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			first := s.StartAcquire(t.Context(), 1)
			s.Until(20 * ms)
			letGo := s.Hold(t, lua.Acquire, 1)
			s.StartAcquire(t.Context(), 3) // makes the line ask
			s.Until(40 * ms)
			return letGo, first
		},
		"several limiters": func(t *testing.T, s *meanwhileScene) (func(), *limitertest.Caller) {
			letGo := s.Hold(t, lua.AcquireAll, 1)
			other := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), rratelimiter.PerHour(10))
			both := limitertest.Claims(1, s.RateLimiter, other)
			return letGo, s.Go(func() (bool, error) { return s.Client.TryAcquireAll(t.Context(), forever, both...) })
		},
	}, func(t *testing.T, start func(t *testing.T, s *meanwhileScene) (letGo func(), waiting *limitertest.Caller)) {
		limitertest.Bubbles(t, frees, func(t *testing.T, free func(context.Context, *meanwhileScene) error) {
			s := newMeanwhileScene(t)
			letGo, waiting := start(t, s)
			freeing := s.Go(func() (bool, error) { return true, free(context.WithoutCancel(t.Context()), s) })
			assert.Equal(t, "waits", waiting.Outcome())
			s.Until(60 * ms)
			letGo()
			s.Until(100 * ms)
			end, done := freeing.Ended()
			assert.True(t, done)
			assert.NoError(t, end.Err)
			end, done = waiting.Ended()
			assert.True(t, done && end.Ok, waiting.Outcome())
		})
	})
}

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
	limitertest.Each(t, map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{
		"TryAcquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			return limitertest.Granted(l.TryAcquire(ctx, 1, time.Second))
		},
		"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Acquire(ctx, 1) },
		"Reserve": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			return reserves(ctx, l, 1, time.Second)
		},
	}, func(t *testing.T, try func(ctx context.Context, l *rratelimiter.RateLimiter) error) {
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
		return reserves(ctx, c.RateLimiter("key:a"), permits, forever, rratelimiter.Hold(500*ms))
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
