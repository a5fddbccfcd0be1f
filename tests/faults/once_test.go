package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// onceCase is a call on a limiter of rate 10, with some permits in use by another Client, and
// its answer.
type onceCase struct {
	inUse     int64
	requests  []limitertest.Request
	want      []int64
	kind      rratelimiter.RateType
	byDefault bool
}

var onceCases = map[string]onceCase{
	"one granted":              {inUse: 2, requests: try(3), want: []int64{3}},
	"one granted all":          {inUse: 0, requests: try(10), want: []int64{10}},
	"one refused":              {inUse: 9, requests: try(3), want: []int64{0}},
	"Take granted":             {inUse: 2, requests: []limitertest.Request{limitertest.TakeFor(3)}, want: []int64{3}},
	"Take refused":             {inUse: 9, requests: []limitertest.Request{limitertest.TakeFor(3)}, want: []int64{0}},
	"all that are free":        {inUse: 2, requests: []limitertest.Request{limitertest.UpToFor(20)}, want: []int64{8}},
	"fewer than are free":      {inUse: 2, requests: []limitertest.Request{limitertest.UpToFor(3)}, want: []int64{3}},
	"as many as none":          {inUse: 10, requests: []limitertest.Request{limitertest.UpToFor(3)}, want: []int64{0}},
	"batch granted":            {inUse: 0, requests: try(1, 1, 2, 3), want: []int64{1, 1, 2, 3}},
	"batch granted, all used":  {inUse: 3, requests: try(1, 1, 2, 3), want: []int64{1, 1, 2, 3}},
	"batch granted in part":    {inUse: 4, requests: try(3, 1, 5, 2), want: []int64{3, 1, 0, 2}},
	"batch granted in part, 1": {inUse: 4, requests: try(3, 5, 2), want: []int64{3, 0, 2}},
	"batch refused":            {inUse: 9, requests: try(3, 2), want: []int64{0, 0}},
	"batch with Take": {
		inUse:    4,
		requests: []limitertest.Request{limitertest.TryFor(3), limitertest.TakeFor(1), limitertest.TakeFor(5), limitertest.TryFor(2)},
		want:     []int64{3, 1, 0, 2},
	},
	"batch of Reserve": {
		inUse:    4,
		requests: []limitertest.Request{limitertest.ReserveFor(3), limitertest.ReserveFor(1), limitertest.ReserveFor(5), limitertest.ReserveFor(2)},
		want:     []int64{3, 1, 0, 2},
	},
	"Reserve, each with its hold": {
		inUse:    1,
		requests: []limitertest.Request{limitertest.ReserveFor(3, hold), limitertest.ReserveFor(5), limitertest.ReserveFor(2, shorter)},
		want:     []int64{3, 5, 0},
	},
	"Reserve, held": {inUse: 2, requests: []limitertest.Request{limitertest.ReserveFor(3, hold)}, want: []int64{3}},
	"batch of Reserve, held": {
		inUse:    4,
		requests: []limitertest.Request{limitertest.ReserveFor(3, hold), limitertest.ReserveFor(5, hold), limitertest.ReserveFor(2, hold)},
		want:     []int64{3, 0, 2},
	},
	"batch beyond the rate":               {inUse: 4, requests: try(1, 2, 9), want: []int64{1, 2, 0}},
	"PER_CLIENT, one granted":             {inUse: 2, requests: try(3), want: []int64{3}, kind: rratelimiter.PerClient},
	"PER_CLIENT, batch granted in part":   {inUse: 4, requests: try(3, 1, 5, 2), want: []int64{3, 1, 0, 2}, kind: rratelimiter.PerClient},
	"set up by it, one granted":           {requests: try(3), want: []int64{3}, byDefault: true},
	"set up by it, batch granted in part": {requests: try(3, 1, 5, 2), want: []int64{3, 1, 5, 0}, byDefault: true},
}

var waitingCases = map[string]onceCase{
	"one that waits": {inUse: 9, requests: []limitertest.Request{leaves(3)}, want: []int64{0}},
	"batch with the line": {
		inUse:    4,
		requests: []limitertest.Request{limitertest.WaitFor(3, time.Minute), leaves(4), limitertest.TryFor(2), limitertest.TakeFor(2)},
		want:     []int64{3, 0, 2, 0},
	},
}

