package httplimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// All limiters of this module at once, beside one that refuses: nothing of what
// they granted stays taken, and what the answer says remains is what remains.
func TestEachLimiterGivesBack(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		gate := &fake{}
		opts := []httplimit.Option{httplimit.WithCost(func(*http.Request) int64 { return 2 })}
		for name, limiter := range middlewaretest.Limiters(t, rdb) {
			opts = append(opts, policy(name, limiter))
		}
		ask := func(code int, remaining int64) {
			t.Helper()
			gate.Answer = says(limit.Decision{Granted: code == http.StatusOK, Limit: 9, Remaining: 9, RetryAfter: time.Second}, nil).Answer
			w := serve(httplimit.New(gate, opts...)(hello), newRequest(t))
			require.Equal(t, code, w.Code)
			for _, m := range members(t, w.Header(), "RateLimit")[1:] {
				assert.Equal(t, remaining, m.Params["r"], m.Name)
			}
		}
		for range 3 {
			ask(http.StatusTooManyRequests, 5)
		}
		ask(http.StatusOK, 3)
		time.Sleep(time.Second)
		for range 3 {
			ask(http.StatusTooManyRequests, 3)
		}
		ask(http.StatusOK, 1)
	})
}

// A threshold set in Redis counts for the next request, as for Java services on
// the same keys.
func TestDeclaredThresholdIsChangedWhileItRuns(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
			return slidinglog.New(rdb, slidinglog.Config{Limit: r.Threshold, Window: r.Period, Thresholds: "rate:limit:config"})
		}, httplimit.WithPrefix("limit:"), httplimit.WithKey(httplimit.Header("X-User"), httplimit.Path()))
		mux := http.NewServeMux()
		mux.Handle("GET /items/1", rate(httplimit.Rate{Period: 30 * time.Second, Threshold: 2})(hello))
		ask := func(code int, most int64) {
			t.Helper()
			r := newRequest(t)
			r.Header.Set("X-User", "ann")
			w := serve(mux, r)
			assert.Equal(t, code, w.Code)
			assert.Equal(t, map[string]int64{"q": most, "w": 30}, members(t, w.Header(), "RateLimit-Policy")[0].Params)
			waits := code == http.StatusTooManyRequests && most > 0
			assert.Equal(t, waits, w.Header().Get("Retry-After") != "", "no wait brings what a threshold of 0 refuses")
		}
		ask(http.StatusOK, 2)
		ask(http.StatusOK, 2)
		ask(http.StatusTooManyRequests, 2)
		require.NoError(t, rdb.HSet(t.Context(), "rate:limit:config", "limit:ann:/items/1", "3").Err())
		ask(http.StatusOK, 3)
		ask(http.StatusTooManyRequests, 3)
		require.NoError(t, rdb.HSet(t.Context(), "rate:limit:config", "limit:ann:/items/1", "0").Err())
		ask(http.StatusTooManyRequests, 0)
		assert.EqualValues(t, 3, rdb.ZCard(t.Context(), "limit:ann:/items/1").Val())
	})
}

// A bucket has a second key, with "_time" behind the first: nobody chooses a name
// that leads to another's, whatever the policies.
func TestBucketOfASecondPolicy(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		bucket := tokenbucket.New(rdb, tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Hour})
		handler := httplimit.New(grants(), httplimit.WithKey(httplimit.Header("X-User")),
			policy("b", bucket))(hello)
		for _, user := range []string{"ann", "ann_time"} {
			r := newRequest(t)
			r.Header.Set("X-User", user)
			assert.Equal(t, http.StatusOK, serve(handler, r).Code, user)
			assert.Equal(t, http.StatusTooManyRequests, serve(handler, r).Code, user)
		}
		assert.EqualValues(t, 1, rdb.Exists(t.Context(), "http:b:ann_time%").Val())
	})
}

// A request that costs too much is told what the limit is.
func TestCostAboveTheLimitOfEachLimiter(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		for name, limiter := range middlewaretest.Limiters(t, rdb) {
			handler := httplimit.New(limiter, httplimit.WithCost(func(*http.Request) int64 { return 6 }))(refuseAll(t))
			w := serve(handler, newRequest(t))
			assert.Equal(t, http.StatusTooManyRequests, w.Code, name)
			assert.Equal(t, `"default";q=5;w=10`, w.Header().Get("RateLimit-Policy"), name)
			assert.NotContains(t, w.Header(), http.CanonicalHeaderKey("RateLimit"), name)
			assert.NotContains(t, w.Header(), "Retry-After", name)
		}
	})
}

