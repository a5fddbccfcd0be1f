package envoylimit

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// What a domain says of failures reaches Envoy before it gives up, which is after 20 ms by default, from the first call on.
// What Redis grants afterwards goes back, and calls that were given up end those to a Redis that is silent.
func TestFailure_AnswersInTheCallersTime(t *testing.T) {
	t.Parallel()
	const limits = `
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 8}}
- {key: held, rate_limit: {unit: hour, requests_per_unit: 8, estimate: 2}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 8}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 8, algorithm: token_bucket}}
`
	const all = "user=ann\nheld=ann\nday=ann\nbucket=ann"
	for head, want := range map[string]string{
		"domain: web":                           "Unavailable",
		"domain: web\nfailure: closed":          "OVER: OVER OVER OVER OVER", //nolint:dupword // four descriptors
		"domain: web\nfailure: open":            "OK: OK OK OK OK",           //nolint:dupword // four descriptors
		"domain: web\nfailure: local\nshare: 1": "OK: OK 7/8 OK 6/8 OK 7/8 OK 7/8",
	} {
		t.Run(head, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				s := newService(t, rdb, head+limits)
				for key := range strings.SplitSeq(all, "\n") { // scripts are loaded
					s.ask(t, "web", strings.Replace(key, "ann", "eve", 1))
				}
				var away atomic.Int64
				rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
					time.Sleep(time.Duration(away.Load()))
					return next()
				}))
				within20ms := func(text string) (string, time.Duration) {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					defer cancel()
					start := time.Now()
					r, err := s.ShouldRateLimit(ctx, request("web", text))
					require.NoError(t, ctx.Err())
					if err != nil {
						return status.Code(err).String(), time.Since(start)
					}
					return says(r), time.Since(start)
				}
				away.Store(int64(15 * time.Millisecond))
				got, _ := within20ms("user=bob")
				assert.Equal(t, "OK: OK 7/8", got)
				away.Store(int64(30 * time.Millisecond))
				got, _ = within20ms(all)
				assert.Equal(t, want, got)
				away.Store(0)
				time.Sleep(time.Minute)
				assert.Equal(t, "OK: OK 8/8 OK 8/8 OK 8/8 OK 8/8", says(s.ask(t, "web", "user=ann | 0\nheld=ann | 0\nday=ann | 0\nbucket=ann | 0")))
				away.Store(int64(time.Hour))
				for range 10 {
					_, _ = within20ms("user=ann")
				}
				_, took := within20ms("user=ann")
				assert.LessOrEqual(t, took, 5*time.Millisecond)
				away.Store(0)
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// A Service that lets all pass does so while Redis is away, too.
func TestFailure_InShadow(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{"": "OK: OK OK", "failure: closed": "OK: OVER OK", "failure: open": "OK: OK OK"} { //nolint:dupword // two descriptors
		synctest.Test(t, func(t *testing.T) {
			rdb, down := failing(t)
			down.Store(true)
			s := newService(t, rdb, head+web, WithShadow())
			assert.Equal(t, want, says(s.ask(t, "web", "user=ann\nother=x")), head)
			time.Sleep(time.Minute)
		})
	}
}

// A limit in shadow refuses nothing in a closed domain either.
func TestFailure_ClosedBesideShadow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, down := failing(t)
		down.Store(true)
		s := newService(t, rdb, "failure: closed"+web+"- {key: watched, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}")
		assert.Equal(t, "OVER: OVER OK", says(s.ask(t, "web", "user=ann\nwatched=x")))
		assert.Equal(t, "OK: OK", says(s.ask(t, "web", "watched=x")))
		time.Sleep(time.Minute)
	})
}
