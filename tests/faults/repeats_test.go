package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// Whatever its attempts meet, with each layout, a call happens once. One that is not repeated says so if it can't know.
func TestVerb_HappensOnce(t *testing.T) {
	t.Parallel()
	for _, fault := range slices.Concat(lossy, tardy, twice) {
		layouts := map[string][]string{"waiting": slices.Collect(maps.Values(limitertest.MembersOf))} // takes long: all layouts at once
		for layout, version := range limitertest.MembersOf {
			layouts[layout] = []string{version}
		}
		for layout, versions := range layouts {
			t.Run(cmp.Or(fault, "no fault")+", "+layout, func(t *testing.T) {
				t.Parallel()
				redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
					var all sync.WaitGroup
					for what, v := range verbs() {
						for _, version := range versions {
							if v.waits == (layout == "waiting") {
								all.Go(func() { v.happensOnce(t, rdb, what+", "+version, fault, version) })
							}
						}
					}
					all.Wait()
				})
			})
		}
	}
}

func (v verb) happensOnce(t *testing.T, rdb redistest.Client, what, fault, version string) {
	lost := fault != "" && !slices.Contains(twice, fault)
	brief := !strings.Contains(fault, "+") && (version == limitertest.MembersOf["D2 merged"] || version == limitertest.MembersOf["C"])
	if lost && v.whole || v.brief && !brief || fault == "double, last" && shortIDs(version) {
		return
	}
	w := v.wires(t, rdb, 10, version)
	w.runs, w.alone = !v.once || fault != "cut", fault != "double, last"
	call := v.begin(t, w)
	w.take(t, v.inUse)
	w.meet(fault, v.scripts)
	more, err := call()
	held := v.inUse.add(more)
	switch {
	case v.once && lost:
		assert.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome, what)
		assert.ErrorContains(t, err, w.Name(), what)
	case !v.once || fault != "double, last": // the second time may be answered otherwise
		assert.NoError(t, err, what)
		w.checkSoon(t, held, what)
	}
	w.LetGo()
	w.checkAll(t, held, what)
	if w.check != nil {
		w.check(what)
	}
	if v.once && !v.whole {
		assert.Equal(t, 1, w.sent(), "%s: it is not repeated", what)
	}
}

// A Settle that failed is repeated with the same number, and charges once, also if the first arrives last.
func TestSettle_RepeatAfterErrorChargesOnce(t *testing.T) {
	t.Parallel()
	for _, used := range []int64{0, 1, 9, 20} {
		eachLayout(t, fmt.Sprint(used), func(t *testing.T, rdb redistest.Client, version string) {
			for _, fault := range []redistest.Action{redistest.Cut, redistest.DropAnswer, redistest.Swallow, redistest.Late} {
				w := limitertest.NewWire(t, rdb, limitertest.Hourly(10), false,
					rratelimiter.WithRedissonVersion(version), rratelimiter.WithCallTimeout(500*time.Millisecond))
				r := limitertest.Reserve(t, w.RateLimiter, 4)
				w.OnScript(func(s *lua.Script, _ int) redistest.Action {
					if s == lua.SettleReservation {
						return fault.When(w.Held)
					}
					return redistest.Pass
				})
				require.ErrorIs(t, r.Settle(t.Context(), used), rratelimiter.ErrUnavailable)
				require.ErrorIs(t, r.Settle(t.Context(), 5), rratelimiter.ErrSettled)
				w.On(lua.SettleReservation)
				require.Eventually(t, func() bool { return r.Settle(t.Context(), used) == nil }, time.Minute, time.Millisecond)
				w.LetGo()
				w.CheckHeld(t, used, "when all had arrived")
			}
		})
	}
}

// A charge that may have been made, and would have run out since, is not made again.
func TestSettle_RepeatAfterIntervalChargesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		l := limitertest.NewClient(t, proxy.Client(t, nil)).RateLimiter("limiter", rratelimiter.WithDefault(limitertest.Every(10, time.Minute)))
		r := limitertest.Reserve(t, l, 4)
		proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.DropAnswer })
		require.ErrorIs(t, r.Settle(t.Context(), 9), rratelimiter.ErrUnknownOutcome)
		proxy.OnCommand(nil)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 10, limitertest.Available(t, l), "no trace of it is left")
		require.ErrorIs(t, r.Settle(t.Context(), 9), rratelimiter.ErrUnknownOutcome)
		assert.EqualValues(t, 10, limitertest.Available(t, l))
	})
}

