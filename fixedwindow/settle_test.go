package fixedwindow_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

var _ limit.Reserver = (*fixedwindow.Limiter)(nil)

func reserve(t testing.TB, l *fixedwindow.Limiter, key string, n int64) (settle func(context.Context, int64) error) {
	t.Helper()
	d, settle, err := l.TakeReserved(t.Context(), key, n)
	require.NoError(t, err)
	require.True(t, d.Granted)
	return settle
}

// eachWindow runs a test with limiters of 10 permits a day by Window and by Calendar; both days end a day after the test begins.
func eachWindow(t *testing.T, test func(t *testing.T, rdb redistest.Client, l *fixedwindow.Limiter)) {
	t.Helper()
	limitertest.Virtual(t, map[string]fixedwindow.Config{
		"window":   {Limit: 10, Window: 24 * time.Hour},
		"calendar": {Limit: 10, Calendar: fixedwindow.Daily(time.UTC)},
		"aligned":  {Limit: 10, Calendar: fixedwindow.Aligned(24 * time.Hour)},
	}, func(t *testing.T, rdb redistest.Client, cfg fixedwindow.Config) {
		test(t, rdb, fixedwindow.New(limitertest.NewClient(t, rdb), cfg)) // which is closed: nothing may be left under way
	})
}

var ofReservations = map[string]func(t *testing.T, rdb redistest.Client, l *fixedwindow.Limiter){
	// The difference between what was reserved and what was used is free, or charged, at once.
	"SettleChargesWhatWasUsed": func(t *testing.T, rdb redistest.Client, l *fixedwindow.Limiter) {
		for used, want := range map[int64]int64{0: 2, 1: 3, 4: 6, 5: 7, 8: 10, 25: 27, fixedwindow.MaxLimit: fixedwindow.MaxLimit} {
			key := fmt.Sprint("used ", used)
			d, settle, err := l.TakeReserved(t.Context(), key, 4)
			require.NoError(t, err)
			assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 6, ResetAfter: 24 * time.Hour}, d)
			require.True(t, limittest.Take(t, l, key, 2).Granted)
			require.NoError(t, settle(t.Context(), used))
			assert.Equal(t, fmt.Sprint(want), rdb.Get(t.Context(), key).Val(), key)
			assert.Equal(t, 24*time.Hour, rdb.PTTL(t.Context(), key).Val())

			assert.Equal(t, want < 10, limitertest.Must(l.Peek(t.Context(), key, 1))(t).Granted)
			assert.Equal(t, want <= 10, limitertest.Must(l.Peek(t.Context(), key, 0))(t).Granted, "not beyond the limit")
			require.ErrorIs(t, settle(t.Context(), used), limit.ErrSettled)
			require.ErrorIs(t, settle(t.Context(), 0), limit.ErrSettled)
			assert.Equal(t, fmt.Sprint(want), rdb.Get(t.Context(), key).Val(), key)
		}
		time.Sleep(24*time.Hour + time.Millisecond)
		assert.Empty(t, rdb.Keys(t.Context(), "*").Val())
	},

	// What others have given back meanwhile does not come back a second time, and nothing in another window.
	"SettleChangesNoOthers": func(t *testing.T, rdb redistest.Client, l *fixedwindow.Limiter) {
		settle := reserve(t, l, "returned", 7)
		require.NoError(t, rdb.DecrBy(t.Context(), "returned", 5).Err())
		require.NoError(t, settle(t.Context(), 1))
		assert.Equal(t, "0", rdb.Get(t.Context(), "returned").Val())
		less, more, late := reserve(t, l, "key", 3), reserve(t, l, "key", 3), reserve(t, l, "idle", 3)
		time.Sleep(24 * time.Hour)
		require.True(t, limittest.Take(t, l, "key", 5).Granted)
		require.NoError(t, less(t.Context(), 0))
		require.NoError(t, more(t.Context(), 9))
		require.NoError(t, late(t.Context(), 9))
		assert.Equal(t, "5", rdb.Get(t.Context(), "key").Val())
		time.Sleep(time.Millisecond)
		assert.Zero(t, rdb.Exists(t.Context(), "idle").Val())
	},

	"RefusedOrInvalid": func(t *testing.T, rdb redistest.Client, l *fixedwindow.Limiter) {
		settle := reserve(t, l, "key", 8)
		for _, n := range []int64{-1, fixedwindow.MaxLimit + 1} {
			require.ErrorIs(t, settle(t.Context(), n), limit.ErrInvalidPermits)
		}
		d, refused, err := l.TakeReserved(t.Context(), "key", 3)
		require.NoError(t, err)
		assert.Equal(t, limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 24 * time.Hour, ResetAfter: 24 * time.Hour}, d)
		require.NoError(t, refused(t.Context(), 9))
		d, refused, err = l.TakeReserved(t.Context(), "key", 11)
		require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
		require.ErrorContains(t, err, `TakeReserved "key"`)
		assert.Equal(t, limit.Decision{Limit: 10}, d)
		require.NoError(t, refused(t.Context(), 9))
		assert.Equal(t, "8", rdb.Get(t.Context(), "key").Val())
		require.NoError(t, settle(t.Context(), 8), "it is still open")
	},
}

