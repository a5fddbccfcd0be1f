package redisson_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// pairUses are the calls by which a Client uses its pair of a limiter or changes
// how long that lives.
var pairUses = map[string]func(context.Context, *rratelimiter.Client, *rratelimiter.RateLimiter) error{
	"TryAcquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.TryAcquire(ctx, 1, 0))
	},
	"a refusal": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.TryAcquire(ctx, 10, 0))
	},
	"Take": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.Take(ctx, 1))
	},
	"TryAcquireAll": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(c.TryAcquireAll(ctx, 1, 0, l, c.RateLimiter(limitertest.Besides(l.Name()), rratelimiter.WithDefault(limitertest.Every(9, time.Second)))))
	},
	"AvailablePermits": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.AvailablePermits(ctx))
	},
	"Release": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.Release(ctx, 1)
	},
	"Migrate": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(c.Migrate(ctx, l.Name()))
	},
	"Expire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.Expire(ctx, time.Hour))
	},
	"ExpireAt": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.ExpireAt(ctx, time.Now().Add(time.Hour)))
	},
	"ClearExpire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return limitertest.Second(l.ClearExpire(ctx))
	},
	"KeepState": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		cfg, err := l.Config(ctx)
		if err != nil {
			return err
		}
		cfg.Rate++
		return l.SetRate(ctx, cfg, rratelimiter.KeepState())
	},
	"Rename": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.Rename(ctx, "other")
	},
}

// A Client's own pair goes when it has not been used for an interval, or for the
// KeepAlive time, whatever was done to it last and whatever the limiter's own
// time to live is.
func TestAClientsPairGoesAfterItsLastUse(t *testing.T) {
	t.Parallel()
	for name, use := range pairUses {
		for _, keepAlive := range []time.Duration{0, 5 * time.Second} {
			for what, before := range map[string]func(*testing.T, *redis.Client, *rratelimiter.RateLimiter, redisson.Keys){
				"": func(*testing.T, *redis.Client, *rratelimiter.RateLimiter, redisson.Keys) {},
				"ClearExpire": func(t *testing.T, _ *redis.Client, l *rratelimiter.RateLimiter, _ redisson.Keys) {
					require.NoError(t, limitertest.Second(l.ClearExpire(t.Context())))
				},
				"Expire": func(t *testing.T, _ *redis.Client, l *rratelimiter.RateLimiter, _ redisson.Keys) {
					require.NoError(t, limitertest.Second(l.Expire(t.Context(), time.Hour)))
				},
				"lost value": func(t *testing.T, rdb *redis.Client, _ *rratelimiter.RateLimiter, k redisson.Keys) {
					require.NoError(t, rdb.Del(t.Context(), k.ClientValue).Err())
				},
			} {
				t.Run(what+" then "+name, func(t *testing.T) {
					t.Parallel()
					redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
						client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
						l := client.RateLimiter("name")
						cfg := limitertest.PerClient(10, time.Second)
						cfg.KeepAlive = keepAlive
						limitertest.MustTrySetRate(t, l, cfg)
						limitertest.MustAcquire(t, l, 3)
						before(t, rdb, l, redisson.KeysOf("name", "id"))
						require.NoError(t, use(t.Context(), client, l))
						time.Sleep(max(cfg.Interval, keepAlive) + time.Millisecond) // a server keeps a key to the end of its last
						for _, name := range []string{"name", "other"} {
							k := redisson.KeysOf(name, "id")
							assert.Zero(t, rdb.Exists(t.Context(), k.ClientValue, k.ClientPermits).Val(), "%v", limitertest.TTLs(t, rdb, name))
						}
					})
				})
			}
		}
	}
}

// When the server's clock goes back, all ends move away as far. Whatever the next
// call is sets those of a Client's own pair right, so that nothing stays behind if
// it was the last one.
func TestAClientsPairGoesAfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.7.0", windowed} {
		for name, use := range pairUses {
			if version == windowed && slices.Contains([]string{"TryAcquireAll", "Release", "KeepState"}, name) {
				continue // which need a record of each grant
			}
			goesAfterAStepBack(t, version, name, use)
		}
		goesAfterAStepBack(t, version, "giving back", nil)
	}
}

