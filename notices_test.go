package rratelimiter_test

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
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// noticed is the option of handles that tell each other of changes.
func noticed() rratelimiter.LimiterOption {
	return rratelimiter.WithRefusalCache(rratelimiter.Notices())
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
	held := newHeldScene(t, cfg)
	// The proxy pairs requests and answers, and what answers SUBSCRIBE is no answer
	// in RESP3.
	held.rdb = held.proxy.Client(t, &redis.Options{Protocol: 2, ReadTimeout: time.Minute})
	held.client = newClient(t, held.rdb)
	held.sent = countCommands(held.rdb)
	s := &noticeScene{refusalScene: &refusalScene{heldScene: held, plain: held.client.RateLimiter(held.Name())}}
	s.RateLimiter = s.client.RateLimiter(held.Name(), noticed())
	s.peer = newClient(t, s.mini).RateLimiter(held.Name(), noticed())
	mustAcquire(t, s.other, cfg.Rate)
	return s
}

// channels returns those that somebody is subscribed to.
func (s *noticeScene) channels(t *testing.T) []string {
	t.Helper()
	synctest.Wait()
	channels, err := s.mini.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	return channels
}

// bare is a Redis that has only what the interface asks for.
type bare struct{ rdb *redis.Client }

func (b bare) Process(ctx context.Context, cmd redis.Cmder) error { return b.rdb.Process(ctx, cmd) }
func (b bare) Pipeline() redis.Pipeliner                          { return b.rdb.Pipeline() }

func TestNoticesWithoutSubscribe(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := newClient(t, bare{rdb})
		l := client.RateLimiter(redistest.Name(t), noticed())
		sent := countCommands(rdb)
		for name, call := range methods {
			err := call(t.Context(), l)
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported, name)
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig, name)
		}
		assert.Zero(t, sent.total())
		require.NoError(t, client.RateLimiter(redistest.Name(t), rratelimiter.WithRefusalCache()).SetRate(t.Context(), every(1, time.Second)))
	})
}

func TestNoticesEndRefusals(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, s *noticeScene) error{
		"Release": func(t *testing.T, s *noticeScene) error {
			t.Helper()
			return s.peer.Release(t.Context(), 1)
		},
		"SetRate": func(t *testing.T, s *noticeScene) error {
			t.Helper()
			return s.peer.SetRate(t.Context(), every(2, time.Hour))
		},
		"UpdateRate": func(t *testing.T, s *noticeScene) error {
			t.Helper()
			_, err := s.peer.UpdateRate(t.Context(), every(2, time.Hour), rratelimiter.KeepState())
			return err
		},
		"Delete": func(t *testing.T, s *noticeScene) error {
			t.Helper()
			if _, err := s.peer.Delete(t.Context()); err != nil {
				return err
			}
			synctest.Wait()
			_, err := s.TryAcquire(t.Context(), 1, 0)
			assert.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
			_, err = s.peer.TrySetRate(t.Context(), every(2, time.Hour))
			return err
		},
		"Rename": func(t *testing.T, s *noticeScene) error {
			t.Helper()
			from := newClient(t, s.mini).RateLimiter(besides(s.Name()), noticed())
			if _, err := from.TrySetRate(t.Context(), every(2, time.Hour)); err != nil {
				return err
			}
			return from.Rename(t.Context(), s.Name())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newNoticeScene(t, every(1, time.Hour))
				assert.False(t, s.asks(t, 1))
				s.until(time.Minute)
				s.remembers(t, 1)
				require.NoError(t, s.plain.Release(t.Context(), 0))
				s.remembers(t, 1)
				require.NoError(t, change(t, s))
				synctest.Wait()
				assert.True(t, s.asks(t, 1))
				assert.Equal(t, time.Minute, s.now())
			})
		})
	}
}

// Handles that were not told to do not tell.
func TestNoNotices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newNoticeScene(t, every(1, time.Minute))
		assert.False(t, s.asks(t, 1))
		synctest.Wait()
		require.NoError(t, s.other.Release(t.Context(), 1))
		synctest.Wait()
		s.remembers(t, 1)
		s.until(time.Minute)
		assert.True(t, s.asks(t, 1))
	})
}

// While the subscription is down, a refusal ends at the moment named; when it is
// up again, with the next change.
func TestNoticesThatAreMissed(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]redistest.Action{"cut": redistest.Cut, "silent": redistest.Swallow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newNoticeScene(t, every(1, 10*time.Minute))
				s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if c.Name() == "subscribe" || c.Name() == "ping" {
						return fault
					}
					return redistest.Pass
				})
				assert.False(t, s.asks(t, 1))
				synctest.Wait()
				require.NoError(t, s.peer.Release(t.Context(), 1))
				s.until(10*time.Minute - ms)
				s.remembers(t, 1)
				s.until(10 * time.Minute)
				assert.True(t, s.asks(t, 1))

				assert.False(t, s.asks(t, 1))
				s.proxy.OnCommand(nil)
				s.until(s.now() + 2*time.Minute)
				s.remembers(t, 1)
				require.NoError(t, s.peer.Release(t.Context(), 1))
				synctest.Wait()
				assert.True(t, s.asks(t, 1))
			})
		})
	}
}

// A Client has one connection for all limiters, and only while one of them
// remembers a refusal.
func TestSubscriptionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newNoticeScene(t, every(1, time.Second))
		var mu sync.Mutex
		conns := map[int]bool{}
		s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			mu.Lock()
			defer mu.Unlock()
			if c.Name() == "subscribe" {
				conns[c.Conn] = true
			}
			return redistest.Pass
		})
		assert.Empty(t, s.channels(t))
		for i := range 50 {
			l := s.client.RateLimiter(fmt.Sprintf("%s:%d", s.Name(), i), noticed(), rratelimiter.WithDefault(every(1, time.Duration(1+i%10)*time.Second)))
			mustAcquire(t, l, 1)
			mustRefuse(t, l, 1)
		}
		assert.Len(t, s.channels(t), 50)
		s.until(8500 * ms)
		assert.Len(t, s.channels(t), 20, "those of more than 6 seconds")
		s.until(13 * time.Second)
		assert.Empty(t, s.channels(t))
		assert.Len(t, conns, 1)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, s.client.Close(ended), "there is nothing to wait for")
	})
}

func TestCloseEndsTheSubscription(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]redistest.Action{"up": redistest.Pass, "down": redistest.Cut, "silent": redistest.Swallow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newNoticeScene(t, every(1, time.Hour))
				s.proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if c.Name() == "subscribe" {
						return fault
					}
					return redistest.Pass
				})
				assert.False(t, s.asks(t, 1))
				synctest.Wait()
				require.NoError(t, s.client.Close(t.Context()))
				assert.Zero(t, s.now())
				s.proxy.OnCommand(nil)
				assert.Empty(t, s.channels(t))
			})
		})
	}
}

// On every topology a change is noticed that nothing else would tell of within
// the hour.
func TestNoticesEverywhere(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		l, peer := newClient(t, rdb).RateLimiter(name, noticed()), newClient(t, rdb).RateLimiter(name, noticed())
		mustTrySetRate(t, l, every(1, time.Hour))
		for range 3 {
			mustAcquire(t, peer, 1)
			mustRefuse(t, l, 1)
			// Until the subscription is up, the notice of a release is missed.
			for !try(t, l, 1) {
				require.NoError(t, peer.Release(t.Context(), 1))
				time.Sleep(5 * ms)
			}
			require.NoError(t, l.Release(t.Context(), 1))
		}
	})
}
