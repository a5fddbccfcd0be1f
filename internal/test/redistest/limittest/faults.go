package limittest

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A request whose answer is lost takes its permits once, or it is not repeated and its caller gets ErrUnknownOutcome.
func testAnswerLost(t *testing.T, k Kind) {
	limitertest.Bubbles(t, map[string]redistest.Action{
		"connection closed": redistest.DropAnswer, "never answered": redistest.Swallow,
	}, func(t *testing.T, fault redistest.Action) {
		h := newHeld(t, k, 10)
		for lost := range 3 {
			calls := 0
			h.proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if c.Name() != "evalsha" {
					return redistest.Pass
				}
				if calls++; calls <= lost+1 {
					return fault
				}
				return redistest.Pass
			})
			d, err := h.Take(t.Context(), "orders", 2)
			h.proxy.OnCommand(nil)
			h.proxy.Settle(t)
			if !k.Once {
				require.ErrorIs(t, err, limit.ErrUnknownOutcome)
				assert.ErrorContains(t, err, `orders"`)
				assert.Equal(t, 1, calls)
				assert.Zero(t, d)
				continue
			}
			require.NoError(t, err)
			assert.True(t, d.Granted)
			assert.Equal(t, int64(8-2*lost), d.Remaining)
			assert.Equal(t, lost+2, calls)
		}
		assert.Equal(t, int64(3), Take(t, h.other, "orders", 1).Remaining, "each has taken its two")
		// TakeUpTo says how many it has taken.
		h.proxy.OnCommand(redistest.Nth(1, "evalsha", fault))
		taken, _, err := h.TakeUpTo(t.Context(), "orders", 20)
		h.proxy.OnCommand(nil)
		h.proxy.Settle(t)
		if k.Once {
			require.NoError(t, err)
			assert.Equal(t, int64(3), taken)
		} else {
			require.ErrorIs(t, err, limit.ErrUnknownOutcome)
			assert.Zero(t, taken)
		}
		assert.False(t, Take(t, h.other, "orders", 1).Granted)
	})
}

// An attempt that comes late, after the one that repeated it was answered, takes nothing and makes nothing last longer.
func testLateCopy(t *testing.T, k Kind) {
	if !k.Once {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, k, 10)
		gate := make(chan struct{})
		h.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Late.When(gate)))
		assert.Equal(t, int64(7), Take(t, h, "orders", 3).Remaining)
		time.Sleep(20 * time.Minute)
		close(gate)
		h.proxy.Settle(t)
		d := Take(t, h.other, "orders", 8)
		assert.False(t, d.Granted)
		assert.Equal(t, int64(7), d.Remaining)
		assert.Equal(t, 40*time.Minute, d.ResetAfter)
		assert.Equal(t, 40*time.Minute, d.RetryAfter)
	})
}

// A request that comes twice counts once, whichever answer is heard.
func testTwice(t *testing.T, k Kind) {
	if !k.Once {
		return // nothing tells two requests of a fixed window or a bucket apart
	}
	limitertest.Bubbles(t, map[string]redistest.Action{
		"first": redistest.Duplicate, "last": redistest.DuplicateLast,
	}, func(t *testing.T, twice redistest.Action) {
		h := newHeld(t, k, 10)
		h.proxy.OnCommand(limitertest.OnEach("evalsha", twice))
		for _, n := range []int64{3, 1, 1} {
			assert.True(t, Take(t, h, "orders", n).Granted)
		}
		taken, _, err := h.TakeUpTo(t.Context(), "orders", 20)
		require.NoError(t, err)
		assert.EqualValues(t, 5, taken)
		assert.True(t, Take(t, h, "all", 10).Granted)
		require.NoError(t, Returnable(t, h, "undone", 3)(t.Context()))
		h.proxy.Settle(t)
		for key, left := range map[string]int64{"orders": 0, "all": 0, "undone": 10} {
			assert.Equal(t, left, limitertest.Must(h.other.Peek(t.Context(), key, 0))(t).Remaining, key)
		}
	})
}

