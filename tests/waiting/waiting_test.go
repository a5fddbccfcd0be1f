package waiting_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMain(m *testing.M) { limitertest.Main(m) }

// waits are the ways to wait for the second limiter of a family.
var waits = map[string]wait{
	"alone": func(ctx context.Context, f *limitertest.Family, permits int64, timeout time.Duration) (bool, error) {
		return f.Limiters[1].TryAcquire(ctx, permits, timeout)
	},
	"for all": func(ctx context.Context, f *limitertest.Family, permits int64, timeout time.Duration) (bool, error) {
		return f.Client.TryAcquireAll(ctx, timeout, limitertest.Claims(permits, f.Limiters...)...)
	},
}

// A wait is one of waits.
type wait = func(ctx context.Context, f *limitertest.Family, permits int64, timeout time.Duration) (bool, error)

func TestTryAcquireWaitsUpToItsTimeout(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]string{
		math.MinInt64: "false at 250ms", -1: "false at 250ms", 0: "false at 250ms", 1: "false at 250.000001ms",
		400 * ms: "false at 650ms", 749 * ms: "false at 999ms", 1750*ms - 1: "false at 1.999999999s",
		1750 * ms: "true at 2s", 1750*ms + 1: "true at 2s", 5 * time.Second: "true at 2s", math.MaxInt64: "true at 2s",
	} {
		t.Run(timeout.String(), func(t *testing.T) {
			t.Parallel()
			limitertest.Each(t, limitertest.KindsOfContext, func(t *testing.T, context func(context.Context) context.Context) {
				limitertest.Bubbles(t, waits, func(t *testing.T, wait wait) {
					// The first could grant at 1s, the second at 2s, the third at once.
					s, f := limitertest.NewFamilyScene(t,
						limitertest.Every(2, time.Second), limitertest.Every(1, 2*time.Second), limitertest.Every(9, time.Hour))
					require.True(t, f.SeenBy(s.Rival).Try(t, 1))
					limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[0].Name()), 1)
					s.Until(250 * ms)
					c := s.Go(func() (bool, error) { return wait(context(t.Context()), f, 1, timeout) })
					s.Until(forever)
					assert.Equal(t, want, c.Outcome())
					assert.LessOrEqual(t, s.Sent.Scripts(), 3, "it asks at first, after a second and when the server said")
				})
			})
		})
	}
}

// The wait is the time until enough members have run out, whenever it is asked for.
func TestCallersWaitForAllOfTheirPermits(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, waits, func(t *testing.T, wait wait) {
		s, f := limitertest.NewFamilyScene(t, limitertest.Every(9, time.Hour), limitertest.Every(3, time.Second))
		for range 3 {
			limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[1].Name()), 1)
			s.Until(s.Now() + 200*ms)
		}
		assert.False(t, f.Try(t, 1))
		two := s.Go(func() (bool, error) { return wait(t.Context(), f, 2, 600*ms) })
		three := s.Go(func() (bool, error) { return wait(t.Context(), f, 3, forever) })
		s.Until(forever)
		assert.Equal(t, "true at 1.2s", two.Outcome())
		assert.Equal(t, "true at 2.2s", three.Outcome(), "all are free an interval after the two")
	})
}

func TestWaitersAreWokenByTheirOwnClient(t *testing.T) {
	t.Parallel()
	type row struct {
		wake limitertest.Change
		want string // "": the limiter is gone at once
	}
	keep := rratelimiter.KeepState()
	limitertest.Each(t, map[string]row{
		"Release":                 {limitertest.Release(1), "true at 300ms"},
		"Reset":                   {limitertest.Reset, "true at 300ms"},
		"SetRate":                 {limitertest.SetRate(limitertest.Every(5, time.Second)), "true at 300ms"},
		"SetRate of another type": {limitertest.SetRate(limitertest.PerClient(1, time.Second)), "true at 300ms"},
		"SetRate, KeepState":      {limitertest.SetRate(limitertest.Every(3, time.Second), keep), "true at 300ms"},
		"UpdateRate":              {limitertest.UpdateRate(limitertest.Every(5, time.Second)), "true at 300ms"},
		"a higher rate":           {limitertest.UpdateRate(limitertest.Every(3, time.Second), keep), "true at 300ms"},
		"a shorter interval":      {limitertest.UpdateRate(limitertest.Every(2, 500*ms), keep), "true at 500ms"},
		"a longer interval":       {limitertest.UpdateRate(limitertest.Every(2, 2*time.Second), keep), "true at 2s"},
		"Rename to it":            {limitertest.ReplaceBy(limitertest.Every(1, time.Second)), "true at 300ms"},
		"Rename away":             {limitertest.Rename, ""},
		"Delete":                  {limitertest.Delete, ""},
		"ExpireAt a moment that has passed": {func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.ExpireAt(ctx, time.Now().Add(-time.Hour)))
		}, ""},
	}, func(t *testing.T, row row) {
		limitertest.Bubbles(t, waits, func(t *testing.T, wait wait) {
			s, f := limitertest.NewFamilyScene(t, limitertest.Every(2, time.Second), limitertest.Every(2, time.Second))
			limitertest.MustAcquire(t, s.Rival.RateLimiter(f.Limiters[1].Name()), 2)
			c := s.Go(func() (bool, error) { return wait(t.Context(), f, 1, forever) })
			s.Until(300 * ms)
			require.NoError(t, row.wake(t.Context(), s.Client, s.Client.RateLimiter(f.Limiters[1].Name())))
			s.Until(forever)
			if row.want == "" {
				c.RequireEnd(t, rratelimiter.ErrNotInitialized, 300*ms)
				return
			}
			assert.Equal(t, row.want, c.Outcome())
		})
	})
}

