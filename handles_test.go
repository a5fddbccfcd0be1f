package rratelimiter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// plan is the limits of a service: requests and tokens.
type plan struct {
	client           *rratelimiter.Client
	requests, tokens *rratelimiter.RateLimiter
}

func newPlan(t *testing.T, rdb redistest.Client, opts ...rratelimiter.Option) plan {
	t.Helper()
	c := limitertest.NewClient(t, rdb, opts...)
	requests := limitertest.ByDefault(c, "{ann}requests", rratelimiter.PerMinute(3))
	return plan{c, requests, limitertest.ByDefault(c, "{ann}tokens", rratelimiter.PerHour(1000))}
}

func (p plan) take(t *testing.T, tokens int64) []limit.Decision {
	t.Helper()
	return limitertest.Must(p.client.TakeAll(t.Context(), p.requests.Claim(1), p.tokens.Claim(tokens)))(t)
}

// calls are those with claims.
func (p plan) calls(t *testing.T) map[string]func(claims ...rratelimiter.Claim) error {
	ctx := t.Context()
	return map[string]func(claims ...rratelimiter.Claim) error{
		"TakeAll": func(claims ...rratelimiter.Claim) error { return limitertest.Second(p.client.TakeAll(ctx, claims...)) },
		"TryAcquireAll": func(claims ...rratelimiter.Claim) error {
			return limitertest.Second(p.client.TryAcquireAll(ctx, time.Second, claims...))
		},
		"ReserveAll": func(claims ...rratelimiter.Claim) error {
			return limitertest.Second(p.client.ReserveAll(ctx, 0, claims...))
		},
	}
}

// reserve reserves what must be granted.
func (p plan) reserve(t *testing.T, timeout time.Duration, claims ...rratelimiter.Claim) *rratelimiter.Reservations {
	t.Helper()
	r := limitertest.Must(p.client.ReserveAll(t.Context(), timeout, claims...))(t)
	require.True(t, r.Granted)
	return r
}

func (p plan) free(t *testing.T) []int64 {
	t.Helper()
	return []int64{limitertest.Available(t, p.requests), limitertest.Available(t, p.tokens)}
}

