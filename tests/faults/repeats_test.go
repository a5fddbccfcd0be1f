package faults_test

import (
	"context"
	"fmt"
	"sync"
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
)

func TestRepeat_OfSeveralCalls(t *testing.T) {
	t.Parallel()
	type row struct {
		inUse   int64
		refused int64 // of the three requests the one that is too large
		before  func(t *testing.T, w *limitertest.Wire)
		during  map[int]func(t *testing.T, w *limitertest.Wire) // before that call
		others  int64                                           // in use in the end, by others
	}
	newer := func(t *testing.T, w *limitertest.Wire) { w.ManyRows(t, -time.Millisecond, 600) }
	older := func(t *testing.T, w *limitertest.Wire) { w.ManyRows(t, time.Minute, 600) }
	limitertest.VirtualServer(t, map[string]row{
		"for newer members": {1400, 900, nil, map[int]func(*testing.T, *limitertest.Wire){2: newer}, 1400 + 600},
		// The members searched so far are released, so the attempt's is among those already
		// passed.
		"for newer members that go": {1400, 900, nil, map[int]func(*testing.T, *limitertest.Wire){
			2: newer,
			3: func(t *testing.T, w *limitertest.Wire) {
				w.NewestGo(t, 500)
				assert.NoError(t, w.Other.Release(t.Context(), 1000))
			},
		}, 400 + 100},
		"for members that ran out": {800, 850, older, map[int]func(*testing.T, *limitertest.Wire){
			2: func(t *testing.T, w *limitertest.Wire) {
				for _, member := range w.Redis.ZRange(t.Context(), w.Keys.Permits, 0, 599).Val() {
					assert.NoError(t, w.Redis.ZIncrBy(t.Context(), w.Keys.Permits, -float64(time.Hour.Milliseconds()), member).Err())
				}
			},
		}, 800},
		"for a value that was lost": {1300, 900, older, map[int]func(*testing.T, *limitertest.Wire){
			2: func(t *testing.T, w *limitertest.Wire) {
				assert.NoError(t, w.Redis.Del(t.Context(), w.Keys.Value).Err())
			},
		}, 1300 + 600},
	}, func(t *testing.T, rdb redistest.Client, tt row) {
		w := newWire(t, rdb, 2500, tt.inUse)
		if tt.before != nil {
			tt.before(t, w)
		}
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch during := tt.during[n]; {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && during != nil:
				w.Proxy.Settle(t)
				during(t, w)
			}
			return redistest.Pass
		})
		got := w.Ask(t, limitertest.TryFor(300), limitertest.TakeFor(tt.refused), limitertest.TryFor(200))
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.CheckHeld(t, tt.others+500, "repeated")
	})
}

func TestTryAcquireAll_AttemptArrivesDuringRepeat(t *testing.T) {
	t.Parallel()
	for arrives := 1; arrives <= 4; arrives++ {
		eachLayout(t, fmt.Sprint("after call ", arrives-1), func(t *testing.T, rdb redistest.Client, version string) {
			w := newBundle(t, rdb, 1000, version)
			for i, each := range w.each {
				limitertest.MustAcquire(t, w.others[i], 1)
				limitertest.AddGrants(t, w.Redis, each.Keys.Permits, 0, 400, 1)
				require.NoError(t, w.Redis.DecrBy(t.Context(), each.Keys.Value, 400).Err())
			}
			arrived := arrives == 1
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				switch {
				case s != lua.AcquireAll:
				case n == 1 && arrives == 1:
					return redistest.Cut // it never does
				case n == 1:
					return redistest.Late.When(w.Held)
				case arrives > 1 && n == arrives+1:
					w.LetGo() // the late attempt charges the first limiter
					arrived = assert.Eventually(t, func() bool {
						return limitertest.InUse(t, w.Redis, w.each[0].Keys.Permits) > 1+400
					}, time.Minute, time.Millisecond)
				}
				return redistest.Pass
			})
			w.mustTryAll(t, 3)
			w.LetGo()
			w.checkAll(t, three{404, 404, 404}, "repeated")
			assert.True(t, arrived)
		})
	}
}

// A short interval's member has run out and gone before the repeat: the others
// tell that it was there.
func TestTryAcquireAll_RepeatKnowsWhatHasRunOut(t *testing.T) {
	t.Parallel()
	eachLayout(t, "run out", func(t *testing.T, rdb redistest.Client, version string) {
		client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
		f := limitertest.NewFamilyOf(t, client, limitertest.Every(2, time.Millisecond), limitertest.Every(10, time.Hour))
		others := f.SeenBy(limitertest.NewClient(t, rdb))
		lose(t, rdb, 1, func() {
			time.Sleep(2 * time.Millisecond)
			limitertest.MustAcquire(t, others.Limiters[0], 1)
		})
		assert.True(t, f.Try(t, 2))
		assert.EqualValues(t, 8, limitertest.Available(t, f.Limiters[1]))
		assert.EqualValues(t, 2, limitertest.InUse(t, rdb, limitertest.KeysOf(f.Limiters[1]).Permits))
	})
}