// A decision that takes many calls keeps its caller for twice the call timeout at most. It goes on, so that
// the next one finds all set right. Here a value was lost beside many members.
func TestDecision_OfManyCallsGoesOnAfterTimeout(t *testing.T) {
	t.Parallel()
	const rate = 10_000
	limitertest.Each(t, map[string]time.Duration{"once": 0, "waiting": time.Minute}, func(t *testing.T, timeout time.Duration) {
		limitertest.Bubbles(t, waits, func(t *testing.T, ask wait) {
			rdb, m := redistest.Mini(t)
			f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(1, time.Hour), limitertest.Every(rate, time.Hour))
			limitertest.PileUp(t, rdb, f.Limiters[1], map[time.Duration]int{time.Minute: rate / 4}, -1)
			proxy := redistest.MiniProxy(t, m)
			proxy.OnCommand(limitertest.OnEach("eval", redistest.Pass.After(900*ms)))
			start := time.Now()
			c := limitertest.NewClient(t, proxy.Client(t, &redistest.Options{ReadTimeout: time.Minute}))
			require.ErrorIs(t, limitertest.Second(ask(t.Context(), f.SeenBy(c), 1, timeout)), rratelimiter.ErrUnavailable)
			assert.Equal(t, 2*script.DefaultTimeout, time.Since(start))
			time.Sleep(time.Minute)
			start = time.Now()
			assert.True(t, limitertest.Must(ask(t.Context(), f.SeenBy(c), 1, timeout))(t))
			assert.Less(t, time.Since(start), script.DefaultTimeout)
		})
	})
}

func TestDefectTheWaitIsThatForOnePermit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(5, 10*time.Second))
		for range 5 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(time.Second)
		}
		for permits := int64(1); permits <= 5; permits++ {
			assert.Equal(t, time.Duration(4+permits)*time.Second, limitertest.Take(t, l, permits).RetryAfter)
		}
		sent, start := limitertest.CountCommands(rdb), time.Now()
		require.NoError(t, l.Acquire(t.Context(), 5))
		assert.Equal(t, 9*time.Second, time.Since(start))
		assert.LessOrEqual(t, sent.Scripts(), 11, "at first, about once a second, and when the server said")
	})
}

func TestDefectOneMemberForEachPermit(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(2_000_000, time.Hour))
		limitertest.MustAcquire(t, l, 1_000_000)
		assert.EqualValues(t, 1, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val())
	})
}

// The line never comes to a caller whose time is over before: the answer has a Decision for each claim all the same.
func TestReserveAll_HasADecisionForEachClaimThoughItsTurnDidNotCome(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), limitertest.Every(1, time.Minute), limitertest.Every(9, time.Minute))
		assert.True(t, f.Try(t, 1))
		first := limitertest.Go(func() {
			assert.NoError(t, limitertest.Second(f.Client.ReserveAll(t.Context(), time.Second, limitertest.Claims(1, f.Limiters...)...)))
		})
		synctest.Wait()
		r := limitertest.Must(f.Client.ReserveAll(t.Context(), 10*ms, limitertest.Claims(1, f.Limiters...)...))(t)
		assert.False(t, r.Granted)
		assert.Len(t, r.Decisions, 2)
		<-first
	})
}