// releases gives back permits of each limiter, by handles of its own Client and of another.
func releases(own, others three) func(t *testing.T, w *bundle) {
	return func(t *testing.T, w *bundle) {
		release(t, w.own, own)
		release(t, w.others, others)
	}
}

// ends lets an override of each limiter's rate be over: that rate is back then.
func ends(rate int64) func(t *testing.T, w *bundle) {
	return func(t *testing.T, w *bundle) {
		for _, each := range w.each {
			each.Rate = rate
			override := fmt.Sprintf("1000 %d 3600000 0", rate)
			assert.NoError(t, w.Redis.HSet(t.Context(), each.Name(), "interval", "03600000", "override", override).Err())
		}
	}
}

// An interference is what happens to a verb's limiters while a request of it is on its way.
type interference struct {
	verb
	interferes func(t *testing.T, w *bundle)
	given      three // back by that
}

func interfere(t *testing.T, rows map[string]interference, test func(t *testing.T, rdb redistest.Client, tt interference, version string)) {
	t.Helper()
	for name, tt := range rows {
		eachLayout(t, name, func(t *testing.T, rdb redistest.Client, version string) { test(t, rdb, tt, version) })
	}
}

// What happens to a limiter between an attempt whose request is late and the
// late request itself must not let that take permits that no caller holds.
func TestVerb_LateRequestTakesNothing(t *testing.T) {
	t.Parallel()
	interfere(t, map[string]interference{
		"TryAcquire, refused, permits released since":      {asks(10, []int64{0}, try(3)...), releases(three{}, three{8}), three{8}},
		"batch of Reserve, refused, others released since": {asks(6, []int64{0, 3}, reserve(nil, 5, 3)...), releases(three{}, three{6}), three{6}},
		"TryAcquire, granted, some released since":         {asks(2, []int64{5}, try(5)...), releases(three{2}, three{}), three{2}},
		"TryAcquire, granted, all released since":          {asks(2, []int64{5}, try(5)...), releases(three{5}, three{}), three{5}},
		"batch, granted, few are free":                     {asks(0, []int64{3, 3}, try(3, 3)...), releases(three{}, three{}), three{}},
		"batch, granted, some released since":              {asks(2, []int64{3, 2}, try(3, 2)...), releases(three{2}, three{}), three{2}},
		"batch, granted in part, some released since":      {asks(4, []int64{3, 0, 2}, try(3, 4, 2)...), releases(three{1}, three{}), three{1}},
		"batch, granted in part, all released since":       {asks(4, []int64{3, 0, 2}, try(3, 4, 2)...), releases(three{5}, three{}), three{5}},
		"Settle, all released since":                       {settleCase{used: 9}.settles(), releases(three{100}, three{}), three{11}},
		"TryAcquire above the rate, a higher rate since": {verb{scripts: []*lua.Script{lua.Acquire}, do: func(t *testing.T, w *bundle) (three, error) {
			require.ErrorIs(t, limitertest.Second(w.TryAcquire(t.Context(), 11, 0)), rratelimiter.ErrPermitsExceedRate)
			return three{}, nil
		}}, func(t *testing.T, w *bundle) {
			w.Rate = 19
			require.NoError(t, limitertest.Second(w.Other.UpdateRate(t.Context(), limitertest.Hourly(19), rratelimiter.KeepState())))
		}, three{}},
		"TryAcquire, refused, an override is over since": {asks(10, []int64{0}, try(3)...), ends(20), three{}},
		"TryAcquireAll, refused, released since":         {takesAll(three{2, 9, 0}, 3, 0, 0), releases(three{}, three{0, 8, 0}), three{0, 8, 0}},
		"TryAcquireAll, some released of one since":      {takesAll(three{2, 0, 1}, 3, 0, 3), releases(three{2, 0, 0}, three{}), three{2, 0, 0}},
		"TryAcquireAll, one made anew since": {takesAll(three{}, 3, 0, 3), func(t *testing.T, w *bundle) {
			require.NoError(t, w.others[2].SetRate(t.Context(), limitertest.Hourly(10)))
		}, three{0, 0, 3}},
		"TryAcquireAll, all released, one forgotten": {takesAll(three{}, 3, 0, 3), func(t *testing.T, w *bundle) {
			release(t, w.own, three{3, 3, 3})
			require.NoError(t, w.Redis.HDel(t.Context(), w.own[0].Name(), "answered").Err())
			require.NoError(t, w.Redis.HDel(t.Context(), w.own[2].Name(), "answered").Err())
		}, three{3, 3, 3}},
	}, func(t *testing.T, rdb redistest.Client, tt interference, version string) {
		for _, fault := range []string{"late", "drop+late"} { // the attempt, or its repeat
			if fault != "late" && tt.scripts[0] == lua.SettleReservation {
				continue // if all is given back, of the charge and of what was reserved, it is charged again
			}
			w := tt.wires(t, rdb, 10, version)
			call := tt.begin(t, w)
			w.take(t, tt.inUse)
			w.meet(fault, tt.scripts)
			more := limitertest.Must(call())(t)
			held := tt.inUse.add(more)
			w.checkSoon(t, held, "before")
			tt.interferes(t, w)
			w.checkSoon(t, held.minus(tt.given), "after")
			w.LetGo()
			w.checkAll(t, held.minus(tt.given), fault)
		}
	})
}

