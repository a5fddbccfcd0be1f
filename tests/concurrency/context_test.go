package concurrency_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A caller's deadline is a net.Error, and yet no outage: no policy may answer in its place. What the caller was granted
// meanwhile goes back.
func TestContext_EndsInFlight(t *testing.T) {
	t.Parallel()
	type row struct {
		kind rratelimiter.RateType
		sent bool // otherwise the call is behind another limiter's
	}
	all := []string{"TryAcquireAll", "TakeAll", "ReserveAll"}
	settling := []string{"Settle", "Cancel", "undo", "Renew"} // they go on without their caller
	for name, open := range limitertest.Calls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Bubbles(t, map[string]row{
				"sent": {rratelimiter.Overall, true}, "sent, PerClient": {rratelimiter.PerClient, true}, "behind others": {},
			}, func(t *testing.T, row row) {
				s := limitertest.NewHeldScene(t, rratelimiter.Config{Type: row.kind, Rate: 10, Interval: time.Hour})
				limitertest.MustAcquire(t, s.RateLimiter, 1)
				call := open(t, s.Client, s.RateLimiter)
				held := make(chan struct{})
				s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
				unknown := !limitertest.Reads[name] && !limitertest.Acquires[name] && !slices.Contains(all, name)
				if !row.sent {
					other := limitertest.ByDefault(s.Client, "other", limitertest.Every(10, time.Hour))
					s.Go(func() (bool, error) { return other.TryAcquire(t.Context(), 1, 0) })
					unknown = slices.Contains(settling, name)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
				defer cancel()
				c := s.Go(func() (bool, error) { return false, call(ctx) })
				assert.Equal(t, "waits", c.Outcome())
				s.Until(900 * ms)
				c.RequireEnd(t, context.DeadlineExceeded, 300*ms)
				end, _ := c.Ended()
				require.NotErrorIs(t, end.Err, rratelimiter.ErrUnavailable)
				assert.Equal(t, unknown, errors.Is(end.Err, rratelimiter.ErrUnknownOutcome), "a write that was sent may have run: %v", end.Err)
				checkPair := func(inUse int64) {
					synctest.Wait()
					keys := limitertest.LimiterKeys(t, s.Mini, s.Name())
					pair := keys[len(keys)-2:] // the client's own, or all clients'
					value, _ := limitertest.StoredValue(t, s.Mini, pair[1])
					assert.Equal(t, inUse, limitertest.InUse(t, s.Mini, pair[0]))
					assert.Equal(t, 10-inUse, value)
				}
				if limitertest.Acquires[name] && row.sent {
					checkPair(2)
				}
				close(held)
				if limitertest.Acquires[name] {
					checkPair(1)
				}
				require.NoError(t, s.Client.Close(t.Context()))
			})
		})
	}
}

var contextTests = map[string]limitertest.SceneTest[*limitertest.HeldScene]{
	// The line's own timer asks again for a waiter, whose context may end then.
	"a context that ends while the line asks": {Cfg: limitertest.Every(2, time.Second), Run: func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.Other, 2)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) { return false, s.Acquire(ctx, 1) })
		kept := s.StartAcquire(t.Context(), 1)
		s.Until(100 * ms)
		letGo := s.Hold(t, lua.Acquire, 1)
		s.Until(1200 * ms)
		assert.Equal(t, "waits", kept.Outcome(), "the answer is held")
		leave()
		third := s.StartAcquire(t.Context(), 1) // with what the first leaves
		s.Until(1300 * ms)
		letGo()
		limitertest.CheckOutcome(t, "true at 1.3s", kept, third)
		s.CheckInUse(t, 2, 2)
	}},
	// A caller without a deadline does its batch's work itself, but not the work of later batches.
	"a caller is not kept by others": {Cfg: limitertest.Every(5, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		gate := s.Hold(t, lua.Acquire, 1)
		lead := s.StartTryAcquire(context.WithoutCancel(t.Context()), 1, 0)
		behind := s.StartTryAcquire(t.Context(), 1, 0)
		letGo := s.Hold(t, lua.Acquire, 1)
		gate()
		assert.Equal(t, "true at 0s", lead.Outcome())
		assert.Equal(t, "waits", behind.Outcome(), "its answer is held")
		s.Until(900 * ms)
		letGo()
		assert.Equal(t, "true at 900ms", behind.Outcome())
	}},
	// A cancelled context changes nothing for others of its batch, nor for the give-back.
	"a cancelled context does not reach Redis": {Cfg: limitertest.Every(5, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		s.Redis.AddHook(seesContext(func(ctx context.Context) { assert.NoError(t, ctx.Err()) }))
		letGo := s.Hold(t, lua.Acquire, 1)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) { return s.TryAcquire(ctx, 2, 0) })
		leave()
		letGo()
		s.CheckInUse(t, 5, 0)
	}},
	// If the last to be asked for in a round leaves, the line must not look for another without end.
	"the last of a round leaves": {Cfg: limitertest.Every(10, time.Minute), Run: func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.Other, 5)
		head := s.StartAcquire(t.Context(), 10)
		s.Until(30 * time.Second)
		limitertest.MustAcquire(t, s.Other, 1)
		s.Until(time.Minute - ms)
		round := s.Hold(t, lua.Acquire, 1)
		s.Until(60500 * ms)
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) { return false, s.Acquire(ctx, 10) })
		release := s.Go(func() (bool, error) { return true, s.Release(t.Context(), 1) })
		released := s.Hold(t, lua.Release, 1)
		round()
		assert.Equal(t, "waits", head.Outcome(), "it was refused")
		leave()
		released()
		assert.Equal(t, "true at 1m0.5s", release.Outcome())
		s.Until(2 * time.Minute)
		assert.Equal(t, "true at 1m0.5s", head.Outcome())
	}},
	// So it does in line, if the last question, which is due at that moment, can't be sent.
	"a timeout in line behind a flight that is stuck": {Cfg: limitertest.Every(1, time.Second), Run: func(t *testing.T, s *limitertest.HeldScene) {
		other := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, s.Other, 1)
		inLine := s.StartTryAcquire(t.Context(), 1, time.Second)
		s.Until(900 * ms)
		letGo := s.Hold(t, lua.Acquire, 1)
		ahead := s.Go(func() (bool, error) { return other.TryAcquire(t.Context(), 1, 0) })
		s.Until(1200 * ms)
		assert.Equal(t, "false at 1.1s", inLine.Outcome())
		letGo()
		assert.Equal(t, "true at 1.2s", ahead.Outcome())
	}},
}

