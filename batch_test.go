package rratelimiter

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Queued returns how many requests for the limiter wait to be sent or to be
// sent again, and how many releases, for tests that want them together.
func (l *RateLimiter) Queued() int {
	c := l.client
	c.mu.Lock()
	q := c.queues[l.keys.Names()[0]]
	c.mu.Unlock()
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.tries.Len() + q.jobs.Len()
	for place := q.line.requests.First(); place != nil; place = place.Next() {
		if place.Element.state == queued {
			n++
		}
	}
	return n
}

// Queues returns how many limiters the Client remembers.
func (c *Client) Queues() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queues)
}

// wish is one request of a drawn batch.
type wish struct {
	permits int64
	inLine  bool
}

func drawWishes(t *rapid.T, highest int64) []wish {
	line := rapid.SliceOfN(rapid.Int64Range(1, highest), 0, 12).Draw(t, "line")
	tries := rapid.SliceOfN(rapid.Int64Range(1, highest), 0, 12).Draw(t, "tries")
	var wishes []wish
	for _, permits := range line {
		wishes = append(wishes, wish{permits, true})
	}
	for _, permits := range tries {
		wishes = append(wishes, wish{permits, false})
	}
	if len(wishes) == 0 {
		wishes = append(wishes, wish{1, false})
	}
	return wishes
}

func batchOf(t *rapid.T, wishes []wish) *batch {
	b := &batch{}
	for _, w := range wishes {
		if !b.add(&request{permits: w.permits, waits: w.inLine}, w.inLine) {
			t.Fatalf("a batch of %d requests does not hold one more", len(b.requests))
		}
	}
	return b
}

// told is what matters of the answer to one request.
type told struct {
	granted, exceeds, unasked bool
	remaining                 int64
}

// serveOneByOne is what a batch stands for: requests taken one after another,
// in the line only until one of it does not fit.
func serveOneByOne(wishes []wish, rate, free int64) (answers []told, taken int64) {
	blocked := false
	left := free
	for _, w := range wishes {
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

func toldBy(answers []answer) []told {
	var all []told
	for _, a := range answers {
		all = append(all, told{
			granted:   a.decision.Granted,
			exceeds:   errors.Is(a.err, ErrPermitsExceedRate),
			remaining: a.decision.Remaining,
		})
	}
	return all
}

func TestAnswersAreThoseOfRequestsTakenOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 12).Draw(t, "rate")
		free := rapid.Int64Range(-5, rate).Draw(t, "free")
		wishes := drawWishes(t, 14)
		want, taken := serveOneByOne(wishes, rate, free)
		for i := range want {
			want[i].unasked = false // one in a run with the refused one is answered like it
		}

		o := outcome{rate: rate, free: free, taken: taken}
		assert.Equal(t, want, toldBy(batchOf(t, wishes).answers(o)))

		// The script may tell what was free for what was taken: the walk ends
		// the same.
		o.taken = free
		assert.Equal(t, want, toldBy(batchOf(t, wishes).answers(o)))
	})
}

func TestAnswersGiveEachRefusedRunItsWait(t *testing.T) {
	t.Parallel()
	b := &batch{}
	for _, w := range []wish{{3, true}, {3, true}, {4, true}, {9, false}, {5, false}, {5, false}, {1, false}, {2, false}} {
		require.True(t, b.add(&request{permits: w.permits}, w.inLine))
	}
	// 5 of 8 are free: the first 3 fits, the second blocks the 4, 9 exceeds the
	// rate, both 5 are refused, 1 fits, 2 is refused.
	answers := b.answers(outcome{rate: 8, free: 5, taken: 4, reset: time.Second, waits: []int64{10, -20, 30}})
	type row struct {
		granted, atLeast, inLine bool
		after                    time.Duration
	}
	var got []row
	for _, a := range answers {
		got = append(got, row{a.decision.Granted, a.atLeast, a.inLine, a.decision.RetryAfter})
	}
	assert.Equal(t, []row{
		{granted: true},
		{after: 10 * time.Millisecond},
		{inLine: true},
		{},
		{after: 20 * time.Millisecond, atLeast: true},
		{after: 20 * time.Millisecond, atLeast: true},
		{granted: true},
		{after: 30 * time.Millisecond},
	}, got)
	assert.ErrorIs(t, answers[3].err, ErrPermitsExceedRate)
}

