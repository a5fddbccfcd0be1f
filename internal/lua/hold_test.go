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

// settledID returns the member that a reservation becomes by its settlement.
func settledID(reserved string) string {
	id := []byte(reserved)
	id[12] ^= 0x80
	return string(id)
}

// A settlement finds a held reservation that others have taken permits off, among many grants of its time and
// more since, in as few steps as these need; also if it was settled before, and if the value was lost.
func TestSettle_FindsHeldReservationAmongMany(t *testing.T) {
	t.Parallel()
	const interval, early = 3600_000, 1800_000
	for what, c := range map[string]struct {
		age    int64 // since the grant
		row    string
		dated  int64 // before the grant
		repeat string
		want   int64
		in     int64 // permits in use of the reservation, and of what it was charged
		calls  int
	}{
		"in time":                            {600_000, member(4), early, "", 1, 3, 12},
		"in time, settled before":            {600_000, settledID(member(2)), 0, "60000", 0, 2, 12},
		"over, settled before":               {early + 10_000, settledID(member(2)), 0, "60000", -3, 2, 60},
		"over":                               {early + 10_000, "", 0, "", -3, 3, 3},
		"over, repeated":                     {early + 10_000, "", 0, "60000", -3, 3, 60},
		"just over, repeated":                {early + 500, "", 0, "60000", -3, 3, 60},
		"over, settled before, not a repeat": {early + 10_000, settledID(member(3)), 0, "", -3, 3, 3},
	} {
		for lost := range 2 {
			t.Run(fmt.Sprint(what, ", lost ", lost), func(t *testing.T) {
				t.Parallel()
				rdb := redistest.Redis(t)
				name := redistest.Name(t)
				all := redisson.KeysOf(name, "id").List()
				now := time.Now().UnixMilli()
				var rows []redis.Z
				used := int64(0)
				for i := range 6000 {
					at := max(now-c.age-early+int64(i), now-interval+60_000)
					if i >= 2000 {
						at = now - c.age + int64(i-2000)/4
					}
					rows = append(rows, redis.Z{Score: float64(at), Member: memberOf(t, codec.LayoutD2, i)})
					used++
				}
				if c.row != "" {
					rows = append(rows, redis.Z{Score: float64(now - c.age - c.dated), Member: c.row})
					used += permits(t, c.row)
				}
				require.NoError(t, rdb.ZAdd(t.Context(), all[3], rows...).Err())
				require.NoError(t, rdb.HSet(t.Context(), name, "rate", 10000, "interval", interval, "type", 0).Err())
				if lost == 0 {
					require.NoError(t, rdb.Set(t.Context(), all[1], 10000-used, 0).Err())
				}
				var answer any = []any{"again", ""}
				calls := 0
				for ; answer != c.want; calls++ {
					require.Less(t, calls, 100, answer)
					args := []any{member(6), 3, other(0), c.age + 1000, c.age - 1000, c.repeat, answer.([]any)[1], "", early, now - c.age}
					var err error
					answer, err = rdb.Eval(t.Context(), SettleReservation.Source, all, args...).Result()
					require.NoError(t, err)
				}
				assert.LessOrEqual(t, calls, c.calls+lost*30)
				sum := int64(0)
				for _, z := range rdb.ZRangeWithScores(t.Context(), all[3], 0, -1).Val() {
					n := permits(t, z.Member.(string))
					if sum += n; n > 1 && c.row != "" {
						assert.Equal(t, now-c.age, int64(z.Score), "dated to its grant")
					}
				}
				assert.Equal(t, 6000+c.in, sum)
				if value, err := rdb.Get(t.Context(), all[1]).Int64(); err == nil {
					assert.Equal(t, 10000-sum, value)
				}
			})
		}
	}
}

