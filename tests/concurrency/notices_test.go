package concurrency_test

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
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// noticed is the option of handles that tell each other of changes.
func noticed() rratelimiter.LimiterOption {
	return rratelimiter.WithRefusalCache(rratelimiter.WithNotices())
}

// A noticeScene is a refusalScene whose limiter is told by the handle peer, of
// another Client, what that changes.
type noticeScene struct {
	*refusalScene

	peer *rratelimiter.RateLimiter
}

// newNoticeScene must be called in a bubble. All permits are taken.
func newNoticeScene(t *testing.T, cfg rratelimiter.Config) *noticeScene {
	t.Helper()
	held := limitertest.NewHeldScene(t, cfg)
	// The proxy pairs requests and answers, and what answers SUBSCRIBE is no answer
	// in RESP3.
	held.Redis = held.Proxy.Client(t, &redis.Options{Protocol: 2, ReadTimeout: time.Minute})
	held.Client = limitertest.NewClient(t, held.Redis)
	held.Sent = limitertest.CountCommands(held.Redis)
	s := &noticeScene{refusalScene: &refusalScene{HeldScene: held, plain: held.Client.RateLimiter(held.Name())}}
	s.RateLimiter = s.Client.RateLimiter(held.Name(), noticed())
	s.peer = limitertest.NewClient(t, s.Mini).RateLimiter(held.Name(), noticed())
	limitertest.MustAcquire(t, s.Other, cfg.Rate)
	return s
}

// channels returns those that somebody is subscribed to.
func (s *noticeScene) channels(t *testing.T) []string {
	t.Helper()
	synctest.Wait()
	channels, err := s.Mini.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	return channels
}

// bare is a Redis that has only what the interface asks for.
type bare struct{ rdb *redis.Client }

func (b bare) Process(ctx context.Context, cmd redis.Cmder) error { return b.rdb.Process(ctx, cmd) }

func (b bare) Pipeline() redis.Pipeliner { return b.rdb.Pipeline() }

func TestNoticesWithoutSubscribe(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, bare{rdb})
		l := client.RateLimiter(redistest.Name(t), noticed())
		sent := limitertest.CountCommands(rdb)
		for name, call := range limitertest.Operations {
			err := call(t.Context(), l)
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported, name)
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig, name)
		}
		assert.Zero(t, sent.Total())
		without := client.RateLimiter(redistest.Name(t), rratelimiter.WithRefusalCache())
		require.NoError(t, without.SetRate(t.Context(), limitertest.Every(1, time.Second)))
	})
}

func TestNoticesEndRefusals(t *testing.T) {
	t.Parallel()
	two := limitertest.Every(2, time.Hour)
	bubbles(t, map[string]change{
		"Release":           release(1),
		"SetRate":           setRate(two),
		"UpdateRate":        updateRate(two, rratelimiter.KeepState()),
		"Delete":            deleteIt,
		"Delete and set up": makeAnew(two),
		"Rename":            replaceBy(two, noticed()),
	}, func(t *testing.T, change change) {
		s := newNoticeScene(t, limitertest.Every(1, time.Hour))
		assert.False(t, s.asks(t, 1))
		s.Until(time.Minute)
		s.remembers(t, 1)
		require.NoError(t, s.plain.Release(t.Context(), 0))
		s.remembers(t, 1)
		require.NoError(t, change(t.Context(), limitertest.NewClient(t, s.Mini), s.peer))
		synctest.Wait()
		exists, err := s.peer.Exists(t.Context())
		require.NoError(t, err)
		if !exists {
			_, err := s.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
			return
		}
		assert.True(t, s.asks(t, 1))
		assert.Equal(t, time.Minute, s.Now())
	})
}

// Handles that were not told to do not tell.
func TestNoNotices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newNoticeScene(t, limitertest.Every(1, time.Minute))
		assert.False(t, s.asks(t, 1))
		synctest.Wait()
		require.NoError(t, s.Other.Release(t.Context(), 1))
		synctest.Wait()
		s.remembers(t, 1)
		s.Until(time.Minute)
		assert.True(t, s.asks(t, 1))
	})
}

