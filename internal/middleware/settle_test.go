package middleware_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// careless is a limiter whose grants can be settled any number of times.
type careless struct {
	server

	settled []int64
	err     error // of settling
	panics  bool
}

func (c *careless) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	d, err := c.Take(ctx, key, n)
	return d, func(_ context.Context, actual int64) error {
		c.settled = append(c.settled, actual)
		if c.panics {
			panic("settling")
		}
		return c.err
	}, err
}

// reserved asks for 3 permits and returns the context of the handler. The fallback may be nil.
func reserved(t *testing.T, limiter, fallback limit.Limiter) context.Context {
	t.Helper()
	o := &middleware.Options{Middleware: "test"}
	l, err := o.Limit(middleware.Terms{Name: "test", Limiter: limiter, Fallback: fallback, Settle: true})
	require.NoError(t, err)
	questions := []middleware.Question{l.Question("k", "k", 3)}
	v := o.AskAll(t.Context(), questions)
	require.False(t, v.Refused || v.Closed)
	ctx, record := middleware.WithRecord(t.Context(), true, false)
	record.Set(questions)
	return ctx
}

// A limiter of another module learns once what was used, even if that is the estimate.
func TestSettle_TellsAnyLimiterOnce(t *testing.T) {
	t.Parallel()
	for _, used := range []int64{0, 3, 20} {
		c := &careless{}
		ctx := reserved(t, c, nil)
		require.NoError(t, middleware.Settle(ctx, used))
		require.ErrorIs(t, middleware.Settle(ctx, used), limit.ErrSettled)
		assert.Equal(t, []int64{used}, c.settled)
	}
}

func TestSettle_IsRepeatedWithTheSameNumber(t *testing.T) {
	t.Parallel()
	for _, c := range []*careless{{err: limit.ErrUnavailable}, {panics: true}} {
		ctx := reserved(t, c, nil)
		err := middleware.Settle(ctx, 2)
		require.Error(t, err)
		require.NotErrorIs(t, err, limit.ErrSettled)
		require.ErrorIs(t, middleware.Settle(ctx, 4), limit.ErrSettled)
		c.err, c.panics = nil, false
		require.NoError(t, middleware.Settle(ctx, 2))
		assert.Equal(t, []int64{2, 2}, c.settled)
	}
}

// What a fallback has granted is settled as often as its own grants are, whatever it stands in for.
func TestSettle_OfAFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var lost atomic.Bool
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
			if err := send(); !lost.Load() {
				return err
			}
			return redistest.Fail(cmds, errors.New("the answer is lost"))
		}))
		fallback := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 100, Window: time.Hour})
		down := &careless{server: server{err: limit.ErrUnavailable}}
		require.NoError(t, middleware.Settle(reserved(t, down, fallback), 13), "the server knows the scripts from here on")

		ctx := reserved(t, down, fallback)
		lost.Store(true)
		require.ErrorIs(t, middleware.Settle(ctx, 13), limit.ErrUnknownOutcome)
		lost.Store(false)
		require.ErrorIs(t, middleware.Settle(ctx, 13), limit.ErrSettled, "a count can't show whether that was charged")
		d, err := fallback.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 100-13-13-1, d.Remaining)
	})
}