// Whatever policies meet, and whatever requests cost: the same request passes
// when Retry-After is over, and never where there is none.
func TestRetryAfterIsNeverTooEarly(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := rratelimiter.New(rdb)
		t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same histories each time
		upTo := func(n int64) int64 { return 1 + random.Int64N(n) }
		newLimiter := func(name string) limit.Limiter {
			most, window := upTo(12), time.Duration(upTo(20_000))*time.Millisecond
			switch random.IntN(5) {
			case 0:
				return client.Keyed(name, rratelimiter.Config{Rate: most, Interval: window})
			case 1:
				return fixedwindow.New(rdb, fixedwindow.Config{Limit: most, Window: window})
			case 2:
				return slidinglog.New(rdb, slidinglog.Config{Limit: most, Window: window})
			case 3:
				return httplimit.Local(most, window)
			}
			return tokenbucket.New(rdb, tokenbucket.Config{
				Capacity: most, Refill: upTo(most), Interval: time.Duration(upTo(5)) * time.Second, Borrow: random.Int64N(4),
			})
		}
		refused, never := 0, 0
		for round := range 8 {
			cost := int64(1)
			opts := []httplimit.Option{
				httplimit.WithPrefix(fmt.Sprintf("round%d:", round)), httplimit.WithHashTag(), httplimit.WithLegacyHeaders(),
				httplimit.WithCost(func(*http.Request) int64 { return cost }),
			}
			for i := range random.IntN(4) {
				name := fmt.Sprint("policy", i)
				opts = append(opts, policy(name, newLimiter(name)))
			}
			handler := httplimit.New(newLimiter("default"), opts...)(hello)
			for range 40 {
				cost = upTo(5)
				w := serve(handler, newRequest(t))
				members(t, w.Header(), "RateLimit")
				members(t, w.Header(), "RateLimit-Policy")
				switch retry := w.Header().Get("Retry-After"); {
				case w.Code == http.StatusOK:
				case retry == "":
					never++
					time.Sleep(100 * time.Second)
					require.Equal(t, http.StatusTooManyRequests, serve(handler, newRequest(t)).Code, "round %d, cost %d: %v", round, cost, w.Header())
				default:
					refused++
					wait := time.Duration(integer(t, retry)) * time.Second
					reset := time.Unix(integer(t, w.Header().Get("X-RateLimit-Reset")), 0)
					require.Greater(t, time.Until(reset), wait-time.Second)
					time.Sleep(wait)
					again := serve(handler, newRequest(t))
					require.Equal(t, http.StatusOK, again.Code, "round %d, cost %d: %v, then %v", round, cost, w.Header(), again.Header())
				}
				if random.IntN(3) > 0 {
					time.Sleep(time.Duration(random.Int64N(3000)) * time.Millisecond)
				}
			}
		}
		t.Logf("%d refused for a time, %d for ever", refused, never)
		assert.Positive(t, refused)
		assert.Positive(t, never)
	})
}

// Behind a lease, the headers of a program fall from answer to answer, whatever another
// program takes, and hardly any request asks Redis.
func TestHeadersFromALeaseDoNotJump(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		keyed := func(opts ...rratelimiter.LimiterOption) *rratelimiter.KeyedLimiter {
			client := rratelimiter.New(rdb)
			t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
			return client.Keyed("users:", rratelimiter.PerMinute(2000), opts...)
		}
		other := keyed()
		handler := httplimit.New(keyed(rratelimiter.WithLease(rratelimiter.Lease{Permits: 100}), rratelimiter.WithRefusalCache()),
			httplimit.WithKey(httplimit.Header("X-User")))(hello)
		last, renewed := int64(2000), 0
		for i := range 1000 {
			r := newRequest(t)
			r.Header.Set("X-User", "ann")
			w := serve(handler, r)
			require.Equal(t, http.StatusOK, w.Code)
			told := members(t, w.Header(), "RateLimit")[0].Params
			require.EqualValues(t, 60, told["t"])
			require.Less(t, told["r"], last)
			if told["r"] < last-1 {
				renewed++ // what the other took is known now
			}
			last = told["r"]
			if i%20 == 0 {
				_, err := other.Take(t.Context(), "http:ann", 1)
				require.NoError(t, err)
			}
		}
		assert.Positive(t, renewed)
		assert.Less(t, renewed, 40)
	})
}