// background starts a call of a bubble.
func background(call func() error) *limitertest.Caller {
	s := limitertest.Scene{Start: time.Now()}
	return s.Go(func() (bool, error) { return false, call() })
}

// A closing is a limiter of 10 permits an hour in a bubble, whose scripts the server knows.
type closing struct {
	Limiter

	client *rratelimiter.Client
	rdb    redistest.Client
	trips  redistest.Trips
}

// onClosing runs test with one.
func (k Kind) onClosing(t *testing.T, test func(t *testing.T, l *closing)) {
	t.Helper()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := &closing{client: limitertest.OpenClient(rdb), rdb: rdb}
		l.Limiter = k.New(l.client, 10, time.Hour)
		require.NoError(t, Returnable(t, l, "warm", 1)(t.Context()))
		rdb.AddHook(redistest.Hook(l.trips.Send))
		test(t, l)
	})
}

// Callers whose requests have gathered fail, those whose requests are under way get their answer, and later calls fail.
func testClose(t *testing.T, k Kind) {
	k.onClosing(t, func(t *testing.T, l *closing) {
		giveBack := Returnable(t, l, "before", 1)
		l.trips.Hold = make(chan struct{})
		take := func(key string) *limitertest.Caller {
			return background(func() error {
				d, err := l.Take(t.Context(), key, 1)
				assert.Equal(t, err == nil, d.Granted)
				return err
			})
		}
		underWay := []*limitertest.Caller{take("a"), take("b")}
		gathered := []*limitertest.Caller{take("c"), take("c"), take("d")}
		closed := background(func() error { return l.client.Close(t.Context()) })
		for _, ended := range gathered {
			ended.RequireEnd(t, limit.ErrClosed, 0)
		}
		assert.Equal(t, "waits", closed.Outcome(), "two calls are under way")
		_, _, err := l.TakeUpTo(t.Context(), "a", 1)
		for _, err := range []error{
			limitertest.Second(l.Take(t.Context(), "a", 1)), limitertest.Second(l.Peek(t.Context(), "a", 1)), err, l.Reset(t.Context(), "a"), giveBack(t.Context()),
		} {
			require.ErrorIs(t, err, limit.ErrClosed)
		}
		close(l.trips.Hold)
		synctest.Wait()
		for _, ended := range append(underWay, closed) {
			ended.RequireEnd(t, nil, 0)
		}
		assert.NoError(t, l.client.Close(t.Context()))
	})
}

// What a caller who has gone was granted goes back before Close returns, as does what is given back meanwhile.
func testCloseAwaitsGiveBacks(t *testing.T, k Kind) {
	k.onClosing(t, func(t *testing.T, l *closing) {
		giveBack := Returnable(t, l, "returned", 4)
		l.trips.Hold = make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		left := background(func() error { return limitertest.Second(l.Take(ctx, "left", 4)) })
		returned := background(func() error { return giveBack(ctx) })
		leave()
		synctest.Wait()
		for _, ended := range []*limitertest.Caller{left, returned} {
			ended.RequireEnd(t, context.Canceled, 0)
		}
		closed := background(func() error { return l.client.Close(t.Context()) })
		sent := l.trips.Hold
		l.trips.Hold = make(chan struct{})
		close(sent)
		synctest.Wait() // what was sent arrives, and what the caller who left was granted goes back
		assert.Equal(t, "waits", closed.Outcome(), "a give-back is under way")
		close(l.trips.Hold)
		synctest.Wait()
		closed.RequireEnd(t, nil, 0)
		after := k.on(l.rdb, 10, time.Hour)
		for _, key := range []string{"left", "returned"} {
			assert.Equal(t, int64(10), limitertest.Must(after.Peek(t.Context(), key, 0))(t).Remaining, key)
		}
	})
}

