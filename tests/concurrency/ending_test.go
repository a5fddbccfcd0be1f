package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// waited is how a caller's wait ended, and when.
type waited struct {
	err  error
	took time.Duration
}

// within calls f with a context that ends after that time, if it is not 0.
func within(t *testing.T, deadline time.Duration, f func(context.Context) error) waited {
	t.Helper()
	ctx := t.Context()
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	start := time.Now()
	err := f(ctx)
	return waited{err, time.Since(start)}
}

func requireHopeless(t *testing.T, w waited, took time.Duration, text string) {
	t.Helper()
	require.ErrorIs(t, w.err, context.DeadlineExceeded)
	assert.ErrorContains(t, w.err, `Wait "orders": no permit is free before the deadline, the next one is in `+text)
	assert.Equal(t, took, w.took)
}

// A waitTest is a test of two Clients' handles of a limiter of one permit a minute, which is in use.
type waitTest struct {
	opts []rratelimiter.LimiterOption
	run  func(t *testing.T, l, other *rratelimiter.RateLimiter)
}

// tooEarly is a wait that ends once its deadline is known to be too early: a minute, and then 50 s, before a permit is free.
func tooEarly(minute, less string) func(t *testing.T, l, other *rratelimiter.RateLimiter) {
	return func(t *testing.T, l, _ *rratelimiter.RateLimiter) {
		requireHopeless(t, within(t, 2*time.Second, l.Wait), 0, minute)
		time.Sleep(10 * time.Second)
		requireHopeless(t, within(t, 49*time.Second, l.Wait), 0, less)
		assert.Equal(t, waited{nil, 50 * time.Second}, within(t, 51*time.Second, l.Wait))
		assert.Equal(t, waited{nil, time.Minute}, within(t, 0, l.Wait))
	}
}

var waitTests = map[string]waitTest{
	"ends at once":                {run: tooEarly("1m0s", "50s")},
	"ends at once with a policy":  {[]rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(1))}, tooEarly("1m0s", "50s")},
	"ends at once beside a lease": {fromMemory, tooEarly("", "")}, // whose callers ask again at different times
	// A refusal that is remembered tells it without a round trip, as long as it lasts.
	"ends by a remembered refusal": {remembering, func(t *testing.T, l, other *rratelimiter.RateLimiter) {
		limitertest.MustRefuse(t, l, 1)
		time.Sleep(time.Second / 2)
		require.NoError(t, other.Release(t.Context(), 1)) // by another program
		requireHopeless(t, within(t, 2*time.Second, l.Wait), 0, "59.5s")
		time.Sleep(time.Second)
		assert.Equal(t, waited{}, within(t, 2*time.Second, l.Wait))

		limitertest.MustRefuse(t, l, 1)
		assert.Equal(t, waited{nil, time.Minute}, within(t, 2*time.Minute, l.Wait), "it may wait so long")
	}},
	// A permit that is free at the deadline is not too late.
	"lasts if a permit is free at the deadline": {run: func(t *testing.T, l, _ *rratelimiter.RateLimiter) {
		assert.Equal(t, time.Minute, within(t, time.Minute, l.Wait).took)
	}},
	// Acquire and TryAcquire wait for their whole time, as Redisson's do: permits may be released.
	"Acquire waits though its deadline is known to be too early": {run: func(t *testing.T, l, other *rratelimiter.RateLimiter) {
		acquire := func(ctx context.Context) error { return l.Acquire(ctx, 1) }
		w := within(t, 2*time.Second, acquire)
		require.ErrorIs(t, w.err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Second, w.took)
		w = within(t, 0, func(ctx context.Context) error {
			ok, err := l.TryAcquire(ctx, 1, 2*time.Second)
			assert.False(t, ok)
			return err
		})
		assert.Equal(t, waited{nil, 2 * time.Second}, w)
		time.AfterFunc(time.Second, func() { assert.NoError(t, l.Release(t.Context(), 1)) })
		assert.Equal(t, waited{nil, time.Second}, within(t, 10*time.Second, acquire))
		assert.Zero(t, limitertest.Available(t, other))
	}},
	// So it is behind others in line, and for those whose permit another program takes.
	"ends in line": {run: func(t *testing.T, l, other *rratelimiter.RateLimiter) {
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- l.Acquire(ctx, 1) }()
		time.Sleep(time.Second)
		w := within(t, 30*time.Second, l.Wait)
		requireHopeless(t, w, w.took, "59s")
		assert.Less(t, w.took, time.Second/10)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)

		// The permit comes in 59 s, and goes to another.
		hopeful := make(chan waited, 1)
		go func() { hopeful <- within(t, 90*time.Second, l.Wait) }()
		synctest.Wait()
		require.NoError(t, other.Release(t.Context(), 1))
		limitertest.MustAcquire(t, other, 1)
		time.Sleep(31 * time.Second)
		require.NoError(t, other.Reset(t.Context()))
		limitertest.MustAcquire(t, other, 1)
		w = <-hopeful
		require.ErrorIs(t, w.err, context.DeadlineExceeded)
		assert.ErrorContains(t, w.err, "no permit is free before the deadline")
		assert.Less(t, w.took, 35*time.Second, "it asks again from time to time")
	}},
}