func TestTakeReserved(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, ofReservations, func(t *testing.T, test func(t *testing.T, rdb redistest.Client, l *fixedwindow.Limiter)) {
		eachWindow(t, test)
	})
}

// scene is a limiter of 100 permits that reaches its server through a proxy.
type scene struct {
	*fixedwindow.Limiter

	client *rratelimiter.Client
	proxy  *redistest.Proxy
	rdb    redistest.Client // past the proxy
}

func newScene(t *testing.T) scene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	s := scene{proxy: redistest.MiniProxy(t, m), rdb: rdb}
	s.client = rratelimiter.New(s.proxy.Client(t, &redistest.Options{ReadTimeout: time.Second / 2}))
	s.Limiter = fixedwindow.New(s.client, fixedwindow.Config{Limit: 100, Window: time.Hour})
	require.NoError(t, reserve(t, s.Limiter, "warm", 2)(t.Context(), 1)) // the server knows the scripts by then
	return s
}

// A count can't show whether a call has run: it is not repeated, and its caller learns that.
func TestTakeReserved_AnswerLost(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]redistest.Action{"closed": redistest.DropAnswer, "never": redistest.Swallow}, func(t *testing.T, fault redistest.Action) {
		s := newScene(t)
		settle := reserve(t, s.Limiter, "key", 20)
		s.proxy.OnCommand(limitertest.OnEach("evalsha", fault))
		_, unknown, err := s.TakeReserved(t.Context(), "key", 30)
		require.ErrorIs(t, err, limit.ErrUnknownOutcome)
		require.ErrorIs(t, settle(t.Context(), 25), limit.ErrUnknownOutcome)
		s.proxy.OnCommand(nil)
		s.proxy.Settle(t)
		took := s.rdb.Get(t.Context(), "key").Val()
		assert.Equal(t, "55", took, "each has run once")
		require.ErrorIs(t, settle(t.Context(), 25), limit.ErrSettled)
		require.NoError(t, unknown(t.Context(), 0), "nothing is known to be taken")
		assert.Equal(t, took, s.rdb.Get(t.Context(), "key").Val())
	})
}

// A settlement that was not sent is repeated with the same number.
func TestTakeReserved_SettleThatFailedIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var down atomic.Bool
		rdb.AddHook(redistest.FailWhile(&down, redis.ErrPoolTimeout))
		l := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Window: time.Hour})
		settle := reserve(t, l, "key", 4)
		down.Store(true)
		err := settle(t.Context(), 6)
		require.ErrorIs(t, err, limit.ErrUnavailable)
		require.NotErrorIs(t, err, limit.ErrUnknownOutcome)
		require.ErrorContains(t, err, `fixedwindow: Settle "key"`)
		down.Store(false)
		require.ErrorIs(t, settle(t.Context(), 5), limit.ErrSettled)
		require.NoError(t, settle(t.Context(), 6))
		assert.Equal(t, "6", rdb.Get(t.Context(), "key").Val())
	})
}

// A handler settles though its client has gone: it returns at once, and the rest happens, before Close returns.
func TestTakeReserved_SettleGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		settle := reserve(t, s.Limiter, "key", 4)
		gate := make(chan struct{})
		s.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(gate)))
		ctx := limitertest.Within(t, 100*time.Millisecond)
		start := time.Now()
		err := settle(ctx, 9)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 100*time.Millisecond, time.Since(start))
		require.ErrorIs(t, settle(t.Context(), 9), limit.ErrSettled, "it is under way")
		closed := make(chan error, 1)
		go func() { closed <- s.client.Close(t.Context()) }()
		synctest.Wait()
		assert.Empty(t, closed)
		close(gate)
		require.NoError(t, <-closed)
		assert.Equal(t, "9", s.rdb.Get(t.Context(), "key").Val())
		require.ErrorIs(t, settle(t.Context(), 9), limit.ErrSettled)
	})
}

