package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// far is an Engine at the end of a long wire.
type far struct {
	*Engine
	*redistest.Trips
	sync.WaitGroup // of callers
	recorder

	direct redistest.Client // of the same server
}

// recorder keeps the kinds of events.
type recorder struct {
	limit.NoObserver

	kinds redistest.List[limit.EventKind]
}

func (r *recorder) Happened(e limit.Event) { r.kinds.Add(e.Kind) }

// onFar runs test in a bubble, with an Engine that has that many flights under way at most, to a server that knows the scripts.
func onFar(t *testing.T, most int, trip time.Duration, test func(t *testing.T, e *far)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		direct, m := redistest.Mini(t)
		for _, one := range []*lua.Script{lua.Acquire, lua.AcquireAll, lua.Command, lua.GiveBack, lua.SetRate} {
			require.NoError(t, direct.ScriptLoad(t.Context(), one.Source).Err())
		}
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 2 * most, MaxConcurrentDials: 1})
		e := &far{Trips: &redistest.Trips{}, direct: direct}
		e.Engine = New(rdb, script.DefaultTimeout, redisson.NewestRules, redisson.NewIdentities(redisson.NewestRules.Layout), observe.New(&e.recorder, nil))
		rdb.AddHook(redistest.Hook(e.Send))
		for range 2 { // in full, then as one that is known to be shared
			e.take(t, testLimiter("warm", hourly), 1)
		}
		e.Forget()
		e.Take(trip)
		test(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, e.Close(ctx))
		time.Sleep(time.Hour) // calls under way end
		assert.Zero(t, e.lanes.Work())
	})
}

// delays keeps the answers of a script back from now on.
func (e *far) delays(one *lua.Script, by time.Duration) {
	e.Answer(func(cmds []redis.Cmder, failed error) error {
		if slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return redistest.Calls(cmd, one.SHA) }) {
			time.Sleep(by)
		}
		return failed
	})
}

// free checks how many permits are free, once the Engine is closed.
func (e *far) free(t *testing.T, l *Limiter, want int64) {
	t.Helper()
	require.NoError(t, e.Close(t.Context()))
	other := newTestEngine(e.direct)
	got, err := other.Available(t.Context(), l)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.NoError(t, other.Close(t.Context()))
}

func each[R any](t *testing.T, rows map[string]R, test func(t *testing.T, row R)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, row)
		})
	}
}

const hourly = "100 3600000 0 0"

// asks takes permits by an Ask, which must be granted.
func (e *Engine) asks(t *testing.T, l *Limiter, q decide.Ask) decide.Answer {
	t.Helper()
	a, err := acquire(t.Context(), e, l, q)
	assert.NoError(t, err)
	assert.True(t, a.Granted, l.Name)
	return a
}

func (e *Engine) take(t *testing.T, l *Limiter, permits int64) {
	t.Helper()
	e.asks(t, l, decide.Ask{Permits: permits})
}

// A batch that is refused late is put before all who came since without going
// past these for each of its requests: that would take several minutes.
func TestLine_InsertsLateBatchInOnePass(t *testing.T) {
	t.Parallel()
	const waiters = 300_000
	start := time.Now()
	var l line
	for i := range waiters {
		l.insert(&request{place: place{since: start.Add(time.Hour + time.Duration(i))}})
	}
	most := time.Minute + 20*time.Since(start) // as busy as the machine is
	for i := range waiters {
		l.insert(&request{place: place{since: start.Add(time.Duration(i))}})
		if i%1000 == 0 {
			require.Less(t, time.Since(start), most)
		}
	}
	var all []time.Time
	for p := range l.all() {
		all = append(all, p.request.since)
	}
	assert.Len(t, all, 2*waiters)
	assert.True(t, slices.IsSortedFunc(all, time.Time.Compare))
}

