package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const hour = int64(3600_000)

// A rig is a limiter that all clients share, whose interval is an hour, for scripts to work with.
type rig struct {
	*testing.T

	rdb  redistest.Client
	keys []string // as redisson.Keys lists them
	rate int64
}

// newRig returns a full limiter.
func newRig(t *testing.T, rdb redistest.Client, rate int64) *rig {
	t.Helper()
	l := &rig{t, rdb, redisson.KeysOf("{"+redistest.Name(t)+"}", "id").List(), rate}
	l.config("rate", rate, "interval", hour, "type", 0)
	require.NoError(t, rdb.Set(t.Context(), l.keys[1], rate, 0).Err())
	return l
}

// config sets fields of the configuration.
func (l *rig) config(fields ...any) {
	require.NoError(l, l.rdb.HSet(l.Context(), l.keys[0], fields...).Err())
}

// loses removes keys.
func (l *rig) loses(keys ...string) { require.NoError(l, l.rdb.Del(l.Context(), keys...).Err()) }

// now is the server's, in ms.
func (l *rig) now() int64 { return l.rdb.Time(l.Context()).Val().UnixMilli() }

// A row is a member of the set, and its time.
func row(at int64, member string) redis.Z { return redis.Z{Score: float64(at), Member: member} }

// grants are rows of one permit each.
func grants(n int, layout codec.Layout, at func(i int) int64) (rows []redis.Z) {
	for i := range n {
		rows = append(rows, row(at(i), memberOf(layout, i)))
	}
	return rows
}

// grant puts rows into the set, and takes their permits off the value.
func (l *rig) grant(rows ...redis.Z) {
	sum := int64(0)
	for _, z := range rows {
		sum += permits(l.T, z.Member.(string))
	}
	require.NoError(l, l.rdb.ZAdd(l.Context(), l.keys[3], rows...).Err())
	require.NoError(l, l.rdb.DecrBy(l.Context(), l.keys[1], sum).Err())
}

// release takes permits off a member, to leave so many.
func (l *rig) release(member string, left int64) {
	at, back := l.rdb.ZScore(l.Context(), l.keys[3], member).Val(), permits(l.T, member)
	require.EqualValues(l, 1, l.rdb.ZRem(l.Context(), l.keys[3], member).Val())
	require.NoError(l, l.rdb.IncrBy(l.Context(), l.keys[1], back).Err())
	if left > 0 {
		l.grant(row(int64(at), with(member, left)))
	}
}

// rows are those of the set, the oldest first.
func (l *rig) rows() []redis.Z { return l.rdb.ZRangeWithScores(l.Context(), l.keys[3], 0, -1).Val() }

// value is the text of the free permits.
func (l *rig) value() string { return l.rdb.Get(l.Context(), l.keys[1]).Val() }

// check checks how many permits are in use, and that the others are free.
func (l *rig) check(inUse int64) {
	l.Helper()
	sum := int64(0)
	for _, z := range l.rows() {
		sum += permits(l.T, z.Member.(string))
	}
	assert.Equal(l, inUse, sum, "permits in use")
	if value := l.value(); value != "" {
		assert.Equal(l, fmt.Sprint(l.rate-inUse), value, "free permits")
	}
}

func (l *rig) eval(s *Script, args ...any) any {
	l.Helper()
	answer, err := l.rdb.Eval(l.Context(), s.Source, l.keys, args...).Result()
	require.NoError(l, err)
	return answer
}

// until calls a script until it has done all, and returns how often; its token is an argument.
func (l *rig) until(s *Script, token int, args ...any) (answer any, calls int) {
	l.Helper()
	for calls = 1; ; calls++ {
		require.Less(l, calls, 100)
		answer = l.eval(s, args...)
		again, ok := answer.([]any)
		if !ok || again[0] != "again" {
			return answer, calls
		}
		args[token] = again[1]
	}
}

