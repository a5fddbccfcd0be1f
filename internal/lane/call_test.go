package lane_test

import (
	"context"
	"errors"
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
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestBatch_RunsOfEqualRequestsAreSentOnce(t *testing.T) {
	t.Parallel()
	var b lane.Batch
	for range 3 {
		assert.True(t, b.Add(2, true, 0))
	}
	assert.True(t, b.Add(2, false, 0), "does not stand in line")
	assert.True(t, b.Add(1, false, 0))
	assert.True(t, b.AddUpTo(5))
	assert.True(t, b.Add(1, false, 0), "no part of the one before")
	assert.Equal(t, lane.Batch{Sum: 15, Count: 7, Line: 3, Runs: []lane.Run{
		{Permits: 2, Count: 3, InLine: true}, {Permits: 2, Count: 1}, {Permits: 1, Count: 1}, {Permits: 1, Count: 5, UpTo: true}, {Permits: 1, Count: 1},
	}}, b)
	assert.Equal(t, []any{"2", "3", "2", "1", "1", "1", "1", "5", "1", "1"}, b.Args(nil))
	b.Reset()
	assert.Empty(t, b.Args(nil))
	assert.Equal(t, []any{"7"}, lane.NewPeek(7).Args(nil), "the permits alone")

	// The last request for all that it can have goes again.
	b.Add(2, false, 0)
	want := lane.Batch{Sum: b.Sum, Count: b.Count, Runs: b.Runs}
	b.AddUpTo(5)
	b.DropLast()
	assert.Equal(t, want, b)
}

func TestBatch_HasRoomForSoManyRequestsAndRuns(t *testing.T) {
	t.Parallel()
	var b, runs lane.Batch
	for range lane.MaxRequests {
		assert.True(t, b.Add(1, false, 0))
	}
	assert.False(t, b.Add(1, false, 0))
	assert.False(t, b.AddUpTo(1))
	for i := range lane.MaxRuns - 2 {
		assert.True(t, runs.Add(int64(i), false, 2))
	}
	assert.False(t, runs.Add(1, false, 2), "what is reserved")
	assert.True(t, runs.AddUpTo(1))
	assert.True(t, runs.Add(1, false, 0))
	assert.False(t, runs.Add(2, false, 0))
	assert.False(t, runs.AddUpTo(1))
	assert.True(t, runs.Add(1, false, 0), "one more of the last")
}

// gathered is a caller's request, for which a flight takes what call returns.
type gathered struct {
	lane.Pending
	sync.Mutex

	call func(l *lane.Lane) *lane.Call // nil: its source has nothing to send after all
	more atomic.Bool                   // calls follow, until it is closed
}

func (g *gathered) Close() { g.more.Store(false) }

func (g *gathered) NextCall(l *lane.Lane, _ time.Time) (c *lane.Call, more bool) {
	if g.call != nil {
		c = g.call(l)
	}
	return c, g.more.Load()
}

// Close closes what a flight has looked at meanwhile and has no room for too.
func TestClose_FailsWhatAFlightLeaves(t *testing.T) {
	t.Parallel()
	onRig(t, conditions{trip: time.Second}, 1, func(t *testing.T, r *rig) {
		require.NoError(t, r.lanes.Begin())
		closes := sync.OnceFunc(func() { go func() { assert.NoError(t, r.lanes.Close(t.Context(), nil)) }() })
		g := &gathered{call: func(*lane.Lane) *lane.Call {
			closes()
			synctest.Wait()
			return newAsk("key", script.Call{}).call
		}}
		g.more.Store(true)
		r.lane.Ready(g)
		time.Sleep(time.Second / 2)
		assert.False(t, g.more.Swap(false))
		r.lanes.End()
	})
}

// leaves checks that a caller who joins a Wave leaves unanswered after that time.
func (r *rig) leaves(t *testing.T, g *gathered, after time.Duration, join func()) {
	t.Helper()
	start := time.Now()
	g.Asked = start
	g.Lock()
	join()
	g.Unlock()
	answered, err := g.Await(t.Context(), r.lanes, g, start.Add(after), false)
	assert.False(t, answered)
	assert.ErrorIs(t, err, limit.ErrUnavailable)
	assert.Equal(t, after, time.Since(start))
}

var waveTests = map[string]rigTest{
	// Who waits beside others ends in time too, also if the flight has nothing to take.
	"ends if the flight is empty": {conditions{held: true}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		h := &gathered{}
		r.Go(func() { r.leaves(t, h, script.DefaultTimeout, func() { h.WaitOn(r.lane.Ready(h)) }) })
		synctest.Wait()
		close(r.Hold)
		r.Wait()
	}},
	// Who comes for a source that a full flight has left behind leaves in time too, though the flight has their Wave.
	"ends in time for sources that a full flight leaves": {conditions{trip: script.DefaultTimeout / 10}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		r.start(511, func(i int) { _, _ = r.ask(i, script.Call{}) })
		h := &gathered{}
		wave := r.lane.Ready(h)
		time.Sleep(script.DefaultTimeout / 10)
		synctest.Wait()
		h.Last = time.Now().Add(10 * time.Millisecond)
		r.Go(func() {
			r.leaves(t, h, 10*time.Millisecond, func() {
				h.WaitOn(wave)
				r.lane.EndBy(wave, h.Last)
			})
		})
		r.Wait()
	}},
	"is shared by those who come while its flight asks": {conditions{held: true}, 1024, func(t *testing.T, r *rig) {
		r.start(2, func(i int) { _, _ = r.ask(i, script.Call{}) }) // all that may be under way
		first, other := newAsk("first", script.Call{}), newAsk("other", script.Call{})
		var shared *lane.Wave
		wave := r.lane.Ready(&gathered{call: func(l *lane.Lane) *lane.Call {
			shared = l.Ready(other) // it comes while a flight asks
			return first.call
		}})
		close(r.Hold)
		<-first.done
		<-other.done
		assert.Same(t, wave, shared)
		assert.Equal(t, []int{1, 1, 2}, r.Sizes())
		r.Wait()
	}},
	// Flights that wait for replicas are late later, and with them the waves that callers share.
	"ends in time though flights wait for replicas": {conditions{trip: script.DefaultTimeout + replicaWait/2}, 1, func(t *testing.T, r *rig) {
		r.lanes.AwaitReplicas(lane.Replicas{Count: 1, Wait: replicaWait})
		r.lane = r.lanes.To(t.Context(), "key")
		r.start(1, func(i int) { _, _ = r.ask(i, script.Call{}) })
		time.Sleep(replicaWait + script.DefaultTimeout/8) // it is late
		call := newAsk("key", script.Call{}).call
		g := &gathered{call: func(*lane.Lane) *lane.Call { return call }}
		r.leaves(t, g, script.DefaultTimeout, func() { g.WaitOn(r.lane.Ready(g)) })
		r.Wait()
	}},
}

