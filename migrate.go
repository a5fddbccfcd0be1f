package rratelimiter

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Migrate rewrites what older Redissons have written of the limiter in the
// layout of 3.21 and newer, and returns how many members it wrote: 0 where
// nothing was left to do. No permit is lost and none is free early; the limiter
// can be in use meanwhile. It is for the time after an upgrade, when no Redisson
// before 3.17 shares the limiter any more: without it, the newer ones fail on
// older members, for good in most releases.
//
// Of a PerClient limiter it rewrites this Client's own permits; rrl migrate does
// so for all clients. Migrate may be repeated at will. It is ErrUnsupported
// where WithRedissonVersion names a release that can't read what it would write.
func (c *Client) Migrate(ctx context.Context, name string) (members int64, err error) {
	l := c.RateLimiter(name)
	const op = "Migrate"
	if l.err == nil && c.rules.layout < codec.LayoutD1 {
		return 0, l.fail(op, fmt.Errorf("%w: Redisson %s, which WithRedissonVersion names, can't read the newest layout: upgrade it first, and name 3.17.0 or newer",
			ErrUnsupported, c.rules.version))
	}
	// Members of one time may change places while they are rewritten, so that
	// only a pass that found nothing shows that nothing is left.
	for range maxPasses {
		written, err := l.migrate(ctx)
		members += written
		if err != nil || written == 0 {
			return members, l.fail(op, err)
		}
	}
	return members, nil
}

// maxPasses ends Migrate where an old Redisson goes on writing.
const maxPasses = 100

func (l *RateLimiter) migrate(ctx context.Context) (int64, error) {
	reply, err := untilDone(func(token string) (any, error) {
		return l.call(ctx, func(ctx context.Context) (any, error) {
			return script.Repeat(ctx, l.client.rdb, lua.Migrate, l.keys, func(time.Duration) []any {
				return []any{l.client.newMember(codec.LayoutD2, migratePage), token}
			})
		}, nil)
	})
	if err != nil {
		return 0, err
	}
	return integer(reply)
}

// migratePage is how many members one script call rewrites at most.
const migratePage = 256