func TestWait_EndsOnceItsDeadlineIsKnownToBeTooEarly(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, waitTests, func(t *testing.T, rdb redistest.Client, test waitTest) {
		opts := append(slices.Clone(test.opts), rratelimiter.WithDefault(limitertest.Every(1, time.Minute)))
		l, other := limitertest.NewClient(t, rdb).RateLimiter("orders", opts...), limitertest.NewClient(t, rdb).RateLimiter("orders", opts...)
		limitertest.MustAcquire(t, other, 1)
		test.run(t, l, other)
	})
}

// So it is with more permits, of a key too, and behind those in line who want fewer.
func TestWaitN_EndsOnceItsDeadlineIsKnownToBeTooEarly(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		keyed := client.Keyed("user:", limitertest.Every(10, time.Minute))
		for _, l := range []*rratelimiter.RateLimiter{limitertest.ByDefault(client, "orders", limitertest.Every(10, time.Minute)), keyed.Limiter("ann")} {
			waitN := func(n int64) func(context.Context) error {
				return func(ctx context.Context) error { return l.WaitN(ctx, n) }
			}
			hopeless := func(within waited) {
				require.ErrorIs(t, within.err, context.DeadlineExceeded)
				assert.ErrorContains(t, within.err, `WaitN "`+l.Name()+`": fewer than 6 permits are free before the deadline, so many are in 1m0s`)
				assert.Less(t, within.took, time.Second/10)
			}
			require.NoError(t, waitN(5)(t.Context()))
			hopeless(within(t, 30*time.Second, waitN(6)))
			require.ErrorIs(t, within(t, 30*time.Second, waitN(11)).err, rratelimiter.ErrPermitsExceedRate)
			require.ErrorIs(t, within(t, 30*time.Second, waitN(0)).err, rratelimiter.ErrInvalidPermits)
			require.NoError(t, waitN(5)(t.Context()))
			first := make(chan waited, 1)
			go func() { first <- within(t, 0, waitN(3)) }()
			synctest.Wait()
			w := within(t, 30*time.Second, waitN(6))
			assert.ErrorContains(t, w.err, "fewer than 6 permits")
			assert.Less(t, w.took, time.Second/10)
			assert.Equal(t, time.Minute, (<-first).took.Round(time.Second))
		}
		require.NoError(t, keyed.Wait(t.Context(), "bob"))
		require.NoError(t, keyed.WaitN(t.Context(), "bob", 9))
		require.ErrorIs(t, within(t, time.Second, func(ctx context.Context) error { return keyed.WaitN(ctx, "bob", 2) }).err, context.DeadlineExceeded)
	})
}

// While a server hangs and go-redis waits on, requests whose callers have gone hold up no Close.
func TestClose_DoesNotWaitForCallersThatHaveGone(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]int{"pool of 2": 2, "pool of 20": 20}, func(t *testing.T, pool int) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: pool})
		back := make(chan struct{})
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, _ func() error) error {
			<-back
			return errors.New("the server has gone")
		}))
		defer synctest.Wait()
		defer close(back)
		c := rratelimiter.New(rdb)
		cfg := limitertest.Every(10, time.Hour)
		both := limitertest.Claims(1, limitertest.ByDefault(c, "{a}1", cfg), limitertest.ByDefault(c, "{a}2", cfg))
		for range 20 {
			limitertest.Together(100, func(int) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.TakeAll(ctx, both...)
				assert.Error(t, err)
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		assert.NoError(t, c.Close(ctx))
	})
}

const (
	ms      = time.Millisecond
	forever = limitertest.Forever
)

func TestMain(m *testing.M) { limitertest.Main(m) }

// failed checks with what calls failed, and when.
func failed(t *testing.T, target error, at time.Duration, callers ...*limitertest.Caller) {
	t.Helper()
	for _, c := range callers {
		c.RequireEnd(t, target, at)
	}
}