const replicaWait = script.DefaultTimeout / 3

func TestWave(t *testing.T) {
	t.Parallel()
	onRigs(t, waveTests)
}

// The callers of a large batch have their answers before all are woken. Those who look meanwhile sleep until it is their turn.
func TestWave_IsNotLeftForAnAnswerThatIsNotMarkedYet(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		onRig(t, conditions{}, 1024, func(t *testing.T, r *rig) {
			h := &gathered{}
			if waits { // on a Wave that ends early
				h.WaitOn(r.lane.Ready(h))
			}
			h.State = lane.Answered
			r.Go(func() {
				answered, err := h.Await(t.Context(), r.lanes, h, time.Now().Add(time.Second), false)
				assert.True(t, answered)
				assert.NoError(t, err)
			})
			synctest.Wait()
			h.Lock()
			h.MarkAnswered(nil)
			h.Unlock()
			r.Wait()
		})
	}
}

// rider is a call that goes along with another, if it goes at all.
type rider struct {
	*ask

	goes bool
}

func (r *rider) Prepare(c *lane.Call) {
	if r.goes {
		c.Call = script.Call{Script: limitertest.Incr, Keys: script.KeysOf("riders"), Args: script.Constant{}, Repeat: true}
	}
}

func ridden(host *ask, goes bool) (*ask, *rider) {
	r := &rider{ask: &ask{done: make(chan struct{})}, goes: goes}
	host.call.Rider = &lane.Call{Owner: r}
	return host, r
}

