package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func member(t testing.TB, layout codec.Layout, n byte, permits uint32) string {
	t.Helper()
	idLen := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[layout]
	packed, err := codec.Append(nil, layout, bytes.Repeat([]byte{n}, idLen), permits)
	require.NoError(t, err)
	return string(packed)
}

// written is what a test puts in place of a limiter.
type written struct {
	hash    map[string]string
	value   any
	members []redis.Z
}

func (w written) put(t testing.TB, rdb redistest.Client, name string) {
	t.Helper()
	ctx := t.Context()
	if w.hash != nil {
		require.NoError(t, rdb.HSet(ctx, name, w.hash).Err())
	}
	if w.value != nil {
		require.NoError(t, rdb.Set(ctx, "{"+name+"}:value", w.value, 0).Err())
	}
	if w.members != nil {
		require.NoError(t, rdb.ZAdd(ctx, "{"+name+"}:permits", w.members...).Err())
	}
}

func config(rate, intervalMS int64) map[string]string {
	return map[string]string{"rate": strconv.FormatInt(rate, 10), "interval": strconv.FormatInt(intervalMS, 10), "type": "0"}
}

func kinds(s look.Inspection) []string {
	kinds := []string{}
	for _, a := range s.Anomalies {
		kinds = append(kinds, a.Kind)
	}
	return kinds
}

const hour = 3_600_000

// damage is what may be in place of a limiter, and what show says of it.
type damage struct {
	written
	kinds []string
	free  any // nil: unknown
}

func damages(t *testing.T) map[string]damage {
	t.Helper()
	now := float64(time.Now().UnixMilli())
	at := func(packed string, ageMS float64) redis.Z { return redis.Z{Score: now - ageMS, Member: packed} }
	d2, d1 := member(t, codec.LayoutD2, 1, 3), member(t, codec.LayoutD1, 2, 2)
	b, c := member(t, codec.LayoutB, 3, 2), member(t, codec.LayoutC, 4, 2)
	return map[string]damage{
		"full":          {written{hash: config(10, hour)}, nil, 10},
		"some in use":   {written{config(10, hour), 7, []redis.Z{at(d2, 10)}}, nil, 7},
		"run out":       {written{config(10, hour), 7, []redis.Z{at(d2, hour+10)}}, nil, 10},
		"a debt":        {written{config(2, hour), -1, []redis.Z{at(d2, 10)}}, nil, 0},
		"one B":         {written{config(10, hour), 8, []redis.Z{at(b, 10)}}, nil, 8},
		"one C":         {written{config(10, hour), 8, []redis.Z{at(c, 10)}}, nil, 8},
		"D1 and D2":     {written{config(10, hour), 5, []redis.Z{at(d2, 10), at(d1, 9)}}, nil, 5},
		"B and D2":      {written{config(10, hour), 5, []redis.Z{at(d2, 10), at(b, 9)}}, []string{"mixed_layouts"}, 5},
		"lost":          {written{config(10, hour), 4, []redis.Z{at(d2, 10)}}, []string{"sum_not_rate"}, 4},
		"too many":      {written{config(10, hour), 9, []redis.Z{at(d2, 10)}}, []string{"sum_not_rate"}, 9},
		"above rate":    {written{config(10, hour), 13, nil}, []string{"value_above_rate", "sum_not_rate"}, 10},
		"set gone":      {written{config(10, hour), 4, nil}, []string{"sum_not_rate"}, 10},
		"value gone":    {written{config(10, hour), nil, []redis.Z{at(d2, 10)}}, []string{"no_value"}, 7},
		"future":        {written{config(10, hour), 7, []redis.Z{at(d2, -hour)}}, []string{"future_members"}, 7},
		"unknown":       {written{config(10, hour), 7, []redis.Z{at("what is this", 10)}}, []string{"unknown_layout"}, 7},
		"no config":     {written{nil, 7, []redis.Z{at(d2, 10)}}, []string{"no_config"}, nil},
		"no interval":   {written{map[string]string{"rate": "10", "type": "0"}, 7, nil}, []string{"bad_config"}, nil},
		"bad rate":      {written{map[string]string{"rate": "x", "type": "0", "interval": "1"}, 7, nil}, []string{"bad_config"}, nil},
		"bad type":      {written{map[string]string{"rate": "1", "type": "2", "interval": "1"}, 1, nil}, []string{"bad_config"}, nil},
		"bad value":     {written{config(10, hour), "many", []redis.Z{at(d2, 10)}}, []string{"bad_value"}, nil},
		"C read as D":   {written{config(10, hour), int64(-9_999_999_999), []redis.Z{at(c, 10)}}, []string{"in_debt"}, 0},
		"lost for good": {written{config(10, hour), -3, []redis.Z{at(d2, 10)}}, []string{"in_debt"}, 0},
		"no permits":    {written{config(10, hour), 10, nil}, nil, 10},
		"nothing taken": {written{config(10, hour), 10, []redis.Z{at(member(t, codec.LayoutD2, 9, 0), 10)}}, nil, 10},
	}
}