// An older request that is refused late has the first place for an interval of its own.
func TestLine_IntervalCountsFromFirstPlace(t *testing.T) {
	t.Parallel()
	var l line
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	l.enter(&request{place: place{since: at(1)}}, lane.Result{}, 10*time.Second, time.Time{}, at(2))
	require.True(t, l.asksForAll(at(12)))
	l.enter(&request{place: place{since: at(0)}}, lane.Result{}, 10*time.Second, time.Time{}, at(12))
	assert.False(t, l.asksForAll(at(21)))
	assert.True(t, l.asksForAll(at(22)))
}

// A grant whose answer is lost is looked for though its caller's patience has ended meanwhile, and goes back.
func TestAcquire_LostGrantOfGoneCallerGoesBack(t *testing.T) {
	t.Parallel()
	impatient := decide.Ask{Permits: 4, MayWait: true, Timeout: 100 * time.Millisecond}
	each(t, map[string]func(ctx context.Context, e *far, a, b *Limiter) error{
		"one": func(ctx context.Context, e *far, a, _ *Limiter) error {
			_, err := acquire(ctx, e.Engine, a, impatient)
			return err
		},
		"several": func(ctx context.Context, e *far, a, b *Limiter) error {
			_, err := e.AcquireAll(ctx, []Claim{{Limiter: a, Permits: impatient.Permits}, {Limiter: b, Permits: impatient.Permits}}, impatient)
			return err
		},
	}, func(t *testing.T, ask func(ctx context.Context, e *far, a, b *Limiter) error) {
		onFar(t, 2, 0, func(t *testing.T, e *far) {
			a, b := testLimiter("{a}1", hourly), testLimiter("{a}2", hourly) // a handle is of one Engine
			var lost atomic.Bool
			e.Answer(func(cmds []redis.Cmder, failed error) error {
				if lost.Swap(true) {
					return failed
				}
				time.Sleep(500 * time.Millisecond)
				return redistest.Fail(cmds, context.DeadlineExceeded)
			})
			require.ErrorIs(t, ask(t.Context(), e, a, b), limit.ErrUnknownOutcome)
			time.Sleep(script.DefaultTimeout)
			assert.Zero(t, e.lanes.Work())
			e.take(t, a, 100)
			e.take(t, b, 100)
		})
	})
}

func TestRelease_SharedCallKeepsOwnTimeouts(t *testing.T) {
	t.Parallel()
	type row struct {
		trip time.Duration // of the answer to the two
		last error
	}
	each(t, map[string]row{
		"the answer comes late": {400 * time.Millisecond, nil},
		"no answer comes":       {time.Minute, limit.ErrUnknownOutcome},
	}, func(t *testing.T, tt row) {
		onFar(t, 8, 0, func(t *testing.T, e *far) {
			l := testLimiter("a", hourly)
			e.take(t, l, 30)
			assert.NoError(t, e.Release(t.Context(), l, 1)) // the server knows the script
			release := func(want error) {
				e.Go(func() {
					start := time.Now()
					assert.ErrorIs(t, e.Release(t.Context(), l, 1), want)
					assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
				})
			}
			e.Take(2800 * time.Millisecond)
			release(nil) // what comes next waits for it
			time.Sleep(100 * time.Millisecond)
			e.Take(tt.trip)
			release(limit.ErrUnknownOutcome) // its time ends while the two are under way
			time.Sleep(2600 * time.Millisecond)
			release(tt.last)
			e.Wait()
		})
	})
}

func newTestEngine(rdb script.Redis) *Engine {
	return New(rdb, redistest.Patience(script.DefaultTimeout), redisson.NewestRules, redisson.NewIdentities(redisson.NewestRules.Layout), nil)
}

func testLimiter(name, fallback string) *Limiter {
	return &Limiter{Name: name, Config: name, ClientID: "id", Default: &Default{Fallback: fallback}}
}

func acquire(ctx context.Context, e *Engine, l *Limiter, q decide.Ask) (a decide.Answer, err error) {
	err = e.Acquire(ctx, l, &q, &a)
	return a, err
}

func newTestBatch() *batch { return &batch{rules: redisson.NewestRules} }

func newTestRequest(permits int64) *request {
	return &request{Ask: decide.Ask{Permits: permits}, limiter: &Limiter{Default: NoDefault}}
}

type drawn struct {
	permits int64
	inLine  bool
}

