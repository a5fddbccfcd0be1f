package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A settlement finds a held reservation that others have taken permits off, among many grants of its time and
// more since, in as few steps as these need; also if it was settled before, and if the value was lost.
func TestSettle_FindsHeldReservationAmongMany(t *testing.T) {
	t.Parallel()
	const early = 1800_000
	settled := func(permits byte) string { return string(redisson.Settled([]byte(member(permits)))) }
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
		"in time, settled before":            {600_000, settled(2), 0, "60000", 0, 2, 12},
		"over, settled before":               {early + 10_000, settled(2), 0, "60000", -3, 2, 60},
		"over":                               {early + 10_000, "", 0, "", -3, 3, 3},
		"just over, repeated":                {early + 500, "", 0, "60000", -3, 3, 60},
		"over, settled before, not a repeat": {early + 10_000, settled(3), 0, "", -3, 3, 3},
	} {
		for lost := range 2 {
			t.Run(fmt.Sprint(what, ", lost ", lost), func(t *testing.T) {
				t.Parallel()
				l, now := newRig(t, redistest.Redis(t), 10_000), time.Now().UnixMilli()
				l.grant(grants(6000, codec.LayoutD2, func(i int) int64 {
					if i >= 2000 {
						return now - c.age + int64(i-2000)/4
					}
					return max(now-c.age-early+int64(i), now-hour+60_000)
				})...)
				if c.row != "" {
					l.grant(row(now-c.age-c.dated, c.row))
				}
				if lost == 1 {
					l.loses(l.keys[1])
				}
				answer, calls := l.until(SettleReservation, 6, member(6), 3, other(0), c.age+1000, c.age-1000, c.repeat, "", "", early, now-c.age)
				assert.Equal(t, c.want, answer)
				assert.LessOrEqual(t, calls, c.calls+lost*30)
				for _, z := range l.rows() {
					if c.row != "" && permits(t, z.Member.(string)) > 1 {
						assert.Equal(t, now-c.age, int64(z.Score), "dated to its grant")
					}
				}
				l.check(6000 + c.in)
			})
		}
	}
}

// A settlement that takes three seconds finds its reservation, though others took permits off it and many were granted some since.
func TestSettle_FindsReservationThoughItsCallTookLong(t *testing.T) {
	t.Parallel()
	for _, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2} {
		t.Run(layout.String(), func(t *testing.T) {
			t.Parallel()
			redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
				l, reserved := newRig(t, rdb, 1000), memberOf(layout, 1000)
				now := l.now()
				l.grant(row(now-2900, with(reserved, 3)))
				l.grant(grants(500, layout, func(i int) int64 { return now - 2500 + int64(5*i) })...)
				// It left 10 ms after the reservation was asked for, to which the ages allow a second.
				answer, _ := l.until(SettleReservation, 6, with(reserved, 6), 1, other(0), 1010, 0, "", "", "", "", "")
				assert.EqualValues(t, 2, answer)
				l.check(500 + 1)
			})
		})
	}
}

