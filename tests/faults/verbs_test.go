package faults_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A verb is a call as programs make it, on one limiter of rate 10 or on three.
type verb struct {
	scripts   []*lua.Script // those whose calls meet faults; none stands for all
	inUse     three         // by another Client, when it is called
	kind      rratelimiter.RateType
	byDefault bool // it sets its limiter up
	several   bool // it asks three limiters
	waits     bool // it takes long
	once      bool // it is not repeated, since a second time is not like the first
	whole     bool // none of its answers gets lost
	brief     bool // it is tried with one fault at a time, in two layouts

	// do calls it, and returns how many more permits are in use by that. Open prepares such a call.
	do       func(t *testing.T, w *bundle) (three, error)
	open     func(t *testing.T, w *bundle) (do func() (three, error))
	requests []limitertest.Request // that it makes together, if it is requests
}

// hold is that of reservations in limiters of an hour, shorter another.
var hold, shorter = rratelimiter.Hold(30 * time.Minute), rratelimiter.Hold(10 * time.Minute)

// verbs are calls of all kinds, and all limitertest.Verbs.
func verbs() map[string]verb {
	all := map[string]verb{
		"TryAcquire":                     asks(2, []int64{3}, try(3)...),
		"TryAcquire of all":              asks(0, []int64{10}, try(10)...),
		"TryAcquire, refused":            asks(9, []int64{0}, try(3)...),
		"TryAcquire, PER_CLIENT":         asks(2, []int64{3}, try(3)...).perClient(),
		"TryAcquire by default":          asks(0, []int64{3}, try(3)...).setsUp(),
		"TryAcquire, waiting":            asks(9, []int64{0}, leaves(3)).long(),
		"Take":                           asks(2, []int64{3}, limitertest.TakeFor(3)),
		"Take, refused":                  asks(9, []int64{0}, limitertest.TakeFor(3)),
		"TakeUpTo, some of it":           asks(2, []int64{8}, limitertest.UpToFor(20)),
		"TakeUpTo, none of it":           asks(10, []int64{0}, limitertest.UpToFor(3)),
		"Reserve, held":                  asks(2, []int64{3}, limitertest.ReserveFor(3, hold)),
		"batch":                          asks(0, []int64{1, 1, 2, 3}, try(1, 1, 2, 3)...),
		"batch granted in part":          asks(4, []int64{3, 1, 0, 2}, try(3, 1, 5, 2)...),
		"batch behind one that fits not": asks(4, []int64{0, 3, 3}, try(9, 3, 3)...).shortly(),
		"batch refused":                  asks(9, []int64{0, 0}, try(3, 2)...),
		"batch beyond the rate":          asks(4, []int64{1, 2, 0}, try(1, 2, 9)...),
		"batch in part, PER_CLIENT":      asks(4, []int64{3, 1, 0, 2}, try(3, 1, 5, 2)...).perClient(),
		"batch in part, by default":      asks(0, []int64{3, 1, 5, 0}, try(3, 1, 5, 2)...).setsUp(),
		"batch of TakeUpTo":              asks(4, nil, limitertest.UpToFor(5), limitertest.UpToFor(20)).shortly(),
		"batch of Reserve":               asks(4, []int64{3, 1, 0, 2}, reserve(nil, 3, 1, 5, 2)...),
		"batch of Reserve, held":         asks(4, []int64{3, 0, 2}, reserve(held, 3, 5, 2)...),
		"Reserve, each with its hold": asks(1, []int64{3, 5, 0},
			limitertest.ReserveFor(3, hold), limitertest.ReserveFor(5), limitertest.ReserveFor(2, shorter)),
		"batch with Take": asks(4, []int64{3, 1, 0, 2},
			limitertest.TryFor(3), limitertest.TakeFor(1), limitertest.TakeFor(5), limitertest.TryFor(2)),
		"batch with the line": asks(4, []int64{3, 0, 2, 0},
			limitertest.WaitFor(3, time.Minute), leaves(4), limitertest.TryFor(2), limitertest.TakeFor(2)).long(),

		"TryAcquireAll":                    takesAll(three{2, 0, 0}, 3, 0, 3),
		"TryAcquireAll, the first refuses": takesAll(three{9, 1, 0}, 3, 0, 0),
		"TryAcquireAll, the last refuses":  takesAll(three{1, 2, 9}, 3, 0, 0),
		"TryAcquireAll, all refuse":        takesAll(three{9, 9, 9}, 3, 0, 0),
		"TryAcquireAll, waiting":           takesAll(three{9, 1, 2}, 3, time.Hour, 0).long(),
		"TakeAll":                          claims(three{2, 4, 1}, nil),
		"TakeAll, refused":                 claims(three{2, 9, 1}, nil),
		"ReserveAll and Settle":            claims(three{2, 4, 1}, &three{2, 1, 13}),
		"ReserveAll and Settle, refused":   claims(three{2, 4, 8}, &three{2, 1, 13}),
		"ReserveAll and Settle, held":      claims(three{2, 4, 1}, &three{2, 1, 13}, hold),
		"ReserveAll, held, and cancelled":  claims(three{2, 4, 1}, &three{}, hold),
		"undo":                             undoes(0),
		"undo, some were taken":            undoes(1),
		"caller gone":                      gone([]int64{3}, []bool{true}, 0),
		"callers gone: half of a batch":    gone([]int64{1, 2, 1, 3}, []bool{true, false, false, true}, 3),
		"callers gone: a third of a batch": gone([]int64{1, 1, 1}, []bool{true, false, false}, 2),
		"callers gone: a batch in part":    gone([]int64{3, 7, 2, 1}, []bool{true, false, false, true}, 2),
		"caller of TryAcquireAll gone":     goneFrom(func(ctx context.Context, w *bundle) error { return limitertest.Second(w.tryAll(ctx, 4, 0)) }),
		"caller of TakeAll gone": goneFrom(func(ctx context.Context, w *bundle) error {
			return limitertest.Second(w.Client.TakeAll(ctx, w.claims(three{2, 4, 1})...))
		}),
		"TryAcquire of all, after a refusal": afterRefusal(asks(0, []int64{10}, try(10)...)),
		"Release of several calls": {inUse: three{7}, whole: true, once: true, brief: true, do: func(t *testing.T, w *bundle) (three, error) {
			for range 130 {
				w.ManyRows(t, 0, 1)
			}
			return three{-1}, w.Release(t.Context(), 131)
		}},
		"Migrate": {scripts: []*lua.Script{lua.Migrate}, inUse: three{2}, do: func(t *testing.T, w *bundle) (three, error) {
			if err := limitertest.Second(w.Migrate(t.Context())); !errors.Is(err, rratelimiter.ErrUnsupported) {
				return three{}, err
			}
			return three{}, nil
		}},
	}
	for name, c := range settleCases {
		all[name] = c.settles()
	}
	for name, c := range renewCases {
		all[name] = c.renews()
	}
	for name := range limitertest.Verbs {
		all["operation "+name] = operates(name)
	}
	return all
}

