package redisson_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const (
	ms     = time.Millisecond
	second = time.Second
	minute = time.Minute
	hour   = time.Hour

	newest = "4.7.0"
	// Redisson before 3.13.3 keeps no set: the value counts a fixed window and ends with it.
	windowed = "3.12.3"

	ownID = "own" // of the Client under test
)

var (
	every, perClient = limitertest.Every, limitertest.PerClient
	keep             = rratelimiter.KeepState()
)

// A scenario is what happens, step by step, to a limiter.
type scenario struct {
	cfg        rratelimiter.Config // the zero Config: no rate is set
	both       bool                // runs for each type of limiter: those of configurations don't count
	byDefault  bool                // cfg is the limiter's default
	everywhere bool                // runs on real servers too, without virtual time
	version    string              // of the Redisson beside the Clients
	steps      []step
}

// A step does something, or looks at the result.
type step func(p *play)

// A play is a scenario under way.
type play struct {
	*testing.T

	scenario
	rdb    redistest.Client
	client *rratelimiter.Client
	l      *rratelimiter.RateLimiter
	other  *rratelimiter.RateLimiter // another Client's handle of the same limiter
	began  time.Time

	setClock func(by time.Duration)      // the server's, against ours
	undo     func(context.Context) error // gives back what takeReturnable took
	theirs   map[string]bool             // members that othersTake added
	others   int64                       // permits of those, in use
}

func perform(t *testing.T, all map[string]scenario) {
	t.Helper()
	limitertest.Each(t, all, func(t *testing.T, s scenario) { s.perform(t) })
}

func (s scenario) perform(t *testing.T) {
	t.Helper()
	if s.both {
		limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
			of := s
			of.cfg.Type = kind
			of.run(t)
		})
		return
	}
	s.run(t)
}

func (s scenario) run(t *testing.T) {
	t.Helper()
	if s.everywhere {
		redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) { s.play(t, rdb, nil) })
		return
	}
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, setClock func(by time.Duration)) { s.play(t, rdb, setClock) })
}

func (s scenario) play(t *testing.T, rdb redistest.Client, setClock func(by time.Duration)) {
	name := redistest.Name(t)
	p := &play{T: t, scenario: s, rdb: rdb, setClock: setClock, theirs: map[string]bool{}, began: time.Now()}
	p.client = s.newClient(t, rdb, s.version)
	p.l, p.other = p.client.RateLimiter(name), limitertest.NewClient(t, rdb, s.options(s.version)...).RateLimiter(name)
	switch {
	case s.byDefault:
		p.l = p.client.RateLimiter(name, rratelimiter.WithDefault(s.cfg))
	case s.cfg.Rate > 0:
		limitertest.MustTrySetRate(t, p.l, s.cfg)
	}
	at := 0
	defer func() {
		if t.Failed() {
			t.Logf("failed in step %d of %d", at+1, len(s.steps))
		}
	}()
	for ; at < len(s.steps) && !t.Failed(); at++ {
		s.steps[at](p)
	}
}

func (scenario) options(version string) []rratelimiter.Option {
	if version == "" {
		return nil
	}
	return []rratelimiter.Option{rratelimiter.WithRedissonVersion(version)}
}

func (s scenario) newClient(t *testing.T, rdb rratelimiter.Redis, version string) *rratelimiter.Client {
	t.Helper()
	return limitertest.NewClient(t, rdb, append(s.options(version), rratelimiter.WithClientID(ownID))...)
}

// of gives a configuration the type of the play's limiter, if there is one for each.
func (p *play) of(cfg rratelimiter.Config) rratelimiter.Config {
	if p.both {
		cfg.Type = p.cfg.Type
	}
	return cfg
}

// keys returns the keys of the limiter to the Client under test, of which Value and Permits are those in use.
func (p *play) keys() redisson.Keys {
	keys := redisson.KeysOf(p.l.Name(), ownID)
	if p.cfg.Type == rratelimiter.PerClient {
		keys.Value, keys.Permits = keys.ClientValue, keys.ClientPermits
	}
	return keys
}

func wait(d time.Duration) step { return func(*play) { time.Sleep(d) } }

func times(n int, steps ...step) step {
	return func(p *play) {
		for range n {
			for _, s := range steps {
				s(p)
			}
		}
	}
}

func other(steps ...step) step {
	return func(p *play) {
		its := *p
		its.l, its.other = p.other, p.l
		times(1, steps...)(&its)
	}
}