func permits(t *testing.T, text string) int64 {
	t.Helper()
	m, err := codec.Parse(text)
	require.NoError(t, err)
	return int64(m.Permits)
}

// member packs permits as layout D2.
func member(permits byte) string {
	return "\x10" + strings.Repeat("i", 16) + string([]byte{permits, 0, 0, 0})
}

// other is a member of another attempt than member's.
func other(permits byte) string { return strings.ReplaceAll(member(permits), "i", "j") }

// memberOf returns a member for one permit, with an id of its own.
func memberOf(layout codec.Layout, n int) string {
	size := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[layout]
	m, err := codec.Append(nil, layout, fmt.Appendf(nil, "%0*d", size, n), 1)
	if err != nil {
		panic(err) // the layouts are those above
	}
	return string(m)
}

// with returns a member with other permits.
func with(member string, permits int64) string {
	return string(redisson.WithPermits([]byte(member), permits))
}

// fastPathCalls ask for one permit of a shared limiter, as the fast path takes it.
// Each returns the answer of acquire, and 0 of acquire_many if acquire decides.
var fastPathCalls = map[string]func(l *rig, member string) (any, error){
	"acquire": func(l *rig, member string) (any, error) {
		return l.rdb.Eval(l.Context(), Acquire.Source, l.sharedKeys(), member).Result()
	},
	"acquire_many": func(l *rig, member string) (any, error) {
		all, err := l.rdb.Eval(l.Context(), AcquireMany.Source, l.sharedKeys(), 1, member, 1).Slice()
		if err != nil {
			return nil, err
		}
		return all[0], nil
	},
}

func (l *rig) sharedKeys() []string { return []string{l.keys[0], l.keys[1], l.keys[3]} }

// eachFastPathCall runs a test with either call, on a limiter of 3 permits an hour of which
// that many are in use, by one member of that age.
func eachFastPathCall(t *testing.T, used byte, age time.Duration, test func(l *rig, call func(member string) (any, error))) {
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for _, call := range fastPathCalls {
			l := newRig(t, rdb, 3)
			if used > 0 {
				l.grant(row(l.now()-age.Milliseconds(), member(used)))
			}
			test(l, func(member string) (any, error) { return call(l, member) })
		}
	})
}

// permitsGranted makes the call, and acquire's if that is to decide, and returns how many permits it was granted.
func (l *rig) permitsGranted(call func(string) (any, error), member string) any {
	l.Helper()
	got, err := call(member)
	require.NoError(l, err)
	if got == int64(0) {
		got, err = fastPathCalls["acquire"](l, member)
		require.NoError(l, err)
	}
	if figures, ok := got.([]any); ok {
		return figures[2]
	}
	return got
}

// A late attempt finds an exhausted limiter, whose permits may have come back since: it
// takes none of them. While they are in use its answer is a refusal like any other.
func TestAcquire_LateAttemptTakesNothingOfExhaustedLimiter(t *testing.T) {
	t.Parallel()
	for age, come := range map[time.Duration]bool{time.Minute: false, 2 * time.Hour: true} {
		eachFastPathCall(t, 3, age, func(l *rig, call func(string) (any, error)) {
			late := other(1)
			l.config("answered", fmt.Sprintf("%d:%x;", l.now(), late[:len(late)-4]))
			noted := l.rdb.HGetAll(l.Context(), l.keys[0]).Val()
			got, err := call(late)
			switch {
			case !come:
				require.NoError(l, err)
				assert.InDelta(l, -(59 * time.Minute).Milliseconds(), got, 5000)
				got, err = call(strings.ReplaceAll(late, "j", "k"))
				require.NoError(l, err)
				assert.InDelta(l, -(59 * time.Minute).Milliseconds(), got, 5000)
				assert.Equal(l, noted, l.rdb.HGetAll(l.Context(), l.keys[0]).Val())
			case err != nil:
				assert.True(l, redis.HasErrorPrefix(err, "LATE"), err)
			default:
				assert.EqualValues(l, 0, got)
			}
			l.check(3)
			assert.Len(l, l.rows(), 1)
		})
	}
}

