package faults_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// hold is that of reservations in limiters of an hour, shorter another.
var hold, shorter = rratelimiter.Hold(30 * time.Minute), rratelimiter.Hold(10 * time.Minute)

// holdCase is a held reservation of 6 permits, and what it costs.
type holdCase struct {
	used     int64
	kind     rratelimiter.RateType
	released int64 // by the other Client, before
	over     bool  // the hold is, before
}

// in returns the permits that are in use once it is settled.
func (c holdCase) in() int64 {
	if c.over {
		return c.used
	}
	return min(c.used, 6-c.released) + max(0, c.used-6)
}

var holdCases = map[string]holdCase{
	"cancelled":              {},
	"less":                   {used: 1},
	"the same":               {used: 6},
	"more":                   {used: 8},
	"more than are free":     {used: 20},
	"PER_CLIENT":             {used: 2, kind: rratelimiter.PerClient},
	"less, some were taken":  {used: 1, released: 3},
	"same, some were taken":  {used: 6, released: 3},
	"more, some were taken":  {used: 8, released: 3},
	"all were taken":         {used: 2, released: 6},
	"over, cancelled":        {over: true},
	"over, less":             {used: 1, over: true},
	"over, the same":         {used: 6, over: true},
	"over, more":             {used: 20, over: true},
	"over, PER_CLIENT":       {used: 6, kind: rratelimiter.PerClient, over: true},
	"over, some were taken":  {used: 4, released: 3, over: true},
	"over, as many are left": {used: 3, released: 3, over: true},
}

// end makes all holds end: the interval becomes shorter by more than they are long.
func (c holdCase) end(t *testing.T, w *limitertest.Wire) {
	t.Helper()
	cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: 20 * time.Minute}
	require.NoError(t, limitertest.Second(w.Other.UpdateRate(t.Context(), cfg, rratelimiter.KeepState())))
}

func (c holdCase) reserve(t *testing.T, version string) (*limitertest.Wire, *rratelimiter.Reservation) {
	t.Helper()
	cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: time.Hour}
	w := limitertest.NewWire(t, redistest.Shared(t), cfg, false, rratelimiter.WithRedissonVersion(version))
	r := limitertest.Reserve(t, w.RateLimiter, 6, hold)
	if c.released > 0 {
		require.NoError(t, w.Other.Release(t.Context(), c.released))
	}
	if c.over {
		c.end(t, w)
	}
	return w, r
}

// checkDated checks that what is in use was granted just now.
func checkDated(t *testing.T, w *limitertest.Wire) {
	t.Helper()
	for _, z := range w.Redis.ZRangeWithScores(t.Context(), w.Keys.Permits, 0, -1).Val() {
		assert.WithinDuration(t, time.Now(), time.UnixMilli(int64(z.Score)), 2*time.Minute)
	}
}

// A held reservation is settled once, in time or not, and counts from its grant on or from now on.
func TestHold_SettlementHappensOnce(t *testing.T) {
	t.Parallel()
	underFaults(t, slices.Concat(lossy, tardy), holdCases, nil, func(t *testing.T, c holdCase, what, fault, version string) {
		w, r := c.reserve(t, version)
		w.On(lua.SettleReservation, actions(fault, w.Held)...)
		require.NoError(t, r.Settle(t.Context(), c.used), what)
		w.CheckHeldSoon(t, c.in(), what)
		w.LetGo()
		w.CheckHeld(t, c.in(), what+", when all had arrived")
		checkDated(t, w)
		require.ErrorIs(t, r.Settle(t.Context(), c.used), rratelimiter.ErrSettled)
	})
}

// A repeat, or a copy that comes late, finds the reservation settled though the hold is over then.
func TestHold_RepeatComesWhenItIsOver(t *testing.T) {
	t.Parallel()
	for what, c := range holdCases {
		if c.released == 6 {
			continue // what was released can't be told then from what has run out: it is charged
		}
		eachLayout(t, what, func(t *testing.T, version string) {
			for _, late := range []bool{false, true} {
				w, r := c.reserve(t, version)
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					switch {
					case s != lua.SettleReservation || n > 2:
						return redistest.Pass
					case n == 1 && late:
						return redistest.Late.When(w.Held)
					case n == 1:
						return redistest.DropAnswer
					case !late:
						w.Proxy.Settle(t)
						c.end(t, w)
					}
					return redistest.Pass
				})
				require.NoError(t, r.Settle(t.Context(), c.used))
				if late {
					c.end(t, w)
				}
				w.LetGo()
				w.CheckHeld(t, c.in(), "when all had arrived")
			}
		})
	}
}

// renewCase is a reservation of 6 permits that is renewed, and then settled.
type renewCase struct {
	used  int64
	kind  rratelimiter.RateType
	opts  []rratelimiter.ReserveOption
	early time.Duration // before the grant, that the member is dated
	gone  bool          // it has come back before
}

var renewCases = map[string]renewCase{
	"cancelled":       {},
	"less":            {used: 1},
	"more":            {used: 8},
	"PER_CLIENT":      {used: 2, kind: rratelimiter.PerClient},
	"held, cancelled": {opts: []rratelimiter.ReserveOption{hold}, early: 30 * time.Minute},
	"held, the same":  {used: 6, opts: []rratelimiter.ReserveOption{hold}, early: 30 * time.Minute},
	"held, more":      {used: 20, opts: []rratelimiter.ReserveOption{hold}, early: 30 * time.Minute},
	"gone":            {gone: true},
	"held, gone":      {opts: []rratelimiter.ReserveOption{hold}, gone: true},
}

// However often a Renew runs, and if it comes late: the reservation counts once, from then on, and can be settled. One that
// is settled or has come back stays so.
func TestRenew_ChangesNothingButTheDate(t *testing.T) {
	t.Parallel()
	underFaults(t, slices.Concat(lossy, tardy, []string{"double"}), renewCases, nil, func(t *testing.T, c renewCase, what, fault, version string) {
		cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: time.Hour}
		w := limitertest.NewWire(t, redistest.Shared(t), cfg, false, rratelimiter.WithRedissonVersion(version))
		r := limitertest.Reserve(t, w.RateLimiter, 6, c.opts...)
		if c.gone {
			require.NoError(t, w.Other.Release(t.Context(), 10))
			limitertest.MustAcquire(t, w.Other, 6)
		}
		w.On(lua.RenewReservation, actions(fault, w.Held)...)
		asked := w.Redis.Time(t.Context()).Val()
		err := r.Renew(t.Context())
		w.CheckHeldSoon(t, 6, what)
		if c.gone {
			require.ErrorIs(t, err, rratelimiter.ErrSettled, what)
			w.LetGo()
			w.CheckHeld(t, 6, what+", when all had arrived")
			return
		}
		require.NoError(t, err, what)
		for _, z := range w.Redis.ZRangeWithScores(t.Context(), w.Keys.Permits, 0, -1).Val() {
			assert.GreaterOrEqual(t, int64(z.Score), asked.Add(-c.early).UnixMilli(), what)
		}
		require.NoError(t, r.Settle(t.Context(), c.used), what)
		w.LetGo()
		w.CheckHeld(t, c.used, what+", when all had arrived")
		require.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled, what)
	})
}
