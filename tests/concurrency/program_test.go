package concurrency_test

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// A program hands all the functions in that a Client and the limiters of keys take. The first call of the one called only does something.
type program struct {
	only string
	do   func()
	done atomic.Bool

	waits chan struct{}          // receives when a caller waits
	said  redistest.List[string] // in the log

	client   *rratelimiter.Client
	keyed    *rratelimiter.KeyedLimiter
	byFunc   *rratelimiter.KeyedLimiter
	limiters []limittest.Limiter
}

func (p *program) called(name string) {
	if name == p.only && !p.done.Swap(true) {
		p.do()
	}
}

// newProgram returns a program on a server of its own, whose Client is not closed.
func newProgram(t *testing.T, only string) *program {
	rdb, m := redistest.Mini(t)
	p := &program{only: only, waits: make(chan struct{}, 1)}
	rdb.AddHook(programHook{redistest.BeforeCommands(func(...redis.Cmder) { p.called("ProcessHook") }), p})
	ring := p.newRing(t, m)
	observer, log := programObserver{p}, slog.New(programLog{p})
	p.client = rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithObserver(observer), rratelimiter.WithLogger(log),
		rratelimiter.WithNameMapper(func(name string) string {
			p.called("NameMapper")
			return name
		}))
	p.keyed = p.client.Keyed("keyed:", rratelimiter.PerHour(10))
	p.byFunc = p.client.KeyedFunc("func:", func(string) rratelimiter.Config {
		p.called("KeyedFunc")
		return rratelimiter.PerHour(10)
	})
	ofRing := limitertest.OpenClient(ring, rratelimiter.WithObserver(observer), rratelimiter.WithLogger(log))
	p.limiters = []limittest.Limiter{
		p.keyed, p.byFunc, fixedwindow.New(p.client, fixedwindow.Config{Limit: 10, Window: time.Hour}),
		slidinglog.New(p.client, slidinglog.Config{Limit: 10, Window: time.Hour}),
		tokenbucket.New(p.client, tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Hour}),
		slidinglog.New(ofRing, slidinglog.Config{Limit: 10, Window: time.Hour, Thresholds: "thresholds"}),
		tokenbucket.New(ofRing, tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Hour}),
	}
	return p
}

// newRing returns a Ring of one server, with a hash function of the program's.
func (p *program) newRing(t *testing.T, m *miniredis.Miniredis) *redis.Ring {
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"one": "memory"}, NewConsistentHash: func([]string) redis.ConsistentHash { return programHash{p} },
		Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() }, ReadTimeout: time.Minute,
	})
	t.Cleanup(func() { assert.NoError(t, ring.Close()) })
	return ring
}

type programHash struct{ *program }

// Get is of interest for keys beside the first one, which no lane belongs to.
func (p programHash) Get(key string) string {
	if key == "thresholds" || strings.HasSuffix(key, "_time") {
		p.called("NewConsistentHash")
	}
	return "one"
}

// work makes the limiters call every function.
func (p *program) work(ctx context.Context) {
	p.take(ctx, "work")
	_, _ = p.client.Keyed("keyed:keyed:", rratelimiter.PerHour(10)).Take(ctx, "work", 1) // the prefixes meet
	leased := p.client.RateLimiter("leased", rratelimiter.WithDefault(rratelimiter.PerHour(100_000)), rratelimiter.WithLease(rratelimiter.Lease{}))
	for range 50 {
		_, _ = leased.TryAcquire(ctx, 1, 0)
	}
	l := p.client.RateLimiter("one", rratelimiter.WithDefault(rratelimiter.PerHour(1)))
	r, err := l.Reserve(ctx, 1, 0)
	if err != nil {
		return
	}
	acquired := limitertest.Go(func() { _ = l.Acquire(ctx, 1) })
	select {
	case <-p.waits:
	case <-acquired: // the Client is closed
	}
	_ = r.Settle(ctx, 0)
	<-acquired
}

func (p *program) take(ctx context.Context, key string) (errs []error) {
	for i, l := range p.limiters {
		_, err := l.Take(ctx, strconv.Itoa(i)+key, 1)
		errs = append(errs, err)
	}
	_, err := p.client.RateLimiter(key, rratelimiter.WithDefault(rratelimiter.PerHour(10))).Take(ctx, 1)
	_, all := p.client.TryAcquireAll(ctx, 0, p.keyed.Claim("{all}"+key, 1), p.byFunc.Claim("{all}"+key, 1))
	return append(errs, err, all)
}