// goesAfterAStepBack has a Client use its pair after the clock has gone back; nil
// stands for giving back what it took before.
func goesAfterAStepBack(t *testing.T, version, name string, use func(context.Context, *rratelimiter.Client, *rratelimiter.RateLimiter) error) {
	t.Helper()
	if name == "Rename" || name == "Migrate" {
		return // leave the ends as they are
	}
	for _, keepAlive := range []time.Duration{0, 5 * time.Second} {
		t.Run(version+" "+name+" "+keepAlive.String(), func(t *testing.T) {
			t.Parallel()
			redistest.Stepping(t, func(t *testing.T, rdb *redis.Client, step func(time.Duration)) {
				client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"), rratelimiter.WithRedissonVersion(version))
				cfg := limitertest.PerClient(10, time.Second)
				cfg.KeepAlive = keepAlive
				l := client.RateLimiter("name")
				limitertest.MustTrySetRate(t, l, cfg)
				limitertest.MustAcquire(t, l, 3)
				_, giveBack, err := client.Keyed("", cfg).TakeReturnable(t.Context(), "name", 1)
				require.NoError(t, err)
				step(-time.Hour)
				if use == nil {
					require.NoError(t, giveBack(t.Context()))
				} else {
					require.NoError(t, use(t.Context(), client, l))
				}
				for _, key := range limitertest.LimiterKeys(t, rdb, "name") {
					if key != "name" {
						assert.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), max(cfg.Interval, keepAlive), key)
						assert.Positive(t, rdb.PTTL(t.Context(), key).Val(), key)
					}
				}
			})
		})
	}
}

// The permits in use count although an earlier end of the limiter would have
// taken the pair away.
func TestAClientsPairOutlivesAnEndThatWasTakenBack(t *testing.T) {
	t.Parallel()
	for name, takeBack := range map[string]func(context.Context, *rratelimiter.RateLimiter) (bool, error){
		"ClearExpire": func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) { return l.ClearExpire(ctx) },
		"Expire":      func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) { return l.Expire(ctx, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewLimiter(t, rdb, limitertest.PerClient(10, time.Minute))
				limitertest.MustAcquire(t, l, 10)
				require.NoError(t, limitertest.Second(l.Expire(t.Context(), time.Second)))
				changed, err := takeBack(t.Context(), l)
				require.NoError(t, err)
				assert.True(t, changed)
				time.Sleep(59 * time.Second)
				limitertest.MustRefuse(t, l, 1)
			})
		})
	}
}

// The time to live that a Client's own pair always has is none of the limiter's.
func TestClearExpireTellsOfTheLimitersTimeToLive(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
			l := limitertest.NewLimiter(t, rdb, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Minute})
			limitertest.MustAcquire(t, l, 1)
			for _, expires := range []bool{false, true, false} {
				if expires {
					require.NoError(t, limitertest.Second(l.Expire(t.Context(), time.Hour)))
				}
				had, err := l.ClearExpire(t.Context())
				require.NoError(t, err)
				assert.Equal(t, expires, had)
			}
		})
	})
}

// What a Client keeps of a limiter that others have made a shared one is in
// nobody's way, and goes as it would have.
func TestAPairThatIsNotInUseGoesAsItWouldHave(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]func(context.Context, *rratelimiter.RateLimiter) (bool, error){
		"ClearExpire": func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) { return l.ClearExpire(ctx) },
		"Expire":      func(ctx context.Context, l *rratelimiter.RateLimiter) (bool, error) { return l.Expire(ctx, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l, other := limitertest.NewClient(t, rdb).RateLimiter("name"), limitertest.NewClient(t, rdb).RateLimiter("name")
				limitertest.MustTrySetRate(t, l, limitertest.PerClient(10, time.Second))
				limitertest.MustAcquire(t, l, 1)
				require.NoError(t, other.SetRate(t.Context(), limitertest.Every(10, time.Second)))
				require.NoError(t, limitertest.Second(op(t.Context(), l)))
				time.Sleep(time.Second + time.Millisecond) // a server keeps a key to the end of its last
				assert.Equal(t, []string{"name"}, limitertest.LimiterKeys(t, rdb, "name"))
			})
		})
	}
}

