package lane_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var flightTests = map[string]rigTest{
	"takes the gathered calls": {conditions{held: true}, 1024, func(t *testing.T, r *rig) {
		r.start(1000, func(i int) {
			reply, err := r.ask(i, script.Call{})
			assert.NoError(t, err)
			assert.EqualValues(t, 1, reply)
		})
		assert.Equal(t, []int{1, 1}, r.Sizes(), "who finds the way free goes at once")
		close(r.Hold)
		r.Wait()
		sizes := r.Sizes()
		assert.Len(t, sizes, 4)
		assert.Equal(t, 1000, sizes[0]+sizes[1]+sizes[2]+sizes[3])
		assert.LessOrEqual(t, max(sizes[2], sizes[3]), 512)
	}},
	// A server that is busy answers large flights late; a small one now and then tells
	// how long the wire is. When the wire grows that shows a second or two later.
	"the shortest trip counts": {conditions{}, 1024, func(t *testing.T, r *rig) {
		one := func(trip time.Duration) {
			r.Take(trip)
			r.mustAsk(t, 0)
		}
		most := func(callers int) int {
			r.Take(10 * time.Millisecond)
			r.Forget()
			r.start(callers, func(i int) { r.mustAsk(t, i) })
			r.Wait()
			return r.Most()
		}
		for range 30 {
			one(200 * time.Microsecond)
			assert.Equal(t, 5, most(10))
			one(50 * time.Millisecond)
		}
		for range 60 {
			one(50 * time.Millisecond)
		}
		assert.Equal(t, 64, most(100))
	}},
}

func TestFlight(t *testing.T) {
	t.Parallel()
	onRigs(t, flightTests)
}

// A pipeline that fails before it is sent, for example by a hook, leaves no
// command without an error. What a server answered to another command is no answer to it.
func TestFlight_PipelineErrorReachesAllCommands(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{errors.New("not today"), redistest.AnswerError("READONLY not today"), redistest.AnswerError("NOSCRIPT not today")} {
		onRig(t, conditions{held: true}, 1024, func(t *testing.T, r *rig) {
			r.Fails = func(_, scripts int) error {
				if scripts == 1 {
					return nil
				}
				return failure
			}
			r.start(10, func(i int) {
				_, err := r.ask(i, script.Call{})
				if i < 2 {
					assert.NoError(t, err)
					return
				}
				assert.ErrorIs(t, err, script.ErrLost)
				assert.ErrorContains(t, err, "not today")
			})
			close(r.Hold)
			r.Wait()
			assert.Equal(t, []int{1, 1, 8}, r.Sizes())
		})
	}
}

func TestFlight_HookPanics(t *testing.T) {
	t.Parallel()
	onRig(t, conditions{held: true, inline: true}, 1024, func(t *testing.T, r *rig) {
		r.Fails = func(int, int) error { panic("a hook") }
		r.start(20, func(i int) {
			a := newAsk(keyOf(i), script.Call{Repeat: true})
			if i == 0 { // finds the way free
				assert.PanicsWithValue(t, "a hook", func() { _, _ = a.by(r) })
			} else {
				_, _ = a.by(r)
			}
			<-a.done
			assert.ErrorIs(t, a.err, script.ErrLost)
			assert.ErrorContains(t, a.err, "panicked: a hook")
		})
		close(r.Hold)
		r.Wait()
		assert.Equal(t, []int{1, 1, 18}, r.Sizes(), "none again")
	})
}

