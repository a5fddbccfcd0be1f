package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// keyOf returns the key for which a call takes its permits.
func keyOf(ctx context.Context, t *testing.T, opts ...grpclimit.Option) string {
	t.Helper()
	limiter := middlewaretest.Grants()
	require.NoError(t, interceptors["unary server"](limiter, opts...)(ctx, func() error { return nil }))
	return limiter.Key()
}

// hearing has errors be told of what fails.
func hearing(errs *middlewaretest.Errors) grpclimit.Option {
	return grpclimit.WithErrorHandler(func(_ context.Context, _ grpclimit.Call, err error) { errs.Add(err) })
}

// namedAddr is an address of which there is only the text.
type namedAddr string

func (namedAddr) Network() string  { return "tcp" }
func (a namedAddr) String() string { return string(a) }

func TestPeer(t *testing.T) {
	t.Parallel()
	for address, want := range map[net.Addr]string{
		&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234}:            "192.0.2.7",
		&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.7"), Port: 1}:      "192.0.2.7",
		&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6"), Port: 1}:  "2001%3Adb8%3A1%3A2%3A%3A/64",
		&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2::1"), Port: 1}:       "2001%3Adb8%3A1%3A2%3A%3A/64",
		&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 1, Zone: "eth0"}: "fe80%3A%3A/64",
		&net.TCPAddr{IP: net.ParseIP("::1")}:                            "%3A%3A/64",
		namedAddr("192.0.2.7:1234"):                                     "192.0.2.7",
		namedAddr("[2001:db8:1:2::1]:1"):                                "2001%3Adb8%3A1%3A2%3A%3A/64",
		namedAddr("pipe"):                                               "pipe",
		&net.UnixAddr{Net: "unix", Name: "/run/orders.sock"}:            "/run/orders.sock",
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: address})
		assert.Equal(t, "grpc:/test/Call:"+want, keyOf(ctx, t), "%v", address)
	}
	for name := range interceptors { // a client has no peer yet
		err := interceptors[name](middlewaretest.Grants(), quiet, grpclimit.WithKey(grpclimit.Peer()))(t.Context(), func() error { return nil })
		assert.Equal(t, codes.Unavailable, status.Code(err), name)
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "ann", "x-user", "bob", "key-bin", "\x00\xff"))
	assert.Equal(t, "grpc:ann:%00%FF:", keyOf(ctx, t,
		grpclimit.WithKey(grpclimit.Metadata("X-User"), grpclimit.Metadata("key-bin"), grpclimit.Metadata("none"))))
}

func TestKeyFunctionThatFails(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		code codes.Code
	}{
		"by a status":       {t.Context(), status.Error(codes.Unauthenticated, "who are you?"), codes.Unauthenticated},
		"for a caller gone": {gone, context.Canceled, codes.Canceled},
	} {
		var heard middlewaretest.Errors
		err := interceptors["unary server"](middlewaretest.Grants(), grpclimit.WithFailure(limit.FailOpen()),
			hearing(&heard), grpclimit.WithKey(text("", c.err)))(c.ctx, func() error { return nil })
		assert.Equal(t, c.code, status.Code(err), name)
		heard.Check(t)
	}
}