func TestAcquireHappensOnce(t *testing.T) {
	t.Parallel()
	underFaults(t, slices.Concat(lossy, tardy), onceCases, waitingCases, func(t *testing.T, c onceCase, what, fault, version string) {
		cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: time.Hour}
		w := limitertest.NewWire(t, redistest.Shared(t), cfg, c.byDefault, rratelimiter.WithRedissonVersion(version))
		if c.inUse > 0 {
			limitertest.MustAcquire(t, w.Other, c.inUse)
		}
		w.On(lua.Acquire, actions(fault, w.Held)...)
		got := w.Ask(t, c.requests...)
		assert.Equal(t, c.want, got, "%s: granted", what)
		w.CheckHeldSoon(t, c.inUse+limitertest.Sum(got), what)
		w.LetGo()
		w.CheckHeld(t, c.inUse+limitertest.Sum(got), what+", when all had arrived")
	})
}

// allCase is what is asked of a bundle of rate 10.
type allCase struct {
	inUse   three
	permits int64
	timeout time.Duration
	want    int64
}

// All limiters or none have been charged, once.
func TestTryAcquireAllHappensOnce(t *testing.T) {
	t.Parallel()
	cases := map[string]allCase{
		"granted":               {three{2, 0, 0}, 3, 0, 3},
		"granted all":           {three{}, 10, 0, 10},
		"refused by the first":  {three{9, 1, 0}, 3, 0, 0},
		"refused by the second": {three{0, 9, 3}, 3, 0, 0},
		"refused by the last":   {three{1, 2, 9}, 3, 0, 0},
		"refused by all":        {three{9, 9, 9}, 3, 0, 0},
	}
	waiting := map[string]allCase{"waiting": {three{9, 1, 2}, 3, time.Hour, 0}}
	faults := append(slices.Concat(lossy, tardy), "double")
	underFaults(t, faults, cases, waiting, func(t *testing.T, c allCase, what, fault, version string) {
		if fault == "double" && version != limitertest.MembersOf["D2"] && version != limitertest.MembersOf["D2 merged"] {
			return // the copy learns that the id is another's, and no caller waits for that
		}
		w := newBundleInUse(t, c.inUse, version)
		w.On(lua.AcquireAll, actions(fault, w.Held)...)
		ctx := context.Background()
		if c.timeout > 0 {
			ctx = leaving()
		}
		got, err := w.tryAll(ctx, c.permits, c.timeout)
		assert.True(t, err == nil || errors.Is(err, context.Canceled), "%s: %v", what, err)
		assert.Equal(t, c.want, got, what)
		w.LetGo()
		w.checkAll(t, c.inUse.plus(got), what)
	})
}

// settleCase is a reservation of a limiter of rate 10, and the permits that it costs.
type settleCase struct {
	reserved, used int64
	kind           rratelimiter.RateType
	released       int64 // by the other Client, before
}

// A reservation is settled once, whether it costs less or more.
func TestSettleHappensOnce(t *testing.T) {
	t.Parallel()
	cases := map[string]settleCase{
		"cancelled":             {reserved: 4},
		"less":                  {reserved: 4, used: 1},
		"more":                  {reserved: 4, used: 6},
		"more than are free":    {reserved: 4, used: 20},
		"PER_CLIENT, less":      {reserved: 4, used: 1, kind: rratelimiter.PerClient},
		"PER_CLIENT, more":      {reserved: 4, used: 20, kind: rratelimiter.PerClient},
		"less, some were taken": {reserved: 6, used: 1, released: 3},
		"more, some were taken": {reserved: 6, used: 8, released: 3},
		"less, all were taken":  {reserved: 6, used: 1, released: 10},
	}
	underFaults(t, slices.Concat(lossy, tardy), cases, nil, func(t *testing.T, c settleCase, what, fault, version string) {
		cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: time.Hour}
		w := limitertest.NewWire(t, redistest.Shared(t), cfg, false, rratelimiter.WithRedissonVersion(version))
		r := limitertest.Reserve(t, w.RateLimiter, c.reserved)
		held := c.used
		if c.released > 0 {
			require.NoError(t, w.Other.Release(t.Context(), c.released))
			held = min(c.used, max(0, c.reserved-c.released)) + max(0, c.used-c.reserved)
		}
		w.On(lua.SettleReservation, actions(fault, w.Held)...)
		require.NoError(t, r.Settle(t.Context(), c.used), what)
		w.CheckHeldSoon(t, held, what)
		w.LetGo()
		w.CheckHeld(t, held, what+", when all had arrived")
		require.ErrorIs(t, r.Settle(t.Context(), c.used), rratelimiter.ErrSettled)
	})
}