func TestShowNamesAnomalies(t *testing.T) {
	t.Parallel()
	server := shared(t)
	for name, test := range damages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server.in(t)
			limiter := redistest.Name(t)
			test.put(t, s.rdb, limiter)
			dump := func() (all []string) {
				for _, key := range limitertest.LimiterKeys(t, s.rdb, limiter) {
					all = append(all, key, s.rdb.Dump(t.Context(), key).Val())
				}
				return all
			}
			before := dump()

			found := s.show("%q", limiter)
			assert.ElementsMatch(t, test.kinds, kinds(found), "%v", found.Anomalies)
			require.Len(t, found.States, 1)
			if free := found.States[0].Free; test.free == nil {
				assert.Nil(t, free)
			} else {
				require.NotNil(t, free)
				assert.EqualValues(t, test.free, *free)
			}
			text := s.rrl("show %q", limiter)
			owes := strings.HasPrefix(fmt.Sprint(test.value), "-")
			assert.Equal(t, owes, found.States[0].Debt > 0 && strings.Contains(text.stdout, "  debt "), text.stdout)
			isError := func(kind string) bool { return look.ProblemOf(kind).Level == look.Error }
			assert.Equal(t, slices.ContainsFunc(test.kinds, isError), text.code == exitNo)
			for _, a := range found.Anomalies {
				assert.Contains(t, text.stdout, "  - "+a.Text[:10])
			}
			assert.Equal(t, before, dump(), "show must not change anything")
		})
	}
}

// Members of grants of one slice of a large limiter become one, and show says by how much that makes permits late.
func TestShowOfMergedMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	limiter := limitertest.NewClient(t, s.rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerDay(10_000)))
	taken := int64(0)
	require.Eventually(t, func() bool {
		limitertest.MustAcquire(t, limiter, 1)
		taken++
		return taken > 60 && s.show("%q", name).States[0].Merged > 0
	}, time.Minute, time.Millisecond)
	found := s.show("%q", name)
	assert.Empty(t, found.Anomalies)
	st := found.States[0]
	assert.Equal(t, taken, st.InUse)
	assert.Less(t, st.Members, taken)
	assert.Equal(t, (22*time.Minute + 30*time.Second).Milliseconds(), st.LateMS)
	assert.Regexp(t, `(?m)^  merged +\d+ of them, whose permits come back up to 22m30s late$`, s.rrl("show %q", name).stdout)
}

// Settled reservations stand for one grant each.
func TestShowOfSettledReservations(t *testing.T) {
	t.Parallel()
	s := shared(t)
	limiter := limitertest.NewClient(t, s.rdb).RateLimiter(redistest.Name(t), rratelimiter.WithDefault(rratelimiter.PerDay(10_000)), rratelimiter.WithExact())
	for used := range int64(3) {
		require.NoError(t, limitertest.Reserve(t, limiter, 1, rratelimiter.Hold(time.Hour)).Settle(t.Context(), used+1))
	}
	st := s.show("%q", limiter.Name()).States[0]
	assert.EqualValues(t, 1+2+3, st.InUse)
	assert.Zero(t, st.Merged)
	assert.NotContains(t, s.rrl("show %q", limiter.Name()).stdout, "late")
}