// useAndClose does what a program may do at any time.
func (p *program) useAndClose(ctx context.Context, t *testing.T) {
	for _, err := range p.take(ctx, "other") {
		assert.NoError(t, err)
	}
	_ = p.client.Close(limitertest.EndedContext(t))
}

// observed are the methods of the observer, and functions all that program hands in.
var (
	observed  = []string{"Decided", "Landed", "Waiting", "Leased", "Settled", "Happened"}
	functions = append([]string{"NameMapper", "KeyedFunc", "Logger", "DialHook", "ProcessHook", "NewConsistentHash"}, observed...)
)

func eachFunction(t *testing.T, names []string, test func(t *testing.T, p *program)) {
	t.Helper()
	limitertest.Each(t, limitertest.Rows(names...), func(t *testing.T, name string) { test(t, newProgram(t, name)) })
}

// ends checks that the calls end, and so does Close.
func (p *program) ends(t *testing.T, working <-chan struct{}) {
	t.Helper()
	limitertest.Soon(t, working, "the calls go on")
	limitertest.Soon(t, limitertest.Go(func() { assert.NoError(t, p.client.Close(context.Background())) }), "Close ends")
}

// While a function blocks, only the call that it is part of waits: all functions are called without a lock.
func TestFunctionOfTheProgram_BlocksOnlyItsCall(t *testing.T) {
	t.Parallel()
	eachFunction(t, functions, func(t *testing.T, p *program) {
		called, free := make(chan struct{}), make(chan struct{})
		p.do = func() {
			close(called)
			<-free
		}
		working := limitertest.Go(func() { p.work(t.Context()) })
		defer func() {
			close(free)
			p.ends(t, working)
		}()
		limitertest.Soon(t, called, "it is called")
		limitertest.Soon(t, limitertest.Go(func() { p.useAndClose(t.Context(), t) }), "another call waits for it")
	})
}

// An observer that panics fails no call, and the log says so.
func TestObserver_PanicFailsNoCall(t *testing.T) {
	t.Parallel()
	eachFunction(t, observed, func(t *testing.T, p *program) {
		p.do = func() { panic("observer") }
		p.work(t.Context())
		p.useAndClose(t.Context(), t)
		require.NoError(t, p.client.Close(t.Context()))
		assert.Eventually(t, func() bool { return slices.Contains(p.said.All(), "rratelimiter: an observer panicked") }, time.Minute, time.Millisecond)
	})
}

type programObserver struct{ *program }

func (p programObserver) Decided(context.Context, limit.Decided) { p.called("Decided") }
func (p programObserver) Landed(limit.Flight)                    { p.called("Landed") }
func (p programObserver) Leased(limit.Lease)                     { p.called("Leased") }
func (p programObserver) Settled(limit.Settled)                  { p.called("Settled") }
func (p programObserver) Happened(limit.Event)                   { p.called("Happened") }

func (p programObserver) Waiting(string, int) {
	select {
	case p.waits <- struct{}{}:
	default:
	}
	p.called("Waiting")
}

type programLog struct{ *program }

func (p programLog) Enabled(context.Context, slog.Level) bool { return true }
func (p programLog) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p programLog) WithGroup(string) slog.Handler            { return p }

func (p programLog) Handle(_ context.Context, r slog.Record) error {
	p.said.Add(r.Message)
	p.called("Logger")
	return nil
}

type programHook struct {
	redistest.Hook

	p *program
}

func (h programHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h.p.called("DialHook")
		return next(ctx, network, addr)
	}
}

var (
	remembering = []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}
	fromMemory  = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache()}
)

// Callers who come together for a new key get one handle, since a lease belongs to it.
func TestKeyed_MakesOneHandleForAll(t *testing.T) {
	t.Parallel()
	k := rratelimiter.New(answering{}).Keyed("users:", rratelimiter.PerMinute(100), fromMemory...)
	for i := range 100 {
		var got [4]*rratelimiter.RateLimiter
		limitertest.Together(len(got), func(c int) { got[c] = k.Limiter(strconv.Itoa(i)) })
		for _, l := range got[1:] {
			assert.Same(t, got[0], l)
		}
	}
}

func TestKeyed_KeepsHandlesOf100000Keys(t *testing.T) {
	t.Parallel()
	k := rratelimiter.New(answering{}).Keyed("users:", rratelimiter.PerMinute(100), fromMemory...)
	all := make([]*rratelimiter.RateLimiter, 100_000)
	for i := range all {
		all[i] = k.Limiter("user-" + strconv.Itoa(i))
	}
	for i, l := range all {
		require.Same(t, l, k.Limiter("user-"+strconv.Itoa(i)))
	}
}