// goesAlong is a rider in the flight of its call, which costs no round trip.
func goesAlong(t *testing.T, r *rig) {
	host, along := ridden(newAsk("host", script.Call{}), true)
	reply, err := host.by(r)
	assert.NoError(t, err)
	assert.EqualValues(t, 1, reply)
	<-along.done
	assert.EqualValues(t, 1, along.reply)
	host, _ = ridden(newAsk("host", script.Call{}), false)
	assert.NoError(t, limitertest.Second(host.by(r)), "the other did not go")
	assert.Equal(t, []int{2, 1}, r.Sizes())
}

var riderTests = map[string]rigTest{
	"on the caller's goroutine": {conditions{trip: time.Millisecond, inline: true}, 20, goesAlong},
	"on another":                {conditions{trip: time.Millisecond}, 20, goesAlong},
	// A rider's own rider goes along, too, also if the first does not go. If the answers are lost each is repeated, and none goes twice.
	"of one call": {conditions{trip: time.Millisecond}, 20, func(t *testing.T, r *rig) {
		r.Loses.Store(1)
		host, first := ridden(newAsk("host", script.Call{Repeat: true}), true)
		second, third := &rider{ask: &ask{done: make(chan struct{})}}, &rider{ask: &ask{done: make(chan struct{})}, goes: true}
		host.call.Rider.Rider = &lane.Call{Owner: second, Rider: &lane.Call{Owner: third}}
		_, err := host.by(r)
		assert.NoError(t, err)
		for _, along := range []*rider{first, third} {
			<-along.done
			assert.NoError(t, along.err)
		}
		for range 3 {
			r.mustAsk(t, 0)
		}
		assert.Equal(t, "2", r.direct.Get(t.Context(), "riders").Val())
	}},
	// A flight takes few riders along, so that its calls do not wait for many.
	"are few in a flight": {conditions{trip: 10 * time.Millisecond}, 2, func(t *testing.T, r *rig) {
		r.start(41, func(i int) {
			host, _ := ridden(newAsk(keyOf(i), script.Call{}), true)
			assert.NoError(t, limitertest.Second(host.by(r)))
		})
		r.Wait()
		assert.Equal(t, []int{2, 40 + 16}, r.Sizes())
		assert.Equal(t, "17", r.direct.Get(t.Context(), "riders").Val())
		r.Forget()
		r.mustAsk(t, 0)
		assert.Equal(t, []int{1}, r.Sizes(), "those that found no room do not follow")
	}},
}

func TestRiders(t *testing.T) {
	t.Parallel()
	onRigs(t, riderTests)
}

// commandOf is a call that adds one to a key.
func commandOf(i int) *script.Call {
	return &script.Call{Script: limitertest.Incr, Keys: script.KeysOf(keyOf(i)), Args: script.Constant{}}
}

func alive(all []weak.Pointer[script.Keys]) int {
	runtime.GC()
	return len(slices.DeleteFunc(all, func(p weak.Pointer[script.Keys]) bool { return p.Value() == nil }))
}

