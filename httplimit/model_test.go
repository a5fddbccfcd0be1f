package httplimit_test

import (
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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// Whatever policies meet, and whatever requests cost: the same request passes
// when Retry-After is over, and never where there is none.
func TestRetryAfterIsNeverTooEarly(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		client := rratelimiter.New(rdb)
		t.Cleanup(func() { assert.NoError(t, client.Close(t.Context())) })
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
