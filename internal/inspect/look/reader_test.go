package look

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
	return limitertest.Must(r.Sample(t.Context(), v))(t)
}

var good = []any{"rate", 10, "interval", 60_000, "type", 0}

// put makes a hash with these fields, and returns what a limiter's other keys would be.
func put(t *testing.T, rdb redistest.Client, name string, fields ...any) (value, set string) {
	t.Helper()
	require.NoError(t, rdb.HSet(t.Context(), name, fields...).Err())
	return "{" + name + "}:value", "{" + name + "}:permits"
}

func byUse() View { return View{Sort: "use", Rows: 100} }

func TestLimitersByUse(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		prefix := redistest.Name(t)
		limitertest.TakeOnce(t, rdb, prefix+":a", rratelimiter.PerDay(10), "", 3)
		limitertest.TakeOnce(t, rdb, prefix+":b", rratelimiter.PerHour(10), "", 10)
		own := limitertest.PerClient(10, time.Hour)
		limitertest.TakeOnce(t, rdb, "{"+prefix+"}:own", own, "ann", 6)
		limitertest.TakeOnce(t, rdb, "{"+prefix+"}:own", own, "bob:permits:x", 2)
		put(t, rdb, prefix+":user", "name", "ann")
		put(t, rdb, prefix+":odd", "rate", "4.5", "stars", "1", "type", "0")
		r := NewReader(rdb, "*"+prefix+"*")
		s := overview(t, r, byUse())
		assert.Equal(t, []int{3, 3, 1}, []int{s.Known, s.InUse, s.Used})
		assert.True(t, s.Complete)
		require.Len(t, s.Limiters, 3)
		b, own2, a := s.Limiters[0], s.Limiters[1], s.Limiters[2]
		assert.Equal(t, []any{prefix + ":b", int64(0)}, []any{b.Name, *b.Free})
		require.Len(t, b.Callers, 1)
		assert.Regexp(t, "^client [0-9a-f]{8}$", b.Callers[0].Who)
		assert.Equal(t, []any{int64(4), int64(8), 2}, []any{*own2.Free, own2.InUse, own2.Clients})
		assert.Equal(t, []Caller{{"client idann", 6, 0.75}, {"client idbob:permits:x", 2, 0.25}}, own2.Callers)
		assert.EqualValues(t, 7, *a.Free)
		watcher := &Watcher{Client: rdb, Name: prefix + ":a"}
		seesGrants(t, rdb, watcher)
		assert.Equal(t, own2.Callers, watch(t, rdb, "{"+prefix+"}:own").Callers)
		s = limitertest.Must(r.Sample(t.Context(), View{Sort: "free", Reverse: true, Filter: strings.ToUpper(":a"), Rows: 1}))(t)
		require.Len(t, s.Limiters, 1)
		assert.Equal(t, a.Name, s.Limiters[0].Name)

		// Deleted limiters are forgotten: when it was shown by the next sample, else by the next round.
		require.NoError(t, rdb.Del(t.Context(), prefix+":b").Err())
		s = limitertest.Must(r.Sample(t.Context(), byUse()))(t)
		assert.Equal(t, 2, s.Known)
		require.NoError(t, rdb.Del(t.Context(), prefix+":a", "{"+prefix+"}:own:permits:idann").Err())
		assert.True(t, sampled(t, watcher).Gone)
		s = overview(t, r, byUse())
		require.Len(t, s.Limiters, 1)
		assert.Equal(t, 1, s.Limiters[0].Clients)
	})
}

func sampled(t *testing.T, w *Watcher) Point {
	t.Helper()
	return limitertest.Must(w.Sample(t.Context()))(t)
}

// seesGrants checks what a watcher shows of a limiter of 10 permits, of which 3 are in use.
func seesGrants(t *testing.T, rdb redistest.Client, w *Watcher) {
	t.Helper()
	p := sampled(t, w)
	assert.Equal(t, []int64{7, 0}, []int64{*p.Free, p.Granted}, "none of before the first sample")
	for _, permits := range []int64{2, 1} {
		time.Sleep(5 * time.Millisecond) // grants of one millisecond count once
		limitertest.TakeOnce(t, rdb, w.Name, rratelimiter.PerDay(10), "", permits)
	}
	p = sampled(t, w)
	assert.Equal(t, []int64{4, 6, 3}, []int64{*p.Free, p.InUse, p.Granted})
	assert.Len(t, p.Callers, 3)
	assert.Zero(t, sampled(t, w).Granted)
}

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