// A charge that others have given back since is not made by a late copy of its call.
func TestSettle_LateCopyChargesNothing(t *testing.T) {
	t.Parallel()
	eachLayout(t, "more", func(t *testing.T, version string) {
		w := newWireInUse(t, 10, 0, version)
		r := limitertest.Reserve(t, w.RateLimiter, 4)
		w.On(lua.SettleReservation, redistest.Late.When(w.Held))
		require.NoError(t, r.Settle(t.Context(), 9))
		require.NoError(t, w.Release(t.Context(), 9))
		w.CheckHeldSoon(t, 0, "released")
		w.LetGo()
		w.CheckHeld(t, 0, "the request arrived")
	})
}

// A Settle that failed is repeated with the same number, and charges once, also if the first
// arrives last.
func TestSettle_RepeatAfterErrorChargesOnce(t *testing.T) {
	t.Parallel()
	for _, used := range []int64{0, 1, 9, 20} {
		eachLayout(t, fmt.Sprint(used), func(t *testing.T, version string) {
			for _, fault := range []redistest.Action{redistest.Cut, redistest.DropAnswer, redistest.Swallow, redistest.Late} {
				var w *limitertest.Wire
				var r *rratelimiter.Reservation
				for err := rratelimiter.ErrUnavailable; err != nil; { // how long a machine may stall
					w = limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false,
						rratelimiter.WithRedissonVersion(version), rratelimiter.WithCallTimeout(500*time.Millisecond))
					if r, err = w.Reserve(t.Context(), 4, 0); err != nil {
						require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
					}
				}
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

// goneCase is a batch of requests some of whose callers go away.
type goneCase struct {
	permits []int64 // none for a TryAcquireAll
	goes    []bool
	held    int64
}

// For callers that went away, permits are given back once, and to each limiter.
func TestGiveBackHappensOnce(t *testing.T) {
	t.Parallel()
	cases := map[string]goneCase{
		"one":                     {[]int64{3}, []bool{true}, 0},
		"half of a batch":         {[]int64{1, 2, 1, 3}, []bool{true, false, false, true}, 3},
		"a third of a batch":      {[]int64{1, 1, 1}, []bool{true, false, false}, 2},
		"a batch":                 {[]int64{1, 2}, []bool{true, true}, 0},
		"a batch granted in part": {[]int64{3, 7, 2, 1}, []bool{true, false, false, true}, 2},
		"those that were refused": {[]int64{3, 7, 2}, []bool{false, true, false}, 5},
		"all":                     {},
	}
	faults := []string{"", "drop", "drop+drop+drop", "swallow", "hold", "cut", "drop+cut", "late", "late+drop", "drop+late"}
	underFaults(t, faults, cases, nil, func(t *testing.T, c goneCase, what, fault, version string) {
		if c.permits == nil {
			giveBackAll(t, fault, version)
			return
		}
		w := newWireInUse(t, 10, 2, version)
		got := w.CancelledInFlight(t, c.permits, c.goes, actions(fault, w.Held)...)
		assert.Equal(t, c.held, limitertest.Sum(got), what)
		assert.Eventually(t, func() bool {
			return limitertest.InUse(t, w.Redis, w.Keys.Permits) <= 2+c.held
		}, time.Minute, time.Millisecond, what)
		w.LetGo()
		w.CheckHeld(t, 2+c.held, what)
	})
}

func giveBackAll(t *testing.T, fault, version string) {
	t.Helper()
	w := newBundleInUse(t, three{2, 0, 1}, version)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	met := actions(fault, w.Held)
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		switch {
		case s == lua.AcquireAll && n == 1:
			cancel()
			<-gone
		case s == lua.GiveBack && n <= len(met):
			return met[n-1]
		}
		return redistest.Pass
	})
	_, err := w.tryAll(ctx, 4, 0)
	close(gone)
	assert.ErrorIs(t, err, context.Canceled)
	w.LetGo()
	w.checkAll(t, three{2, 0, 1}, "all")
}

// What happens to a limiter between an attempt whose request is late and the
// late request itself must not let that take permits that no caller holds.
func TestTryAcquire_LateRequestTakesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		inUse      int64 // by another Client
		requests   []limitertest.Request
		own, other int64 // released since
		given      int64 // back by that
	}{
		"one, refused, permits released since":              {10, try(3), 0, 8, 8},
		"batch, refused, permits released since":            {10, try(3, 2), 0, 8, 8},
		"one, granted, some released since":                 {2, try(5), 2, 0, 2},
		"one, granted, all released since":                  {2, try(5), 5, 0, 5},
		"one, granted, everything released since":           {2, try(5), 100, 0, 7},
		"batch, granted, few are free":                      {0, try(3, 3), 0, 0, 0},
		"batch, granted, some released since":               {2, try(3, 2), 2, 0, 2},
		"batch, granted, all released since":                {2, try(3, 2), 5, 0, 5},
		"batch, granted in part, some released since":       {4, try(3, 4, 2), 1, 0, 1},
		"batch, granted in part, all released since":        {4, try(3, 4, 2), 5, 0, 5},
		"batch, granted in part, everything released since": {4, try(3, 4, 2), 100, 0, 9},
		"Take, refused, permits released since":             {10, []limitertest.Request{limitertest.TakeFor(3)}, 0, 8, 8},
	} {
		eachLayout(t, name, func(t *testing.T, version string) {
			w := newWireInUse(t, 10, tt.inUse, version)
			w.On(lua.Acquire, redistest.Late.When(w.Held))
			held := tt.inUse + limitertest.Sum(w.Ask(t, tt.requests...))
			w.CheckHeldSoon(t, held, "before")
			release(t, []*rratelimiter.RateLimiter{w.RateLimiter, w.Other}, three{tt.own, tt.other})
			w.CheckHeldSoon(t, held-tt.given, "released")
			w.LetGo()
			w.CheckHeld(t, held-tt.given, "the request arrived")
		})
	}
}

