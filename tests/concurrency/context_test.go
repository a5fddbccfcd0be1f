package concurrency_test

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
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// acquires are those of methods that give back what their caller went away from.
var acquires = map[string]bool{
	"TryAcquire": true, "TryAcquire, waiting": true, "Acquire": true, "Take": true, "TakeUpTo": true,
}

func TestAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	for name, call := range limitertest.Operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(1, time.Second))
				sent := limitertest.CountCommands(rdb)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				err := call(ctx, l)
				require.ErrorIs(t, err, context.Canceled)
				assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome, "nothing was sent")

				ctx, cancel = context.WithDeadline(t.Context(), time.Now())
				defer cancel()
				require.ErrorIs(t, call(ctx, l), context.DeadlineExceeded)
				synctest.Wait()
				assert.Zero(t, sent.Total())
			})
		})
	}
}

func TestAContextThatEndsInFlight(t *testing.T) {
	t.Parallel()
	for name, call := range limitertest.Operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewHeldScene(t, limitertest.Every(3, time.Hour))
				limitertest.MustAcquire(t, s.Other, 1)
				held := make(chan struct{})
				s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				c := s.Go(func() (bool, error) { return false, call(ctx, s.RateLimiter) })
				assert.Equal(t, "waits", c.Outcome())
				s.Until(900 * time.Millisecond)
				c.RequireEnd(t, context.DeadlineExceeded, 300*time.Millisecond)
				end, _ := c.Ended()
				unknown := !limitertest.Reads[name] && !acquires[name]
				assert.Equal(t, unknown, errors.Is(end.Err, rratelimiter.ErrUnknownOutcome),
					"a write that was sent may have run: %v", end.Err)
				close(held)
				synctest.Wait()
				if acquires[name] {
					s.CheckInUse(t, 3, 1)
				}
				require.NoError(t, s.Client.Close(t.Context()))
			})
		})
	}
}

func TestAContextThatEndsInLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(2, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		ctx, cancel := context.WithCancel(t.Context())
		first, gone, last := s.StartAcquire(t.Context(), 1), s.StartAcquire(ctx, 1), s.StartAcquire(t.Context(), 1)
		s.Until(300 * time.Millisecond)
		cancel()
		s.Until(time.Minute)
		gone.RequireEnd(t, context.Canceled, 300*time.Millisecond)
		assert.Equal(t, "true at 1s", first.Outcome())
		assert.Equal(t, "true at 1s", last.Outcome())
		assert.LessOrEqual(t, s.Sent.Scripts(), 3)
	})
}

func TestAContextThatEndsAtTheHeadOfTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(3, time.Minute))
		limitertest.MustAcquire(t, s.Other, 1)
		ctx, cancel := context.WithCancel(t.Context())
		head := s.StartAcquire(ctx, 3)
		second, third := s.StartAcquire(t.Context(), 1), s.StartAcquire(t.Context(), 1)
		s.Until(300 * time.Millisecond)
		assert.Equal(t, "waits", second.Outcome())
		cancel()
		s.Until(time.Second)
		head.RequireEnd(t, context.Canceled, 300*time.Millisecond)
		assert.Equal(t, "true at 300ms", second.Outcome())
		assert.Equal(t, "true at 300ms", third.Outcome())
		s.CheckInUse(t, 3, 3)
	})
}

func TestADeadlineBeforeTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(1, time.Second))
		limitertest.MustAcquire(t, s.Other, 1)
		short, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		long, cancelLong := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLong()
		a, b := s.StartTryAcquire(short, 1, 700*time.Millisecond), s.StartTryAcquire(long, 1, 700*time.Millisecond)
		c := s.StartAcquire(long, 1)
		s.Until(time.Minute)
		a.RequireEnd(t, context.DeadlineExceeded, 400*time.Millisecond)
		assert.Equal(t, "false at 700ms", b.Outcome())
		assert.Equal(t, "true at 1s", c.Outcome())
	})
}

