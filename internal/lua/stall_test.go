package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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
