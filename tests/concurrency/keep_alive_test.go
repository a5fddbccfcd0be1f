package concurrency_test

import (
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
	"github.com/rratelimiter/rratelimiter/lua"
)

// alive returns a Config of which nobody who waits for it may stop asking.
func alive(kind rratelimiter.RateType, rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: kind, Rate: rate, Interval: interval, KeepAlive: interval}
}

func TestDefectAWaitingCallerLosesItsLimiter(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		virtual(t, map[string]time.Duration{
			"Acquire": endless, "TryAcquire": forever,
		}, func(t *testing.T, rdb *redis.Client, patience time.Duration) {
			l := limitertest.NewLimiter(t, rdb, alive(kind, 1, time.Second))
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

func TestALineKeepsItsLimiterAlive(t *testing.T) {
	t.Parallel()
	type row struct {
		version string
		cfg     rratelimiter.Config
		opt     rratelimiter.LimiterOption
	}
	keeping := alive(rratelimiter.Overall, 2, time.Second)
	virtual(t, map[string]row{
		"newest":              {version: "4.7.0", cfg: keeping},
		"windows":             {version: "3.12.0", cfg: keeping},
		"lease":               {"4.7.0", keeping, rratelimiter.WithLease(rratelimiter.Lease{Permits: 10})},
		"refusals remembered": {"4.7.0", keeping, rratelimiter.WithRefusalCache()},
		"a client's pair":     {version: "4.7.0", cfg: limitertest.PerClient(2, time.Second)},
	}, func(t *testing.T, rdb *redis.Client, row row) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(row.version))
		l := client.RateLimiter(redistest.Name(t))
		if row.opt != nil {
			l = client.RateLimiter(l.Name(), row.opt)
		}
		limitertest.MustTrySetRate(t, l, row.cfg)
		limitertest.MustAcquire(t, l, 2)
		sent, start := limitertest.CountCommands(rdb), time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { assert.NoError(t, l.Acquire(t.Context(), 1)) })
		}
		wg.Wait()
		// A server keeps the value of a window to the end of its last millisecond.
		assert.InDelta(t, 10*time.Second, time.Since(start), float64(10*ms))
		assert.LessOrEqual(t, sent.Scripts(), 10*5)
	})
}

func TestWaitersKeepTheirLimiterAliveOnAServer(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := limitertest.NewLimiter(t, rdb, alive(rratelimiter.Overall, 1, 2*time.Second))
		limitertest.MustAcquire(t, l, 1)
		require.NoError(t, l.Acquire(t.Context(), 1))
	})
}

// Redisson sets any keep-alive time.
func TestAKeepAliveTimeBelowTheInterval(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, 10*time.Second))
		require.NoError(t, rdb.HSet(t.Context(), limitertest.KeysOf(l).Config, "keepAliveTime", 1000).Err())
		limitertest.MustAcquire(t, l, 1)
		sent, start := limitertest.CountCommands(rdb), time.Now()
		require.NoError(t, l.Acquire(t.Context(), 1))
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.LessOrEqual(t, sent.Scripts(), 2*10+2)
	})
}

// slowAndBrief returns a limiter whose permits come back after so long, all of which are
// taken, and one in its slot that lives a second after each question.
func slowAndBrief(t *testing.T, client *rratelimiter.Client, permits int, every time.Duration) (slow, brief *rratelimiter.RateLimiter) {
	t.Helper()
	name := redistest.Name(t)
	slow, brief = client.RateLimiter(name), client.RateLimiter(limitertest.Besides(name))
	limitertest.MustTrySetRate(t, slow, limitertest.Every(int64(permits), every))
	limitertest.MustTrySetRate(t, brief, alive(rratelimiter.Overall, 1000, time.Second))
	limitertest.MustAcquire(t, slow, int64(permits))
	return slow, brief
}

func TestThoseThatWaitForAllKeepThemAlive(t *testing.T) {
	t.Parallel()
	virtual(t, map[string]int{"one": 1, "many": 50}, func(t *testing.T, rdb *redis.Client, callers int) {
		client := limitertest.NewClient(t, rdb)
		slow, brief := slowAndBrief(t, client, callers, time.Minute)
		sent, start := limitertest.CountCommands(rdb), time.Now()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				ok, err := client.TryAcquireAll(t.Context(), 1, forever, brief, slow)
				assert.NoError(t, err)
				assert.True(t, ok)
				assert.Equal(t, time.Minute, time.Since(start))
			})
		}
		wg.Wait()
		// Each asks at first and at last, and some of those who wake at once both ask.
		assert.LessOrEqual(t, sent.Scripts(), 3*callers+2*60+10, "one asks for all")
	})
}

// The question that is to keep a limiter alive does not get there: another
// caller's does.
func TestASecondTryKeepsThemAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		proxy := redistest.MiniProxy(t, m)
		stuck := make(chan struct{})
		client := limitertest.NewClient(t, proxy.Client(t, nil))
		slow, brief := slowAndBrief(t, client, 2, 3*time.Second)
		proxy.OnCommand(redistest.Nth(3, lua.AcquireAll.SHA, redistest.Late.When(stuck)))
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				ok, err := client.TryAcquireAll(t.Context(), 1, forever, brief, slow)
				assert.NoError(t, err)
				assert.True(t, ok)
			})
		}
		time.Sleep(2 * time.Second)
		ttl, _, err := brief.TTL(t.Context())
		require.NoError(t, err)
		assert.Positive(t, ttl, "the other caller asks")
		close(stuck)
		wg.Wait()
		assert.Less(t, time.Since(start), 4*time.Second)
	})
}

