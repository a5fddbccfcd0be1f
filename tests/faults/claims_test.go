package faults_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// claimsCase is a number of permits of each of three limiters, and what becomes of them.
type claimsCase struct {
	claims, want three
	opts         []rratelimiter.ReserveOption // of all
	take         func(ctx context.Context, w *bundle, claims []rratelimiter.Claim) (bool, error)
}

func (w *bundle) claims(permits three, opts ...rratelimiter.ReserveOption) []rratelimiter.Claim {
	claims := make([]rratelimiter.Claim, len(permits))
	for i, n := range permits {
		claims[i] = w.own[i].Claim(n, opts...)
	}
	return claims
}

// Claims to different numbers are charged once, and so is what settles them.
func TestClaims_ChargingHappensOnce(t *testing.T) {
	t.Parallel()
	takeAll := func(ctx context.Context, w *bundle, claims []rratelimiter.Claim) (bool, error) {
		decisions, err := w.Client.TakeAll(ctx, claims...)
		for _, d := range decisions {
			if !d.Granted {
				return false, err
			}
		}
		return err == nil, err
	}
	reserveAll := func(actual three) func(context.Context, *bundle, []rratelimiter.Claim) (bool, error) {
		return func(ctx context.Context, w *bundle, claims []rratelimiter.Claim) (bool, error) {
			r, err := w.Client.ReserveAll(ctx, 0, claims...)
			if err != nil {
				return false, err
			}
			return r.Granted, r.Settle(ctx, actual[:]...)
		}
	}
	inUse, held := three{1, 2, 3}, []rratelimiter.ReserveOption{hold}
	cases := map[string]claimsCase{
		"TakeAll":                     {three{2, 4, 1}, three{3, 6, 4}, nil, takeAll},
		"TakeAll of all":              {three{9, 8, 7}, three{10, 10, 10}, nil, takeAll},
		"TakeAll, refused":            {three{2, 9, 1}, inUse, nil, takeAll},
		"ReserveAll":                  {three{2, 4, 1}, three{3, 3, 16}, nil, reserveAll(three{2, 1, 13})},
		"ReserveAll, cancelled":       {three{2, 4, 1}, inUse, nil, reserveAll(three{})},
		"ReserveAll, not granted":     {three{2, 4, 8}, inUse, nil, reserveAll(three{2, 1, 13})},
		"ReserveAll, held":            {three{2, 4, 1}, three{3, 3, 16}, held, reserveAll(three{2, 1, 13})},
		"ReserveAll, held, cancelled": {three{2, 4, 1}, inUse, held, reserveAll(three{})},
	}
	underFaults(t, append([]string{"double"}, lossy...), cases, nil, func(t *testing.T, c claimsCase, what, fault, version string) {
		w := newBundleInUse(t, inUse, version)
		for _, script := range []*lua.Script{lua.AcquireAll, lua.SettleReservation} {
			w.On(script, actions(fault, w.Held)...)
		}
		granted, err := c.take(context.Background(), w, w.claims(c.claims, c.opts...))
		assert.NoError(t, err, what)
		assert.Equal(t, c.want != inUse || strings.HasSuffix(what, "cancelled"), granted, what)
		w.LetGo()
		w.checkAll(t, c.want, what)
	})
}

// Whose caller goes away while several limiters are asked gets nothing, of any.
func TestClaims_OfOneWhoHasGoneGoBack(t *testing.T) {
	t.Parallel()
	eachLayout(t, "gone", func(t *testing.T, version string) {
		w := newBundleInUse(t, three{1, 2, 3}, version)
		ctx, cancel := context.WithCancel(t.Context())
		w.On(lua.AcquireAll, actions("hold", w.Held)...)
		gone := make(chan error)
		go func() {
			_, err := w.Client.TakeAll(ctx, w.claims(three{2, 4, 1})...)
			gone <- err
		}()
		assert.Eventually(t, func() bool { return w.Sent(lua.AcquireAll) > 0 }, limitertest.Outlasts, limitertest.Outlasts/1000)
		cancel()
		assert.ErrorIs(t, <-gone, context.Canceled)
		w.LetGo()
		w.checkAll(t, three{1, 2, 3}, "gone")
	})
}