// A settlement that was on its way for three seconds finds its reservation, though others have taken permits off it, and
// many were granted some since.
func TestSettle_FindsReservationThoughItsCallTookLong(t *testing.T) {
	t.Parallel()
	for _, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2} {
		t.Run(layout.String(), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Redis(t)
			keys := redisson.KeysOf(redistest.Name(t), "id").List()
			now := rdb.Time(t.Context()).Val().UnixMilli()
			reserved := memberOf(t, layout, 1000)
			left := redis.Z{Score: float64(now - 2900), Member: redisson.WithPermits([]byte(reserved), 3)}
			rows := []redis.Z{left}
			for i := range 500 {
				rows = append(rows, redis.Z{Score: float64(now - 2500 + int64(5*i)), Member: memberOf(t, layout, i)})
			}
			require.NoError(t, rdb.HSet(t.Context(), keys[0], "rate", 1000, "interval", 3600_000, "type", 0).Err())
			require.NoError(t, rdb.ZAdd(t.Context(), keys[3], rows...).Err())
			require.NoError(t, rdb.Set(t.Context(), keys[1], 1000-3-500, 0).Err())

			// It left 10 ms after the reservation was asked for, to which the ages allow a second.
			var answer any = []any{"again", ""}
			for again, ok := answer.([]any); ok; again, ok = answer.([]any) {
				args := []any{redisson.WithPermits([]byte(reserved), 6), 1, other(0), 1010, 0, "", again[1], "", "", ""}
				var err error
				answer, err = rdb.Eval(t.Context(), SettleReservation.Source, keys, args...).Result()
				require.NoError(t, err)
			}
			assert.EqualValues(t, 2, answer)
			assert.Equal(t, "499", rdb.Get(t.Context(), keys[1]).Val())
		})
	}
}

// After the server's clock went back a reservation is dated ahead. It is found too, though others have taken permits
// off it.
func TestSettle_FindsReservationDatedAhead(t *testing.T) {
	t.Parallel()
	for _, early := range []any{"", 1800_000} {
		t.Run(fmt.Sprint("early ", early), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Redis(t)
			name := redistest.Name(t)
			all := redisson.KeysOf(name, "id").List()
			now := time.Now().UnixMilli()
			require.NoError(t, rdb.HSet(t.Context(), name, "rate", 10, "interval", 3600_000, "type", 0).Err())
			require.NoError(t, rdb.ZAdd(t.Context(), all[3], redis.Z{Score: float64(now + 30_000), Member: member(4)}).Err())
			require.NoError(t, rdb.Set(t.Context(), all[1], 6, 0).Err())

			answer, err := rdb.Eval(t.Context(), SettleReservation.Source, all, member(6), 3, other(0), 2000, 0, "", "", "", early).Int64()
			require.NoError(t, err)
			assert.EqualValues(t, 1, answer)
			assert.Equal(t, "7", rdb.Get(t.Context(), all[1]).Val())
		})
	}
}

func permits(t *testing.T, text string) int64 {
	t.Helper()
	m, err := codec.Parse(text)
	require.NoError(t, err)
	return int64(m.Permits)
}

// Each request of a call has its own hold. A repeat finds what the first attempt left, as written or with fewer permits,
// among many grants of those times; if it left nothing, the repeat decides. All in as few steps as these need.
func TestAcquire_RepeatFindsMembersOfSeveralHolds(t *testing.T) {
	t.Parallel()
	const interval, requests, age = int64(3600_000), 60, int64(60_000)
	holds := func(i int) int64 { return []int64{0, 600_000, 1800_000, 2 * interval, 900_000 + int64(i)}[i%5] }
	early := func(i int) int64 { return map[bool]int64{false: max(0, interval-holds(i))}[holds(i) == 0] }
	for layout, id := range map[codec.Layout]string{
		codec.LayoutB: "\x80", codec.LayoutC: "\x80\x80\x80\x80\x80", codec.LayoutD1: "\x80\x80\x80\x80\x80",
		codec.LayoutD2: "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
	} {
		for what, c := range map[string]struct {
			whole int // so many of the first members are as they were written, others have lost permits; below 0: none is there
			calls int
		}{
			"all are there": {requests, 1}, "some have fewer permits": {30, 1}, "one is as written": {1, 1},
			"all have fewer permits": {0, 12}, "it never ran": {-1, 60},
		} {
			t.Run(fmt.Sprint(layout, ", ", what), func(t *testing.T) {
				t.Parallel()
				rdb := redistest.Redis(t)
				keys := redisson.KeysOf(redistest.Name(t), "id").List()
				require.NoError(t, rdb.HSet(t.Context(), keys[0], "rate", 100_000, "interval", interval, "type", 0).Err())
				first, err := codec.Append(nil, layout, []byte(id+"\x00\x00\x00"), 1)
				require.NoError(t, err)
				redisson.SetPermits(first, 3*requests)
				flags := "sh" + fmt.Sprint(holds(0))
				for i := 1; i < requests; i++ {
					flags += fmt.Sprint(",", holds(i))
				}
				acquire := func(age, token any) []any {
					answer, err := rdb.Eval(t.Context(), Acquire.Source, keys, first, 3*requests, "", flags, age, token, 0, 3, requests).Slice()
					require.NoError(t, err)
					return answer
				}
				now := rdb.Time(t.Context()).Val().UnixMilli()
				var rows []redis.Z
				for i := range 4000 {
					at := now - early(i%5) - int64(i)*age/4000
					rows = append(rows, redis.Z{Score: float64(at), Member: memberOf(t, layout, i)})
				}
				require.NoError(t, rdb.ZAdd(t.Context(), keys[3], rows...).Err())
				require.NoError(t, rdb.Set(t.Context(), keys[1], 96_000, 0).Err())
				if c.whole >= 0 {
					require.EqualValues(t, 3*requests, acquire("", "")[2])
				}
				for i := max(0, c.whole); i < requests && c.whole >= 0; i++ {
					m := redisson.WithPermits(redisson.Later(first, i), 3)
					at := rdb.ZScore(t.Context(), keys[3], string(m)).Val()
					require.EqualValues(t, 1, rdb.ZRem(t.Context(), keys[3], m).Val())
					require.NoError(t, rdb.ZAdd(t.Context(), keys[3], redis.Z{Score: at, Member: redisson.WithPermits(m, 1)}).Err())
					require.NoError(t, rdb.IncrBy(t.Context(), keys[1], 2).Err())
				}
				answer, calls := acquire(age, ""), 1
				for ; answer[0] == "again"; calls++ {
					answer = acquire(age, answer[1])
				}
				assert.EqualValues(t, 3*requests, answer[2])
				assert.LessOrEqual(t, calls, c.calls)
				left, ran := int64(0), map[int64]bool{}
				for i := range requests {
					for _, permits := range []int64{1, 3} {
						m := redisson.WithPermits(redisson.Later(first, i), permits)
						if at, err := rdb.ZScore(t.Context(), keys[3], string(m)).Result(); err == nil {
							left += permits
							ran[int64(at)+early(i)] = true
						}
					}
				}
				assert.Len(t, ran, 1, "each is dated by its hold")
				assert.Equal(t, map[bool]int64{true: 3 * requests, false: 3*int64(c.whole) + requests - int64(c.whole)}[c.whole < 0], left)
				assert.Equal(t, 100_000-4000-left, rdb.IncrBy(t.Context(), keys[1], 0).Val())
			})
		}
	}
}

