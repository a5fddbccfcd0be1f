package lua

import (
	"encoding/hex"
	"fmt"
	"strconv"
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

// fastPathCalls ask for one permit of a shared limiter, as the fast path takes it.
// Each returns the answer of acquire, and 0 of acquire_many if acquire decides.
var fastPathCalls = map[string]func(t *testing.T, rdb redistest.Client, keys redisson.Keys, member string) (any, error){
	"acquire": func(t *testing.T, rdb redistest.Client, keys redisson.Keys, member string) (any, error) {
		return rdb.Eval(t.Context(), Acquire.Source, []string{keys.Config, keys.Value, keys.Permits}, member).Result()
	},
	"acquire_many": func(t *testing.T, rdb redistest.Client, keys redisson.Keys, member string) (any, error) {
		all, err := rdb.Eval(t.Context(), AcquireMany.Source, []string{keys.Config, keys.Value, keys.Permits}, 1, member, 1).Slice()
		if err != nil {
			return nil, err
		}
		return all[0], nil
	},
}

// eachFastPathCall runs a test with either call, on a limiter of 3 permits an hour of which
// that many are in use, by one member of that age.
func eachFastPathCall(t *testing.T, used int, age time.Duration,
	test func(t *testing.T, rdb redistest.Client, keys redisson.Keys, call func(member string) (any, error))) {
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for name, call := range fastPathCalls {
			keys := redisson.KeysOf(redistest.Name(t)+name, "id")
			require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", 3, "interval", time.Hour.Milliseconds(), "type", 0).Err())
			now, err := rdb.Time(t.Context()).Result()
			require.NoError(t, err)
			require.NoError(t, rdb.Set(t.Context(), keys.Value, 3-used, 0).Err())
			if used > 0 {
				require.NoError(t, rdb.ZAdd(t.Context(), keys.Permits,
					redis.Z{Score: float64(now.Add(-age).UnixMilli()), Member: member(byte(used))}).Err())
			}
			test(t, rdb, keys, func(member string) (any, error) { return call(t, rdb, keys, member) })
			require.NoError(t, rdb.Del(t.Context(), keys.List()...).Err())
		}
	})
}

// permitsGranted makes the call, and acquire's if that is to decide, and returns how many permits it was granted.
func permitsGranted(t *testing.T, rdb redistest.Client, keys redisson.Keys, call func(string) (any, error), member string) any {
	t.Helper()
	got, err := call(member)
	require.NoError(t, err)
	if got == int64(0) {
		got, err = fastPathCalls["acquire"](t, rdb, keys, member)
		require.NoError(t, err)
	}
	if figures, ok := got.([]any); ok {
		return figures[2]
	}
	return got
}

// other is a member of another attempt than member's.
func other(permits byte) string { return strings.ReplaceAll(member(permits), "i", "j") }

func noteOf(t *testing.T, rdb redistest.Client, keys redisson.Keys, member string) {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	note := strconv.FormatInt(now.UnixMilli(), 10) + ":" + hex.EncodeToString([]byte(member[:len(member)-4])) + ";"
	require.NoError(t, rdb.HSet(t.Context(), keys.Config, "answered", note).Err())
}

// A late attempt finds an exhausted limiter, whose permits may have come back since: it
// takes none of them. While they are in use its answer is a refusal like any other.
func TestAcquire_LateAttemptTakesNothingOfExhaustedLimiter(t *testing.T) {
	t.Parallel()
	for age, come := range map[time.Duration]bool{time.Minute: false, 2 * time.Hour: true} {
		eachFastPathCall(t, 3, age, func(t *testing.T, rdb redistest.Client, keys redisson.Keys, call func(string) (any, error)) {
			noteOf(t, rdb, keys, other(1))
			noted := rdb.HGetAll(t.Context(), keys.Config).Val()
			got, err := call(other(1))
			switch {
			case !come:
				require.NoError(t, err)
				assert.InDelta(t, -(59 * time.Minute).Milliseconds(), got, 5000)
				got, err = call(strings.ReplaceAll(other(1), "j", "k"))
				require.NoError(t, err)
				assert.InDelta(t, -(59 * time.Minute).Milliseconds(), got, 5000)
				assert.Equal(t, noted, rdb.HGetAll(t.Context(), keys.Config).Val())
			case err != nil:
				assert.True(t, redis.HasErrorPrefix(err, "LATE"), err)
			default:
				assert.EqualValues(t, 0, got)
			}
			assert.Equal(t, "0", rdb.Get(t.Context(), keys.Value).Val())
			assert.Equal(t, []string{member(3)}, rdb.ZRange(t.Context(), keys.Permits, 0, -1).Val())
		})
	}
}

