package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
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

// A call that waits for a place beside another policy is sent as soon as one is free, and waits for that until its time is over.
func TestWithWait_PlacesBesideARate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		slow := grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			time.Sleep(200 * time.Millisecond)
			return handle(ctx, req)
		})
		conn, _ := serve(t, []grpc.ServerOption{slow}, unaryClient(httplimit.Local(100, time.Second), grpclimit.WithWait(),
			grpclimit.WithPolicy(grpclimit.Policy{
				Name: "places", Limiter: limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1)), InFlight: true,
			})))
		var calls sync.WaitGroup
		start := time.Now()
		for range 3 {
			calls.Go(func() { assert.NoError(t, check(t.Context(), conn)) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		assert.Equal(t, codes.DeadlineExceeded, status.Code(check(ctx, conn)))
		assert.Equal(t, 100*time.Millisecond, time.Since(start).Truncate(10*time.Millisecond))
		calls.Wait()
		assert.Equal(t, 600*time.Millisecond, time.Since(start).Truncate(10*time.Millisecond))
	})
}

// The rules are those of package httplimit, whose tests and fuzzing have more of them.
func TestClientIP(t *testing.T) {
	t.Parallel()
	behind := grpclimit.ClientIPConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	behindReal, behindSocket := behind, behind
	behindReal.Header, behindSocket.TrustUnix = "X-Real-IP", true
	proxy, socket := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80}, &net.UnixAddr{Net: "unix", Name: "@"}
	const xff = "x-forwarded-for"
	for name, c := range map[string]struct {
		cfg  grpclimit.ClientIPConfig
		peer net.Addr
		sent []string
		want string
	}{
		"no trust":         {grpclimit.ClientIPConfig{}, proxy, []string{xff, "192.0.2.9"}, "10.0.0.1"},
		"forged":           {behind, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, []string{xff, "192.0.2.9"}, "192.0.2.1"},
		"client's own":     {behind, proxy, []string{xff, "1.1.1.1", xff, "192.0.2.9, 10.0.0.2"}, "192.0.2.9"},
		"IPv6":             {behind, proxy, []string{xff, "2001:db8:1:2:3:4:5:6"}, "2001%3Adb8%3A1%3A2%3A%3A/64"},
		"mapped proxy":     {behind, &net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1")}, []string{xff, "192.0.2.9"}, "192.0.2.9"},
		"proxy by text":    {behind, namedAddr("10.0.0.1:80"), []string{xff, "192.0.2.9"}, "192.0.2.9"},
		"nothing sent":     {behind, proxy, nil, "10.0.0.1"},
		"one address":      {behindReal, proxy, []string{"x-real-ip", "192.0.2.9", xff, "1.1.1.1"}, "192.0.2.9"},
		"socket":           {behind, socket, []string{xff, "192.0.2.9"}, ""},
		"trusted socket":   {behindSocket, socket, []string{xff, "1.1.1.1, 192.0.2.9"}, "192.0.2.9"},
		"no address":       {behindSocket, namedAddr("pipe"), []string{xff, "192.0.2.9"}, ""},
		"others of socket": {behindSocket, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, []string{xff, "192.0.2.9"}, "192.0.2.1"},
	} {
		ctx := metadata.NewIncomingContext(peer.NewContext(t.Context(), &peer.Peer{Addr: c.peer}), metadata.Pairs(c.sent...))
		assert.Equal(t, "grpc:"+c.want, keyOf(ctx, t, grpclimit.WithKey(grpclimit.ClientIP(c.cfg))), name)
	}
	for _, name := range []string{"unary client", "stream client"} { // these know no peer yet
		err := interceptors[name](grpclimit.New(middlewaretest.Grants(), quiet, grpclimit.WithKey(grpclimit.ClientIP(behind))))(t.Context(), func() error { return nil })
		assert.Equal(t, codes.Unavailable, status.Code(err), name)
	}
}