func TestContext_Cancelled(t *testing.T) {
	t.Parallel()
	limitertest.OnScenes(t, contextTests, limitertest.NewHeldScene)
}

// Of a batch, the permits of those who went away come off its one member: what they took, not what they asked for.
func TestContext_CancelledPartOfBatchIsGivenBack(t *testing.T) {
	t.Parallel()
	type asking struct {
		permits int64
		leaves  bool
		upTo    bool
		refused bool
	}
	type row struct {
		rate, before, after int64 // in use, one permit of which is not the batch's
		patience            time.Duration
		batch               []asking
	}
	both := []asking{{permits: 2}, {permits: 3, leaves: true}, {permits: 4}, {permits: 5, leaves: true}}
	limitertest.Bubbles(t, map[string]row{
		"tries":   {20, 1 + 2 + 3 + 4 + 5, 1 + 2 + 4, 0, both},
		"in line": {20, 1 + 2 + 3 + 4 + 5, 1 + 2 + 4, forever, both},
		"TryAcquire of as many as were refused": {9, 1 + 2 + 5, 1 + 2, 0,
			[]asking{{permits: 2}, {permits: 5, leaves: true}, {permits: 5, refused: true}}},
		"TakeUpTo": {9, 9, 1 + 2, 0, []asking{{permits: 2}, {permits: 20, leaves: true, upTo: true}, {permits: 5, refused: true}}},
	}, func(t *testing.T, row row) {
		s := limitertest.NewHeldScene(t, limitertest.Every(row.rate, time.Hour))
		gate := s.Hold(t, lua.Acquire, 1)
		lead := s.StartTryAcquire(t.Context(), 1, 0)
		var leave []func()
		kept := map[*limitertest.Caller]string{}
		for _, a := range row.batch {
			ask := func(ctx context.Context) (bool, error) {
				if a.upTo {
					_, _, err := s.TakeUpTo(ctx, a.permits)
					return false, err
				}
				return s.TryAcquire(ctx, a.permits, row.patience)
			}
			if a.leaves {
				leave = append(leave, s.Leaver(t, ask))
			} else {
				kept[s.Go(func() (bool, error) { return ask(t.Context()) })] = fmt.Sprint(!a.refused, " at 200ms")
			}
		}
		letGo := s.Hold(t, lua.Acquire, 1)
		gate()
		limitertest.CheckOutcome(t, "true at 0s", lead)
		s.CheckInUse(t, row.rate, row.before)
		s.Until(100 * ms)
		for _, leave := range leave {
			leave()
		}
		s.Until(200 * ms)
		letGo()
		for c, want := range kept {
			limitertest.CheckOutcome(t, want, c)
		}
		s.CheckInUse(t, row.rate, row.after)
		members := s.Mini.ZRange(t.Context(), limitertest.KeysOf(s.RateLimiter).Permits, 0, -1).Val()
		members = slices.DeleteFunc(members, func(member string) bool { return limitertest.PermitsIn(t, member) == 0 })
		assert.Len(t, members, 2, "the first request's and the batch's")
	})
}

