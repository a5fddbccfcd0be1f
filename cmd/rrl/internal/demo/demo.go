// Package demo shows limiters at work in a terminal: [Clients] that share a
// RateLimiter, in real time, and [Scenarios] of the other limiters, on a server
// whose clock it moves.
package demo

import (
	"context"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

// embedded returns a client of a server inside this process, which needs no
// port, and the server. Each of the demo's clients has up to two calls under way
// at once.
func embedded(clients int) (*redis.Client, *miniredis.Miniredis) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{
		Addr: "memory",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := m.Dial()
			if err != nil {
				return nil, err
			}
			// Without room for it, an answer would have to wait for the rest of a
			// long request, and that for the answer.
			return netpipe.Buffer(conn), nil
		},
		ReadTimeout:              patience,
		PoolSize:                 10 + 2*clients,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return rdb, m
}

// newClient returns a Client of a server inside this process.
func newClient(rdb *redis.Client, opts ...rratelimiter.Option) *rratelimiter.Client {
	return rratelimiter.New(rdb, append(opts, rratelimiter.WithCallTimeout(patience))...)
}

// grant is permits that were granted at a moment, counted from any one before.
type grant struct {
	at      time.Duration
	permits int64
}

// fullest returns how many permits the fullest span of the window's length was
// granted, and the first and last moment of these. The grants are in order.
func fullest(grants []grant, window time.Duration) (highest int64, from, to time.Duration) {
	var sum int64
	first := 0
	for _, last := range grants {
		sum += last.permits
		// A permit comes back one window after it was granted.
		for ; last.at-grants[first].at >= window; first++ {
			sum -= grants[first].permits
		}
		if sum > highest {
			highest, from, to = sum, grants[first].at, last.at
		}
	}
	return highest, from, to
}
