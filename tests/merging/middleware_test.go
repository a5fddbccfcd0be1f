package merging_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// stranger is a limiter that is not one of this module. It refuses every third request.
type stranger struct{ asked int }

func (s *stranger) Take(context.Context, string, int64) (limit.Decision, error) {
	s.asked++
	return limit.Decision{Granted: s.asked%3 > 0, Limit: 1000}, nil
}

// Of the policies that middleware asks by one call, those that no handler settles are merged as well, and what they granted
// goes back if another policy refuses.
func TestMiddleware_PoliciesAskedTogether(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]bool{"with one that is settled": true, "none is": false}, func(t *testing.T, rdb redistest.Client, settles bool) {
		merges, client := countMerges(rdb), limitertest.NewClient(t, rdb)
		limits := []*rratelimiter.KeyedLimiter{
			client.Keyed("minute:", rratelimiter.PerMinute(1000)), client.Keyed("day:", rratelimiter.PerDay(10_000)),
			client.Keyed("tokens:", rratelimiter.PerDay(1_000_000)),
		}
		tokens := httplimit.Policy{Name: "tokens", Limiter: limits[2], Cost: func(*http.Request) (int64, error) { return 300, nil }}
		tokens.Settle = settles
		m := httplimit.New(httplimit.Policy{Name: "minute", Limiter: limits[0]}, httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: limits[1]}),
			httplimit.WithPolicy(tokens), httplimit.WithPolicy(httplimit.Policy{Name: "stranger", Limiter: &stranger{}}),
			httplimit.WithHashTag(), httplimit.WithKey(httplimit.User(func(*http.Request) string { return "ann" })))
		require.NoError(t, m.Err())
		passed, used := int64(0), int64(300)
		handler := m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if passed++; settles {
				used = 200
				assert.NoError(t, httplimit.Settle(r.Context(), used))
			}
		}))
		const requests = 600
		for range requests {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			time.Sleep(50 * time.Millisecond)
		}
		require.EqualValues(t, requests*2/3, passed)
		for i, key := range []string{"http:minute:{ann}", "http:day:{ann}", "http:tokens:{ann}"} {
			l := limits[i].Limiter(key)
			held := passed
			if i == 2 {
				held *= used
			}
			free, inUse := limitertest.Available(t, l), limitertest.InUse(t, rdb, limitertest.KeysOf(l).Permits)
			assert.Equal(t, held, inUse, key)
			assert.Equal(t, limitertest.ConfigOf(t, l).Rate, free+inUse, key)
			assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val(), int64(small), key)
		}
		assert.Positive(t, merges.Load())
	})
}