// as has a Client of the same id do the steps that stands beside another Redisson.
func as(version string, steps ...step) step {
	return func(p *play) {
		its := *p
		its.client = p.newClient(p.T, p.rdb, version)
		its.l = its.client.RateLimiter(p.l.Name())
		times(1, steps...)(&its)
	}
}

func untouched(steps ...step) step {
	return func(p *play) { limitertest.RequireUntouched(p, p.rdb, p.l.Name(), func() { times(1, steps...)(p) }) }
}

func take(permits int64) step   { return func(p *play) { limitertest.MustAcquire(p, p.l, permits) } }
func refuse(permits int64) step { return func(p *play) { limitertest.MustRefuse(p, p.l, permits) } }

func takeReturnable(p *play) {
	var err error
	_, p.undo, err = p.client.Keyed("", p.cfg).TakeReturnable(p.Context(), p.l.Name(), 1)
	require.NoError(p, err)
}

func giveBack(p *play) { require.NoError(p, p.undo(p.Context())) }

func acquire(permits int64) step {
	return func(p *play) { require.NoError(p, p.l.Acquire(p.Context(), permits)) }
}

func answers[T any](want T, call func(p *play) (T, error)) step {
	return func(p *play) {
		assert.Equal(p, want, limitertest.Must(call(p))(p))
	}
}

func within(permits int64, timeout time.Duration, want bool) step {
	return answers(want, func(p *play) (bool, error) { return p.l.TryAcquire(p.Context(), permits, timeout) })
}

func grants(want, tries int) step {
	return func(p *play) { assert.Equal(p, want, limitertest.Grants(p, p.l, tries)) }
}

// decides compares Take's figures: how many remain, and when to ask again; 0 for a grant.
func decides(permits, remaining int64, retryAfter time.Duration) step {
	return func(p *play) {
		d := limitertest.Take(p, p.l, permits)
		assert.Equal(p, retryAfter == 0, d.Granted)
		assert.Equal(p, remaining, d.Remaining)
		assert.Equal(p, retryAfter, d.RetryAfter)
	}
}

func free(want int64) step {
	return answers(want, func(p *play) (int64, error) { return p.l.AvailablePermits(p.Context()) })
}

func release(permits int64) step {
	return func(p *play) { require.NoError(p, p.l.Release(p.Context(), permits)) }
}

func trySet(want bool, cfg rratelimiter.Config) step {
	return answers(want, func(p *play) (bool, error) { return p.l.TrySetRate(p.Context(), p.of(cfg)) })
}

func set(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) step {
	return func(p *play) { require.NoError(p, p.l.SetRate(p.Context(), p.of(cfg), opts...)) }
}

func update(want bool, cfg rratelimiter.Config, opts ...rratelimiter.RateOption) step {
	return answers(want, func(p *play) (bool, error) { return p.l.UpdateRate(p.Context(), p.of(cfg), opts...) })
}

func config(want rratelimiter.Config) step {
	return func(p *play) {
		answers(p.of(want), func(p *play) (rratelimiter.Config, error) { return p.l.Config(p.Context()) })(p)
	}
}

func expire(d time.Duration) step {
	return answers(true, func(p *play) (bool, error) { return p.l.Expire(p.Context(), d) })
}

func exists(want bool) step {
	return answers(want, func(p *play) (bool, error) { return p.l.Exists(p.Context()) })
}

func remove(want bool) step {
	return answers(want, func(p *play) (bool, error) { return p.l.Delete(p.Context()) })
}

func tryMigrate(p *play) error { return limitertest.Second(p.l.Migrate(p.Context())) }
func migrate(p *play)          { require.NoError(p, tryMigrate(p)) }

// does makes a call of limitertest.Operations.
func does(op string) step {
	return func(p *play) { require.NoError(p, limitertest.Operations[op](p.Context(), p.l), op) }
}

// fails makes a call that must end in an error with these words.
func fails(target error, call func(p *play) error, words ...string) step {
	return func(p *play) {
		err := call(p)
		require.ErrorIs(p, err, target)
		for _, word := range words {
			assert.ErrorContains(p, err, word)
		}
	}
}

// exceeds asks for permits that are an error.
func exceeds(target error, permits int64) step {
	return fails(target, func(p *play) error { return limitertest.Second(p.l.TryAcquire(p.Context(), permits, 0)) })
}

func passed(want time.Duration) step {
	return func(p *play) { assert.Equal(p, want, time.Since(p.began)) }
}