func TestTryAcquireAll_LateRequestTakesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		inUse three // by another Client
		then  func(t *testing.T, w *bundle)
		given three // back by that
	}{
		"refused, released since": {three{2, 9, 0}, func(t *testing.T, w *bundle) {
			release(t, w.others, three{0, 8, 0})
		}, three{0, 8, 0}},
		"granted, some released of one": {three{2, 0, 1}, func(t *testing.T, w *bundle) {
			release(t, w.own, three{2, 0, 0})
		}, three{2, 0, 0}},
		"granted, all released": {three{2, 0, 1}, func(t *testing.T, w *bundle) {
			release(t, w.own, three{3, 3, 3})
		}, three{3, 3, 3}},
		"granted, one deleted": {three{}, func(t *testing.T, w *bundle) {
			require.NoError(t, w.others[2].SetRate(t.Context(), limitertest.Hourly(10)))
		}, three{0, 0, 3}},
		"granted, all released, one forgotten": {three{}, func(t *testing.T, w *bundle) {
			release(t, w.own, three{3, 3, 3})
			require.NoError(t, w.Redis.HDel(t.Context(), w.own[0].Name(), "answered").Err())
			require.NoError(t, w.Redis.HDel(t.Context(), w.own[2].Name(), "answered").Err())
		}, three{3, 3, 3}},
	} {
		eachLayout(t, name, func(t *testing.T, version string) {
			for _, fault := range []string{"late", "drop+late"} { // the attempt, or its repeat
				w := newBundleInUse(t, tt.inUse, version)
				w.On(lua.AcquireAll, actions(fault, w.Held)...)
				got, err := w.tryAll(t.Context(), 3, 0)
				require.NoError(t, err)
				tt.then(t, w)
				w.LetGo()
				w.checkAll(t, tt.inUse.plus(got).minus(tt.given), fault)
			}
		})
	}
}

