package concurrency_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// measure runs f in a benchmark of its own that reports the median, too.
func measure(b *testing.B, name string, f func() error) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	})
}

var granting, refusing = rratelimiter.PerSecond(1_000_000), rratelimiter.PerHour(1)

// benchmarked returns a limiter that has been asked once.
func benchmarked(
	b *testing.B, cfg rratelimiter.Config, client []rratelimiter.Option, opts ...rratelimiter.LimiterOption,
) *rratelimiter.RateLimiter {
	b.Helper()
	c := limitertest.NewClient(b, redistest.Redis(b), client...)
	l := c.RateLimiter(redistest.Name(b), append(opts, rratelimiter.WithDefault(cfg))...)
	limitertest.MustAcquire(b, l, 1)
	return l
}

// BenchmarkTryAcquire measures one caller, granted and refused, also of a Client with a name,
// against the floor: a script of the same arguments that does nothing.
//
//	go test -run '^$' -bench TryAcquire -count 5 ./tests/concurrency
func BenchmarkTryAcquire(b *testing.B) {
	rdb, ctx := redistest.Redis(b), context.Background()
	floor, name := redis.NewScript("return 1"), redistest.Name(b)
	require.NoError(b, floor.Load(ctx, rdb).Err())
	keys := []string{name, name + ":1", name + ":2", name + ":3", name + ":4"}
	measure(b, "floor", func() error {
		return floor.EvalSha(ctx, rdb, keys, "012345678901234567890", "1").Err()
	})
	named := rratelimiter.WithClientName("orders-7f9c")
	for name, l := range map[string]*rratelimiter.RateLimiter{
		"granted": benchmarked(b, granting, nil), "refused": benchmarked(b, refusing, nil),
		"granted/named": benchmarked(b, granting, []rratelimiter.Option{named}),
	} {
		measure(b, name, func() error { return limitertest.Second(l.TryAcquire(ctx, 1, 0)) })
		measure(b, name+"/cancellable", func() error { return limitertest.Second(l.TryAcquire(b.Context(), 1, 0)) })
	}
}

