package redisson_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// keepAlive is a configuration that ends when it is not used for that long.
func keepAlive(rate int64, interval, d time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: interval, KeepAlive: d}
}

// left is free, and one more is refused.
func left(permits int64) step {
	return times(1, free(permits), refuse(permits+1))
}

// startsFull sets a rate, of which all permits are free.
func startsFull(cfg rratelimiter.Config) step {
	return times(1, set(cfg), config(cfg), acquire(1), free(cfg.Rate-1))
}

// redissonsOwn are the behaviours that Redisson's own test suite asks of its rate limiter,
// under its order's numbers.
var redissonsOwn = map[string]scenario{
	"01 keep alive": {cfg: keepAlive(1, second, second), steps: []step{
		wait(1100 * ms), exists(false),
		trySet(true, keepAlive(10, 2*second, 2*second)), wait(second), take(1), lasts(2 * second),
	}},
	"02 expire reaches keys made later": {cfg: every(5, 5*second), both: true, steps: []step{
		expire(10 * second), acquire(1), wait(12 * second), there(0),
	}},
	"03 expire reaches keys made before": {cfg: every(2, 5*second), both: true, steps: []step{
		take(1), expire(second), wait(1100 * ms), there(0),
	}},
	"05 a permit comes back one interval after its own grant": {cfg: every(2, 5*second), steps: []step{
		take(1), wait(4 * second), take(1), wait(1050 * ms), take(1), refuse(1),
	}},
	"06 config":                        {cfg: every(1, 5*second), steps: []step{config(every(1, 5*second))}},
	"06 config of each client":         {cfg: perClient(rratelimiter.MaxRate, ms), steps: []step{config(perClient(rratelimiter.MaxRate, ms))}},
	"06 config with a keep-alive time": {cfg: keepAlive(7, 250*ms, 24*hour), steps: []step{config(keepAlive(7, 250*ms, 24*hour))}},
	"07 a new rate changes the config": {cfg: every(1, 5*second), steps: []step{
		set(every(2, 6*second)), config(every(2, 6*second)), update(true, every(3, 7*second)), config(every(3, 7*second)),
	}},
	"08 available permits": {cfg: every(10, 5*second), steps: []step{free(10), acquire(1), free(9), wait(6 * second), free(10)}},
	"09 more permits than the rate are an error": {cfg: perClient(1, second), steps: []step{
		exceeds(rratelimiter.ErrPermitsExceedRate, 20), take(1),
	}},
	"10 a timeout of zero asks once": {cfg: every(5, second), steps: []step{
		free(5), grants(2, 2), free(3), grants(3, 3), free(0), grants(0, 5), passed(0), wait(second), grants(5, 10),
	}},
	"11 a timeout is the longest wait": {cfg: every(1, 5*second), steps: []step{
		within(1, second, true), within(1, second, false), passed(second), refuse(1),
	}},
	"12 acquire waits for each permit": {cfg: every(1, 5*second), steps: []step{
		times(10, acquire(1)), passed(9 * 5 * second), refuse(1),
	}},
	"13 the first rate stays": {cfg: every(10, second), steps: []step{
		trySet(false, every(20, second)), times(3, grants(10, 10), grants(0, 10), wait(1050*ms)),
	}},
	"14 delete leaves nothing": {both: true, steps: []step{
		remove(false), trySet(true, every(5, 5*minute)), there(1), acquire(1), there(3), remove(true), there(0),
	}},
	"17 a new rate starts full": {steps: []step{
		startsFull(perClient(10, second)), startsFull(perClient(20, second)), startsFull(every(10, second)), startsFull(every(20, second)),
	}},
	"18 KeepState on a new limiter": {steps: []step{
		set(every(10, second), keep), acquire(3), free(7), wait(1100 * ms), acquire(3), free(7),
	}},
	"19 a new rate with KeepState":    {cfg: every(10, 5*second), steps: []step{acquire(3), set(every(20, 5*second), keep), free(17)}},
	"19 a new rate without KeepState": {cfg: every(10, 5*second), steps: []step{acquire(3), set(every(20, 5*second)), free(20)}},
	"20 an update of nothing": {both: true, steps: []step{
		update(false, every(10, 5*second)), there(0), update(false, every(10, 5*second), keep), there(0),
	}},
	"21 the same rate": {steps: []step{
		set(every(10, 5*second), keep), free(10), update(true, every(10, 5*second), keep), free(10), take(2), left(8), take(8), left(0),
	}},
	"22 a higher rate and a longer interval": {steps: []step{
		set(every(10, 2*second), keep), free(10), wait(second), take(4), left(6),
		update(true, every(20, 5*second), keep), left(16), take(16), left(0),
	}},
	"23 a lower rate": {steps: []step{
		set(every(10, 2*second), keep), free(10), wait(second), take(3), left(7),
		update(true, every(5, 5*second), keep), left(2), take(2), left(0),
	}},
	"24 a rate below what is in use": {steps: []step{
		set(every(10, 2*second), keep), free(10), wait(second), take(8), left(2), update(true, every(5, 5*second), keep), left(0),
	}},
	"25 all has run out": {steps: []step{
		set(every(10, second), keep), free(10), take(8), left(2), wait(2 * second), update(true, every(10, second), keep), free(10),
	}},
	"26 another type starts full": {steps: []step{
		set(every(10, 5*second), keep), free(10), take(4), left(6), update(true, perClient(10, 5*second), keep), free(10),
	}},
	"27 a keep-alive time below the interval": {steps: []step{fails(rratelimiter.ErrInvalidConfig, func(p *play) error {
		return limitertest.Second(p.l.UpdateRate(p.Context(), keepAlive(10, 5*second, second), keep))
	})}},
	"28 a shorter interval gives back what has run out by it": {steps: []step{
		set(every(10, 5*second), keep), free(10), take(3), left(7), wait(1100 * ms), update(true, every(10, second), keep), free(10),
	}},
	"29 each client's own permits": {steps: []step{
		set(perClient(10, 5*second), keep), free(10), take(3), left(7), update(true, perClient(20, 5*second), keep), left(17),
	}},
	"30 release": {cfg: every(10, second), both: true, steps: []step{
		acquire(3), free(7), release(3), free(10), release(10), free(10), release(0), free(10),
		fails(rratelimiter.ErrInvalidPermits, func(p *play) error { return p.l.Release(p.Context(), -1) }), free(10),
	}},
}