// Those who wait for a batch on its way were not sent, so that nothing of theirs
// is to be given back.
func TestAContextThatEndsBehindABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(10, time.Hour))
		letGo := s.Hold(t, lua.Acquire, 1)
		lead := s.StartTryAcquire(t.Context(), 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var gone []*limitertest.Caller
		for _, timeout := range []time.Duration{0, limitertest.Forever} {
			gone = append(gone, s.StartTryAcquire(ctx, 2, timeout))
		}
		kept := s.StartTryAcquire(t.Context(), 3, 0)
		release := s.Go(func() (bool, error) { return false, s.Release(ctx, 1) })
		s.Until(200 * time.Millisecond)
		cancel()
		synctest.Wait()
		for _, c := range gone {
			c.RequireEnd(t, context.Canceled, 200*time.Millisecond)
		}
		release.RequireEnd(t, context.Canceled, 200*time.Millisecond)
		end, _ := release.Ended()
		assert.NotErrorIs(t, end.Err, rratelimiter.ErrUnknownOutcome, "it had not been sent")

		s.Until(300 * time.Millisecond)
		letGo()
		assert.Equal(t, "true at 300ms", lead.Outcome())
		assert.Equal(t, "true at 300ms", kept.Outcome())
		s.CheckInUse(t, 10, 4)
		assert.Equal(t, 2, s.Sent.Scripts())
	})
}

// Of a batch, the permits of those who went away come off its one member.
func TestPartOfABatchIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{"tries": 0, "in line": limitertest.Forever} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limitertest.NewHeldScene(t, limitertest.Every(20, time.Hour))
				gate := s.Hold(t, lua.Acquire, 1)
				lead := s.StartTryAcquire(t.Context(), 1, 0)
				ctx, cancel := context.WithCancel(t.Context())
				kept := []*limitertest.Caller{s.StartTryAcquire(t.Context(), 2, timeout)}
				gone := []*limitertest.Caller{s.StartTryAcquire(ctx, 3, timeout)}
				kept = append(kept, s.StartTryAcquire(t.Context(), 4, timeout))
				gone = append(gone, s.StartTryAcquire(ctx, 5, timeout))
				letGo := s.Hold(t, lua.Acquire, 1)
				gate()
				assert.Equal(t, "true at 0s", lead.Outcome())
				s.CheckInUse(t, 20, 1+2+3+4+5)
				s.Until(100 * time.Millisecond)
				cancel()
				synctest.Wait()
				for _, c := range gone {
					c.RequireEnd(t, context.Canceled, 100*time.Millisecond)
				}
				s.Until(200 * time.Millisecond)
				letGo()
				for _, c := range kept {
					assert.Equal(t, "true at 200ms", c.Outcome())
				}
				s.CheckInUse(t, 20, 1+2+4)
				members := s.Mini.ZRange(t.Context(), limitertest.KeysOf(s.RateLimiter).Permits, 0, -1).Val()
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
		s := limitertest.NewHeldScene(t, limitertest.Every(3, time.Hour))
		letGo := s.Hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.StartTryAcquire(ctx, 3, 0)
		waiting := s.StartTryAcquire(t.Context(), 2, limitertest.Forever)
		s.Until(100 * time.Millisecond)
		cancel()
		synctest.Wait()
		gone.RequireEnd(t, context.Canceled, 100*time.Millisecond)
		s.Until(200 * time.Millisecond)
		letGo()
		assert.Equal(t, "true at 200ms", waiting.Outcome())
		s.CheckInUse(t, 3, 2)
	})
}

// One who waits is asked for again by the line's own timer; its context may end
// then, too.
func TestAContextThatEndsWhileTheLineAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(2, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		letGo := s.Hold(t, lua.Acquire, 2)
		ctx, cancel := context.WithCancel(t.Context())
		gone, kept := s.StartAcquire(ctx, 1), s.StartAcquire(t.Context(), 1)
		s.Until(1200 * time.Millisecond)
		assert.Equal(t, "waits", kept.Outcome(), "the answer is held")
		cancel()
		synctest.Wait()
		gone.RequireEnd(t, context.Canceled, 1200*time.Millisecond)
		third := s.StartAcquire(t.Context(), 1)
		s.Until(1300 * time.Millisecond)
		letGo()
		assert.Equal(t, "true at 1.3s", kept.Outcome())
		assert.Equal(t, "true at 1.3s", third.Outcome(), "with what the first left")
		s.CheckInUse(t, 2, 2)
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
				s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
				held := make(chan struct{})
				s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, answer.When(held)))
				ctx, cancel := context.WithCancel(t.Context())
				gone := s.StartTryAcquire(ctx, 4, limitertest.Forever)
				behind := s.StartTryAcquire(t.Context(), 5, limitertest.Forever)
				cancel()
				synctest.Wait()
				gone.RequireEnd(t, context.Canceled, 0)
				close(held)
				s.Until(time.Second)
				end, done := behind.Ended()
				require.True(t, done)
				require.NoError(t, end.Err)
				assert.True(t, end.Ok, "what those before it took was given back")
				s.CheckInUse(t, 5, 5)
			})
		})
	}
}

