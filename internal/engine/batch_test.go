package engine

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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

// drawn is one request of a drawn batch.
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

func batchOf(t *rapid.T, requests []drawn) *batch {
	b := newTestBatch()
	for _, w := range requests {
		if !b.add(newTestRequest(w.permits), w.inLine) {
			t.Fatalf("a batch of %d requests does not hold one more", len(b.requests))
		}
	}
	return b
}

// told is the part of the answer to one request that the tests compare.
type told struct {
	granted, exceeds, unasked bool
	remaining                 int64
}

// serveOneByOne is what a batch stands for: requests taken one after another,
// in the line only until one of it does not fit.
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

func toldBy(answers []lane.Result) []told {
	var all []told
	for _, a := range answers {
		all = append(all, told{
			granted:   a.Decision.Granted,
			exceeds:   a.Exceeds,
			remaining: a.Decision.Remaining,
		})
	}
	return all
}

func TestAnswers_MatchRequestsServedOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 12).Draw(t, "rate")
		free := rapid.Int64Range(-5, rate).Draw(t, "free")
		requests := drawRequests(t)
		want, taken := serveOneByOne(requests, rate, free)
		for i := range want {
			want[i].unasked = false // one in a run with the refused one is answered like it
		}

		o := lane.Outcome{Limit: rate, Free: free, Taken: taken}
		assert.Equal(t, want, toldBy(batchOf(t, requests).Results(nil, o)))

		// The script may tell what was free for what was taken: the walk ends the same.
		o.Taken = free
		assert.Equal(t, want, toldBy(batchOf(t, requests).Results(nil, o)))
	})
}

// Leaked permits are looked for once an interval, and an interval may end after the last time that
// Unix nanoseconds can hold.
func TestLimiter_AuditOfTheLongestIntervalIsNotDueAtOnce(t *testing.T) {
	t.Parallel()
	l, now := &Limiter{Default: NoDefault}, time.Now()
	assert.True(t, l.auditDue(now))
	l.auditDone(now, script.Millis(math.MaxInt64))
	assert.False(t, l.auditDue(now.Add(time.Hour)))
	l.auditDone(now, time.Minute)
	assert.False(t, l.auditDue(now.Add(time.Minute-time.Microsecond)))
	assert.True(t, l.auditDue(now.Add(time.Minute)))
}

func TestAnswersGiveEachRefusedRunItsWait(t *testing.T) {
	t.Parallel()
	b := newTestBatch()
	for _, w := range []drawn{{3, true}, {3, true}, {4, true}, {9, false}, {5, false}, {5, false}, {1, false}, {2, false}} {
		require.True(t, b.add(newTestRequest(w.permits), w.inLine))
	}
	// 5 of 8 are free: the first 3 fits, the second blocks the 4, 9 exceeds the
	// rate, both 5 are refused, 1 fits, 2 is refused.
	answers := b.Results(nil, lane.Outcome{Limit: 8, Free: 5, Taken: 4, Reset: time.Second, RetryAfters: []int64{10, 20, 30}})
	type row struct {
		granted, inLine bool
		after           time.Duration
	}
	var got []row
	for _, a := range answers {
		got = append(got, row{a.Decision.Granted, a.Unasked, a.Decision.RetryAfter})
	}
	assert.Equal(t, []row{
		{granted: true},
		{after: 10 * time.Millisecond},
		{inLine: true, after: 10 * time.Millisecond}, // as long as the one before it, at least
		{},
		{after: 20 * time.Millisecond},
		{after: 20 * time.Millisecond},
		{granted: true},
		{after: 30 * time.Millisecond},
	}, got)
	assert.True(t, answers[3].Exceeds)
}

// What the script grants and how many waits it tells must be what the walk in
// Go takes them for.
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

		b := batchOf(t, requests)
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
			assert.Equal(t, want, toldBy(b.Results(nil, o)))
		}
	})
}

func TestBatchLimits(t *testing.T) {
	t.Parallel()
	type adding struct {
		permits  int64
		times    int
		fits     bool
		inLine   bool
		fallback string
	}
	for name, tt := range map[string]struct {
		adding []adding
		runs   []lane.Run
	}{
		"permits fit in a member": {
			[]adding{{maxPermits - 1, 1, true, false, ""}, {2, 1, false, false, ""}, {1, 1, true, false, ""}, {1, 1, false, false, ""}},
			[]lane.Run{{Permits: maxPermits - 1, Count: 1}, {Permits: 1, Count: 1}},
		},
		"requests": {
			[]adding{{1, lane.MaxRequests, true, false, ""}, {1, 1, false, false, ""}},
			[]lane.Run{{Permits: 1, Count: lane.MaxRequests}},
		},
		"one configuration": {
			[]adding{{1, 1, true, false, "1 1 0 0"}, {1, 1, false, false, "2 1 0 0"}, {1, 1, false, false, ""}, {1, 1, true, false, "1 1 0 0"}},
			[]lane.Run{{Permits: 1, Count: 2}},
		},
		"the line's requests are runs of their own": {
			[]adding{{1, 2, true, true, ""}, {1, 1, true, false, ""}},
			[]lane.Run{{Permits: 1, Count: 2, InLine: true}, {Permits: 1, Count: 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestBatch()
			requests, line, sum := 0, 0, int64(0)
			for i, a := range tt.adding {
				for range a.times {
					r := newTestRequest(a.permits)
					if a.fallback != "" {
						r.limiter = &Limiter{Default: &Default{Fallback: a.fallback}}
					}
					require.Equal(t, a.fits, b.add(r, a.inLine), "adding %d", i)
					if a.fits {
						requests++
						sum += a.permits
					}
					if a.inLine {
						line++
					}
				}
			}
			assert.Equal(t, tt.runs, b.Runs)
			assert.Len(t, b.requests, requests)
			assert.Equal(t, line, b.Line)
			assert.Equal(t, sum, b.Sum)
		})
	}
}

func TestRunsOfABatch(t *testing.T) {
	t.Parallel()
	b := newTestBatch()
	for i := range lane.MaxRuns {
		require.True(t, b.add(newTestRequest(int64(i%2+1)), false))
	}
	assert.False(t, b.add(newTestRequest(1), false), "a run too many")
	assert.True(t, b.add(newTestRequest(2), false), "one more of the last run")
	assert.Len(t, b.Runs, lane.MaxRuns)
	assert.Len(t, b.requests, lane.MaxRuns+1)
	assert.LessOrEqual(t, len(b.Append(nil, script.Attempt{Age: -1})), 7+2*lane.MaxRuns)
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
