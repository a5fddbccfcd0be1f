package lane_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/keyed"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// commandOf is a call that adds one to a key.
func commandOf(i int) *script.Call {
	return &script.Call{Script: incr, Keys: script.KeysOf(keyOf(i)), Args: script.Constant{}}
}

var commandTests = map[string]rigTest{
	// What comes by the thousands at a distance is done by flights of a bounded size, and
	// does not keep decisions waiting behind all of it.
	"go together": {conditions{trip: 10 * time.Millisecond}, 20, func(t *testing.T, r *rig) {
		const commands = 3000
		for i := range commands {
			r.Add(1)
			r.command(t.Context(), commandOf(i), func(_ any, err error) {
				assert.NoError(t, err)
				r.Done()
			})
		}
		synctest.Wait()
		start := time.Now()
		r.mustAsk(t, commands)
		assert.LessOrEqual(t, time.Since(start), 3*r.trip, "not behind all of them")
		r.Wait()
		ran := 0
		for _, size := range r.sizes() {
			assert.LessOrEqual(t, size, 128)
			ran += size
		}
		assert.Equal(t, commands+1, ran)
		assert.LessOrEqual(t, r.most(), 10)
		assert.Equal(t, "1", r.direct.Get(t.Context(), keyOf(commands-1)).Val())
	}},
	// Calls that are repeated and calls that are not go in flights of their own, however they come.
	"of two kinds go in flights of their own": {conditions{trip: 100 * time.Millisecond}, 20, func(t *testing.T, r *rig) {
		const commands = 4000
		start := time.Now()
		for i := range commands {
			r.Add(1)
			c := commandOf(i)
			c.Repeat = i%2 == 0
			r.command(t.Context(), c, func(_ any, err error) {
				assert.NoError(t, err)
				r.Done()
			})
		}
		synctest.Wait()
		asked := time.Now()
		r.mustAsk(t, commands)
		assert.LessOrEqual(t, time.Since(asked), 2*r.trip)
		r.Wait()
		assert.LessOrEqual(t, time.Since(start), 8*r.trip)
	}},
	// A call that is not repeated has the time of a call for its one attempt. Decisions beside
	// it are repeated after a third of that nevertheless.
	"decisions beside changes are repeated in time": {conditions{held: true}, 64, func(t *testing.T, r *rig) {
		ask := func(i int) {
			_, err := r.ask(i, script.Call{Repeat: true})
			assert.NoError(t, err)
		}
		r.start(1, ask) // and while it is under way
		for i := range 10 {
			r.command(t.Context(), commandOf(100+i), func(any, error) {})
			r.start(1, func(int) { ask(1 + i) })
		}
		r.stuck.Store(true)
		close(r.hold)
		time.Sleep(script.DefaultTimeout / 2)
		r.stuck.Store(false)
		r.Wait()
	}},
	// Finished calls are forgotten even while a server sends no answers and reads nothing more.
	"that are over are forgotten": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		var kept []weak.Pointer[script.Keys]
		for i := range 60 {
			for j := range 100 {
				c := commandOf(100*i + j)
				kept = append(kept, weak.Make(c.Keys))
				r.command(t.Context(), c, func(_ any, err error) { assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable) })
			}
			time.Sleep(script.DefaultTimeout)
		}
		synctest.Wait()
		runtime.GC()
		kept = slices.DeleteFunc(kept, func(p weak.Pointer[script.Keys]) bool { return p.Value() == nil })
		assert.LessOrEqual(t, len(kept), 200, "beside what is under way")
		close(r.hold)
	}},
	// A caller that goes away leaves no call behind that was not sent, and learns whether it
	// may have run.
	"cancelled before they are sent are not sent": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		r.start(2, func(i int) {
			_, err := r.lanes.Run(ctx, commandOf(i))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, i < 1, errors.Is(err, limit.ErrUnknownOutcome), "one flight was under way")
		})
		cancel()
		r.Wait()
		close(r.hold)
		time.Sleep(time.Second)
		assert.Equal(t, []any{"1", nil}, r.direct.MGet(t.Context(), keyOf(0), keyOf(1)).Val())
	}},
	// A call that has waited for all its time when a flight could take it is not sent: the attempt would be given up at once,
	// and its outcome unknown.
	"whose time is over are not sent": {conditions{}, 2, func(t *testing.T, r *rig) {
		time.Sleep(script.DefaultTimeout)
		for i, wanted := range []func() bool{nil, func() bool { return true }} {
			c := commandOf(i)
			c.Wanted, c.Since = wanted, time.Now().Add(time.Millisecond-script.DefaultTimeout)
			_, err := r.lanes.Run(t.Context(), c)
			assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable)
			assert.NotErrorIs(t, script.Outage(err), limit.ErrUnknownOutcome)
			assert.Empty(t, r.sizes())
		}
		r.mustAsk(t, 0)
	}},
	"that are not wanted are not sent": {conditions{}, 2, func(t *testing.T, r *rig) {
		for i, want := range []error{nil, script.ErrUnwanted} {
			c := commandOf(i)
			asked := 0
			c.Wanted = func() bool { asked++; return want == nil }
			_, err := r.lanes.Run(t.Context(), c)
			assert.ErrorIs(t, err, want)
			assert.Equal(t, 1, asked)
		}
		assert.Equal(t, []any{"1", nil}, r.direct.MGet(t.Context(), keyOf(0), keyOf(1)).Val())
	}},
	// Late gets a call that was under way when its caller left, once that is over, and no other: the lane may still look at
	// that.
	"Late learns once whether the call was under way": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		ctx, leave := context.WithCancel(t.Context())
		var late [6]redistest.List[*lane.Call]
		r.start(len(late), func(i int) {
			done, err := r.lanes.Do(ctx, &lane.Call{Call: *commandOf(i), Late: func(c *lane.Call) { late[i].Add(c) }})
			assert.False(t, done)
			assert.ErrorIs(t, err, context.Canceled)
		})
		leave()
		r.Wait()
		close(r.hold)
		time.Sleep(time.Minute)
		underWay := 0
		for i := range late {
			told := late[i].All()
			require.Len(t, told, 1, i)
			if told[0] == nil {
				assert.Empty(t, r.direct.Get(t.Context(), keyOf(i)).Val())
				continue
			}
			underWay++
			reply, err := told[0].Outcome()
			require.NoError(t, err)
			assert.Equal(t, int64(1), reply)
		}
		assert.Positive(t, underWay)
		assert.Less(t, underWay, len(late))
	}},
	// Those whose callers go away are not kept until a flight takes them: with a server that is slow to answer that may be
	// long. The others are sent.
	"cancelled are forgotten before the next flight": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		const stay = 10
		call := func(i int) {
			_, err := r.lanes.Run(t.Context(), commandOf(i))
			assert.NoError(t, err)
		}
		r.start(stay/2, call) // the first is all that may be under way
		ctx, cancel := context.WithCancel(t.Context())
		var kept []weak.Pointer[script.Keys]
		for i := range 1000 {
			c := &lane.Call{Call: *commandOf(stay + i), Late: func(c *lane.Call) { assert.Nil(t, c) }}
			c.Repeat = i%2 == 0
			kept = append(kept, weak.Make(c.Keys))
			go func() {
				_, err := r.lanes.Do(ctx, c)
				assert.ErrorIs(t, err, context.Canceled)
			}()
		}
		r.start(stay/2, func(i int) { call(stay/2 + i) })
		cancel()
		synctest.Wait()
		runtime.GC()
		kept = slices.DeleteFunc(kept, func(p weak.Pointer[script.Keys]) bool { return p.Value() == nil })
		assert.LessOrEqual(t, len(kept), 2*stay)
		close(r.hold)
		r.Wait()
		assert.LessOrEqual(t, len(r.sizes()), 3)
	}},
	// Nothing is in doubt about a call that only reads.
	"that only read are no unknown outcome": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		read := func(ctx context.Context, i int) error {
			_, err := r.lanes.Read(ctx, incr, script.KeysOf(keyOf(i)))
			assert.NotErrorIs(t, script.Outage(err), limit.ErrUnknownOutcome)
			return err
		}
		for i := range 2 { // under way, and to be sent
			r.Go(func() {
				var left *script.Left
				assert.ErrorAs(t, read(ctx, i), &left)
				assert.ErrorIs(t, left, context.Canceled)
			})
			synctest.Wait()
		}
		cancel()
		r.Wait()
		assert.ErrorIs(t, script.Outage(read(t.Context(), 2)), limit.ErrUnavailable)
		close(r.hold)
	}},
	// Whether a call is wanted is asked before its first attempt, however many follow.
	"are wanted once they were": {conditions{}, 2, func(t *testing.T, r *rig) {
		r.loses.Store(2)
		asked := 0
		c := commandOf(0)
		c.Repeat, c.Wanted = true, func() bool { asked++; return asked == 1 }
		_, err := r.lanes.Run(t.Context(), c)
		assert.NoError(t, err)
		assert.Len(t, r.sizes(), 3)
	}},
}