// A repeat that was answered that its permits exceed the rate counts as answered
// too: with a higher rate the late request must not take permits that no caller holds.
func TestTryAcquire_LateRequestAboveRateTakesNothing(t *testing.T) {
	t.Parallel()
	eachLayout(t, "late", func(t *testing.T, version string) {
		w := newWireInUse(t, 4, 0, version)
		w.On(lua.Acquire, redistest.Late.When(w.Held))
		require.ErrorIs(t, limitertest.Second(w.TryAcquire(t.Context(), 5, 0)), rratelimiter.ErrPermitsExceedRate)
		w.Rate = 9
		require.NoError(t, limitertest.Second(w.Other.UpdateRate(t.Context(), limitertest.Hourly(9), rratelimiter.KeepState())))
		w.LetGo()
		w.CheckHeld(t, 0, "the request arrived")
	})
}

// The same for a change between an attempt whose answer was lost and its repeat, by
// another Client.
func TestAcquireHappensOnceThoughOthersInterfere(t *testing.T) {
	t.Parallel()
	released := func(permits int64) func(*testing.T, *limitertest.Wire) error {
		return func(t *testing.T, w *limitertest.Wire) error { return w.Other.Release(t.Context(), permits) }
	}
	rate := func(rate int64, opts ...rratelimiter.RateOption) func(*testing.T, *limitertest.Wire) error {
		return func(t *testing.T, w *limitertest.Wire) error {
			return w.Other.SetRate(t.Context(), limitertest.Hourly(rate), opts...)
		}
	}
	for name, tt := range map[string]struct {
		requests []limitertest.Request
		change   func(t *testing.T, w *limitertest.Wire) error
		given    int64 // back by the change
		others   int64 // taken by it
		rate     int64 // after it
	}{
		"one, Release of some":                   {try(5), released(2), 2, 0, 10},
		"one, Release of all":                    {try(5), released(5), 5, 0, 10},
		"batch, Release of some":                 {try(2, 3), released(2), 2, 0, 10},
		"batch granted in part, Release of some": {try(4, 7, 4), released(1), 1, 0, 10},
		"one, a lower rate":                      {try(5), rate(3, rratelimiter.KeepState()), 0, 0, 3},
		"batch, a lower rate":                    {try(2, 4, 1), rate(3, rratelimiter.KeepState()), 0, 0, 3},
		"one, a higher rate":                     {try(5), rate(30, rratelimiter.KeepState()), 0, 0, 30},
		"batch granted in part, a higher rate":   {try(4, 7, 4), rate(30, rratelimiter.KeepState()), 0, 0, 30},
		"one, a new start":                       {try(5), rate(10), 0, 0, 10},
		"batch, a new start":                     {try(4, 7, 4), rate(10), 0, 0, 10},
		"one, the value is lost": {try(5), func(t *testing.T, w *limitertest.Wire) error {
			return w.Redis.Del(t.Context(), w.Keys.Value).Err()
		}, 0, 0, 10},
		"batch granted in part, others take the rest": {try(4, 9, 4), func(t *testing.T, w *limitertest.Wire) error {
			limitertest.MustAcquire(t, w.Other, 2)
			return nil
		}, 0, 2, 10},
	} {
		eachLayout(t, name, func(t *testing.T, version string) {
			w := newWireInUse(t, 10, 0, version)
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				if s == lua.Acquire && n == 2 {
					w.Proxy.Settle(t)
					w.Rate = tt.rate
					assert.NoError(t, tt.change(t, w))
				}
				if s == lua.Acquire && n == 1 {
					return redistest.DropAnswer
				}
				return redistest.Pass
			})
			checkInterfered(t, w, tt.requests, tt.given, tt.others)
		})
	}
}