// What the script grants and how many waits it tells must be what the walk in
// Go takes them for.
func TestAnswersWalkAsTheScriptDoes(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	m.SetTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	c := New(rdb)
	prefix, round := redistest.Name(t), 0
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		round++
		l := c.RateLimiter(prefix + strconv.Itoa(round))
		rate := rapid.Int64Range(1, 12).Draw(t, "rate")
		inUse := rapid.Int64Range(0, rate).Draw(t, "in use")
		wishes := drawWishes(t, 14)
		if _, err := l.TrySetRate(ctx, PerHour(rate)); err != nil {
			t.Fatal(err)
		}
		if inUse > 0 {
			if ok, err := l.TryAcquire(ctx, inUse, 0); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}

		b := batchOf(t, wishes)
		for _, r := range b.requests {
			r.limiter = l
		}
		b.figures = rapid.Bool().Draw(t, "figures")
		b.audit = rapid.Bool().Draw(t, "audit")
		o, err := c.decide(ctx, l.keys, b)
		if err != nil {
			t.Fatal(err)
		}
		want, taken := serveOneByOne(wishes, rate, rate-inUse)
		refusedRuns := map[int]bool{}
		place, possible := 0, false
		for i, r := range b.Runs() {
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
		assert.Equal(t, taken, o.taken, "taken")
		assert.Len(t, o.waits, len(refusedRuns), "waits")
		if possible {
			if len(b.requests) > 1 || b.figures {
				assert.Equal(t, rate-inUse, o.free, "free")
			}
			assert.Equal(t, want, toldBy(b.answers(o)))
		}
	})
}

func TestBatchLimits(t *testing.T) {
	t.Parallel()

	t.Run("permits fit in a member", func(t *testing.T) {
		t.Parallel()
		b := &batch{}
		require.True(t, b.add(&request{permits: MaxPermits - 1}, false))
		assert.False(t, b.add(&request{permits: 2}, false))
		assert.True(t, b.add(&request{permits: 1}, false))
		assert.False(t, b.add(&request{permits: 1}, false))
		assert.Equal(t, int64(MaxPermits), b.Sum)
		assert.Len(t, b.requests, 2)
	})

	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		b := &batch{}
		for i := range meet.MaxRuns {
			require.True(t, b.add(&request{permits: int64(i%2 + 1)}, false))
		}
		assert.False(t, b.add(&request{permits: 1}, false), "a run too many")
		assert.True(t, b.add(&request{permits: 2}, false), "one more of the last run")
		assert.Len(t, b.Runs(), meet.MaxRuns)
		assert.Len(t, b.requests, meet.MaxRuns+1)
		assert.LessOrEqual(t, len(b.args(nil, -1, "")), 7+2*meet.MaxRuns)
	})

	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		b := &batch{}
		for range meet.MaxRequests {
			require.True(t, b.add(&request{permits: 1}, false))
		}
		assert.False(t, b.add(&request{permits: 1}, false))
		assert.Len(t, b.Runs(), 1)
		assert.Equal(t, meet.Run{Permits: 1, Count: meet.MaxRequests}, b.Runs()[0])
	})

	t.Run("one configuration", func(t *testing.T) {
		t.Parallel()
		b := &batch{}
		require.True(t, b.add(&request{permits: 1, fallback: "1 1 0 0"}, false))
		assert.False(t, b.add(&request{permits: 1, fallback: "2 1 0 0"}, false))
		assert.False(t, b.add(&request{permits: 1}, false))
		assert.True(t, b.add(&request{permits: 1, fallback: "1 1 0 0"}, false))
	})

	t.Run("the line's requests are runs of their own", func(t *testing.T) {
		t.Parallel()
		b := &batch{}
		require.True(t, b.add(&request{permits: 1}, true))
		require.True(t, b.add(&request{permits: 1}, true))
		require.True(t, b.add(&request{permits: 1}, false))
		assert.Equal(t, []meet.Run{{Permits: 1, Count: 2, InLine: true}, {Permits: 1, Count: 1}}, b.Runs())
		assert.Equal(t, 2, b.Line)
	})
}

