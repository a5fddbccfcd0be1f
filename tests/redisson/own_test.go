package redisson_test

import (
	"sync"
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
	"05 a permit comes back one interval after its own grant": {cfg: every(2, 5*second), steps: []step{
		take(1), wait(4 * second), take(1), wait(1050 * ms), take(1), refuse(1),
	}},
	"06 config":                        {cfg: every(1, 5*second), steps: []step{config(every(1, 5*second))}},
	"06 config with a keep-alive time": {cfg: keepAlive(7, 250*ms, 24*hour), steps: []step{config(keepAlive(7, 250*ms, 24*hour))}},
	"07 a new rate changes the config": {cfg: every(1, 5*second), steps: []step{
		set(every(2, 6*second)), config(every(2, 6*second)), update(true, every(3, 7*second)), config(every(3, 7*second)),
	}},
	"09 more permits than the rate are an error": {cfg: perClient(1, second), steps: []step{
		exceeds(rratelimiter.ErrPermitsExceedRate, 20), take(1),
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
	"20 an update of nothing": {both: true, steps: []step{
		update(false, every(10, 5*second)), there(0), update(false, every(10, 5*second), keep), there(0),
	}},
	"22 a higher rate and a longer interval": {steps: []step{
		set(every(10, 2*second), keep), free(10), wait(second), take(4), left(6),
		update(true, every(20, 5*second), keep), left(16), take(16), left(0),
	}},
	"24 a rate below what is in use": {steps: []step{
		set(every(10, 2*second), keep), free(10), wait(second), take(8), left(2), update(true, every(5, 5*second), keep), left(0),
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
	"30 release": {cfg: every(10, second), both: true, steps: []step{
		acquire(3), free(7), release(3), free(10), release(10), free(10), release(0), free(10),
		fails(rratelimiter.ErrInvalidPermits, func(p *play) error { return p.l.Release(p.Context(), -1) }), free(10),
	}},
}

func TestRedissonsOwn(t *testing.T) {
	t.Parallel()
	perform(t, redissonsOwn)
}

// Eight threads take permits, by waiting for them (15) or by asking again and again (16): never more than the rate within
// an interval, and no interval is wasted.
func TestRedissonsEightThreads(t *testing.T) {
	t.Parallel()
	const count = 500
	limitertest.Virtual(t, map[string]int64{"15 that wait": 18, "16 that poll": 10}, func(t *testing.T, rdb redistest.Client, rate int64) {
		l := limitertest.NewLimiter(t, rdb, every(rate, second))
		var mu sync.Mutex
		var granted []time.Time
		limitertest.Together(8, func(int) {
			for ok := true; ; {
				if rate == 18 {
					require.NoError(t, l.Acquire(t.Context(), 1))
				} else if ok = limitertest.Try(t, l, 1); !ok {
					time.Sleep(40 * ms)
				}
				mu.Lock()
				if ok {
					granted = append(granted, time.Now())
				}
				over := len(granted) >= count
				mu.Unlock()
				if over {
					return
				}
			}
		})
		for i := range count - int(rate) {
			require.GreaterOrEqual(t, granted[i+int(rate)].Sub(granted[i]), second, "grants %d and %d", i, i+int(rate))
		}
		assert.Less(t, granted[count-1].Sub(granted[0]), time.Duration((count-1)/rate+1)*second)
	})
}
