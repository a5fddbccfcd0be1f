package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
		end  func(t *testing.T, stream testpb.TestService_FullDuplexCallClient, leave func())
		want codes.Code
	}{
		"ends": {func(t *testing.T, stream testpb.TestService_FullDuplexCallClient, _ func()) {
			require.NoError(t, stream.CloseSend())
			_, err := stream.Recv()
			require.ErrorIs(t, err, io.EOF)
		}, codes.OK},
		"is left": {func(_ *testing.T, _ testpb.TestService_FullDuplexCallClient, leave func()) { leave() }, codes.Canceled},
		"is left, and looked at": {func(t *testing.T, stream testpb.TestService_FullDuplexCallClient, leave func()) {
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
				c.end(t, stream, leave)
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