// All of a batch may go away; others behind it are still served.
func TestContext_CancelledBatchServesNext(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]redistest.Action{
		"answered": redistest.Pass, "lost": redistest.DropAnswer,
	}, func(t *testing.T, answer redistest.Action) {
		s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
		held := make(chan struct{})
		s.Proxy.OnCommand(redistest.Nth(1, lua.Acquire.SHA, answer.When(held)))
		leave := s.Leaver(t, func(ctx context.Context) (bool, error) { return s.TryAcquire(ctx, 4, forever) })
		behind := s.StartTryAcquire(t.Context(), 5, forever)
		leave()
		close(held)
		s.Until(time.Second)
		assert.Contains(t, behind.Outcome(), "true at ", "what those before it took was given back")
		s.CheckInUse(t, 5, 5)
	})
}

// seesContext is a hook that looks at the context of each round trip.
func seesContext(look func(ctx context.Context)) redis.Hook {
	return redistest.Hook(func(ctx context.Context, _ []redis.Cmder, next func() error) error {
		look(ctx)
		return next()
	})
}

// A hook sees what the caller's context holds, as with any call of go-redis.
func TestHooksSeeTheCallersContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, call := range limitertest.Operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Virtual(t, limitertest.KindsOfContext, func(t *testing.T, rdb redistest.Client, with func(context.Context) context.Context) {
				l := limitertest.NewHandle(t, rdb, rratelimiter.WithExact()) // merging is no caller's
				limitertest.MustTrySetRate(t, l, limitertest.Every(2, time.Second))
				var calls, seen atomic.Int64
				rdb.AddHook(seesContext(func(ctx context.Context) {
					calls.Add(1)
					if ctx.Value(key{}) == name {
						seen.Add(1)
					}
				}))
				require.NoError(t, call(with(context.WithValue(t.Context(), key{}, name)), l))
				assert.Positive(t, calls.Load())
				assert.Equal(t, calls.Load(), seen.Load())
			})
		})
	}
}

var closeTests = map[string]limitertest.SceneTest[*limitertest.HeldScene]{
	"Close fails those that wait": {Cfg: limitertest.Every(1, time.Second), Run: func(t *testing.T, s *limitertest.HeldScene) {
		another := limitertest.ByDefault(s.Client, limitertest.Besides(s.Name()), limitertest.Every(1, time.Hour))
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		limitertest.MustAcquire(t, another, 1)
		var waiting []*limitertest.Caller
		for range 10 {
			for _, with := range limitertest.KindsOfContext {
				waiting = append(waiting,
					s.StartAcquire(with(t.Context()), 1),
					s.StartTryAcquire(with(t.Context()), 1, forever),
					s.Go(func() (bool, error) { return another.TryAcquire(with(t.Context()), 1, forever) }),
					s.Go(func() (bool, error) {
						return s.Client.TryAcquireAll(with(t.Context()), forever, s.Claim(1), another.Claim(1))
					}),
				)
			}
		}
		s.Until(400 * ms)
		require.NoError(t, s.Client.Close(t.Context()))
		synctest.Wait()
		failed(t, rratelimiter.ErrClosed, 400*ms, waiting...)
		before := s.Sent.Total()
		require.ErrorIs(t, limitertest.Second(s.Client.TryAcquireAll(t.Context(), 0, s.Claim(1), another.Claim(1))), rratelimiter.ErrClosed)
		require.ErrorIs(t, s.Release(t.Context(), 1), rratelimiter.ErrClosed)
		s.Until(time.Hour)
		assert.Equal(t, before, s.Sent.Total(), "nothing is asked for any more")
		s.CheckInUse(t, 1, 1)
	}},
	"Close waits for what is in flight": {Cfg: limitertest.Every(5, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		letGo := s.Hold(t, lua.Acquire, 1)
		inFlight := s.StartTryAcquire(t.Context(), 2, 0)
		behind := s.StartTryAcquire(t.Context(), 1, 0)
		inLine := s.StartAcquire(t.Context(), 1)
		s.Until(100 * ms)

		short, cancel := context.WithTimeout(t.Context(), 200*ms)
		defer cancel()
		first := s.Close(short)
		second := s.Close(t.Context())
		failed(t, rratelimiter.ErrClosed, 100*ms, behind, inLine)
		assert.Equal(t, "waits", inFlight.Outcome())
		require.ErrorIs(t, limitertest.Second(s.TryAcquire(t.Context(), 1, 0)), rratelimiter.ErrClosed)

		s.Until(900 * ms)
		first.RequireEnd(t, context.DeadlineExceeded, 300*ms)
		assert.Equal(t, "waits", second.Outcome())
		letGo()
		limitertest.CheckOutcome(t, "true at 900ms", inFlight, second)
		require.NoError(t, s.Client.Close(t.Context()))
		s.CheckInUse(t, 5, 2)
	}},
	// A waiter that is refused while its Client is being closed is not asked for again.
	"Close while the line asks": {Cfg: limitertest.Every(3, time.Second), Run: func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.Other, 1)
		letGo := s.Hold(t, lua.Acquire, 1)
		lead := s.StartTryAcquire(t.Context(), 2, forever)
		answer := s.Hold(t, lua.Acquire, 1)
		a, b := s.StartTryAcquire(t.Context(), 3, forever), s.StartTryAcquire(t.Context(), 1, forever)
		letGo()
		assert.Equal(t, "true at 0s", lead.Outcome())
		closed := s.Close(t.Context())
		s.Until(100 * ms)
		assert.Equal(t, "waits", closed.Outcome())
		answer()
		failed(t, rratelimiter.ErrClosed, 100*ms, a, b)
		assert.Equal(t, "true at 100ms", closed.Outcome())
		s.CheckInUse(t, 3, 3)
	}},
	// A Release that waits for its turn is carried out, or failed without it.
	"Close with a Release that waits": {Cfg: limitertest.Every(5, time.Hour), Run: func(t *testing.T, s *limitertest.HeldScene) {
		limitertest.MustAcquire(t, s.Other, 3)
		letGo := s.Hold(t, lua.Acquire, 1)
		inFlight := s.StartTryAcquire(t.Context(), 1, 0)
		release := s.Go(func() (bool, error) { return true, s.Release(t.Context(), 2) })
		closed := s.Close(t.Context())
		s.Until(100 * ms)
		letGo()
		limitertest.CheckOutcome(t, "true at 100ms", inFlight, closed)
		end, done := release.Ended()
		require.True(t, done)
		if end.Err == nil {
			s.CheckInUse(t, 5, 2)
		} else {
			require.ErrorIs(t, end.Err, rratelimiter.ErrClosed)
			assert.NotErrorIs(t, end.Err, rratelimiter.ErrUnknownOutcome)
			s.CheckInUse(t, 5, 4)
		}
	}},
}