// A grant gives the value and the permits the configuration's time to live, whatever they had.
func TestAcquire_GivesAllKeysOneTimeToLive(t *testing.T) {
	t.Parallel()
	const none, same, longer = time.Duration(0), 2 * time.Hour, 3 * time.Hour
	for _, tc := range []struct {
		value, permits time.Duration
		most           byte // permits in use before
	}{
		{none, none, 1}, {same, none, 1}, {none, same, 1}, {same, same, 1}, {longer, same, 1}, {same, longer, 1}, {same, time.Hour, 1},
		{40 * time.Minute, none, 0}, // a full value with an end of its own counts no window, of which nothing was in use
	} {
		t.Run(tc.value.String()+" "+tc.permits.String(), func(t *testing.T) {
			t.Parallel()
			for used := range tc.most + 1 {
				eachFastPathCall(t, used, time.Minute, func(l *rig, call func(string) (any, error)) {
					now := time.UnixMilli(l.now())
					for i, ttl := range map[int]time.Duration{0: same, 1: tc.value, 3: tc.permits} {
						if ttl > 0 {
							require.NoError(l, l.rdb.PExpireAt(l.Context(), l.keys[i], now.Add(ttl)).Err())
						}
					}
					require.EqualValues(l, 1, l.permitsGranted(call, other(1)))
					want := l.rdb.PTTL(l.Context(), l.keys[0]).Val()
					for _, key := range []string{l.keys[1], l.keys[3]} {
						assert.InDelta(l, want, l.rdb.PTTL(l.Context(), key).Val(), float64(time.Second), key)
					}
				})
			}
		})
	}
}

// The first grant of a full limiter makes the set. If that is all that lacks the limiter's
// time to live, the fast path gives it and decides.
func TestAcquire_GivesNewSetATimeToLive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		end := time.Now().Add(time.Hour)
		for name, call := range fastPathCalls {
			l := newRig(t, rdb, 3)
			for _, key := range l.keys[:2] {
				require.NoError(t, rdb.PExpireAt(t.Context(), key, end).Err())
			}
			for free := range 3 {
				got, err := call(l, strings.ReplaceAll(member(1), "i", fmt.Sprint(free)))
				require.NoError(t, err)
				assert.Equal(t, int64(1), got, "%s: the fast path decides", name)
			}
			l.check(3)
			for _, key := range l.sharedKeys() {
				assert.Equal(t, time.Until(end), rdb.PTTL(t.Context(), key).Val(), key)
			}
		}
	})
}

// If all have one time to live, a grant writes none.
func TestAcquire_WritesNoTimeToLiveTwice(t *testing.T) {
	t.Parallel()
	l := newRig(t, redistest.StartRedis(t).Client(t, nil), 1000)
	require.NoError(t, l.rdb.PExpire(t.Context(), l.keys[0], time.Hour).Err())
	const grants = 15 // none of them in the general path but the first
	for i := range grants {
		_, err := fastPathCalls["acquire"](l, strings.ReplaceAll(member(1), "i", string(rune('a'+i))))
		require.NoError(t, err)
	}
	var n int
	_, calls, _ := strings.Cut(l.rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_pexpire:calls=")
	_, err := fmt.Sscan(strings.ReplaceAll(calls, ",", " "), &n)
	require.NoError(t, err)
	assert.Less(t, n, grants, "of two for each grant")
}

// The list holds the attempts that a repeat decided last, each of them whole:
// their late copies take nothing.
func TestAcquire_NotesLast31Attempts(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for layout, noted := range map[codec.Layout]int{codec.LayoutD2: 31, codec.LayoutD1: 46, codec.LayoutC: 32, codec.LayoutB: 66} {
			l := newRig(t, rdb, 1000)
			const attempts = 70
			for i := range attempts {
				l.eval(Acquire, memberOf(layout, i), 1, "", "", 0)
			}
			list := rdb.HGet(t.Context(), l.keys[0], "answered").Val()
			assert.Equal(t, noted, strings.Count(list, ":"), "layout %v", layout)
			assert.Regexp(t, `^(\d{13}:([0-9a-f]{2})+;)+$`, list, "layout %v", layout)
			l.loses(l.keys[1:]...) // so that late copies could be granted
			for i := range attempts {
				err := rdb.Eval(t.Context(), Acquire.Source, l.keys, memberOf(layout, i), 1).Err()
				assert.Equal(t, i >= attempts-noted, redis.HasErrorPrefix(err, "LATE"), "layout %v, attempt %d: %v", layout, i, err)
			}
		}
	})
}