// repeated returns a limiter's keys, and a function that asks it for requests of as many permits each, or asks again.
func repeated(t *testing.T, rdb redistest.Client, id, flags string, permits byte, requests int) ([]string, func(age any) int64) {
	t.Helper()
	keys := redisson.KeysOf(redistest.Name(t), "id").List()
	require.NoError(t, rdb.HSet(t.Context(), keys[0], "rate", 1000, "interval", 3600_000, "type", 0).Err())
	sum := permits * byte(requests)
	return keys, func(age any) int64 {
		answer := []any{"again", ""}
		for answer[0] == "again" {
			args := []any{id + string([]byte{sum, 0, 0, 0}), sum, "", flags, age, answer[1], 0, permits, requests}
			var err error
			answer, err = rdb.Eval(t.Context(), Acquire.Source, keys, args...).Slice()
			require.NoError(t, err)
		}
		return answer[2].(int64)
	}
}

// The first attempt's answer was lost, and one request's hold is over: a repeat grants it with the others, which still hold
// their permits, rather than in the place of the last.
func TestAcquire_RepeatGrantsEachRequestThatHolds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	keys, ask := repeated(t, rdb, "\x10"+strings.Repeat("i", 16), "sh1,3000000", 1, 3)
	require.EqualValues(t, 3, ask(""))
	require.EqualValues(t, 1, rdb.ZRemRangeByRank(t.Context(), keys[3], 0, 0).Val(), "its hold is over")
	require.NoError(t, rdb.IncrBy(t.Context(), keys[1], 1).Err())

	assert.EqualValues(t, 3, ask(5000))
	assert.EqualValues(t, 3, ask(5000), "however often it is repeated")
	assert.Equal(t, "998", rdb.Get(t.Context(), keys[1]).Val(), "it takes nothing again")
}

// A repeat finds what the first attempt left, though others have taken permits off it, among many grants of the same ms.
func TestAcquire_RepeatFindsMemberAmongManyOfItsTime(t *testing.T) {
	t.Parallel()
	for what, flags := range map[string]string{"merged": "f", "own": "s", "held": "sh60000"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Redis(t)
			id := "\x10" + strings.Repeat("\xff", 13) + "\x00\x00\x00"
			keys, ask := repeated(t, rdb, id, flags, 4, 1)
			require.EqualValues(t, 4, ask(""))
			at := rdb.ZRangeWithScores(t.Context(), keys[3], 0, 0).Val()[0].Score
			rows := []redis.Z{{Score: at, Member: id + "\x01\x00\x00\x00"}}
			for i := range 300 {
				rows = append(rows, redis.Z{Score: at, Member: memberOf(t, codec.LayoutD2, i)})
			}
			require.NoError(t, rdb.ZRem(t.Context(), keys[3], id+"\x04\x00\x00\x00").Err())
			require.NoError(t, rdb.ZAdd(t.Context(), keys[3], rows...).Err())
			require.NoError(t, rdb.Set(t.Context(), keys[1], 699, 0).Err())

			assert.EqualValues(t, 4, ask(5000))
			assert.Equal(t, "699", rdb.Get(t.Context(), keys[1]).Val(), "it takes nothing again")
		})
	}
}

