package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestBenchMeasuresAndLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		opts := Options{
			Time: 500 * time.Millisecond, Callers: []int{2, 8}, Limiters: 20, Prefix: redistest.Name(t), Client: []rratelimiter.Option{limitertest.Patient()},
		}
		var done []Result
		opts.Done = func(r Result) { done = append(done, r) }
		report := limitertest.Must(Run(t.Context(), rdb, opts))(t)
		none := func(r Result) bool { return r.Decisions == 0 }
		for opts.Time < time.Minute && slices.ContainsFunc(report.Results, none) { // a busy machine
			opts.Time *= 3
			done = nil
			report = limitertest.Must(Run(t.Context(), rdb, opts))(t)
		}
		assert.Equal(t, done, report.Results)
		var runs [][2]int
		for _, r := range report.Results {
			runs = append(runs, [2]int{r.Callers, r.Limiters})
			assert.Positive(t, r.Decisions)
			assert.Positive(t, r.PerSecond)
			assert.Positive(t, r.P50Micros)
			assert.LessOrEqual(t, r.P50Micros, r.P99Micros)
			assert.Zero(t, r.Refused)
		}
		assert.Equal(t, [][2]int{{1, 1}, {2, 1}, {8, 1}, {2, 20}, {8, 20}}, runs)
		assert.Zero(t, report.Left)
		assert.Empty(t, redistest.Keys(t, rdb, "*"+opts.Prefix+"*"))
	})
}