func drawRequests(t *rapid.T) (requests []drawn) {
	permits := rapid.SliceOfN(rapid.Int64Range(1, 14), 0, 12)
	for _, n := range permits.Draw(t, "line") {
		requests = append(requests, drawn{n, true})
	}
	for _, n := range permits.Draw(t, "tries") {
		requests = append(requests, drawn{n, false})
	}
	if len(requests) == 0 {
		requests = append(requests, drawn{1, false})
	}
	return requests
}

// told is the part of the answer to one request that the tests compare.
type told struct {
	granted, exceeds, unasked bool
	remaining                 int64
}

// serveOneByOne is what a batch stands for: requests taken one after another, in the line only until one of it does not fit.
func serveOneByOne(requests []drawn, rate, free int64) (answers []told, taken int64) {
	blocked := false
	left := free
	for _, w := range requests {
		var a told
		switch {
		case w.permits > rate:
			a.exceeds = true
		case w.inLine && blocked:
			a.unasked = true
		case w.permits <= left:
			a.granted = true
			left -= w.permits
			taken += w.permits
		default:
			blocked = blocked || w.inLine
		}
		a.remaining = max(0, left)
		answers = append(answers, a)
	}
	return answers, taken
}

// What the script grants and how many waits it tells must be what the walk in Go takes them for.
func TestAnswers_WalkMatchesScript(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	m.SetTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	e := newTestEngine(rdb)
	round := 0
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		round++
		rate := rapid.Int64Range(1, 12).Draw(t, "rate")
		inUse := rapid.Int64Range(0, rate).Draw(t, "in use")
		requests := drawRequests(t)
		l := testLimiter("walk"+strconv.Itoa(round), fmt.Sprintf("%d 3600000 0 0", rate))
		if inUse > 0 {
			if a, err := acquire(ctx, e, l, decide.Ask{Permits: inUse}); err != nil || !a.Granted {
				t.Fatal(a, err)
			}
		}
		b := newTestBatch()
		for _, w := range requests {
			if !b.add(newTestRequest(w.permits), w.inLine) {
				t.Fatalf("a batch of %d requests does not hold one more", len(b.requests))
			}
		}
		b.queue = &queue{engine: e, of: l}
		b.limiter, b.fallback = l, l.Fallback
		b.figures = rapid.Bool().Draw(t, "figures")
		b.audit = rapid.Bool().Draw(t, "audit")
		b.Prepare(b.makeCall())
		reply, err := e.lanes.Run(ctx, &b.call.Call)
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := b.parse(reply)
		if err != nil {
			t.Fatal(err)
		}
		want, taken := serveOneByOne(requests, rate, rate-inUse)
		refusedRuns := map[int]bool{}
		place, possible := 0, false
		for i, r := range b.Runs {
			for range r.Count {
				a := want[place]
				if !a.granted && !a.exceeds && !a.unasked {
					refusedRuns[i] = true
				}
				possible = possible || !a.exceeds
				place++
			}
		}
		for i := range want {
			want[i].unasked = false
		}
		assert.Equal(t, taken, o.Taken, "taken")
		assert.Len(t, o.RetryAfters, len(refusedRuns), "waits")
		if _, short := reply.(int64); short { // one request, and no figures are wanted
			assert.Equal(t, want[0].granted, b.Results(nil, o)[0].Decision.Granted)
		} else if possible {
			if len(b.requests) > 1 || b.figures {
				assert.Equal(t, rate-inUse, o.Free, "free")
			}
			var got []told
			for _, a := range b.Results(nil, o) {
				got = append(got, told{granted: a.Decision.Granted, exceeds: a.Exceeds, remaining: a.Decision.Remaining})
			}
			assert.Equal(t, want, got)
		}
	})
}

