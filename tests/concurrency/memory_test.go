package concurrency_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// newFiguresScene returns a scene at 3 s: of 10 permits every 6 s, 4 were taken at 0 s and 3 at
// 2 s, and Take(5) was refused.
func newFiguresScene(t *testing.T, kind rratelimiter.RateType) *refusalScene {
	t.Helper()
	s := newRefusalScene(t, rratelimiter.Config{Type: kind, Rate: 10, Interval: 6 * time.Second})
	limitertest.MustAcquire(t, s.plain, 4)
	s.Until(2 * time.Second)
	limitertest.MustAcquire(t, s.plain, 3)
	s.Until(3 * time.Second)
	d := s.exact(t, 5)
	require.Equal(t, limit.Decision{Limit: 10, Remaining: 3, RetryAfter: 3 * time.Second, ResetAfter: 5 * time.Second}, d)
	return s
}

// exact checks that Take returns what it returns by a handle without a memory.
func (s *refusalScene) exact(t *testing.T, permits int64) limit.Decision {
	t.Helper()
	d := mustTake(t, s.RateLimiter, permits)
	require.Equal(t, mustTake(t, s.plain, permits), d, "at %v", s.Now())
	return d
}

var grants = map[string]func(t *testing.T, s *refusalScene){
	"TryAcquire":                    func(t *testing.T, s *refusalScene) { limitertest.MustAcquire(t, s.plain, 3) },
	"TryAcquire of the same handle": func(t *testing.T, s *refusalScene) { limitertest.MustAcquire(t, s.RateLimiter, 3) },
	"Acquire": func(t *testing.T, s *refusalScene) {
		require.NoError(t, s.Client.RateLimiter(s.Name()).Acquire(t.Context(), 3))
	},
	"Take":          func(t *testing.T, s *refusalScene) { assert.True(t, mustTake(t, s.RateLimiter, 3).Granted) },
	"TryAcquireAll": func(t *testing.T, s *refusalScene) { assert.True(t, s.also(t, 3)) },
	"Keyed": func(t *testing.T, s *refusalScene) {
		l := s.Client.Keyed(s.Name()[:1], limitertest.Every(10, 6*time.Second))
		assert.True(t, limittest.Take(t, l, s.Name()[1:], 3).Granted)
	},
	"a settlement": func(t *testing.T, s *refusalScene) {
		r := reserve(t, s.plain, 1)
		s.exact(t, 5)
		require.NoError(t, r.Settle(t.Context(), 3))
	},
	"one in the line": func(t *testing.T, s *refusalScene) {
		waits := s.Go(func() (bool, error) { return s.plain.TryAcquire(t.Context(), 6, time.Minute) })
		s.Until(6 * time.Second)
		require.Equal(t, "true at 6s", waits.Outcome())
		mustTake(t, s.RateLimiter, 5)
	},
	"one whose answer is lost": func(t *testing.T, s *refusalScene) {
		s.Proxy.OnCommand(with(lua.Acquire.SHA, redistest.DropAnswer))
		_, err := s.plain.TryAcquire(t.Context(), 3, 0)
		s.Proxy.OnCommand(nil)
		require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
	},
}

// A grant leaves a refusal as it is, and corrects the figures of it that Take returns.
func TestTakeFromMemoryAfterAGrant(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		bubbles(t, grants, func(t *testing.T, grant func(t *testing.T, s *refusalScene)) {
			s := newFiguresScene(t, kind)
			s.Until(4 * time.Second)
			grant(t, s)
			s.remembers(t, 5)
			d := s.exact(t, 5)
			assert.False(t, d.Granted)
			assert.Less(t, d.Remaining, int64(3))
			s.remembers(t, 5)
			s.Until(s.Now() + 500*ms)
			before := s.Sent.Total()
			mustTake(t, s.RateLimiter, 5)
			assert.Equal(t, before, s.Sent.Total(), "the new figures are remembered")
			s.exact(t, 5)
			if s.asks(t, 1) {
				s.exact(t, 5)
			}
		})
	})
}

