package grpclimit_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// byMethod is the key for calls that no connection brought.
var byMethod = grpclimit.WithKey(grpclimit.Method())

var errHandled = errors.New("the handler was called")

// call runs a server's interceptor on a call of "/test/Call". It returns
// errHandled where the call was let through.
func call(ctx context.Context, interceptor grpc.UnaryServerInterceptor) error {
	_, err := interceptor(ctx, "request", &grpc.UnaryServerInfo{FullMethod: "/test/Call"},
		func(context.Context, any) (any, error) { return nil, errHandled })
	return err
}

// failures keeps what the error handler heard.
type failures []error

func (f *failures) option() grpclimit.Option {
	return grpclimit.WithErrorHandler(func(_ context.Context, call grpclimit.Call, err error) {
		if call.Method != "/test/Call" {
			err = errors.New("wrong method")
		}
		*f = append(*f, err)
	})
}

func failing(err error) limit.Limiter {
	return limiterFunc(func(context.Context, string, int64) (limit.Decision, error) { return limit.Decision{}, err })
}

func TestWhileTheLimiterFails(t *testing.T) {
	t.Parallel()
	down, downToo := errors.New("secret: connection refused"), errors.New("also down")
	for name, test := range map[string]struct {
		opts   []grpclimit.Option
		passes bool
		code   codes.Code
		heard  []error
	}{
		"closed":   {nil, false, codes.Unavailable, []error{down}},
		"open":     {[]grpclimit.Option{grpclimit.WithFailure(limit.FailOpen())}, true, 0, []error{down}},
		"fallback": {[]grpclimit.Option{grpclimit.WithFallback(&budget{limit: 1})}, true, 0, []error{down}},
		"used up":  {[]grpclimit.Option{grpclimit.WithFallback(&budget{})}, false, codes.ResourceExhausted, []error{down}},
		"too costly for it": {
			[]grpclimit.Option{grpclimit.WithFallback(failing(limit.ErrPermitsExceedRate))},
			false, codes.ResourceExhausted, []error{down},
		},
		"both": {
			[]grpclimit.Option{grpclimit.WithFallback(failing(downToo))},
			false, codes.Unavailable, []error{down, downToo},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard failures
			err := call(t.Context(), grpclimit.UnaryServerInterceptor(failing(down),
				append(test.opts, byMethod, heard.option())...))
			if test.passes {
				assert.Equal(t, errHandled, err)
			} else {
				assert.Equal(t, test.code, status.Code(err))
				assert.NotContains(t, err.Error(), "secret")
			}
			require.Len(t, heard, 1)
			for _, want := range test.heard {
				assert.ErrorIs(t, heard[0], want)
			}
		})
	}
}

// slow is a limiter that never decides.
var slow = limiterFunc(func(ctx context.Context, _ string, _ int64) (limit.Decision, error) {
	<-ctx.Done()
	return limit.Decision{}, ctx.Err()
})

func TestWithTimeout(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		opts []grpclimit.Option
		want time.Duration
	}{
		{nil, time.Second},
		{[]grpclimit.Option{grpclimit.WithTimeout(20 * time.Millisecond)}, 20 * time.Millisecond},
		{[]grpclimit.Option{grpclimit.WithFallback(slow)}, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var heard failures
			start := time.Now()
			err := call(t.Context(), grpclimit.UnaryServerInterceptor(slow, append(test.opts, byMethod, heard.option())...))
			assert.Equal(t, codes.Unavailable, status.Code(err))
			assert.Equal(t, test.want, time.Since(start))
			require.Len(t, heard, 1)
			assert.ErrorIs(t, heard[0], context.DeadlineExceeded)
		})
	}
}

// deaf is a limiter that grants in a minute, whatever its context says, and counts
// the permits that were given back.
type deaf struct{ returned atomic.Int64 }

func (d *deaf) Take(context.Context, string, int64) (limit.Decision, error) {
	time.Sleep(time.Minute)
	return limit.Decision{Granted: true, Limit: 1}, nil
}

func (d *deaf) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	decision, err := d.Take(ctx, key, n)
	return decision, func(context.Context) error { d.returned.Add(n); return nil }, err
}

func TestTimeoutOfALimiterThatHeedsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var heard failures
		limiter := &deaf{}
		ctx, cancel := context.WithCancel(t.Context())
		interceptor := grpclimit.UnaryServerInterceptor(limiter, byMethod, heard.option(), grpclimit.WithTimeout(20*time.Millisecond))
		start := time.Now()
		assert.Equal(t, codes.Unavailable, status.Code(call(ctx, interceptor)))
		assert.Equal(t, 20*time.Millisecond, time.Since(start))
		require.Len(t, heard, 1)
		require.ErrorIs(t, heard[0], context.DeadlineExceeded)

		time.AfterFunc(10*time.Millisecond, cancel)
		assert.Equal(t, codes.Canceled, status.Code(call(ctx, interceptor)))
		assert.Equal(t, 30*time.Millisecond, time.Since(start))
		assert.Len(t, heard, 1, "a caller that went away is no failure")
		assert.Zero(t, limiter.returned.Load())
		time.Sleep(time.Hour)
		assert.EqualValues(t, 2, limiter.returned.Load(), "what came too late")
	})
}

func TestPanicOfLimiterReachesTheServer(t *testing.T) {
	t.Parallel()
	panics := limiterFunc(func(context.Context, string, int64) (limit.Decision, error) { panic("oops") })
	assert.PanicsWithValue(t, "oops", func() { _ = call(t.Context(), grpclimit.UnaryServerInterceptor(panics, byMethod)) })
}

// A limiter that is not configured properly does not fail open, nor does a
// fallback stand in for it for ever.
func TestMisconfiguredLimiter(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	for _, f := range []grpclimit.Option{grpclimit.WithFailure(limit.FailClosed()), grpclimit.WithFailure(limit.FailOpen()), grpclimit.WithFallback(&budget{limit: 1})} {
		var heard failures
		limiter := slidinglog.New(rdb, slidinglog.Config{}) // no limit, no window
		interceptor := grpclimit.UnaryServerInterceptor(limiter, byMethod, f, heard.option())
		assert.Equal(t, codes.Internal, status.Code(call(t.Context(), interceptor)))
		require.Len(t, heard, 1)
		assert.ErrorIs(t, heard[0], limit.ErrInvalidConfig)
	}
}

func TestWithCostAndSkip(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opt   grpclimit.Option
		costs []int64
	}{
		"one by default": {grpclimit.WithPrefix("p:"), []int64{1}},
		"own cost": {grpclimit.WithCost(func(_ context.Context, call grpclimit.Call) int64 {
			return int64(len(call.Message.(string)))
		}), []int64{7}},
		"free":         {grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return 0 }), nil},
		"less than 0":  {grpclimit.WithCost(func(context.Context, grpclimit.Call) int64 { return -1 }), nil},
		"skipped":      {grpclimit.WithSkip(func(_ context.Context, c grpclimit.Call) bool { return c.Method == "/test/Call" }), nil},
		"none skipped": {grpclimit.WithSkip(func(_ context.Context, c grpclimit.Call) bool { return c.Method == "" }), []int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := &budget{limit: 10}
			assert.Equal(t, errHandled, call(t.Context(), grpclimit.UnaryServerInterceptor(limiter, byMethod, test.opt)))
			assert.Equal(t, test.costs, limiter.costs)
		})
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]grpclimit.Option{
		"prefix":       {grpclimit.WithPrefix("")},
		"no key":       {grpclimit.WithKey()},
		"nil key":      {grpclimit.WithKey(grpclimit.Method(), nil)},
		"nil cost":     {grpclimit.WithCost(nil)},
		"nil skip":     {grpclimit.WithSkip(nil)},
		"timeout":      {grpclimit.WithTimeout(-1)},
		"nil fallback": {grpclimit.WithFallback(nil)},
		"waiting":      {grpclimit.WithWait()},
		"braces":       {grpclimit.WithPrefix("a{b}:"), grpclimit.WithHashTag()},
		"nil option":   {nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard failures
			limiter := &budget{limit: 10}
			interceptor := grpclimit.UnaryServerInterceptor(limiter,
				append([]grpclimit.Option{heard.option(), grpclimit.WithFailure(limit.FailOpen())}, opts...)...)
			for range 2 {
				assert.Equal(t, codes.Internal, status.Code(call(t.Context(), interceptor)))
			}
			require.Len(t, heard, 2)
			assert.ErrorIs(t, heard[0], limit.ErrInvalidConfig)
			assert.Empty(t, limiter.asked())
		})
	}
	t.Run("limiter", func(t *testing.T) {
		t.Parallel()
		var heard failures
		assert.Equal(t, codes.Internal, status.Code(call(t.Context(), grpclimit.UnaryServerInterceptor(nil, heard.option()))))
		require.Len(t, heard, 1)
		assert.ErrorIs(t, heard[0], limit.ErrInvalidConfig)
	})
	t.Run("error handler", func(t *testing.T) {
		t.Parallel()
		interceptor := grpclimit.UnaryServerInterceptor(&budget{limit: 1}, grpclimit.WithErrorHandler(nil))
		assert.Equal(t, codes.Internal, status.Code(call(t.Context(), interceptor)))
	})
}
