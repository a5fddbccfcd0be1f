package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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

// All policies of a call show, in the order in which they were added: in trailers, and those that refuse in the status. The
// ErrorInfo is of the one that refuses for the longest time, or of one that the call costs too much. What others granted is given
// back.
func TestPolicies(t *testing.T) {
	t.Parallel()
	granted := middlewaretest.Says(limit.Decision{Granted: true, Limit: 10, Remaining: 9}, nil)
	minute := middlewaretest.Says(limit.Decision{Limit: 5, Remaining: 3, RetryAfter: time.Minute}, nil)
	day := middlewaretest.Says(limit.Decision{Limit: 1500, Remaining: 800, RetryAfter: 24 * time.Hour}, nil)
	costly := middlewaretest.Says(limit.Decision{Limit: 7}, limit.ErrPermitsExceedRate)
	unknown, zero := middlewaretest.Says(limit.Decision{}, limit.ErrInvalidPermits), middlewaretest.Says(limit.Decision{}, nil)
	down := middlewaretest.Says(limit.Decision{}, errors.New("connection refused"))
	for name, c := range map[string]struct {
		policies [3]limit.Limiter // after one that grants and can give that back
		opts     []grpclimit.Option
		want     codes.Code
		info     map[string]string
		violated []string
		figures  []string // the limits, and what remains
	}{
		"pass": {policies: [3]limit.Limiter{granted, granted, granted}, figures: []string{"10", "10", "10", "10", "9", "9", "9", "9"}},
		"refused": {
			policies: [3]limit.Limiter{minute, granted, day}, want: codes.ResourceExhausted, violated: []string{"5", "1500"},
			info:    map[string]string{"limiter": "d", "limit": "1500", "remaining": "800", "retryAfter": "86400s"},
			figures: []string{"10", "5", "10", "1500", "10", "3", "9", "800"},
		},
		"too costly": {
			policies: [3]limit.Limiter{minute, costly, day}, want: codes.ResourceExhausted, violated: []string{"7"},
			info: map[string]string{"limiter": "c", "limit": "7"}, figures: []string{"10", "5", "1500", "10", "3", "800"},
		},
		"of unknown limit": {
			policies: [3]limit.Limiter{minute, unknown, day}, want: codes.ResourceExhausted, violated: []string{"0"},
			info: map[string]string{"limiter": "c"}, figures: []string{"10", "5", "1500", "10", "3", "800"},
		},
		"never": {
			policies: [3]limit.Limiter{minute, granted, zero}, want: codes.ResourceExhausted, violated: []string{"5", "0"},
			info: map[string]string{"limiter": "d", "limit": "0", "remaining": "0"}, figures: []string{"10", "5", "10", "10", "3", "9"},
		},
		"closed": {policies: [3]limit.Limiter{granted, down, granted}, want: codes.Unavailable, figures: []string{"10", "10", "10", "10", "9", "9"}},
		"closed, refused": {
			policies: [3]limit.Limiter{granted, down, minute}, want: codes.ResourceExhausted, violated: []string{"5"},
			info:    map[string]string{"limiter": "d", "limit": "5", "remaining": "3", "retryAfter": "60s"},
			figures: []string{"10", "10", "5", "10", "9", "3"},
		},
		"shadow": {policies: [3]limit.Limiter{granted, minute, granted}, opts: []grpclimit.Option{grpclimit.WithShadow()}},
	} {
		for kind, made := range interceptors {
			first := &middlewaretest.Returner{Fake: middlewaretest.Grants()}
			opts := append([]grpclimit.Option{quiet, grpclimit.WithKey(text("a b", nil))}, c.opts...)
			for i, l := range c.policies {
				opts = append(opts, grpclimit.WithPolicy(grpclimit.Policy{Name: string(rune('b' + i)), Limiter: l}))
			}
			stream := &transport{}
			err := made(grpclimit.New(first, opts...))(grpc.NewContextWithServerTransportStream(t.Context(), stream), func() error { return nil })
			assert.Equal(t, c.want, status.Code(err), name+" "+kind)
			assert.Equal(t, c.want != codes.OK || name == "shadow", len(first.GivenBack()) == 1, name+" "+kind)
			assert.Equal(t, "grpc:default:a%20b", first.Key())
			if strings.HasSuffix(kind, "server") {
				assert.Equal(t, c.figures, figures(stream.trailer), name)
			}
			var violated []string
			for _, detail := range status.Convert(err).Details() {
				switch d := detail.(type) {
				case *errdetails.QuotaFailure:
					for _, v := range d.Violations {
						violated = append(violated, fmt.Sprint(v.QuotaValue))
						assert.Equal(t, "a%20b", v.Subject)
					}
				case *errdetails.ErrorInfo:
					assert.Equal(t, c.info, d.Metadata, name)
					assert.Equal(t, grpclimit.ErrorDomain, d.Domain)
					assert.Equal(t, map[bool]string{true: grpclimit.ReasonTooCostly, false: grpclimit.ReasonExceeded}[c.info["limiter"] == "c"], d.Reason)
				}
			}
			assert.Equal(t, c.violated, violated, name)
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

// A Policy is no limiter, of whichever package it is: its fields would be passed over.
func TestNew_PolicyInPlaceOfALimiter(t *testing.T) {
	t.Parallel()
	ofHTTP, ofGRPC := httplimit.Policy{Limiter: middlewaretest.Grants()}, grpclimit.Policy{Limiter: middlewaretest.Grants()}
	for name, err := range map[string]error{
		"HTTP's for gRPC":         grpclimit.New(ofHTTP).Err(),
		"gRPC's for HTTP":         httplimit.New(ofGRPC).Err(),
		"a pointer to gRPC's own": grpclimit.New(&ofGRPC).Err(),
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

// A call that waits for a place beside another policy is sent as soon as one is free, and waits for that until its time is over.
func TestWithWait_PlacesBesideARate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		slow := grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			time.Sleep(200 * time.Millisecond)
			return handle(ctx, req)
		})
		conn, _ := serve(t, []grpc.ServerOption{slow}, grpc.WithUnaryInterceptor(grpclimit.New(httplimit.Local(100, time.Second),
			grpclimit.WithWait(), grpclimit.WithPolicy(grpclimit.Policy{
				Name: "places", Limiter: limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerHour(1)), InFlight: true,
			})).UnaryClient()))
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

// namedAddr is an address of which there is only the text.
type namedAddr string

func (namedAddr) Network() string  { return "tcp" }
func (a namedAddr) String() string { return string(a) }

// The rules of ClientIP are those of package httplimit, whose tests and fuzzing have more of them, and those of addresses of
// package clientip. A config that is not valid, of a key function that another calls, passes no call.
func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 80} }
	behind := grpclimit.ClientIPConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	behindSocket := behind
	behindSocket.TrustUnix = true
	proxy, socket := tcp("10.0.0.1"), &net.UnixAddr{Net: "unix", Name: "/run/orders.sock"}
	const xff = "x-forwarded-for"
	peerOnly, ip, ofSocket := grpclimit.Peer(), grpclimit.ClientIP(behind), grpclimit.ClientIP(behindSocket)
	for name, c := range map[string]struct {
		key  grpclimit.KeyFunc
		peer net.Addr
		sent []string
		want string
	}{
		"IPv4":           {peerOnly, tcp("192.0.2.7"), nil, "192.0.2.7"},
		"IPv6":           {peerOnly, tcp("2001:db8:1:2:3:4:5:6"), nil, "2001%3Adb8%3A1%3A2%3A%3A/64"},
		"text":           {peerOnly, namedAddr("192.0.2.7:1234"), nil, "192.0.2.7"},
		"no address":     {peerOnly, namedAddr("pipe"), nil, "pipe"},
		"path of socket": {peerOnly, socket, nil, "/run/orders.sock"},

		"client's own":   {ip, proxy, []string{xff, "1.1.1.1", xff, "192.0.2.9, 10.0.0.2"}, "192.0.2.9"},
		"socket":         {ip, socket, []string{xff, "192.0.2.9"}, ""},
		"trusted socket": {ofSocket, socket, []string{xff, "203.0.113.9, 192.0.2.9"}, "192.0.2.9"},
		"no socket":      {ofSocket, namedAddr("pipe"), []string{xff, "192.0.2.9"}, ""},

		"the first":  {grpclimit.Metadata("X-User"), proxy, []string{"x-user", "ann", "x-user", "bob"}, "ann"},
		"binary":     {grpclimit.Metadata("key-bin"), proxy, []string{"key-bin", "\x00\xff"}, "%00%FF"},
		"not in it":  {grpclimit.Metadata("none"), proxy, []string{"x-user", "ann"}, ""},
		"the method": {grpclimit.Method(), proxy, nil, method},
	} {
		ctx := metadata.NewIncomingContext(peer.NewContext(t.Context(), &peer.Peer{Addr: c.peer}), metadata.Pairs(c.sent...))
		limiter := middlewaretest.Grants()
		require.NoError(t, interceptors["unary server"](grpclimit.New(limiter, grpclimit.WithKey(c.key)))(ctx, func() error { return nil }))
		assert.Equal(t, "grpc:"+c.want, limiter.Key(), name)
	}
	bad := grpclimit.ClientIP(grpclimit.ClientIPConfig{IPv6Bits: 129})
	within := func(ctx context.Context, call grpclimit.Call) (string, error) { return bad(ctx, call) }
	for kind, made := range interceptors {
		ctx := t.Context()
		if strings.HasSuffix(kind, "client") { // it has no peer yet, though the call that it is part of may
			ctx = peer.NewContext(ctx, &peer.Peer{Addr: proxy})
		}
		for _, c := range []struct {
			key  grpclimit.KeyFunc
			want codes.Code
		}{{peerOnly, codes.Unavailable}, {ip, codes.Unavailable}, {within, codes.Internal}} {
			err := made(grpclimit.New(middlewaretest.Grants(), quiet, grpclimit.WithKey(c.key)))(ctx, func() error { return nil })
			assert.Equal(t, c.want, status.Code(err), kind)
		}
	}
}