func TestDefectAWaitingCallerLosesItsLimiter(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		limitertest.Virtual(t, map[string]time.Duration{
			"Acquire": endless, "TryAcquire": forever,
		}, func(t *testing.T, rdb redistest.Client, patience time.Duration) {
			l := limitertest.NewLimiter(t, rdb, limitertest.Alive(kind, 1, time.Second))
			limitertest.MustAcquire(t, l, 1)
			s := &limitertest.Scene{RateLimiter: l, Sent: limitertest.CountCommands(rdb), Start: time.Now()}
			for i := range 5 {
				at := time.Duration(i+1) * time.Second
				c := caller{permits: 1, patience: patience}.start(t.Context(), t, s)
				s.Until(at)
				assert.Equal(t, fmt.Sprint("true at ", at), c.Outcome())
			}
			assert.LessOrEqual(t, s.Sent.Scripts(), 5*3, "two questions for each permit, and the first")
		})
	})
}

func TestLine_KeepsLimiterAlive(t *testing.T) {
	t.Parallel()
	type row struct {
		version string
		cfg     rratelimiter.Config
		opts    []rratelimiter.LimiterOption
	}
	keeping := limitertest.Alive(rratelimiter.Overall, 2, time.Second)
	limitertest.Virtual(t, map[string]row{
		"newest":              {version: "4.7.0", cfg: keeping},
		"windows":             {version: "3.12.0", cfg: keeping},
		"lease":               {"4.7.0", keeping, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{Permits: 10})}},
		"refusals remembered": {"4.7.0", keeping, []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}},
		"a client's pair":     {version: "4.7.0", cfg: limitertest.PerClient(2, time.Second)},
	}, func(t *testing.T, rdb redistest.Client, row row) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(row.version))
		l := client.RateLimiter(redistest.Name(t), row.opts...)
		limitertest.MustTrySetRate(t, l, row.cfg)
		limitertest.MustAcquire(t, l, 2)
		sent, start := limitertest.CountCommands(rdb), time.Now()
		limitertest.Together(20, func(int) { assert.NoError(t, l.Acquire(t.Context(), 1)) })
		// A server keeps the value of a window to the end of its last millisecond.
		assert.InDelta(t, 10*time.Second, time.Since(start), float64(10*ms))
		assert.LessOrEqual(t, sent.Scripts(), 10*5)
	})
}

func TestTryAcquireAll_WaitersKeepLimitersAlive(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]int{"one": 1, "many": 8}, func(t *testing.T, rdb redistest.Client, callers int) {
		client := limitertest.NewClient(t, rdb)
		name := redistest.Name(t)
		slow, brief := client.RateLimiter(name), client.RateLimiter(limitertest.Besides(name))
		limitertest.MustTrySetRate(t, slow, limitertest.Every(int64(callers), time.Minute))
		limitertest.MustTrySetRate(t, brief, limitertest.Alive(rratelimiter.Overall, 1000, time.Second))
		limitertest.MustAcquire(t, slow, int64(callers))
		sent, start := limitertest.CountCommands(rdb), time.Now()
		limitertest.Together(callers, func(int) {
			assert.NoError(t, limitertest.Granted(client.TryAcquireAll(t.Context(), forever, brief.Claim(1), slow.Claim(1))))
			assert.Equal(t, time.Minute, time.Since(start))
		})
		assert.LessOrEqual(t, sent.Scripts(), (2*60+5)*callers, "each asks before half of the time is over")
	})
}

func TestWaiters_FailWhenLimiterIsGone(t *testing.T) {
	t.Parallel()
	type row struct {
		cfg    rratelimiter.Config
		other  bool // another program does it
		remove limitertest.Change
		by     time.Duration
	}
	limitertest.Bubbles(t, map[string]row{
		"deleted by its Client":           {limitertest.Alive(rratelimiter.Overall, 1, 10*time.Second), false, limitertest.Delete, time.Second},
		"deleted by another program":      {limitertest.Alive(rratelimiter.Overall, 1, 10*time.Second), true, limitertest.Delete, 2250 * ms},
		"given an end by another program": {limitertest.Every(1, 10*time.Second), true, limitertest.Expire(2 * time.Second), 4250 * ms},
	}, func(t *testing.T, row row) {
		s := limitertest.NewScene(t, row.cfg)
		beside := limitertest.NewLimiterOf(t, s.Client, limitertest.Besides(s.Name()), limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		before := s.Sent.Scripts()
		all := []*limitertest.Caller{s.StartAcquire(t.Context(), 1), s.StartAcquire(t.Context(), 1)}
		all = append(all, s.Go(func() (bool, error) { return s.Client.TryAcquireAll(t.Context(), forever, beside.Claim(1), s.Claim(1)) }))
		s.Until(time.Second)
		l := s.RateLimiter
		if row.other {
			l = s.Other
		}
		require.NoError(t, row.remove(t.Context(), s.Client, l))
		s.Until(20 * time.Second)
		for _, c := range all {
			end, _ := c.Ended()
			require.ErrorIs(t, end.Err, rratelimiter.ErrNotInitialized)
			assert.LessOrEqual(t, end.At, row.by)
		}
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 14, "about one question a second")
	})
}

