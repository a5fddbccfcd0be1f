// Package rratelimiter is Redisson's RRateLimiter for Go: a rate limiter whose state is in Redis, shared live
// with Java programs that use Redisson 3.12.0 or newer. It works just as well without Java. If any program
// that shares a limiter uses Redisson before 3.35.0, pass the oldest version in use to [WithRedissonVersion].
//
//	client := rratelimiter.New(rdb)
//	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
//	ok, err := limiter.TryAcquire(ctx, 1, 200*time.Millisecond)
//
// # Model
//
// A limiter grants at most Rate permits in any span of its Interval: it is a sliding log. A permit that was
// granted comes back one interval later, or when it is released. The time is the Redis server's; clients'
// clocks do not matter. The rate is in Redis too, and any program may change it while others take permits.
//
// Callers of one [Client] that ask at the same time share round trips, and callers of one
// limiter share a script call: while requests are under way others gather, and the next flight
// carries them all. Callers that were refused and wait are served first come first served.
// They ask again at once when this Client releases permits of the limiter or changes it.
//
// # Guarantees
//
// Calls never grant more than the rate, unless [WithFailure] or [WithShadow] lets more through, and they
// lose no permit: not with concurrent callers, not after lost answers, and not if callers go away. A
// request whose answer was lost is repeated and recognised, so it takes its permits once. No client can
// prevent losses in Redis itself, for example if a replica that lags takes over: see docs/servers.md.
//
// A call to Redis waits for its answer no longer than [WithCallTimeout], and a call
// whose ctx ends returns at once, except where its doc says otherwise.
//
// # Errors
//
// A refusal is not an error: false, or a Decision that is not Granted, always comes from Redis or from the
// local limiter of [WithFailure]. If Redis does not decide in time, the error is [ErrUnavailable]. If
// permits may have been taken, it is [ErrUnknownOutcome] too. A change, such as SetRate, Release or Delete,
// is not repeated if its answer is lost, and returns ErrUnknownOutcome. Test errors with [errors.Is].
//
// # Further reading
//
// [Client.Keyed] is a limiter for each key, such as a user or an address; packages httplimit and
// grpclimit are middleware over it. [Client.TryAcquireAll] takes from several limiters or from
// none. [RateLimiter.Take] returns figures to show to clients. [WithLease] and [WithRefusalCache]
// save round trips. Packages fixedwindow, slidinglog and tokenbucket implement limiters that many
// services run without Redisson. docs/how-it-works.md explains each rule.
package rratelimiter