// ends compares the times to live of all keys of the limiter, which must be that many.
func ends(keys int, want time.Duration) step {
	return func(p *play) {
		all := limitertest.TTLs(p, p.rdb, p.l.Name())
		assert.Len(p, all, keys)
		for key, ttl := range all {
			assert.Equal(p, want, ttl, key)
		}
	}
}

// noEnd is a time to live, of a key that has none.
const noEnd = time.Duration(-1)

func valueEnds(want time.Duration) step {
	return func(p *play) { assert.Equal(p, want, p.rdb.PTTL(p.Context(), p.keys().Value).Val()) }
}

// there compares how many keys the server has; of one at least that is the configuration.
func there(count int) step {
	return func(p *play) {
		all := redistest.Keys(p, p.rdb, "*")
		assert.Len(p, all, count)
		if count > 0 {
			assert.Contains(p, all, p.l.Name())
		}
	}
}

func value(want int64) step {
	return func(p *play) {
		got, _ := limitertest.StoredValue(p, p.rdb, p.keys().Value)
		assert.Equal(p, want, got)
	}
}

func putValue(n int64) step {
	return func(p *play) { require.NoError(p, p.rdb.Set(p.Context(), p.keys().Value, n, 0).Err()) }
}

func put(fields ...any) step {
	return func(p *play) { require.NoError(p, p.rdb.HSet(p.Context(), p.l.Name(), fields...).Err()) }
}

func loseValue(p *play) { require.NoError(p, p.rdb.Del(p.Context(), p.keys().Value).Err()) }

// loseConfig is what Redisson's unlink does.
func loseConfig(p *play) { require.NoError(p, p.rdb.Del(p.Context(), p.l.Name()).Err()) }

func inUse(want int64) step {
	return func(p *play) { assert.Equal(p, want, limitertest.InUse(p, p.rdb, p.keys().Permits)) }
}

func (p *play) java() limitertest.Java { return limitertest.Java{Redis: p.rdb, Name: p.l.Name()} }

// oldTakes has a Redisson of before 3.13.3 ask for permits.
func oldTakes(permits int64) step {
	return func(p *play) { require.True(p, limitertest.AsRedisson3123(p, p.rdb, p.l, permits)) }
}

func oldRefuses(permits int64) step {
	return func(p *play) { require.False(p, limitertest.AsRedisson3123(p, p.rdb, p.l, permits)) }
}

func members(t testing.TB, rdb redistest.Client, key string) []codec.Member {
	t.Helper()
	texts := limitertest.Must(rdb.ZRange(t.Context(), key, 0, -1).Result())(t)
	all := make([]codec.Member, len(texts))
	for i, text := range texts {
		all[i] = limitertest.Must(codec.Parse(text))(t)
	}
	return all
}

// beside lets that many callers call again and again while do runs.
func beside(t testing.TB, callers int, call func(ctx context.Context, i int), do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	over := limitertest.Go(func() {
		limitertest.Together(callers, func(i int) {
			for ctx.Err() == nil {
				call(ctx, i)
			}
		})
	})
	do()
	stop()
	<-over
}

// keepAlive is a configuration that ends when it is not used for that long.
func keepAlive(rate int64, interval, d time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: interval, KeepAlive: d}
}

func left(permits int64) step {
	return times(1, free(permits), refuse(permits+1))
}

// startsFull sets a rate, of which all permits are free.
func startsFull(cfg rratelimiter.Config) step {
	return times(1, set(cfg), config(cfg), acquire(1), free(cfg.Rate-1))
}

// redissonsOwn are the behaviours that Redisson's own test suite asks of its rate limiter, under its order's numbers.
var redissonsOwn = map[string]scenario{
	"01 keep alive": {cfg: keepAlive(1, second, second), steps: []step{
		wait(1100 * ms), exists(false),
		trySet(true, keepAlive(10, 2*second, 2*second)), wait(second), take(1), ends(3, 2*second),
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
	"09 more permits than the rate are an error": {cfg: perClient(1, second), steps: []step{exceeds(rratelimiter.ErrPermitsExceedRate, 20), take(1)}},
	"11 a timeout is the longest wait": {cfg: every(1, 5*second), steps: []step{
		within(1, second, true), within(1, second, false), passed(second), refuse(1),
	}},
	"12 acquire waits for each permit": {cfg: every(1, 5*second), steps: []step{times(10, acquire(1)), passed(9 * 5 * second), refuse(1)}},
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