// A repeat may be on its way for as long as a call lasts. What the first attempt did is no younger by that.
func TestRepeat_LongOnItsWayFindsFirstAttempt(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(t *testing.T, f *limitertest.Family) bool{
		"TryAcquire":    func(t *testing.T, f *limitertest.Family) bool { return limitertest.Try(t, f.Limiters[0], 5) },
		"TryAcquireAll": func(t *testing.T, f *limitertest.Family) bool { return f.Try(t, 5) },
	} {
		eachLayout(t, name, func(t *testing.T, rdb redistest.Client, version string) {
			client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version), rratelimiter.WithCallTimeout(9*time.Second))
			f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
			calls := 0
			rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
				if redistest.Calls(cmds[0], lua.Acquire.SHA) || redistest.Calls(cmds[0], lua.AcquireAll.SHA) {
					if calls++; calls == 2 {
						time.Sleep(2900 * time.Millisecond)
					}
				}
			}))
			lose(t, rdb, 1, func() {})
			assert.True(t, try(t, f))
			assert.EqualValues(t, 5, limitertest.Available(t, f.Limiters[0]))
			assert.Equal(t, 2, calls)
		})
	}
}

// A Release of the same Client waits for the repeat: until then the permits to release are
// unknown.
func TestRelease_WaitsForCallInDoubt(t *testing.T) {
	t.Parallel()
	type row struct {
		script   *lua.Script
		limiters int
	}
	limitertest.VirtualServer(t, map[string]row{
		"TryAcquire": {lua.Acquire, 1}, "TryAcquireAll": {lua.AcquireAll, 3},
	}, func(t *testing.T, rdb redistest.Client, r row) {
		w := newBundle(t, rdb, 10, "4.7.0")
		w.own = w.own[:r.limiters]
		w.mustTryAll(t, 4)
		var released sync.WaitGroup
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == r.script && n == 1:
				for _, l := range w.own {
					released.Go(func() { assert.NoError(t, l.Release(context.Background(), 4)) })
				}
				return redistest.DropAnswer
			case s == r.script && n == 2:
				assert.Zero(t, w.Sent(lua.Release))
			}
			return redistest.Pass
		})
		w.mustTryAll(t, 5)
		released.Wait()
		assert.Equal(t, r.limiters, w.Sent(lua.Release))
		for i, each := range w.each[:r.limiters] {
			each.CheckHeld(t, 5, w.own[i].Name())
		}
	})
}

// A member to give back is found by its id if others have shrunk it, however many newer members
// come and go meanwhile.
func TestGiveBackFindsItsMember(t *testing.T) {
	t.Parallel()
	limitertest.VirtualServer(t, map[string]map[int]int{ // how many members come before each call; below 0: go
		"behind few":           {1: 100},
		"behind many":          {1: 1000},
		"behind many that go":  {1: 1000, 2: -900},
		"behind more and more": {1: 300, 2: 300, 3: 300},
	}, func(t *testing.T, rdb redistest.Client, come map[int]int) {
		w := newWire(t, rdb, 2000, 0)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		others := 0
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch s {
			case lua.Acquire:
				cancel()
				<-gone
			case lua.GiveBack:
				if n == 1 {
					assert.NoError(t, w.Other.Release(t.Context(), 2))
				}
				if come[n] < 0 {
					w.NewestGo(t, int64(-come[n]))
				} else if come[n] > 0 {
					w.ManyRows(t, -time.Millisecond, come[n])
				}
				others += come[n]
			}
			return redistest.Pass
		})
		require.ErrorIs(t, limitertest.Second(w.TryAcquire(ctx, 5, 0)), context.Canceled)
		close(gone)
		require.NoError(t, w.Client.Close(t.Context()))
		w.CheckHeld(t, int64(others), "given back")
	})
}

// A Release that comes after a give-back whose answer was lost does not meet it half way.
func TestReleaseAfterAGiveBackInDoubt(t *testing.T) {
	t.Parallel()
	redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
		w := newWire(t, rdb, 10, 2)
		w.On(lua.GiveBack, redistest.DropAnswer, redistest.DropAnswer)
		got := w.CancelledInFlight(t, []int64{3, 4}, []bool{true, false})
		assert.EqualValues(t, 4, limitertest.Sum(got))
		require.NoError(t, w.Release(t.Context(), 4))
		w.CheckHeld(t, 2, "released")
	})
}

// Grants of one call share a member. An undo whose request was lost is not mistaken for one
// that has run because another has shrunk the member meanwhile.
func TestGiveBack_GrantsOfOneCallAreToldApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewHeldScene(t, limitertest.Every(100, time.Hour))
		keyed := s.Client.Keyed("", limitertest.Every(100, time.Hour), rratelimiter.WithExact())
		letGo := s.Hold(t, lua.Acquire, 1)
		first := s.StartTryAcquire(t.Context(), 1, 0)
		undo := make([]func(context.Context) error, 10)
		over := limitertest.Go(func() {
			limitertest.Together(len(undo), func(i int) {
				var err error
				_, undo[i], err = keyed.TakeReturnable(t.Context(), s.Name(), 1)
				assert.NoError(t, err)
			})
		})
		synctest.Wait()
		letGo()
		<-over
		require.Equal(t, "true at 0s", first.Outcome())
		set := limitertest.KeysOf(s.RateLimiter).Permits
		require.EqualValues(t, 2, s.Mini.ZCard(t.Context(), set).Val(), "the first, and all others as one")
		for _, undo := range undo[4:] {
			require.NoError(t, undo(t.Context()))
		}
		s.CheckInUse(t, 100, 1+4)

		s.Proxy.OnCommand(redistest.Nth(1, lua.GiveBack.SHA, redistest.Cut))
		limitertest.Together(4, func(i int) { assert.NoError(t, undo[i](t.Context())) })
		s.CheckInUse(t, 100, 1)
	})
}