func (v verb) begin(t *testing.T, w *bundle) (do func() (three, error)) {
	if v.open != nil {
		return v.open(t, w)
	}
	return func() (three, error) { return v.do(t, w) }
}

func (v verb) perClient() verb {
	v.kind = rratelimiter.PerClient
	return v
}

func (v verb) setsUp() verb {
	v.byDefault = true
	return v
}

func (v verb) shortly() verb {
	v.brief = true
	return v
}

func (v verb) long() verb {
	v.waits = true
	return v
}

func try(permits ...int64) (requests []limitertest.Request) {
	for _, n := range permits {
		requests = append(requests, limitertest.TryFor(n))
	}
	return requests
}

func reserve(opts []rratelimiter.ReserveOption, permits ...int64) (requests []limitertest.Request) {
	for _, n := range permits {
		requests = append(requests, limitertest.ReserveFor(n, opts...))
	}
	return requests
}

// leaves is a TryAcquire whose caller leaves after a while.
func leaves(permits int64) limitertest.Request {
	return func(w *limitertest.Wire) (int64, error) {
		ok, err := w.TryAcquire(w.Context(leaving()), permits, time.Hour)
		return limitertest.Counted(permits, ok, err)
	}
}

// asks is requests at the same time, which are granted so much if that does not depend on which is served first.
func asks(inUse int64, want []int64, requests ...limitertest.Request) verb {
	return verb{
		scripts: []*lua.Script{lua.Acquire}, inUse: three{inUse}, requests: requests,
		do: func(t *testing.T, w *bundle) (three, error) {
			got := w.Ask(t, requests...)
			if want != nil {
				assert.Equal(t, want, got)
			}
			return three{limitertest.Sum(got)}, nil
		},
	}
}

