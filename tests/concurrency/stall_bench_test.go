package concurrency_test

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// pileSize is how many members have piled up, of one permit each.
const pileSize = 1_000_000

// A pile is a million members of some layouts. One half was granted 3 to 2.5
// hours ago and the other an hour to half an hour ago, or is dated 1 to 1.5
// hours ahead. So the interval says how many have run out.
type pile struct {
	name    string
	layouts []codec.Layout
	ahead   bool
}

const (
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
)

// add writes the pile to a key.
func (p pile) add(b *testing.B, rdb *redis.Client, key string) {
	b.Helper()
	const half, page = pileSize / 2, 1000
	sizes := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
	first := limitertest.ServerNow(b, rdb) - (3 * time.Hour).Milliseconds()
	second := first + (2 * time.Hour).Milliseconds()
	if p.ahead {
		second += (2 * time.Hour).Milliseconds()
	}
	for done := 0; done < pileSize; {
		pipe := rdb.Pipeline()
		for range 10 {
			args := []any{"ZADD", key}
			for range page {
				// Scattered, as random ids are.
				var id [16]byte
				binary.LittleEndian.PutUint32(id[:], uint32(done)*2654435761)
				layout := p.layouts[done%len(p.layouts)]
				member, err := codec.Append(nil, layout, id[:sizes[layout]], 1)
				require.NoError(b, err)
				begin := first
				if done >= half {
					begin = second
				}
				score := begin + int64(done%half)*(30*time.Minute).Milliseconds()/half
				args = append(args, score, member)
				done++
			}
			pipe.Do(b.Context(), args...)
		}
		_, err := pipe.Exec(b.Context())
		require.NoError(b, err)
	}
	require.EqualValues(b, pileSize, rdb.ZCard(b.Context(), key).Val())
}

// stall is a limiter on a pile.
type stall struct {
	*rratelimiter.RateLimiter

	client *rratelimiter.Client
	rdb    *redis.Client
	server *redistest.Server
	keys   redisson.Keys // Value and Permits are those in use
	rate   int64
}

// stallCase is an operation on a pile and the state around it.
type stallCase struct {
	name     string
	pile     pile
	interval time.Duration
	state    stallState
	use      func(b *testing.B, s stall)
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
	alsoTarget bool // there is as large a limiter under the name "target"
}

