package concurrency_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
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

// A program hands all the functions in that a Client and the limiters of keys take. The first call of the one
// called only does something.
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
	rdb.AddHook(programHook{p})
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

// take asks each limiter for a permit of a key.
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

// eachFunction runs test with a program for each of those functions.
func eachFunction(t *testing.T, names []string, test func(t *testing.T, p *program)) {
	t.Helper()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newProgram(t, name))
		})
	}
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

// A function may use the limiters that call it, and close the Client.
func TestFunctionOfTheProgram_MayCallTheClient(t *testing.T) {
	t.Parallel()
	eachFunction(t, functions, func(t *testing.T, p *program) {
		returned := make(chan struct{})
		p.do = func() {
			p.useAndClose(context.WithoutCancel(t.Context()), t)
			close(returned)
		}
		working := limitertest.Go(func() { p.work(t.Context()) })
		limitertest.Soon(t, returned, "it can't use the Client")
		p.ends(t, working)
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

type programHook struct{ p *program }

func (h programHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h.p.called("DialHook")
		return next(ctx, network, addr)
	}
}

func (h programHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.p.called("ProcessHook")
		return next(ctx, cmd)
	}
}

func (h programHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

var (
	remembering = []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}
	fromMemory  = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache()}
)

// A handle knows its lease and its last refusal, so each of a hundred thousand keys keeps its own.
func TestKeyed_KeepsHandlesInUse(t *testing.T) {
	t.Parallel()
	k := rratelimiter.New(answering{}).Keyed("users:", rratelimiter.PerMinute(100), fromMemory...)
	const keys = 100_000
	all := make([]*rratelimiter.RateLimiter, keys)
	for round := range 3 {
		another := 0
		for i := range all {
			l := k.Limiter("user-" + strconv.Itoa(i))
			if all[i] != l {
				another++
			}
			all[i] = l
		}
		assert.Equal(t, round == 0, another > 0, "%d are new", another)
	}
}

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

// A new key takes its handle, its name, and its keys in Redis as texts and as words of a command.
//
//nolint:paralleltest // others' allocations would count
func TestKeyed_AllocationsOfANewKey(t *testing.T) {
	k := rratelimiter.New(answering{}, limitertest.Patient()).Keyed("users:", rratelimiter.PerMinute(100))
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = "user-" + strconv.Itoa(i)
	}
	for _, key := range keys[:500] {
		k.Limiter(key) // the tables grow meanwhile
	}
	i := 500
	assert.LessOrEqual(t, testing.AllocsPerRun(400, func() {
		k.Limiter(keys[i])
		i++
	}), 8.0)
	assert.Zero(t, testing.AllocsPerRun(100, func() { k.Limiter(keys[0]) }))
}

// BenchmarkTryAcquire measures what options and a timeout cost 256 callers that are granted their permits at once.
//
//	go test -run '^$' -bench TryAcquire -cpu 1,2 ./tests/concurrency
func BenchmarkTryAcquire(b *testing.B) {
	rdb := redistest.StartRedis(b).Client(b, nil)
	const plenty = 1 << 40
	for _, of := range []struct {
		name    string
		timeout time.Duration
		keys    int
		opts    []rratelimiter.LimiterOption
	}{
		{"plain", 0, 1, nil},
		{"timeout", time.Second, 1, nil},
		{"open", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailOpen())}},
		{"local", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(0.5))}},
		{"leased", 0, 1, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
		{"two leased", 0, 2, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
		{"sixteen leased", 0, 16, []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{})}},
	} {
		b.Run(of.name, func(b *testing.B) {
			client := limitertest.NewClient(b, rdb)
			limiters := make([]*rratelimiter.RateLimiter, of.keys)
			for i := range limiters {
				opts := append([]rratelimiter.LimiterOption{rratelimiter.WithDefault(rratelimiter.PerHour(plenty))}, of.opts...)
				limiters[i] = client.RateLimiter(fmt.Sprint(redistest.Name(b), i), opts...)
				limitertest.MustAcquire(b, limiters[i], 1)
			}
			var callers atomic.Int64
			b.SetParallelism(128)
			b.ReportAllocs()
			b.RunParallel(func(next *testing.PB) {
				l := limiters[int(callers.Add(1))%of.keys]
				for next.Next() {
					if ok, err := l.TryAcquire(b.Context(), 1, of.timeout); err != nil || !ok {
						b.Error(ok, err)
						return
					}
				}
			})
			require.NoError(b, client.Close(b.Context()))
		})
	}
}