var ofClaims = limitertest.Tests[plan]{
	"TakeAll_ChargesEachItsNumber": func(t *testing.T, p plan) {
		assert.Equal(t, []limit.Decision{
			{Granted: true, Limit: 3, Remaining: 2, ResetAfter: time.Minute}, {Granted: true, Limit: 1000, Remaining: 200, ResetAfter: time.Hour},
		}, p.take(t, 800))
		assert.Equal(t, []int64{2, 200}, p.free(t))
		one := limitertest.Must(p.client.TakeAll(t.Context(), p.requests.Claim(2)))(t)
		assert.Equal(t, []limit.Decision{{Granted: true, Limit: 3, ResetAfter: time.Minute}}, one, "of one it is Take")
	},

	"TakeAll_SaysWhoRefusedAndChargesNone": func(t *testing.T, p plan) {
		p.take(t, 800)
		time.Sleep(10 * time.Second)
		assert.Equal(t, []limit.Decision{
			{Granted: true, Limit: 3, Remaining: 2, ResetAfter: 50 * time.Second},
			{Limit: 1000, Remaining: 200, RetryAfter: time.Hour - 10*time.Second, ResetAfter: time.Hour - 10*time.Second},
		}, p.take(t, 201))
		assert.Equal(t, []int64{2, 200}, p.free(t))
		time.Sleep(50 * time.Second)
		assert.EqualValues(t, 2, p.take(t, 200)[0].Remaining, "a minute's request is back, also in the figures")
	},

	"ReserveAll_SettlesEachWithItsNumber": func(t *testing.T, p plan) {
		for _, tt := range []struct {
			actual []int64
			free   []int64
		}{{[]int64{1, 300}, []int64{2, 700}}, {[]int64{1, 900}, []int64{1, -200}}, {[]int64{0, 500}, []int64{1, 500}}} {
			r := p.reserve(t, 0, p.requests.Claim(1), p.tokens.Claim(500))
			require.ErrorIs(t, r.Settle(t.Context(), 1), rratelimiter.ErrInvalidPermits, "one number for two")
			require.NoError(t, r.Settle(t.Context(), tt.actual...))
			require.ErrorIs(t, r.Settle(t.Context(), tt.actual...), rratelimiter.ErrSettled)
			require.NoError(t, r.Cancel(t.Context()))
			assert.Equal(t, []int64{tt.free[0], max(0, tt.free[1])}, p.free(t))
			if tt.free[1] < 0 {
				require.NoError(t, p.tokens.Reset(t.Context()))
			}
		}
	},

	"ReserveAll_WaitsUntilAllHaveEnough": func(t *testing.T, p plan) {
		p.take(t, 1000)
		start := time.Now()
		r := p.reserve(t, 2*time.Hour, p.requests.Claim(3), p.tokens.Claim(1))
		assert.Equal(t, time.Hour, time.Since(start).Round(time.Minute))
		require.NoError(t, r.Cancel(t.Context()))
		assert.Equal(t, []int64{3, 1000}, p.free(t))

		p.take(t, 1000)
		r = limitertest.Must(p.client.ReserveAll(t.Context(), time.Second, p.requests.Claim(2), p.tokens.Claim(1)))(t)
		assert.False(t, r.Granted)
		require.NoError(t, r.Settle(t.Context(), 2, 1))
		assert.Equal(t, []bool{true, false}, []bool{r.Decisions[0].Granted, r.Decisions[1].Granted})
	},

	// Each claim has its own hold. What is not settled comes back when that is over, and the figures say when.
	"ReserveAll_HoldsComeBackUnsettled": func(t *testing.T, p plan) {
		shared := p.client.RateLimiter("{ann}all", rratelimiter.WithDefault(rratelimiter.PerDay(10)))
		r := p.reserve(t, 0, p.requests.Claim(1, rratelimiter.Hold(10*time.Second)), p.tokens.Claim(800, rratelimiter.Hold(time.Minute)), shared.Claim(1))
		assert.Equal(t, []limit.Decision{
			{Granted: true, Limit: 3, Remaining: 2, ResetAfter: 10 * time.Second},
			{Granted: true, Limit: 1000, Remaining: 200, ResetAfter: time.Minute},
			{Granted: true, Limit: 10, Remaining: 9, ResetAfter: 24 * time.Hour},
		}, r.Decisions)
		start := time.Now()
		assert.Equal(t, time.Minute, p.take(t, 300)[1].RetryAfter)
		r = p.reserve(t, time.Hour, p.requests.Claim(3, rratelimiter.Hold(time.Hour)), p.tokens.Claim(300))
		assert.Equal(t, time.Minute, time.Since(start), "one who waits gets them then")
		assert.Equal(t, []time.Duration{time.Minute, time.Hour}, []time.Duration{r.Decisions[0].ResetAfter, r.Decisions[1].ResetAfter})
		require.NoError(t, r.Settle(t.Context(), 1, 100))
		assert.Equal(t, []int64{2, 900}, p.free(t))
		assert.EqualValues(t, 9, limitertest.Available(t, shared))
	},

	// What is wrong with one claim names it, and nothing is charged.
	"TakeAll_ErrorNamesTheLimiter": func(t *testing.T, p plan) {
		for tokens, want := range map[int64]error{0: rratelimiter.ErrInvalidPermits, 1001: rratelimiter.ErrPermitsExceedRate} {
			for call, do := range p.calls(t) {
				err := do(p.requests.Claim(1), p.tokens.Claim(tokens))
				require.ErrorIs(t, err, want)
				require.ErrorContains(t, err, call+` "{ann}tokens"`)
			}
		}
		_, err := p.client.TakeAll(t.Context(), p.requests.Claim(1), rratelimiter.Claim{})
		require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		_, err = p.client.TakeAll(t.Context(), p.client.RateLimiter("{}x").Claim(1), p.requests.Claim(1))
		require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		require.ErrorContains(t, err, "fall in different slots")
		limitertest.MustTrySetRate(t, p.client.RateLimiter("{}x"), rratelimiter.PerHour(1))
		require.NoError(t, limitertest.Second(p.client.TakeAll(t.Context(), p.client.RateLimiter("{}x").Claim(1))), "one's server knows")
		assert.False(t, limitertest.Must(p.requests.Exists(t.Context()))(t))
	},
}

func TestClaims(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, ofClaims, func(t *testing.T, test func(t *testing.T, p plan)) {
		limitertest.Virtual(t, limitertest.MembersOf, func(t *testing.T, rdb redistest.Client, version string) {
			test(t, newPlan(t, rdb, rratelimiter.WithRedissonVersion(version)))
		})
	})
}

