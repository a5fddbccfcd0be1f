package lane_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// many answers each part of a joint call with its number, 0 for those that are
// told to wait, or fails as a whole.
var many = newScript(`
if ARGV[3] == 'fail' then return redis.error_reply(ARGV[2] .. " told") end
local answers = {}
for i = 1, (#ARGV - 1) / 2 do answers[i] = tonumber(ARGV[2 * i + 1]) end
return answers`)

// echo is what many stands for.
var echo = newScript("return {ARGV[1]}")

// joined makes calls while two are under way: those two go alone, and the others
// together.
func joined(t *testing.T, calls []*script.Joint, check func(replies []any, r *rig)) {
	t.Helper()
	onRig(t, &flights{held: true}, 1024, func(t *testing.T, r *rig) {
		require.NoError(t, r.direct.ScriptLoad(t.Context(), echo.Source).Err())
		replies := make([]any, len(calls))
		r.start(len(calls), func(i int) {
			var err error
			replies[i], err = r.ask(i, script.Call{
				Script: echo, Repeat: true, Joint: calls[i],
				Args: script.ArgumentsFunc(func(all []any, a script.Attempt) []any { return append(all, fmt.Sprint(i, a.Age >= 0)) }),
			})
			assert.NoError(t, err)
		})
		close(r.hold)
		r.Wait()
		check(replies, r)
	})
}

func TestJointCalls(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		word string // the first argument of each call
		last any    // the second of the last
		want func(i int) any
	}{
		"answered": {"", 100, func(i int) any {
			switch {
			case i < 2:
				return []any{fmt.Sprint(i, false)} // went alone
			case i == 5:
				return []any{"5 false"} // undecided, and made by itself
			}
			return int64(100 + i)
		}},
		"keys in different slots": {"CROSSSLOT", "fail", func(i int) any { return []any{fmt.Sprint(i, false)} }},
		"refused unrun":           {"LOADING", "fail", func(i int) any { return []any{fmt.Sprint(i, false)} }},
		"an error from within":    {"OOM", "fail", func(i int) any { return []any{fmt.Sprint(i, i >= 2)} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls []*script.Joint
			for i := range 80 {
				second := any(100 + i)
				if i == 5 {
					second = 0
				}
				if tc.last == "fail" {
					second = "fail"
				}
				calls = append(calls, &script.Joint{Script: many, Args: [2]any{tc.word, second}, Early: true})
			}
			joined(t, calls, func(replies []any, r *rig) {
				for i, reply := range replies {
					assert.Equal(t, tc.want(i), reply, i)
				}
				assert.Equal(t, []int{1, 1, 2}, r.sizes()[:3], "78 calls as two")
			})
		})
	}
}

func TestEarlyJointCallsComeFirst(t *testing.T) {
	t.Parallel()
	order := newScript(`local all = {}
		for i = 1, (#ARGV - 1) / 2 do
			all[i] = (i <= ARGV[1] + 0) == (ARGV[2 * i] % 2 == 1) and 1000 + ARGV[2 * i] or 0
		end
		return all`)
	var calls []*script.Joint
	for i := range 10 {
		calls = append(calls, &script.Joint{Script: order, Args: [2]any{i, ""}, Early: i%2 == 1})
	}
	joined(t, calls, func(replies []any, _ *rig) {
		for i := 2; i < len(calls); i++ {
			assert.EqualValues(t, 1000+i, replies[i])
		}
	})
}

// Joint and other calls share a flight, and each gets its own answer, with what
// went ahead.
func TestAFlightOfAllKinds(t *testing.T) {
	t.Parallel()
	onRig(t, &flights{held: true}, 1024, func(t *testing.T, r *rig) {
		require.NoError(t, r.direct.HSet(t.Context(), "hash", "field", "7").Err())
		r.start(20, func(i int) {
			call, want := script.Call{}, any(int64(1))
			switch i % 3 {
			case 0:
				call.Joint = &script.Joint{Script: many, Args: [2]any{"", 100 + i}}
				if i > 1 {
					want = int64(100 + i)
				}
			case 1:
				call.Ahead = []any{"hget", "hash", "field"}
			}
			a := newAsk(keyOf(i), call)
			reply, err := a.by(r.lane)
			assert.NoError(t, err)
			assert.Equal(t, want, reply, i)
			if call.Ahead != nil {
				assert.Equal(t, "7", a.call.AheadAnswer().Val())
			}
		})
		close(r.hold)
		r.Wait()
	})
}

// A hook of the Redis client's that panics reaches the caller of a call that goes
// alone. The callers of a flight get an error, those of no other.
func TestAPanicReachesItsFlightOnly(t *testing.T) {
	t.Parallel()
	panics := func(scripts int) error {
		if scripts == 3 {
			panic("a hook")
		}
		return nil
	}
	// Two are under way at most, of 100 ms each.
	onRig(t, &flights{trip: 100 * time.Millisecond, fails: panics}, 4, func(t *testing.T, r *rig) {
		ask := func(i int) {
			r.Go(func() {
				_, err := r.ask(i, script.Call{})
				if i >= 2 && i < 5 {
					assert.ErrorIs(t, err, script.ErrLost, i)
					assert.ErrorContains(t, err, "a hook")
				} else {
					assert.NoError(t, err, i)
				}
			})
		}
		ask(0)
		time.Sleep(50 * time.Millisecond)
		ask(1)
		synctest.Wait()
		for i := 2; i < 5; i++ { // fly with the first one's return
			ask(i)
		}
		time.Sleep(60 * time.Millisecond)
		for i := 5; i < 9; i++ { // fly with the second one's
			ask(i)
		}
		r.Wait()

		r.fails = func(int) error { panic("alone") }
		_, err := r.ask(0, script.Call{})
		require.ErrorIs(t, err, script.ErrLost)
		require.ErrorContains(t, err, "alone")
		r.fails = nil
		for range 70 { // nothing is left of the flights
			r.mustAsk(t, 0)
		}
	})
}