// A batch is for one configuration, and for no more permits than a member holds, beside the bounds of a lane.Batch.
func TestBatch_IsBounded(t *testing.T) {
	t.Parallel()
	type adding struct {
		permits  int64
		fallback string
		fits     bool
	}
	each(t, map[string][]adding{
		"permits fit in a member": {{maxPermits - 1, "", true}, {2, "", false}, {1, "", true}, {1, "", false}},
		"requests":                append(slices.Repeat([]adding{{1, "", true}}, lane.MaxRequests), adding{1, "", false}),
		"one configuration":       {{1, "1 1 0 0", true}, {1, "2 1 0 0", false}, {1, "", false}, {1, "1 1 0 0", true}},
	}, func(t *testing.T, all []adding) {
		b := newTestBatch()
		requests, sum := 0, int64(0)
		for i, a := range all {
			r := newTestRequest(a.permits)
			if a.fallback != "" {
				r.limiter = &Limiter{Default: &Default{Fallback: a.fallback}}
			}
			require.Equal(t, a.fits, b.add(r, false), "adding %d", i)
			if a.fits {
				requests++
				sum += a.permits
			}
		}
		assert.Len(t, b.requests, requests)
		assert.Equal(t, sum, b.Sum)
	})
}

// newTestJointLine returns a line, of an interval of a second, of requests for so many permits, the first just refused.
func newTestJointLine(t *testing.T, now time.Time, permits ...int64) (l *jointLine, all []*multiRequest) {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	e := newTestEngine(rdb)
	e.joints.Lock()
	q := &queue{engine: e}
	l = newJointLine(q)
	q.joint.Store(l)
	t.Cleanup(func() {
		l.timer.Stop()
		e.joints.Unlock()
	})
	for i, n := range permits {
		m := &multiRequest{engine: e, queues: []*queue{q}, claims: []Claim{{Permits: n}}}
		m.waiter.since, m.waiter.turn = now.Add(time.Duration(i)), make(chan struct{}, 1)
		l.insert(m)
		all = append(all, m)
	}
	l.note(all[0], time.Hour, time.Second, now)
	l.run(now)
	return l, all
}

// asking returns which of the requests it is the turn of.
func asking(all []*multiRequest) (turns []int) {
	for i, m := range all {
		if m.waiter.asking {
			turns = append(turns, i)
		}
	}
	return turns
}

// Once the first has yielded, a pass asks for all for whom there is enough, in their order; otherwise for the one that wants the fewest.
func TestJointLine_PassForAllAsksWhomWhatIsFreeMayServe(t *testing.T) {
	t.Parallel()
	type step struct {
		of      int // it was asked for, and refused unless it is granted
		granted bool
		free    int64
		turns   []int // who is asked for next
		why     string
	}
	type row struct {
		permits []int64 // of all
		passes  [][]step
	}
	each(t, map[string]row{
		"returns to those for whom there is enough now": {
			[]int64{9, 5, 6, 2}, [][]step{{
				{0, false, 3, []int{3}, ""},
				{3, false, 8, []int{1}, "both were passed over with 3"},
				{1, false, 7, []int{2}, ""},
				{2, false, math.MaxInt64, nil, "each is asked for once"},
			}, {
				{0, false, 1, []int{3}, "to learn when to go on"},
				{3, false, 1, nil, "all others want more than it"},
			}},
		},
		"learns from another once the least is granted": {[]int64{9, 4, 5}, [][]step{{{0, false, 3, []int{1}, ""}, {1, true, 2, []int{2}, ""}}}},
	}, func(t *testing.T, row row) {
		now := time.Now()
		l, all := newTestJointLine(t, now, row.permits...)
		now = now.Add(time.Second)
		for _, pass := range row.passes {
			l.run(now)
			assert.False(t, l.strict)
			assert.Equal(t, []int{0}, asking(all))
			for _, s := range pass {
				if l.asked(all[s.of]); s.granted {
					l.remove(all[s.of])
				} else {
					l.note(all[s.of], time.Hour, time.Second, now)
				}
				l.goOn(s.free, now)
				assert.Equal(t, s.turns, asking(all), s.why)
			}
			l.again = true
		}
	})
}

