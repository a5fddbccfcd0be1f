package faults_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Whatever its attempts meet, and with each layout of members, a call happens once. One that is not repeated says so if it
// can't know whether it has.
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
	w.runs = !v.once || fault != "cut"
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

// A Settle that failed is repeated with the same number, and charges once, also if the first
// arrives last.
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

// aboveRate asks for more than the rate, and is answered so.
var aboveRate = verb{scripts: []*lua.Script{lua.Acquire}, do: func(t *testing.T, w *bundle) (three, error) {
	require.ErrorIs(t, limitertest.Second(w.TryAcquire(t.Context(), 11, 0)), rratelimiter.ErrPermitsExceedRate)
	return three{}, nil
}}

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

// interfere runs test for each row and layout.
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
		"batch of Reserve, refused, others released since": {asks(6, []int64{0, 3}, reserve(5, 3)...), releases(three{}, three{6}), three{6}},
		"TryAcquire, granted, some released since":         {asks(2, []int64{5}, try(5)...), releases(three{2}, three{}), three{2}},
		"TryAcquire, granted, all released since":          {asks(2, []int64{5}, try(5)...), releases(three{5}, three{}), three{5}},
		"batch, granted, few are free":                     {asks(0, []int64{3, 3}, try(3, 3)...), releases(three{}, three{}), three{}},
		"batch, granted, some released since":              {asks(2, []int64{3, 2}, try(3, 2)...), releases(three{2}, three{}), three{2}},
		"batch, granted in part, some released since":      {asks(4, []int64{3, 0, 2}, try(3, 4, 2)...), releases(three{1}, three{}), three{1}},
		"batch, granted in part, all released since":       {asks(4, []int64{3, 0, 2}, try(3, 4, 2)...), releases(three{5}, three{}), three{5}},
		"Settle, all released since":                       {settleCase{used: 9}.settles(), releases(three{100}, three{}), three{11}},
		"TryAcquire above the rate, a higher rate since": {aboveRate, func(t *testing.T, w *bundle) {
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
			more, err := call()
			require.NoError(t, err)
			held := tt.inUse.add(more)
			w.checkSoon(t, held, "before")
			tt.interferes(t, w)
			w.checkSoon(t, held.minus(tt.given), "after")
			w.LetGo()
			w.checkAll(t, held.minus(tt.given), fault)
		}
	})
}

// The same for a change between an attempt whose answer was lost and its repeat, by another Client. A member in one limiter
// shows that all were charged.
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

// A caller whose request was granted holds its permits, less those that another gave back if
// it was granted before; another holds none. Of a batch none can say whose were
// given back.
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
