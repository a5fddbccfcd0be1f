package httplimit_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// All policies of all middleware around a handler are settled, and one that failed by the next
// call. What they reserved goes back if another refuses, also if nobody is refused.
func TestSettleSettlesAllPolicies(t *testing.T) {
	t.Parallel()
	var all [3]*middlewaretest.Reserver
	for i := range all {
		all[i] = &middlewaretest.Reserver{Fake: grants()}
	}
	all[1].Fails = limit.ErrUnavailable
	outer := httplimit.New(all[0], httplimit.WithSettle())
	inner := httplimit.New(all[1], httplimit.WithSettle(), policy("hour", all[2]))
	w := serve(outer(inner(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.EqualError(t, httplimit.Settle(r.Context(), 3), `httplimit: Settle: limit "default": `+limit.ErrUnavailable.Error())
		all[1].Fails = nil
		assert.NoError(t, httplimit.Settle(r.Context(), 3))
		assert.ErrorIs(t, httplimit.Settle(r.Context(), 3), limit.ErrSettled)
	}))), newRequest(t))
	require.Equal(t, http.StatusOK, w.Code)
	for _, limiter := range all {
		assert.Equal(t, []int64{3}, limiter.Settled)
	}
	for i, opts := range [][]httplimit.Option{nil, {httplimit.WithShadow()}} {
		all[i].Settled = nil
		serve(httplimit.New(all[i], append(opts, httplimit.WithSettle(), policy("hour", says(limit.Decision{}, nil)))...)(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { assert.NoError(t, httplimit.Settle(r.Context(), 3)) })), newRequest(t))
		assert.Equal(t, []int64{0}, all[i].Settled)
	}
}
