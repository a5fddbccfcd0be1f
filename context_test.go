package rratelimiter_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A heldScene is a scene whose Client reaches the server through a proxy.
type heldScene struct {
	*scene

	proxy *redistest.Proxy
	mini  *redis.Client // past the proxy
}

// newHeldScene must be called in a bubble.
func newHeldScene(t *testing.T, cfg rratelimiter.Config) *heldScene {
	t.Helper()
	// With so few connections one flight is under way at a time, so that a test can
	// say who goes together.
	return newHeldSceneOf(t, cfg, &redis.Options{ReadTimeout: time.Minute, PoolSize: 3})
}

func newHeldSceneOf(t *testing.T, cfg rratelimiter.Config, opt *redis.Options) *heldScene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	s := &heldScene{proxy: redistest.MiniProxy(t, m), mini: rdb}
	through := s.proxy.Client(t, opt)
	name := redistest.Name(t)
	s.scene = &scene{rdb: through, other: newClient(t, rdb).RateLimiter(name)}
	s.client = newClient(t, through)
	s.RateLimiter = s.client.RateLimiter(name)
	mustTrySetRate(t, s.other, cfg)
	for _, script := range lua.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), script.Source).Err())
	}
	s.sent = countCommands(through)
	s.start = time.Now()
	return s
}

// hold has the n-th call of the script from now on wait for its answer until
// the returned function is called, or the test ends.
func (s *heldScene) hold(t *testing.T, script *lua.Script, n int) (letGo func()) {
	t.Helper()
	held := make(chan struct{})
	letGo = sync.OnceFunc(func() {
		close(held)
		synctest.Wait()
	})
	t.Cleanup(letGo)
	s.proxy.OnCommand(redistest.Nth(n, script.SHA, redistest.Pass.When(held)))
	return letGo
}

// checkInUse checks what is in use, and that all else is free.
func (s *heldScene) checkInUse(t *testing.T, rate, inUse int64) {
	t.Helper()
	synctest.Wait()
	assert.Equal(t, inUse, used(t, s.mini, keysOf(s.RateLimiter).Permits), "permits in use")
	value, ok := storedValue(t, s.mini, keysOf(s.RateLimiter).Value)
	assert.True(t, ok)
	assert.Equal(t, rate-inUse, value, "free permits")
}

// methods are all calls of a limiter that go to Redis.
var methods = map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{
	"TryAcquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TryAcquire(ctx, 1, 0)
		return err
	},
	"TryAcquire, waiting": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TryAcquire(ctx, 1, time.Hour)
		return err
	},
	"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Acquire(ctx, 1) },
	"Take": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Take(ctx, 1)
		return err
	},
	"Release": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Release(ctx, 1) },
	"AvailablePermits": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.AvailablePermits(ctx)
		return err
	},
	"TrySetRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TrySetRate(ctx, rratelimiter.PerSecond(1))
		return err
	},
	"SetRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return l.SetRate(ctx, rratelimiter.PerSecond(1))
	},
	"UpdateRate": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.UpdateRate(ctx, rratelimiter.PerSecond(1), rratelimiter.KeepState())
		return err
	},
	"Config": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Config(ctx)
		return err
	},
	"Expire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Expire(ctx, time.Hour)
		return err
	},
	"ExpireAt": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.ExpireAt(ctx, time.Now().Add(time.Hour))
		return err
	},
	"ClearExpire": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.ClearExpire(ctx)
		return err
	},
	"TTL": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.TTL(ctx)
		return err
	},
	"Exists": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Exists(ctx)
		return err
	},
	"Delete": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		_, err := l.Delete(ctx)
		return err
	},
	"Rename":             func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Rename(ctx, l.Name()+":new") },
	"Rename to its name": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Rename(ctx, l.Name()) },
}

// reads are those of methods that change nothing, or nothing that matters.
var reads = map[string]bool{
	"AvailablePermits": true, "Config": true, "TTL": true, "Exists": true, "Rename to its name": true,
}

// acquires are those of methods that give back what their caller went away from.
var acquires = map[string]bool{
	"TryAcquire": true, "TryAcquire, waiting": true, "Acquire": true, "Take": true,
}

func TestAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	for name, call := range methods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := newLimiter(t, rdb, every(1, time.Second))
				sent := countCommands(rdb)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				err := call(ctx, l)
				require.ErrorIs(t, err, context.Canceled)
				assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome, "nothing was sent")

				ctx, cancel = context.WithDeadline(t.Context(), time.Now())
				defer cancel()
				require.ErrorIs(t, call(ctx, l), context.DeadlineExceeded)
				synctest.Wait()
				assert.Zero(t, sent.total())
			})
		})
	}
}