func TestArgumentsOfABatch(t *testing.T) {
	t.Parallel()
	first := script.Attempt{Age: -1}
	b := newTestBatch()
	require.True(t, b.add(newTestRequest(1), false))
	assert.Len(t, b.Append(nil, first), 1, "one permit goes without saying")
	b.fallback = "10 1000 0 0"
	assert.Equal(t, []any{"1", "10 1000 0 0"}, b.Append(nil, first)[1:], "but before what else there is")
	b = newTestBatch()
	require.True(t, b.add(newTestRequest(2), false))
	assert.Equal(t, []any{"2"}, b.Append(nil, first)[1:])
}

// Walks over more requests than are handled at once let go of the lock in between, and leave none out.
func TestLine_AllOfManyWaitersAreAnswered(t *testing.T) {
	t.Parallel()
	type row struct {
		timeout time.Duration // 0: until the Engine is closed, after a minute
		want    error
	}
	each(t, map[string]row{"when their time is over": {time.Second, nil}, "when it closes": {0, limit.ErrClosed}}, func(t *testing.T, row row) {
		onFar(t, 2, 100*time.Millisecond, func(t *testing.T, e *far) {
			l := testLimiter("a", "1 3600000 0 0")
			e.take(t, l, 1)
			start := time.Now()
			for range 3*lane.MaxWalk + 1 {
				e.Go(func() {
					a, err := acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1, MayWait: true, Timeout: row.timeout})
					assert.ErrorIs(t, err, row.want)
					assert.False(t, a.Granted)
					assert.LessOrEqual(t, time.Since(start), cmp.Or(row.timeout, time.Minute)+e.grace)
				})
			}
			if row.timeout == 0 {
				time.Sleep(time.Minute)
				require.NoError(t, e.Close(t.Context()))
			}
			e.Wait()
			synctest.Wait() // who answers the last of them counts them out after that
			assert.Zero(t, e.lanes.Work())
		})
	})
}

// Requests stand in line in the order in which they came, whenever they were refused and whichever have left meanwhile.
func TestLine_KeepsOrderOfArrival(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		random, start := rand.New(rand.NewPCG(seed, 0)), time.Now()
		var l line
		var in, all []*request
		for range 400 {
			if len(in) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(in))
				l.drop(in[i])
				in = slices.Delete(in, i, i+1)
				continue
			}
			in = append(in, &request{place: place{since: start.Add(time.Duration(random.IntN(100)))}})
			l.insert(in[len(in)-1])
		}
		slices.SortStableFunc(in, func(a, b *request) int { return a.since.Compare(b.since) })
		for p := range l.all() {
			all = append(all, p.request)
		}
		require.True(t, slices.EqualFunc(in, all, func(a, b *request) bool { return a.since.Equal(b.since) }), "seed %d", seed)
	}
}

// Requests that were not asked for, since the first was refused, are the next of the pass if the first has left.
func TestLine_PassGoesOnWithThoseThatWereNotAskedFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l, all := &line{}, make([]*request, 4)
	for i := range all {
		all[i] = &request{place: place{since: now.Add(time.Duration(i))}}
		l.insert(all[i])
	}
	asked := 0
	l.fill(now, func(*request, bool) bool {
		asked++
		return asked < len(all)
	})
	l.remove(all[0])
	for _, r := range all[1:3] {
		l.refused(r, lane.Result{Unasked: true}, time.Second, time.Time{})
	}
	assert.Equal(t, &all[1].place, l.unasked())
}

// Callers who wait for a server that answers no call any more learn that in time, however many limiters have some in line.
func TestLines_OnASilentServerEndInTime(t *testing.T) {
	t.Parallel()
	onFar(t, 2, 0, func(t *testing.T, e *far) {
		const interval = 30 * time.Second
		for i := range 100 {
			l := testLimiter(fmt.Sprint("limiter", i), "1 30000 0 0")
			start := time.Now()
			e.take(t, l, 1)
			for range 3 {
				e.Go(func() {
					_, err := acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1, MayWait: true})
					assert.ErrorIs(t, err, limit.ErrUnavailable)
					assert.LessOrEqual(t, time.Since(start), interval+script.DefaultTimeout, i)
				})
				synctest.Wait()
			}
			time.Sleep(100 * time.Millisecond)
		}
		e.Take(time.Minute)
		e.Wait()
	})
}