var commandTests = map[string]rigTest{
	// What comes by the thousands at a distance is done by flights of a bounded size, and does not keep decisions waiting behind all of it.
	"go together": {conditions{trip: 10 * time.Millisecond}, 20, func(t *testing.T, r *rig) {
		const commands = 3000
		for i := range commands {
			r.Go(func() { assert.NoError(t, limitertest.Second(r.lanes.Run(t.Context(), commandOf(i)))) })
		}
		synctest.Wait()
		start := time.Now()
		r.mustAsk(t, commands)
		assert.LessOrEqual(t, time.Since(start), 30*time.Millisecond, "not behind all of them")
		r.Wait()
		ran := 0
		for _, size := range r.Sizes() {
			assert.LessOrEqual(t, size, 128)
			ran += size
		}
		assert.Equal(t, commands+1, ran)
		assert.LessOrEqual(t, r.Most(), 10)
		assert.Equal(t, "1", r.direct.Get(t.Context(), keyOf(commands-1)).Val())
	}},
	"of two kinds go in flights of their own": {conditions{trip: 100 * time.Millisecond}, 20, func(t *testing.T, r *rig) {
		start := time.Now()
		for i := range 4000 {
			c := commandOf(i)
			c.Repeat = i%2 == 0
			r.Go(func() { assert.NoError(t, limitertest.Second(r.lanes.Run(t.Context(), c))) })
		}
		synctest.Wait()
		r.mustAsk(t, 4000)
		assert.LessOrEqual(t, time.Since(start), 200*time.Millisecond, "a decision is not behind all of them")
		r.Wait()
		assert.LessOrEqual(t, time.Since(start), 800*time.Millisecond)
	}},
	// A call that is not repeated has the time of a call for one attempt. Decisions beside it are repeated after a third of that.
	"decisions beside changes are repeated in time": {conditions{held: true}, 64, func(t *testing.T, r *rig) {
		ask := func(i int) { assert.NoError(t, limitertest.Second(r.ask(i, script.Call{Repeat: true}))) }
		r.start(1, ask) // and while it is under way
		for i := range 10 {
			r.command(t.Context(), commandOf(100+i), func(any, error) {})
			r.start(1, func(int) { ask(1 + i) })
		}
		r.Stuck.Store(true)
		close(r.Hold)
		time.Sleep(script.DefaultTimeout / 2)
		r.Stuck.Store(false)
		r.Wait()
	}},
	"that are repeated go with decisions": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		r.start(1, func(i int) { r.mustAsk(t, i) }) // and while it is under way
		repeated := commandOf(0)
		repeated.Repeat = true
		r.command(t.Context(), repeated, func(_ any, err error) { assert.NoError(t, err) })
		synctest.Wait()
		r.start(1, func(i int) { assert.NoError(t, limitertest.Second(r.ask(i, script.Call{Repeat: true}))) })
		close(r.Hold)
		r.Wait()
		assert.Equal(t, []int{1, 2}, r.Sizes())
	}},
	// Finished calls are forgotten even while a server sends no answers and reads nothing more.
	"that are over are forgotten": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		var kept []weak.Pointer[script.Keys]
		for i := range 600 {
			c := commandOf(i)
			kept = append(kept, weak.Make(c.Keys))
			r.command(t.Context(), c, func(_ any, err error) { assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable) })
			if i%100 == 99 {
				time.Sleep(script.DefaultTimeout)
			}
		}
		assert.LessOrEqual(t, alive(kept), 200, "beside what is under way")
		close(r.Hold)
	}},
	// A caller that goes away leaves no call behind that was not sent, and learns whether it may have run.
	"cancelled before they are sent are not sent": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		r.start(2, func(i int) {
			_, err := r.lanes.Run(ctx, commandOf(i))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, i < 1, errors.Is(err, limit.ErrUnknownOutcome), "one flight was under way")
		})
		cancel()
		r.Wait()
		close(r.Hold)
		time.Sleep(time.Second)
		assert.Equal(t, []any{"1", nil}, r.direct.MGet(t.Context(), keyOf(0), keyOf(1)).Val())
	}},
	// A call whose time was over when a flight could take it is not sent: it would be given up at once, its outcome unknown.
	"whose time is over are not sent": {conditions{}, 2, func(t *testing.T, r *rig) {
		time.Sleep(script.DefaultTimeout)
		for i, wanted := range []func() bool{nil, func() bool { return true }} {
			c := commandOf(i)
			c.Wanted, c.Since = wanted, time.Now().Add(time.Millisecond-script.DefaultTimeout)
			_, err := r.lanes.Run(t.Context(), c)
			assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable)
			assert.NotErrorIs(t, script.Outage(err), limit.ErrUnknownOutcome)
			assert.Empty(t, r.Sizes())
		}
		r.mustAsk(t, 0)
	}},
	"that are not wanted are not sent": {conditions{}, 2, func(t *testing.T, r *rig) {
		for i, want := range []error{nil, script.ErrUnwanted} {
			c := commandOf(i)
			asked := 0
			c.Wanted = func() bool { asked++; return want == nil }
			assert.ErrorIs(t, limitertest.Second(r.lanes.Run(t.Context(), c)), want)
			assert.Equal(t, 1, asked)
		}
		assert.Equal(t, []any{"1", nil}, r.direct.MGet(t.Context(), keyOf(0), keyOf(1)).Val())
	}},
	// Late gets a call that was under way when its caller left, once that is over, and no other: the lane may still look at that.
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
		close(r.Hold)
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
			assert.Equal(t, int64(1), limitertest.Must(told[0].Outcome())(t))
		}
		assert.Positive(t, underWay)
		assert.Less(t, underWay, len(late))
	}},
	"of callers who left are not repeated": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		r.Fails = func(int, int) error { return redistest.AnswerError("LOADING not yet") }
		ctx, leave := context.WithCancel(t.Context())
		c := &lane.Call{Call: *commandOf(0)}
		c.Repeat = true
		r.start(1, func(int) { assert.ErrorIs(t, limitertest.Second(r.lanes.Do(ctx, c)), limit.ErrUnknownOutcome) })
		leave()
		r.Wait()
		close(r.Hold)
		time.Sleep(script.DefaultTimeout)
		assert.Len(t, r.Sizes(), 1)
	}},
	// Those whose callers go away are not kept until a slow server's flight takes them. The others are sent.
	"cancelled are forgotten before the next flight": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		const stay = 10
		call := func(i int) { assert.NoError(t, limitertest.Second(r.lanes.Run(t.Context(), commandOf(i)))) }
		r.start(stay/2, call) // the first is all that may be under way
		ctx, cancel := context.WithCancel(t.Context())
		var kept []weak.Pointer[script.Keys]
		for i := range 1000 {
			c := &lane.Call{Call: *commandOf(stay + i), Late: func(c *lane.Call) { assert.Nil(t, c) }}
			c.Repeat = i%2 == 0
			kept = append(kept, weak.Make(c.Keys))
			go func() { assert.ErrorIs(t, limitertest.Second(r.lanes.Do(ctx, c)), context.Canceled) }()
		}
		r.start(stay/2, func(i int) { call(stay/2 + i) })
		cancel()
		synctest.Wait()
		assert.LessOrEqual(t, alive(kept), 2*stay)
		close(r.Hold)
		r.Wait()
		assert.LessOrEqual(t, len(r.Sizes()), 3)
	}},
	// Nothing is in doubt about a call that only reads.
	"that only read are no unknown outcome": {conditions{held: true}, 2, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		read := func(ctx context.Context, i int) error {
			_, err := r.lanes.Read(ctx, limitertest.Incr, script.KeysOf(keyOf(i)))
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
		close(r.Hold)
	}},
	// Whether a call is wanted is asked before its first attempt, however many follow.
	"are wanted once they were": {conditions{}, 2, func(t *testing.T, r *rig) {
		r.Loses.Store(2)
		asked := 0
		c := commandOf(0)
		c.Repeat, c.Wanted = true, func() bool { asked++; return asked == 1 }
		assert.NoError(t, limitertest.Second(r.lanes.Run(t.Context(), c)))
		assert.Len(t, r.Sizes(), 3)
	}},
}