// The caller whose request makes others' go has no special part in them.
func TestTheFirstOfABatchGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
		gate := s.Hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		lead := s.StartTryAcquire(ctx, 1, 0)
		others := []*limitertest.Caller{s.StartTryAcquire(t.Context(), 1, 0), s.StartTryAcquire(t.Context(), 2, limitertest.Forever)}
		cancel()
		synctest.Wait()
		lead.RequireEnd(t, context.Canceled, 0)
		gate()
		for _, c := range others {
			assert.Equal(t, "true at 0s", c.Outcome())
		}
		s.CheckInUse(t, 5, 3)
	})
}

// A caller without a deadline does its batch's work itself. It must not do that
// of others for longer.
func TestACallerIsNotKeptByOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
		gate := s.Hold(t, lua.Acquire, 1)
		lead := s.StartTryAcquire(context.WithoutCancel(t.Context()), 1, 0)
		behind := s.StartTryAcquire(t.Context(), 1, 0)
		letGo := s.Hold(t, lua.Acquire, 1)
		gate()
		assert.Equal(t, "true at 0s", lead.Outcome())
		assert.Equal(t, "waits", behind.Outcome(), "its answer is held")
		s.Until(900 * time.Millisecond)
		letGo()
		assert.Equal(t, "true at 900ms", behind.Outcome())
	})
}

// Patience ends on time though a flight is stuck, for those who are not in it. They
// were not refused.
func TestPatienceEndsBehindABatchThatIsStuck(t *testing.T) {
	t.Parallel()

	t.Run("one that was not sent", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
			letGo := s.Hold(t, lua.Acquire, 1)
			s.StartTryAcquire(t.Context(), 1, 0)
			c := s.StartTryAcquire(t.Context(), 1, 100*time.Millisecond)
			s.Until(900 * time.Millisecond)
			c.RequireEnd(t, rratelimiter.ErrUnavailable, 200*time.Millisecond)
			letGo()
			s.CheckInUse(t, 5, 1)
		})
	})

	t.Run("behind one that waits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
			letGo := s.Hold(t, lua.Acquire, 1)
			s.StartTryAcquire(t.Context(), 1, limitertest.Forever)
			a, b := s.StartTryAcquire(t.Context(), 1, 100*time.Millisecond), s.StartTryAcquire(t.Context(), 1, 200*time.Millisecond)
			s.Until(900 * time.Millisecond)
			a.RequireEnd(t, rratelimiter.ErrUnavailable, 200*time.Millisecond)
			b.RequireEnd(t, rratelimiter.ErrUnavailable, 300*time.Millisecond)
			letGo()
			s.CheckInUse(t, 5, 1)
		})
	})
}

// Contexts end at the very moment of the grant, in any order: who is told that
// it was granted holds its permits, and nobody else does.
func TestContextsThatEndAtTheMomentOfTheGrant(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		const rate = 1_000_000
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rate, time.Hour))
		var held atomic.Int64
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range 60 {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(rand.N(3*time.Millisecond), cancel)
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
			value, _ := limitertest.StoredValue(t, rdb, limitertest.KeysOf(l).Value)
			return limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits) == held.Load() && value == rate-held.Load()
		}, time.Minute, 5*time.Millisecond, "held: %d of %d", held.Load(), 8*60*2)
	})
}

// A hook sees what the caller's context holds, as with any call of go-redis.
func TestHooksSeeTheCallersContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, call := range limitertest.Operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, with := range map[string]func(context.Context) context.Context{
				"cancellable":     func(ctx context.Context) context.Context { return ctx },
				"not cancellable": context.WithoutCancel,
			} {
				t.Run(kind, func(t *testing.T) {
					t.Parallel()
					redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
						l := limitertest.NewLimiter(t, rdb, limitertest.Every(2, time.Second))
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
		s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
		s.Redis.AddHook(contextHook(func(ctx context.Context) { assert.NoError(t, ctx.Err()) }))
		letGo := s.Hold(t, lua.Acquire, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := s.StartTryAcquire(ctx, 2, 0)
		cancel()
		synctest.Wait()
		gone.RequireEnd(t, context.Canceled, 0)
		letGo()
		s.CheckInUse(t, 5, 0)
	})
}
