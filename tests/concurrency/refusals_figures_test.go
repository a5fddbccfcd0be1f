package concurrency_test

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
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// newFiguresScene returns a scene at 3 s in which Take(5) of 10 permits every 6 s
// was refused, for 4 were taken at 0 s and 3 at 2 s.
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
	"one in the line": func(t *testing.T, s *refusalScene) {
		waits := s.Go(func() (bool, error) { return s.plain.TryAcquire(t.Context(), 6, time.Minute) })
		s.Until(6 * time.Second)
		synctest.Wait()
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

// A grant leaves a refusal as it is, and corrects the figures that Take tells of
// it.
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

// loses has a caller go while the script's answer is on its way.
func (s *refusalScene) loses(t *testing.T, script *lua.Script, call func(ctx context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	letGo := s.Hold(t, script, 1)
	gone := s.Go(func() (bool, error) { return call(ctx) })
	cancel()
	synctest.Wait()
	gone.RequireEnd(t, context.Canceled, s.Now())
	letGo()
}

// What is given back ends refusal and figures.
func TestTakeFromMemoryAfterPermitsAreGivenBack(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, s *refusalScene){
		"Release": func(t *testing.T, s *refusalScene) { require.NoError(t, s.plain.Release(t.Context(), 2)) },
		"a caller that has gone": func(t *testing.T, s *refusalScene) {
			s.loses(t, lua.Acquire, func(ctx context.Context) (bool, error) { return s.plain.TryAcquire(ctx, 2, 0) })
		},
		"TryAcquireAll that has lost its caller": func(t *testing.T, s *refusalScene) {
			also := byDefault(s.Client, "{"+s.Name()+"}:also", limitertest.Every(10, time.Hour))
			s.loses(t, lua.AcquireAll, func(ctx context.Context) (bool, error) { return s.Client.TryAcquireAll(ctx, 3, 0, s.plain, also) })
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

// What a lease holds is in use from the call that brings it to the one that gives
// its rest back; what is handed out of it changes no figures.
func TestTakeFromMemoryBesideLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newRefusalScene(t, limitertest.Every(1000, time.Minute))
		leasing := s.Client.RateLimiter(s.Name(), limitertest.Ahead(5*time.Second))
		limitertest.MustAcquire(t, s.plain, 400)
		s.Until(2 * time.Second)
		limitertest.MustAcquire(t, s.plain, 300)
		s.exact(t, 500)
		for want := int64(299); ; {
			limitertest.MustAcquire(t, leasing, 1)
			if d := s.exact(t, 500); d.Remaining < want {
				break // a lease has come
			}
			want--
		}
		before := s.Sent.Total()
		limitertest.MustAcquire(t, leasing, 1)
		mustTake(t, s.RateLimiter, 500)
		assert.Equal(t, before, s.Sent.Total())
		s.exact(t, 500)
		s.Until(8 * time.Second)
		s.exact(t, 500)
	})
}

// Whatever the callers of one Client do, in bursts, Take from memory tells what
// Redis does.
func TestTakeFromMemoryBesideCallersOfItsClient(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			s := newRefusalScene(t, limitertest.Every(20, time.Minute))
			random := rand.New(rand.NewPCG(seed, 1))
			spared := 0
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
				s.Go(func() (bool, error) {
					d, err := s.Take(t.Context(), permits)
					return d.Granted, err
				})
				synctest.Wait()
				before := s.Sent.Total()
				d := mustTake(t, s.RateLimiter, permits)
				if before == s.Sent.Total() {
					spared++
					want := mustTake(t, s.plain, permits)
					d.Remaining, want.Remaining = 0, 0 // which grows before all of them are free
					if d.RetryAfter < want.RetryAfter {
						d.RetryAfter = want.RetryAfter // fewer were refused
					}
					require.Equal(t, want, d)
				}
			}
			assert.Greater(t, spared, 20)
		})
	}
}

// Grants of other limiters are none of this one's, however many there are.
func TestTakeFromMemoryBesideOtherLimiters(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	synctest.Test(t, func(t *testing.T) {
		s := newFiguresScene(t, rratelimiter.Overall)
		others := s.Client.Keyed("others:", limitertest.Every(1, time.Hour))
		for i := range 3000 {
			require.True(t, limittest.Take(t, others, fmt.Sprint(i), 1).Granted)
		}
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