func TestWaiters_WithDefaultSetUpLimiterAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := limitertest.Alive(rratelimiter.Overall, 1, 10*time.Second)
		s := limitertest.NewScene(t, limitertest.Alive(rratelimiter.Overall, 2, 10*time.Second))
		limitertest.MustAcquire(t, s.RateLimiter, 2)
		plain := s.StartAcquire(t.Context(), 1)
		s.RateLimiter = limitertest.ByDefault(s.Client, s.Name(), cfg)
		first, second := s.StartAcquire(t.Context(), 1), s.StartAcquire(t.Context(), 1)
		s.Until(time.Second)
		require.NoError(t, limitertest.Second(s.Other.Delete(t.Context())))
		s.Until(10 * time.Second)
		assert.Equal(t, cfg, limitertest.ConfigOf(t, s.Other))
		s.Until(20 * time.Second)
		end, _ := plain.Ended()
		require.ErrorIs(t, end.Err, rratelimiter.ErrNotInitialized, "its handle has no default")
		end, _ = first.Ended()
		assert.True(t, end.Ok)
		assert.LessOrEqual(t, end.At, 2250*ms, "a line asks about once a second")
		assert.Equal(t, fmt.Sprintf("true at %v", end.At+10*time.Second), second.Outcome())
	})
}

// freed are changes by which another program frees permits of a limiter of 2 an hour, which is also its default.
var freed = map[string]limitertest.Change{
	"UpdateRate": limitertest.UpdateRate(rratelimiter.PerSecond(1000)),
	"SetRate":    limitertest.SetRate(rratelimiter.PerSecond(1000)),
	"Reset":      limitertest.Reset,
	"Release":    limitertest.Release(2),
	"Delete":     limitertest.Delete,
	"expiry":     limitertest.Expire(2 * time.Second),
}

// A caller who joins a line makes it ask, so that what another program frees is not missed.
func TestLine_AsksWhenACallerJoins(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, freed, func(t *testing.T, free limitertest.Change) {
		cfg := limitertest.Every(2, time.Hour)
		s := limitertest.NewScene(t, cfg, rratelimiter.WithDefault(cfg))
		limitertest.MustAcquire(t, s.Other, 2)
		first := s.StartTryAcquire(t.Context(), 1, forever)
		s.Until(time.Second / 2)
		require.NoError(t, free(t.Context(), nil, s.Other))
		s.Until(3 * time.Second)
		before := s.Sent.Scripts()
		require.NoError(t, reserves(t.Context(), s.RateLimiter, 1, time.Second))
		assert.Less(t, s.Now(), 3100*ms)
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 2)
		synctest.Wait()
		end, done := first.Ended()
		assert.True(t, done && end.Ok)
		assert.Less(t, end.At, 3100*ms)
	})
}

// The call that should keep a limiter alive is stuck: another caller's does.
func TestTryAcquireAll_SecondWaiterKeepsLimitersAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		proxy := redistest.MiniProxy(t, m)
		stuck := make(chan struct{})
		client := limitertest.NewClient(t, proxy.Client(t, nil))
		slow := limitertest.NewLimiterOf(t, client, redistest.Name(t), limitertest.Every(2, 3*time.Second))
		brief := limitertest.NewLimiterOf(t, client, limitertest.Besides(slow.Name()), limitertest.Alive(rratelimiter.Overall, 1000, time.Second))
		limitertest.MustAcquire(t, slow, 2)
		proxy.OnCommand(redistest.Nth(3, lua.AcquireAll.SHA, redistest.Late.When(stuck)))
		start := time.Now()
		both := limitertest.Go(func() {
			limitertest.Together(2, func(int) {
				assert.NoError(t, limitertest.Granted(client.TryAcquireAll(t.Context(), forever, brief.Claim(1), slow.Claim(1))))
			})
		})
		time.Sleep(2 * time.Second)
		assert.True(t, limitertest.Must(brief.Exists(t.Context()))(t), "the other caller asks")
		close(stuck)
		<-both
		assert.Less(t, time.Since(start), 4*time.Second)
	})
}