func TestCommands(t *testing.T) {
	t.Parallel()
	onRigs(t, commandTests)
}

// A server that hangs holds a bounded number of goroutines and attempts for commands, and
// none goes unanswered for longer than a call's time.
func TestCommandsOfASilentServerEndInTime(t *testing.T) { //nolint:paralleltest // it counts goroutines
	onRig(t, conditions{}, 1024, func(t *testing.T, r *rig) {
		r.stuck.Store(true)
		start, before := time.Now(), runtime.NumGoroutine()
		var mu sync.Mutex
		told := 0
		const commands = 5000
		for i := range commands {
			r.command(t.Context(), commandOf(i), func(_ any, err error) {
				mu.Lock()
				defer mu.Unlock()
				told++
				assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
			})
		}
		time.Sleep(script.DefaultTimeout / 2)
		assert.LessOrEqual(t, runtime.NumGoroutine()-before-commands, 1000, "goroutines beyond the callers")
		time.Sleep(script.DefaultTimeout / 2)
		synctest.Wait()
		mu.Lock()
		assert.Equal(t, commands, told)
		mu.Unlock()
		assert.LessOrEqual(t, r.most(), 2*64)
	})
}

func TestCommands_NeedNoReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	lanes := lane.New(script.NewConn(server.Client(t, nil), time.Minute), nil)
	lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: time.Millisecond})
	reply, err := lanes.Run(t.Context(), commandOf(100))
	require.NoError(t, err)
	assert.EqualValues(t, 1, reply)
}

