package memory_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// newRefusalScene returns one that remembers refusals.
func newRefusalScene(t *testing.T, cfg rratelimiter.Config) *scene {
	t.Helper()
	return newScene(t, cfg, rratelimiter.WithRefusalCache())
}

// remembers checks that requests are refused without a word to Redis.
func (s *scene) remembers(t *testing.T, permits int64) {
	t.Helper()
	before := s.Sent.Total()
	limitertest.MustRefuse(t, s.RateLimiter, permits)
	assert.Equal(t, before, s.Sent.Total(), "Redis was asked at %v", s.Now())
}

// mustAsk checks that a request goes to Redis.
func (s *scene) mustAsk(t *testing.T, permits int64) (granted bool) {
	t.Helper()
	before := s.Sent.Total()
	granted = limitertest.Try(t, s.RateLimiter, permits)
	assert.Greater(t, s.Sent.Total(), before, "Redis was not asked at %v", s.Now())
	return granted
}

func TestRefusalsAreRemembered(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		synctest.Test(t, func(t *testing.T) {
			s := newRefusalScene(t, rratelimiter.Config{Type: kind, Rate: 5, Interval: time.Second})
			limitertest.MustAcquire(t, s.plain, 2)
			s.Until(100 * ms)
			limitertest.MustAcquire(t, s.RateLimiter, 2)
			s.Until(250 * ms)
			assert.False(t, s.mustAsk(t, 3))
			s.remembers(t, 3)
			s.remembers(t, 4)
			s.Until(600 * ms)
			s.remembers(t, 5)
			assert.True(t, s.mustAsk(t, 1), "fewer than were refused")
			s.Until(time.Second - ms)
			s.remembers(t, 3)
			assert.False(t, s.mustAsk(t, 2), "and these are refused, too")
			s.remembers(t, 2)
			s.Until(time.Second)
			assert.True(t, s.mustAsk(t, 2))
			assert.False(t, s.mustAsk(t, 4))
			require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 6, 0)), rratelimiter.ErrPermitsExceedRate)
			require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 0, 0)), rratelimiter.ErrInvalidPermits)
			require.ErrorIs(t, limitertest.Second(s.TryAcquire(limitertest.EndedContext(t), 4, 0)), context.Canceled)
		})
	})
}

var refusalTests = map[string]limitertest.SceneTest[*scene]{
	// Refusals are not remembered for callers that wait, nor by other handles.
	"refusals that are not remembered": {Cfg: limitertest.Every(1, time.Second), Run: func(t *testing.T, s *scene) {
		limitertest.MustAcquire(t, s.plain, 1)
		assert.False(t, s.mustAsk(t, 1))
		waits := s.StartTryAcquire(t.Context(), 1, 10*time.Second)
		before := s.Sent.Total()
		limitertest.MustRefuse(t, s.plain, 1)
		assert.Greater(t, s.Sent.Total(), before)
		s.Until(2 * time.Second)
		assert.Equal(t, "true at 1s", waits.Outcome())
	}},
	"Take from memory is exact": {Cfg: limitertest.Every(5, time.Minute), Run: func(t *testing.T, s *scene) {
		limitertest.MustAcquire(t, s.Other, 3)
		s.Until(10 * time.Second)
		limitertest.MustAcquire(t, s.Other, 1)
		limitertest.MustRefuse(t, s.RateLimiter, 3)
		s.Until(10*time.Second + 500*ms)
		limitertest.Take(t, s.RateLimiter, 3)
		before := s.Sent.Total()
		for _, at := range []time.Duration{10*time.Second + 600*ms, 11*time.Second - ms} {
			s.Until(at)
			assert.Equal(t, limitertest.Take(t, s.Other, 3), limitertest.Take(t, s.RateLimiter, 3))
		}
		assert.Equal(t, before, s.Sent.Total())
		s.Until(time.Minute - ms)
		assert.Equal(t, limitertest.Take(t, s.Other, 3), limitertest.Take(t, s.RateLimiter, 3))
		s.Until(time.Minute)
		assert.True(t, limitertest.Take(t, s.RateLimiter, 3).Granted)
	}},
	// A refusal that is on its way while permits come free is not remembered.
	"refusal that is on its way during a Release": {Cfg: limitertest.Every(1, time.Hour), Run: func(t *testing.T, s *scene) {
		limitertest.MustAcquire(t, s.plain, 1)
		letGo := s.Hold(t, lua.Acquire, 1)
		refused := s.StartTryAcquire(t.Context(), 1, 0)
		release := s.Go(func() (bool, error) { return true, s.plain.Release(t.Context(), 1) })
		letGo()
		assert.Equal(t, "false at 0s", refused.Outcome())
		assert.Equal(t, "true at 0s", release.Outcome())
		limitertest.MustAcquire(t, s.RateLimiter, 1)
	}},
	"refusals and an expiry": {Cfg: limitertest.Every(1, time.Hour), Run: func(t *testing.T, s *scene) {
		limitertest.MustAcquire(t, s.plain, 1)
		require.NoError(t, limitertest.Second(s.Other.Expire(t.Context(), 10*time.Second)))
		assert.False(t, s.mustAsk(t, 1))
		assert.Equal(t, 10*time.Second, limitertest.Take(t, s.plain, 1).RetryAfter, "it lives no longer")
		s.Until(time.Second - 1)
		s.remembers(t, 1)
		s.Until(10 * time.Second)
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrNotInitialized)
	}},
	"refusals end with their Client": {Cfg: limitertest.Every(1, time.Hour), Run: func(t *testing.T, s *scene) {
		limitertest.MustAcquire(t, s.plain, 1)
		assert.False(t, s.mustAsk(t, 1))
		limitertest.Take(t, s.RateLimiter, 1)
		require.NoError(t, s.Client.Close(t.Context()))
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrClosed)
		require.ErrorIs(t, limitertest.Second(s.Take(t.Context(), 1)), rratelimiter.ErrClosed)
	}},
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	limitertest.OnScenes(t, refusalTests, newRefusalScene)
}