// As many flights are under way as the wire is long, and never more than half of the pool's connections.
func TestHowManyFlightsAreUnderWay(t *testing.T) {
	t.Parallel()
	type row struct {
		trip       time.Duration
		pool, want int
	}
	limitertest.Each(t, map[string]row{
		"no time":          {0, 1024, 2},
		"20 us":            {20 * time.Microsecond, 1024, 2},
		"1 ms":             {time.Millisecond, 1024, 21},
		"100 ms":           {100 * time.Millisecond, 1024, 64},
		"20 connections":   {100 * time.Millisecond, 20, 10},
		"five connections": {100 * time.Millisecond, 5, 2},
		"one connection":   {100 * time.Millisecond, 1, 1},
	}, func(t *testing.T, tc row) {
		onRig(t, conditions{trip: tc.trip}, tc.pool, func(t *testing.T, r *rig) {
			r.mustAsk(t, 0)
			r.Forget()
			for i := range 150 {
				r.Go(func() {
					for range 3 {
						r.mustAsk(t, i)
					}
				})
				if tc.trip > 0 {
					synctest.Wait() // each finds those before it under way
				}
			}
			r.Wait()
			if tc.trip == 0 {
				assert.LessOrEqual(t, r.Most(), tc.want)
			} else {
				assert.Equal(t, tc.want, r.Most())
			}
		})
	})
}

// A server that answers no call is asked by one call at a time, until it answers.
func TestLane_SilentServerIsProbed(t *testing.T) {
	t.Parallel()
	onRig(t, conditions{trip: 10 * time.Millisecond}, 1024, func(t *testing.T, r *rig) {
		r.mustAsk(t, 0)
		r.Stuck.Store(true)
		ask := func(i int) {
			// Those that were not sent get no answer: that is for those who wait.
			if _, err := r.ask(i, script.Call{Repeat: true}); err != nil {
				assert.ErrorIs(t, err, script.ErrLost)
				assert.True(t, script.Silent(err))
			}
		}
		r.start(200, ask)
		time.Sleep(script.DefaultTimeout/3 + time.Millisecond)
		assert.LessOrEqual(t, r.Most(), 64+3, "and those that show whether it answers")
		r.Forget()
		r.start(100, ask)
		time.Sleep(10 * script.DefaultTimeout / 3)
		assert.GreaterOrEqual(t, len(r.Sizes()), 25)
		assert.LessOrEqual(t, len(r.Sizes()), 31, "one each ninth of a call's time")
		for _, size := range r.Sizes() {
			assert.Equal(t, 1, size)
		}
		r.Stuck.Store(false)
		r.Go(func() { assert.NoError(t, limitertest.Second(r.ask(0, script.Call{Repeat: true}))) })
		r.Wait()
		r.Forget()
		r.start(100, func(i int) { r.mustAsk(t, i) })
		r.Wait()
		assert.Greater(t, r.Most(), 2)
	})
}

// many answers each part of a joint call with its number, 0 for those that must wait, or fails as a whole.
var many = limitertest.NewScript(`
if ARGV[3] == 'fail' then return redis.error_reply(ARGV[2] .. " told") end
local answers = {}
for i = 1, (#ARGV - 1) / 2 do answers[i] = tonumber(ARGV[2 * i + 1]) end
return answers`)

// echo is what many stands for.
var echo = limitertest.NewScript("return {ARGV[1]}")

// joined makes calls while two are under way: those two go alone, the others together. The server knows echo, and maybe the script.
func joined(t *testing.T, calls []*script.Joint, known bool, check func(replies []any, r *rig)) {
	t.Helper()
	onRig(t, conditions{held: true}, 1024, func(t *testing.T, r *rig) {
		require.NoError(t, r.direct.ScriptLoad(t.Context(), echo.Source).Err())
		if known {
			require.NoError(t, r.direct.ScriptLoad(t.Context(), calls[0].Script.Source).Err())
		}
		replies := make([]any, len(calls))
		r.start(len(calls), func(i int) {
			var err error
			replies[i], err = r.ask(i, script.Call{
				Script: echo, Repeat: true, Joint: calls[i],
				Args: script.ArgumentsFunc(func(all []any, a script.Attempt) []any { return append(all, fmt.Sprint(i, a.Age >= 0)) }),
			})
			assert.NoError(t, err)
		})
		close(r.Hold)
		r.Wait()
		check(replies, r)
		exists := limitertest.Must(r.direct.ScriptExists(t.Context(), calls[0].Script.SHA).Result())(t)
		assert.Equal(t, []bool{true}, exists, "calls were merged with its source")
	})
}