func TestAContextThatEndsInFlight(t *testing.T) {
	t.Parallel()
	for name, call := range methods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHeldScene(t, every(3, time.Hour))
				mustAcquire(t, s.other, 1)
				held := make(chan struct{})
				s.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
				ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
				defer cancel()
				c := s.call(func() (bool, error) { return false, call(ctx, s.RateLimiter) })
				assert.Equal(t, "waits", c.outcome())
				s.until(900 * ms)
				c.requireEnd(t, context.DeadlineExceeded, 300*ms)
				end, _ := c.ended()
				unknown := !reads[name] && !acquires[name]
				assert.Equal(t, unknown, errors.Is(end.err, rratelimiter.ErrUnknownOutcome),
					"a write that was sent may have run: %v", end.err)
				close(held)
				synctest.Wait()
				if acquires[name] {
					s.checkInUse(t, 3, 1)
				}
				require.NoError(t, s.client.Close(t.Context()))
			})
		})
	}
}

func TestAContextThatEndsInLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(2, time.Second))
		mustAcquire(t, s.other, 2)
		ctx, cancel := context.WithCancel(t.Context())
		first, gone, last := s.acquire(t.Context(), 1), s.acquire(ctx, 1), s.acquire(t.Context(), 1)
		s.until(300 * ms)
		cancel()
		s.until(time.Minute)
		gone.requireEnd(t, context.Canceled, 300*ms)
		assert.Equal(t, "true at 1s", first.outcome())
		assert.Equal(t, "true at 1s", last.outcome())
		assert.LessOrEqual(t, s.sent.scripts(), 3)
	})
}

func TestAContextThatEndsAtTheHeadOfTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(3, time.Minute))
		mustAcquire(t, s.other, 1)
		ctx, cancel := context.WithCancel(t.Context())
		head := s.acquire(ctx, 3)
		second, third := s.acquire(t.Context(), 1), s.acquire(t.Context(), 1)
		s.until(300 * ms)
		assert.Equal(t, "waits", second.outcome())
		cancel()
		s.until(time.Second)
		head.requireEnd(t, context.Canceled, 300*ms)
		assert.Equal(t, "true at 300ms", second.outcome())
		assert.Equal(t, "true at 300ms", third.outcome())
		s.checkInUse(t, 3, 3)
	})
}

func TestADeadlineBeforeTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(1, time.Second))
		mustAcquire(t, s.other, 1)
		short, cancel := context.WithTimeout(t.Context(), 400*ms)
		defer cancel()
		long, cancelLong := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLong()
		a, b := s.tryAcquire(short, 1, 700*ms), s.tryAcquire(long, 1, 700*ms)
		c := s.acquire(long, 1)
		s.until(time.Minute)
		a.requireEnd(t, context.DeadlineExceeded, 400*ms)
		assert.Equal(t, "false at 700ms", b.outcome())
		assert.Equal(t, "true at 1s", c.outcome())
	})
}

// Those who wait for a batch on its way were not sent, so that nothing of theirs
// is to be given back.
func TestAContextThatEndsBehindABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(10, time.Hour))
		letGo := s.hold(t, lua.Acquire, 1)
		lead := s.tryAcquire(t.Context(), 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var gone []*caller
		for _, timeout := range []time.Duration{0, forever} {
			gone = append(gone, s.tryAcquire(ctx, 2, timeout))
		}
		kept := s.tryAcquire(t.Context(), 3, 0)
		release := s.call(func() (bool, error) { return false, s.Release(ctx, 1) })
		s.until(200 * ms)
		cancel()
		synctest.Wait()
		for _, c := range gone {
			c.requireEnd(t, context.Canceled, 200*ms)
		}
		release.requireEnd(t, context.Canceled, 200*ms)
		end, _ := release.ended()
		assert.NotErrorIs(t, end.err, rratelimiter.ErrUnknownOutcome, "it had not been sent")

		s.until(300 * ms)
		letGo()
		assert.Equal(t, "true at 300ms", lead.outcome())
		assert.Equal(t, "true at 300ms", kept.outcome())
		s.checkInUse(t, 10, 4)
		assert.Equal(t, 2, s.sent.scripts())
	})
}

