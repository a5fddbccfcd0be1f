package look

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// overview walks all keys and returns the limiters that match.
func overview(t *testing.T, r *Reader, v View) Snapshot {
	t.Helper()
	for {
		require.NoError(t, r.Walk(t.Context(), 1000))
		if !r.Underway() {
			break
		}
	}
	s, err := r.Sample(t.Context(), v)
	require.NoError(t, err)
	return s
}

func byUse() View { return View{Sort: "use", Rows: 100} }

func TestLimitersByUse(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Name(t)
		cfg := rratelimiter.Config{Rate: 10, Interval: time.Hour}
		limitertest.TakeOnce(t, rdb, prefix+":a", cfg, "", 3)
		limitertest.TakeOnce(t, rdb, prefix+":b", cfg, "", 10)
		own := rratelimiter.Config{Type: rratelimiter.PerClient, Rate: 10, Interval: time.Hour}
		limitertest.TakeOnce(t, rdb, "{"+prefix+"}:own", own, "ann", 6)
		limitertest.TakeOnce(t, rdb, "{"+prefix+"}:own", own, "bob:permits:x", 2)
		require.NoError(t, rdb.HSet(t.Context(), prefix+":user", "name", "ann").Err())
		require.NoError(t, rdb.HSet(t.Context(), prefix+":odd", "rate", "4.5", "stars", "1", "type", "0").Err())

		r := NewReader(rdb, "*"+prefix+"*")
		s := overview(t, r, byUse())
		assert.Equal(t, []int{3, 3, 1}, []int{s.Known, s.InUse, s.Used})
		assert.True(t, s.Complete)
		require.Len(t, s.Limiters, 3)
		b, own2, a := s.Limiters[0], s.Limiters[1], s.Limiters[2]
		assert.Equal(t, prefix+":b", b.Name)
		assert.Zero(t, *b.Free)
		assert.InDelta(t, 10, b.PerSecond, 0)
		require.Len(t, b.Callers, 1)
		assert.Regexp(t, "^client [0-9a-f]{8}$", b.Callers[0].Who)
		assert.EqualValues(t, 4, *own2.Free)
		assert.EqualValues(t, 8, own2.InUse)
		assert.Equal(t, 2, own2.Clients)
		assert.Equal(t, []Caller{{"client idann", 6, 0.75}, {"client idbob:permits:x", 2, 0.25}}, own2.Callers)
		assert.EqualValues(t, 7, *a.Free)

		s, err := r.Sample(t.Context(), View{Sort: "free", Reverse: true, Filter: strings.ToUpper(":a"), Rows: 1})
		require.NoError(t, err)
		require.Len(t, s.Limiters, 1)
		assert.Equal(t, a.Name, s.Limiters[0].Name)

		// What is gone is forgotten: when it was shown by the next sample, else by
		// the next round.
		require.NoError(t, rdb.Del(t.Context(), prefix+":b").Err())
		s, err = r.Sample(t.Context(), byUse())
		require.NoError(t, err)
		assert.Equal(t, 2, s.Known)
		require.NoError(t, rdb.Del(t.Context(), prefix+":a", "{"+prefix+"}:own:permits:idann").Err())
		s = overview(t, r, byUse())
		require.Len(t, s.Limiters, 1)
		assert.Equal(t, 1, s.Limiters[0].Clients)
	})
}

func free(l *Limiter) string {
	if l.Free == nil {
		return "?"
	}
	return fmt.Sprint(*l.Free)
}

