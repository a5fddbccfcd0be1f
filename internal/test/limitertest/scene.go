package limitertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Forever is a patience that no test's bubble lasts.
const Forever = 1000 * time.Hour

// A Scene is a limiter in a bubble, with a clock that starts at 0. The limiter
// is one Client's; Other is a handle of another Client on the same limiter.
type Scene struct {
	*rratelimiter.RateLimiter

	Client *rratelimiter.Client
	Other  *rratelimiter.RateLimiter
	Redis  *redis.Client
	Sent   *Counter // what limiter's Client sent
	Start  time.Time
}

// NewScene returns a Scene of that configuration; the zero Config stands for none.
// It must be called in a bubble.
func NewScene(t *testing.T, cfg rratelimiter.Config, opts ...rratelimiter.LimiterOption) *Scene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	name := redistest.Name(t)
	otherClient := NewClient(t, redistest.MiniClient(t, m, nil))
	s := &Scene{Redis: rdb, Other: otherClient.RateLimiter(name)}
	s.Client = NewClient(t, rdb)
	s.RateLimiter = s.Client.RateLimiter(name, opts...)
	if cfg != (rratelimiter.Config{}) {
		MustTrySetRate(t, s.Other, cfg)
	}
	_, err := otherClient.RateLimiter(redistest.Name(t)).TryAcquire(t.Context(), 1, 0)
	require.ErrorIs(t, err, rratelimiter.ErrNotInitialized, "the server knows the script from here on")
	s.Sent = CountCommands(rdb)
	s.Start = time.Now()
	return s
}

// Now is the time since the scene's start.
func (s *Scene) Now() time.Duration { return time.Since(s.Start) }

// Until sleeps until the scene's clock shows at.
func (s *Scene) Until(at time.Duration) {
	time.Sleep(at - s.Now())
	synctest.Wait()
}

// A Caller is a call that runs beside the test.
type Caller struct {
	mu   sync.Mutex
	end  Ending
	done bool
}

// An Ending is what a call returned, and when by the scene's clock.
type Ending struct {
	Ok  bool
	Err error
	At  time.Duration
}

// Outcome is how the call ended, and when.
func (c *Caller) Outcome() string {
	end, done := c.Ended()
	if !done {
		return "waits"
	}
	if end.Err != nil {
		return fmt.Sprintf("%v at %v", end.Err, end.At)
	}
	return fmt.Sprintf("%v at %v", end.Ok, end.At)
}

// Ended returns how the call ended, if it has.
func (c *Caller) Ended() (Ending, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, c.done
}

// Go runs f beside the test and returns when it waits or is done.
func (s *Scene) Go(f func() (bool, error)) *Caller {
	c := &Caller{}
	go func() {
		ok, err := f()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end, c.done = Ending{ok, err, s.Now()}, true
	}()
	synctest.Wait()
	return c
}

// RequireEnd checks that the call failed, with target, at that time.
func (c *Caller) RequireEnd(t *testing.T, target error, at time.Duration) {
	t.Helper()
	end, done := c.Ended()
	require.True(t, done, "the call waits")
	require.ErrorIs(t, end.Err, target)
	assert.False(t, end.Ok)
	assert.Equal(t, at, end.At)
}

// StartTryAcquire is TryAcquire beside the test.
func (s *Scene) StartTryAcquire(ctx context.Context, permits int64, timeout time.Duration) *Caller {
	return s.Go(func() (bool, error) { return s.TryAcquire(ctx, permits, timeout) })
}

// StartAcquire is Acquire beside the test.
func (s *Scene) StartAcquire(ctx context.Context, permits int64) *Caller {
	return s.Go(func() (bool, error) {
		err := s.Acquire(ctx, permits)
		return err == nil, err
	})
}

// KeepInUse has the other Client keep permits in use without end: it takes them
// anew, each time before the ones before come back. It starts at the scene's 0,
// and its permits then come back at 1s, 1.9s, 2.8s ...
func (s *Scene) KeepInUse(t *testing.T, permits int64) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	MustAcquire(t, s.Other, permits)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(900 * time.Millisecond):
			}
			ok, err := s.Other.TryAcquire(context.WithoutCancel(t.Context()), permits, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
		}
	}()
	return func() { close(done) }
}

// Close is the Client's Close beside the test.
func (s *Scene) Close(ctx context.Context) *Caller {
	return s.Go(func() (bool, error) {
		err := s.Client.Close(ctx)
		return err == nil, err
	})
}