// tenEach grants of ten permits a key, each batch as its requests one by one.
var tenEach = newScript(`local free = tonumber(redis.call('GET', KEYS[1]) or '10')
local before, taken = free, 0
for i = 1, #ARGV, 2 do
	local permits = tonumber(ARGV[i])
	for _ = 1, tonumber(ARGV[i + 1]) do
		if permits <= free then
			free = free - permits
			taken = taken + permits
		end
	end
end
redis.call('SET', KEYS[1], free)
return {10, before, taken, 0, 0}`)

// desk is a limiter whose calls take a second.
type desk struct {
	*keyed.Queues
	*rig

	batches redistest.List[string] // key and permits of each
}

// atDesk runs test in a bubble, with a desk that has that many flights under way at most.
func atDesk(t *testing.T, most int, test func(t *testing.T, d *desk)) {
	t.Helper()
	onRig(t, conditions{trip: 900 * time.Millisecond}, 2*most, func(t *testing.T, r *rig) {
		require.NoError(t, r.direct.ScriptLoad(t.Context(), tenEach.Source).Err())
		d := &desk{rig: r}
		d.Queues = keyed.New(rratelimiter.New(r.rdb), keyed.Rule{Package: "desk", Most: 100, Ask: d.question}, nil)
		test(t, d)
	})
}

func (d *desk) question(key string, b *lane.Batch) *keyed.Try {
	d.batches.Add(fmt.Sprint(key, " ", b.Count, " for ", b.Sum))
	q := &keyed.Try{Read: func(reply any, err error) (lane.Outcome, error) {
		if err != nil {
			return lane.Outcome{}, script.Outage(err)
		}
		v, _, err := keyed.Parse(reply)
		return v, err
	}}
	q.Script, q.Keys, q.Args = tenEach, script.KeysOf(key), script.Constant(b.Args(nil))
	return q
}

func (d *desk) take(ctx context.Context, key string, permits int64) (limit.Decision, error) {
	a, err := d.Take(ctx, decide.Ask{Call: "Take", Key: key, Permits: permits})
	return a.Decision, err
}

// mustTake takes permits that must be free, and returns how many are left.
func (d *desk) mustTake(t *testing.T, key string, permits int64) (left int64) {
	t.Helper()
	decision, err := d.take(t.Context(), key, permits)
	assert.NoError(t, err)
	assert.True(t, decision.Granted)
	return decision.Remaining
}

func TestBatch_NextDoesNotWaitForAnswer(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{{"a", "a"}, {"a", "b"}} {
		atDesk(t, 2, func(t *testing.T, d *desk) {
			start := time.Now()
			d.start(2, func(i int) {
				d.mustTake(t, keys[i], 1)
				assert.Equal(t, 900*time.Millisecond, time.Since(start))
			})
			assert.Equal(t, []int{1, 1}, d.sizes())
			d.Wait()
		})
	}
}

func TestBatch_IsBounded(t *testing.T) {
	t.Parallel()
	atDesk(t, 1, func(t *testing.T, d *desk) {
		d.start(4, func(int) { _, _ = d.take(t.Context(), "a", 40) })
		d.Wait()
		assert.Equal(t, []string{"a 1 for 40", "a 2 for 80", "a 1 for 40"}, d.batches.All())
	})
}