func TestManyLimitersAreReadInSmallSteps(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	const limiters = 3000
	pipe := server.Client(t, nil).Pipeline()
	for i := range limiters {
		name := fmt.Sprint("limiter:", i)
		pipe.HSet(t.Context(), name, "rate", 100, "interval", 60_000, "type", 0)
		pipe.Set(t.Context(), "{"+name+"}:value", i%101, 0)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
	proxy := redistest.StartProxy(t, server.Addr())
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		assert.NotEqual(t, "keys", c.Name())
		return redistest.Pass
	})
	r := NewReader(proxy.Client(t, nil), "limiter:*")
	steps := 0
	for first := true; first || r.Underway(); first = false {
		before := proxy.Requests()
		require.NoError(t, r.Walk(t.Context(), 300))
		steps++
		assert.LessOrEqual(t, proxy.Requests()-before, 300+3*pageKeys, "one page more than was asked for at most")
	}
	assert.Greater(t, steps, 4)
	s := limitertest.Must(r.Sample(t.Context(), View{Sort: "use", Rows: 10}))(t)
	assert.Equal(t, limiters, s.Known)
	assert.Len(t, s.Limiters, 10)
	require.NotNil(t, s.Cost.ServerMicros)
	assert.Positive(t, *s.Cost.ServerMicros)
	assert.Equal(t, map[string]usage{"get": {10, 25}, "config|get": {1, 9}}, commandStats(
		"# Commandstats\r\ncmdstat_get:calls=10,usec=25,usec_per_call=2.50,rejected_calls=0\r\ncmdstat_config|get:calls=1,usec=9\r\n"))
	user := redistest.AddUser(t, server, nil, "~*", "+@read", "+scan", "-dbsize", "+time", "-info")
	s = overview(t, NewReader(user, "limiter:1"), byUse())
	require.Len(t, s.Limiters, 1)
	assert.Nil(t, s.Cost.ServerMicros, "without the right to it")
	assert.Positive(t, s.Cost.RoundTripMicros)
}

// A server that is no longer there must not hide the others' limiters until all keys were walked again.
func TestReaderForgetsServersThatWent(t *testing.T) {
	t.Parallel()
	stays, goes := miniredis.RunT(t), miniredis.RunT(t)
	ring := redistest.NewRing(map[string]string{"a": stays.Addr(), "b": goes.Addr()}, nil)
	defer func() { _ = ring.Close() }()
	for i := range 2000 {
		for kind, server := range map[string]*miniredis.Miniredis{"stays": stays, "goes": goes} {
			server.HSet(fmt.Sprint(kind, ":", i), "rate", "10", "interval", "1000", "type", "0")
		}
	}
	r, view := NewReader(ring, ""), View{Sort: "name", Rows: 200}
	for _, units := range []int{100_000, 100_000, 1} { // a round, and the beginning of the next
		require.NoError(t, r.Walk(t.Context(), units))
	}
	require.True(t, r.Underway())
	ring.(interface{ SetAddrs(addrs map[string]string) }).SetAddrs(map[string]string{"a": stays.Addr()})
	goes.Close()
	require.Error(t, limitertest.Second(r.Sample(t.Context(), view)))
	require.NoError(t, r.Walk(t.Context(), 1))
	require.NoError(t, limitertest.Second(r.Sample(t.Context(), view)))
}

func watch(t *testing.T, rdb redistest.Client, name string) Point {
	t.Helper()
	return sampled(t, &Watcher{Client: rdb, Name: name})
}

// A state is what Redis may hold in place of a limiter of 10 permits a minute, and what is said of it.
type state struct {
	hash    []any // unless it is good
	value   any
	members []grant
	damage  string // commands of limitertest.Damage
	free    int64  // unknown if it is not known
	kinds   string // of the anomalies
	broken  string // why calls fail; P is the name
}