func TestRedissonsOwn(t *testing.T) {
	t.Parallel()
	perform(t, redissonsOwn)
}

func TestRedissons04_SetHoldsRateUnderManyCallers(t *testing.T) {
	t.Parallel()
	// The set holds the whole rate at this many of 20 looks, in turn, or within a minute.
	full := func(t *testing.T, rdb redistest.Client, rate int64, interval time.Duration, want, looks int) {
		l := limitertest.NewLimiter(t, rdb, every(rate, interval))
		beside(t, 200, func(ctx context.Context, _ int) {
			if err := l.Acquire(ctx, 1); ctx.Err() == nil {
				assert.NoError(t, err)
			}
		}, func() {
			seen := 0
			for range looks {
				if limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits) == rate {
					seen++
				}
				if seen == want {
					return
				}
				time.Sleep(interval / 10)
			}
			assert.Equal(t, want, seen)
		})
	}
	t.Run("virtual time", func(t *testing.T) {
		t.Parallel()
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { full(t, rdb, 10_000, 10*second, 16, 20) })
	})
	t.Run("on Redis", func(t *testing.T) {
		t.Parallel()
		full(t, redistest.CurrentClient(t), 1000, second, 10, 600)
	})
}

// Eight threads take permits, by waiting for them (15) or by asking again and again (16).
func TestRedissonsEightThreads(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rate, count, countOnRedis int
		pause, pauseOnRedis       time.Duration // between two questions; 0: they wait
	}{
		"15 that wait": {rate: 18, count: 1000, countOnRedis: 150},
		"16 that poll": {rate: 10, count: 500, countOnRedis: 100, pause: 40 * ms, pauseOnRedis: 7 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.pause > 0 {
				redistest.SkipShort(t, "long")
			}
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				l := limitertest.NewLimiter(t, rdb, every(int64(tt.rate), second))
				all := grantsOf(t, int64(tt.count), poll(l, tt.pause))
				for i := tt.rate; i < len(all); i++ {
					require.GreaterOrEqual(t, all[i].to.Sub(all[i-tt.rate].to), second, "grants %d and %d", i-tt.rate, i)
				}
				wasted := all[len(all)-1].to.Sub(all[0].to) - time.Duration((tt.count-1)/tt.rate)*second
				if tt.pause == 0 {
					assert.Zero(t, wasted, "no interval is wasted")
				}
				assert.Zero(t, wasted.Truncate(second), "no interval is wasted")
			})
		})
		t.Run(name+" on Redis", func(t *testing.T) {
			t.Parallel()
			const interval = 200 * ms
			l := limitertest.NewLimiter(t, redistest.CurrentClient(t), every(int64(tt.rate), interval))
			all := grantsOf(t, int64(tt.countOnRedis), poll(l, tt.pauseOnRedis))
			requireWindows(t, all, tt.rate, interval)
			spent := all[len(all)-1].to.Sub(all[0].from)
			assert.GreaterOrEqual(t, spent, time.Duration((tt.countOnRedis-1)/tt.rate)*interval-clockSlack)
		})
	}
}

// poll returns a function that asks for a permit until it is granted, or waits for it if
// there is no pause.
func poll(l *rratelimiter.RateLimiter, pause time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		if pause == 0 {
			return l.Acquire(ctx, 1)
		}
		for {
			ok, err := l.TryAcquire(ctx, 1, 0)
			if ok || err != nil {
				return err
			}
			time.Sleep(pause)
		}
	}
}

// grant is a permit that was granted, no earlier than from and no later than to.
type grant struct{ from, to time.Time }

// grantsOf lets eight threads take count permits together, and returns them in
// the order in which they came.
func grantsOf(t *testing.T, count int64, acquire func(context.Context) error) []grant {
	t.Helper()
	all := make([]grant, count)
	var next atomic.Int64
	limitertest.Together(8, func(int) {
		for i := next.Add(1) - 1; i < count; i = next.Add(1) - 1 {
			from := time.Now()
			if !assert.NoError(t, acquire(t.Context())) {
				return
			}
			all[i] = grant{from, time.Now()}
		}
	})
	slices.SortFunc(all, func(a, b grant) int { return a.to.Compare(b.to) })
	return all
}

// clockSlack is what this program's clock and the server's, which counts
// milliseconds, may differ by.
const clockSlack = 5 * time.Millisecond

// requireWindows checks that no interval holds more grants than the rate,
// counting those that lie in it for certain.
func requireWindows(t *testing.T, all []grant, rate int, interval time.Duration) {
	t.Helper()
	for _, first := range all {
		held := 0
		for _, g := range all {
			if !g.from.Before(first.from) && g.to.Before(first.from.Add(interval-clockSlack)) {
				held++
			}
		}
		require.LessOrEqual(t, held, rate)
	}
}