// A batch's error, or a panic in a hook of the Redis client, is an error for all its callers.
// None hangs, and later ones find all in order.
func TestBatch_ErrorReachesAllCallers(t *testing.T) {
	t.Parallel()
	fail := errors.New("a hook fails")
	type row struct {
		fails func(int) error
		want  error
		text  string
	}
	limitertest.Each(t, map[string]row{
		"an error": {func(int) error { return fail }, fail, ""},
		"a panic":  {func(int) error { panic("a hook") }, limit.ErrUnknownOutcome, "a hook"},
	}, func(t *testing.T, tt row) {
		atDesk(t, 1, func(t *testing.T, d *desk) {
			d.fails = tt.fails
			d.start(5, func(int) {
				a, err := d.Take(context.Background(), decide.Ask{Call: "Take", Key: "a", Permits: 1})
				assert.ErrorIs(t, err, tt.want)
				assert.ErrorContains(t, err, tt.text)
				assert.Nil(t, a.Undo)
			})
			d.Wait()
			d.fails = nil
			assert.EqualValues(t, 9, d.mustTake(t, "a", 1))
		})
	})
}

// A request that could not be sent in time fails, and says that it was not.
func TestLane_UnsentCallFailsInTime(t *testing.T) {
	t.Parallel()
	atDesk(t, 1, func(t *testing.T, d *desk) {
		d.stuck.Store(true)
		start := time.Now()
		d.start(10, func(i int) {
			_, err := d.take(t.Context(), keyOf(i), 1)
			assert.ErrorIs(t, err, limit.ErrUnavailable)
			assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
		})
		d.Wait()
		time.Sleep(time.Minute)
		d.stuck.Store(false)
		d.mustTake(t, "a", 1)
	})
}

// A call of several steps has the time of a call once more when a step is answered, also while the next is refused.
func TestRun_AnsweredStepGivesTimeWhileTheNextIsRefused(t *testing.T) {
	t.Parallel()
	steps := newScript("if ARGV[1] == '' then return {'again', 'next'} end return 7")
	f := conditions{}
	attempts := redistest.List[time.Time]{}
	f.fails = func(int) error {
		attempts.Add(time.Now())
		switch first := attempts.All()[0]; {
		case time.Now().Equal(first):
			time.Sleep(800 * time.Millisecond)
		case time.Since(first) < script.DefaultTimeout+500*time.Millisecond:
			return loading{}
		}
		return nil
	}
	onRig(t, f, 20, func(t *testing.T, r *rig) {
		require.NoError(t, r.direct.ScriptLoad(t.Context(), steps.Source).Err())
		reply, err := r.lanes.Run(t.Context(), &script.Call{Script: steps, Keys: script.KeysOf("key"), Args: script.Paged{}, Repeat: true})
		require.NoError(t, err)
		assert.Equal(t, int64(7), reply)
	})
}

// loading is the answer of a server that starts.
type loading struct{}

func (loading) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (loading) RedisError()   {}

// Calls that have waited for a silent server until they have hardly any time left go to it one at a time too, at the
// pace of others.
func TestCommandsWithLittleTimeLeftProbeASilentServerAtItsPace(t *testing.T) {
	t.Parallel()
	for _, repeat := range []bool{false, true} {
		for _, every := range []time.Duration{0, 10 * time.Millisecond} {
			onRig(t, conditions{}, 1024, func(t *testing.T, r *rig) {
				r.stuck.Store(true)
				command := func(i int) {
					c := commandOf(i)
					c.Repeat = repeat
					r.command(t.Context(), c, func(_ any, err error) { assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable) })
				}
				command(0)
				time.Sleep(script.DefaultTimeout / 8) // it is silent
				r.forget()
				start := time.Now()
				for i := range 300 {
					command(i)
					time.Sleep(every)
				}
				time.Sleep(2*script.DefaultTimeout - time.Since(start))
				assert.LessOrEqual(t, len(r.sizes()), 3+2*9, "one each ninth of a call's time")
			})
		}
	}
}

// A change under way whose caller has gone is repeated only if Late is to learn what has become of it.
func TestCommands_OfCallersWhoLeftGoOnForLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		repeat, late bool
		sent         int
	}{{true, true, 2}, {true, false, 1}, {false, true, 1}} {
		f := conditions{held: true, fails: func(int) error { return answered("LOADING not yet") }}
		onRig(t, f, 2, func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			var told atomic.Int32
			c := &lane.Call{Call: *commandOf(0)}
			c.Repeat = tt.repeat
			if tt.late {
				c.Late = func(*lane.Call) { told.Add(1) }
			}
			r.start(1, func(int) {
				done, err := r.lanes.Do(ctx, c)
				assert.False(t, done)
				assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
			})
			cancel()
			r.Wait()
			r.stuck.Store(true)
			close(r.hold)
			time.Sleep(script.DefaultTimeout / 4)
			assert.Len(t, r.sizes(), tt.sent)
			time.Sleep(2 * script.DefaultTimeout)
			assert.Equal(t, tt.late, told.Load() == 1)
		})
	}
}
