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

// A caller's deadline is a net.Error, and yet no outage: no policy may answer for it. What was granted meanwhile goes back.
func TestContext_EndsInFlight(t *testing.T) {
	t.Parallel()
	type row struct {
		kind rratelimiter.RateType
		sent bool // otherwise the call is behind another limiter's
	}
	all := []string{"TryAcquireAll", "TakeAll", "ReserveAll"}
	settling := []string{"Settle", "Cancel", "undo", "Renew"} // they go on without their caller
	limitertest.Named(t, limitertest.Calls(), func(t *testing.T, name string, open limitertest.Call) {
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
			ctx := limitertest.Within(t, 300*ms)
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
			takes := limitertest.Acquires[name] || slices.Contains(all, name)
			if takes && row.sent {
				checkPair(2)
			}
			close(held)
			if takes {
				checkPair(1)
			}
			require.NoError(t, s.Client.Close(t.Context()))
		})
	})
}

var leaveTests = map[string]limitertest.SceneTest[*limitertest.HeldScene]{
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
	// A timeout ends the wait in line though the last question, which is due at that moment, can't be sent.
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
}

func TestCallers_LeaveOrTheirClientCloses(t *testing.T) {
	t.Parallel()
	limitertest.OnScenes(t, leaveTests, limitertest.NewHeldScene)
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

// A hook sees what the caller's context holds, as with any call of go-redis.
func TestHooksSeeTheCallersContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	limitertest.Named(t, limitertest.Operations, func(t *testing.T, name string, call func(context.Context, *rratelimiter.RateLimiter) error) {
		limitertest.Virtual(t, limitertest.KindsOfContext, func(t *testing.T, rdb redistest.Client, with func(context.Context) context.Context) {
			l := limitertest.NewHandle(t, rdb, rratelimiter.WithExact()) // merging is no caller's
			limitertest.MustTrySetRate(t, l, limitertest.Every(2, time.Second))
			var calls, seen atomic.Int64
			rdb.AddHook(redistest.Hook(func(ctx context.Context, _ []redis.Cmder, next func() error) error {
				calls.Add(1)
				if ctx.Value(key{}) == name {
					seen.Add(1)
				}
				return next()
			}))
			require.NoError(t, call(with(context.WithValue(t.Context(), key{}, name)), l))
			assert.Positive(t, calls.Load())
			assert.Equal(t, calls.Load(), seen.Load())
		})
	})
}

func TestClose_WaitsForEveryCall(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, limitertest.Calls(), func(t *testing.T, open limitertest.Call) {
		s := limitertest.NewHeldScene(t, limitertest.Every(10, time.Hour))
		call, held := open(t, s.Client, s.RateLimiter), make(chan struct{})
		s.Proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Pass.When(held)))
		c := s.Go(func() (bool, error) { return true, call(t.Context()) })
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
		require.Equal(t, 10, limitertest.Grants(t, l, 10))
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

// waited is how a caller's wait ended, and when.
type waited struct {
	err  error
	took time.Duration
}

// within calls f with a context that ends after that time, if it is not 0.
func within(t *testing.T, deadline time.Duration, f func(context.Context) error) waited {
	t.Helper()
	ctx := t.Context()
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	start := time.Now()
	err := f(ctx)
	return waited{err, time.Since(start)}
}

func requireHopeless(t *testing.T, w waited, took time.Duration, text string) {
	t.Helper()
	require.ErrorIs(t, w.err, context.DeadlineExceeded)
	assert.ErrorContains(t, w.err, `Wait "orders": no permit is free before the deadline, the next one is in `+text)
	assert.Equal(t, took, w.took)
}

// A waitTest is a test of two Clients' handles of a limiter of one permit a minute, which is in use.
type waitTest struct {
	opts []rratelimiter.LimiterOption
	run  func(t *testing.T, l, other *rratelimiter.RateLimiter)
}

// tooEarly is a wait that ends once its deadline is known to be too early: a minute, and then 50 s, before a permit is free.
func tooEarly(minute, less string) func(t *testing.T, l, other *rratelimiter.RateLimiter) {
	return func(t *testing.T, l, _ *rratelimiter.RateLimiter) {
		requireHopeless(t, within(t, 2*time.Second, l.Wait), 0, minute)
		time.Sleep(10 * time.Second)
		requireHopeless(t, within(t, 49*time.Second, l.Wait), 0, less)
		assert.Equal(t, waited{nil, 50 * time.Second}, within(t, 51*time.Second, l.Wait))
		assert.Equal(t, waited{nil, time.Minute}, within(t, 0, l.Wait))
	}
}