func stallCases() []stallCase {
	const half = pileSize / 2
	spare := stallState{rate: 2 * pileSize, value: pileSize}
	lost, low, high := stallState{noValue: true}, stallState{rate: 2 * pileSize, value: 5}, stallState{value: half}
	keepAlive, own := stallState{keepAlive: 5 * time.Hour}, stallState{perClient: true}
	var cases []stallCase
	add := func(name string, p pile, interval time.Duration, state stallState, use func(b *testing.B, s stall)) {
		cases = append(cases, stallCase{name, p, interval, state, use})
	}
	// free is for AvailablePermits: what it says is what a plain count says.
	free := func(want int64) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			require.Equal(b, want, limitertest.Available(b, s.RateLimiter))
		}
	}
	acquire := func(permits int64, granted bool) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			require.Equal(b, granted, limitertest.Try(b, s.RateLimiter, permits))
		}
	}
	take := func(permits int64, granted bool) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			d, err := s.Take(b.Context(), permits)
			require.NoError(b, err)
			require.Equal(b, granted, d.Granted)
		}
	}
	release := func(permits int64) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			require.NoError(b, s.Release(b.Context(), permits))
		}
	}
	keepState := func(interval time.Duration) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			require.NoError(b, s.SetRate(b.Context(), limitertest.Every(s.rate+70, interval), rratelimiter.KeepState()))
		}
	}
	migrate := func(want int64) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			written, err := s.client.Migrate(b.Context(), s.Name())
			require.NoError(b, err)
			require.Equal(b, want, written)
		}
	}
	ok := func(op func(ctx context.Context, s stall) error) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			require.NoError(b, op(b.Context(), s))
		}
	}

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
		add("AvailablePermits/"+c.name, c.pile, c.interval, stallState{}, free(c.free))
		add("TryAcquire 1/"+c.name, c.pile, c.interval, stallState{}, acquire(1, c.free > 0))
		add("TryAcquire half/"+c.name, c.pile, c.interval, stallState{}, acquire(half, c.free > 0))
		add("Take 1/"+c.name, c.pile, c.interval, stallState{}, take(1, c.free > 0))
		add("Take all/"+c.name, c.pile, c.interval, stallState{}, take(pileSize, c.free == pileSize))
		add("Release 1/"+c.name, c.pile, c.interval, stallState{}, release(1))
		add("Release all/"+c.name, c.pile, c.interval, stallState{}, release(pileSize))
		add("KeepState/"+c.name, c.pile, c.interval, stallState{}, keepState(c.interval))
		add("KeepState no value/"+c.name, c.pile, c.interval, lost, keepState(c.interval))
		add("AvailablePermits no value/"+c.name, c.pile, c.interval, lost, free(c.free))
		add("Migrate none/"+c.name, c.pile, c.interval, stallState{}, migrate(0))
	}
	for _, c := range []struct {
		name    string
		pile    pile
		shares  string
		migrate int64
	}{
		{"B", pileB, "3.15.5", pileSize}, {"C", pileC, "3.16.8", pileSize}, {"D1", pileD1, "3.20.1", pileSize},
		{"D2", pileD2, "3.27.2", 0}, {"mixed", pileMixed, "", pileSize * 3 / 4},
	} {
		old := stallState{shares: c.shares}
		add("old/AvailablePermits half out/"+c.name, c.pile, halfOut, old, free(half))
		add("old/AvailablePermits all out/"+c.name, c.pile, allOut, old, free(pileSize))
		add("old/AvailablePermits no value/"+c.name, c.pile, halfOut, stallState{shares: c.shares, noValue: true}, free(half))
		add("old/TryAcquire 1 half out/"+c.name, c.pile, halfOut, old, acquire(1, true))
		add("old/Release all/"+c.name, c.pile, allInUse, old, release(pileSize))
		add("old/Migrate in use/"+c.name, c.pile, allInUse, stallState{}, migrate(c.migrate))
		if c.pile.name == "mixed" {
			continue
		}
		// 128 requests, each with a member of its own; then a repeat of them.
		many := func(age string) func(*testing.B, stall) {
			return func(b *testing.B, s stall) {
				b.Helper()
				id := make([]byte, map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[c.pile.layouts[0]])
				member, err := codec.Append(nil, c.pile.layouts[0], id, 128)
				require.NoError(b, err)
				runScript(b, s, lua.Acquire, 5, member, 128, "", "s", age, "", 0, 1, 128)
			}
		}
		add("old/128 requests half out/"+c.name, c.pile, halfOut, old, many(""))
		add("old/128 requests in use/"+c.name, c.pile, allInUse, spare, many(""))
		add("old/128 requests, repeated/"+c.name, c.pile, allInUse, spare, many("18000000"))
	}
	for _, c := range []struct {
		name     string
		interval time.Duration
		free     int64
	}{{"all out", allOut, pileSize}, {"half out", halfOut, half}, {"in use", allInUse, 0}} {
		add("own/AvailablePermits/"+c.name, pileD2, c.interval, own, free(c.free))
		add("own/TryAcquire 1/"+c.name, pileD2, c.interval, own, acquire(1, c.free > 0))
		add("own/Release all/"+c.name, pileD2, c.interval, own, release(pileSize))
		add("keep-alive/TryAcquire 1/"+c.name, pileD2, c.interval, keepAlive, acquire(1, c.free > 0))
		add("window/TryAcquire 1/"+c.name, pileD2, c.interval, stallState{shares: "3.12.3", value: 1}, acquire(1, true))
		ask := ok(func(ctx context.Context, s stall) error { _, err := s.AvailablePermits(ctx); return err })
		add("window/AvailablePermits/"+c.name, pileD2, c.interval, stallState{shares: "3.12.3", noValue: true}, ask)
		add("value low/AvailablePermits/"+c.name, pileD2, c.interval, low, ask)
		add("value high/AvailablePermits/"+c.name, pileD2, c.interval, high, ask)
	}
	add("own/KeepState/half out", pileD2, halfOut, own, func(b *testing.B, s stall) {
		b.Helper()
		require.NoError(b, s.SetRate(b.Context(), limitertest.PerClient(s.rate+70, halfOut), rratelimiter.KeepState()))
	})
	add("own/Migrate/C", pileC, allInUse, own, migrate(pileSize))
	add("KeepState/shorter: all out", pileD2, allInUse, stallState{}, keepState(allOut))
	add("KeepState/shorter: half out", pileD2, allInUse, stallState{}, keepState(halfOut))
	add("SetRate/in use", pileD2, allInUse, stallState{}, ok(func(ctx context.Context, s stall) error {
		return s.SetRate(ctx, limitertest.Every(s.rate, allInUse))
	}))
	add("SetRate/another type", pileD2, allInUse, stallState{}, ok(func(ctx context.Context, s stall) error {
		return s.SetRate(ctx, limitertest.PerClient(s.rate, allInUse), rratelimiter.KeepState())
	}))
	add("TrySetRate/lost config", pileD2, allInUse, stallState{noConfig: true}, ok(func(ctx context.Context, s stall) error {
		_, err := s.TrySetRate(ctx, limitertest.Every(s.rate, allInUse))
		return err
	}))
	add("WithDefault/lost config, half out", pileD2, halfOut, stallState{noConfig: true, noValue: true}, ok(func(ctx context.Context, s stall) error {
		_, err := s.client.RateLimiter(s.Name(), rratelimiter.WithDefault(limitertest.Every(s.rate, halfOut))).TryAcquire(ctx, 1, 0)
		return err
	}))
	add("Delete/in use", pileD2, allInUse, stallState{}, ok(func(ctx context.Context, s stall) error {
		_, err := s.Delete(ctx)
		return err
	}))
	add("Rename/over another", pileD2, allInUse, stallState{alsoTarget: true}, ok(func(ctx context.Context, s stall) error {
		return s.Rename(ctx, "target")
	}))
	add("Expire, TTL, Exists, Config, ClearExpire/in use", pileD2, allInUse, stallState{}, ok(func(ctx context.Context, s stall) error {
		_, err := s.Expire(ctx, time.Hour)
		_, _, ttlErr := s.TTL(ctx)
		_, existsErr := s.Exists(ctx)
		_, configErr := s.Config(ctx)
		_, clearErr := s.ClearExpire(ctx)
		for _, e := range []error{ttlErr, existsErr, configErr, clearErr} {
			if e != nil {
				return e
			}
		}
		return err
	}))
	add("ExpireAt/past", pileD2, allInUse, stallState{}, ok(func(ctx context.Context, s stall) error {
		_, err := s.ExpireAt(ctx, time.Now().Add(-time.Hour))
		return err
	}))
	add("first call/half out", pileD2, halfOut, stallState{noScripts: true}, acquire(1, true))
	// What the machine adds by itself to calls of a quarter of a millisecond.
	add("noise/in use", pileD2, allInUse, stallState{}, func(b *testing.B, s stall) {
		b.Helper()
		for range pileSize / 256 {
			require.NoError(b, s.rdb.Eval(b.Context(), "for i = 1, 6 do redis.call('ZRANGE', KEYS[1], 0, 255) end return 1", []string{s.keys.Permits}).Err())
		}
	})
	// 4096 callers of 128 sizes.
	batch := func(smallest int, letters, age string) func(*testing.B, stall) {
		return func(b *testing.B, s stall) {
			b.Helper()
			sum := 32 * 128 * (2*smallest + 127) / 2
			args := []any{limitertest.NewMember(b, codec.LayoutD2, uint32(sum)), sum, "", letters, age, "", 0}
			for i := range 128 {
				args = append(args, smallest+i, 32)
			}
			runScript(b, s, lua.Acquire, 5, args...)
		}
	}
	add("4096 requests/half out", pileD2, halfOut, stallState{}, batch(1, "", ""))
	add("4096 requests/half out, with figures", pileD2, halfOut, stallState{}, batch(1, "f", ""))
	add("4096 requests/in use", pileD2, allInUse, stallState{}, batch(1, "fa", ""))
	add("4096 requests/in use, large", pileD2, allInUse, stallState{}, batch(300, "", ""))
	add("4096 requests/in use, repeated", pileD2, allInUse, stallState{}, batch(1, "fa", "18000000"))
	add("repeat/not found among a million", pileD2, allInUse, spare, func(b *testing.B, s stall) {
		b.Helper()
		runScript(b, s, lua.Acquire, 5, limitertest.NewMember(b, codec.LayoutD2, 1), 1, "", "", "18000000", "")
	})
	add("give back/not found among a million", pileD2, allInUse, spare, func(b *testing.B, s stall) {
		b.Helper()
		runScript(b, s, lua.GiveBack, 4, limitertest.NewMember(b, codec.LayoutD2, 1), 1, "", "18000000", "", "0123456789abcdef")
	})
	add("give back/of a caller that left", pileD2, allInUse, spare, func(b *testing.B, s stall) {
		b.Helper()
		proxy := redistest.StartProxy(b, s.server.Addr())
		client := limitertest.NewClient(b, proxy.Client(b, nil), rratelimiter.WithClientID("the-client"))
		ctx, cancel := context.WithCancel(b.Context())
		gone := make(chan struct{})
		proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, redistest.Pass.When(gone)))
		before := s.rdb.ZCard(ctx, s.keys.Permits).Val()
		result := make(chan error, 1)
		go func() { _, err := client.RateLimiter(s.Name()).TryAcquire(ctx, 1, 0); result <- err }()
		for s.rdb.ZCard(b.Context(), s.keys.Permits).Val() == before {
			time.Sleep(time.Millisecond)
		}
		cancel()
		require.ErrorIs(b, <-result, context.Canceled)
		close(gone)
		require.NoError(b, client.Close(b.Context()))
		require.Equal(b, before, s.rdb.ZCard(b.Context(), s.keys.Permits).Val())
	})
	return cases
}