// Each of several limiters has a hold of its own. A repeat finds what the first attempt left in one of them, as written or
// with fewer permits, among many grants since; if it left nothing, the repeat decides. All in as few steps as these need.
func TestAcquireAll_RepeatFindsHeldMember(t *testing.T) {
	t.Parallel()
	const interval, age, rows = int64(3600_000), int64(60_000), 3000
	for what, c := range map[string]struct {
		left  int64 // permits of the member of the limiter that still has it
		ago   int64 // ms
		calls int
	}{"as written": {3, 0, 2}, "with fewer permits": {1, 30_000, 20}, "it never ran": {0, 0, 30}} {
		for place, hold := range []int64{600_000, 1800_000, 2 * interval} {
			t.Run(fmt.Sprint(what, ", ", place), func(t *testing.T) {
				t.Parallel()
				rdb := redistest.Redis(t)
				now, id := rdb.Time(t.Context()).Val().UnixMilli(), "\x10"+strings.Repeat("i", 16)
				var keys []string
				for i := range 3 {
					limiter := redisson.KeysOf(fmt.Sprintf("{%s}%d", redistest.Name(t), i), "id").List()
					require.NoError(t, rdb.HSet(t.Context(), limiter[0], "rate", 100_000, "interval", interval, "type", 0).Err())
					var grants []redis.Z
					for j := range rows {
						at := now - max(0, interval-hold) - int64(j)*age/rows
						grants = append(grants, redis.Z{Score: float64(at), Member: memberOf(t, codec.LayoutD2, j)})
					}
					require.NoError(t, rdb.ZAdd(t.Context(), limiter[3], grants...).Err())
					require.NoError(t, rdb.Set(t.Context(), limiter[1], 100_000-rows, 0).Err())
					keys = append(keys, limiter...)
				}
				ask := func(age, token any) []any {
					answer, err := rdb.Eval(t.Context(), AcquireAll.Source, keys,
						id+"\x03\x00\x00\x00", "3h600000 3h1800000 3h7200000", "f", age, token, "", "", "").Slice()
					require.NoError(t, err)
					return answer
				}
				used := func(i int) int64 { return 100_000 - rows - rdb.IncrBy(t.Context(), keys[5*i+1], 0).Val() }
				if c.left > 0 {
					granted := ask("", "")
					require.Len(t, granted, 1+3*6)
					if place < 2 {
						assert.Equal(t, []any{int64(0), int64(0), int64(100_000), int64(100_000 - rows), int64(1800_000), interval}, granted[7:13],
							"all is back when the longest hold is over")
					}
					for i := range 3 {
						member := id + "\x03\x00\x00\x00"
						at := rdb.ZScore(t.Context(), keys[5*i+3], member).Val()
						assert.InDelta(t, max(0, interval-[]int64{600_000, 1800_000, 2 * interval}[i]), float64(granted[0].(int64))-at, 0)
						require.NoError(t, rdb.ZRem(t.Context(), keys[5*i+3], member).Err())
						if i == place {
							member = string(redisson.WithPermits([]byte(member), c.left))
							at -= float64(c.ago)
							require.NoError(t, rdb.ZAdd(t.Context(), keys[5*i+3], redis.Z{Score: at, Member: member}).Err())
						}
					}
				}
				answer, calls := ask(age, ""), 1
				for ; answer[0] == "again"; calls++ {
					require.Less(t, calls, 100)
					answer = ask(age, answer[1])
				}
				require.Len(t, answer, 1+3*6, "it is granted")
				assert.LessOrEqual(t, calls, c.calls)
				for i := range 3 {
					assert.EqualValues(t, 3, used(i), "once")
				}
			})
		}
	}
}