// An observerTest is a test of a Client that a Recorder observes.
type observerTest func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder)

// seenDecision is the part of a decision that the tests compare.
type seenDecision struct {
	limiter, call string
	permits       int64
	outcome       limit.Outcome
	kind          limit.ErrorKind
	source        limit.Source
	waited        time.Duration
}

func decisions(r *limitertest.Recorder) []seenDecision {
	var all []seenDecision
	for _, d := range r.Decisions() {
		all = append(all, seenDecision{d.Limiter, d.Call, d.Permits, d.Outcome, d.Kind, d.Source, d.Waited})
	}
	return all
}

var observerTests = map[string]observerTest{
	"decisions": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder) {
		ctx, three := t.Context(), limitertest.Every(3, time.Minute)
		l, all := limitertest.ByDefault(client, "orders", three), limitertest.ByDefault(client, "{shop}a", three)
		both := limitertest.ByDefault(client, "{shop}b", three)
		_, _ = l.TryAcquire(ctx, 2, 0)
		_, _ = l.Take(ctx, 2)
		_ = l.Acquire(ctx, 3)
		_, _ = l.TryAcquire(ctx, 3, time.Second)
		_ = within(t, time.Second, l.Wait)
		_, _ = l.Take(ctx, 4)
		_, _ = l.Take(ctx, 1<<40)
		_, _ = l.Take(ctx, 0)
		_ = l.Acquire(limitertest.EndedContext(t), 1)
		_, _ = client.RateLimiter("none").Take(ctx, 1)
		_, _ = client.Keyed("users:", limitertest.Every(1, time.Minute)).Take(ctx, "ann", 1)
		_, _ = fixedwindow.New(client, fixedwindow.Config{Limit: 1, Window: time.Minute}, rratelimiter.WithName("hits")).Take(ctx, "ann", 1)
		_, _ = client.TryAcquireAll(ctx, 0, all.Claim(1), both.Claim(1))
		_, _ = client.TryAcquireAll(ctx, 0, all.Claim(1))
		seen := client.RateLimiter("seen", rratelimiter.WithDefault(limitertest.Every(1, time.Minute)), rratelimiter.WithRefusalCache())
		for range 3 {
			_, _ = seen.TryAcquire(ctx, 1, 0)
		}
		_, _ = seen.Take(ctx, 1)
		assert.Equal(t, []seenDecision{
			{"orders", "TryAcquire", 2, limit.Granted, "", limit.FromRedis, 0},
			{"orders", "Take", 2, limit.Refused, "", limit.FromRedis, 0},
			{"orders", "Acquire", 3, limit.Granted, "", limit.FromRedis, time.Minute},
			{"orders", "TryAcquire", 3, limit.Refused, "", limit.FromRedis, time.Second},
			{"orders", "Wait", 1, limit.Refused, "", limit.FromRedis, 0},
			{"orders", "Take", 4, limit.TooCostly, "", limit.FromRedis, 0},
			{"orders", "Take", 1 << 40, limit.TooCostly, "", "", 0},
			{"orders", "Take", 0, limit.Failed, limit.KindInvalid, "", 0},
			{"orders", "Acquire", 1, limit.Failed, limit.KindCanceled, "", 0},
			{"none", "Take", 1, limit.Failed, limit.KindNotInitialized, limit.FromRedis, 0},
			{"users:", "Take", 1, limit.Granted, "", limit.FromRedis, 0},
			{"hits", "Take", 1, limit.Granted, "", limit.FromRedis, 0},
			{"{shop}a", "TryAcquireAll", 1, limit.Granted, "", limit.FromRedis, 0},
			{"{shop}b", "TryAcquireAll", 1, limit.Granted, "", limit.FromRedis, 0},
			{"{shop}a", "TryAcquireAll", 1, limit.Granted, "", limit.FromRedis, 0},
			{"seen", "TryAcquire", 1, limit.Granted, "", limit.FromRedis, 0},
			{"seen", "TryAcquire", 1, limit.Refused, "", limit.FromRedis, 0},
			{"seen", "TryAcquire", 1, limit.Refused, "", limit.FromMemory, 0},
			{"seen", "Take", 1, limit.Refused, "", limit.FromMemory, 0},
		}, decisions(r))
	},
	"how many wait": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder) {
		l := limitertest.ByDefault(client, "orders", limitertest.Every(1, time.Minute))
		limitertest.MustAcquire(t, l, 1)
		var callers sync.WaitGroup
		for i := range 3 {
			callers.Go(func() { assert.NoError(t, l.Acquire(t.Context(), 1)) })
			synctest.Wait()
			assert.Equal(t, i+1, r.Callers("orders")[len(r.Callers("orders"))-1])
		}
		callers.Wait()
		synctest.Wait()
		counts := r.Callers("orders")
		assert.Equal(t, 0, counts[len(counts)-1])
		assert.Len(t, r.Callers("orders"), 6, "each change is reported: they are a minute apart")
	},
	"leases": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder) {
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(100_000, time.Minute)),
			rratelimiter.WithLease(rratelimiter.Lease{Permits: 100, Life: 3 * time.Second}))
		for range 1000 {
			limitertest.MustAcquire(t, l, 1)
			time.Sleep(10 * ms)
		}
		require.NoError(t, client.Close(t.Context()))
		synctest.Wait()
		underWay, used := 0, 0
		for _, lease := range r.Leases() {
			if lease.Ended {
				underWay, used = underWay-1, used-int(lease.Unused)
			} else {
				underWay, used = underWay+1, used+int(lease.Permits)
			}
		}
		assert.Positive(t, used)
		assert.Equal(t, []int{0, r.Sources()[limit.FromMemory]}, []int{underWay, used}, "taken and not unused is what memory granted")
	},
	// A limiter in shadow charges what it grants, reports what it would refuse, and lets all pass.
	"a limiter in shadow": func(t *testing.T, client *rratelimiter.Client, r *limitertest.Recorder) {
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(5, time.Hour)), rratelimiter.WithShadow())
		start := time.Now()
		limitertest.MustAcquire(t, l, 4)
		limitertest.MustAcquire(t, l, 2)
		require.NoError(t, l.Acquire(t.Context(), 3))
		require.NoError(t, limitertest.Granted(l.TryAcquire(t.Context(), 1000, time.Minute)))
		d := limitertest.Take(t, l, 2)
		assert.True(t, d.Granted)
		assert.Zero(t, d.RetryAfter)
		assert.Zero(t, time.Since(start))
		var outcomes []limit.Outcome
		for _, d := range r.Decisions() {
			assert.True(t, d.Shadow)
			outcomes = append(outcomes, d.Outcome)
		}
		assert.Equal(t, []limit.Outcome{limit.Granted, limit.Refused, limit.Refused, limit.TooCostly, limit.Refused}, outcomes)

		plain := client.RateLimiter("orders")
		assert.Equal(t, int64(1), limitertest.Available(t, plain), "what was granted is charged")
		require.NoError(t, l.Release(t.Context(), 1007))
		assert.Equal(t, int64(1), limitertest.Available(t, plain), "what was let through is not")
		taken, _, err := l.TakeUpTo(t.Context(), 4)
		require.NoError(t, err)
		assert.Equal(t, int64(4), taken, "one is charged")
		require.NoError(t, l.Release(t.Context(), 4))
		assert.Equal(t, int64(1), limitertest.Available(t, plain))
		assert.False(t, limitertest.TryAll(t, client, 2, l), "the Client's policy counts")
		assert.False(t, limitertest.TryAll(t, client, 2, l, limitertest.ByDefault(client, "{orders}b", limitertest.Every(9, time.Hour))))

		require.ErrorIs(t, limitertest.Second(l.TryAcquire(t.Context(), 0, 0)), rratelimiter.ErrInvalidPermits)
		require.ErrorIs(t, l.Acquire(limitertest.EndedContext(t), 1), context.Canceled)
		limitertest.MustAcquire(t, client.RateLimiter("none", rratelimiter.WithShadow()), 1)
	},
}