// A repeated charge ends though a key of a limiter with many members is lost. If it was made
// before, it leaves a lost configuration as it is.
func TestSettle_RepeatedChargeMeetsLostKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for lost, made := range []int{0, 0, 1, 1} {
			l, now := newRig(t, rdb, 1000), time.Now().UnixMilli()
			l.grant(append(grants(600, codec.LayoutD2, func(int) int64 { return now }), []redis.Z{row(now, other(2))}[:made]...)...)
			l.loses(l.keys[lost%2])
			answer, calls := l.until(SettleReservation, 6, member(3), 5, other(2), 0, 0, "60000", "", "1000 3600000 0 0")
			assert.EqualValues(t, -2, answer)
			assert.Less(t, calls, 20)
			l.eval(Acquire, member(1), 1, "1000 3600000 0 0")
			assert.Positive(t, rdb.ZScore(t.Context(), l.keys[3], other(2)).Val())
		}
	})
}

// ofClients are the scripts that have nothing to do with limiters.
var ofClients = []*Script{NoteClient, Pause}

func TestPause_IsOnlyExtended(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		key := redistest.Name(t)
		for _, c := range []struct{ ms, longer, most int }{
			{60_000, 1, 60_000}, {30_000, 0, 60_000}, {90_000, 1, 90_000}, {1, 0, 90_000}, {0, 0, 90_000}, {-1, 0, 90_000},
		} {
			got, err := rdb.Eval(t.Context(), Pause.Source, []string{key}, c.ms, 429).Result()
			require.NoError(t, err)
			assert.EqualValues(t, c.longer, got, c)
			assert.InDelta(t, c.most, rdb.PTTL(t.Context(), key).Val().Milliseconds(), 10_000)
			assert.Equal(t, "429", rdb.Get(t.Context(), key).Val())
		}
		require.NoError(t, rdb.Persist(t.Context(), key).Err())
		require.NoError(t, rdb.Eval(t.Context(), Pause.Source, []string{key}, 60_000, 503).Err())
		assert.Positive(t, rdb.PTTL(t.Context(), key).Val(), "none is without end")
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		require.NoError(t, rdb.HSet(t.Context(), key, "rate", 1).Err())
		require.ErrorContains(t, rdb.Eval(t.Context(), Pause.Source, []string{key}, 60_000, 429).Err(), "WRONGTYPE")
		assert.Equal(t, map[string]string{"rate": "1"}, rdb.HGetAll(t.Context(), key).Val())
	})
}

func TestNamesOfClients(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		key := redistest.Name(t)
		note := func(client string, life int) {
			got, err := rdb.Eval(t.Context(), NoteClient.Source, []string{key}, client, life).Result()
			require.NoError(t, err)
			assert.EqualValues(t, 1, got)
		}
		past := float64(time.Now().Add(-time.Hour).UnixMilli())
		for i := range 300 {
			require.NoError(t, rdb.ZAdd(t.Context(), key, redis.Z{Score: past, Member: fmt.Sprint("old ", i)}).Err())
		}
		note("first", 3_600_000)
		assert.EqualValues(t, 300+1-256, rdb.ZCard(t.Context(), key).Val(), "so many are forgotten a call")
		note("second", 3_600_001)
		assert.Equal(t, []string{"first", "second"}, rdb.ZRange(t.Context(), key, 0, -1).Val())
		assert.InDelta(t, time.Hour, rdb.PTTL(t.Context(), key).Val(), float64(time.Minute))
	})
}