// Calls that one script call can't decide together go in one flight, so that callers of several kinds
// wait no longer than callers of one.
func TestCallers_OfSeveralKindsShareFlights(t *testing.T) {
	t.Parallel()
	const callers, rounds, trip = 256, 10, 10 * ms
	cfg := rratelimiter.PerHour(1 << 40)
	type call = func(ctx context.Context) error
	tries := func(l *rratelimiter.RateLimiter) call {
		return func(ctx context.Context) error { return limitertest.Granted(l.TryAcquire(ctx, 1, 0)) }
	}
	ofKeys := func(l limittest.Limiter) []call {
		return []call{
			func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, "ann", 3); return err },
			func(ctx context.Context) error { _, err := l.Take(ctx, "ann", 1); return err },
		}
	}
	limitertest.Bubbles(t, map[string]func(c *rratelimiter.Client) []call{
		"two handles, one without a default": func(c *rratelimiter.Client) []call {
			return []call{tries(limitertest.ByDefault(c, "orders", cfg)), tries(c.RateLimiter("orders"))}
		},
		"two defaults": func(c *rratelimiter.Client) []call {
			return []call{tries(limitertest.ByDefault(c, "orders", cfg)), tries(limitertest.ByDefault(c, "orders", rratelimiter.PerHour(1<<41)))}
		},
		"a Keyed beside a handle": func(c *rratelimiter.Client) []call {
			keyed := c.Keyed("orders", cfg)
			of := func(ctx context.Context) error { return limitertest.Granted(keyed.TryAcquire(ctx, "1", 1, 0)) }
			return []call{of, tries(c.RateLimiter(keyed.Limiter("1").Name()))}
		},
		"TakeUpTo": func(c *rratelimiter.Client) []call {
			l := limitertest.ByDefault(c, "orders", cfg)
			return []call{func(ctx context.Context) error { _, _, err := l.TakeUpTo(ctx, 10); return err }, tries(l)}
		},
		"Reserve": func(c *rratelimiter.Client) []call {
			l := limitertest.ByDefault(c, "orders", cfg)
			return []call{func(ctx context.Context) error { return limitertest.Second(l.Reserve(ctx, 1, 0)) }, tries(l)}
		},
		"a sliding log": func(c *rratelimiter.Client) []call {
			return ofKeys(slidinglog.New(c, slidinglog.Config{Limit: 100_000, Window: time.Hour}))
		},
		"a token bucket": func(c *rratelimiter.Client) []call {
			return ofKeys(tokenbucket.New(c, tokenbucket.Config{Capacity: 100_000, Refill: 100, Interval: time.Second}))
		},
	}, func(t *testing.T, calls func(c *rratelimiter.Client) []call) {
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		all := calls(c)
		for _, one := range all {
			require.NoError(t, one(t.Context()), "the server knows the scripts, and the limiter its rate")
		}
		start := time.Now()
		limitertest.Together(callers, func(i int) {
			for range rounds {
				assert.NoError(t, all[i%len(all)](t.Context()))
			}
		})
		assert.LessOrEqual(t, time.Since(start), 3*rounds*trip, strconv.Itoa(callers*rounds)+" calls")
		synctest.Wait()
		require.NoError(t, c.Close(t.Context()))
	})
}

// Requests for limiters of all kinds of a Client share flights: those whose calls are repeated after a lost answer, and those
// whose calls are not, and so have more time.
func TestClient_LimitersShareFlightsWithThoseThatAreRepeatedAlike(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 2, MaxConcurrentDials: 1}) // one flight at a time
		c := limitertest.OpenClient(rdb)
		orders := c.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(100)), rratelimiter.WithExact())
		all := []func(ctx context.Context) error{
			func(ctx context.Context) error { return limitertest.Granted(orders.TryAcquire(ctx, 1, 0)) },
		}
		for _, l := range []limit.Limiter{
			fixedwindow.New(c, fixedwindow.Config{Limit: 100, Window: time.Hour}),
			slidinglog.New(c, slidinglog.Config{Limit: 100, Window: time.Hour}),
			tokenbucket.New(c, tokenbucket.Config{Capacity: 100, Refill: 1, Interval: time.Hour}),
		} {
			all = append(all, func(ctx context.Context) error { return limitertest.Second(l.Take(ctx, fmt.Sprintf("%T", l), 1)) })
		}
		for _, call := range all {
			require.NoError(t, call(t.Context()), "the server knows the scripts by then")
		}
		trips := &redistest.Trips{Hold: make(chan struct{})}
		rdb.AddHook(redistest.Hook(trips.Send))
		var wg sync.WaitGroup
		for _, call := range append(all[:1:1], all...) {
			wg.Go(func() { assert.NoError(t, call(t.Context())) })
			synctest.Wait()
		}
		close(trips.Hold)
		wg.Wait()
		assert.Equal(t, []int{1, 2, 2}, trips.Sizes())
		limitertest.CheckIdle(t, c)
	})
}