// Of a batch, the permits of those who went away come off its one member.
func TestPartOfABatchIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{"tries": 0, "in line": forever} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHeldScene(t, every(20, time.Hour))
				gate := s.hold(t, lua.Acquire, 1)
				lead := s.tryAcquire(t.Context(), 1, 0)
				ctx, cancel := context.WithCancel(t.Context())
				kept := []*caller{s.tryAcquire(t.Context(), 2, timeout)}
				gone := []*caller{s.tryAcquire(ctx, 3, timeout)}
				kept = append(kept, s.tryAcquire(t.Context(), 4, timeout))
				gone = append(gone, s.tryAcquire(ctx, 5, timeout))
				letGo := s.hold(t, lua.Acquire, 1)
				gate()
				assert.Equal(t, "true at 0s", lead.outcome())
				s.checkInUse(t, 20, 1+2+3+4+5)
				s.until(100 * ms)
				cancel()
				synctest.Wait()
				for _, c := range gone {
					c.requireEnd(t, context.Canceled, 100*ms)
				}
				s.until(200 * ms)
				letGo()
				for _, c := range kept {
					assert.Equal(t, "true at 200ms", c.outcome())
				}
				s.checkInUse(t, 20, 1+2+4)
				members := s.mini.ZRange(t.Context(), keysOf(s.RateLimiter).Permits, 0, -1).Val()
				members = slices.DeleteFunc(members, func(member string) bool { return permitsIn(member) == 0 })
				assert.Len(t, members, 2, "the first request's and the batch's")
			})
		})
	}
}

// What is given back goes to those who wait for it, at once.
func TestWhatIsGivenBackServesTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(3, time.Hour))
		letGo := s.hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.tryAcquire(ctx, 3, 0)
		waiting := s.tryAcquire(t.Context(), 2, forever)
		s.until(100 * ms)
		cancel()
		synctest.Wait()
		gone.requireEnd(t, context.Canceled, 100*ms)
		s.until(200 * ms)
		letGo()
		assert.Equal(t, "true at 200ms", waiting.outcome())
		s.checkInUse(t, 3, 2)
	})
}

// One who waits is asked for again by the line's own timer; its context may end
// then, too.
func TestAContextThatEndsWhileTheLineAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(2, time.Second))
		mustAcquire(t, s.other, 2)
		letGo := s.hold(t, lua.Acquire, 2)
		ctx, cancel := context.WithCancel(t.Context())
		gone, kept := s.acquire(ctx, 1), s.acquire(t.Context(), 1)
		s.until(1200 * ms)
		assert.Equal(t, "waits", kept.outcome(), "the answer is held")
		cancel()
		synctest.Wait()
		gone.requireEnd(t, context.Canceled, 1200*ms)
		third := s.acquire(t.Context(), 1)
		s.until(1300 * ms)
		letGo()
		assert.Equal(t, "true at 1.3s", kept.outcome())
		assert.Equal(t, "true at 1.3s", third.outcome(), "with what the first left")
		s.checkInUse(t, 2, 2)
	})
}

// All of a batch may go away; others behind it are served nevertheless.
func TestEverybodyInABatchGoesAway(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]redistest.Action{
		"answered": redistest.Pass,
		"lost":     redistest.DropAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newHeldScene(t, every(5, time.Hour))
				held := make(chan struct{})
				s.proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, answer.When(held)))
				ctx, cancel := context.WithCancel(t.Context())
				gone := s.tryAcquire(ctx, 4, forever)
				behind := s.tryAcquire(t.Context(), 5, forever)
				cancel()
				synctest.Wait()
				gone.requireEnd(t, context.Canceled, 0)
				close(held)
				s.until(time.Second)
				end, done := behind.ended()
				require.True(t, done)
				require.NoError(t, end.err)
				assert.True(t, end.ok, "what those before it took was given back")
				s.checkInUse(t, 5, 5)
			})
		})
	}
}

// The caller whose request makes others' go has no special part in them.
func TestTheFirstOfABatchGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(5, time.Hour))
		gate := s.hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		lead := s.tryAcquire(ctx, 1, 0)
		others := []*caller{s.tryAcquire(t.Context(), 1, 0), s.tryAcquire(t.Context(), 2, forever)}
		cancel()
		synctest.Wait()
		lead.requireEnd(t, context.Canceled, 0)
		gate()
		for _, c := range others {
			assert.Equal(t, "true at 0s", c.outcome())
		}
		s.checkInUse(t, 5, 3)
	})
}