func TestWhatIsFree(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Name(t)
		ctx := t.Context()
		limiter := func(name string) (value, set string) {
			name = prefix + ":" + name
			require.NoError(t, rdb.HSet(ctx, name, "rate", 10, "interval", 60_000, "type", 0).Err())
			return "{" + name + "}:value", "{" + name + "}:permits"
		}
		limiter("new")
		value, set := limiter("used")
		require.NoError(t, rdb.Set(ctx, value, 4, 0).Err())
		limitertest.AddGrants(t, rdb, set, 2*time.Minute, 2, 1) // have run out
		limitertest.AddGrants(t, rdb, set, time.Second/2, 2, 2)
		value, set = limiter("idle")
		require.NoError(t, rdb.Set(ctx, value, 4, 0).Err())
		limitertest.AddGrants(t, rdb, set, 2*time.Minute, 3, 2)
		_, set = limiter("lost") // its value
		limitertest.AddGrants(t, rdb, set, time.Second*3, 3, 1)
		value, _ = limiter("window")
		require.NoError(t, rdb.Set(ctx, value, 2, time.Minute).Err())
		value, _ = limiter("bad")
		require.NoError(t, rdb.Set(ctx, value, "many", 0).Err())
		value, set = limiter("types")
		require.NoError(t, rdb.RPush(ctx, value, "x").Err())
		require.NoError(t, rdb.Set(ctx, set, "x", 0).Err())

		s := overview(t, NewReader(rdb, prefix+"*"), View{Sort: "name", Rows: 100})
		got := map[string]string{}
		for _, l := range s.Limiters {
			got[strings.TrimPrefix(l.Name, prefix+":")] = free(&l) + fmt.Sprintf(" free, %.1f/s", l.PerSecond)
		}
		assert.Equal(t, map[string]string{
			"new": "10 free, 0.0/s", "used": "6 free, 4.0/s", "idle": "10 free, 0.0/s", "lost": "7 free, 0.0/s", "window": "2 free, 0.0/s",
			"bad": "? free, 0.0/s", "types": "? free, 0.0/s",
		}, got)
	})
}

// called are names by marks.
type called map[string]string

func (c called) OfMark(mark string) string { return c[mark] }
func (c called) OfID(string) string        { return "" }

func TestCallersByTheirMembers(t *testing.T) {
	t.Parallel()
	by := func(layout codec.Layout, id string, permits uint32) member {
		return member{codec.Member{Layout: layout, ID: []byte(id), Permits: permits}, 0}
	}
	ours := "originAA" + "\x00\x00\x00\x00\x00" + "abc"
	members := []member{
		by(codec.LayoutD2, ours, 3),
		by(codec.LayoutD2, "originAA"+"\x00\x00\x00\x00\x01"+"xyz", 2),
		by(codec.LayoutD2, "0123456789abcdef", 4), by(codec.LayoutD2, "fedcba9876543210", 1),
		by(codec.LayoutD1, "orig1234", 5), by(codec.LayoutD1, "orig5678", 1),
		by(codec.LayoutD1, "lonely!!", 2), by(codec.LayoutC, "12345678", 1), by(codec.LayoutB, "1234", 1),
	}
	got := map[string]int64{}
	for _, c := range callersOf(members, &names{known: called{"orig": "orders-7f9c", "lone": "jobs-1"}}) {
		got[c.Who] = c.Permits
	}
	assert.Equal(t, map[string]int64{"client 6f726967": 5, "Redisson": 5, "orders-7f9c": 6, "jobs-1": 2, "unmarked": 2}, got)
}

// counter counts commands, and notes their names.
type counter struct {
	mu    sync.Mutex
	names map[string]int
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) note(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		c.names[strings.ToLower(cmd.Name())]++
	}
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.note(cmd)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.note(cmds...)
		return next(ctx, cmds)
	}
}