// Programs are ordered by the server's clock: one whose own was 45 s ahead when it began does not keep
// the default of one that began after it out.
func TestOtherDefault_OrdersProgramsByTheServersClock(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	server := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	m.SetTime(server)
	// fallback is the default of a program that began so long ago, by a clock that is off by so much.
	fallback := func(rate int, ago, off time.Duration) string {
		return fmt.Sprintf("%d 60000 0 0 %d %d", rate, server.Add(off-ago).UnixMicro(), ago.Milliseconds())
	}
	const older, newer = "older", "newer"
	for name, c := range map[string]struct {
		ago, off           time.Duration // of the program that made the limiter
		laterAgo, laterOff time.Duration
		want               string
	}{
		"right clocks":                    {20 * time.Second, 0, 10 * time.Second, 0, older},
		"right clocks, of one second":     {10 * time.Second, 0, 10*time.Second - time.Millisecond, 0, older},
		"the other began before":          {10 * time.Second, 0, 20 * time.Second, 0, newer},
		"the first was ahead":             {20 * time.Second, 45 * time.Second, 10 * time.Second, 0, older},
		"the first was far ahead":         {20 * time.Second, time.Hour, 10 * time.Second, 0, older},
		"the other is ahead":              {10 * time.Second, 0, 20 * time.Second, 45 * time.Second, newer},
		"the other was behind":            {20 * time.Second, 0, 10 * time.Second, -time.Hour, older},
		"both are off, and began as one":  {10 * time.Second, time.Hour, 9 * time.Second, time.Hour, newer},
		"both are off, in the same way":   {20 * time.Second, time.Hour, 10 * time.Second, time.Hour, older},
		"both are off, in different ways": {20 * time.Second, time.Hour, 10 * time.Second, -time.Hour, older},
	} {
		l := newRig(t, rdb, 3)
		l.loses(l.keys...)
		later := fallback(4, c.laterAgo, c.laterOff)
		l.eval(Acquire, member(1), 1, fallback(3, c.ago, c.off), "d")
		got := l.eval(Acquire, member(2), 1, later, "d").([]any)
		set, ago := l.eval(SetRate, 4, 60000, 0, 0, "1", later, ""), c.ago
		if c.want == older {
			assert.Equal(t, []any{"default", int64(3), int64(60000), int64(0), int64(0)}, got, name)
			assert.Equal(t, int64(1), set, name)
			ago = c.laterAgo
		} else {
			assert.Equal(t, int64(4), got[6], name)
			assert.Equal(t, int64(0), set, name)
		}
		assert.Equal(t, fmt.Sprint(server.Add(-ago).UnixMicro()), strings.Fields(rdb.HGet(t.Context(), l.keys[0], "default").Val())[4], name)
	}
}