// A proxy on the same machine, over a Unix socket.
func TestClientIP_ReadsTheMetadataOfATrustedSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // t.TempDir is too long for a socket's name
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	limiter := middlewaretest.Grants()
	server := grpc.NewServer(grpc.UnaryInterceptor(grpclimit.New(limiter,
		grpclimit.WithKey(grpclimit.ClientIP(grpclimit.ClientIPConfig{TrustUnix: true}))).UnaryServer()))
	healthpb.RegisterHealthServer(server, health.NewServer())
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	require.NoError(t, check(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "203.0.113.9, 192.0.2.1"), conn))
	assert.Equal(t, "grpc:192.0.2.1", limiter.Key())
}

// A config that is not valid, of a key function that another calls, passes no call either.
func TestClientIP_RefusesABadConfig(t *testing.T) {
	t.Parallel()
	for text, cfg := range map[string]grpclimit.ClientIPConfig{
		"IPv6Bits is 129": {IPv6Bits: 129}, "IPv6Bits is -1": {IPv6Bits: -1}, "a trusted prefix": {Trusted: []netip.Prefix{{}}},
	} {
		byAddress := grpclimit.ClientIP(cfg)
		require.ErrorContains(t, grpclimit.New(middlewaretest.Grants(), grpclimit.WithKey(byAddress)).Err(), text)
		var heard middlewaretest.Errors
		within := func(ctx context.Context, call grpclimit.Call) (string, error) { return byAddress(ctx, call) }
		limits := grpclimit.New(middlewaretest.Grants(), hearing(&heard), grpclimit.WithKey(within))
		err := interceptors["unary server"](limits)(t.Context(), func() error { return nil })
		assert.Equal(t, codes.Internal, status.Code(err), text)
		heard.Check(t, limit.ErrInvalidConfig)
	}
}

// places returns a policy in flight, and how many calls are under way. Each is charged by its code.
func places() (p grpclimit.Policy, busy func() int, charged grpclimit.Option, codesOf func() []int64) {
	inFlight, outcome := &middlewaretest.Reserver{Fake: middlewaretest.Grants()}, &middlewaretest.Reserver{Fake: middlewaretest.Grants()}
	p = grpclimit.Policy{Name: "places", Limiter: again{inFlight}, InFlight: true}
	charged = grpclimit.WithPolicy(grpclimit.Policy{
		Name: "outcome", Limiter: again{outcome},
		Charge: func(_ context.Context, _ grpclimit.Call, code codes.Code) int64 { return int64(code) },
	})
	busy = func() int { return len(inFlight.Asked()) - len(inFlight.Settled) }
	return p, busy, charged, func() []int64 { return outcome.Settled }
}

// again is a limiter of which any number of grants can be settled.
type again struct{ *middlewaretest.Reserver }

func (a again) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	d, err := a.Take(ctx, key, n)
	return d, func(_ context.Context, actual int64) error {
		a.Settled = append(a.Settled, actual)
		return nil
	}, err
}

// A call of a server is in flight until its handler has returned, and charged by the code that the client gets.
func TestPolicyInFlight_CallsOfAServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"OK": {nil, codes.OK}, "status": {status.Error(codes.NotFound, "no"), codes.NotFound}, "error": {errors.New("oops"), codes.Unknown},
		"context": {context.Canceled, codes.Canceled}, "deadline": {context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		for kind, intercept := range interceptors {
			p, busy, charged, codesOf := places()
			made := intercept(grpclimit.New(p, charged, grpclimit.WithKey(text("all", nil))))
			err := made(withTransport(t.Context()), func() error {
				assert.Equal(t, 1, busy(), kind)
				return c.err
			})
			require.ErrorIs(t, err, c.err)
			if kind == "stream client" && c.err == nil {
				continue // it is open
			}
			assert.Zero(t, busy(), "%s, %s", kind, name)
			assert.Equal(t, []int64{int64(c.want)}, codesOf(), "%s, %s", kind, name)
		}
	}
	for kind, intercept := range interceptors {
		p, busy, charged, codesOf := places()
		made := intercept(grpclimit.New(p, charged, grpclimit.WithKey(text("all", nil))))
		assert.PanicsWithValue(t, "oops", func() { _ = made(withTransport(t.Context()), func() error { panic("oops") }) }, kind)
		assert.Zero(t, busy(), kind)
		assert.Equal(t, []int64{int64(codes.Internal)}, codesOf(), kind)
	}
}

func withTransport(ctx context.Context) context.Context {
	return grpc.NewContextWithServerTransportStream(ctx, &transport{})
}