func TestWaitersLearnThatTheirLimiterIsGone(t *testing.T) {
	t.Parallel()
	type row struct {
		cfg    rratelimiter.Config
		other  bool // another program does it
		remove change
		at     time.Duration
	}
	bubbles(t, map[string]row{
		"deleted by its Client":           {alive(rratelimiter.Overall, 1, 10*time.Second), false, deleteIt, time.Second},
		"deleted by another program":      {alive(rratelimiter.Overall, 1, 10*time.Second), true, deleteIt, 5 * time.Second},
		"given an end by another program": {limitertest.Every(1, 10*time.Second), true, expireIt(2 * time.Second), 10 * time.Second},
	}, func(t *testing.T, row row) {
		s := limitertest.NewScene(t, row.cfg)
		beside := s.Client.RateLimiter(limitertest.Besides(s.Name()))
		limitertest.MustTrySetRate(t, beside, limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		before := s.Sent.Scripts()
		all := []*limitertest.Caller{s.StartAcquire(t.Context(), 1), s.StartAcquire(t.Context(), 1)}
		all = append(all, s.Go(func() (bool, error) {
			return s.Client.TryAcquireAll(t.Context(), 1, forever, beside, s.RateLimiter)
		}))
		s.Until(time.Second)
		l := s.RateLimiter
		if row.other {
			l = s.Other
		}
		require.NoError(t, row.remove(t.Context(), s.Client, l))
		s.Until(20 * time.Second)
		for _, c := range all {
			c.RequireEnd(t, rratelimiter.ErrNotInitialized, row.at)
		}
		assert.LessOrEqual(t, s.Sent.Scripts()-before, 8, "no polling")
	})
}

func TestWaitersWithADefaultMakeTheirLimiterAnew(t *testing.T) {
	t.Parallel()
	cfg := alive(rratelimiter.Overall, 1, 10*time.Second)
	type row struct {
		defaults [2]bool // of the first in line, and the second
		want     [2]string
		own      bool // their Client deletes it
	}
	bubbles(t, map[string]row{
		"both":            {[2]bool{true, true}, [2]string{"true at 5s", "true at 15s"}, false},
		"the first":       {[2]bool{true, false}, [2]string{"true at 5s", "true at 15s"}, false},
		"the second":      {[2]bool{false, true}, [2]string{"", "true at 5s"}, false},
		"by their Client": {[2]bool{true, true}, [2]string{"true at 1s", "true at 11s"}, true},
	}, func(t *testing.T, row row) {
		s := limitertest.NewScene(t, alive(rratelimiter.Overall, 2, 10*time.Second))
		limitertest.MustAcquire(t, s.RateLimiter, 2)
		var all []*limitertest.Caller
		plain := s.RateLimiter
		for _, has := range row.defaults {
			s.RateLimiter = plain
			if has {
				s.RateLimiter = byDefault(s.Client, s.Name(), cfg)
			}
			all = append(all, caller{permits: 1, patience: endless}.start(t.Context(), t, s))
		}
		s.Until(time.Second)
		l := s.Other
		if row.own {
			l = plain
		}
		deleted, err := l.Delete(t.Context())
		require.NoError(t, err)
		assert.True(t, deleted)
		s.Until(14 * time.Second)
		assert.Equal(t, cfg, configOf(t, plain))
		s.Until(20 * time.Second)
		for i, c := range all {
			if row.want[i] == "" {
				c.RequireEnd(t, rratelimiter.ErrNotInitialized, 5*time.Second)
				continue
			}
			assert.Equal(t, row.want[i], c.Outcome())
		}
	})
}

func TestThoseThatWaitForAllMakeALimiterAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := alive(rratelimiter.Overall, 1, 10*time.Second)
		s := limitertest.NewScene(t, cfg, rratelimiter.WithDefault(cfg))
		slow := s.Client.RateLimiter(limitertest.Besides(s.Name()))
		limitertest.MustTrySetRate(t, slow, limitertest.Every(1, 20*time.Second))
		limitertest.MustAcquire(t, slow, 1)
		c := s.Go(func() (bool, error) {
			return s.Client.TryAcquireAll(t.Context(), 1, forever, s.RateLimiter, slow)
		})
		s.Until(time.Second)
		require.NoError(t, limitertest.Second(s.Other.Delete(t.Context())))
		s.Until(5 * time.Second)
		assert.Len(t, limitertest.LimiterKeys(t, s.Redis, s.Name()), 1, "the configuration")
		s.Until(30 * time.Second)
		assert.Equal(t, "true at 20s", c.Outcome())
	})
}

// Take asks a second time how long to wait if the oldest members don't say.
func TestTakeOfALimiterThatGoesBetweenItsQuestions(t *testing.T) {
	t.Parallel()
	type row struct {
		opts []rratelimiter.LimiterOption
		want error
	}
	bubbles(t, map[string]row{
		"with a default":    {opts: []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(300, time.Hour))}},
		"without a default": {want: rratelimiter.ErrNotInitialized},
	}, func(t *testing.T, row row) {
		s := limitertest.NewScene(t, limitertest.Every(300, time.Hour), row.opts...)
		limitertest.AddGrants(t, s.Redis, limitertest.KeysOf(s.RateLimiter).Permits, time.Minute, 300, 1)
		require.NoError(t, s.Redis.Set(t.Context(), limitertest.KeysOf(s.RateLimiter).Value, 0, 0).Err())
		s.Redis.AddHook(limitertest.BeforeScript{Script: lua.Wait, Do: func() {
			assert.NoError(t, limitertest.Second(s.Other.Delete(t.Context())))
		}})
		d, err := s.Take(t.Context(), 290)
		require.ErrorIs(t, err, row.want)
		assert.False(t, d.Granted)
	})
}