// A caller without a deadline does its batch's work itself. It must not do that
// of others for longer.
func TestACallerIsNotKeptByOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(5, time.Hour))
		gate := s.hold(t, lua.Acquire, 1)
		lead := s.tryAcquire(context.WithoutCancel(t.Context()), 1, 0)
		behind := s.tryAcquire(t.Context(), 1, 0)
		letGo := s.hold(t, lua.Acquire, 1)
		gate()
		assert.Equal(t, "true at 0s", lead.outcome())
		assert.Equal(t, "waits", behind.outcome(), "its answer is held")
		s.until(900 * ms)
		letGo()
		assert.Equal(t, "true at 900ms", behind.outcome())
	})
}

// Patience ends on time though a flight is stuck, for those who are not in it. They
// were not refused.
func TestPatienceEndsBehindABatchThatIsStuck(t *testing.T) {
	t.Parallel()

	t.Run("one that was not sent", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newHeldScene(t, every(5, time.Hour))
			letGo := s.hold(t, lua.Acquire, 1)
			s.tryAcquire(t.Context(), 1, 0)
			c := s.tryAcquire(t.Context(), 1, 100*ms)
			s.until(900 * ms)
			c.requireEnd(t, rratelimiter.ErrUnavailable, 200*ms)
			letGo()
			s.checkInUse(t, 5, 1)
		})
	})

	t.Run("behind one that waits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newHeldScene(t, every(5, time.Hour))
			letGo := s.hold(t, lua.Acquire, 1)
			s.tryAcquire(t.Context(), 1, forever)
			a, b := s.tryAcquire(t.Context(), 1, 100*ms), s.tryAcquire(t.Context(), 1, 200*ms)
			s.until(900 * ms)
			a.requireEnd(t, rratelimiter.ErrUnavailable, 200*ms)
			b.requireEnd(t, rratelimiter.ErrUnavailable, 300*ms)
			letGo()
			s.checkInUse(t, 5, 1)
		})
	})
}

// Contexts end at the very moment of the grant, in any order: who is told that
// it was granted holds its permits, and nobody else does.
func TestContextsThatEndAtTheMomentOfTheGrant(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const rate = 1_000_000
		l := newLimiter(t, rdb, every(rate, time.Hour))
		var held atomic.Int64
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range 60 {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(rand.N(3*ms), cancel)
					permits := int64(1 + i%3)
					ok, err := l.TryAcquire(ctx, permits, time.Duration(worker%2)*time.Hour)
					if ok {
						held.Add(permits)
					}
					if err != nil {
						assert.ErrorIs(t, err, context.Canceled)
						assert.False(t, ok)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		assert.Eventually(t, func() bool {
			value, _ := storedValue(t, rdb, keysOf(l).Value)
			return used(t, rdb, keysOf(l).Permits) == held.Load() && value == rate-held.Load()
		}, 5*time.Second, 5*time.Millisecond, "held: %d of %d", held.Load(), 8*60*2)
	})
}

// A hook sees what the caller's context holds, as with any call of go-redis.
func TestHooksSeeTheCallersContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, call := range methods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, with := range map[string]func(context.Context) context.Context{
				"cancellable":     func(ctx context.Context) context.Context { return ctx },
				"not cancellable": context.WithoutCancel,
			} {
				t.Run(kind, func(t *testing.T) {
					t.Parallel()
					virtual(t, func(t *testing.T, rdb *redis.Client) {
						l := newLimiter(t, rdb, every(2, time.Second))
						ctx := context.WithValue(t.Context(), key{}, kind)
						var calls, seen atomic.Int64
						rdb.AddHook(contextHook(func(ctx context.Context) {
							calls.Add(1)
							if ctx.Value(key{}) == kind {
								seen.Add(1)
							}
						}))
						require.NoError(t, call(with(ctx), l))
						assert.Positive(t, calls.Load())
						assert.Equal(t, calls.Load(), seen.Load())
					})
				})
			}
		})
	}
}

// contextHook is told the context of each command.
type contextHook func(ctx context.Context)

func (h contextHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h contextHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(ctx)
		return next(ctx, cmd)
	}
}

func (h contextHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h(ctx)
		return next(ctx, cmds)
	}
}

// A caller's cancelled context has no say in what others of its batch get, nor
// in what is given back for it.
func TestACancelledContextDoesNotReachRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newHeldScene(t, every(5, time.Hour))
		s.rdb.AddHook(contextHook(func(ctx context.Context) { assert.NoError(t, ctx.Err()) }))
		letGo := s.hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.tryAcquire(ctx, 2, 0)
		cancel()
		synctest.Wait()
		gone.requireEnd(t, context.Canceled, 0)
		letGo()
		s.checkInUse(t, 5, 0)
	})
}