// runs are the sources of a script for a machine that stands still for 20 ms before or after the script's first command
// of a name, or never. Before Redis 7.2 the time of a script goes on meanwhile.
func runs(script *Script) []string {
	const source = `local server, stall = redis, 0
local redis = setmetatable({call = function(name, ...)
  if name == '%s' then
    stall = 20
  end
  local answer = server.call(name, ...)
  if name == 'PTTL' and answer >= 0 then
    answer = math.max(0, answer - stall)
  elseif name == 'TIME' then
    local micros = answer[2] + stall * 1000
    answer = {string.format('%%.0f', answer[1] + math.floor(micros / 1000000)), string.format('%%.0f', micros %% 1000000)}
  end
  if name == '%s' then
    stall = 20
  end
  return answer
end}, {__index = server})
`
	all := []string{script.Source}
	for _, name := range []string{"TIME", "PTTL", "INCRBY"} {
		all = append(all, fmt.Sprintf(source, name, "")+script.Source, fmt.Sprintf(source, "", name)+script.Source)
	}
	return all
}

// Whichever of its two scripts a loaded machine stalls, a fixed window's grant is settled.
func TestFixedWindow_SettlesOnStalledMachine(t *testing.T) {
	t.Parallel()
	rdb := redistest.CurrentClient(t)
	key := []string{redistest.Name(t)}
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	calendar := fmt.Sprint(now.Add(-time.Hour).UnixMilli(), now.Add(time.Hour).UnixMilli())
	for window, own := range map[any]any{time.Hour.Milliseconds(): time.Hour.Milliseconds(), calendar: ""} {
		for _, take := range runs(FixedWindow) {
			for range 2 { // the first grant begins the window
				answer, err := rdb.Eval(t.Context(), take, key, 10, window, 3, 1).Slice()
				require.NoError(t, err)
				for _, source := range runs(FixedWindowSettle) {
					done, err := rdb.Eval(t.Context(), source, key, 0, answer[3], own).Int()
					require.NoError(t, err)
					assert.Equal(t, 1, done, "%v", window)
				}
			}
			assert.Equal(t, "6", rdb.Get(t.Context(), key[0]).Val())
			require.NoError(t, rdb.Del(t.Context(), key...).Err())
		}
	}
}

// A second grant in the millisecond of the first knows the window's end as well.
func TestFixedWindow_EndsAtOneMomentOnStalledMachine(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	now := time.UnixMilli(1_700_000_000_000)
	m.SetTime(now)
	for _, take := range runs(FixedWindow) {
		require.NoError(t, rdb.Set(t.Context(), "key", 1, time.Hour).Err())
		answer, err := rdb.Eval(t.Context(), take, []string{"key"}, 10, time.Hour.Milliseconds(), 3, 1).Slice()
		require.NoError(t, err)
		assert.Equal(t, now.Add(time.Hour).UnixMilli(), answer[3])
	}
}

// A grant at the end of a calendar's window counts there or in the next, but nowhere else.
func TestFixedWindow_CalendarTurnsOnStalledMachine(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	ends := time.UnixMilli(1_700_000_000_000)
	next := ends.Add(time.Hour)
	calendar := fmt.Sprint(ends.Add(-time.Hour).UnixMilli(), ends.UnixMilli(), next.UnixMilli())
	for _, take := range runs(FixedWindow) {
		m.SetTime(ends.Add(-time.Millisecond))
		require.NoError(t, rdb.Set(t.Context(), "key", 10, 0).Err())
		require.NoError(t, rdb.PExpireAt(t.Context(), "key", ends).Err())
		answer, err := rdb.Eval(t.Context(), take, []string{"key"}, 10, calendar, 3, 1).Slice()
		require.NoError(t, err)
		if answer[2] == int64(0) {
			continue // by the window that has ended since
		}
		assert.Equal(t, next.UnixMilli(), answer[3])
		m.SetTime(ends.Add(time.Millisecond))
		assert.Equal(t, "3", rdb.Get(t.Context(), "key").Val())
	}
}

// Permits of a fixed window that Redisson before 3.13.3 counts come back as well.
func TestGiveBack_OfWindowOnStalledMachine(t *testing.T) {
	t.Parallel()
	rdb := redistest.CurrentClient(t)
	keys := redisson.KeysOf(redistest.Name(t), "id")
	for _, take := range runs(Acquire) {
		require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", 10, "interval", time.Hour.Milliseconds(), "type", 0).Err())
		answer, err := rdb.Eval(t.Context(), take, keys.List(), "", 7, "", "w").Slice()
		require.NoError(t, err)
		for _, source := range runs(GiveBack) {
			back, err := rdb.Eval(t.Context(), source, keys.List(), "", 1, "", answer[7], "", "").Int()
			require.NoError(t, err)
			assert.Equal(t, 1, back)
		}
		require.NoError(t, rdb.Del(t.Context(), keys.List()...).Err())
	}
}