// A grant is a member of the set, of no layout if that is 0.
type grant struct {
	layout  codec.Layout
	permits uint32
	age     time.Duration
}

const (
	b, c, d1, d2 = codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2

	unknown  = -1
	noRate   = ", not a whole number from 0 to 9007199254740991"
	noReason = ", which no permits in use explain"
)

var states = map[string]state{
	"full":          {free: 10},
	"some in use":   {value: 7, members: []grant{{d2, 3, 0}}, free: 7},
	"run out":       {value: 7, members: []grant{{d2, 3, time.Hour}}, free: 10},
	"a debt":        {hash: []any{"rate", 2, "interval", 60_000, "type", 0}, value: -1, members: []grant{{d2, 3, 0}}},
	"a large debt":  {value: 11 - 1<<31, members: []grant{{d2, 1<<31 - 1, 0}}},
	"one B":         {value: 8, members: []grant{{b, 2, 0}}, free: 8},
	"one C":         {value: 8, members: []grant{{c, 2, 0}}, free: 8},
	"D1 and D2":     {value: 5, members: []grant{{d2, 3, time.Second}, {d1, 2, 0}}, free: 5},
	"no permits":    {value: 10, free: 10},
	"nothing taken": {value: 10, members: []grant{{d2, 0, 0}}, free: 10},
	"lost":          {value: 4, members: []grant{{d2, 3, 0}}, free: 4, kinds: "sum_not_rate"},
	"too many":      {value: 9, members: []grant{{d2, 3, 0}}, free: 9, kinds: "sum_not_rate"},
	"above rate":    {value: 13, free: 10, kinds: "value_above_rate sum_not_rate"},
	"set gone":      {value: 4, free: 10, kinds: "sum_not_rate"},
	"kept for 60 s": {value: 4, damage: "EXPIRE value 60;EXPIRE config 60", free: 10, kinds: "sum_not_rate"},
	"value gone":    {members: []grant{{d2, 3, 0}}, free: 7, kinds: "no_value"},
	"future":        {value: 7, members: []grant{{d2, 3, -time.Hour}}, free: 7, kinds: "future_members"},
	"partly so":     {value: 4, members: []grant{{d2, 2, time.Hour}, {d2, 4, 0}}, free: 6},
	"a window":      {value: 2, damage: "EXPIRE value 60", free: 2},
	"a long window": {hash: []any{"rate", 10, "interval", int64(1e13), "type", 0}, value: 2, damage: "EXPIRE value 60", free: 2},

	"B and D2": {
		value: 5, members: []grant{{d2, 3, time.Second}, {b, 2, 0}}, free: 5,
		kinds: "mixed_layouts", broken: "{P}:permits has layouts B, D2",
	},
	"a foreign member": {
		value: 7, members: []grant{{0, 3, 0}}, free: 7,
		kinds: "unknown_layout", broken: "1 member of {P}:permits: no release of Redisson writes such a member",
	},
	"all set gone":   {value: 0, free: 10, kinds: "in_debt", broken: "key {P}:value is 0" + noReason},
	"lost for good":  {value: -3, members: []grant{{d2, 3, 0}}, kinds: "in_debt", broken: "key {P}:value is -3" + noReason},
	"C read as D":    {value: "-9999999999", members: []grant{{c, 2, 0}}, kinds: "in_debt", broken: "key {P}:value is -9999999999" + noReason},
	"a set of text":  {damage: "SET permits x", free: unknown, kinds: "wrong_type", broken: "key {P}:permits is not a sorted set"},
	"a listed value": {damage: "RPUSH value x", free: unknown, kinds: "wrong_type", broken: "key {P}:value is not a string"},
	"bad value": {
		value: "\x1b[31m" + strings.Repeat("many", 1000), members: []grant{{d2, 3, 0}}, free: unknown,
		kinds: "bad_value", broken: `key {P}:value holds "\x1b[31m` + strings.Repeat("many", 8) + `man"..., not a whole number`,
	},
	"left to stay": {value: 10, damage: "EXPIRE config 3600", free: 10, kinds: "no_ttl", broken: "the rate expires, key {P}:value does not"},
	"bad rate": {
		hash: []any{"rate", "ten\a", "interval", 1, "type", 0}, value: 7,
		free: unknown, kinds: "bad_config", broken: `field rate is "ten\a"` + noRate,
	},
	"bad type": {
		hash: []any{"rate", 1, "interval", 1, "type", 2}, value: 1,
		free: unknown, kinds: "bad_config", broken: "field type is 2, neither 0 nor 1",
	},
	"bad keepAlive": {damage: "HSET config keepAliveTime x", free: unknown, kinds: "bad_config", broken: `field keepAliveTime is "x"` + noRate},
	"no interval":   {hash: []any{"rate", 10, "type", 0}, value: 7, free: unknown, kinds: "bad_config", broken: "field interval is missing"},
	"no type":       {hash: []any{"rate", 10, "interval", 1000}, free: unknown, kinds: "bad_config", broken: "field type is missing"},
}