func TestObserver(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, observerTests, func(t *testing.T, test observerTest) {
		rdb, _ := redistest.Mini(t)
		r := &limitertest.Recorder{}
		test(t, limitertest.NewClient(t, rdb, rratelimiter.WithObserver(r)), r)
	})
}

func TestShadow_OfAClient(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		one := client.RateLimiter("{shop}a", rratelimiter.WithDefault(limitertest.Every(1, time.Hour)), rratelimiter.WithRefusalCache())
		two := limitertest.ByDefault(client, "{shop}b", limitertest.Every(9, time.Hour))
		for range 5 {
			require.NoError(t, limitertest.Granted(client.TryAcquireAll(t.Context(), time.Minute, one.Claim(1), two.Claim(1))))
			limitertest.MustAcquire(t, one, 1)
		}
		require.NoError(t, two.Release(t.Context(), 4), "they were let through")
		assert.Equal(t, int64(8), limitertest.Available(t, two), "the one that they were granted together")
		users := client.Keyed("users:", limitertest.Every(1, time.Hour))
		_, back, err := users.TakeReturnable(t.Context(), "ann", 7)
		require.NoError(t, err)
		require.NoError(t, back(t.Context()))
		limitertest.MustAcquire(t, users.Limiter("ann"), 1)
		require.NoError(t, users.Release(t.Context(), "ann", 1))
		assert.Equal(t, int64(1), limitertest.Available(t, users.Limiter("ann")), "those let through have gone back before")
	})
}