// takesAll is a TryAcquireAll. All limiters or none have been charged, once.
func takesAll(inUse three, permits int64, timeout time.Duration, want int64) verb {
	return verb{
		scripts: []*lua.Script{lua.AcquireAll}, inUse: inUse, several: true,
		do: func(t *testing.T, w *bundle) (three, error) {
			ctx := context.Background()
			if timeout > 0 {
				ctx = leaving()
			}
			got, err := w.tryAll(ctx, permits, timeout)
			if errors.Is(err, context.Canceled) {
				err = nil
			}
			assert.Equal(t, want, got)
			return three{got, got, got}, err
		},
	}
}

// claims is a TakeAll of different numbers or, with a settlement, a ReserveAll that is settled. It is refused if not all are free.
func claims(permits three, settled *three, opts ...rratelimiter.ReserveOption) verb {
	inUse, held := three{1, 2, 3}, permits
	if settled != nil {
		held = *settled
	}
	granted := true
	for i, n := range inUse {
		granted = granted && n+permits[i] <= 10
	}
	if !granted {
		held = three{}
	}
	return verb{
		scripts: []*lua.Script{lua.AcquireAll, lua.SettleReservation}, inUse: inUse, several: true,
		open: func(t *testing.T, w *bundle) func() (three, error) {
			all := w.claims(permits, opts...)
			return func() (three, error) {
				if settled == nil {
					decisions, err := w.Client.TakeAll(context.Background(), all...)
					refused := slices.ContainsFunc(decisions, func(d limit.Decision) bool { return !d.Granted })
					assert.Equal(t, !granted, refused)
					return held, err
				}
				r, err := w.Client.ReserveAll(context.Background(), 0, all...)
				if err != nil {
					return three{}, err
				}
				assert.Equal(t, granted, r.Granted)
				return held, r.Settle(context.Background(), settled[:]...)
			}
		},
	}
}

// settleCase is a reservation of 6 permits, and what it costs.
type settleCase struct {
	used     int64
	opts     []rratelimiter.ReserveOption
	kind     rratelimiter.RateType
	released int64 // by the other Client, before
	over     bool  // the hold is, before
}

var held = []rratelimiter.ReserveOption{hold}

var settleCases = map[string]settleCase{
	"Cancel":                         {},
	"Settle, less":                   {used: 1},
	"Settle, more":                   {used: 8},
	"Settle, beyond the rate":        {used: 25},
	"Settle, PER_CLIENT, more":       {used: 20, kind: rratelimiter.PerClient},
	"Settle, less, some were taken":  {used: 1, released: 3},
	"Settle, more, some were taken":  {used: 8, released: 3},
	"Cancel, held":                   {opts: held},
	"Settle, held, the same":         {used: 6, opts: held},
	"Settle, held, more":             {used: 8, opts: held},
	"Settle, held, beyond the rate":  {used: 25, opts: held},
	"Settle, held, PER_CLIENT":       {used: 2, opts: held, kind: rratelimiter.PerClient},
	"Settle, held, more, some taken": {used: 8, opts: held, released: 3},
	"Settle, held, all were taken":   {used: 2, opts: held, released: 6},
	"Cancel, its hold is over":       {opts: held, over: true},
	"Settle, over, the same":         {used: 6, opts: held, over: true},
	"Settle, over, more":             {used: 20, opts: held, over: true},
	"Settle, over, some were taken":  {used: 4, opts: held, released: 3, over: true},
}

// in returns the permits that are in use once it is settled. What was released is no less of what it cost.
func (c settleCase) in() int64 {
	if c.over {
		return c.used
	}
	return min(c.used, max(0, 6-c.released)) + max(0, c.used-6)
}

func (c settleCase) reserve(t *testing.T, w *bundle) *rratelimiter.Reservation {
	t.Helper()
	r := limitertest.Reserve(t, w.RateLimiter, 6, c.opts...)
	if c.released > 0 {
		require.NoError(t, w.Other.Release(t.Context(), c.released))
	}
	if c.over {
		endHolds(t, w)
	}
	return r
}