// A give-back ends remembered refusals and figures.
func TestTakeFromMemoryAfterPermitsAreGivenBack(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, s *refusalScene){
		"Release": func(t *testing.T, s *refusalScene) { require.NoError(t, s.plain.Release(t.Context(), 2)) },
		"a caller that has gone": func(t *testing.T, s *refusalScene) {
			letGo := s.Hold(t, lua.Acquire, 1)
			leaver(t, s.Scene, func(ctx context.Context) (bool, error) { return s.plain.TryAcquire(ctx, 2, 0) })()
			letGo()
		},
		"TryAcquireAll that has lost its caller": func(t *testing.T, s *refusalScene) {
			also := byDefault(s.Client, "{"+s.Name()+"}:also", limitertest.Every(10, time.Hour))
			letGo := s.Hold(t, lua.AcquireAll, 1)
			leaver(t, s.Scene, func(ctx context.Context) (bool, error) { return s.Client.TryAcquireAll(ctx, 3, 0, s.plain, also) })()
			letGo()
		},
		"a grant undone": func(t *testing.T, s *refusalScene) {
			l := s.Client.Keyed(s.Name()[:1], limitertest.Every(10, 6*time.Second))
			d, giveBack, err := l.TakeReturnable(t.Context(), s.Name()[1:], 2)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			s.exact(t, 5)
			require.NoError(t, giveBack(t.Context()))
		},
	}
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		bubbles(t, ways, func(t *testing.T, giveBack func(t *testing.T, s *refusalScene)) {
			s := newFiguresScene(t, kind)
			s.Until(4 * time.Second)
			giveBack(t, s)
			synctest.Wait()
			s.exact(t, 6)
		})
	})
}

// walk makes random steps, of which more than least must be spared a call, on 20 permits a minute.
func walk(t *testing.T, steps, least int, step func(t *testing.T, s *refusalScene, random *rand.Rand) (spared bool)) {
	t.Helper()
	redistest.SkipShort(t, "long")
	bubbles(t, seeds(*rounds), func(t *testing.T, seed uint64) {
		s, random, spared := newRefusalScene(t, limitertest.Every(20, time.Minute)), rand.New(rand.NewPCG(seed, 0)), 0
		for range steps {
			if step(t, s, random) {
				spared++
			}
		}
		assert.Greater(t, spared, least)
	})
}

// What Take says from memory is what Redis would say.
func TestTakeFromMemory(t *testing.T) {
	t.Parallel()
	walk(t, 700, 100, func(t *testing.T, s *refusalScene, random *rand.Rand) (spared bool) {
		time.Sleep(time.Duration(random.IntN(500)) * ms)
		if random.IntN(20) == 0 {
			require.NoError(t, limitertest.Second(s.Other.TryAcquire(t.Context(), 1+random.Int64N(3), 0)))
		}
		permits, before := 1+random.Int64N(4), s.Sent.Total()
		if random.IntN(2) == 0 {
			granted := limitertest.Try(t, s.RateLimiter, permits)
			if before < s.Sent.Total() {
				return false
			}
			require.False(t, granted)
			limitertest.MustRefuse(t, s.Other, permits)
			return true
		}
		d := mustTake(t, s.RateLimiter, permits)
		if before < s.Sent.Total() {
			return false
		}
		want := mustTake(t, s.Other, permits)
		require.False(t, want.Granted)
		assert.LessOrEqual(t, d.RetryAfter, want.RetryAfter)
		assert.LessOrEqual(t, d.ResetAfter, want.ResetAfter, "others have taken more")
		assert.Equal(t, want.Limit, d.Limit)
		return true
	})
}

// Whatever callers of the same Client do, Take from memory returns what Redis would.
func TestTakeFromMemoryBesideCallersOfItsClient(t *testing.T) {
	t.Parallel()
	walk(t, 400, 20, func(t *testing.T, s *refusalScene, random *rand.Rand) (spared bool) {
		time.Sleep(time.Duration(random.IntN(800)) * ms)
		for range random.IntN(4) {
			handle, permits, gone := s.plain, 1+random.Int64N(6), random.IntN(3) == 0
			if random.IntN(2) == 0 {
				handle = s.RateLimiter
			}
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			s.Go(func() (bool, error) { return handle.TryAcquire(ctx, permits, 0) })
			if gone {
				cancel()
			}
		}
		permits := 1 + random.Int64N(8)
		s.Go(func() (bool, error) { return true, limitertest.Second(s.Take(t.Context(), permits)) })
		synctest.Wait()
		before := s.Sent.Total()
		d := mustTake(t, s.RateLimiter, permits)
		if before < s.Sent.Total() {
			return false
		}
		want := mustTake(t, s.plain, permits)
		d.Remaining, want.Remaining = 0, 0                // which grows before all of them are free
		d.RetryAfter = max(d.RetryAfter, want.RetryAfter) // fewer were refused
		require.Equal(t, want, d)
		return true
	})
}

