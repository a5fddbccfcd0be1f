package rratelimiter_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A bubble fails its test when a goroutine is left, so that these need no
// assertion about that.

// close is the Client's Close beside the test.
func (s *scene) close(ctx context.Context) *caller {
	return s.call(func() (bool, error) {
		err := s.client.Close(ctx)
		return err == nil, err
	})
}

func TestCallsAfterClose(t *testing.T) {
	t.Parallel()
	calls := maps.Clone(methods)
	calls["Release of nothing"] = func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Release(ctx, 0) }
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, rdb *redis.Client) {
				client := rratelimiter.New(rdb)
				name := redistest.Name(t)
				before := client.RateLimiter(name)
				mustTrySetRate(t, before, every(1, time.Second))
				require.NoError(t, client.Close(t.Context()))
				sent := countCommands(rdb)
				require.ErrorIs(t, call(t.Context(), before), rratelimiter.ErrClosed)
				require.ErrorIs(t, call(context.WithoutCancel(t.Context()), client.RateLimiter(name)), rratelimiter.ErrClosed)
				assert.Zero(t, sent.total())
				require.NoError(t, rdb.Ping(t.Context()).Err(), "the Redis client stays open")
			})
		})
	}
}

func TestCloseOfAnIdleClient(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		unused := rratelimiter.New(rdb)
		require.NoError(t, unused.Close(ended), "there is nothing to wait for")
		require.NoError(t, unused.Close(t.Context()))

		client := rratelimiter.New(rdb)
		l := client.RateLimiter(redistest.Name(t), rratelimiter.WithDefault(every(1, time.Second)))
		mustAcquire(t, l, 1)
		_, err := l.TryAcquire(t.Context(), 1, 10*ms)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, client.Close(ended))
		require.NoError(t, client.Close(ended))
	})
}

func TestCloseFailsThoseThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(1, time.Second))
		another := s.client.RateLimiter(s.Name()+":2", rratelimiter.WithDefault(every(1, time.Hour)))
		mustAcquire(t, s.RateLimiter, 1)
		mustAcquire(t, another, 1)
		var waiting []*caller
		for range 10 {
			waiting = append(waiting,
				s.acquire(t.Context(), 1),
				s.acquire(context.WithoutCancel(t.Context()), 1),
				s.tryAcquire(t.Context(), 1, forever),
				s.call(func() (bool, error) { return another.TryAcquire(t.Context(), 1, forever) }),
			)
		}
		s.until(400 * ms)
		require.NoError(t, s.client.Close(t.Context()))
		synctest.Wait()
		for _, c := range waiting {
			c.requireEnd(t, rratelimiter.ErrClosed, 400*ms)
		}
		before := s.sent.total()
		s.until(time.Hour)
		assert.Equal(t, before, s.sent.total(), "nobody asks any more")
		s.checkInUse(t, 1, 1)
	})
}

func TestCloseWaitsForWhatIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(5, time.Hour))
		letGo := s.hold(t, lua.Acquire, 1)
		inFlight := s.tryAcquire(t.Context(), 2, 0)
		behind := s.tryAcquire(t.Context(), 1, 0)
		inLine := s.acquire(t.Context(), 1)
		s.until(100 * ms)

		short, cancel := context.WithTimeout(t.Context(), 200*ms)
		defer cancel()
		first := s.close(short)
		second := s.close(t.Context())
		behind.requireEnd(t, rratelimiter.ErrClosed, 100*ms)
		inLine.requireEnd(t, rratelimiter.ErrClosed, 100*ms)
		assert.Equal(t, "waits", inFlight.outcome())
		_, err := s.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrClosed)

		s.until(900 * ms)
		first.requireEnd(t, context.DeadlineExceeded, 300*ms)
		assert.Equal(t, "waits", second.outcome())
		letGo()
		assert.Equal(t, "true at 900ms", inFlight.outcome())
		assert.Equal(t, "true at 900ms", second.outcome())
		require.NoError(t, s.client.Close(t.Context()))
		s.checkInUse(t, 5, 2)
	})
}

// Who waits and is refused while the Client is being closed is not asked for
// again.
func TestCloseWhileTheLineAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(3, time.Second))
		mustAcquire(t, s.other, 1)
		letGo := s.hold(t, lua.Acquire, 1)
		lead := s.tryAcquire(t.Context(), 2, forever)
		answer := s.hold(t, lua.Acquire, 1)
		a, b := s.tryAcquire(t.Context(), 3, forever), s.tryAcquire(t.Context(), 1, forever)
		letGo()
		assert.Equal(t, "true at 0s", lead.outcome())
		closed := s.close(t.Context())
		s.until(100 * ms)
		assert.Equal(t, "waits", closed.outcome())
		answer()
		a.requireEnd(t, rratelimiter.ErrClosed, 100*ms)
		b.requireEnd(t, rratelimiter.ErrClosed, 100*ms)
		assert.Equal(t, "true at 100ms", closed.outcome())
		s.checkInUse(t, 3, 3)
	})
}