// The Client's observer, policy and shadow are the limiter's too, and its name mapper is not.
func testOptionsOfTheClient(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		told := &limitertest.Recorder{}
		mapped := rratelimiter.WithNameMapper(func(name string) string {
			assert.True(t, k.Keyed, "the mapper was asked for %q", name)
			return name
		})
		client := limitertest.OpenClient(rdb, rratelimiter.WithObserver(told), rratelimiter.WithFailure(limit.FailLocal(0.5)), mapped)
		l, watches := k.New(client, 10, time.Hour, rratelimiter.WithName("mine")), k.New(client, 10, time.Hour, rratelimiter.WithShadow())
		assert.Equal(t, 10, Grants(t, l, "ann", 11))
		assert.True(t, Take(t, watches, "ann", 1).Granted)
		for _, d := range told.Decisions()[:11] {
			assert.Equal(t, "mine", d.Limiter)
			assert.False(t, d.Shadow)
		}
		rdb.AddHook(redistest.Hook(func(context.Context, []redis.Cmder, func() error) error { return redis.ErrPoolTimeout }))
		assert.Equal(t, 5, Grants(t, l, "bob", 11), "half of the limit")
	})
}

// Without a replica a grant does not count, and goes back; a refusal does.
func testNotReplicated(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t) // a server whose clock stands still would wait for ever
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			if last, ok := cmds[len(cmds)-1].(interface{ SetVal(any) }); ok && cmds[len(cmds)-1].Name() == "wait" {
				cmds[len(cmds)-1].SetErr(nil)
				last.SetVal(int64(0))
				err = nil
			}
			return err
		}))
		l := k.New(limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, time.Millisecond)), 10, time.Hour)
		require.ErrorIs(t, limitertest.Second(l.Take(t.Context(), "ann", 4)), limit.ErrNotReplicated)
		taken, d, err := l.TakeUpTo(t.Context(), "ann", 4)
		require.ErrorIs(t, err, limit.ErrNotReplicated)
		assert.Zero(t, d)
		assert.Zero(t, taken)
		synctest.Wait()
		assert.Equal(t, int64(10), limitertest.Must(l.Peek(t.Context(), "ann", 0))(t).Remaining)
		assert.Equal(t, 10, Grants(t, k.on(rdb, 10, time.Hour), "ann", 10))
		assert.False(t, Take(t, l, "ann", 1).Granted)
	})
}

// requireWithin checks that the times of a decision and in Redis lie within a window.
func requireWithin(t *testing.T, rdb redistest.Client, d limit.Decision) {
	t.Helper()
	require.LessOrEqual(t, d.RetryAfter, window)
	require.LessOrEqual(t, d.ResetAfter, window)
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		ttl := rdb.PTTL(t.Context(), key).Val()
		require.Positive(t, ttl, "time to live of %s", key)
		require.LessOrEqual(t, ttl, window, "time to live of %s", key)
	}
}

// A clock that goes back takes nothing away and gives nothing: from the first call on, refused or not, the new clock counts.
func testClockGoesBack(t *testing.T, k Kind) {
	limitertest.Each(t, map[string]int64{"granted": 7, "refused": permits}, func(t *testing.T, spent int64) {
		steps := limitertest.Rows(1001*time.Millisecond, 2*time.Second, time.Hour, 1000*time.Hour)
		limitertest.Stepping(t, steps, func(t *testing.T, rdb redistest.Client, step func(time.Duration), back time.Duration) {
			l := k.on(rdb, permits, window)
			require.True(t, Take(t, l, "orders", spent).Granted)
			time.Sleep(time.Second)
			step(-back)
			d := Take(t, l, "orders", 1)
			assert.Equal(t, spent < permits, d.Granted)
			requireWithin(t, rdb, d)
			assert.Equal(t, max(0, permits-spent-1), d.Remaining)
			d = Take(t, l, "orders", permits)
			assert.False(t, d.Granted)
			requireWithin(t, rdb, d)
			time.Sleep(d.RetryAfter - time.Millisecond)
			assert.False(t, Take(t, l, "orders", permits).Granted)
			time.Sleep(time.Millisecond)
			d = Take(t, l, "orders", permits)
			assert.True(t, d.Granted)
			requireWithin(t, rdb, d)
		})
	})
}

