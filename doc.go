// Package rratelimiter is Redisson's RRateLimiter for Go: a rate limiter whose
// state is in Redis, shared live with Java programs that use Redisson 3.12.0 or
// newer. It works just as well without Java. If any program that shares a limiter
// uses Redisson before 3.35.0, pass the oldest version in use to
// [WithRedissonVersion].
//
//	client := rratelimiter.New(rdb)
//	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
//	ok, err := limiter.TryAcquire(ctx, 1, 200*time.Millisecond)
//
// # Model
//
// A limiter grants at most Rate permits in any span of its Interval: it is a
// sliding log. A permit that was granted comes back one interval later, or when it
// is released. The time is the Redis server's; clients' clocks do not matter. The
// rate is in Redis too, and any program may change it while others take permits.
//
// Callers of one [Client] that want permits at the same time share round trips,
// and those of the same limiter a script call: while requests are under way others
// gather, and the next flight carries all of them. Callers that were refused and
// wait stand in line, first come first served.
//
// # Guarantees
//
// These calls never grant more than the rate, unless [WithFailure] or [WithShadow]
// says so, and lose no permit: under concurrency, after lost answers, when callers
// go away. A request whose answer was lost is repeated and recognised, so that it
// takes its permits once. No client can prevent what Redis itself loses, such as
// when a replica takes over that lags; docs/servers.md says how much that can be.
//
// No question to Redis goes unanswered for longer than [WithCallTimeout], and a
// call whose ctx ends returns at once, except where its doc says otherwise.
//
// # Errors
//
// A refusal is no error: false, or a Decision that is not Granted, is always
// something that Redis said, or the local limiter of [WithFailure]. Where Redis does
// not decide in time the error is [ErrUnavailable]; where permits may have been taken,
// [ErrUnknownOutcome] too. Test with [errors.Is].
//
// # Where to go on
//
// [Client.Keyed] is a limiter for each key, such as a user or an address; packages
// httplimit and grpclimit are middleware over it. [Client.TryAcquireAll] takes from
// several limiters or from none. [RateLimiter.Take] answers with figures that a
// client may see. [WithLease] and [WithRefusalCache] save round
// trips. Packages fixedwindow, slidinglog and tokenbucket keep the limiters that
// many services run without Redisson. docs/how-it-works.md explains
// each rule.
package rratelimiter
