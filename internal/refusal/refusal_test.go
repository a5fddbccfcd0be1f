package refusal_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/refusal"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// refused is what Redis says of 5 permits of 10, of which 3 are free, for a second.
var refused = limit.Decision{Limit: 10, Remaining: 3, RetryAfter: time.Second, ResetAfter: 2 * time.Second}

// noted returns a Cache that has noted refused.
func noted(counts *refusal.Counts) *refusal.Cache {
	c := counts.NewCache("key")
	note(c, 5, refused)
	return c
}

func note(c *refusal.Cache, permits int64, d limit.Decision) {
	c.Note(permits, time.Now(), c.Now(), d, time.Time{})
}

func figures(c *refusal.Cache) bool {
	_, ok := c.Decision(5)
	return ok
}

func TestCache_KeepsRefusalOfFewerPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := noted(&refusal.Counts{})
		d := refused
		d.Limit = 20
		note(c, 7, d)
		assert.True(t, c.Refuses(5))
		assert.True(t, c.Refuses(20), "the rate is known to be higher")
		note(c, 4, d)
		assert.True(t, c.Refuses(4))
		time.Sleep(refused.RetryAfter)
		note(c, 7, d)
		assert.True(t, c.Refuses(7), "that of fewer has run out")
	})
}

func TestGrantsEndTheFigures(t *testing.T) {
	t.Parallel()
	counts := &refusal.Counts{}
	c := noted(counts)
	before := c.Now()
	for i := range 3000 {
		counts.Granted(fmt.Sprint("other", i))
	}
	assert.True(t, figures(c))
	counts.Granted("key")
	assert.False(t, figures(c))
	assert.True(t, c.Refuses(5))
	c.Note(5, time.Now(), before, refused, time.Time{})
	assert.False(t, figures(c), "it was asked for before the grant")
	other := counts.NewCache("key")
	assert.Equal(t, other.Now(), c.Now(), "handles of one limiter share its counts")
}

// No grant after a handle was made is missed, even beside the making of the first.
func TestGrantsCountFromTheFirstHandle(t *testing.T) {
	t.Parallel()
	for range 50_000 {
		counts := &refusal.Counts{}
		limitertest.Together(2, func(int) {
			c := counts.NewCache("key")
			before := c.Now()
			counts.Granted("key")
			assert.NotEqual(t, before, c.Now())
		})
	}
}

// A refusal lasts until the time that the server named, within bounds, and never past the time to ask again to keep the limiter alive.
func TestRefusal_IsForgottenInTime(t *testing.T) {
	t.Parallel()
	type row struct {
		wait, alive, least, most time.Duration // alive: 0 if that needs no requests
	}
	limitertest.Bubbles(t, map[string]row{
		"a short wait":        {wait: 50 * time.Millisecond, least: 50 * time.Millisecond, most: 50 * time.Millisecond},
		"a minute":            {wait: time.Minute, least: time.Second, most: 1250 * time.Millisecond},
		"an hour":             {wait: time.Hour, least: time.Hour / 64 * 4 / 5, most: time.Minute},
		"a year":              {wait: 365 * 24 * time.Hour, least: 48 * time.Second, most: time.Minute},
		"no end":              {wait: math.MaxInt64, least: 48 * time.Second, most: time.Minute},
		"keep alive":          {wait: time.Hour, alive: 500 * time.Millisecond, least: 500 * time.Millisecond, most: 500 * time.Millisecond},
		"keep alive for long": {wait: time.Second, alive: time.Minute, least: time.Second, most: time.Second},
	}, func(t *testing.T, row row) {
		c, d, alive := (&refusal.Counts{}).NewCache("key"), refused, time.Time{}
		if d.RetryAfter = row.wait; row.alive > 0 {
			alive = time.Now().Add(row.alive)
		}
		c.Note(5, time.Now(), c.Now(), d, alive)
		time.Sleep(row.least - time.Nanosecond)
		assert.True(t, c.Refuses(5))
		time.Sleep(row.most - row.least + time.Nanosecond)
		assert.False(t, c.Refuses(5))
		assert.False(t, figures(c))
	})
}