// The same for another Client's change between an attempt whose answer was lost and its repeat: all were charged if one was.
func TestVerb_HappensOnceThoughOthersInterfere(t *testing.T) {
	t.Parallel()
	rate := func(rate int64, opts ...rratelimiter.RateOption) func(*testing.T, *bundle) {
		return func(t *testing.T, w *bundle) {
			w.Rate = rate
			assert.NoError(t, w.Other.SetRate(t.Context(), limitertest.Hourly(rate), opts...))
		}
	}
	keep, all := rratelimiter.KeepState(), takesAll(three{}, 5, 0, 5)
	interfere(t, map[string]interference{
		"one, Release of some":                       {asks(0, nil, try(5)...), releases(three{}, three{2}), three{2}},
		"batch, Release of some":                     {asks(0, nil, try(2, 3)...), releases(three{}, three{2}), three{2}},
		"batch granted in part, Release of some":     {asks(0, nil, try(4, 7, 4)...), releases(three{}, three{1}), three{1}},
		"one, a lower rate":                          {asks(0, nil, try(5)...), rate(3, keep), three{}},
		"one, a higher rate":                         {asks(0, nil, try(5)...), rate(30, keep), three{}},
		"one, an override is over":                   {asks(0, nil, try(5)...), ends(20), three{}},
		"batch granted in part, an override is over": {asks(0, nil, try(4, 7, 4)...), ends(20), three{}},
		"batch, a higher override is over":           {asks(0, nil, try(2, 4, 1)...), ends(3), three{}},
		"all, overrides are over":                    {all, ends(20), three{}},
		"one, a new start":                           {asks(0, nil, try(5)...), rate(10), three{}},
		"one, the value is lost": {asks(0, nil, try(5)...), func(t *testing.T, w *bundle) {
			assert.NoError(t, w.Redis.Del(t.Context(), w.Keys.Value).Err())
		}, three{}},
		"batch granted in part, others take the rest": {asks(0, nil, try(4, 9, 4)...), func(t *testing.T, w *bundle) {
			w.take(t, three{2})
		}, three{-2}},
		"all, some of each released":    {all, releases(three{}, three{2, 2, 2}), three{2, 2, 2}},
		"all, all of two released":      {all, releases(three{}, three{5, 5, 0}), three{5, 5, 0}},
		"all, a new start of the first": {all, rate(10), three{5, 0, 0}},
		"all, others take the rest":     {all, func(t *testing.T, w *bundle) { w.take(t, three{5, 0, 4}) }, three{-5, 0, -4}},
		"all, the values are lost": {all, func(t *testing.T, w *bundle) {
			assert.NoError(t, w.Redis.Del(t.Context(), w.each[0].Keys.Value, w.each[1].Keys.Value).Err())
		}, three{}},
		"all, a lower rate of the second": {all, func(t *testing.T, w *bundle) {
			w.each[1].Rate = 2
			assert.NoError(t, w.others[1].SetRate(t.Context(), limitertest.PerClient(2, time.Hour), keep))
		}, three{}},
		"all, the first is gone": {all, func(t *testing.T, w *bundle) {
			assert.NoError(t, limitertest.Second(w.others[0].Delete(t.Context())))
		}, three{5, 0, 0}},
		"all, many newer members": {all, func(t *testing.T, w *bundle) {
			for _, each := range w.each {
				each.Rate += 600
				each.ManyRows(t, -time.Millisecond, 600)
				assert.NoError(t, w.Redis.HSet(t.Context(), each.Name(), "rate", each.Rate).Err())
				assert.NoError(t, w.Redis.IncrBy(t.Context(), each.Keys.Value, 600).Err())
			}
			release(t, w.others, three{600, 600, 601})
		}, three{0, 0, 1}},
	}, func(t *testing.T, rdb redistest.Client, tt interference, version string) {
		w := tt.wires(t, rdb, 10, version)
		w.meet("drop", tt.scripts, func(s *lua.Script, n int) {
			if s == tt.scripts[0] && n == 2 {
				w.Proxy.Settle(t)
				tt.interferes(t, w)
			}
		})
		if tt.several {
			w.mustTryAll(t, 5)
			for _, l := range w.others {
				_, _ = l.AvailablePermits(t.Context()) // makes the value that was lost
			}
			w.checkAll(t, three{5, 5, 5}.minus(tt.given), "repeated")
			return
		}
		checkInterfered(t, w, tt.requests, tt.given[0])
	})
}