// places are what limits how many calls are under way, and charges each by its code.
type places struct{ inFlight, outcome *middlewaretest.Reserver }

func newPlaces() places {
	many := func() *middlewaretest.Reserver {
		return &middlewaretest.Reserver{Fake: middlewaretest.Grants(), Many: true}
	}
	return places{many(), many()}
}

// limits returns interceptors that ask the places.
func (p places) limits(opts ...grpclimit.Option) *grpclimit.Interceptors {
	return grpclimit.New(grpclimit.Policy{Name: "places", Limiter: p.inFlight, InFlight: true}, append(opts,
		grpclimit.WithKey(text("all", nil)),
		grpclimit.WithPolicy(grpclimit.Policy{
			Name: "outcome", Limiter: p.outcome,
			Charge: func(_ context.Context, _ grpclimit.Call, code codes.Code) int64 { return int64(code) },
		}))...)
}

// busy is how many calls are under way.
func (p places) busy() int { return len(p.inFlight.Asked()) - len(p.inFlight.Settled) }

// ended checks that no call is under way, and by which codes those that were have been charged.
func (p places) ended(t *testing.T, what string, want ...codes.Code) {
	t.Helper()
	var got []codes.Code
	for _, code := range p.outcome.Settled {
		got = append(got, codes.Code(code))
	}
	assert.Zero(t, p.busy(), what)
	assert.Equal(t, want, got, what)
}

