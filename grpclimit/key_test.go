package grpclimit_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

// keyOf returns the key for which a call takes its permits.
func keyOf(ctx context.Context, t require.TestingT, opts ...grpclimit.Option) string {
	limiter := &budget{limit: 1}
	require.Equal(t, errHandled, call(ctx, grpclimit.UnaryServerInterceptor(limiter, opts...)))
	return limiter.asked()[0]
}

func text(s string) grpclimit.KeyFunc {
	return func(context.Context, grpclimit.Call) (string, error) { return s, nil }
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
	var heard failures
	err := call(t.Context(), grpclimit.UnaryServerInterceptor(&budget{limit: 1}, heard.option()))
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Len(t, heard, 1)
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-user", "ann", "x-user", "bob", "key-bin", "\x00\xff"))
	// What a handler sends on is not what it received.
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs("x-user", "eve"))
	assert.Equal(t, "grpc:ann:%00%FF:", keyOf(ctx, t,
		grpclimit.WithKey(grpclimit.Metadata("X-User"), grpclimit.Metadata("key-bin"), grpclimit.Metadata("none"))))
}

func TestWithPrefix(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "limit:ann:/api/orders", keyOf(t.Context(), t,
		grpclimit.WithPrefix("limit:"), grpclimit.WithKey(text("ann"), text("/api/orders"))))
	assert.Equal(t, "{orders}:ann", keyOf(t.Context(), t,
		grpclimit.WithPrefix("{orders}:"), grpclimit.WithKey(text("ann"))), "the application may choose the slot")
}

func TestKeyFunctionThatFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err   error
		code  codes.Code
		heard int
	}{
		{status.Error(codes.Unauthenticated, "who are you?"), codes.Unauthenticated, 0},
		{errors.New("secret"), codes.Unavailable, 1},
	} {
		var heard failures
		err := call(t.Context(), grpclimit.UnaryServerInterceptor(&budget{limit: 1}, heard.option(),
			grpclimit.WithFailure(limit.FailOpen()), grpclimit.WithKey(func(context.Context, grpclimit.Call) (string, error) { return "", test.err })))
		assert.Equal(t, test.code, status.Code(err))
		assert.NotContains(t, err.Error(), "secret")
		require.Len(t, heard, test.heard)
		if test.heard > 0 {
			assert.ErrorIs(t, heard[0], test.err)
		}
	}
}

func TestKeyFunctionOfACallerThatWentAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var heard failures
	err := call(ctx, grpclimit.UnaryServerInterceptor(&budget{limit: 1}, heard.option(),
		grpclimit.WithKey(func(ctx context.Context, _ grpclimit.Call) (string, error) { return "", ctx.Err() })))
	assert.Equal(t, codes.Canceled, status.Code(err))
	assert.Empty(t, heard)
}

// A key tells the parts it was made of, so different parts have different keys.
func TestKeyTellsItsParts(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^p:([^%:{}\x00-\x20]|%[0-9A-F]{2}|%sha256-[0-9a-f]{64}|:)*$`)
	part := rapid.OneOf(
		rapid.String(),
		rapid.StringOfN(rapid.SampledFrom([]rune("a:%{}/-2")), 0, 6, -1),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.IntRange(100, 200), func(n int) string { return strings.Repeat("x", n) }),
		rapid.Map(rapid.IntRange(20, 30), func(n int) string { return strings.Repeat("é:", n) }),
	)
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOfN(part, 1, 3).Draw(rt, "parts")
		funcs := make([]grpclimit.KeyFunc, len(parts))
		for i, p := range parts {
			funcs[i] = text(p)
		}
		key := keyOf(t.Context(), rt, grpclimit.WithPrefix("p:"), grpclimit.WithKey(funcs...))
		require.Regexp(rt, form, key)
		written := strings.Split(strings.TrimPrefix(key, "p:"), ":")
		require.Len(rt, written, len(parts))
		for i, w := range written {
			assert.LessOrEqual(rt, len(w), 128)
			if _, sum, long := strings.Cut(w, "%sha256-"); long {
				assert.Equal(rt, fmt.Sprintf("%x", sha256.Sum256([]byte(parts[i]))), sum)
				continue
			}
			read, err := url.PathUnescape(w)
			require.NoError(rt, err)
			assert.Equal(rt, parts[i], read)
		}
	})
}

func TestLongPartIsReadableAtItsHead(t *testing.T) {
	t.Parallel()
	user := "user-" + strings.Repeat("ü", 100)
	key := keyOf(t.Context(), t, grpclimit.WithKey(text(user)))
	assert.True(t, strings.HasPrefix(key, "grpc:user-"+strings.Repeat("ü", 13)+"%sha256-"), key)
	assert.Equal(t, "grpc:"+strings.Repeat("x", 128), keyOf(t.Context(), t, grpclimit.WithKey(text(strings.Repeat("x", 128)))))
}
