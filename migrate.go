package rratelimiter

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
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
	if c.rules.layout < codec.LayoutD1 {
		return 0, l.fail(op, fmt.Errorf("%w: Redisson %s, which WithRedissonVersion names, can't read the newest layout: upgrade it first, and name 3.17.0 or newer",
			ErrUnsupported, c.rules.version))
	}
	if err := ctx.Err(); err != nil {
		return 0, l.fail(op, err)
	}
	q, err := c.enter(l)
	if err != nil {
		return 0, l.fail(op, err)
	}
	defer c.leave(q)
	// Members may change places while they are rewritten, so that only a pass that
	// found nothing shows that nothing is left.
	for range maxPasses {
		// While a batch is in doubt, its members must stay as they were written.
		var written int64
		var failed error
		pass := context.WithoutCancel(ctx)
		err := q.exclusive(ctx, func() { written, failed = l.migrate(pass) })
		if err == nil {
			members, err = members+written, failed
		}
		if err != nil || written == 0 {
			return members, l.fail(op, err)
		}
	}
	return members, nil
}

// migrate rewrites all members once.
func (l *RateLimiter) migrate(ctx context.Context) (int64, error) {
	reply, err := untilDone(func(token string) (any, error) {
		args := func(all []any, _ time.Duration) []any {
			member := l.client.newMember(nil, codec.LayoutD2, migratePage)
			member[1] ^= 0xff // these are not this Client's, and don't bear its mark
			return append(all, member, token)
		}
		return script.Call{Script: lua.Migrate, Keys: l.keys, Repeat: true}.Run(ctx, l.client.sender, args)
	})
	if err != nil {
		return 0, l.client.explain(ctx, l.keys.Names(), err)
	}
	return integer(reply)
}
