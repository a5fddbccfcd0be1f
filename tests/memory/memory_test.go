package memory_test

import (
	"context"
	"fmt"
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

// newFiguresScene returns a scene at 3 s: of 10 permits every 6 s, 4 were taken at 0 s and 3 at
// 2 s, and Take(5) was refused.
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

// walk makes random steps, of which more than least must be spared a call, on 20 permits a minute.
func walk(t *testing.T, steps, least int, step func(t *testing.T, s *scene, random *rand.Rand) (spared bool)) {
	t.Helper()
	redistest.SkipShort(t, "long")
	limitertest.Bubbles(t, limitertest.Seeds(*rounds), func(t *testing.T, seed uint64) {
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
	walk(t, 700, 100, func(t *testing.T, s *scene, random *rand.Rand) (spared bool) {
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
		d := limitertest.Take(t, s.RateLimiter, permits)
		if before < s.Sent.Total() {
			return false
		}
		want := limitertest.Take(t, s.Other, permits)
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
	walk(t, 400, 20, func(t *testing.T, s *scene, random *rand.Rand) (spared bool) {
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
			return false
		}
		want := limitertest.Take(t, s.plain, permits)
		d.Remaining, want.Remaining = 0, 0                // which grows before all of them are free
		d.RetryAfter = max(d.RetryAfter, want.RetryAfter) // fewer were refused
		require.Equal(t, want, d)
		return true
	})
}

var figuresTests = limitertest.Tests[*scene]{
	// However many there are.
	"grants of other limiters change none": func(t *testing.T, s *scene) {
		redistest.SkipShort(t, "long")
		others := s.Client.Keyed("others:", limitertest.Every(1, time.Hour))
		limitertest.Together(int(750**rounds), func(i int) { assert.True(t, limittest.Take(t, others, fmt.Sprint(i), 1).Granted) })
		before := s.Sent.Total()
		limitertest.Take(t, s.RateLimiter, 5)
		assert.Equal(t, before, s.Sent.Total())
	},
	"new ones cost one call": func(t *testing.T, s *scene) {
		for range 3 {
			limitertest.MustAcquire(t, s.plain, 1)
			before := s.Sent.Scripts()
			limitertest.Take(t, s.RateLimiter, 5)
			assert.Equal(t, before+1, s.Sent.Scripts())
		}
		s.Until(s.Now() + time.Second - 1)
		s.remembers(t, 5)
	},
}

func TestFigures(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, figuresTests, func(t *testing.T, test func(t *testing.T, s *scene)) {
		test(t, newFiguresScene(t, rratelimiter.Overall))
	})
}