func TestShowReadsABoundedPartOfALargeSet(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	written{hash: config(10_000, hour), value: 10_000 - look.MaxMembers - 1}.put(t, s.rdb, "orders")
	limitertest.AddGrants(t, s.rdb, "{orders}:permits", 0, look.MaxMembers+1, 1)
	found := s.show("orders")
	assert.Equal(t, []string{"not_all_read"}, kinds(found))
	assert.Nil(t, found.States[0].Free)
	assert.EqualValues(t, look.MaxMembers+1, found.States[0].Members)
	assert.Len(t, found.States[0].Permits, 20)
}

// The keys of other limiters are named for what they look like. Nothing calls them broken, or would have them deleted.
func TestShow_NamesKeysOfOtherLimiters(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
take fixed-window win --limit 10/1h                   => ...
take sliding-log log --limit 10/1h --thresholds hash  => ...
take token-bucket bucket --limit 10+1/1h              => ...
threshold log 5 --thresholds hash                     => ...
`)
	require.NoError(t, s.Set("text", "x"))
	for name, like := range map[string]string{
		"win": "a string that expires in 1h, as of a fixed window or a token bucket", "log": "a sorted set that expires in 1h, as of a sliding log",
		"bucket": "a string that expires in ", "hash": "a hash, which may be the thresholds of sliding logs", "text": "a string\n",
	} {
		shown := s.rrl("show %s", name)
		assert.Equal(t, exitNo, shown.code, name)
		assert.Contains(t, shown.stdout, "key "+name+" is no RateLimiter's. It is "+like)
		found := object(t, s.rrl("show %s --json", name).stdout)
		assert.NotContains(t, found, "broken", name)
		assert.NotContains(t, found, "state", name)
		for _, command := range []string{"show", "delete", "reset", "expire --clear", "release", "watch --count 1"} {
			got := s.rrl("%s %s", command, name)
			assert.NotContains(t, got.stdout+got.stderr, "--force", command)
			assert.NotContains(t, got.stdout+got.stderr, "broken", command)
		}
		assert.True(t, s.Exists(name), name)
	}
}

// A hold's member is dated as if it had lasted an interval: it shows when the permits come back, not how old they are.
func TestShow_SaysWhenHoldsComeBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	l := limitertest.NewClient(t, s.rdb).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerDay(2)))
	limitertest.Reserve(t, l, 2, rratelimiter.Hold(time.Minute))
	shown := s.rrl("show orders").stdout
	assert.Regexp(t, `\n  - by a client without a name, \w+ +2, the first back in (1m|59)`, shown)
	assert.Regexp(t, `\n  BACK IN +PERMITS +LAYOUT +ID\n  (1m|59)`, shown)
	assert.Regexp(t, `next permit in (1m|59).*, none granted for up to 23h59m`, shown)
	assert.NotContains(t, shown, "oldest")
}

// A large set takes several calls of the script, and permits that have run out are no
// longer in use.
func TestReleaseOfManyMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	written{hash: config(10_000, 3_600_000), value: 10_000 - 1000 - 50}.put(t, s.rdb, name)
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", 2*time.Hour, 50, 1)
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", time.Second, 1000, 1)
	s.play(`
release NAME -n 300  => gave back 300 permits
release NAME -n 5000 => gave back 700 permits, no more were in use
`, "NAME", name)
	assert.EqualValues(t, 10_000, *s.show("%q", name).States[0].Free)
}

// What may have happened is not done twice, and not said to have been done.
func TestRelease_LostAnswerIsUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := alone(t)
	proxy := redistest.StartProxy(t, s.addr)
	s.play("set-rate orders 10/1h => ...\nacquire orders -n 9 => ...\n")
	var sent atomic.Int64
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() == "evalsha" && c.Args[1] == lua.Release.SHA || c.Name() == "eval" && c.Args[1] == lua.Release.Source {
			sent.Add(1)
			if c.Name() == "eval" {
				return redistest.DropAnswer
			}
		}
		return redistest.Pass
	})
	got := rrl(t, "release orders -n 3 --redis %s", proxy.Addr())
	assert.Equal(t, exitError, got.code)
	assert.Empty(t, got.stdout)
	assert.Regexp(t, `^rrl: orders: outcome unknown`, got.stderr)
	assert.LessOrEqual(t, sent.Load(), int64(2), "by its hash, then by its source")
	assert.EqualValues(t, 4, *s.show("orders").States[0].Free)
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		permits  int64
		interval time.Duration
	}{
		"100/1s":              {100, time.Second},
		"5/500ms":             {5, 500 * time.Millisecond},
		"1000/1h":             {1000, time.Hour},
		"1/1ms":               {1, time.Millisecond},
		"7/1m30s":             {7, 90 * time.Second},
		"3/1.5s":              {3, 1500 * time.Millisecond},
		"9007199254740991/1s": {rratelimiter.MaxRate, time.Second},
		"10/s":                {10, time.Second},
		"10/m":                {10, time.Minute},
		"10/h":                {10, time.Hour},
		"10/d":                {10, 24 * time.Hour},
		"10/ms":               {10, time.Millisecond},
		"10/1d":               {10, 24 * time.Hour},
		"5/90s":               {5, 90 * time.Second},
		"5/1d12h":             {5, 36 * time.Hour},
		"5/0.5d":              {5, 12 * time.Hour},
		"1/106751d":           {1, 106_751 * 24 * time.Hour},
	} {
		permits, interval, err := parseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want.permits, permits, text)
		assert.Equal(t, want.interval, interval, text)
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	const (
		form     = "want permits/interval, such as 100/s, 5/500ms or 1000/1d"
		permits  = " is not a number of permits, 1 to 9007199254740991"
		interval = " is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d"
	)
	for text, want := range map[string]string{
		"":                    form,
		"100":                 form,
		"/1s":                 `""` + permits,
		"0/s":                 `"0"` + permits,
		"0/1s":                `"0"` + permits,
		"many/1s":             `"many"` + permits,
		"1.5/1s":              `"1.5"` + permits,
		"-1/1s":               `"-1"` + permits,
		"9007199254740992/1s": `"9007199254740992"` + permits,
		"1/1.5ms":             `"1.5ms" is not a whole number of milliseconds`,
		"1/":                  `""` + interval,
		"1/1":                 `"1"` + interval,
		"1/min":               `"min"` + interval,
		"1/1s/1s":             `"1s/1s"` + interval,
		"1/0s":                `"0s"` + interval,
		"1/0d":                `"0d"` + interval,
		"1/-1s":               `"-1s"` + interval,
		"1/1us":               `"1us"` + interval,
		"1/106752d":           `"106752d"` + interval,
		"1/99999999999d":      `"99999999999d"` + interval,
		"1/1d-1s":             `"1d-1s"` + interval,
		"1/2h1d":              `"2h1d"` + interval,
		"1/1dd":               `"1dd"` + interval,
	} {
		_, _, err := parseRate(text)
		assert.ErrorContains(t, err, want, text)
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s", "10/d",
		"1/106751d1h", "1/0.1d2h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		permits, interval, err := parseRate(text)
		if err != nil {
			if permits != 0 || interval != 0 {
				t.Errorf("%q: %d, %v beside %v", text, permits, interval, err)
			}
			return
		}
		if permits < 1 || permits > rratelimiter.MaxRate || interval < time.Millisecond || interval%time.Millisecond != 0 {
			t.Errorf("%q: %d, %v", text, permits, interval)
		}
		written := words.ShortRate(permits, interval.Milliseconds())
		if again, same, err := parseRate(written); err != nil || again != permits || same != interval {
			t.Errorf("%q is written as %q, which is %d, %v, %v", text, written, again, same, err)
		}
	})
}