// A grant gives the value and the permits the configuration's time to live,
// whatever they had.
func TestAcquire_GivesAllKeysOneTimeToLive(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Hour
	none, same := time.Duration(0), ttl
	for _, tc := range []struct{ value, permits time.Duration }{
		{none, none}, {same, none}, {none, same}, {same, same}, {3 * time.Hour, same}, {same, 3 * time.Hour}, {same, time.Hour},
	} {
		t.Run(tc.value.String()+" "+tc.permits.String(), func(t *testing.T) {
			t.Parallel()
			for _, used := range []int{0, 1} {
				eachFastPathCall(t, used, time.Minute, func(t *testing.T, rdb redistest.Client, keys redisson.Keys, call func(string) (any, error)) {
					now, err := rdb.Time(t.Context()).Result()
					require.NoError(t, err)
					for key, ttl := range map[string]time.Duration{keys.Config: ttl, keys.Value: tc.value, keys.Permits: tc.permits} {
						if ttl > 0 {
							require.NoError(t, rdb.PExpireAt(t.Context(), key, now.Add(ttl)).Err())
						}
					}
					require.EqualValues(t, 1, permitsGranted(t, rdb, keys, call, other(1)))
					want := rdb.PTTL(t.Context(), keys.Config).Val()
					for _, key := range []string{keys.Value, keys.Permits} {
						assert.InDelta(t, want, rdb.PTTL(t.Context(), key).Val(), float64(time.Second), key)
					}
				})
			}
		})
	}
}

// So does a grant of a full value with an end of its own: it counts no window, of which
// nothing was in use.
func TestAcquire_GivesFullValueATimeToLive(t *testing.T) {
	t.Parallel()
	eachFastPathCall(t, 0, 0, func(t *testing.T, rdb redistest.Client, keys redisson.Keys, call func(string) (any, error)) {
		require.NoError(t, rdb.PExpire(t.Context(), keys.Config, 2*time.Hour).Err())
		require.NoError(t, rdb.PExpire(t.Context(), keys.Value, 40*time.Minute).Err())
		require.EqualValues(t, 1, permitsGranted(t, rdb, keys, call, other(1)))
		assert.InDelta(t, 2*time.Hour, rdb.PTTL(t.Context(), keys.Value).Val(), float64(time.Minute))
	})
}

// The first grant of a full limiter makes the set. If that is all that lacks the limiter's
// time to live, the fast path gives it and decides.
func TestAcquire_GivesNewSetATimeToLive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		end := time.Now().Add(time.Hour)
		for name, call := range fastPathCalls {
			keys := redisson.KeysOf(redistest.Name(t)+name, "id")
			require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", 3, "interval", 60_000, "type", 0).Err())
			require.NoError(t, rdb.Set(t.Context(), keys.Value, 3, 0).Err())
			require.NoError(t, rdb.PExpireAt(t.Context(), keys.Config, end).Err())
			require.NoError(t, rdb.PExpireAt(t.Context(), keys.Value, end).Err())
			for free := range 3 {
				got, err := call(t, rdb, keys, strings.ReplaceAll(member(1), "i", strconv.Itoa(free)))
				require.NoError(t, err)
				assert.Equal(t, int64(1), got, "%s: the fast path decides", name)
			}
			assert.Equal(t, "0", rdb.Get(t.Context(), keys.Value).Val(), name)
			for _, key := range []string{keys.Config, keys.Value, keys.Permits} {
				assert.Equal(t, time.Until(end), rdb.PTTL(t.Context(), key).Val(), key)
			}
		}
	})
}

