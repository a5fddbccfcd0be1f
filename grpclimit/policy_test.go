package grpclimit_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// tokens is what a call costs the policies of tokens.
func tokens(n *int64) func(context.Context, grpclimit.Call) (int64, error) {
	return func(context.Context, grpclimit.Call) (int64, error) { return *n, nil }
}

// policies are requests and tokens of a minute and of a day, whose keys share a hash tag.
func policies(client *rratelimiter.Client, estimate *int64) (first limit.Limiter, opts []grpclimit.Option) {
	opts = []grpclimit.Option{
		grpclimit.WithHashTag(), grpclimit.WithKey(text("ann", nil)),
		grpclimit.WithPolicy(grpclimit.Policy{
			Name: "tokens-minute", Limiter: client.Keyed("", rratelimiter.PerMinute(1000)), Cost: tokens(estimate), Settle: true,
		}),
		grpclimit.WithPolicy(grpclimit.Policy{Name: "requests-day", Limiter: client.Keyed("", rratelimiter.PerDay(100))}),
		grpclimit.WithPolicy(grpclimit.Policy{
			Name: "tokens-day", Limiter: client.Keyed("", rratelimiter.PerDay(1500)), Cost: tokens(estimate), Settle: true,
		}),
	}
	return grpclimit.Policy{Name: "requests-minute", Limiter: client.Keyed("", rratelimiter.PerMinute(10))}, opts
}

// left is what is left of all policies.
func left(t *testing.T, client *rratelimiter.Client) (all []int64) {
	t.Helper()
	for _, name := range []string{"requests-minute", "tokens-minute", "requests-day", "tokens-day"} {
		d, err := client.RateLimiter("grpc:"+name+":{ann}").Peek(t.Context(), 0)
		require.NoError(t, err)
		all = append(all, d.Remaining)
	}
	return all
}

// All policies of a call are one script call, which charges none if one refuses; Settle settles those that estimate.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"unary server", "stream server"} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client, estimate := limitertest.NewClient(t, rdb), int64(900)
			first, opts := policies(client, &estimate)
			limits := grpclimit.New(first, opts...)
			made := interceptors[kind](limits)
			require.NoError(t, limits.Err())
			stream := &transport{}
			say := func(used int64) error {
				*stream = transport{}
				ctx := middlewaretest.Handled(grpc.NewContextWithServerTransportStream(t.Context(), stream), func(ctx context.Context) {
					decisions := grpclimit.Decisions(ctx)
					require.Len(t, decisions, 4)
					assert.Equal(t, "tokens-day", decisions[3].Name)
					assert.EqualValues(t, 1500, decisions[3].Limit)
					require.NoError(t, grpclimit.Settle(ctx, used))
				})
				return made(ctx, func() error { return nil })
			}
			require.NoError(t, say(700))
			assert.Equal(t, []int64{9, 300, 99, 800}, left(t, client))
			assert.Equal(t, []string{"10", "1000", "100", "1500"}, stream.trailer.Get(grpclimit.TrailerLimit))
			assert.Equal(t, []string{"9", "100", "99", "600"}, stream.trailer.Get(grpclimit.TrailerRemaining))

			calls := limitertest.CountCommands(rdb)
			err := say(0)
			assert.Equal(t, 1, calls.Scripts())
			assert.Equal(t, []int64{9, 300, 99, 800}, left(t, client))
			retry, quota := refusalDetails(t, err)
			assert.Equal(t, 24*time.Hour, retry.RetryDelay.AsDuration())
			require.Len(t, quota.Violations, 2)
			assert.EqualValues(t, 1500, quota.Violations[1].QuotaValue)
			assert.Equal(t, "{ann}", quota.Violations[1].Subject)
			for _, detail := range status.Convert(err).Details() {
				if info, ok := detail.(*errdetails.ErrorInfo); ok {
					assert.Equal(t, map[string]string{"limiter": "tokens-day", "limit": "1500", "remaining": "800", "retryAfter": "86400s"}, info.Metadata)
				}
			}
			assert.Equal(t, []string{"10", "1000", "100", "1500"}, stream.trailer.Get(grpclimit.TrailerLimit))
		})
	}
}

