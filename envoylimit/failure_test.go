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

// So do answers to calls that charge to the end, give back, or are refused by one limit after another has granted: what is still
// to be done with Redis is done after the answer.
func TestFailure_AnswersInTheCallersTimeWhatGoesOn(t *testing.T) {
	t.Parallel()
	const limits = `
descriptors:
- {key: lax, rate_limit: {unit: hour, requests_per_unit: 8, charge: always}}
- {key: user, rate_limit: {unit: hour, requests_per_unit: 8}}
- {key: full, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 1}}
`
	for _, tc := range []struct {
		call   string
		prompt int // how many calls Redis answers at once, before it is slow
		want   map[string]string
		then   string // what is used in the end
	}{
		{"lax=ann", 0, map[string]string{"": "Unavailable", "failure: closed": "OVER: OVER", "failure: open": "OK: OK", "failure: local": "OK: OK 7/8"}, "lax=ann | 0 -> OK: OK 7/8"},
		{"user=ann | 9", 1, map[string]string{"": "Unavailable", "failure: closed": "OVER: OVER", "failure: open": "OK: OK", "failure: local": "OVER: OVER 0/8"}, "user=ann | 0 -> OVER: OVER 0/8"},
		{"user=ann | -1", 0, map[string]string{"": "Unavailable", "failure: closed": "OVER: OVER", "failure: open": "OK: OK", "failure: local": "OK: OK"}, "user=ann | 0 -> OK: OK 8/8"},
		{"day=y\nfull=x", 2, map[string]string{"": "OVER: OK 0/1 OVER 0/1"}, "day=y | 0 -> OK: OK 1/1"},
		{"full=y | 0", 1, map[string]string{"": "OVER: OVER 0/1"}, "full=y | 0 -> OVER: OVER 0/1"},
	} {
		for head, want := range tc.want {
			t.Run(head+tc.call, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rdb, _ := redistest.Mini(t)
					s := newService(t, rdb, "domain: web\n"+head+limits)
					for _, text := range []string{"lax=eve", "user=eve", "lax=eve | 9", "user=eve | -1", "full=x", "full=x | 0", "full=y | 2", "day=x", "day=z\nfull=x"} { // scripts are loaded
						s.ask(t, "web", text)
					}
					var prompt atomic.Int64
					prompt.Store(int64(tc.prompt))
					rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
						if prompt.Add(-1) < 0 {
							time.Sleep(30 * time.Millisecond)
						}
						return next()
					}))
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					defer cancel()
					r, err := s.ShouldRateLimit(ctx, request("web", tc.call))
					require.NoError(t, ctx.Err())
					got := status.Code(err).String()
					if err == nil {
						got = says(r)
					}
					assert.Equal(t, want, got)
					prompt.Store(1 << 20)
					time.Sleep(time.Minute)
					ask, used, _ := strings.Cut(tc.then, " -> ")
					assert.Equal(t, used, says(s.ask(t, "web", ask)))
				})
			})
		}
	}
}