func TestJointCalls(t *testing.T) {
	t.Parallel()
	type row struct {
		word  string // the first argument of each call
		fails bool   // as its second says
		want  func(i int) any
	}
	limitertest.Each(t, map[string]row{
		"answered": {"", false, func(i int) any {
			switch {
			case i < 2:
				return []any{fmt.Sprint(i, false)} // went alone
			case i == 5:
				return []any{"5 false"} // undecided, and made by itself
			}
			return int64(100 + i)
		}},
		"keys in different slots": {"CROSSSLOT", true, func(i int) any { return []any{fmt.Sprint(i, false)} }},
		"refused unrun":           {"LOADING", true, func(i int) any { return []any{fmt.Sprint(i, false)} }},
		"an error from within":    {"OOM", true, func(i int) any { return []any{fmt.Sprint(i, i >= 2)} }},
	}, func(t *testing.T, tc row) {
		calls := make([]*script.Joint, 80)
		for i := range calls {
			second := any(100 + i)
			if tc.fails {
				second = "fail"
			} else if i == 5 {
				second = 0
			}
			calls[i] = &script.Joint{Script: many, Args: [2]any{tc.word, second}, Early: true}
		}
		joined(t, calls, tc.fails, func(replies []any, r *rig) {
			for i, reply := range replies {
				want := []any{tc.want(i)}
				if !tc.fails { // after NOSCRIPT a flight may take one call before the next is queued
					want = append(want, []any{fmt.Sprint(i, false)})
				}
				assert.Contains(t, want, reply, i)
			}
			assert.Equal(t, []int{1, 1, 2}, r.Sizes()[:3], "78 calls as two")
		})
	})
}

// Calls stay apart once a server has shown that it does not take them together, and only then.
func TestJointCalls_GoTogetherAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{"OOM": 1, "LOADING": 1, "UNAVAILABLE": 1, "CROSSSLOT": 8} {
		calls := make([]*script.Joint, 10)
		for i := range calls {
			calls[i] = &script.Joint{Script: many, Args: [2]any{code, "fail"}, Early: true}
		}
		joined(t, calls, true, func(_ []any, r *rig) {
			r.Forget()
			r.Hold = make(chan struct{})
			r.start(10, func(i int) {
				_, err := r.ask(i, script.Call{Script: echo, Args: script.Constant{""}, Joint: &script.Joint{Script: many, Args: [2]any{"", 100}}})
				assert.NoError(t, err)
			})
			close(r.Hold)
			r.Wait()
			assert.Equal(t, []int{1, 1, want}, r.Sizes(), code)
		})
	}
}

type conditions struct {
	trip   time.Duration
	held   bool // each waits until the rig's Hold is closed
	inline bool // callers who find the way free send by themselves
}

// A rig is a lane to a miniredis that knows limitertest.Incr.
type rig struct {
	*redistest.Trips
	sync.WaitGroup // of callers

	lanes  *lane.Lanes
	lane   *lane.Lane
	rdb    redistest.Client // of the lanes
	direct redistest.Client
}

// newRig must be called in a bubble.
func newRig(t *testing.T, c conditions, pool int) *rig {
	t.Helper()
	f := &redistest.Trips{}
	if f.Take(c.trip); c.held {
		f.Hold = make(chan struct{}) // of the bubble
	}
	direct, m := redistest.Mini(t)
	require.NoError(t, direct.ScriptLoad(t.Context(), limitertest.Incr.Source).Err())
	rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: pool, MaxConcurrentDials: 1, ContextTimeoutEnabled: c.inline})
	rdb.AddHook(redistest.Hook(f.Send))
	lanes := lane.New(script.NewConn(rdb, script.DefaultTimeout), nil)
	t.Cleanup(func() { assert.NoError(t, lanes.Close(context.Background(), nil)) })
	return &rig{Trips: f, lanes: lanes, lane: lanes.To(t.Context(), "key"), rdb: rdb, direct: direct}
}