func (s state) plant(t *testing.T, rdb redistest.Client, name string) {
	t.Helper()
	hash := s.hash
	if hash == nil {
		hash = good
	}
	value, set := put(t, rdb, name, hash...)
	if s.value != nil {
		require.NoError(t, rdb.Set(t.Context(), value, s.value, 0).Err())
	}
	now := limitertest.ServerNow(t, rdb)
	for _, g := range s.members {
		member := "what is this"
		if g.layout != 0 {
			member = limitertest.NewMember(t, g.layout, g.permits)
		}
		require.NoError(t, rdb.ZAdd(t.Context(), set, redis.Z{Score: float64(now - g.age.Milliseconds()), Member: member}).Err())
	}
	if s.damage != "" {
		limitertest.Damage(t, rdb, limitertest.NewClient(t, rdb).RateLimiter(name), s.damage)
	}
}

// check holds what each way to look at a limiter says of a state.
func (s state) check(t *testing.T, rdb redistest.Client, l *Limiter) {
	t.Helper()
	var found *Inspection
	limitertest.RequireUntouched(t, rdb, l.Name, func() { found = limitertest.Must(Inspect(t.Context(), rdb, l.Name, nil))(t) })
	broken := strings.ReplaceAll(s.broken, "P", l.Name)
	shown, _, _ := strings.Cut(l.Broken, ", written")
	assert.Equal(t, broken, shown)
	assert.Equal(t, broken != "", found.Broken != "", found.Broken)
	assert.Equal(t, l.State, found.State)
	kinds := []string{}
	for _, a := range found.Anomalies {
		kinds = append(kinds, a.Kind)
	}
	assert.ElementsMatch(t, strings.Fields(s.kinds), kinds, "%v", found.Anomalies)
	require.Len(t, found.States, 1)
	pair := &found.States[0]
	var free *int64
	if s.free != unknown {
		free = &s.free
	}
	assert.Equal(t, []*int64{free, free}, []*int64{pair.Free, l.Free})
	assert.Equal(t, s.damage == "EXPIRE value 60", pair.Window)
	if s.members == nil && broken == "" { // it looks at the newest of them only
		short := limitertest.Must(ReadShort(t.Context(), rdb, []string{l.Name}))(t)
		assert.Equal(t, []any{l.State, l.InUse}, []any{short[0].State, short[0].InUse})
	}
	assert.Equal(t, strings.HasPrefix(fmt.Sprint(s.value), "-"), pair.Debt > 0)
	p := watch(t, rdb, l.Name)
	assert.False(t, p.Gone)
	assert.Equal(t, []any{l.Broken, l.Free}, []any{p.Broken, p.Free})
}