// With a longer interval, what other clients have in use counts longer. Their
// pairs live on by it from their next call on.
func TestALongerIntervalReachesAClientsPairByItsNextCall(t *testing.T) {
	t.Parallel()
	for name, use := range pairUses {
		if name == "Migrate" || name == "Release" || name == "KeepState" || name == "Rename" {
			continue // the first is for the pairs of others too; the rest change what is in use, or where
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				client := limitertest.NewClient(t, rdb)
				l, other := client.RateLimiter("name"), limitertest.NewClient(t, rdb).RateLimiter("name")
				limitertest.MustTrySetRate(t, l, limitertest.PerClient(10, time.Minute))
				limitertest.MustAcquire(t, l, 10)
				require.NoError(t, other.SetRate(t.Context(), limitertest.PerClient(10, time.Hour), rratelimiter.KeepState()))
				time.Sleep(50 * time.Second)
				require.NoError(t, use(t.Context(), client, l))
				time.Sleep(58 * time.Minute)
				limitertest.MustRefuse(t, l, 1)
			})
		})
	}
}

// beyondCounting are ends of a configuration so far away that Redis can't count
// there from now: PEXPIRE refuses them, once it is told how far it is.
func beyondCounting(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	require.NoError(t, rdb.Do(t.Context(), "PEXPIREAT", key, int64(math.MaxInt64)).Err())
}

// A Redisson, or a person, may have given the configuration any end.
func TestNoEndOfTheConfigurationFailsACallHalfway(t *testing.T) {
	t.Parallel()
	for name, use := range pairUses {
		if name == "Rename" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
				redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
					client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("id"))
					l := client.RateLimiter(redistest.Name(t))
					limitertest.MustTrySetRate(t, l, rratelimiter.Config{Type: kind, Rate: 100, Interval: time.Hour})
					limitertest.MustAcquire(t, l, 5)
					beyondCounting(t, rdb, l.Name())
					for range 3 {
						require.NoError(t, use(t.Context(), client, l))
						cfg, err := l.Config(t.Context())
						require.NoError(t, err)
						k := redisson.KeysOf(l.Name(), "id")
						if kind == rratelimiter.PerClient {
							k.Value, k.Permits = k.ClientValue, k.ClientPermits
						}
						value, _ := limitertest.StoredValue(t, rdb, k.Value)
						assert.Equal(t, cfg.Rate, value+limitertest.InUse(t, rdb, k.Permits))
					}
					_, _, err := l.TTL(t.Context())
					require.NoError(t, err)
				})
			})
		})
	}
}

// Calls of several limiters go together, in one script call.
func TestNoEndOfTheConfigurationFailsAJointCallHalfway(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		client := limitertest.NewClient(t, rdb)
		done := make(chan bool)
		var all []*rratelimiter.RateLimiter
		for range 40 {
			l := client.RateLimiter(redistest.Name(t))
			limitertest.MustTrySetRate(t, l, limitertest.Every(100, time.Hour))
			limitertest.MustAcquire(t, l, 1)
			beyondCounting(t, rdb, l.Name())
			all = append(all, l)
		}
		for range 20 {
			for _, l := range all {
				go func() {
					granted, err := l.TryAcquire(t.Context(), 1, 0)
					done <- granted && err == nil
				}()
			}
			for range all {
				assert.True(t, <-done)
			}
		}
		for _, l := range all {
			assert.EqualValues(t, 79, limitertest.Available(t, l))
		}
	})
}

// Others may have written intervals and keep-alive times as long as a number can
// be told exactly.
func TestNoIntervalOrKeepAliveTimeFailsACallHalfway(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.7.0", windowed} {
		for _, keepAlive := range []int64{0, 1<<53 - 1} {
			limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
				redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
					client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
					l := client.RateLimiter(redistest.Name(t))
					require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", 10, "interval", int64(1<<53-1), "type", int(kind), "keepAliveTime", keepAlive).Err())
					assert.Equal(t, 10, limitertest.Grants(t, l, 11))
					assert.Zero(t, limitertest.Available(t, l))
					for _, err := range []error{limitertest.Second(l.Expire(t.Context(), time.Hour)), limitertest.Second(l.ClearExpire(t.Context()))} {
						require.NoError(t, err)
					}
					assert.Zero(t, limitertest.Available(t, l))
					limitertest.MustRefuse(t, l, 1)
				})
			})
		}
	}
}