// If all have one time to live, a grant writes none.
func TestAcquire_WritesNoTimeToLiveTwice(t *testing.T) {
	t.Parallel()
	s := redistest.StartRedis(t)
	rdb := s.Client(t, nil)
	keys := redisson.KeysOf("limiter", "id")
	require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", 1000, "interval", 60000, "type", 0).Err())
	require.NoError(t, rdb.PExpire(t.Context(), keys.Config, time.Hour).Err())
	const grants = 15 // none of them in the general path but the first
	for i := range grants {
		m := strings.ReplaceAll(member(1), "i", string(rune('a'+i)))
		require.NoError(t, rdb.Eval(t.Context(), Acquire.Source, []string{keys.Config, keys.Value, keys.Permits}, m).Err())
	}
	stats := rdb.Info(t.Context(), "commandstats").Val()
	_, calls, found := strings.Cut(stats, "cmdstat_pexpire:calls=")
	require.True(t, found)
	calls, _, _ = strings.Cut(calls, ",")
	n, err := strconv.Atoi(calls)
	require.NoError(t, err)
	assert.Less(t, n, grants, "of two for each grant")
}

// The shared value of a limiter of which each client has its own belongs to none.
func TestAcquire_PerClientIgnoresSharedValue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		keys := redisson.KeysOf(redistest.Name(t), "id")
		require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", 3, "interval", 60000, "type", 1).Err())
		require.NoError(t, rdb.RPush(t.Context(), keys.Value, "of something else").Err())
		got, err := rdb.Eval(t.Context(), Acquire.Source, keys.List(), member(1)).Slice()
		require.NoError(t, err)
		assert.EqualValues(t, 1, got[2])
		require.NoError(t, rdb.Del(t.Context(), keys.List()...).Err())
	})
}

// The list holds the attempts that a repeat decided last, each of them whole:
// their late copies take nothing.
func TestAcquire_NotesLast31Attempts(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for layout, noted := range map[codec.Layout]int{codec.LayoutD2: 31, codec.LayoutD1: 46, codec.LayoutC: 32, codec.LayoutB: 66} {
			name := redistest.Name(t)
			all := redisson.KeysOf(name, "id").List()
			require.NoError(t, rdb.HSet(t.Context(), name, "rate", 1000, "interval", 3600000, "type", 0).Err())
			const attempts = 70
			ids := make([]string, attempts)
			for i := range ids {
				ids[i] = memberOf(t, layout, i)
				require.NoError(t, rdb.Eval(t.Context(), Acquire.Source, all, ids[i], 1, "", "", 0).Err())
			}
			list, err := rdb.HGet(t.Context(), name, "answered").Result()
			require.NoError(t, err)
			assert.Equal(t, noted, strings.Count(list, ":"), "layout %v", layout)
			assert.Regexp(t, `^(\d{13}:([0-9a-f]{2})+;)+$`, list, "layout %v", layout)
			require.NoError(t, rdb.Del(t.Context(), all[1:]...).Err(), "so that late copies could be granted")
			for i, id := range ids {
				err := rdb.Eval(t.Context(), Acquire.Source, all, id, 1).Err()
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
			name := redistest.Name(t)
			all := redisson.KeysOf(name, "id").List()
			now := float64(time.Now().UnixMilli())
			rows := []redis.Z{{Score: now, Member: other(2)}}[:made]
			for i := range 600 {
				rows = append(rows, redis.Z{Score: now, Member: memberOf(t, codec.LayoutD2, i)})
			}
			require.NoError(t, rdb.ZAdd(t.Context(), all[3], rows...).Err())
			require.NoError(t, rdb.HSet(t.Context(), name, "rate", 1000, "interval", 3600000, "type", 0).Err())
			require.NoError(t, rdb.Set(t.Context(), all[1], 400-2*made, 0).Err())
			require.NoError(t, rdb.Del(t.Context(), all[lost%2]).Err())
			var answer any = []any{"again", ""}
			for calls := 0; answer != int64(-2); calls++ {
				require.Less(t, calls, 20)
				var err error
				args := []any{member(3), 5, other(2), 0, 0, "60000", answer.([]any)[1], "1000 3600000 0 0"}
				answer, err = rdb.Eval(t.Context(), SettleReservation.Source, all, args...).Result()
				require.NoError(t, err)
			}
			require.NoError(t, rdb.Eval(t.Context(), Acquire.Source, all, member(1), 1, "1000 3600000 0 0").Err())
			assert.Positive(t, rdb.ZScore(t.Context(), all[3], other(2)).Val())
		}
	})
}