var ofHandles = limitertest.Tests[redistest.Client]{
	// Only a reservation can be held, and a hold is a millisecond at least. Nothing reaches Redis.
	"Claim_BadHold": func(t *testing.T, rdb redistest.Client) {
		p := newPlan(t, rdb)
		sent := limitertest.CountCommands(rdb)
		calls := p.calls(t)
		for d, text := range map[time.Duration]string{-1: "less than 1ms", 0: "less than 1ms", 999: "less than 1ms", time.Minute: "only ReserveAll"} {
			held := p.tokens.Claim(1, rratelimiter.Hold(d))
			for op, call := range calls {
				for _, claims := range [][]rratelimiter.Claim{{held}, {p.requests.Claim(1), held}} {
					if op != "ReserveAll" || d < time.Millisecond {
						requireRefused(t, sent, p.tokens, op, text, rratelimiter.ErrInvalidConfig, call(claims...))
					}
				}
			}
		}
	},

	// The first numbers count, whole: later ones change nothing of any limiter.
	"ReserveAll_IsSettledByOneCall": func(t *testing.T, rdb redistest.Client) {
		for range 20 {
			p := newPlan(t, rdb)
			r := p.reserve(t, 0, p.requests.Claim(2), p.tokens.Claim(500))
			settled := make(chan error)
			go func() { settled <- r.Settle(t.Context(), 1, 300) }()
			require.NoError(t, r.Cancel(t.Context()))
			if err := <-settled; err == nil {
				assert.Equal(t, []int64{2, 700}, p.free(t))
			} else {
				require.ErrorIs(t, err, rratelimiter.ErrSettled)
				assert.Equal(t, []int64{3, 1000}, p.free(t))
			}
			require.NoError(t, p.requests.Reset(t.Context()))
			require.NoError(t, p.tokens.Reset(t.Context()))
		}
	},

	"KeyedClaim_NeedsATagInTheKey": func(t *testing.T, rdb redistest.Client) {
		c := limitertest.NewClient(t, rdb)
		requests, tokens := c.Keyed("requests:", rratelimiter.PerMinute(3)), c.Keyed("tokens:", rratelimiter.PerDay(1000))
		assert.EqualValues(t, 200, limitertest.Must(c.TakeAll(t.Context(), requests.Claim("{ann}", 1), tokens.Claim("{ann}", 800)))(t)[1].Remaining)
		sent := limitertest.CountCommands(rdb)
		_, err := c.TakeAll(t.Context(), requests.Claim("ann", 1), tokens.Claim("ann", 800))
		require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		require.ErrorContains(t, err, `TakeAll "tokens:ann"`)
		require.ErrorContains(t, err, "braces")
		assert.Zero(t, sent.Total())
	},

	"KeyedFunc_GivesEachKeyItsRate": func(t *testing.T, rdb redistest.Client) {
		k := limitertest.NewClient(t, rdb).KeyedFunc("plan:", newPlans().of)
		require.NoError(t, k.Err())
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 6, ResetAfter: time.Hour}, limittest.Take(t, k, "ann", 4))
		assert.Equal(t, limit.Decision{Granted: true, Limit: 100, Remaining: 96, ResetAfter: time.Minute}, limittest.Take(t, k, "bob", 4))
		_, err := k.Take(t.Context(), "eve", 1)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig, "there is no plan for her")
		require.ErrorContains(t, err, `"plan:eve"`)
	},

	"KeyedFunc_ChangedRateReachesTheKeyAtItsNextCall": func(t *testing.T, rdb redistest.Client) {
		p := newPlans()
		k := limitertest.NewClient(t, rdb).KeyedFunc("plan:", p.of, rratelimiter.WithRefusalCache())
		other := limitertest.NewClient(t, rdb).KeyedFunc("plan:", newPlans().of)
		limittest.Take(t, k, "ann", 10)
		assert.False(t, limittest.Take(t, k, "ann", 1).Granted)
		assert.False(t, limittest.Take(t, other, "ann", 1).Granted)
		time.Sleep(time.Minute)
		p["ann"] = rratelimiter.PerHour(50)
		assert.Equal(t, limit.Decision{Granted: true, Limit: 50, Remaining: 39, ResetAfter: time.Hour}, limittest.Take(t, k, "ann", 1),
			"the 10 are still in use")
		p["ann"] = rratelimiter.PerHour(10)
		assert.False(t, limittest.Take(t, k, "ann", 1).Granted)
		p["ann"] = rratelimiter.Config{Rate: -1, Interval: time.Hour}
		require.ErrorIs(t, limitertest.Second(k.Take(t.Context(), "ann", 1)), rratelimiter.ErrInvalidConfig)
		p["ann"] = rratelimiter.PerHour(50)
		assert.True(t, limittest.Take(t, k, "ann", 1).Granted)
		for range 2 {
			assert.EqualValues(t, 50, limittest.Take(t, other, "ann", 1).Limit, "a program that learnt its answer before changes nothing back")
			time.Sleep(2 * time.Minute)
		}
	},
}

func TestHandles(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, ofHandles, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// plans are rates by key.
type plans map[string]rratelimiter.Config

func (p plans) of(key string) rratelimiter.Config { return p[key] }

func newPlans() plans {
	return plans{"ann": rratelimiter.PerHour(10), "bob": rratelimiter.PerMinute(100)}
}