// A limiter whose calls fail is broken and first, by whatever reads it. What only looks like a limiter is an application's.
func TestLimiters_InEachState(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		prefix := redistest.Name(t)
		broken := 0
		for name, s := range states {
			s.plant(t, rdb, prefix+":"+name)
			if s.broken != "" {
				broken++
			}
		}
		for name, fields := range map[string][]any{
			"review": {"rate", "4.5", "type", 1, "text", "good"}, "car": {"rate", 120, "type", "car"}, "job": {"interval", 60, "type", 1},
			"loan": {"rate", "12.5", "interval", "monthly", "type", "loan"}, "user": {"name", "ann"},
		} {
			put(t, rdb, prefix+":"+name, fields...)
		}
		s := overview(t, NewReader(rdb, prefix+"*"), byUse())
		assert.Equal(t, []int{len(states), broken}, []int{s.Known, s.Broken})
		for i := range s.Limiters {
			l := &s.Limiters[i]
			name := strings.TrimPrefix(l.Name, prefix+":")
			assert.Equal(t, i < broken, l.Broken != "", "what is broken comes first, and %s is number %d", name, i)
			t.Run(name, func(t *testing.T) { states[name].check(t, rdb, l) })
		}
		require.NoError(t, rdb.Set(t.Context(), prefix+":string", "x", 0).Err())
		assert.True(t, watch(t, rdb, prefix+":string").Gone, "it is no limiter's")
		assert.True(t, watch(t, rdb, prefix+":review").Gone)
		state{value: 7, damage: "DEL config"}.plant(t, rdb, prefix+":none")
		found := limitertest.Must(Inspect(t.Context(), rdb, prefix+":none", nil))(t)
		assert.Equal(t, "no_config", found.Anomalies[0].Kind)
		assert.Nil(t, found.States[0].Free)
	})
}

// A rate is a default as long as the limiter has the rate that the field names. All ways of looking agree.
func TestOrigin(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	for name, c := range map[string]struct {
		fields []any
		want   Origin
	}{
		"default":            {[]any{"keepAliveTime", 60_000, "default", "10 60000 0 60000 1700000000000000"}, Default},
		"taken back":         {[]any{"default", "10 60000 0 0 0"}, TakenBack},
		"set on purpose":     {nil, Override},
		"set by Redisson":    {[]any{"keepAliveTime", 0, "default", "9 60000 0 0 1700000000000000"}, Override},
		"another keep-alive": {[]any{"keepAliveTime", 90_000, "default", "10 60000 0 0 1700000000000000"}, Override},
		"of one word":        {[]any{"default", "10"}, Override},
		"broken":             {[]any{"rate", "ten", "default", "10 60000 0 0 0"}, ""},
	} {
		put(t, rdb, name, slices.Concat(good, c.fields)...)
		short := limitertest.Must(ReadShort(t.Context(), rdb, []string{name}))(t)
		found := limitertest.Must(Inspect(t.Context(), rdb, name, OneClient(rdb, name, "")))(t)
		listed := overview(t, NewReader(rdb, name), byUse())
		assert.Equal(t, []Origin{c.want, c.want, c.want, c.want},
			[]Origin{short[0].Origin, found.Origin, listed.Limiters[0].Origin, watch(t, rdb, name).Origin}, name)
	}
}

// A limiter at its limit that gets and grants a permit now and then is used up, and does not flicker.
func TestUsedUp_LastsForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		limiter := limitertest.NewClient(t, rdb).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10)))
		limitertest.MustAcquire(t, limiter, 10)
		r := NewReader(rdb, "")
		watcher := &Watcher{Client: rdb, Name: "orders"}
		sample := func(free int64) (all []Health) {
			s := overview(t, r, byUse())
			require.Equal(t, free, *s.Limiters[0].Free)
			all = append(all, s.Limiters[0].State, s.Limiters[0].HealthWhile(true), sampled(t, watcher).State)
			assert.Equal(t, s.Limiters[0].State == UsedUp, s.Used == 1)
			return all
		}
		usedUp := []Health{UsedUp, UsedUp, UsedUp}
		assert.Equal(t, usedUp, sample(0))
		require.NoError(t, limiter.Release(t.Context(), 1))
		time.Sleep(time.Second)
		assert.Equal(t, usedUp, sample(1))
		limitertest.MustAcquire(t, limiter, 1)
		time.Sleep(time.Second)
		assert.Equal(t, usedUp, sample(0))
		require.NoError(t, limiter.Release(t.Context(), 1))
		time.Sleep(2 * time.Second)
		assert.Equal(t, []Health{Fine, Refusing, Fine}, sample(1))
	})
}
