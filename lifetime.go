package rratelimiter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Expire deletes the limiter, configuration included, after ttl, which is at least a millisecond and
// rounded up to whole ones. It reports whether there was one. What a Client keeps of a PerClient limiter
// expires an interval, or the KeepAlive time, after its last use, as without Expire.
//
// A limiter with a KeepAlive time, such as one of [Client.Keyed], goes back to that at its next request, as with
// Redisson: one in use does not expire. To end such a limiter's rate, set it with KeepAlive 0 before Expire.
func (l *RateLimiter) Expire(ctx context.Context, ttl time.Duration) (bool, error) {
	err := invalid(ttl < time.Millisecond, "time to live %v is below 1ms", ttl)
	ms := min((ttl-1)/time.Millisecond+1, math.MaxInt64/time.Millisecond)
	return l.change(ctx, "Expire", err, lua.Expire, script.Constant{"PEXPIRE", int64(ms), l.client.rules.Flags()})
}

// ExpireAt is Expire at a moment, by the server's clock. A moment that has passed deletes the limiter at
// once. For a moment more than 292 years away, which no time.Duration can hold, it returns ErrInvalidConfig.
func (l *RateLimiter) ExpireAt(ctx context.Context, at time.Time) (bool, error) {
	err := cmp.Or(
		invalid(at.Before(time.UnixMilli(1)), "moment %v is before 1970", at),
		invalid(time.Until(at) == math.MaxInt64, "moment %v is more than 292 years away; ClearExpire lets a limiter live for ever", at),
	)
	return l.change(ctx, "ExpireAt", err, lua.Expire, script.Constant{"PEXPIREAT", at.UnixMilli(), l.client.rules.Flags()})
}

// ClearExpire makes the limiter live forever, and reports whether it had a time to live. A KeepAlive time
// comes back at the next request. What a Client keeps of a PerClient limiter still expires when unused.
func (l *RateLimiter) ClearExpire(ctx context.Context) (bool, error) {
	return l.change(ctx, "ClearExpire", nil, lua.Expire, script.Constant{"PERSIST", 0, l.client.rules.Flags()})
}

// TTL reports whether the limiter expires, and in what time; ttl is 0 if it does not expire. The
// error is ErrNotInitialized if the limiter does not exist.
func (l *RateLimiter) TTL(ctx context.Context) (ttl time.Duration, expires bool, err error) {
	ms, err := l.client.engine.TTL(ctx, &l.facts)
	if ms == noLimiter && err == nil {
		err = fmt.Errorf("%w; call TrySetRate first", ErrNotInitialized)
	}
	if err != nil || ms == noEnd {
		return 0, false, l.fail("TTL", err)
	}
	return script.Millis(ms), true, nil
}

// The answers of PTTL that are not milliseconds.
const (
	noEnd     = -1
	noLimiter = -2
)

// Exists reports whether the limiter has a rate.
func (l *RateLimiter) Exists(ctx context.Context) (bool, error) {
	ms, err := l.client.engine.TTL(ctx, &l.facts)
	return err == nil && ms != noLimiter, l.fail("Exists", err)
}

// Delete removes the limiter, configuration included, whatever its keys hold, and reports whether
// it removed anything. Callers of this Client that wait for its permits get ErrNotInitialized. What
// other clients keep of a PerClient limiter stays until it expires.
func (l *RateLimiter) Delete(ctx context.Context) (bool, error) {
	return l.change(ctx, "Delete", nil, lua.Delete, script.Constant{})
}

// Rename moves the limiter, permits in use included, to newName, and replaces whatever was there. The handle
// keeps its name. On a cluster or a Ring both names must carry the same hash tag, as in "{shop}orders" and
// "{shop}sales", or Rename returns ErrUnsupported. What other clients keep of a PerClient limiter does not move.
// A lease that is taken while Rename is under way is in use for an interval.
func (l *RateLimiter) Rename(ctx context.Context, newName string) error {
	mapped := l.client.mapper(newName)
	target := redisson.KeysOf(mapped, l.client.id)
	isOwn := func(key string) bool { return slices.Contains(l.facts.Keys().Names(), key) }
	var err error
	switch {
	case newName == "" || mapped == "":
		err = fmt.Errorf("%w: the new name is empty", ErrInvalidConfig)
	case l.facts.Err != nil:
		err = l.facts.Err
	case target.Config == l.facts.Config:
		_, err = l.client.engine.Rate(ctx, &l.facts)
	case slices.ContainsFunc(target.List(), isOwn):
		err = fmt.Errorf("%w: %q is the name of one of the limiter's own keys", ErrInvalidConfig, newName)
	case script.IsRing(l.client.rdb) && script.HashTag(target.Config) != script.HashTag(l.facts.Config):
		err = fmt.Errorf("%w: on a Ring both names must carry the same hash tag, as in \"{shop}orders\"", ErrUnsupported)
	default:
		err = l.client.engine.Rename(ctx, &l.facts, target)
	}
	return l.fail("Rename", err)
}

const (
	// migratePage is how many members one script call rewrites at most.
	migratePage = 256

	// maxPasses ends Migrate if an old Redisson goes on writing.
	maxPasses = 100
)

// Migrate rewrites the permits that older Redissons have written in the layout of 3.21 and newer, and returns how
// many members it wrote: 0 if nothing was left to do. No permit is lost and none is free early; Redissons and this
// Client can use the limiter meanwhile. Use it after an upgrade, when neither a Redisson before 3.17 nor a Client
// that names one by WithRedissonVersion shares the limiter any more: without it, newer Redissons fail on older
// members, most releases forever. A Client that still names 3.17 to 3.20.1 and repeats a call whose answer was
// lost may take its permits again, if Migrate has rewritten them in between; they come back after the interval.
//
// Of a PerClient limiter it rewrites this Client's own permits; rrl migrate does so for all clients.
// Migrate may be repeated, also after an error. It returns ErrUnsupported if WithRedissonVersion
// names a release that can't read what it would write.
func (l *RateLimiter) Migrate(ctx context.Context) (members int64, err error) {
	switch rules := l.client.rules; {
	case l.facts.Err != nil:
		err = l.facts.Err
	case rules.Layout < codec.LayoutD1:
		err = fmt.Errorf("%w: Redisson %s, which WithRedissonVersion names, can't read the newest layout: upgrade it first, and name 3.17.0 or newer",
			ErrUnsupported, rules.Version)
	default:
		err = ctx.Err()
	}
	// Members may change places while they are rewritten, so only a pass that found nothing
	// shows that nothing is left.
	for pass, written := 0, int64(1); err == nil && written > 0 && pass < maxPasses; pass++ {
		written, err = l.client.engine.Migrate(ctx, &l.facts, migratePage)
		members += written
	}
	return members, l.fail("Migrate", err)
}