// An override that is taken back is older than each program's default. It counts until one replaces it, and
// permits in use stay counted. A default stays as it is.
func TestUseDefault_LetsTheNextDefaultReplaceAnOverride(t *testing.T) {
	t.Parallel()
	const fallback = "3 60000 0 90000 1700000000000000"
	field := func(l *rig, name string) string { return l.rdb.HGet(l.Context(), l.keys[0], name).Val() }
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l := newRig(t, rdb, 3)
		l.loses(l.keys...)
		l.eval(Acquire, member(1), 1, fallback, "d")
		assert.Equal(t, int64(0), l.eval(UseDefault), "a default")
		assert.Equal(t, fallback, field(l, "default"))

		l.eval(SetRate, 5, 60000, 0, 0, "1", 0, "")
		assert.Equal(t, int64(1), l.eval(Acquire, other(1), 1, fallback, "d"), "an override")
		assert.Equal(t, int64(1), l.eval(UseDefault))
		assert.Equal(t, int64(0), l.eval(UseDefault), "again")
		assert.Equal(t, []any{int64(5), int64(60000), int64(0), int64(0)}, l.eval(Config), "the rate stays until then")
		assert.Equal(t, []any{"default", int64(5), int64(60000), int64(0), int64(0)}, l.eval(Acquire, other(2), 1, fallback, "d"))
		assert.Equal(t, int64(1), l.eval(SetRate, 3, 60000, 0, 90000, "1", fallback, ""))
		assert.Equal(t, []any{int64(1), int64(0)}, l.eval(Available, ""), "of the permits taken before none is free")

		// One that has an end ends: what it would have gone back to, a default or not, counts.
		l = newRig(t, rdb, 3)
		l.loses(l.keys...)
		l.eval(Acquire, member(1), 1, fallback, "d")
		for _, want := range []string{fallback, "4 60000 0 0 0"} {
			l.eval(SetRate, 50, 30000, 0, 0, "1", "for 3600000 ", "")
			l.eval(Acquire, member(3), 1, "", "")
			assert.Equal(t, int64(1), l.eval(UseDefault))
			assert.Equal(t, want, field(l, "default"))
			assert.True(t, strings.HasPrefix(want, field(l, "rate")+" "+field(l, "interval")+" "))
			assert.Empty(t, field(l, "override"))
			assert.Equal(t, int64(0), l.eval(UseDefault), "again")
			l.eval(SetRate, 4, 60000, 0, 0, "1", 0, "")
		}

		l = newRig(t, rdb, 5) // an older Redisson writes no keep-alive time
		assert.Equal(t, int64(1), l.eval(UseDefault))
		assert.Equal(t, "5 3600000 0 0 0", field(l, "default"))
		l.config("rate", "x")
		err := rdb.Eval(t.Context(), UseDefault.Source, l.keys).Err()
		assert.True(t, redis.HasErrorPrefix(err, "CORRUPT 1 rate"), err)
	})
}

// acquire_all names the damaged key by its number among all keys, and takes the
// default and the time to live of each limiter from its own configuration.
func TestAcquireAllTellsLimitersApart(t *testing.T) {
	t.Parallel()
	for text, damage := range map[string]func(l *rig) error{
		"CORRUPT 8 value":   func(l *rig) error { return l.rdb.Set(l.Context(), l.keys[7], "x", 0).Err() },
		"CORRUPT 10 member": func(l *rig) error { return l.rdb.ZAdd(l.Context(), l.keys[9], row(1, "x")).Err() },
	} {
		rdb, _ := redistest.Mini(t)
		l, second := newRig(t, rdb, 3), newRig(t, rdb, 3)
		l.config("type", 1)
		second.config("type", 1)
		l.keys = append(l.keys, second.keys...)
		require.NoError(t, rdb.PExpire(t.Context(), l.keys[5], 5*time.Second).Err())
		l.eval(AcquireAll, member(1), 1, "s", "", "", "", "")
		assert.LessOrEqual(t, rdb.PTTL(t.Context(), l.keys[7]).Val(), 5*time.Second)
		require.NoError(t, rdb.HSet(t.Context(), l.keys[5], "default", "3 3600000 1 0 1").Err())
		got := l.eval(AcquireAll, member(1), 1, "s", "", "", "", "d9 3600000 1 0 2")
		assert.Equal(t, []any{"default", int64(2), int64(3), hour, int64(1), int64(0)}, got)
		require.NoError(t, damage(l))
		err := rdb.Eval(t.Context(), AcquireAll.Source, l.keys, member(1), 1, "s", "", "", "", "").Err()
		assert.True(t, redis.HasErrorPrefix(err, text), err)
	}
}