// Each request of a call has its own hold. A repeat finds what the first attempt left, as written or with fewer permits,
// among many grants of those times; if it left nothing, the repeat decides. All in as few steps as these need.
func TestAcquire_RepeatFindsMembersOfSeveralHolds(t *testing.T) {
	t.Parallel()
	const requests, age = 60, int64(60_000)
	holds := func(i int) int64 { return []int64{0, 600_000, 1800_000, 2 * hour, 900_000 + int64(i)}[i%5] }
	early := func(i int) int64 { return map[bool]int64{false: max(0, hour-holds(i))}[holds(i) == 0] }
	for layout, size := range map[codec.Layout]int{codec.LayoutB: 1, codec.LayoutC: 5, codec.LayoutD1: 5, codec.LayoutD2: 13} {
		for what, c := range map[string]struct {
			whole int // so many of the first members are as they were written, others have lost permits; below 0: none is there
			calls int
		}{
			"all are there": {requests, 1}, "some have fewer permits": {30, 1}, "one is as written": {1, 1},
			"all have fewer permits": {0, 12}, "it never ran": {-1, 60},
		} {
			t.Run(fmt.Sprint(layout, ", ", what), func(t *testing.T) {
				t.Parallel()
				l := newRig(t, redistest.Redis(t), 100_000)
				first, err := codec.Append(nil, layout, []byte(strings.Repeat("\x80", size)+"\x00\x00\x00"), 3*requests)
				require.NoError(t, err)
				redisson.SetPermits(first, 3*requests)
				nth := func(i int, permits int64) string { return with(string(redisson.Later(first, i)), permits) }
				flags := "sh" + fmt.Sprint(holds(0))
				for i := 1; i < requests; i++ {
					flags += fmt.Sprint(",", holds(i))
				}
				acquire := func(age any) (granted any, calls int) {
					answer, calls := l.until(Acquire, 5, first, 3*requests, "", flags, age, "", 0, 3, requests)
					return answer.([]any)[2], calls
				}
				now := l.now()
				l.grant(grants(4000, layout, func(i int) int64 { return now - early(i%5) - int64(i)*age/4000 })...)
				left := int64(3 * requests)
				if c.whole >= 0 {
					granted, _ := acquire("")
					require.EqualValues(t, 3*requests, granted)
					for i := c.whole; i < requests; i++ {
						l.release(nth(i, 3), 1)
						left -= 2
					}
				}
				granted, calls := acquire(age)
				assert.EqualValues(t, 3*requests, granted)
				assert.LessOrEqual(t, calls, c.calls)
				ran := map[int64]bool{}
				for i := range requests {
					for _, permits := range []int64{1, 3} {
						if at, err := l.rdb.ZScore(t.Context(), l.keys[3], nth(i, permits)).Result(); err == nil {
							ran[int64(at)+early(i)] = true
						}
					}
				}
				assert.Len(t, ran, 1, "each is dated by its hold")
				l.check(4000 + left)
			})
		}
	}
}

// asks returns what asks a limiter for requests of as many permits each, or asks again, and returns the permits granted.
func (l *rig) asks(id, flags string, permits byte, requests int) func(age any) any {
	sum := permits * byte(requests)
	return func(age any) any {
		answer, _ := l.until(Acquire, 5, id+string([]byte{sum, 0, 0, 0}), sum, "", flags, age, "", 0, permits, requests)
		return answer.([]any)[2]
	}
}

// The first attempt's answer was lost, and one request's hold is over: a repeat grants it with the others, which still hold theirs.
func TestAcquire_RepeatGrantsEachRequestThatHolds(t *testing.T) {
	t.Parallel()
	l := newRig(t, redistest.Redis(t), 1000)
	ask := l.asks("\x10"+strings.Repeat("i", 16), "sh1,3000000", 1, 3)
	require.EqualValues(t, 3, ask(""))
	l.release(l.rows()[0].Member.(string), 0) // its hold is over
	assert.EqualValues(t, 3, ask(5000))
	assert.EqualValues(t, 3, ask(5000), "however often it is repeated")
	l.check(2) // it takes nothing again
}

// A repeat finds what the first attempt left, though others have taken permits off it, among many grants of the same ms.
func TestAcquire_RepeatFindsMemberAmongManyOfItsTime(t *testing.T) {
	t.Parallel()
	for what, flags := range map[string]string{"merged": "f", "own": "s", "held": "sh60000"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := newRig(t, redistest.Redis(t), 1000)
			ask := l.asks("\x10"+strings.Repeat("\xff", 13)+"\x00\x00\x00", flags, 4, 1)
			require.EqualValues(t, 4, ask(""))
			first := l.rows()[0]
			l.release(first.Member.(string), 1)
			l.grant(grants(300, codec.LayoutD2, func(int) int64 { return int64(first.Score) })...)
			assert.EqualValues(t, 4, ask(5000))
			l.check(1 + 300) // it takes nothing again
		})
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