var waitTests = map[string]waitTest{
	"ends at once":                {run: tooEarly("1m0s", "50s")},
	"ends at once with a policy":  {[]rratelimiter.LimiterOption{rratelimiter.WithFailure(limit.FailLocal(1))}, tooEarly("1m0s", "50s")},
	"ends at once beside a lease": {fromMemory, tooEarly("", "")}, // whose callers ask again at different times
	// A refusal that is remembered tells it without a round trip, as long as it lasts.
	"ends by a remembered refusal": {remembering, func(t *testing.T, l, other *rratelimiter.RateLimiter) {
		limitertest.MustRefuse(t, l, 1)
		time.Sleep(time.Second / 2)
		require.NoError(t, other.Release(t.Context(), 1)) // by another program
		requireHopeless(t, within(t, 2*time.Second, l.Wait), 0, "59.5s")
		time.Sleep(time.Second)
		assert.Equal(t, waited{}, within(t, 2*time.Second, l.Wait))

		limitertest.MustRefuse(t, l, 1)
		assert.Equal(t, waited{nil, time.Minute}, within(t, 2*time.Minute, l.Wait), "it may wait so long")
	}},
	// A permit that is free at the deadline is not too late.
	"lasts if a permit is free at the deadline": {run: func(t *testing.T, l, _ *rratelimiter.RateLimiter) {
		assert.Equal(t, time.Minute, within(t, time.Minute, l.Wait).took)
	}},
	// Acquire and TryAcquire wait for their whole time, as Redisson's do: permits may be released.
	"Acquire waits though its deadline is known to be too early": {run: func(t *testing.T, l, other *rratelimiter.RateLimiter) {
		acquire := func(ctx context.Context) error { return l.Acquire(ctx, 1) }
		w := within(t, 2*time.Second, acquire)
		require.ErrorIs(t, w.err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Second, w.took)
		w = within(t, 0, func(ctx context.Context) error {
			ok, err := l.TryAcquire(ctx, 1, 2*time.Second)
			assert.False(t, ok)
			return err
		})
		assert.Equal(t, waited{nil, 2 * time.Second}, w)
		time.AfterFunc(time.Second, func() { assert.NoError(t, l.Release(t.Context(), 1)) })
		assert.Equal(t, waited{nil, time.Second}, within(t, 10*time.Second, acquire))
		assert.Zero(t, limitertest.Available(t, other))
	}},
	// So it is behind others in line, and for those whose permit another program takes.
	"ends in line": {run: func(t *testing.T, l, other *rratelimiter.RateLimiter) {
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- l.Acquire(ctx, 1) }()
		time.Sleep(time.Second)
		w := within(t, 30*time.Second, l.Wait)
		requireHopeless(t, w, w.took, "59s")
		assert.Less(t, w.took, time.Second/10)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)

		// The permit comes in 59 s, and goes to another.
		hopeful := make(chan waited, 1)
		go func() { hopeful <- within(t, 90*time.Second, l.Wait) }()
		synctest.Wait()
		require.NoError(t, other.Release(t.Context(), 1))
		limitertest.MustAcquire(t, other, 1)
		time.Sleep(31 * time.Second)
		require.NoError(t, other.Reset(t.Context()))
		limitertest.MustAcquire(t, other, 1)
		w = <-hopeful
		require.ErrorIs(t, w.err, context.DeadlineExceeded)
		assert.ErrorContains(t, w.err, "no permit is free before the deadline")
		assert.Less(t, w.took, 35*time.Second, "it asks again from time to time")
	}},
}

func TestWait_EndsOnceItsDeadlineIsKnownToBeTooEarly(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, waitTests, func(t *testing.T, rdb redistest.Client, test waitTest) {
		opts := append(slices.Clone(test.opts), rratelimiter.WithDefault(limitertest.Every(1, time.Minute)))
		l, other := limitertest.NewClient(t, rdb).RateLimiter("orders", opts...), limitertest.NewClient(t, rdb).RateLimiter("orders", opts...)
		limitertest.MustAcquire(t, other, 1)
		test.run(t, l, other)
	})
}

