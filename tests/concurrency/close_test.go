package concurrency_test

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func TestCallsAfterClose(t *testing.T) {
	t.Parallel()
	calls := maps.Clone(limitertest.Operations)
	calls["Release of nothing"] = func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Release(ctx, 0) }
	virtual(t, calls, func(t *testing.T, rdb *redis.Client, call func(context.Context, *rratelimiter.RateLimiter) error) {
		client := rratelimiter.New(rdb)
		before := client.RateLimiter(redistest.Name(t))
		limitertest.MustTrySetRate(t, before, limitertest.Every(1, time.Second))
		require.NoError(t, client.Close(t.Context()))
		sent := limitertest.CountCommands(rdb)
		require.ErrorIs(t, call(t.Context(), before), rratelimiter.ErrClosed)
		require.ErrorIs(t, call(context.WithoutCancel(t.Context()), client.RateLimiter(before.Name())), rratelimiter.ErrClosed)
		assert.Zero(t, sent.Total())
		require.NoError(t, rdb.Ping(t.Context()).Err(), "the Redis client stays open")
	})
}

func TestCloseOfAnIdleClient(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ended := endedContext(t)
		unused := rratelimiter.New(rdb)
		require.NoError(t, unused.Close(ended), "there is nothing to wait for")
		require.NoError(t, unused.Close(t.Context()))

		client := rratelimiter.New(rdb)
		l := byDefault(client, redistest.Name(t), limitertest.Every(1, time.Second))
		limitertest.MustAcquire(t, l, 1)
		_, err := l.TryAcquire(t.Context(), 1, 10*ms)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, client.Close(ended))
		require.NoError(t, client.Close(ended))
	})
}

var closeTests = map[string]heldTest{
	"Close fails those that wait": {limitertest.Every(1, time.Second), func(t *testing.T, s *limitertest.HeldScene) {
		another := byDefault(s.Client, limitertest.Besides(s.Name()), limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		limitertest.MustAcquire(t, another, 1)
		var waiting []*limitertest.Caller
		for range 10 {
			for _, with := range kindsOfContext {
				waiting = append(waiting,
					s.StartAcquire(with(t.Context()), 1),
					s.StartTryAcquire(with(t.Context()), 1, forever),
					s.Go(func() (bool, error) { return another.TryAcquire(with(t.Context()), 1, forever) }),
					s.Go(func() (bool, error) {
						return s.Client.TryAcquireAll(with(t.Context()), 1, forever, s.RateLimiter, another)
					}),
				)
			}
		}
		s.Until(400 * ms)
		require.NoError(t, s.Client.Close(t.Context()))
		synctest.Wait()
		for _, c := range waiting {
			c.RequireEnd(t, rratelimiter.ErrClosed, 400*ms)
		}
		before := s.Sent.Total()
		_, err := s.Client.TryAcquireAll(t.Context(), 1, 0, s.RateLimiter, another)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)
		s.Until(time.Hour)
		assert.Equal(t, before, s.Sent.Total(), "nothing is asked for any more")
		s.CheckInUse(t, 1, 1)
	}},
	"Close waits for what is in flight": {limitertest.Every(5, time.Hour), func(t *testing.T, s *limitertest.HeldScene) {
		letGo := s.Hold(t, lua.Acquire, 1)
		inFlight := s.StartTryAcquire(t.Context(), 2, 0)
		behind := s.StartTryAcquire(t.Context(), 1, 0)
		inLine := s.StartAcquire(t.Context(), 1)
		s.Until(100 * ms)

		short, cancel := context.WithTimeout(t.Context(), 200*ms)
		defer cancel()
		first := s.Close(short)
		second := s.Close(t.Context())
		behind.RequireEnd(t, rratelimiter.ErrClosed, 100*ms)
		inLine.RequireEnd(t, rratelimiter.ErrClosed, 100*ms)
		assert.Equal(t, "waits", inFlight.Outcome())
		_, err := s.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)

		s.Until(900 * ms)
		first.RequireEnd(t, context.DeadlineExceeded, 300*ms)
		assert.Equal(t, "waits", second.Outcome())
		letGo()
		assert.Equal(t, "true at 900ms", inFlight.Outcome())
		assert.Equal(t, "true at 900ms", second.Outcome())
		require.NoError(t, s.Client.Close(t.Context()))
		s.CheckInUse(t, 5, 2)
	}},
	// Who waits and is refused while the Client is being closed is not asked for
	// again.
	"Close while the line asks": {limitertest.Every(3, time.Second), func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.Other, 1)
		letGo := s.Hold(t, lua.Acquire, 1)
		lead := s.StartTryAcquire(t.Context(), 2, forever)
		answer := s.Hold(t, lua.Acquire, 1)
		a, b := s.StartTryAcquire(t.Context(), 3, forever), s.StartTryAcquire(t.Context(), 1, forever)
		letGo()
		assert.Equal(t, "true at 0s", lead.Outcome())
		closed := s.Close(t.Context())
		s.Until(100 * ms)
		assert.Equal(t, "waits", closed.Outcome())
		answer()
		a.RequireEnd(t, rratelimiter.ErrClosed, 100*ms)
		b.RequireEnd(t, rratelimiter.ErrClosed, 100*ms)
		assert.Equal(t, "true at 100ms", closed.Outcome())
		s.CheckInUse(t, 3, 3)
	}},
	// Callers that went away may have permits that are still to be given back.
	"Close waits for give backs": {limitertest.Every(5, time.Hour), func(t *testing.T, s *limitertest.HeldScene) {
		acquired, givenBack := make(chan struct{}), make(chan struct{})
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			switch {
			case c.Contains(lua.Acquire.SHA):
				return redistest.Pass.When(acquired)
			case c.Contains(lua.GiveBack.SHA):
				return redistest.Late.When(givenBack)
			}
			return redistest.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.StartTryAcquire(ctx, 2, 0)
		cancel()
		synctest.Wait()
		gone.RequireEnd(t, context.Canceled, 0)
		closed := s.Close(t.Context())
		assert.Equal(t, "waits", closed.Outcome())
		s.Until(100 * ms)
		close(acquired)
		s.Until(200 * ms)
		assert.Equal(t, "waits", closed.Outcome())
		close(givenBack)
		synctest.Wait()
		assert.Equal(t, "true at 200ms", closed.Outcome())
		s.CheckInUse(t, 5, 0)
	}},
	// A Release that waits for its turn is carried out, or failed without it.
	"Close with a Release that waits": {limitertest.Every(5, time.Hour), func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.Other, 3)
		letGo := s.Hold(t, lua.Acquire, 1)
		inFlight := s.StartTryAcquire(t.Context(), 1, 0)
		release := s.Go(func() (bool, error) { return true, s.Release(t.Context(), 2) })
		closed := s.Close(t.Context())
		s.Until(100 * ms)
		letGo()
		assert.Equal(t, "true at 100ms", inFlight.Outcome())
		assert.Equal(t, "true at 100ms", closed.Outcome())
		end, done := release.Ended()
		require.True(t, done)
		if end.Err == nil {
			s.CheckInUse(t, 5, 2)
		} else {
			require.ErrorIs(t, end.Err, rratelimiter.ErrClosed)
			assert.NotErrorIs(t, end.Err, rratelimiter.ErrUnknownOutcome)
			s.CheckInUse(t, 5, 4)
		}
	}},
}

