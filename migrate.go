package rratelimiter

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter/codec"
)

const (
	// migratePage is how many members one script call rewrites at most.
	migratePage = 256

	// maxPasses ends Migrate where an old Redisson goes on writing.
	maxPasses = 100
)

// Migrate rewrites what older Redissons have written of the limiter in the
// layout of 3.21 and newer, and returns how many members it wrote: 0 where
// nothing was left to do. No permit is lost and none is free early; Redissons
// and this Client can use the limiter meanwhile. It is for the time after an
// upgrade, when neither a Redisson before 3.17 nor a Client that was told of one
// shares the limiter any more: without it, the newer Redissons fail on older
// members, for good in most releases.
//
// Of a PerClient limiter it rewrites this Client's own permits; rrl migrate does
// so for all clients. Migrate may be repeated at will, also after an error. It is
// ErrUnsupported where WithRedissonVersion names a release that can't read what
// it would write.
func (c *Client) Migrate(ctx context.Context, name string) (members int64, err error) {
	l := c.RateLimiter(name)
	const op = "Migrate"
	if l.err != nil {
		return 0, l.fail(op, l.err)
	}
	if c.rules.Layout < codec.LayoutD1 {
		return 0, l.fail(op, fmt.Errorf("%w: Redisson %s, which WithRedissonVersion names, can't read the newest layout: upgrade it first, and name 3.17.0 or newer",
			ErrUnsupported, c.rules.Version))
	}
	if err := ctx.Err(); err != nil {
		return 0, l.fail(op, err)
	}
	// Members may change places while they are rewritten, so that only a pass that
	// found nothing shows that nothing is left.
	for range maxPasses {
		written, err := c.engine.Migrate(ctx, &l.facts, migratePage)
		members += written
		if err != nil || written == 0 {
			return members, l.fail(op, err)
		}
	}
	return members, nil
}