// A call of a server is in flight until its handler has returned, and charged by the code that the client gets.
func TestPolicyInFlight_CallsOfAServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"OK": {nil, codes.OK}, "status": {status.Error(codes.NotFound, "no"), codes.NotFound}, "error": {errors.New("oops"), codes.Unknown},
		"context": {context.Canceled, codes.Canceled}, "deadline": {context.DeadlineExceeded, codes.DeadlineExceeded}, "panic": {nil, codes.Internal},
	} {
		for kind, intercept := range interceptors {
			p := newPlaces()
			call := func() error {
				return intercept(p.limits())(grpc.NewContextWithServerTransportStream(t.Context(), &transport{}), func() error {
					assert.Equal(t, 1, p.busy(), kind)
					if name == "panic" {
						panic("oops")
					}
					return c.err
				})
			}
			if name == "panic" {
				assert.PanicsWithValue(t, "oops", func() { _ = call() }, kind)
			} else {
				require.ErrorIs(t, call(), c.err)
			}
			if kind != "stream client" || name != "OK" { // that is open
				p.ended(t, kind+", "+name, c.want)
			}
		}
	}
}

// A stream is in flight until it has ended, however it does, on both sides. Its messages take nothing.
func TestPolicyInFlight_Streams(t *testing.T) {
	t.Parallel()
	type streaming = testpb.TestService_FullDuplexCallClient
	for name, c := range map[string]struct {
		end  func(t *testing.T, stream streaming, leave func(), conn *grpc.ClientConn)
		want codes.Code
	}{
		"ends": {func(t *testing.T, stream streaming, _ func(), _ *grpc.ClientConn) {
			require.NoError(t, stream.CloseSend())
			require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
		}, codes.OK},
		"is left":              {func(_ *testing.T, _ streaming, leave func(), _ *grpc.ClientConn) { leave() }, codes.Canceled},
		"loses its connection": {func(t *testing.T, _ streaming, _ func(), conn *grpc.ClientConn) { require.NoError(t, conn.Close()) }, codes.Canceled},
	} {
		for _, opts := range [][]grpclimit.Option{nil, {grpclimit.WithPerMessage()}} {
			synctest.Test(t, func(t *testing.T) {
				there, here := newPlaces(), newPlaces()
				conn, service := serve(t, []grpc.ServerOption{grpc.StreamInterceptor(there.limits(opts...).StreamServer())},
					grpc.WithStreamInterceptor(here.limits(opts...).StreamClient()))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
				require.NoError(t, err)
				for range 3 {
					require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
					require.NoError(t, limitertest.Second(stream.Recv()))
					assert.Equal(t, []int{1, 1}, []int{there.busy(), here.busy()}, name)
				}
				c.end(t, stream, leave, conn)
				require.Error(t, <-service.ended)
				synctest.Wait()
				there.ended(t, name, c.want)
				here.ended(t, name, c.want)
			})
		}
	}

	// A stream of one answer has ended with that.
	synctest.Test(t, func(t *testing.T) {
		here := newPlaces()
		conn, _ := serve(t, nil, grpc.WithStreamInterceptor(here.limits().StreamClient()))
		stream, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), &testpb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		require.NoError(t, limitertest.Second(stream.Recv()))
		assert.Equal(t, 1, here.busy())
		require.ErrorIs(t, limitertest.Second(stream.Recv()), io.EOF)
		here.ended(t, "one answer", codes.OK)
		failing, err := testpb.NewTestServiceClient(conn).StreamingInputCall(t.Context())
		require.NoError(t, err)
		assert.Equal(t, codes.Unimplemented, status.Code(limitertest.Second(failing.CloseAndRecv())))
		here.ended(t, "fails", codes.OK, codes.Unimplemented)
	})
}
