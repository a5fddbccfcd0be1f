package grpclimit_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
