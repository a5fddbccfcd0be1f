package httplimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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
