// Package rratelimiter is Redisson's RRateLimiter for Go: a rate limiter whose
// state is in Redis, shared live with Java programs that use Redisson 3.35 and
// newer, and a good one where there is no Java at all.
//
// A limiter grants at most Rate permits in any span of its Interval. A permit
// that was granted comes back one interval later, or when it is released. The
// time is the Redis server's; clients' clocks do not matter.
//
//	client := rratelimiter.New(rdb)
//	limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerSecond(100)))
//	ok, err := limiter.TryAcquire(ctx, 1, 200*time.Millisecond)
//
// Callers of one [Client] that want permits at the same time share round trips,
// and those of the same limiter a script call: where enough is under way
// requests gather, and the next flight carries all of them. Those that were
// refused and wait stand in line, first come first served.
//
// A request whose answer was lost on the way is repeated and recognised, so
// that it takes its permits once. Where Redis does not decide in time the error
// is [ErrUnavailable]; a refusal is always something that Redis said.
package rratelimiter