func TestRefusalsEndWithChangesOfTheirClient(t *testing.T) {
	t.Parallel()
	five := limitertest.Every(5, time.Hour)
	limitertest.Bubbles(t, map[string]limitertest.Change{
		"Release":            limitertest.Release(1),
		"SetRate":            limitertest.SetRate(five),
		"SetRate, KeepState": limitertest.SetRate(limitertest.Every(8, time.Hour), rratelimiter.KeepState()),
		"UpdateRate":         limitertest.UpdateRate(five),
		"Delete":             limitertest.MakeAnew(five),
		"Rename":             limitertest.ReplaceBy(five),
	}, func(t *testing.T, change limitertest.Change) {
		s := newRefusalScene(t, five)
		limitertest.MustAcquire(t, s.plain, 5)
		assert.False(t, s.mustAsk(t, 1))
		s.Until(time.Second)
		s.remembers(t, 1)
		require.NoError(t, change(t.Context(), s.Client, s.plain))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		for limitertest.Try(t, s.RateLimiter, 1) {
			require.Less(t, s.Now(), time.Minute)
			time.Sleep(ms)
		}
		s.Until(2 * time.Second)
		s.remembers(t, 1)
	})
}

// A change ends them when it takes effect, though its caller has left by then.
func TestRefusalsEndWithChangeOfGoneCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, arrive := newRefusalScene(t, limitertest.Every(5, time.Hour)), make(chan struct{})
		limitertest.MustAcquire(t, s.Other, 5)
		s.Proxy.OnCommand(redistest.Nth(1, lua.SetRate.SHA, redistest.Late.When(arrive)))
		ctx := limitertest.Within(t, time.Second)
		require.ErrorIs(t, s.plain.SetRate(ctx, limitertest.Every(5, time.Hour)), limit.ErrUnknownOutcome)
		assert.False(t, s.mustAsk(t, 1))
		s.remembers(t, 1)
		close(arrive)
		synctest.Wait()
		assert.True(t, s.mustAsk(t, 1))
	})
}

// also asks for permits of the scene's limiter and of another at once.
func (s *scene) also(t *testing.T, permits int64) bool {
	t.Helper()
	return limitertest.TryAll(t, s.Client, permits, s.plain, limitertest.ByDefault(s.Client, "{"+s.Name()+"}:also", limitertest.Every(10, time.Hour)))
}