func TestClose(t *testing.T) {
	t.Parallel()
	onHeldScenes(t, closeTests)
}

func TestCloseWaitsForWritesAndReads(t *testing.T) {
	t.Parallel()
	bubbles(t, limitertest.Operations, func(t *testing.T, call func(context.Context, *rratelimiter.RateLimiter) error) {
		s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
		held := make(chan struct{})
		s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
		c := s.Go(func() (bool, error) { return true, call(t.Context(), s.RateLimiter) })
		closed := s.Close(t.Context())
		s.Until(100 * ms)
		assert.Equal(t, "waits", c.Outcome())
		assert.Equal(t, "waits", closed.Outcome())
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 100ms", c.Outcome())
		assert.Equal(t, "true at 100ms", closed.Outcome())
	})
}

// Two Clients on one Redis are closed one by one.
func TestCloseOfOneClientLeavesTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(1, time.Second))
		limitertest.MustAcquire(t, s.Other, 1)
		waits := s.Go(func() (bool, error) { return s.Other.TryAcquire(t.Context(), 1, forever) })
		fails := s.StartAcquire(t.Context(), 1)
		require.NoError(t, s.Client.Close(t.Context()))
		s.Until(time.Minute)
		fails.RequireEnd(t, rratelimiter.ErrClosed, 0)
		assert.Equal(t, "true at 1s", waits.Outcome())
	})
}

// Many callers, with and without patience, and several Closes at any moment:
// each call gets an answer, and it is true.
func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for round := range 10 {
			client := rratelimiter.New(rdb)
			l := byDefault(client, redistest.Name(t), limitertest.Every(100, time.Hour))
			var held atomic.Int64
			var callers, closers sync.WaitGroup
			for i := range 40 {
				callers.Go(func() {
					ctx := t.Context()
					if i%2 == 0 {
						ctx = context.WithoutCancel(ctx)
					}
					permits := int64(1 + i%3)
					var err error
					for err == nil {
						var ok bool
						ok, err = l.TryAcquire(ctx, permits, time.Duration(i%3)*time.Hour)
						if ok {
							held.Add(permits)
						}
						assert.False(t, ok && err != nil)
					}
					assert.ErrorIs(t, err, rratelimiter.ErrClosed)
				})
			}
			time.Sleep(time.Duration(round) * 200 * time.Microsecond)
			for range 3 {
				closers.Go(func() { assert.NoError(t, client.Close(t.Context())) })
			}
			closers.Wait()
			inUse := limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits)
			callers.Wait()
			assert.Equal(t, held.Load(), inUse, "when Close returns, all is settled")
		}
	})
}
