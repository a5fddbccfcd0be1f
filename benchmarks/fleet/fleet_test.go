package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// rounded is what sums of parts may be too much.
const rounded = 1e-9

// What the project promises of a thousand programs with leases, and of those whose demand is not even.
func TestSimulate_ThousandProgramsMeetTheAims(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	check := func(interval time.Duration, demand float64, shape string) {
		r := simulate(1000, interval, 1_000_000, demand, shape, true)
		t.Logf("%+v", r)
		assert.LessOrEqual(t, r.calls, 30_000.0)
		assert.GreaterOrEqual(t, r.used, 0.95)
		assert.LessOrEqual(t, r.charged, 1.0)
		assert.LessOrEqual(t, r.over, 1+rounded)
		if shape == even {
			assert.GreaterOrEqual(t, r.jain, 0.95)
			assert.LessOrEqual(t, r.newcomer, 2.0)
			assert.LessOrEqual(t, r.life, interval/2)
		}
	}
	for _, demand := range demands {
		check(time.Second, demand, even)
		check(time.Minute, demand, even)
	}
	for _, shape := range []string{zipf, bursts, churn} {
		for _, demand := range []float64{0.5, 1, 10} {
			check(time.Second, demand, shape)
		}
	}
}