// endHolds makes all holds end: the interval becomes shorter by more than they are long.
func endHolds(t *testing.T, w *bundle) {
	t.Helper()
	cfg := limitertest.ConfigOf(t, w.Other)
	cfg.Interval = 20 * time.Minute
	require.NoError(t, limitertest.Second(w.Other.UpdateRate(t.Context(), cfg, rratelimiter.KeepState())))
}

// settles is a Settle, in time or not. It counts from the grant on, or from now on.
func (c settleCase) settles() verb {
	return verb{
		scripts: []*lua.Script{lua.SettleReservation}, inUse: three{2}, kind: c.kind,
		open: func(t *testing.T, w *bundle) func() (three, error) {
			r := c.reserve(t, w)
			w.check = func(what string) {
				for _, z := range w.Redis.ZRangeWithScores(t.Context(), w.Keys.Permits, 0, -1).Val() {
					assert.WithinDuration(t, time.Now(), time.UnixMilli(int64(z.Score)), 2*time.Minute, what)
				}
				assert.ErrorIs(t, r.Settle(t.Context(), c.used), rratelimiter.ErrSettled, what)
			}
			return func() (three, error) { return three{c.in()}, r.Settle(t.Context(), c.used) }
		},
	}
}

// renewCase is a reservation of 6 permits that is renewed.
type renewCase struct {
	settled bool // it is, afterwards
	used    int64
	kind    rratelimiter.RateType
	opts    []rratelimiter.ReserveOption
	early   time.Duration // before the grant, that the member is dated
	gone    bool          // it has come back before
}

var renewCases = map[string]renewCase{
	"Renew":                           {},
	"Renew, held":                     {opts: held, early: 30 * time.Minute},
	"Renew and Cancel":                {settled: true},
	"Renew and Settle, more":          {settled: true, used: 8},
	"Renew and Settle, PER_CLIENT":    {settled: true, used: 2, kind: rratelimiter.PerClient},
	"Renew and Settle, held the same": {settled: true, used: 6, opts: held, early: 30 * time.Minute},
	"Renew and Settle, held, more":    {settled: true, used: 20, opts: held, early: 30 * time.Minute},
	"Renew, gone":                     {gone: true},
}

// renews is a Renew. However often it runs, and if it comes late: the reservation counts once, from then on, and can be
// settled. One that is settled or has come back stays so.
func (c renewCase) renews() verb {
	return verb{
		scripts: []*lua.Script{lua.RenewReservation}, kind: c.kind,
		open: func(t *testing.T, w *bundle) func() (three, error) {
			r := limitertest.Reserve(t, w.RateLimiter, 6, c.opts...)
			if c.gone {
				require.NoError(t, w.Other.Release(t.Context(), 10))
				limitertest.MustAcquire(t, w.Other, 6)
			}
			return func() (three, error) {
				asked := w.Redis.Time(t.Context()).Val()
				err := r.Renew(t.Context())
				w.checkSoon(t, three{6}, "renewed")
				if c.gone {
					assert.ErrorIs(t, err, rratelimiter.ErrSettled)
					return three{6}, nil
				}
				for _, z := range w.Redis.ZRangeWithScores(t.Context(), w.Keys.Permits, 0, -1).Val() {
					assert.GreaterOrEqual(t, int64(z.Score), asked.Add(-c.early).UnixMilli())
				}
				if !c.settled || err != nil {
					return three{6}, err
				}
				w.check = func(what string) { assert.ErrorIs(t, r.Renew(t.Context()), rratelimiter.ErrSettled, what) }
				return three{c.used}, r.Settle(t.Context(), c.used)
			}
		},
	}
}

// afterRefusal is the verb after a refusal, all permits being in use: it finds its own member where a refusal looks for the oldest.
func afterRefusal(v verb) verb {
	v.open = func(t *testing.T, w *bundle) func() (three, error) {
		limitertest.MustAcquire(t, w.Other, 10)
		limitertest.MustRefuse(t, w.RateLimiter, 10) // the next refusal is a plain one
		require.NoError(t, w.Other.Release(t.Context(), 10))
		return func() (three, error) { return v.do(t, w) }
	}
	return v.shortly()
}