// Requests beyond one batch's bounds go in the next, and all are answered.
func TestMoreThanABatchHolds(t *testing.T) {
	t.Parallel()
	for name, permits := range map[string]func(i int) int64{
		"requests": func(int) int64 { return 1 },
		"runs":     func(i int) int64 { return int64(i%2 + 1) },
		"permits":  func(int) int64 { return 1 << 30 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				proxy := redistest.MiniProxy(t, m)
				c := New(proxy.Client(t, nil))
				l := c.RateLimiter(redistest.Name(t), WithDefault(PerHour(1<<40)))
				gate := make(chan struct{})
				proxy.OnCommand(redistest.Nth(1, l.Name(), redistest.Pass.When(gate)))
				count := 300
				if name == "requests" {
					count = meet.MaxRequests + 10
				}
				results := make(chan bool, count)
				for i := range count {
					go func() {
						ok, err := l.TryAcquire(t.Context(), permits(i), 0)
						results <- ok && err == nil
					}()
				}
				synctest.Wait()
				close(gate)
				sum := int64(0)
				for i := range count {
					assert.True(t, <-results)
					sum += permits(i)
				}
				require.NoError(t, c.Close(t.Context()))
				value, err := rdb.Get(t.Context(), l.keys.Names()[1]).Int64()
				require.NoError(t, err)
				assert.Equal(t, int64(1<<40)-sum, value)
				members, err := rdb.ZRange(t.Context(), l.keys.Names()[3], 0, -1).Result()
				require.NoError(t, err)
				for _, member := range members {
					parsed, err := codec.Parse(member)
					require.NoError(t, err)
					sum -= int64(parsed.Permits)
				}
				assert.Zero(t, sum, "the members hold what was granted")
			})
		})
	}
}

func TestIdentitiesAreAllDifferent(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	seen := map[string]bool{}
	for range 3 {
		c := New(rdb)
		for range 1000 {
			seen[string(c.identity(nil, 1))] = true
		}
	}
	assert.Len(t, seen, 3000)
}

// answering is a Redis that knows no limiter and answers every script at once.
type answering struct{}

func (answering) Pipeline() redis.Pipeliner { panic("no pipeline is wanted") }

func (answering) Process(_ context.Context, cmd redis.Cmder) error {
	reply := any(int64(0))
	if cmd.Args()[1] == lua.Acquire.SHA {
		taken := int64(0)
		if cmd.Args()[9] == "1" { // the sum, behind the five keys and the member
			taken = 1
		}
		reply = []any{int64(9), int64(1), taken, int64(1000), int64(1000), int64(0), int64(50)}
	}
	cmd.(interface{ SetVal(val any) }).SetVal(reply)
	return nil
}

func TestNamesUsedOnceAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.SkipSlow(t)
	synctest.Test(t, func(t *testing.T) {
		c := New(answering{})
		plain, cancellable := context.WithoutCancel(t.Context()), t.Context()
		for i := range 10_000 {
			l := c.RateLimiter("name" + strconv.Itoa(i))
			ctx := cancellable
			if i%2 == 0 {
				ctx = plain
			}
			ok, err := l.TryAcquire(ctx, 1, 0)
			require.NoError(t, err)
			require.True(t, ok)
			if i%10 > 2 {
				continue
			}
			ok, err = l.TryAcquire(ctx, 2, time.Duration(i%3)*40*time.Millisecond)
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, l.Release(ctx, 1))
			require.NoError(t, l.SetRate(ctx, PerHour(1)))
			_, err = l.AvailablePermits(ctx)
			require.NoError(t, err)

			ended, cancel := context.WithTimeout(ctx, time.Millisecond)
			require.ErrorIs(t, l.Acquire(ended, 2), context.DeadlineExceeded)
			cancel()
		}
		// A last worker may still be on its way out; it needs no time for that.
		synctest.Wait()
		assert.Zero(t, c.Queues())
		assert.Zero(t, c.active)
	})
}

// What a call allocates of its own: a closure that comes to need the heap shows
// here. The race detector adds one or two.
//
//nolint:paralleltest // others' allocations would count
func TestAllocationsOfACallAlone(t *testing.T) {
	l := New(answering{}).RateLimiter("orders")
	for _, tc := range []struct {
		ctx  context.Context
		most float64
	}{{context.WithoutCancel(t.Context()), 10}, {t.Context(), 14}} {
		allocations := testing.AllocsPerRun(200, func() {
			if ok, err := l.TryAcquire(tc.ctx, 1, 0); err != nil || !ok {
				t.Error(ok, err)
			}
		})
		assert.LessOrEqual(t, allocations, tc.most)
	}
}