// A stream is in flight until it has ended, however it does, on both sides. Its messages take nothing.
func TestPolicyInFlight_Streams(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(t *testing.T, stream testpb.TestService_FullDuplexCallClient, leave func(), conn *grpc.ClientConn)
		want codes.Code
	}{
		"ends": {func(t *testing.T, stream testpb.TestService_FullDuplexCallClient, _ func(), _ *grpc.ClientConn) {
			require.NoError(t, stream.CloseSend())
			_, err := stream.Recv()
			require.ErrorIs(t, err, io.EOF)
		}, codes.OK},
		"is left": {func(_ *testing.T, _ testpb.TestService_FullDuplexCallClient, leave func(), _ *grpc.ClientConn) {
			leave()
		}, codes.Canceled},
		"loses its connection": {func(t *testing.T, _ testpb.TestService_FullDuplexCallClient, _ func(), conn *grpc.ClientConn) {
			require.NoError(t, conn.Close())
		}, codes.Canceled},
		"is left, and looked at": {func(t *testing.T, stream testpb.TestService_FullDuplexCallClient, leave func(), _ *grpc.ClientConn) {
			leave()
			_, err := stream.Recv()
			assert.Equal(t, codes.Canceled, status.Code(err))
		}, codes.Canceled},
	} {
		for _, perMessage := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var opts []grpclimit.Option
				if perMessage {
					opts = append(opts, grpclimit.WithPerMessage())
				}
				there, busyThere, chargedThere, codesThere := places()
				here, busyHere, chargedHere, codesHere := places()
				server, client := grpclimit.New(there, append(opts, chargedThere)...), grpclimit.New(here, append(opts, chargedHere)...)
				conn, service := serve(t, []grpc.ServerOption{grpc.StreamInterceptor(server.StreamServer())}, grpc.WithStreamInterceptor(client.StreamClient()))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
				require.NoError(t, err)
				for range 3 {
					require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
					_, err := stream.Recv()
					require.NoError(t, err)
					assert.Equal(t, []int{1, 1}, []int{busyThere(), busyHere()}, name)
				}
				c.end(t, stream, leave, conn)
				assert.Error(t, <-service.ended)
				synctest.Wait()
				assert.Equal(t, []int{0, 0}, []int{busyThere(), busyHere()}, name)
				assert.Equal(t, []int64{int64(c.want)}, codesThere(), name)
				assert.Equal(t, []int64{int64(c.want)}, codesHere(), name)
			})
		}
	}

	// A stream of one answer has ended with that.
	synctest.Test(t, func(t *testing.T) {
		here, busy, charged, codesOf := places()
		conn, _ := serve(t, nil, grpc.WithStreamInterceptor(grpclimit.New(here, charged).StreamClient()))
		stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		assert.Equal(t, 1, busy())
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF)
		assert.Zero(t, busy())
		assert.Equal(t, []int64{0}, codesOf())

		failing, err := testpb.NewTestServiceClient(conn).StreamingInputCall(t.Context())
		require.NoError(t, err)
		_, err = failing.CloseAndRecv()
		assert.Equal(t, codes.Unimplemented, status.Code(err))
		assert.Zero(t, busy())
		assert.Equal(t, []int64{0, int64(codes.Unimplemented)}, codesOf())
	})
}

// A Charge and an error handler that panic do not end a client's program when the stream ends with its context.
func TestPolicyCharge_Panics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs middlewaretest.Errors
		client := grpclimit.New(grpclimit.Policy{
			Name: "mine", Limiter: again{&middlewaretest.Reserver{Fake: middlewaretest.Grants()}},
			Charge: func(context.Context, grpclimit.Call, codes.Code) int64 { panic("oops") },
		}, grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) {
			errs.Add(err)
			panic("too")
		}))
		conn, service := serve(t, nil, grpc.WithStreamInterceptor(client.StreamClient()))
		ctx, leave := context.WithCancel(t.Context())
		_, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
		require.NoError(t, err)
		synctest.Wait()
		leave()
		assert.Error(t, <-service.ended)
		synctest.Wait()
		got := errs.Take()
		require.Len(t, got, 1)
		assert.EqualError(t, got[0], `grpclimit: policy "mine": panic: oops`)
	})
}