// A caller whose request was granted holds its permits, less those that another gave back if it was granted before; another holds
// none. Of a batch none can say whose were given back.
func checkInterfered(t *testing.T, w *bundle, requests []limitertest.Request, given int64) {
	t.Helper()
	var granted int64
	if len(requests) > 1 {
		granted = limitertest.Sum(w.AskAny(t, requests...))
	} else {
		granted, _ = requests[0](w.Wire) // its permits may exceed the rate now
	}
	w.Proxy.Settle(t)
	inUse := limitertest.InUse(t, w.Redis, w.Keys.Permits)
	assert.GreaterOrEqual(t, inUse, granted-given, "permits in use, %d granted", granted)
	assert.LessOrEqual(t, inUse, granted+max(0, -given), "permits in use, %d granted", granted)
	if len(requests) == 1 {
		assert.Contains(t, []int64{granted, granted - given}, inUse, "permits in use, %d granted", granted)
	}
	free, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
	assert.Equal(t, w.Rate-inUse, free)
}

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
		// The members searched so far are released, so the attempt's is among those already passed.
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
		w := limitertest.NewWire(t, rdb, limitertest.Hourly(2500), false)
		limitertest.MustAcquire(t, w.Other, tt.inUse)
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
			w := verb{several: true}.wires(t, rdb, 1000, version)
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

// A short interval's member has run out and gone before the repeat: the others tell that it was there.
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

// A Release of the same Client waits for the repeat: until then the permits to release are unknown.
func TestRelease_WaitsForCallInDoubt(t *testing.T) {
	t.Parallel()
	type row struct {
		script   *lua.Script
		limiters int
	}
	limitertest.VirtualServer(t, map[string]row{
		"TryAcquire": {lua.Acquire, 1}, "TryAcquireAll": {lua.AcquireAll, 3},
	}, func(t *testing.T, rdb redistest.Client, r row) {
		w := verb{several: true}.wires(t, rdb, 10, "4.7.0")
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

// A member to give back is found by its id if others have shrunk it, however many newer members come and go meanwhile.
func TestGiveBackFindsItsMember(t *testing.T) {
	t.Parallel()
	limitertest.VirtualServer(t, map[string]map[int]int{ // how many members come before each call; below 0: go
		"behind few":           {1: 100},
		"behind many":          {1: 1000},
		"behind many that go":  {1: 1000, 2: -900},
		"behind more and more": {1: 300, 2: 300, 3: 300},
	}, func(t *testing.T, rdb redistest.Client, come map[int]int) {
		w := limitertest.NewWire(t, rdb, limitertest.Hourly(2000), false)
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
		w := limitertest.NewWire(t, rdb, limitertest.Hourly(10), false)
		limitertest.MustAcquire(t, w.Other, 2)
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
