package httplimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A partner that counts each second strictly sees more than the limit if calls take different times to arrive, and no more
// once the interval is longer by as much as these differ. docs/partners.md has the figures.
func TestPartner_MarginForJitter(t *testing.T) {
	t.Parallel()
	const limit, jitter = 20, 100 * time.Millisecond
	densest := func(interval time.Duration) (most int) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			var mu sync.Mutex
			draw := rand.New(rand.NewPCG(1, 2))
			var arrived []time.Duration
			perHost := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.Config{Rate: limit, Interval: interval})
			transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				way := time.Duration(draw.Int64N(int64(jitter)))
				arrived = append(arrived, sinceBubble()+way)
				mu.Unlock()
				time.Sleep(way)
				return answers(http.StatusOK)(r)
			}), perHost)
			var all sync.WaitGroup
			for range 15 * limit {
				all.Go(func() { fetch(t, transport, "/") })
			}
			all.Wait()
			slices.Sort(arrived)
			for i, first := range arrived {
				end, _ := slices.BinarySearch(arrived, first+time.Second)
				most = max(most, end-i)
			}
		})
		return most
	}
	exact, withMargin := densest(time.Second), densest(time.Second+jitter)
	t.Logf("in any second: %d, with the margin %d", exact, withMargin)
	assert.Greater(t, exact, limit)
	assert.LessOrEqual(t, withMargin, limit)
}

// A tenant who floods holds up others in the one line of a shared limiter, but not if a limiter of its own is before it.
func TestPartner_TenantsLimiterBeforeTheSharedOne(t *testing.T) {
	t.Parallel()
	longest := func(perTenant bool) (most time.Duration) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			client := limitertest.NewClient(t, rdb)
			transport := http.RoundTripper(httplimit.NewTransport(answers(http.StatusOK), client.Keyed("", rratelimiter.PerSecond(20))))
			if perTenant {
				transport = httplimit.NewTransport(transport, client.Keyed("", rratelimiter.PerSecond(15)),
					httplimit.WithPrefix("tenant:"), httplimit.WithKey(httplimit.Host(), httplimit.Path()))
			}
			ctx, cancel := context.WithCancel(t.Context())
			var flood sync.WaitGroup
			for range 200 {
				flood.Go(func() { _, _ = send(ctx, t, transport, "http://api.example.org/greedy") })
			}
			time.Sleep(500 * time.Millisecond)
			var others sync.WaitGroup
			took := make([]time.Duration, 20)
			for i := range took {
				others.Go(func() {
					time.Sleep(time.Duration(i) * 250 * time.Millisecond)
					start := time.Now()
					fetch(t, transport, fmt.Sprint("/", i))
					took[i] = time.Since(start)
				})
			}
			others.Wait()
			cancel()
			flood.Wait()
			most = slices.Max(took)
		})
		return most
	}
	one, own := longest(false), longest(true)
	t.Logf("a tenant of few calls waits %v at most, with limiters of their own %v", one, own)
	assert.Greater(t, one, 5*time.Second)
	assert.Less(t, own, time.Second)
}

type tenantKey struct{}

func tenantOf(r *http.Request) string { s, _ := r.Context().Value(tenantKey{}).(string); return s }

// What a request keeps while it waits for another policy goes back if its caller leaves, or an upstream pauses it.
func TestTransport_KeptGrantsGoBack(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(ctx context.Context, cancel func(), transport http.RoundTripper){
		"its caller leaves": func(_ context.Context, cancel func(), _ http.RoundTripper) { cancel() },
		"it is paused": func(ctx context.Context, _ func(), transport http.RoundTripper) {
			_, _ = send(context.WithValue(ctx, tenantKey{}, "other"), t, transport, api)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			first := &returner{Fake: middlewaretest.Budget(1, time.Second)}
			asked := 0
			second := &returner{Fake: &fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				asked++
				return limit.Decision{Granted: asked > 1, Limit: 10, RetryAfter: time.Second, ResetAfter: time.Minute}, nil
			}}}
			other := grants()
			plan := func(r *http.Request) limit.Limiter {
				if tenantOf(r) == "other" {
					return other
				}
				return nil
			}
			transport := httplimit.NewTransport(answers(http.StatusTooManyRequests, "Retry-After", "2"), httplimit.Policy{Limiter: first, Plan: plan}, quiet,
				httplimit.WithPolicy(httplimit.Policy{Name: "second", Limiter: second, Cost: func(r *http.Request) (int64, error) {
					return int64(1 - len(tenantOf(r))/5), nil // none of other's
				}}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			left := make(chan error, 1)
			go func() { left <- limitertest.Second(send(ctx, t, transport, api)) }()
			time.Sleep(1500 * time.Millisecond)
			assert.Len(t, second.Asked(), 2)
			assert.Len(t, first.Asked(), 2, "after the second")
			assert.Empty(t, second.GivenBack(), "it is kept")
			ends(ctx, cancel, transport)
			time.Sleep(time.Second)
			assert.Len(t, second.GivenBack(), 1, name)
			assert.Len(t, second.Asked(), 2, "it does not ask meanwhile")
			cancel()
			assert.ErrorIs(t, <-left, context.Canceled)
		})
	}
}

// WithTimeout bounds each try of a request that waits for permits, and not how long it waits.
func TestTransport_TimeoutIsThatOfEachTry(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var takes atomic.Int64
		takes.Store(int64(20 * ms))
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, send func() error) error {
			time.Sleep(time.Duration(takes.Load()))
			return send()
		}))
		keyed := limitertest.NewClient(t, rdb).Keyed("", limitertest.Every(1, time.Second))
		transport := func(opts ...httplimit.Option) http.RoundTripper {
			return httplimit.NewTransport(answers(http.StatusNoContent), keyed, append(opts, quiet)...)
		}
		for later := range 10 { // some are under way a second after they began to wait
			url := fmt.Sprintf("http://api%d.example.org", later)
			_, err := send(t.Context(), t, transport(), url)
			require.NoError(t, err)
			time.Sleep(time.Duration(later) * 5 * ms)
			_, err = send(t.Context(), t, transport(), url)
			require.NoError(t, err, "%d", later)
		}

		for url, opts := range map[string][]httplimit.Option{
			"http://a.example.org": nil, "http://b.example.org": {httplimit.WithWait(10 * time.Second)},
		} {
			_, err := send(t.Context(), t, transport(), url)
			require.NoError(t, err)
			silent := time.AfterFunc(500*ms, func() { takes.Store(int64(5 * time.Second)) })
			took, err := send(t.Context(), t, transport(opts...), url)
			require.ErrorIs(t, err, limit.ErrUnavailable)
			assert.False(t, silent.Stop())
			assert.Less(t, took, 2500*ms, "it waits for a second, and then for an answer")
			takes.Store(int64(20 * ms))
			time.Sleep(time.Minute)
		}
	})
}