// What limiters that can't go together granted is given back if another refuses.
func TestPolicies_OfOtherLimiters(t *testing.T) {
	t.Parallel()
	refuses := middlewaretest.Says(limit.Decision{Limit: 5, RetryAfter: time.Minute}, nil)
	down := middlewaretest.Says(limit.Decision{}, errors.New("connection refused"))
	for name, c := range map[string]struct {
		second limit.Limiter
		opts   []grpclimit.Option
		want   codes.Code
		given  int // back
	}{
		"refused":   {refuses, nil, codes.ResourceExhausted, 1},
		"shadow":    {refuses, []grpclimit.Option{grpclimit.WithShadow()}, codes.OK, 1},
		"closed":    {down, nil, codes.Unavailable, 1},
		"open":      {down, []grpclimit.Option{grpclimit.WithFailure(limit.FailOpen())}, codes.OK, 0},
		"costly":    {middlewaretest.Says(limit.Decision{Limit: 5}, limit.ErrPermitsExceedRate), nil, codes.ResourceExhausted, 1},
		"both pass": {middlewaretest.Grants(), nil, codes.OK, 0},
	} {
		for kind, made := range interceptors {
			first := &middlewaretest.Returner{Fake: middlewaretest.Grants()}
			policy := grpclimit.WithPolicy(grpclimit.Policy{Name: "second", Limiter: c.second, Cost: tokens(new(int64(3)))})
			call := made(grpclimit.New(first, append(c.opts, policy, quiet, grpclimit.WithKey(text("a", nil)))...))
			err := call(t.Context(), func() error { return nil })
			assert.Equal(t, c.want, status.Code(err), name+" "+kind)
			assert.Len(t, first.GivenBack(), c.given, name+" "+kind)
			assert.Equal(t, "grpc:default:a", first.Key())
		}
	}
}

// The key functions of a policy go nowhere else: the application may use a part of a slice.
func TestWithPolicy_KeyLeavesTheApplicationsSliceAlone(t *testing.T) {
	t.Parallel()
	all := []grpclimit.KeyFunc{text("first", nil), text("second", nil)}
	require.NoError(t, grpclimit.New(middlewaretest.Grants(), grpclimit.WithKey(all[:1]...), grpclimit.WithPolicy(grpclimit.Policy{
		Name: "other", Limiter: middlewaretest.Grants(), Key: []grpclimit.KeyFunc{text("other", nil)},
	})).Err())
	got, err := all[1](t.Context(), grpclimit.Call{})
	require.NoError(t, err)
	assert.Equal(t, "second", got)
}

func TestWithPolicy_BadPolicies(t *testing.T) {
	t.Parallel()
	ok := middlewaretest.Grants()
	for says, p := range map[string]grpclimit.Policy{
		"the name is empty":                {Limiter: ok},
		`policy "a": the limiter is nil`:   {Name: "a"},
		`two policies are named "default"`: {Name: "default", Limiter: ok},
		"begin with":                       {Name: "a", Limiter: ok, Prefix: "grpc:default:x:"},
		"a key function is nil":            {Name: "a", Limiter: ok, Key: []grpclimit.KeyFunc{nil}},
		`"a" can't be settled`:             {Name: "a", Limiter: ok, Settle: true},
	} {
		err := grpclimit.New(ok, grpclimit.WithPolicy(p), grpclimit.WithPolicy(grpclimit.Policy{Name: "z", Limiter: ok})).Err()
		require.ErrorContains(t, err, says)
	}
}