// memberOf returns a member for one permit, with an id of its own.
func memberOf(t *testing.T, layout codec.Layout, n int) string {
	t.Helper()
	sizes := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
	id := []byte(fmt.Sprintf("%0*d", sizes[layout], n))
	m, err := codec.Append(nil, layout, id, 1)
	require.NoError(t, err)
	return string(m)
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
		require.NoError(t, rdb.Del(t.Context(), key).Err())
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
		require.NoError(t, rdb.Del(t.Context(), key).Err())
	})
}

// Programs are ordered by the server's clock: one whose own was 45 s ahead when it began does not keep
// the default of one that began after it out.
func TestOtherDefault_OrdersProgramsByTheServersClock(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	keys := redisson.KeysOf("a", "id").List()
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
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
		first, other := fallback(3, c.ago, c.off), fallback(4, c.laterAgo, c.laterOff)
		require.NoError(t, rdb.Eval(t.Context(), Acquire.Source, keys, member(1), 1, first, "d").Err(), name)
		want := map[string][]any{older: {"default", int64(3), int64(60000), int64(0), int64(0)}}[c.want]
		got, err := rdb.Eval(t.Context(), Acquire.Source, keys, member(2), 1, other, "d").Result()
		require.NoError(t, err)
		if c.want == older {
			assert.Equal(t, want, got, name)
		} else {
			assert.Equal(t, int64(4), got.([]any)[6], name)
		}
		set, err := rdb.Eval(t.Context(), SetRate.Source, keys, 4, 60000, 0, 0, "1", other, "").Int()
		require.NoError(t, err)
		assert.Equal(t, c.want == older, set == 1, name)
		at, err := strconv.ParseInt(strings.Fields(rdb.HGet(t.Context(), "a", "default").Val())[4], 10, 64)
		require.NoError(t, err)
		ago := c.ago
		if set == 1 {
			ago = c.laterAgo
		}
		assert.Equal(t, server.Add(-ago).UnixMicro(), at, name)
	}
}

