package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// rounded is what sums of parts may be too much.
const rounded = 1e-9

// What the project promises of a thousand programs with leases.
func TestSimulate_ThousandProgramsMeetTheAims(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, interval := range []time.Duration{time.Second, time.Minute} {
		for _, demand := range demands {
			r := simulate(1000, interval, 1_000_000, demand, even, true)
			t.Logf("%+v", r)
			assert.LessOrEqual(t, r.calls, 30_000.0)
			assert.GreaterOrEqual(t, r.used, 0.95)
			assert.GreaterOrEqual(t, r.jain, 0.95)
			assert.LessOrEqual(t, r.newcomer, 2.0)
			assert.LessOrEqual(t, r.charged, 1.0)
			assert.LessOrEqual(t, r.over, 1+rounded)
			assert.LessOrEqual(t, r.life, interval/2)
		}
	}
}

func TestSimulate_UnevenDemandMeetsTheAims(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, shape := range []string{zipf, bursts, churn} {
		for _, demand := range []float64{0.5, 1, 10} {
			r := simulate(1000, time.Second, 1_000_000, demand, shape, true)
			t.Logf("%+v", r)
			assert.LessOrEqual(t, r.calls, 30_000.0)
			assert.GreaterOrEqual(t, r.used, 0.95)
			assert.LessOrEqual(t, r.charged, 1.0)
			assert.LessOrEqual(t, r.over, 1+rounded)
		}
	}
}

func TestSimulate_SameSeedSameResult(t *testing.T) {
	t.Parallel()
	run := func() result { return simulate(100, time.Second, 100_000, 2, bursts, true) }
	first := run()
	assert.Equal(t, first, run())
}