func TestManyLimitersAreReadInSmallSteps(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	prefix := redistest.Name(t)
	const limiters = 3000
	pipe := rdb.Pipeline()
	for i := range limiters {
		name := fmt.Sprintf("%s:%d", prefix, i)
		pipe.HSet(t.Context(), name, "rate", 100, "interval", 60_000, "type", 0)
		pipe.Set(t.Context(), "{"+name+"}:value", i%101, 0)
		if pipe.Len() == 200 {
			_, err := pipe.Exec(t.Context())
			require.NoError(t, err)
		}
	}
	hook := &counter{names: map[string]int{}}
	rdb.AddHook(hook)
	r := NewReader(rdb, prefix+"*")
	steps := 0
	for first := true; first || r.Underway(); first = false {
		before := maps.Clone(hook.names)
		require.NoError(t, r.Walk(t.Context(), 300))
		steps++
		sent := 0
		for name, n := range hook.names {
			sent += n - before[name]
		}
		assert.LessOrEqual(t, sent, 300+3*pageKeys, "one page more than was asked for at most")
	}
	assert.Greater(t, steps, 4)
	s, err := r.Sample(t.Context(), View{Sort: "use", Rows: 10})
	require.NoError(t, err)
	assert.Equal(t, limiters, s.Known)
	assert.Len(t, s.Limiters, 10)
	assert.Zero(t, *s.Limiters[9].Free)
	for name := range hook.names {
		assert.Contains(t, []string{"scan", "hmget", "get", "zrange", "zcard", "zrangebyscore", "dbsize", "time", "info", "hello", "client"}, name)
	}
	assert.Positive(t, s.Cost.Commands)
}

func TestCostIsWhatTheServerSays(t *testing.T) {
	t.Parallel()
	stats := commandStats("# Commandstats\r\ncmdstat_get:calls=10,usec=25,usec_per_call=2.50,rejected_calls=0\r\ncmdstat_config|get:calls=1,usec=9\r\n")
	assert.Equal(t, map[string]usage{"get": {10, 25}, "config|get": {1, 9}}, stats)

	rdb := redistest.StartRedis(t).Client(t, nil)
	require.NoError(t, rdb.HSet(t.Context(), "a", "rate", 10, "interval", 1000, "type", 0).Err())
	s := overview(t, NewReader(rdb, ""), byUse())
	require.NotNil(t, s.Cost.ServerMicros)
	assert.Positive(t, *s.Cost.ServerMicros)
}

func TestAUserWhoMayNotReadStatistics(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	prefix := redistest.Name(t)
	require.NoError(t, server.Client(t, nil).HSet(t.Context(), prefix, "rate", 10, "interval", 1000, "type", 0).Err())
	rdb := redistest.AddUser(t, server, nil, "~*", "+@read", "+scan", "-dbsize", "+time", "-info")
	s := overview(t, NewReader(rdb, prefix), byUse())
	require.Len(t, s.Limiters, 1)
	assert.Nil(t, s.Cost.ServerMicros)
	assert.Positive(t, s.Cost.RoundTripMicros)
}

// A server that is no longer there must not keep the others' limiters from being shown
// until all keys were walked anew.
func TestReaderForgetsServersThatWent(t *testing.T) {
	t.Parallel()
	stays, goes := miniredis.RunT(t), miniredis.RunT(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": stays.Addr(), "b": goes.Addr()}})
	defer func() { _ = ring.Close() }()
	for i := range 2000 {
		for kind, server := range map[string]*miniredis.Miniredis{"stays": stays, "goes": goes} {
			server.HSet(fmt.Sprint(kind, ":", i), "rate", "10", "interval", "1000", "type", "0")
		}
	}
	r := NewReader(ring, "")
	for range 2 { // a round, and the beginning of the next
		require.NoError(t, r.Walk(t.Context(), 100_000))
	}
	require.NoError(t, r.Walk(t.Context(), 1))
	require.True(t, r.Underway())
	view := View{Sort: "name", Rows: 200}
	_, err := r.Sample(t.Context(), view)
	require.NoError(t, err)

	ring.SetAddrs(map[string]string{"a": stays.Addr()})
	goes.Close()
	_, err = r.Sample(t.Context(), view)
	require.Error(t, err)
	require.NoError(t, r.Walk(t.Context(), 1))
	_, err = r.Sample(t.Context(), view)
	require.NoError(t, err)
}