// runScript calls a script as often as it asks for it; the token goes to the
// argument of that place.
func runScript(b *testing.B, s stall, script *lua.Script, tokenAt int, args ...any) {
	b.Helper()
	for {
		reply, err := s.rdb.EvalSha(b.Context(), script.SHA, s.keys.List(), args...).Result()
		require.NoError(b, err)
		values, _ := reply.([]any)
		if len(values) < 2 || values[0] != "again" {
			return
		}
		args[tokenAt] = values[1]
	}
}

// BenchmarkStall measures how long the longest script call of each operation
// holds a server up on which a million members have piled up:
//
//	go test -run '^$' -bench Stall -benchtime 5x -timeout 60m ./tests/concurrency
//
// ms-median and ms-least are the median and the least, over the runs, of the
// longest call of each run. Other programs on the machine lengthen calls at
// random; the runs make the same calls, so ms-work takes the shortest time that
// each call took in any run, and of those the longest. RRL_REDIS_SERVER names
// the server.
func BenchmarkStall(b *testing.B) {
	// Logging takes time itself, and the commands of a script are logged like the
	// call: so no more than what takes 25 us.
	server := redistest.StartServer(b, redistest.Default,
		"--slowlog-log-slower-than", "25", "--slowlog-max-len", "1000000")
	rdb := server.Client(b, &redis.Options{ReadTimeout: time.Minute})
	loadScripts(b, rdb)
	last := ""
	cases := stallCases()
	slices.SortStableFunc(cases, func(x, y stallCase) int { return slices.Compare([]byte(x.pile.name), []byte(y.pile.name)) })
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
				s := c.prepare(b, rdb, server)
				c.use(b, s)
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

// work returns the longest of the calls, each by the shortest time that it took
// in any run.
func work(runs [][]time.Duration) time.Duration {
	shortest := slices.Clone(runs[0])
	for _, run := range runs[1:] {
		for i := range min(len(run), len(shortest)) {
			shortest[i] = min(shortest[i], run[i])
		}
	}
	return slices.Max(shortest)
}

// prepare copies the pile and puts the state beside it. What is freed by then is
// freed, and the server has forgotten what took how long.
func (c stallCase) prepare(b *testing.B, rdb *redis.Client, server *redistest.Server) stall {
	b.Helper()
	ctx := b.Context()
	s := stall{rdb: rdb, server: server, rate: c.state.rate}
	if s.rate == 0 {
		s.rate = pileSize
	}
	opts := []rratelimiter.Option{rratelimiter.WithClientID("the-client")}
	if c.state.shares != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(c.state.shares))
	}
	s.client = limitertest.NewClient(b, rdb, opts...)
	s.RateLimiter = s.client.RateLimiter("stall")
	s.keys = redisson.KeysOf(s.Name(), "the-client")
	cfg := rratelimiter.Config{Rate: s.rate, Interval: c.interval, KeepAlive: c.state.keepAlive}
	value, permits := s.keys.Value, s.keys.Permits
	if c.state.perClient {
		cfg.Type = rratelimiter.PerClient
		value, permits = s.keys.ClientValue, s.keys.ClientPermits
	}
	// What the run before has left.
	require.NoError(b, rdb.Unlink(ctx, append(s.keys.List(), redisson.KeysOf("target", "the-client").List()...)...).Err())
	if !c.state.noConfig {
		limitertest.MustTrySetRate(b, s.RateLimiter, cfg)
	}
	require.NoError(b, rdb.Copy(ctx, "pile", permits, 0, true).Err())
	if c.state.alsoTarget {
		require.NoError(b, rdb.Copy(ctx, "pile", redisson.KeysOf("target", "").Permits, 0, true).Err())
	}
	if !c.state.noValue {
		require.NoError(b, rdb.Set(ctx, value, c.state.value, 0).Err())
	}
	for {
		info, err := rdb.InfoMap(ctx, "memory").Result()
		require.NoError(b, err)
		if info["Memory"]["lazyfree_pending_objects"] == "0" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
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

// scriptTimes returns how long each script call took since the slow log was
// reset, in their order.
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