func TestCloseWaitsForWritesAndReads(t *testing.T) {
	t.Parallel()
	for name, call := range methods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHeldScene(t, every(5, time.Hour))
				held := make(chan struct{})
				s.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
				c := s.call(func() (bool, error) { return true, call(t.Context(), s.RateLimiter) })
				closed := s.close(t.Context())
				s.until(100 * ms)
				assert.Equal(t, "waits", c.outcome())
				assert.Equal(t, "waits", closed.outcome())
				close(held)
				synctest.Wait()
				assert.Equal(t, "true at 100ms", c.outcome())
				assert.Equal(t, "true at 100ms", closed.outcome())
			})
		})
	}
}

// Callers that went away may have permits that are still to be given back.
func TestCloseWaitsForGiveBacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(5, time.Hour))
		acquired, givenBack := make(chan struct{}), make(chan struct{})
		s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			switch {
			case c.Contains(lua.Acquire.SHA):
				return redistest.Pass.When(acquired)
			case c.Contains(lua.GiveBack.SHA):
				return redistest.Late.When(givenBack)
			}
			return redistest.Pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.tryAcquire(ctx, 2, 0)
		cancel()
		synctest.Wait()
		gone.requireEnd(t, context.Canceled, 0)
		closed := s.close(t.Context())
		assert.Equal(t, "waits", closed.outcome())
		s.until(100 * ms)
		close(acquired)
		s.until(200 * ms)
		assert.Equal(t, "waits", closed.outcome())
		close(givenBack)
		synctest.Wait()
		assert.Equal(t, "true at 200ms", closed.outcome())
		s.checkInUse(t, 5, 0)
	})
}

// A Release that waits for its turn is carried out, or failed without it.
func TestCloseWithAReleaseThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(5, time.Hour))
		mustAcquire(t, s.other, 3)
		letGo := s.hold(t, lua.Acquire, 1)
		inFlight := s.tryAcquire(t.Context(), 1, 0)
		release := s.call(func() (bool, error) { return true, s.Release(t.Context(), 2) })
		closed := s.close(t.Context())
		s.until(100 * ms)
		letGo()
		assert.Equal(t, "true at 100ms", inFlight.outcome())
		assert.Equal(t, "true at 100ms", closed.outcome())
		end, done := release.ended()
		require.True(t, done)
		if end.err == nil {
			s.checkInUse(t, 5, 2)
		} else {
			require.ErrorIs(t, end.err, rratelimiter.ErrClosed)
			assert.NotErrorIs(t, end.err, rratelimiter.ErrUnknownOutcome)
			s.checkInUse(t, 5, 4)
		}
	})
}

// Two Clients on one Redis are closed one by one.
func TestCloseOfOneClientLeavesTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, every(1, time.Second))
		mustAcquire(t, s.other, 1)
		waits := s.call(func() (bool, error) { return s.other.TryAcquire(t.Context(), 1, forever) })
		fails := s.acquire(t.Context(), 1)
		require.NoError(t, s.client.Close(t.Context()))
		s.until(time.Minute)
		fails.requireEnd(t, rratelimiter.ErrClosed, 0)
		assert.Equal(t, "true at 1s", waits.outcome())
	})
}

// Many callers, with and without patience, and several Closes at any moment:
// everybody gets an answer, and it is true.
func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		for round := range 10 {
			client := rratelimiter.New(rdb)
			l := client.RateLimiter(redistest.Name(t), rratelimiter.WithDefault(every(100, time.Hour)))
			var mu sync.Mutex
			held := int64(0)
			note := func(permits int64, ok bool, err error) {
				mu.Lock()
				defer mu.Unlock()
				if ok {
					held += permits
				}
				if err != nil {
					assert.ErrorIs(t, err, rratelimiter.ErrClosed)
					assert.False(t, ok)
				}
			}
			var callers, closers sync.WaitGroup
			for i := range 40 {
				callers.Go(func() {
					ctx := t.Context()
					if i%2 == 0 {
						ctx = context.WithoutCancel(ctx)
					}
					for {
						permits := int64(1 + i%3)
						timeout := time.Duration(i%3) * time.Hour
						ok, err := l.TryAcquire(ctx, permits, timeout)
						note(permits, ok, err)
						if err != nil {
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(round) * 200 * time.Microsecond)
			for range 3 {
				closers.Go(func() { assert.NoError(t, client.Close(t.Context())) })
			}
			closers.Wait()
			inUse := used(t, rdb, keysOf(l).Permits)
			callers.Wait()
			assert.Equal(t, held, inUse, "when Close returns, all is settled")
		}
	})
}