// A repair by another handle of the Client may free the refused permits.
func TestRefusalsEndWithRepairs(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]func(t *testing.T, s *scene){
		"of a lost set": func(t *testing.T, s *scene) {
			limitertest.Damage(t, s.Redis, s.plain, "DEL permits")
			limitertest.MustAcquire(t, s.plain, 1)
		},
		"of leaked permits":                func(t *testing.T, s *scene) { limitertest.MustRefuse(t, s.plain, 4) },
		"by AvailablePermits":              func(t *testing.T, s *scene) { assert.EqualValues(t, 3, limitertest.Available(t, s.plain)) },
		"by TryAcquireAll":                 func(t *testing.T, s *scene) { assert.True(t, s.also(t, 1)) },
		"by TryAcquireAll that is refused": func(t *testing.T, s *scene) { assert.False(t, s.also(t, 4)) },
	}, func(t *testing.T, repair func(t *testing.T, s *scene)) {
		s := newRefusalScene(t, limitertest.Every(5, time.Hour))
		limitertest.MustAcquire(t, s.Other, 2)
		assert.False(t, s.mustAsk(t, 4))
		s.Until(time.Second)
		limitertest.Damage(t, s.Redis, s.plain, "DECRBY value 3")
		assert.False(t, s.mustAsk(t, 2))
		s.Until(2 * time.Second)
		s.remembers(t, 2)
		repair(t, s)
		assert.True(t, s.mustAsk(t, 2))
	})
}

// What Java releases or sets is noticed soon: nothing tells of it.
func TestRefusalsBesideJava(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]string{
		"release": "INCRBY value 1",
		"setRate": "HSET config rate 100; DEL value permits",
	}, func(t *testing.T, java string) {
		s := newRefusalScene(t, limitertest.Every(1, time.Minute))
		limitertest.MustAcquire(t, s.plain, 1)
		s.Until(time.Second)
		assert.False(t, s.mustAsk(t, 1))
		limitertest.Damage(t, s.Mini, s.plain, java)
		s.Until(2*time.Second - 1)
		s.remembers(t, 1)
		s.Until(2250 * ms)
		assert.True(t, s.mustAsk(t, 1))
	})
}

// A limiter that expires if it is not asked is asked.
func TestRefusalsAndKeepAliveTimes(t *testing.T) {
	t.Parallel()
	type row struct {
		interval, pause time.Duration
		granted         int
	}
	limitertest.Bubbles(t, map[string]row{
		"20ms": {20 * ms, 200 * time.Microsecond, 9}, "100ms": {100 * ms, ms, 9}, "1s": {time.Second, 10 * ms, 9},
		"now and then": {time.Second, 450 * ms, 6},
	}, func(t *testing.T, row row) {
		s := newRefusalScene(t, limitertest.Alive(rratelimiter.Overall, 1, row.interval))
		limitertest.MustAcquire(t, s.plain, 1)
		before := s.Sent.Scripts()
		granted := 0
		for s.Now() < 10*row.interval {
			time.Sleep(row.pause)
			if limitertest.Try(t, s.RateLimiter, 1) {
				granted++
			}
		}
		assert.GreaterOrEqual(t, granted, row.granted)
		assert.Less(t, s.Sent.Scripts()-before, 50)
	})
}

// newFiguresScene returns a scene at 3 s: of 10 permits every 6 s, 4 were taken at 0 s and 3 at 2 s, and Take(5) was refused.
func newFiguresScene(t *testing.T, kind rratelimiter.RateType) *scene {
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
func (s *scene) exact(t *testing.T, permits int64) limit.Decision {
	t.Helper()
	d := limitertest.Take(t, s.RateLimiter, permits)
	require.Equal(t, limitertest.Take(t, s.plain, permits), d, "at %v", s.Now())
	return d
}

var grants = map[string]func(t *testing.T, s *scene){
	"TryAcquire":                    func(t *testing.T, s *scene) { limitertest.MustAcquire(t, s.plain, 3) },
	"TryAcquire of the same handle": func(t *testing.T, s *scene) { limitertest.MustAcquire(t, s.RateLimiter, 3) },
	"Acquire": func(t *testing.T, s *scene) {
		require.NoError(t, s.Client.RateLimiter(s.Name()).Acquire(t.Context(), 3))
	},
	"Take":          func(t *testing.T, s *scene) { assert.True(t, limitertest.Take(t, s.RateLimiter, 3).Granted) },
	"TryAcquireAll": func(t *testing.T, s *scene) { assert.True(t, s.also(t, 3)) },
	"Keyed": func(t *testing.T, s *scene) {
		l := s.Client.Keyed(s.Name()[:1], limitertest.Every(10, 6*time.Second))
		assert.True(t, limittest.Take(t, l, s.Name()[1:], 3).Granted)
	},
	"a settlement": func(t *testing.T, s *scene) {
		r := limitertest.Reserve(t, s.plain, 1)
		s.exact(t, 5)
		require.NoError(t, r.Settle(t.Context(), 3))
	},
	"one in the line": func(t *testing.T, s *scene) {
		waits := s.Go(func() (bool, error) { return s.plain.TryAcquire(t.Context(), 6, time.Minute) })
		s.Until(6 * time.Second)
		require.Equal(t, "true at 6s", waits.Outcome())
		limitertest.Take(t, s.RateLimiter, 5)
	},
	"one whose answer is lost": func(t *testing.T, s *scene) {
		s.Proxy.OnCommand(limitertest.OnEach(lua.Acquire.SHA, redistest.DropAnswer))
		_, err := s.plain.TryAcquire(t.Context(), 3, 0)
		s.Proxy.OnCommand(nil)
		require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
	},
}

// A grant leaves a refusal as it is, and corrects the figures of it that Take returns.
func TestTakeFromMemoryAfterAGrant(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		limitertest.Bubbles(t, grants, func(t *testing.T, grant func(t *testing.T, s *scene)) {
			s := newFiguresScene(t, kind)
			s.Until(3500 * ms)
			grant(t, s)
			s.remembers(t, 5)
			d := s.exact(t, 5)
			assert.False(t, d.Granted)
			assert.Less(t, d.Remaining, int64(3))
			s.remembers(t, 5)
			s.Until(s.Now() + 500*ms)
			before := s.Sent.Total()
			limitertest.Take(t, s.RateLimiter, 5)
			assert.Equal(t, before, s.Sent.Total(), "the new figures are remembered")
			s.exact(t, 5)
			if s.mustAsk(t, 1) {
				s.exact(t, 5)
			}
		})
	})
}