// BenchmarkTogether measures callers that come together, those of one limiter that ask
// Redis and those that are answered from memory.
//
//	go test -run '^$' -bench Together -cpu 2 ./tests/concurrency
func BenchmarkTogether(b *testing.B) {
	for name, bench := range map[string]struct {
		cfg         rratelimiter.Config
		opts        []rratelimiter.LimiterOption
		parallelism int
		want        bool
	}{
		"TryAcquire": {granting, nil, 128, true},
		"Lease":      {limitertest.Every(1<<40, time.Second), []rratelimiter.LimiterOption{limitertest.Ahead(0)}, 4, true},
		"Refusal":    {refusing, []rratelimiter.LimiterOption{rratelimiter.WithRefusalCache()}, 4, false},
	} {
		b.Run(name, func(b *testing.B) {
			l, ctx := benchmarked(b, bench.cfg, nil, bench.opts...), b.Context()
			b.SetParallelism(bench.parallelism)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if ok, err := l.TryAcquire(ctx, 1, 0); ok != bench.want || err != nil {
						b.Error(ok, err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// BenchmarkObserver measures what an observer costs the cheapest calls, those from memory.
func BenchmarkObserver(b *testing.B) {
	for name, opts := range map[string][]rratelimiter.Option{
		"absent":  nil,
		"present": {rratelimiter.WithObserver(limit.NoObserver{})},
	} {
		b.Run(name, func(b *testing.B) {
			l, ctx := benchmarked(b, refusing, opts, rratelimiter.WithRefusalCache()), b.Context()
			limitertest.MustRefuse(b, l, 1)
			b.ReportAllocs()
			for b.Loop() {
				if granted, err := l.TryAcquire(ctx, 1, 0); granted || err != nil {
					b.Fatal(granted, err)
				}
			}
		})
	}
}

// BenchmarkCancel measures what it costs to cancel a caller if as many as there are iterations
// wait for one limiter and are cancelled at once: the same for few as for many.
//
//	go test -run '^$' -bench Cancel -benchtime 20000x ./tests/concurrency
func BenchmarkCancel(b *testing.B) {
	for _, bench := range []struct {
		name string
		call string      // one of limitertest.Operations; "" for TryAcquireAll
		held *lua.Script // whose answers are on their way while they come and go; nil for none
		by   string      // what calls it
	}{
		{"in line", "Acquire", nil, ""},
		{"one try", "TryAcquire", lua.Acquire, "TryAcquire"},
		{"release", "Release", lua.Acquire, "TryAcquire"},
		{"several limits", "", nil, ""},
		{"several limits, behind a release", "", lua.Release, "Release"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			_, m := redistest.Mini(b)
			proxy := redistest.MiniProxy(b, m)
			rdb := proxy.Client(b, &redis.Options{ReadTimeout: time.Hour})
			client := limitertest.NewClient(b, rdb, rratelimiter.WithCallTimeout(time.Minute))
			f := limitertest.NewFamilyOf(b, client, rratelimiter.PerHour(1), rratelimiter.PerHour(1))
			require.True(b, f.Try(b, 1))
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var all, first sync.WaitGroup
			letGo := make(chan struct{})
			sent := limitertest.CountCommands(rdb)
			there := func() bool { return limitertest.Waiting(client, f.Limiters[0].Name()) == b.N || sent.Scripts() >= b.N }
			if bench.held != nil {
				proxy.OnCommand(with(bench.held.SHA, redistest.Pass.When(letGo)))
				first.Go(func() { _ = limitertest.Operations[bench.by](b.Context(), f.Limiters[0]) })
				require.Eventually(b, func() bool { return sent.Scripts() == 1 }, time.Minute, time.Millisecond)
				there = func() bool { return engine.Of(client).Active() > b.N }
			}
			call := func() error { return limitertest.Second(client.TryAcquireAll(ctx, 1, time.Hour, f.Limiters...)) }
			if one := limitertest.Operations[bench.call]; one != nil {
				call = func() error { return one(ctx, f.Limiters[0]) }
			}
			for range b.N {
				all.Go(func() { assert.Error(b, call(), "a caller was not cancelled") })
			}
			require.Eventually(b, there, 10*time.Minute, time.Millisecond)
			b.ResetTimer()
			cancel()
			all.Wait()
			b.StopTimer()
			close(letGo)
			first.Wait()
		})
	}
}

// A pile is a million members of some layouts: one half granted 3 to 2.5 hours ago, the other 1 to
// 0.5 hours ago or dated 1 to 1.5 hours ahead. So the interval says how many have run out.
type pile struct {
	name    string
	layouts []codec.Layout
	ahead   bool
}

const (
	pileSize = 1_000_000 // members that have piled up, of one permit each

	allOut   = 15 * time.Minute
	halfOut  = 2 * time.Hour
	allInUse = 4 * time.Hour
)

var (
	pileD2    = pile{name: "D2", layouts: []codec.Layout{codec.LayoutD2}}
	pileAhead = pile{name: "ahead", layouts: []codec.Layout{codec.LayoutD2}, ahead: true}
	pileD1    = pile{name: "D1", layouts: []codec.Layout{codec.LayoutD1}}
	pileC     = pile{name: "C", layouts: []codec.Layout{codec.LayoutC}}
	pileB     = pile{name: "B", layouts: []codec.Layout{codec.LayoutB}}
	pileMixed = pile{name: "mixed", layouts: []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2}}

	// Beside a pile in use as much is free.
	spare = stallState{rate: 2 * pileSize, value: pileSize}

	// The lengths of the layouts' ids.
	idSizes = map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
)

// add writes the pile to a key.
func (p pile) add(b *testing.B, rdb *redis.Client, key string) {
	b.Helper()
	const half, page = pileSize / 2, 10_000
	now := limitertest.ServerNow(b, rdb)
	begin := []int64{now - (3 * time.Hour).Milliseconds(), now - time.Hour.Milliseconds()}
	if p.ahead {
		begin[1] = now + time.Hour.Milliseconds()
	}
	for done := 0; done < pileSize; done += page {
		rows := make([]redis.Z, page)
		for i := range rows {
			n := done + i
			// Scattered, as random ids are.
			var id [16]byte
			binary.LittleEndian.PutUint32(id[:], uint32(n)*2654435761)
			layout := p.layouts[n%len(p.layouts)]
			member, err := codec.Append(nil, layout, id[:idSizes[layout]], 1)
			require.NoError(b, err)
			score := begin[n/half] + int64(n%half)*(30*time.Minute).Milliseconds()/half
			rows[i] = redis.Z{Score: float64(score), Member: member}
		}
		require.NoError(b, rdb.ZAdd(b.Context(), key, rows...).Err())
	}
	require.EqualValues(b, pileSize, rdb.ZCard(b.Context(), key).Val())
}

// stall is a limiter on a pile.
type stall struct {
	*rratelimiter.RateLimiter

	client *rratelimiter.Client
	rdb    *redis.Client
	keys   redisson.Keys // Value and Permits are those in use
	rate   int64
}

// An operation on a pile; what it returns is checked.
type operation func(ctx context.Context, s stall) (any, error)

// stallCase is an operation on a pile and the state around it.
type stallCase struct {
	name     string
	pile     pile
	interval time.Duration
	state    stallState
	use      operation
	want     any
}

// stallState is what is beside the pile; the zero value is as it should be.
type stallState struct {
	rate       int64 // 0: as many as there are members
	value      int64
	noValue    bool
	perClient  bool
	noConfig   bool
	shares     string // the oldest Redisson that shares the limiter
	keepAlive  time.Duration
	noScripts  bool // the server has not seen them yet
	alsoTarget bool // there is as large a limiter by the name that Rename gives
}

// free says what AvailablePermits does, which is what a plain count says.
func free(ctx context.Context, s stall) (any, error) { return s.AvailablePermits(ctx) }

// calling makes some of [limitertest.Operations].
func calling(names ...string) operation {
	return func(ctx context.Context, s stall) (_ any, err error) {
		for _, name := range names {
			err = errors.Join(err, limitertest.Operations[name](ctx, s.RateLimiter))
		}
		return nil, err
	}
}

func migrate(ctx context.Context, s stall) (any, error) { return s.client.Migrate(ctx, s.Name()) }

func acquiring(permits int64) operation {
	return func(ctx context.Context, s stall) (any, error) { return s.TryAcquire(ctx, permits, 0) }
}

func taking(permits int64) operation {
	return func(ctx context.Context, s stall) (any, error) {
		d, err := s.Take(ctx, permits)
		return d.Granted, err
	}
}

func releasing(permits int64) operation {
	return func(ctx context.Context, s stall) (any, error) { return nil, s.Release(ctx, permits) }
}

// setting sets the rate that the limiter has, or that and so much more.
func setting(kind rratelimiter.RateType, more int64, interval time.Duration, opts ...rratelimiter.RateOption) operation {
	return func(ctx context.Context, s stall) (any, error) {
		return nil, s.SetRate(ctx, rratelimiter.Config{Type: kind, Rate: s.rate + more, Interval: interval}, opts...)
	}
}

func keepingState(interval time.Duration) operation {
	return setting(rratelimiter.Overall, 70, interval, rratelimiter.KeepState())
}

// running calls a script until it is done; its token becomes the argument at tokenAt.
func running(script *lua.Script, tokenAt int, args ...any) operation {
	return func(ctx context.Context, s stall) (any, error) {
		args := slices.Clone(args)
		for {
			reply, err := s.rdb.EvalSha(ctx, script.SHA, s.keys.List(), args...).Result()
			values, _ := reply.([]any)
			if err != nil || len(values) < 2 || values[0] != "again" {
				return nil, err
			}
			args[tokenAt] = values[1]
		}
	}
}

// batching is one call for 4096 callers of 128 sizes.
func batching(b *testing.B, smallest int, letters, age string) operation {
	b.Helper()
	sum := 32 * 128 * (2*smallest + 127) / 2
	args := []any{limitertest.NewMember(b, codec.LayoutD2, uint32(sum)), sum, "", letters, age, "", 0}
	for i := range 128 {
		args = append(args, smallest+i, 32)
	}
	return running(lua.Acquire, 5, args...)
}

// pileCases are what calls do on piles that have run out to some part.
func pileCases() (cases []stallCase) {
	const half = pileSize / 2
	lost, own, keepAlive := stallState{noValue: true}, stallState{perClient: true}, stallState{keepAlive: 5 * time.Hour}
	for _, c := range []struct {
		name     string
		pile     pile
		interval time.Duration
		free     int64
	}{
		{"all out", pileD2, allOut, pileSize},
		{"half out", pileD2, halfOut, half},
		{"in use", pileD2, allInUse, 0},
		{"half out, half ahead", pileAhead, halfOut, half},
		{"half in use, half ahead", pileAhead, allInUse, 0},
	} {
		some, all := c.free > 0, c.free == pileSize
		cases = append(cases,
			stallCase{"AvailablePermits/" + c.name, c.pile, c.interval, stallState{}, free, c.free},
			stallCase{"AvailablePermits no value/" + c.name, c.pile, c.interval, lost, free, c.free},
			stallCase{"TryAcquire 1/" + c.name, c.pile, c.interval, stallState{}, acquiring(1), some},
			stallCase{"TryAcquire half/" + c.name, c.pile, c.interval, stallState{}, acquiring(half), some},
			stallCase{"Take 1/" + c.name, c.pile, c.interval, stallState{}, taking(1), some},
			stallCase{"Take all/" + c.name, c.pile, c.interval, stallState{}, taking(pileSize), all},
			stallCase{"Release 1/" + c.name, c.pile, c.interval, stallState{}, releasing(1), nil},
			stallCase{"Release all/" + c.name, c.pile, c.interval, stallState{}, releasing(pileSize), nil},
			stallCase{"KeepState/" + c.name, c.pile, c.interval, stallState{}, keepingState(c.interval), nil},
			stallCase{"KeepState no value/" + c.name, c.pile, c.interval, lost, keepingState(c.interval), nil},
			stallCase{"Migrate none/" + c.name, c.pile, c.interval, stallState{}, migrate, int64(0)},
		)
		if c.pile.ahead {
			continue
		}
		window, noWindow := stallState{shares: "3.12.3", value: 1}, stallState{shares: "3.12.3", noValue: true}
		cases = append(cases,
			stallCase{"own/AvailablePermits/" + c.name, pileD2, c.interval, own, free, c.free},
			stallCase{"own/TryAcquire 1/" + c.name, pileD2, c.interval, own, acquiring(1), some},
			stallCase{"own/Release all/" + c.name, pileD2, c.interval, own, releasing(pileSize), nil},
			stallCase{"keep-alive/TryAcquire 1/" + c.name, pileD2, c.interval, keepAlive, acquiring(1), some},
			stallCase{"window/TryAcquire 1/" + c.name, pileD2, c.interval, window, acquiring(1), true},
			stallCase{"window/AvailablePermits/" + c.name, pileD2, c.interval, noWindow, calling("AvailablePermits"), nil},
			stallCase{"value low/AvailablePermits/" + c.name, pileD2, c.interval, stallState{rate: 2 * pileSize, value: 5}, calling("AvailablePermits"), nil},
			stallCase{"value high/AvailablePermits/" + c.name, pileD2, c.interval, stallState{value: half}, calling("AvailablePermits"), nil},
		)
	}
	return cases
}

// oldCases are what calls do on piles of older layouts.
func oldCases(b *testing.B) (cases []stallCase) {
	b.Helper()
	for _, c := range []struct {
		name    string
		pile    pile
		shares  string
		migrate int64
	}{
		{"B", pileB, "3.15.5", pileSize}, {"C", pileC, "3.16.8", pileSize}, {"D1", pileD1, "3.20.1", pileSize},
		{"D2", pileD2, "3.27.2", 0}, {"mixed", pileMixed, "", pileSize * 3 / 4},
	} {
		old, lost := stallState{shares: c.shares}, stallState{shares: c.shares, noValue: true}
		cases = append(cases,
			stallCase{"old/AvailablePermits half out/" + c.name, c.pile, halfOut, old, free, int64(pileSize / 2)},
			stallCase{"old/AvailablePermits all out/" + c.name, c.pile, allOut, old, free, int64(pileSize)},
			stallCase{"old/AvailablePermits no value/" + c.name, c.pile, halfOut, lost, free, int64(pileSize / 2)},
			stallCase{"old/TryAcquire 1 half out/" + c.name, c.pile, halfOut, old, acquiring(1), true},
			stallCase{"old/Release all/" + c.name, c.pile, allInUse, old, releasing(pileSize), nil},
			stallCase{"old/Migrate in use/" + c.name, c.pile, allInUse, stallState{}, migrate, c.migrate},
		)
		if c.pile.name == "mixed" {
			continue
		}
		// 128 requests, each with a member of its own; then a repeat of them.
		many := func(age string) operation {
			member, err := codec.Append(nil, c.pile.layouts[0], make([]byte, idSizes[c.pile.layouts[0]]), 128)
			require.NoError(b, err)
			return running(lua.Acquire, 5, member, 128, "", "s", age, "", 0, 1, 128)
		}
		cases = append(cases,
			stallCase{"old/128 requests half out/" + c.name, c.pile, halfOut, old, many(""), nil},
			stallCase{"old/128 requests in use/" + c.name, c.pile, allInUse, spare, many(""), nil},
			stallCase{"old/128 requests, repeated/" + c.name, c.pile, allInUse, spare, many("18000000"), nil},
		)
	}
	return cases
}

// singleCases are one of a kind.
func singleCases(b *testing.B) []stallCase {
	b.Helper()
	perClient, keep := rratelimiter.PerClient, rratelimiter.KeepState()
	member := limitertest.NewMember(b, codec.LayoutD2, 1)
	ask := running(lua.Acquire, 5, member, 1, "", "", "", "")
	repeat := running(lua.Acquire, 5, member, 1, "", "", "18000000", "")
	giveBack := running(lua.GiveBack, 4, member, 1, "", "18000000", "", "0123456789abcdef")
	lost := stallState{noConfig: true, noValue: true}
	return []stallCase{
		{"own/KeepState/half out", pileD2, halfOut, stallState{perClient: true}, setting(perClient, 70, halfOut, keep), nil},
		{"own/Migrate/C", pileC, allInUse, stallState{perClient: true}, migrate, int64(pileSize)},
		{"KeepState/shorter: all out", pileD2, allInUse, stallState{}, keepingState(allOut), nil},
		{"KeepState/shorter: half out", pileD2, allInUse, stallState{}, keepingState(halfOut), nil},
		{"SetRate/in use", pileD2, allInUse, stallState{}, setting(rratelimiter.Overall, 0, allInUse), nil},
		{"SetRate/another type", pileD2, allInUse, stallState{}, setting(perClient, 0, allInUse, keep), nil},
		{"TrySetRate/lost config", pileD2, allInUse, stallState{noConfig: true}, func(ctx context.Context, s stall) (any, error) {
			return nil, limitertest.Second(s.TrySetRate(ctx, limitertest.Every(s.rate, allInUse)))
		}, nil},
		{"WithDefault/lost config, half out", pileD2, halfOut, lost, func(ctx context.Context, s stall) (any, error) {
			return nil, limitertest.Second(byDefault(s.client, s.Name(), limitertest.Every(s.rate, halfOut)).TryAcquire(ctx, 1, 0))
		}, nil},
		{"Delete/in use", pileD2, allInUse, stallState{}, calling("Delete"), nil},
		{"Rename/over another", pileD2, allInUse, stallState{alsoTarget: true}, calling("Rename"), nil},
		{"Expire, TTL and others/in use", pileD2, allInUse, stallState{}, calling("Expire", "TTL", "Exists", "Config", "ClearExpire"), nil},
		{"ExpireAt/past", pileD2, allInUse, stallState{}, func(ctx context.Context, s stall) (any, error) {
			return nil, limitertest.Second(s.ExpireAt(ctx, time.Now().Add(-time.Hour)))
		}, nil},
		{"first call/half out", pileD2, halfOut, stallState{noScripts: true}, acquiring(1), true},
		{"4096 requests/half out", pileD2, halfOut, stallState{}, batching(b, 1, "", ""), nil},
		{"4096 requests/half out, with figures", pileD2, halfOut, stallState{}, batching(b, 1, "f", ""), nil},
		{"4096 requests/in use", pileD2, allInUse, stallState{}, batching(b, 1, "fa", ""), nil},
		{"4096 requests/in use, large", pileD2, allInUse, stallState{}, batching(b, 300, "", ""), nil},
		{"4096 requests/in use, repeated", pileD2, allInUse, stallState{}, batching(b, 1, "fa", "18000000"), nil},
		{"repeat/not found among a million", pileD2, allInUse, spare, repeat, nil},
		{"give back/not found among a million", pileD2, allInUse, spare, giveBack, nil},
		{"give back/found", pileD2, allInUse, spare, func(ctx context.Context, s stall) (any, error) {
			_, err := ask(ctx, s)
			_, backErr := giveBack(ctx, s)
			return s.rdb.ZCard(ctx, s.keys.Permits).Val(), errors.Join(err, backErr)
		}, int64(pileSize)},
	}
}

// BenchmarkStall measures how long the longest script call of each operation holds up a server
// on which a million members have piled up:
//
//	go test -run '^$' -bench Stall -benchtime 5x -timeout 60m ./tests/concurrency
//
// ms-median and ms-least are of the longest call of each run. Since other programs lengthen calls
// at random, ms-work is the longest call, each by its shortest time in any run.
// RRL_REDIS_SERVER names the server.
func BenchmarkStall(b *testing.B) {
	// Logging takes time itself, and a script's commands are logged too: log from 25 us.
	server := redistest.StartServer(b, redistest.Default,
		"--slowlog-log-slower-than", "25", "--slowlog-max-len", "1000000")
	rdb := server.Client(b, &redis.Options{ReadTimeout: time.Minute})
	loadScripts(b, rdb)
	last := ""
	cases := slices.Concat(pileCases(), oldCases(b), singleCases(b))
	slices.SortStableFunc(cases, func(x, y stallCase) int { return strings.Compare(x.pile.name, y.pile.name) })
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			if last != c.pile.name {
				require.NoError(b, rdb.FlushAll(b.Context()).Err())
				c.pile.add(b, rdb, "pile")
				last = c.pile.name
			}
			var runs [][]time.Duration
			var longest []time.Duration
			for b.Loop() {
				s := c.prepare(b, rdb)
				got, err := c.use(b.Context(), s)
				require.NoError(b, err)
				require.Equal(b, c.want, got)
				run := scriptTimes(b, rdb)
				runs = append(runs, run)
				longest = append(longest, slices.Max(run))
			}
			slices.Sort(longest)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ms(longest[len(longest)/2]), "ms-median")
			b.ReportMetric(ms(longest[0]), "ms-least")
			b.ReportMetric(ms(work(runs)), "ms-work")
			b.ReportMetric(float64(len(runs[0])), "calls")
		})
	}
}