var farTests = map[string]func(t *testing.T){
	// Callers who take permits of several limiters again and again do not hold up callers of one of these.
	"a TryAcquire goes beside many TakeAlls": func(t *testing.T) {
		const callers, trip = 80, 10 * ms
		c := rratelimiter.New(limitertest.FarAway(t, trip))
		cfg := rratelimiter.PerHour(1 << 40)
		one, other := limitertest.ByDefault(c, "{shop}orders", cfg), limitertest.ByDefault(c, "{shop}visits", cfg)
		var wg sync.WaitGroup
		var done atomic.Bool
		defer done.Store(true)
		for i := range callers {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * trip / callers)
				for !done.Load() {
					_, err := c.TakeAll(t.Context(), one.Claim(1), other.Claim(2))
					assert.NoError(t, err)
				}
			})
		}
		time.Sleep(5 * trip)
		for range 4 {
			start := time.Now()
			limitertest.MustAcquire(t, one, 1)
			assert.LessOrEqual(t, time.Since(start), 3*trip)
		}
		done.Store(true)
		wg.Wait()
		require.NoError(t, c.Close(t.Context()))
	},
	// Hundreds of settlements, of more and of less than was reserved, beside Releases of other limiters all succeed, and delay no
	// Take.
	"settlements go beside Releases": func(t *testing.T) {
		const each, trip = 200, 100 * ms
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		settled, released := limitertest.ByDefault(c, "settled", rratelimiter.PerHour(1<<40)), c.Keyed("released:", rratelimiter.PerHour(1000))
		reservations := make([]*rratelimiter.Reservation, each)
		limitertest.Together(each, func(i int) {
			reservations[i] = limitertest.Reserve(t, settled, 10)
			assert.NoError(t, limitertest.Granted(released.TryAcquire(t.Context(), strconv.Itoa(i), 2, 0)))
		})
		start := time.Now()
		limitertest.Together(2*each+1, func(i int) {
			switch {
			case i == 2*each:
				time.Sleep(ms)
				limitertest.Take(t, settled, 1)
				assert.LessOrEqual(t, time.Since(start), 2*trip+ms)
			case i%2 == 0:
				assert.NoError(t, reservations[i/2].Settle(t.Context(), int64(5+i%4*5)))
			default:
				assert.NoError(t, released.Release(t.Context(), strconv.Itoa(i/2), 1))
			}
		})
		assert.LessOrEqual(t, time.Since(start), 10*trip)
		assert.Equal(t, int64(1<<40-each*10-1), limitertest.Available(t, settled))
		require.NoError(t, c.Close(t.Context()))
	},
	// A Release takes some round trips, whatever goes back for others meanwhile.
	"a Release is not held up by give-backs": func(t *testing.T) {
		const trip, releases = 10 * ms, 20
		client := limitertest.NewClient(t, limitertest.FarAway(t, trip), rratelimiter.WithRedissonVersion("3.15.5"))
		busy := limitertest.ByDefault(client, "busy", limitertest.Every(100_000, time.Hour))
		free := limitertest.ByDefault(client, "free", limitertest.Every(releases, time.Hour))
		limitertest.MustAcquire(t, free, releases)
		ctx, cancel := context.WithTimeout(t.Context(), trip/2)
		defer cancel()
		limitertest.Together(800, func(int) { _, _ = busy.TryAcquire(ctx, 1, 0) })
		var took []time.Duration
		for range releases {
			start := time.Now()
			require.NoError(t, free.Release(t.Context(), 1))
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		assert.LessOrEqual(t, took[releases/2], 3*trip)
		assert.LessOrEqual(t, took[releases-1], 10*trip)
	},
	// First calls of hundreds of handles that set their rate come through, and so do their releases.
	"hundreds of handles set their rate": func(t *testing.T) {
		const handles = 600
		near, m := redistest.Mini(t)
		client := limitertest.NewClient(t, limitertest.FarAwayOf(t, m, 100*ms), rratelimiter.WithCallTimeout(time.Second))
		all := make([]*rratelimiter.RateLimiter, handles)
		limitertest.Together(handles, func(i int) {
			all[i] = client.RateLimiter(fmt.Sprint("limiter", i))
			assert.NoError(t, all[i].SetRate(t.Context(), limitertest.Every(10, time.Hour), rratelimiter.KeepState()))
			assert.NoError(t, limitertest.Granted(all[i].TryAcquire(t.Context(), 1, 0)))
		})
		limitertest.Together(handles, func(i int) { assert.NoError(t, all[i].Release(t.Context(), 1)) })
		for _, l := range all {
			require.Zero(t, limitertest.InUse(t, near, limitertest.KeysOf(l).Permits))
		}
	},
}

func TestFarServer(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, farTests, func(t *testing.T, test func(t *testing.T)) { test(t) })
}