// An override that is taken back is older than each program's default. It counts until one replaces it, and
// permits in use stay counted. A default stays as it is.
func TestUseDefault_LetsTheNextDefaultReplaceAnOverride(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		keys := redisson.KeysOf(redistest.Name(t), "id").List()
		eval := func(s *Script, args ...any) any {
			got, err := rdb.Eval(t.Context(), s.Source, keys, args...).Result()
			require.NoError(t, err)
			return got
		}
		const fallback = "3 60000 0 90000 1700000000000000"
		eval(Acquire, member(1), 1, fallback, "d")
		assert.Equal(t, int64(0), eval(UseDefault), "a default")
		assert.Equal(t, fallback, rdb.HGet(t.Context(), keys[0], "default").Val())

		eval(SetRate, 5, 60000, 0, 0, "1", 0, "")
		assert.Equal(t, int64(1), eval(Acquire, other(1), 1, fallback, "d"), "an override")
		assert.Equal(t, int64(1), eval(UseDefault))
		assert.Equal(t, int64(0), eval(UseDefault), "again")
		assert.Equal(t, []any{int64(5), int64(60000), int64(0), int64(0)}, eval(Config), "the rate stays until then")
		assert.Equal(t, []any{"default", int64(5), int64(60000), int64(0), int64(0)}, eval(Acquire, other(2), 1, fallback, "d"))
		assert.Equal(t, int64(1), eval(SetRate, 3, 60000, 0, 90000, "1", fallback, ""))
		assert.Equal(t, []any{int64(1), int64(0)}, eval(Available, ""), "of the permits taken before none is free")
		require.NoError(t, rdb.Del(t.Context(), keys...).Err())

		// One that has an end ends: what it would have gone back to, a default or not, counts.
		eval(Acquire, member(1), 1, fallback, "d")
		for _, want := range []string{fallback, "4 60000 0 0 0"} {
			eval(SetRate, 50, 30000, 0, 0, "1", "for 3600000 ", "")
			eval(Acquire, member(3), 1, "", "")
			assert.Equal(t, int64(1), eval(UseDefault))
			fields := rdb.HGetAll(t.Context(), keys[0]).Val()
			assert.Equal(t, want, fields["default"])
			assert.True(t, strings.HasPrefix(want, fields["rate"]+" "+fields["interval"]+" "), fields)
			assert.NotContains(t, fields, "override")
			assert.Equal(t, int64(0), eval(UseDefault), "again")
			eval(SetRate, 4, 60000, 0, 0, "1", 0, "")
		}
		require.NoError(t, rdb.Del(t.Context(), keys...).Err())

		// An older Redisson writes no keep-alive time.
		rdb.HSet(t.Context(), keys[0], "rate", 5, "interval", 60000, "type", 0)
		assert.Equal(t, int64(1), eval(UseDefault))
		assert.Equal(t, "5 60000 0 0 0", rdb.HGet(t.Context(), keys[0], "default").Val())
		require.NoError(t, rdb.HSet(t.Context(), keys[0], "rate", "x").Err())
		err := rdb.Eval(t.Context(), UseDefault.Source, keys).Err()
		assert.True(t, redis.HasErrorPrefix(err, "CORRUPT 1 rate"), err)
		require.NoError(t, rdb.Del(t.Context(), keys...).Err())
	})
}

// acquire_all names the damaged key by its number among all keys, and takes the
// default and the time to live of each limiter from its own configuration.
func TestAcquireAllTellsLimitersApart(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	keys := append(redisson.KeysOf("a", "id").List(), redisson.KeysOf("b", "id").List()...)
	for place, text := range map[int]string{7: "CORRUPT 8 value", 9: "CORRUPT 10 member"} {
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
		for _, config := range []string{keys[0], keys[5]} {
			require.NoError(t, rdb.HSet(t.Context(), config, "rate", 3, "interval", 60000, "type", 1).Err())
		}
		require.NoError(t, rdb.PExpire(t.Context(), keys[5], 5*time.Second).Err())
		require.NoError(t, rdb.Eval(t.Context(), AcquireAll.Source, keys, member(1), 1, "s", "", "", "", "").Err())
		assert.LessOrEqual(t, rdb.PTTL(t.Context(), keys[7]).Val(), 5*time.Second)
		require.NoError(t, rdb.HSet(t.Context(), keys[5], "default", "3 60000 1 0 1").Err())
		got, err := rdb.Eval(t.Context(), AcquireAll.Source, keys, member(1), 1, "s", "", "", "", "d9 60000 1 0 2").Result()
		require.NoError(t, err)
		assert.Equal(t, []any{"default", int64(2), int64(3), int64(60000), int64(1), int64(0)}, got)
		require.NoError(t, rdb.Do(t.Context(), map[int][]any{7: {"SET", keys[7], "x"}, 9: {"ZADD", keys[9], 1, "x"}}[place]...).Err())
		err = rdb.Eval(t.Context(), AcquireAll.Source, keys, member(1), 1, "s", "", "", "", "").Err()
		assert.True(t, redis.HasErrorPrefix(err, text), err)
	}
}