// work returns the longest of the calls, each by its shortest time in any run.
func work(runs [][]time.Duration) time.Duration {
	shortest := slices.Clone(runs[0])
	for _, run := range runs[1:] {
		for i := range min(len(run), len(shortest)) {
			shortest[i] = min(shortest[i], run[i])
		}
	}
	return slices.Max(shortest)
}

// prepare copies the pile, puts the state beside it, and resets the slow log once all is freed.
func (c stallCase) prepare(b *testing.B, rdb *redis.Client) stall {
	b.Helper()
	ctx := b.Context()
	s := stall{rdb: rdb, rate: cmp.Or(c.state.rate, pileSize)}
	shares := rratelimiter.WithRedissonVersion(cmp.Or(c.state.shares, "4.7.0"))
	s.client = limitertest.NewClient(b, rdb, rratelimiter.WithClientID("the-client"), shares)
	s.RateLimiter = s.client.RateLimiter("stall")
	s.keys = redisson.KeysOf(s.Name(), "the-client")
	cfg := rratelimiter.Config{Rate: s.rate, Interval: c.interval, KeepAlive: c.state.keepAlive}
	value, permits := s.keys.Value, s.keys.Permits
	if c.state.perClient {
		cfg.Type = rratelimiter.PerClient
		value, permits = s.keys.ClientValue, s.keys.ClientPermits
	}
	target := redisson.KeysOf(limitertest.Besides("stall"), "the-client")
	// What the run before has left.
	require.NoError(b, rdb.Unlink(ctx, append(s.keys.List(), target.List()...)...).Err())
	if !c.state.noConfig {
		limitertest.MustTrySetRate(b, s.RateLimiter, cfg)
	}
	require.NoError(b, rdb.Copy(ctx, "pile", permits, 0, true).Err())
	if c.state.alsoTarget {
		require.NoError(b, rdb.Copy(ctx, "pile", target.Permits, 0, true).Err())
	}
	if !c.state.noValue {
		require.NoError(b, rdb.Set(ctx, value, c.state.value, 0).Err())
	}
	freed := func() bool { return rdb.InfoMap(ctx, "memory").Item("Memory", "lazyfree_pending_objects") == "0" }
	require.Eventually(b, freed, time.Minute, 10*time.Millisecond)
	if c.state.noScripts {
		require.NoError(b, rdb.ScriptFlush(ctx).Err())
		b.Cleanup(func() { loadScripts(b, rdb) })
	}
	require.NoError(b, rdb.Do(ctx, "SLOWLOG", "RESET").Err())
	s.keys.Value, s.keys.Permits = value, permits
	return s
}

func loadScripts(b *testing.B, rdb *redis.Client) {
	b.Helper()
	for _, s := range lua.All() {
		require.NoError(b, rdb.ScriptLoad(context.Background(), s.Source).Err())
	}
}

// scriptTimes returns how long each script call took since the slow log was reset, in order.
func scriptTimes(b *testing.B, rdb *redis.Client) []time.Duration {
	b.Helper()
	logged, err := rdb.SlowLogGet(b.Context(), 1_000_000).Result()
	require.NoError(b, err)
	slices.SortFunc(logged, func(x, y redis.SlowLog) int { return int(x.ID - y.ID) })
	var times []time.Duration
	for _, entry := range logged {
		if name := entry.Args[0]; name == "evalsha" || name == "eval" {
			times = append(times, entry.Duration)
		}
	}
	if len(times) == 0 {
		times = []time.Duration{0} // all were faster than what is logged
	}
	return times
}