// A Policy is no limiter, of whichever package it is: its fields would be passed over.
func TestNew_PolicyInPlaceOfALimiter(t *testing.T) {
	t.Parallel()
	ofHTTP, ofGRPC := httplimit.Policy{Limiter: middlewaretest.Grants()}, grpclimit.Policy{Limiter: middlewaretest.Grants()}
	for name, err := range map[string]error{
		"HTTP's for gRPC":         grpclimit.New(ofHTTP).Err(),
		"a pointer to HTTP's":     grpclimit.New(&ofHTTP).Err(),
		"gRPC's for HTTP":         httplimit.New(ofGRPC).Err(),
		"gRPC's for a transport":  httplimit.NewTransport(nil, ofGRPC).Err(),
		"a pointer to gRPC's own": grpclimit.New(&ofGRPC).Err(),
		"a policy's limiter":      grpclimit.New(grpclimit.Policy{Limiter: ofHTTP}).Err(),
		"a fallback":              httplimit.New(middlewaretest.Grants(), httplimit.WithFallback(ofGRPC)).Err(),
	} {
		require.ErrorIs(t, err, limit.ErrInvalidConfig, name)
		require.ErrorContains(t, err, "a Policy takes the place of the limiter of its own package's New only", name)
	}
	require.NoError(t, grpclimit.New(ofGRPC).Err())
	require.NoError(t, httplimit.New(ofHTTP).Err())
}

// What only one side can do is no error of the other's interceptors.
func TestErr_OptionsOfOneSide(t *testing.T) {
	t.Parallel()
	all := grpclimit.WithKey(text("all", nil))
	settled := grpclimit.Policy{Limiter: &middlewaretest.Reserver{Fake: middlewaretest.Grants()}, Settle: true}
	for says, c := range map[string]struct {
		limits   *grpclimit.Interceptors
		can, not string
	}{
		"only handlers settle": {grpclimit.New(settled, quiet, all), "unary server", "stream client"},
		"only clients wait":    {grpclimit.New(middlewaretest.Grants(), quiet, all, grpclimit.WithWait()), "stream client", "unary server"},
	} {
		require.NoError(t, interceptors[c.can](c.limits)(t.Context(), func() error { return nil }))
		require.NoError(t, c.limits.Err())
		made := interceptors[c.not](c.limits)
		err := c.limits.Err()
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, limit.ErrInvalidConfig)
		assert.Equal(t, codes.Internal, status.Code(made(t.Context(), func() error { return nil })))
		assert.NoError(t, interceptors[c.can](c.limits)(t.Context(), func() error { return nil }), "the other side goes on")
	}
}

// Unary calls and streams of a server share what is known of a limiter that fails.
func TestInterceptors_ShareOneBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := middlewaretest.Says(limit.Decision{}, limit.ErrUnavailable)
		limits := grpclimit.New(down, quiet, grpclimit.WithKey(text("all", nil)), grpclimit.WithFailure(limit.FailOpen()))
		unary, stream := interceptors["unary server"](limits), interceptors["stream server"](limits)
		for range 3 {
			require.NoError(t, unary(t.Context(), func() error { return nil }))
		}
		asked := len(down.Asked())
		require.NoError(t, stream(t.Context(), func() error { return nil }))
		assert.Len(t, down.Asked(), asked, "the stream's interceptor knows it")
	})
}

// Of calls that wait for several policies none takes what another lacks: what the scarcest allows is sent.
func TestWithWait_SeveralPoliciesSendWhatTheScarcestAllows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, _ := serve(t, nil, unaryClient(httplimit.Local(30, time.Second), grpclimit.WithWait(),
			grpclimit.WithPolicy(grpclimit.Policy{Name: "b", Limiter: httplimit.Local(20, time.Second)}),
			grpclimit.WithPolicy(grpclimit.Policy{Name: "c", Limiter: httplimit.Local(10, time.Second)})))
		ctx, cancel := context.WithTimeout(t.Context(), 4950*time.Millisecond)
		defer cancel()
		var sent atomic.Int64
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				for check(ctx, conn) == nil {
					sent.Add(1)
				}
			})
		}
		callers.Wait()
		assert.LessOrEqual(t, sent.Load(), int64(50))
		assert.GreaterOrEqual(t, sent.Load(), int64(48))
	})
}