// However often the clock goes back and forward again, the next moment reported is at most a window away, and right.
func testClockGoesBackAndForth(t *testing.T, k Kind) {
	redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
		l, draw := k.on(rdb, permits, window), rand.New(rand.NewPCG(6, 7))
		refused := 0
		for range 200 {
			switch by := time.Duration(draw.Int64N(int64(time.Hour))).Truncate(time.Millisecond); draw.IntN(8) {
			case 0:
				step(-by)
			case 1:
				step(by)
			case 2:
				time.Sleep(time.Duration(draw.Int64N(int64(window))).Truncate(time.Millisecond))
			}
			n := 1 + draw.Int64N(permits)
			d := Take(t, l, "orders", n)
			requireWithin(t, rdb, d)
			if !d.Granted && draw.IntN(3) == 0 {
				refused++
				time.Sleep(d.RetryAfter)
				d = Take(t, l, "orders", n)
				require.True(t, d.Granted)
				requireWithin(t, rdb, d)
			}
		}
		assert.Greater(t, refused, 20)
	})
}

// With a clock that has gone back, a give-back returns exactly the permits taken, or nothing: never what others have.
func testGiveBackByAClockSetBack(t *testing.T, k Kind) {
	type row struct {
		between     func(t *testing.T, rdb redistest.Client, l limit.Limiter, step func(time.Duration))
		least, most int64 // free permits after
		writes      bool  // the give-back writes
	}
	limitertest.Stepping(t, map[string]row{
		"at once": {func(_ *testing.T, _ redistest.Client, _ limit.Limiter, step func(time.Duration)) { step(-time.Hour) }, 7, 7, true},
		"others came by": {func(t *testing.T, _ redistest.Client, l limit.Limiter, step func(time.Duration)) {
			step(-time.Hour)
			require.True(t, Take(t, l, "orders", 2).Granted)
		}, 1, 5, false},
		"all is back": {func(t *testing.T, _ redistest.Client, l limit.Limiter, step func(time.Duration)) {
			step(-time.Hour)
			require.False(t, Take(t, l, "orders", permits).Granted)
			time.Sleep(window)
			require.True(t, Take(t, l, "orders", permits).Granted)
		}, 0, 0, false},
		"all was back before": {func(t *testing.T, _ redistest.Client, l limit.Limiter, step func(time.Duration)) {
			time.Sleep(window)
			require.True(t, Take(t, l, "orders", permits).Granted)
			step(-time.Hour)
		}, 0, 0, false},
		"the same time comes again": {func(t *testing.T, rdb redistest.Client, l limit.Limiter, step func(time.Duration)) {
			const past = window + time.Millisecond
			all := rdb.Keys(t.Context(), "*").Val()
			time.Sleep(past)
			// A server drops what has run out when it meets it.
			require.Zero(t, rdb.Exists(t.Context(), all...).Val())
			step(-past)
			require.True(t, Take(t, l, "orders", permits).Granted)
		}, 0, 0, false},
	}, func(t *testing.T, rdb redistest.Client, step func(time.Duration), tc row) {
		l := k.on(rdb, permits, window)
		giveBack := Returnable(t, l, "orders", 4)
		require.True(t, Take(t, l, "orders", 3).Granted)
		tc.between(t, rdb, l, step)
		require.NoError(t, giveBack(t.Context()))
		if tc.writes {
			requireWithin(t, rdb, limit.Decision{})
		}
		d := Take(t, l, "orders", permits)
		require.False(t, d.Granted)
		requireWithin(t, rdb, d)
		assert.GreaterOrEqual(t, d.Remaining, tc.least)
		assert.LessOrEqual(t, d.Remaining, tc.most)
		time.Sleep(window)
		assert.True(t, Take(t, l, "orders", permits).Granted)
		assert.False(t, Take(t, l, "orders", 1).Granted)
	})
}