// While Redis does not decide, nothing is charged, and what a local limiter took comes back if it was not used.
func TestTakeReserved_Uncharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		told := &limitertest.Recorder{}
		var down atomic.Bool
		rdb.AddHook(redistest.FailWhile(&down, errors.New("connection refused")))
		l := fixedwindow.New(limitertest.OpenClient(rdb, rratelimiter.WithObserver(told)), fixedwindow.Config{Limit: 10, Window: time.Hour}, rratelimiter.WithFailure(limit.FailLocal(1)))
		charged := reserve(t, l, "key", 4)
		require.NoError(t, charged(t.Context(), 5))
		down.Store(true)
		used, unused := reserve(t, l, "key", 4), reserve(t, l, "key", 6)
		require.NoError(t, used(t.Context(), 9))
		require.NoError(t, unused(t.Context(), 0))
		d := limittest.Take(t, l, "key", 6)
		assert.True(t, d.Granted)
		assert.Zero(t, d.Remaining)
		down.Store(false)
		time.Sleep(time.Minute)
		assert.Equal(t, "5", rdb.Get(t.Context(), "key").Val())
		assert.Equal(t, []limit.Settled{
			{Limiter: "fixedwindow", Reserved: 4, Actual: 5, Charged: true},
			{Limiter: "fixedwindow", Reserved: 4, Actual: 9},
			{Limiter: "fixedwindow", Reserved: 6, Actual: 0},
		}, told.Settlements())
	})
}

// Each key has the rule that the function says at the moment; what was granted by an earlier one stays counted.
func TestNewFunc_RuleOfEachKeyIsTheFunctions(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		berlin, ctx, most := zone(t, "Europe/Berlin"), t.Context(), int64(5)
		l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(key string) fixedwindow.Config {
			switch key {
			case "ann":
				return fixedwindow.Config{Limit: most, Window: time.Hour}
			case "berlin":
				return fixedwindow.Config{Limit: 2, Calendar: fixedwindow.Daily(berlin)}
			}
			return fixedwindow.Config{Limit: 1, Window: time.Minute}
		})
		require.NoError(t, l.Err())
		assert.Zero(t, l.Window())
		assert.Equal(t, limit.Decision{Granted: true, Limit: 5, Remaining: 1, ResetAfter: time.Hour}, limittest.Take(t, l, "ann", 4))
		assert.Equal(t, 23*time.Hour, limittest.Take(t, l, "berlin", 2).ResetAfter)
		assert.Equal(t, 1, limittest.Grants(t, l, "bob", 3))
		most = 10
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, ResetAfter: time.Hour}, limitertest.Must(l.Peek(ctx, "ann", 6))(t))
		taken, _, err := l.TakeUpTo(ctx, "ann", 20)
		require.NoError(t, err)
		assert.EqualValues(t, 6, taken)
		most = 3
		assert.Equal(t, limit.Decision{Limit: 3, RetryAfter: time.Hour, ResetAfter: time.Hour}, limittest.Take(t, l, "ann", 1))
		require.NoError(t, l.Reset(ctx, "ann"))
		settle := reserve(t, l, "ann", 3)
		most = 4
		require.NoError(t, settle(ctx, 1))
		assert.Equal(t, int64(2), limittest.Take(t, l, "ann", 1).Remaining)
	})
}

// A key whose rule is bad has the error, and no other key.
func TestNewFunc_BadRuleIsThatOfItsKey(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(key string) fixedwindow.Config {
		return fixedwindow.Config{Limit: int64(len(key) - 3), Window: time.Minute}
	})
	require.NoError(t, l.Err())
	limittest.RequireRefused(t, l, "ann", 1, limit.ErrInvalidConfig, "limit 0")
	assert.True(t, limittest.Take(t, l, "anna", 1).Granted)
	none := fixedwindow.NewFunc(limitertest.OpenClient(limittest.Unreachable(t)), nil)
	require.ErrorIs(t, none.Err(), limit.ErrInvalidConfig)
	limittest.RequireRefused(t, none, "ann", 1, limit.ErrInvalidConfig, "limit 0")
	require.ErrorIs(t, fixedwindow.NewFunc(nil, func(string) fixedwindow.Config { return fixedwindow.Config{} }).Err(), limit.ErrInvalidConfig)
}

// Callers whose rules differ never get more of a key together than the larger limit.
func TestNewFunc_CallersOfAllRulesShareTheCount(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	var calls, granted atomic.Int64
	l := fixedwindow.NewFunc(limitertest.OpenClient(rdb), func(string) fixedwindow.Config {
		return fixedwindow.Config{Limit: 50 + calls.Add(1)%10, Window: time.Hour}
	})
	limitertest.Together(200, func(int) { granted.Add(int64(limittest.Grants(t, l, "key", 1))) })
	granted.Add(int64(limittest.Grants(t, l, "key", 10)))
	assert.EqualValues(t, 59, granted.Load())
	assert.EqualValues(t, 210, calls.Load(), "it is asked once a call")
}