// So it is with more permits, and behind those in line who want fewer.
func TestWaitN_EndsOnceItsDeadlineIsKnownToBeTooEarly(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("user:", limitertest.Every(10, time.Minute))
		waitN := func(n int64) func(context.Context) error {
			return func(ctx context.Context) error { return keyed.WaitN(ctx, "ann", n) }
		}
		hopeless := func(in string) {
			w := within(t, 30*time.Second, waitN(6))
			require.ErrorIs(t, w.err, context.DeadlineExceeded)
			assert.ErrorContains(t, w.err, `WaitN "user:ann": fewer than 6 permits are free before the deadline, so many are in `+in)
			assert.Less(t, w.took, time.Second/10)
		}
		require.NoError(t, waitN(5)(t.Context()))
		hopeless("1m0s")
		require.ErrorIs(t, within(t, 30*time.Second, waitN(11)).err, rratelimiter.ErrPermitsExceedRate)
		require.ErrorIs(t, within(t, 30*time.Second, waitN(0)).err, rratelimiter.ErrInvalidPermits)
		require.NoError(t, waitN(5)(t.Context()))
		first := make(chan waited, 1)
		go func() { first <- within(t, 0, waitN(3)) }()
		synctest.Wait()
		hopeless("59.9")
		assert.Equal(t, time.Minute, (<-first).took.Round(time.Second))
		require.NoError(t, keyed.Wait(t.Context(), "bob"))
		require.NoError(t, keyed.WaitN(t.Context(), "bob", 9))
	})
}

// While a server hangs and go-redis waits on, requests whose callers have gone hold up no Close.
func TestClose_DoesNotWaitForCallersThatHaveGone(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]int{"pool of 2": 2, "pool of 20": 20}, func(t *testing.T, pool int) {
		_, m := redistest.Mini(t)
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: pool})
		back := make(chan struct{})
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, _ func() error) error {
			<-back
			return errors.New("the server has gone")
		}))
		defer synctest.Wait()
		defer close(back)
		c := rratelimiter.New(rdb)
		cfg := limitertest.Every(10, time.Hour)
		both := limitertest.Claims(1, limitertest.ByDefault(c, "{a}1", cfg), limitertest.ByDefault(c, "{a}2", cfg))
		for range 20 {
			limitertest.Together(100, func(int) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				assert.Error(t, limitertest.Second(c.TakeAll(ctx, both...)))
			})
		}
		ctx := limitertest.Within(t, 2*time.Minute)
		assert.NoError(t, c.Close(ctx))
	})
}

const (
	ms      = time.Millisecond
	forever = limitertest.Forever
)

func TestMain(m *testing.M) { limitertest.Main(m) }

func failed(t *testing.T, target error, at time.Duration, callers ...*limitertest.Caller) {
	t.Helper()
	for _, c := range callers {
		c.RequireEnd(t, target, at)
	}
}

// Calls that one script call can't decide together go in one flight, so that callers of several kinds wait no longer than callers of one.
func TestCallers_OfSeveralKindsShareFlights(t *testing.T) {
	t.Parallel()
	const callers, rounds, trip = 256, 10, 10 * ms
	type call = func(ctx context.Context, l *rratelimiter.RateLimiter) error
	tries := func(ctx context.Context, l *rratelimiter.RateLimiter) error {
		return limitertest.Granted(l.TryAcquire(ctx, 1, 0))
	}
	limitertest.Bubbles(t, map[string]call{
		"of another default": tries,
		"TakeUpTo": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			_, _, err := l.TakeUpTo(ctx, 10)
			return err
		},
		"Reserve": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			return limitertest.Second(l.Reserve(ctx, 1, 0))
		},
	}, func(t *testing.T, other call) {
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		l, beside := limitertest.ByDefault(c, "orders", rratelimiter.PerHour(1<<40)), limitertest.ByDefault(c, "orders", rratelimiter.PerHour(1<<41))
		require.NoError(t, errors.Join(tries(t.Context(), l), other(t.Context(), beside)), "the server knows the scripts, and the limiter its rate")
		start := time.Now()
		limitertest.Together(callers, func(i int) {
			for range rounds {
				if i%2 == 0 {
					assert.NoError(t, tries(t.Context(), l))
				} else {
					assert.NoError(t, other(t.Context(), beside))
				}
			}
		})
		assert.LessOrEqual(t, time.Since(start), 3*rounds*trip, callers*rounds)
		synctest.Wait()
		require.NoError(t, c.Close(t.Context()))
	})
}