// undoes gives a grant of a key back, or what others have left of it.
func undoes(taken int64) verb {
	return verb{
		scripts: []*lua.Script{lua.GiveBack}, inUse: three{2},
		open: func(t *testing.T, w *bundle) func() (three, error) {
			d, undo, err := w.Client.Keyed("", limitertest.Hourly(10)).TakeReturnable(t.Context(), w.Name(), 3)
			require.NoError(t, err)
			require.True(t, d.Granted)
			release(t, w.others, three{taken})
			return func() (three, error) { return three{}, undo(t.Context()) }
		},
	}
}

// gone is a batch of requests some of whose callers go away. What these were granted is given back once.
func gone(permits []int64, goes []bool, held int64) verb {
	return verb{
		scripts: []*lua.Script{lua.GiveBack}, inUse: three{2},
		do: func(t *testing.T, w *bundle) (three, error) {
			assert.Equal(t, held, limitertest.Sum(w.CancelledInFlight(t, permits, goes)))
			return three{held}, nil
		},
	}
}

// goneFrom is a call for permits of several limiters whose caller goes away. They are given back to each.
func goneFrom(ask func(ctx context.Context, w *bundle) error) verb {
	return verb{
		scripts: []*lua.Script{lua.GiveBack}, inUse: three{2, 0, 1}, several: true,
		do: func(t *testing.T, w *bundle) (three, error) {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan struct{})
			w.Before(lua.AcquireAll, func() {
				cancel()
				<-gone
			})
			err := ask(ctx, w)
			close(gone)
			assert.ErrorIs(t, err, context.Canceled)
			return three{}, nil
		},
	}
}

// operates is one of limitertest.Verbs. It is answered as by another limiter that meets no faults, and leaves what it leaves of that.
func operates(name string) verb {
	call := limitertest.Verbs[name]
	return verb{
		inUse: three{6}, once: !limitertest.Reads[name] && !limitertest.Acquires[name], brief: true,
		open: func(t *testing.T, w *bundle) func() (three, error) {
			twin := limitertest.NewLimiterOf(t, w.OtherClient, redistest.Name(t), limitertest.Hourly(10))
			limitertest.MustAcquire(t, twin, 6)
			prepare := func(l *rratelimiter.RateLimiter) {
				switch name {
				case "TrySetRate":
					assert.NoError(t, limitertest.Second(l.Delete(t.Context())))
				case "ClearExpire":
					assert.NoError(t, limitertest.Second(l.Expire(t.Context(), time.Hour)))
				}
			}
			return func() (three, error) {
				prepare(w.Other)
				prepare(twin)
				before, told := w.look(t, twin), op.Answer{}
				if w.runs {
					told = call.Do(t.Context(), twin)
					require.NoError(t, told.Err)
				}
				want := w.look(t, twin)
				assert.True(t, !limitertest.Reads[name] || want == before, name)
				assert.True(t, !limitertest.Acquires[name] || told.Reserved != nil || want.inUse == 6+1, name)
				w.Rate = want.rate
				w.check = func(what string) { assert.Equal(t, want, w.look(t, w.RateLimiter), what) }
				a := call.Do(context.Background(), w.RateLimiter)
				if (w.alone || limitertest.Reads[name]) && a.Err == nil {
					assert.Equal(t, []any{told.OK, told.Taken, told.Free, told.Set}, []any{a.OK, a.Taken, a.Free, a.Set}, name)
				}
				return three{want.inUse - 6}, a.Err
			}
		},
	}
}

// A look is at what Redis holds of a limiter.
type look struct {
	rate, inUse, free int64
	expires           bool
	renamed           int64 // in use by the name that Rename gives
}

func (w *bundle) look(t *testing.T, l *rratelimiter.RateLimiter) (found look) {
	t.Helper()
	found.rate, _ = w.Redis.HGet(t.Context(), l.Name(), "rate").Int64()
	found.inUse = limitertest.InUse(t, w.Redis, limitertest.KeysOf(l).Permits)
	found.renamed = limitertest.InUse(t, w.Redis, limitertest.KeysOf(w.Client.RateLimiter(limitertest.Besides(l.Name()))).Permits)
	found.free, _ = limitertest.StoredValue(t, w.Redis, limitertest.KeysOf(l).Value)
	found.expires = w.Redis.TTL(t.Context(), l.Name()).Val() > 0
	return found
}