// A give-back ends remembered refusals and figures.
func TestTakeFromMemoryAfterPermitsAreGivenBack(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, s *scene){
		"Release": func(t *testing.T, s *scene) { require.NoError(t, s.plain.Release(t.Context(), 2)) },
		"a caller that has gone": func(t *testing.T, s *scene) {
			letGo := s.Hold(t, lua.Acquire, 1)
			s.Leaver(t, func(ctx context.Context) (bool, error) { return s.plain.TryAcquire(ctx, 2, 0) })()
			letGo()
		},
		"TryAcquireAll that has lost its caller": func(t *testing.T, s *scene) {
			also := limitertest.ByDefault(s.Client, "{"+s.Name()+"}:also", limitertest.Every(10, time.Hour))
			letGo := s.Hold(t, lua.AcquireAll, 1)
			s.Leaver(t, func(ctx context.Context) (bool, error) {
				return s.Client.TryAcquireAll(ctx, 0, s.plain.Claim(3), also.Claim(3))
			})()
			letGo()
		},
		"a cancelled reservation": func(t *testing.T, s *scene) {
			r := limitertest.Reserve(t, s.plain, 2)
			s.exact(t, 5)
			require.NoError(t, r.Cancel(t.Context()))
		},
		"a grant undone": func(t *testing.T, s *scene) {
			l := s.Client.Keyed(s.Name()[:1], limitertest.Every(10, 6*time.Second))
			d, giveBack, err := l.TakeReturnable(t.Context(), s.Name()[1:], 2)
			require.NoError(t, err)
			assert.True(t, d.Granted)
			s.exact(t, 5)
			require.NoError(t, giveBack(t.Context()))
		},
	}
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		limitertest.Bubbles(t, ways, func(t *testing.T, giveBack func(t *testing.T, s *scene)) {
			s := newFiguresScene(t, kind)
			s.Until(4 * time.Second)
			giveBack(t, s)
			synctest.Wait()
			s.exact(t, 6)
		})
	})
}

// Whatever callers of the same Client do at random, Take from memory returns what Redis would.
func TestTakeFromMemoryBesideCallersOfItsClient(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	limitertest.Bubbles(t, limitertest.Seeds(*rounds), func(t *testing.T, seed uint64) {
		s, random, spared := newRefusalScene(t, limitertest.Every(20, time.Minute)), rand.New(rand.NewPCG(seed, 0)), 0
		for range 400 {
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
			d := limitertest.Take(t, s.RateLimiter, permits)
			if before < s.Sent.Total() {
				continue
			}
			spared++
			want := limitertest.Take(t, s.plain, permits)
			d.Remaining, want.Remaining = 0, 0                // which grows before all of them are free
			d.RetryAfter = max(d.RetryAfter, want.RetryAfter) // fewer were refused
			require.Equal(t, want, d)
		}
		assert.Greater(t, spared, 20)
	})
}