// Grants of other limiters are none of this one's, however many there are.
func TestTakeFromMemoryBesideOtherLimiters(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	synctest.Test(t, func(t *testing.T) {
		s := newFiguresScene(t, rratelimiter.Overall)
		others := s.Client.Keyed("others:", limitertest.Every(1, time.Hour))
		together(int(750**rounds), func(i int) { assert.True(t, limittest.Take(t, others, fmt.Sprint(i), 1).Granted) })
		before := s.Sent.Total()
		mustTake(t, s.RateLimiter, 5)
		assert.Equal(t, before, s.Sent.Total())
	})
}

// New figures cost one call: the time to live is known from the first.
func TestTakeFromMemoryReadsTheTimeToLiveOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFiguresScene(t, rratelimiter.Overall)
		for range 3 {
			limitertest.MustAcquire(t, s.plain, 1)
			before := s.Sent.Scripts()
			mustTake(t, s.RateLimiter, 5)
			assert.Equal(t, before+1, s.Sent.Scripts())
		}
		s.Until(6*time.Second - 1)
		s.remembers(t, 5)
	})
}

// noticed is the option of handles that tell each other of changes.
func noticed() rratelimiter.LimiterOption {
	return rratelimiter.WithRefusalCache(rratelimiter.WithNotices())
}

// A noticeScene is a refusalScene with a handle of another Client, peer, that sends notices.
type noticeScene struct {
	*refusalScene

	peer *rratelimiter.RateLimiter
}

// newNoticeScene must be called in a bubble. All permits are taken.
func newNoticeScene(t *testing.T, cfg rratelimiter.Config) *noticeScene {
	t.Helper()
	// The proxy pairs requests and answers, which SUBSCRIBE has not in RESP3.
	held := limitertest.NewHeldSceneOf(t, cfg, &redis.Options{Protocol: 2, ReadTimeout: time.Minute})
	s := &noticeScene{refusalScene: &refusalScene{HeldScene: held, plain: held.Client.RateLimiter(held.Name())}}
	s.RateLimiter = s.Client.RateLimiter(held.Name(), noticed())
	s.peer = limitertest.NewClient(t, s.Mini).RateLimiter(held.Name(), noticed())
	limitertest.MustAcquire(t, s.Other, cfg.Rate)
	return s
}

// channels returns the channels with subscribers.
func (s *noticeScene) channels(t *testing.T) []string {
	t.Helper()
	synctest.Wait()
	channels, err := s.Mini.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	return channels
}

func TestNoticesWithoutSubscribe(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := limitertest.NewClient(t, struct{ rratelimiter.Redis }{rdb})
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
			require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrNotInitialized)
			return
		}
		assert.True(t, s.asks(t, 1))
		assert.Equal(t, time.Minute, s.Now())
	})
}

func TestASettlementEndsRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newNoticeScene(t, limitertest.Every(2, time.Hour))
		require.NoError(t, s.plain.Release(t.Context(), 1))
		r := reserve(t, s.peer, 1)
		assert.False(t, s.asks(t, 1))
		synctest.Wait()
		s.remembers(t, 1)
		require.NoError(t, r.Cancel(t.Context()))
		synctest.Wait()
		assert.True(t, s.asks(t, 1))
	})
}

// Handles without WithNotices publish nothing.
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

// While the subscription is down, a refusal ends when the server said; then with changes again.
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

// A Client has one connection for all limiters, while one of them remembers a refusal.
func TestSubscriptionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newNoticeScene(t, limitertest.Every(1, time.Second))
		var conns sync.Map
		s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() == "subscribe" {
				conns.Store(c.Conn, true)
			}
			return redistest.Pass
		})
		assert.Empty(t, s.channels(t))
		var handles [50]*rratelimiter.RateLimiter // forgotten ones get no notices
		for i := range handles {
			interval := time.Duration(1+i%10) * time.Second
			name := fmt.Sprintf("%s:%d", s.Name(), i)
			handles[i] = s.Client.RateLimiter(name, noticed(), rratelimiter.WithDefault(limitertest.Every(1, interval)))
			limitertest.MustAcquire(t, handles[i], 1)
			limitertest.MustRefuse(t, handles[i], 1)
		}
		assert.Len(t, s.channels(t), 50)
		s.Until(8500 * ms)
		assert.Len(t, s.channels(t), 20, "those of more than 6 seconds")
		s.Until(13 * time.Second)
		assert.Empty(t, s.channels(t))
		assert.Len(t, maps.Collect(conns.Range), 1)
		runtime.KeepAlive(&handles)

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

// On every topology a change is noticed that the server would not tell of for an hour.
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