func onRig(t *testing.T, c conditions, pool int, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, newRig(t, c, pool))
		time.Sleep(time.Minute) // calls under way end
	})
}

// A rigTest is a test of a lane to a server under these conditions, with a pool of that size.
type rigTest struct {
	conditions
	pool int
	run  func(t *testing.T, r *rig)
}

func onRigs(t *testing.T, all map[string]rigTest) {
	t.Helper()
	limitertest.Each(t, all, func(t *testing.T, test rigTest) { onRig(t, test.conditions, test.pool, test.run) })
}

// start starts callers, one after another: each finds those before it under way.
func (r *rig) start(callers int, call func(i int)) {
	for i := range callers {
		r.Go(func() { call(i) })
		synctest.Wait()
	}
}

func (r *rig) command(ctx context.Context, c *script.Call, then func(reply any, err error)) {
	go func() { then(r.lanes.Run(ctx, c)) }()
}

func (r *rig) ask(i int, call script.Call) (any, error) { return newAsk(keyOf(i), call).by(r) }

// mustAsk makes a call of limitertest.Incr, of a key, which must be answered.
func (r *rig) mustAsk(t *testing.T, i int) {
	t.Helper()
	assert.NoError(t, limitertest.Second(r.ask(i, script.Call{})))
}

type ask struct {
	call  *lane.Call
	done  chan struct{}
	reply any
	err   error
}

func newAsk(key string, call script.Call) *ask {
	a := &ask{done: make(chan struct{})}
	if call.Script == nil {
		call.Script = limitertest.Incr
	}
	if call.Args == nil {
		call.Args = script.Constant{}
	}
	call.Keys = script.KeysOf(key)
	a.call = &lane.Call{Call: call, Owner: a}
	return a
}

func (a *ask) OnReply(c *lane.Call) bool {
	a.reply, a.err = c.Outcome()
	close(a.done)
	return false
}

func (a *ask) Prepare(*lane.Call)                                       {}
func (a *ask) Progressed()                                              {}
func (a *ask) NextCall(*lane.Lane, time.Time) (c *lane.Call, more bool) { return a.call, false }

// by sends the call as a request is sent, and returns the result.
func (a *ask) by(r *rig) (any, error) {
	if r.lane.TryReserve() {
		r.lane.SendOne(context.Background(), a.call, false)
	} else {
		r.lane.Ready(a)
	}
	<-a.done
	return a.reply, a.err
}

func keyOf(i int) string { return fmt.Sprint("key", i) }

// What gathers behind the only flight that may be under way leaves once that has landed, also if a caller sends it.
func TestFlight_ByCallerHandsItsPlaceOn(t *testing.T) {
	t.Parallel()
	for _, inline := range []bool{false, true} {
		onRig(t, conditions{held: true, inline: inline}, 2, func(t *testing.T, r *rig) {
			r.start(3, func(i int) { r.mustAsk(t, i) })
			close(r.Hold)
			r.Wait()
			assert.Equal(t, []int{1, 2}, r.Sizes())
		})
	}
}

func TestEarlyJointCallsComeFirst(t *testing.T) {
	t.Parallel()
	order := limitertest.NewScript(`local all = {}
		for i = 1, (#ARGV - 1) / 2 do
			all[i] = (i <= ARGV[1] + 0) == (ARGV[2 * i] % 2 == 1) and 1000 + ARGV[2 * i] or 0
		end
		return all`)
	var calls []*script.Joint
	for i := range 11 { // five of those that go together are not early, and four are
		calls = append(calls, &script.Joint{Script: order, Args: [2]any{i, ""}, Early: i%2 == 1})
	}
	joined(t, calls, true, func(replies []any, _ *rig) {
		for i := 2; i < len(calls); i++ {
			assert.EqualValues(t, 1000+i, replies[i])
		}
	})
}