// While the subscription is down, a refusal ends at the moment named; when it is
// up again, with the next change.
func TestNoticesThatAreMissed(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]redistest.Action{"cut": redistest.Cut, "silent": redistest.Swallow}, func(t *testing.T, fault redistest.Action) {
		s := newNoticeScene(t, limitertest.Every(1, 10*time.Minute))
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() == "subscribe" || c.Name() == "ping" {
				return fault
			}
			return redistest.Pass
		})
		assert.False(t, s.asks(t, 1))
		synctest.Wait()
		require.NoError(t, s.peer.Release(t.Context(), 1))
		s.Until(10*time.Minute - ms)
		s.remembers(t, 1)
		s.Until(10 * time.Minute)
		assert.True(t, s.asks(t, 1))

		assert.False(t, s.asks(t, 1))
		s.Proxy.OnCommand(nil)
		s.Until(s.Now() + 2*time.Minute)
		s.remembers(t, 1)
		require.NoError(t, s.peer.Release(t.Context(), 1))
		synctest.Wait()
		assert.True(t, s.asks(t, 1))
	})
}

// A Client has one connection for all limiters, and only while one of them
// remembers a refusal.
func TestSubscriptionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newNoticeScene(t, limitertest.Every(1, time.Second))
		var mu sync.Mutex
		conns := map[int]bool{}
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			mu.Lock()
			defer mu.Unlock()
			if c.Name() == "subscribe" {
				conns[c.Conn] = true
			}
			return redistest.Pass
		})
		assert.Empty(t, s.channels(t))
		for i := range 50 {
			interval := time.Duration(1+i%10) * time.Second
			name := fmt.Sprintf("%s:%d", s.Name(), i)
			l := s.Client.RateLimiter(name, noticed(), rratelimiter.WithDefault(limitertest.Every(1, interval)))
			limitertest.MustAcquire(t, l, 1)
			limitertest.MustRefuse(t, l, 1)
		}
		assert.Len(t, s.channels(t), 50)
		s.Until(8500 * ms)
		assert.Len(t, s.channels(t), 20, "those of more than 6 seconds")
		s.Until(13 * time.Second)
		assert.Empty(t, s.channels(t))
		assert.Len(t, conns, 1)

		require.NoError(t, s.Client.Close(endedContext(t)), "there is nothing to wait for")
	})
}

func TestCloseEndsTheSubscription(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]redistest.Action{
		"up": redistest.Pass, "down": redistest.Cut, "silent": redistest.Swallow,
	}, func(t *testing.T, fault redistest.Action) {
		s := newNoticeScene(t, limitertest.Every(1, time.Hour))
		s.Proxy.OnCommand(with("subscribe", fault))
		assert.False(t, s.asks(t, 1))
		synctest.Wait()
		require.NoError(t, s.Client.Close(t.Context()))
		assert.Zero(t, s.Now())
		s.Proxy.OnCommand(nil)
		assert.Empty(t, s.channels(t))
	})
}

// On every topology a change is noticed that nothing else would tell of within
// the hour.
func TestNoticesEverywhere(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		l, peer := limitertest.NewClient(t, rdb).RateLimiter(name, noticed()), limitertest.NewClient(t, rdb).RateLimiter(name, noticed())
		limitertest.MustTrySetRate(t, l, limitertest.Every(1, time.Hour))
		for range 3 {
			limitertest.MustAcquire(t, peer, 1)
			limitertest.MustRefuse(t, l, 1)
			// Until the subscription is up, the notice of a release is missed.
			for !limitertest.Try(t, l, 1) {
				require.NoError(t, peer.Release(t.Context(), 1))
				time.Sleep(5 * ms)
			}
			require.NoError(t, l.Release(t.Context(), 1))
		}
	})
}