func TestCommands(t *testing.T) {
	t.Parallel()
	onRigs(t, commandTests)
}

// A server that hangs holds a bounded number of goroutines and attempts, and no command goes unanswered beyond a call's time.
func TestCommandsOfASilentServerEndInTime(t *testing.T) { //nolint:paralleltest // it counts goroutines
	onRig(t, conditions{}, 1024, func(t *testing.T, r *rig) {
		r.Stuck.Store(true)
		start, before := time.Now(), runtime.NumGoroutine()
		var told atomic.Int64
		const commands = 5000
		for i := range commands {
			r.command(t.Context(), commandOf(i), func(_ any, err error) {
				told.Add(1)
				assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
			})
		}
		time.Sleep(script.DefaultTimeout / 2)
		assert.LessOrEqual(t, runtime.NumGoroutine()-before-commands, 1000, "goroutines beyond the callers")
		time.Sleep(script.DefaultTimeout / 2)
		synctest.Wait()
		assert.EqualValues(t, commands, told.Load())
		assert.LessOrEqual(t, r.Most(), 2*64)
		r.Forget()
		for i := range 2 * 128 { // while it is known to be silent
			r.command(t.Context(), commandOf(i), func(_ any, err error) { assert.ErrorIs(t, script.Outage(err), limit.ErrUnavailable) })
			time.Sleep(script.DefaultTimeout / 128)
		}
		assert.LessOrEqual(t, len(r.Sizes()), 3+2*9, "one each ninth of a call's time")
	})
}

