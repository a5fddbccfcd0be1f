package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/middleware"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// places is a quota of what is in flight.
func places(rate rratelimiter.Config, hold time.Duration) quota {
	return quota{name: "at-once", rate: rate, terms: middleware.Terms{InFlight: true, Hold: hold}}
}

// A request passes a rate and a limit in flight by one decision, and is charged to both or none. Only what is in flight comes
// back at its end.
func TestInFlight_BesideARate(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		c := newChat(t, rdb, []quota{{name: "rate", rate: rratelimiter.PerMinute(100)}, places(rratelimiter.PerMinute(2), 0)}, chatOptions{})
		ask := func(handle func()) string {
			c.handle = func(context.Context) {
				c.handle = nil
				handle()
			}
			_, questions := c.ask(t.Context(), request{user: "ann"})
			if refused := refusers(questions); refused != "" {
				assert.Equal(t, time.Second, middleware.RetryAfter(questions), "a request may end soon")
				return refused
			}
			assert.Zero(t, questions[1].Wait())
			return ""
		}
		ask(func() {})
		before := c.calls.Scripts()
		ask(func() {
			assert.Equal(t, 1, c.calls.Scripts()-before, "one decision")
			c.check([]int64{98, 1}, "one")
			ask(func() {
				assert.Equal(t, "at-once", ask(nil))
				c.check([]int64{97, 0}, "two")
			})
		})
		c.check([]int64{97, 2}, "none")
		before = c.calls.Scripts()
		ask(func() {})
		assert.Equal(t, 2, c.calls.Scripts()-before, "one for the decision, one at the end")
	})
}

// A Redis that hangs at the end of a request delays it for the middleware's timeout. The place comes back when it answers, and
// Close waits for that.
func TestInFlight_RedisHangsAtTheEnd(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		c := newChat(t, rdb, []quota{places(rratelimiter.PerHour(1), 0)}, chatOptions{client: rratelimiter.WithCallTimeout(time.Minute)})
		over := make(chan struct{})
		var hangs failing = func(_ []redis.Cmder, next func() error) error {
			<-over
			return next()
		}
		c.handle = func(context.Context) { c.outage.Store(&hangs) }
		start := time.Now()
		c.ask(t.Context(), request{user: "ann"})
		assert.Equal(t, time.Second, time.Since(start))
		time.AfterFunc(3*time.Second, func() { close(over) })
		require.NoError(t, c.client.Close(t.Context()))
		newChat(t, rdb, []quota{places(rratelimiter.PerHour(1), 0)}, chatOptions{}).check([]int64{1}, "it came back")
	})
}

// A place comes back, and a status is charged, once Redis answers again that did not when the request ended.
func TestInFlight_RedisIsAwayAtTheEnd(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		c := newChat(t, rdb, []quota{places(rratelimiter.PerHour(1), 0)}, chatOptions{more: func(t *testing.T, rdb redistest.Client) []policy {
			charged := rated(limitertest.NewClient(t, rdb), rratelimiter.PerHour(9))
			charged[0].Charge = func(_ request, status int) int64 { return int64(status / 100) }
			return charged
		}})
		c.handle = func(context.Context) { c.outage.Store(&down) }
		c.ask(t.Context(), request{user: "ann", status: 200})
		time.Sleep(time.Minute)
		assert.Len(t, c.errs.Take(), 2)
		c.outage.Store(nil)
		time.Sleep(time.Minute)
		c.check([]int64{1, 7}, "once it is back")
	})
}

// A place is still renewed if Redis answers again shortly before it would come back by itself.
func TestInFlight_RedisIsAwayMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		c := newChat(t, rdb, []quota{places(rratelimiter.PerMinute(1), 30*time.Second)}, chatOptions{})
		c.handle = func(context.Context) {
			time.Sleep(9 * time.Second)
			c.outage.Store(&down)
			time.Sleep(16 * time.Second)
			c.outage.Store(nil)
			for range 20 {
				time.Sleep(time.Second)
				c.check([]int64{0}, "meanwhile")
			}
		}
		c.ask(t.Context(), request{user: "ann"})
		assert.Empty(t, c.errs.All())
		c.check([]int64{1}, "at the end")
	})
}