func TestClose(t *testing.T) {
	t.Parallel()
	limitertest.OnScenes(t, closeTests, limitertest.NewHeldScene)
}

func TestCloseWaitsForWritesAndReads(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Operations, func(t *testing.T, call func(context.Context, *rratelimiter.RateLimiter) error) {
		s := limitertest.NewHeldScene(t, limitertest.Every(5, time.Hour))
		held := make(chan struct{})
		s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
		c := s.Go(func() (bool, error) { return true, call(t.Context(), s.RateLimiter) })
		closed := s.Close(t.Context())
		s.Until(100 * ms)
		limitertest.CheckOutcome(t, "waits", c, closed)
		close(held)
		synctest.Wait()
		limitertest.CheckOutcome(t, "true at 100ms", c, closed)
	})
}

// The goroutines that wait for the next flight to a near server end with Close: the bubble checks that.
func TestClose_LeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Operations, func(t *testing.T, call func(context.Context, *rratelimiter.RateLimiter) error) {
		c := rratelimiter.New(limitertest.FarAway(t, 50*time.Microsecond), limitertest.Patient(), rratelimiter.WithClientName("shop"),
			rratelimiter.WithObserver(&limitertest.Recorder{}), rratelimiter.WithFailure(limit.FailLocal(1)))
		l := c.RateLimiter("orders", limitertest.Ahead(0), rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		for range 10 {
			limitertest.MustAcquire(t, l, 1)
		}
		limitertest.Together(10, func(int) { _ = call(t.Context(), l) })
		require.NoError(t, c.Close(t.Context()))
	})
}

// Many callers and several Closes at any moment: each call gets an answer, and it is true.
func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for round := range 10 {
			client := rratelimiter.New(rdb, limitertest.Patient())
			l := limitertest.ByDefault(client, redistest.Name(t), limitertest.Every(100, time.Hour))
			var held atomic.Int64
			var callers sync.WaitGroup
			for i := range 40 {
				callers.Go(func() {
					ctx := t.Context()
					if i%2 == 0 {
						ctx = context.WithoutCancel(ctx)
					}
					permits := int64(1 + i%3)
					var err error
					for err == nil {
						var ok bool
						ok, err = l.TryAcquire(ctx, permits, time.Duration(i%3)*time.Hour)
						if ok {
							held.Add(permits)
						}
						assert.False(t, ok && err != nil)
					}
					assert.ErrorIs(t, err, rratelimiter.ErrClosed)
				})
			}
			time.Sleep(time.Duration(round) * 200 * time.Microsecond)
			limitertest.Together(3, func(int) { assert.NoError(t, client.Close(t.Context())) })
			inUse := limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits)
			callers.Wait()
			assert.Equal(t, held.Load(), inUse, "when Close returns, all is settled")
		}
	})
}
