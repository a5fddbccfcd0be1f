package limittest

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// ConnectExample returns a client of a Redis in this process, whose clock stands at noon
// so that an example prints the same each time, and what stops it.
func ConnectExample() (rdb redistest.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.SetTime(time.Date(2026, time.November, 21, 12, 0, 0, 0, time.UTC))
	var stopped atomic.Bool
	rdb = redistest.NewClient(server.Addr(), &redistest.Options{
		ReadTimeout: time.Minute, DialerRetries: 1, MaxRetries: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if stopped.Load() { // another server may have its port by now
				return nil, syscall.ECONNREFUSED
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	return rdb, func() {
		stopped.Store(true)
		server.Close()
	}
}

// Unreachable returns a client that fails the test once it dials.
func Unreachable(t testing.TB) redistest.Client {
	t.Helper()
	rdb := redistest.NewClient("", &redistest.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("Redis was asked")
		return nil, net.ErrClosed
	}, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