// A call of several steps has the time of a call once more when a step is answered, also while the next is refused.
func TestRun_AnsweredStepGivesTimeWhileTheNextIsRefused(t *testing.T) {
	t.Parallel()
	steps := limitertest.NewScript("if ARGV[1] == '' then return {'again', 'next'} end return 7")
	onRig(t, conditions{}, 20, func(t *testing.T, r *rig) {
		start := time.Now()
		r.Fails = func(int, int) error {
			switch took := time.Since(start); {
			case took == 0:
				time.Sleep(800 * time.Millisecond)
			case took < script.DefaultTimeout+500*time.Millisecond:
				return redistest.AnswerError("LOADING not yet")
			}
			return nil
		}
		require.NoError(t, r.direct.ScriptLoad(t.Context(), steps.Source).Err())
		reply := limitertest.Must(r.lanes.Run(t.Context(), &script.Call{Script: steps, Keys: script.KeysOf("key"), Args: script.Paged{}, Repeat: true}))(t)
		assert.Equal(t, int64(7), reply)
	})
}

// One call is for no more permits than the limiter says.
func TestBatch_OfAKeyIsBounded(t *testing.T) {
	t.Parallel()
	onRig(t, conditions{trip: 900 * time.Millisecond}, 2, func(t *testing.T, r *rig) {
		require.NoError(t, r.direct.ScriptLoad(t.Context(), lua.FixedWindow.Source).Err())
		l := fixedwindow.New(rratelimiter.New(r.rdb), fixedwindow.Config{Limit: fixedwindow.MaxLimit, Window: time.Hour})
		r.start(4, func(int) { _, _ = l.Take(t.Context(), "a", fixedwindow.MaxLimit/10*4) })
		r.Wait()
		assert.Equal(t, []int{1, 1, 1}, r.Sizes(), "one, two and one")
	})
}

// Each caller learns what the script decided for its request: in line, the first that is refused holds up the rest.
func TestBatch_AnswersWalkTheRequests(t *testing.T) {
	t.Parallel()
	const wait, more = 30 * time.Millisecond, 70 * time.Millisecond
	answer := func(taken, remaining int64, retry time.Duration) lane.Result {
		return lane.Result{Taken: taken, Decision: limit.Decision{
			Granted: taken > 0, Limit: 10, Remaining: remaining, RetryAfter: retry, ResetAfter: time.Second,
		}}
	}
	var b lane.Batch
	for i, permits := range []int64{5, 5, 1, 1, 4} {
		b.Add(permits, i < 3, 0)
	}
	unasked := answer(0, 3, wait)
	unasked.Unasked, unasked.Decision.RetryAfter = true, 0
	o := lane.Outcome{Limit: 10, Free: 3, Taken: 1, Reset: time.Second, RetryAfters: []int64{wait.Milliseconds(), more.Milliseconds()}}
	assert.Equal(t, []lane.Result{answer(0, 3, wait), answer(0, 3, wait), unasked, answer(1, 2, 0), answer(0, 2, more)}, b.Results(nil, o))
	var runs lane.Batch
	for _, permits := range []int64{4, 4, 5, 3} {
		runs.Add(permits, false, 0)
	}
	o.Taken = 3
	assert.Equal(t, []lane.Result{answer(0, 3, wait), answer(0, 3, wait), answer(0, 3, more), answer(3, 0, 0)}, runs.Results(nil, o), "each run has its wait")
}