// A caller whose request was granted holds its permits, less those that another gave back if
// it was granted before; another holds none. Of a batch none can say whose were
// given back.
func checkInterfered(t *testing.T, w *limitertest.Wire, requests []limitertest.Request, given, others int64) {
	t.Helper()
	var granted int64
	if len(requests) > 1 {
		granted = limitertest.Sum(w.AskAny(t, requests...))
	} else {
		granted, _ = requests[0](w) // its permits may exceed the rate now
	}
	w.Proxy.Settle(t)
	inUse := limitertest.InUse(t, w.Redis, w.Keys.Permits)
	held := granted + others
	if len(requests) > 1 && given > 0 {
		assert.GreaterOrEqual(t, inUse, held-given, "permits in use, %d granted", granted)
		assert.LessOrEqual(t, inUse, held, "permits in use, %d granted", granted)
	} else {
		assert.Contains(t, []int64{held, held - given}, inUse, "permits in use, %d granted", granted)
	}
	free, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
	assert.Equal(t, w.Rate-inUse, free)
}

// A member in one limiter shows that all were charged.
func TestTryAcquireAllHappensOnceThoughOthersInterfere(t *testing.T) {
	t.Parallel()
	released := func(permits three) func(*testing.T, *bundle) {
		return func(t *testing.T, w *bundle) { release(t, w.others, permits) }
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, w *bundle)
		given  three
	}{
		"some of each released":    {released(three{2, 2, 2}), three{2, 2, 2}},
		"all of two released":      {released(three{5, 5, 0}), three{5, 5, 0}},
		"all of the last released": {released(three{0, 0, 5}), three{0, 0, 5}},
		"a new start of the first": {func(t *testing.T, w *bundle) {
			assert.NoError(t, w.others[0].SetRate(t.Context(), limitertest.Hourly(10)))
		}, three{5, 0, 0}},
		"others take the rest": {func(t *testing.T, w *bundle) {
			limitertest.MustAcquire(t, w.others[0], 5)
			limitertest.MustAcquire(t, w.others[2], 4)
		}, three{-5, 0, -4}},
		"the values are lost": {func(t *testing.T, w *bundle) {
			assert.NoError(t, w.Redis.Del(t.Context(), w.each[0].Keys.Value, w.each[1].Keys.Value).Err())
		}, three{}},
		"a lower rate of the second": {func(t *testing.T, w *bundle) {
			w.each[1].Rate = 2
			assert.NoError(t, w.others[1].SetRate(t.Context(), limitertest.PerClient(2, time.Hour), rratelimiter.KeepState()))
		}, three{}},
		"the first is gone": {func(t *testing.T, w *bundle) {
			assert.NoError(t, limitertest.Second(w.others[0].Delete(t.Context())))
		}, three{5, 0, 0}},
		"many newer members": {func(t *testing.T, w *bundle) {
			for _, each := range w.each {
				each.Rate += 600
				each.ManyRows(t, -time.Millisecond, 600)
				assert.NoError(t, w.Redis.HSet(t.Context(), each.Name(), "rate", each.Rate).Err())
				assert.NoError(t, w.Redis.IncrBy(t.Context(), each.Keys.Value, 600).Err())
			}
			release(t, w.others, three{600, 600, 601})
		}, three{0, 0, 1}},
	} {
		eachLayout(t, name, func(t *testing.T, version string) {
			w := newBundle(t, 10, version)
			var changed sync.Once
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				switch {
				case s == lua.AcquireAll && n == 1:
					return redistest.DropAnswer
				case s == lua.AcquireAll:
					changed.Do(func() {
						w.Proxy.Settle(t)
						tt.change(t, w)
					})
				}
				return redistest.Pass
			})
			w.mustTryAll(t, 5)
			for _, l := range w.others {
				_, _ = l.AvailablePermits(t.Context()) // makes the value that was lost
			}
			w.checkAll(t, three{5, 5, 5}.minus(tt.given), "repeated")
		})
	}
}