// A limiter in shadow refuses nothing because Redis hangs, however its client times attempts.
func TestShadowWhileRedisHangs(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]bool{"inline": true, "beside": false}, func(t *testing.T, inline bool) {
		p := redistest.StartProxy(t, redistest.Shared(t).Addr())
		rdb := p.Client(t, &redistest.Options{ContextTimeoutEnabled: inline})
		client := limitertest.NewClient(t, rdb, rratelimiter.WithShadow(), rratelimiter.WithCallTimeout(200*ms))
		window := fixedwindow.New(rratelimiter.New(rdb, rratelimiter.WithCallTimeout(200*ms)), fixedwindow.Config{Limit: 5, Window: time.Hour}, rratelimiter.WithShadow())
		p.OnCommand(func(redistest.Command) redistest.Action { return redistest.DropAnswer })
		name := redistest.Name(t)
		plain := limitertest.ByDefault(client, name, rratelimiter.PerHour(5))
		for range 3 {
			limitertest.MustAcquire(t, plain, 1)
			assert.True(t, limittest.Take(t, window, name, 1).Granted)
		}
		ctx := limitertest.Within(t, 20*ms)
		plain = limitertest.NewClient(t, rdb, rratelimiter.WithShadow()).RateLimiter(name)
		require.Error(t, limitertest.Second(plain.TryAcquire(ctx, 1, 0)), "no one waits for the answer any more")
	})
}

// Releases that wait for a doubtful call go as one call, and hold back the requests behind them.
func TestRelease_ThoseThatGatherGoAsOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldSceneOf(t, limitertest.Every(100, time.Hour), &redistest.Options{ReadTimeout: time.Minute, PoolSize: 256})
		limitertest.MustAcquire(t, s.RateLimiter, 50)
		letGo := s.Hold(t, lua.Acquire, 1)
		before := s.Sent.Scripts()
		held := s.StartTryAcquire(t.Context(), 1, 0)
		var all []*limitertest.Caller
		for i := range 6 {
			all = append(all, s.Go(func() (bool, error) { return true, s.Release(t.Context(), int64(1+i)) }))
		}
		behind := s.StartTryAcquire(t.Context(), 2, 0)
		assert.Equal(t, "waits", behind.Outcome())
		s.Until(500 * ms)
		assert.Equal(t, 1, s.Sent.Scripts()-before)
		letGo()
		assert.Equal(t, "true at 500ms", held.Outcome())
		limitertest.CheckOutcome(t, "true at 500ms", all...)
		assert.Equal(t, "true at 500ms", behind.Outcome())
		assert.Equal(t, 3, s.Sent.Scripts()-before, "the request, the releases and what was behind them")
		s.CheckInUse(t, 100, 50+1-21+2)
	})
}

// Requests behind a Release whose caller goes away need not wait for what that waited for.
func TestRelease_CancelledHoldsUpNoOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldSceneOf(t, limitertest.Every(100, time.Hour), &redistest.Options{ReadTimeout: time.Minute, PoolSize: 256})
		letGo := s.Hold(t, lua.Acquire, 1)
		held := s.StartTryAcquire(t.Context(), 1, 0)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) { return false, s.Release(ctx, 1) })
		behind := s.StartTryAcquire(t.Context(), 2, 0)
		other := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), limitertest.Every(100, time.Hour))
		both := s.Go(func() (bool, error) {
			return s.Client.TryAcquireAll(t.Context(), 0, limitertest.Claims(4, s.RateLimiter, other)...)
		})
		s.Until(100 * ms)
		limitertest.CheckOutcome(t, "waits", behind, both)
		leave()
		limitertest.CheckOutcome(t, "true at 100ms", behind, both)
		letGo()
		limitertest.CheckOutcome(t, "true at 100ms", held)
		s.CheckInUse(t, 100, 1+2+4)
	})
}
