package look

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Merged members are dated as the newest, so the last second's dates say too much and those of the seconds before too little.
func TestMergedGrants_AreCountedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg   rratelimiter.Config
		exact bool
	}{
		"1000 a minute":   {rratelimiter.PerMinute(1000), false},
		"10,000 an hour":  {rratelimiter.PerHour(10_000), false},
		"10,000 a day":    {rratelimiter.PerDay(10_000), false},
		"a limit of 120":  {rratelimiter.PerMinute(120), false},
		"without merging": {rratelimiter.PerMinute(1000), true},
	} {
		limitertest.Virtual(t, map[string]bool{name: c.exact}, func(t *testing.T, rdb redistest.Client, exact bool) {
			var opts []rratelimiter.LimiterOption
			if exact {
				opts = append(opts, rratelimiter.WithExact())
			}
			l := limitertest.NewClient(t, rdb).RateLimiter("orders", opts...)
			limitertest.MustTrySetRate(t, l, c.cfg)
			r, watcher := NewReader(rdb, ""), &Watcher{Client: rdb, Name: "orders"}
			look := func() (pace, watched float64, granted int64) {
				s := overview(t, r, byUse())
				p, err := watcher.Sample(t.Context())
				require.NoError(t, err)
				assert.False(t, p.More)
				return s.Limiters[0].PerSecond, p.PerSecond, p.Granted
			}
			look()
			merged := int64(0)
			// Busy and calm seconds in turn: what was granted in the busy ones is merged in the calm ones.
			for second := range 60 {
				granted := int64(1)
				if second%10 < 2 {
					granted = 25
				}
				if granted > *overview(t, r, byUse()).Limiters[0].Free {
					granted = 0
				}
				for range granted {
					time.Sleep(time.Second / 25)
					require.True(t, limitertest.Try(t, l, 1))
				}
				time.Sleep(time.Second - time.Duration(granted)*time.Second/25)
				pace, watched, found := look()
				require.Equal(t, granted, found, "in second %d", second)
				require.InDelta(t, granted, pace, 0.5, "in second %d", second)
				require.InDelta(t, granted, watched, 0.5)
				shown, err := Inspect(t.Context(), rdb, "orders", nil)
				require.NoError(t, err)
				merged = max(merged, shown.States[0].Merged)
			}
			small := exact || merge.LeftAlone(c.cfg.Rate)
			assert.Equal(t, small, merged == 0)
		})
	}
}

// A first look has nothing to compare with: what a merged member stands for counts as granted evenly in its slice.
func TestMergedGrants_AtFirstSight(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]int64{"": 10}, func(t *testing.T, rdb redistest.Client, perSecond int64) {
		l := limitertest.NewClient(t, rdb).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10_000)))
		late := int64(0)
		for i := range 60 * perSecond {
			time.Sleep(time.Second / time.Duration(perSecond))
			require.True(t, limitertest.Try(t, l, 1))
			if i < 20*perSecond || i%7 != 0 {
				continue
			}
			found, err := Inspect(t.Context(), rdb, "orders", nil)
			require.NoError(t, err)
			for _, got := range []float64{found.PerSecond(), overview(t, NewReader(rdb, ""), byUse()).Limiters[0].PerSecond} {
				assert.InDelta(t, perSecond, got, 2, "the first of the slice are not merged")
			}
			late = max(late, found.States[0].LateMS)
		}
		assert.Equal(t, time.Hour.Milliseconds()/64, late)
	})
}
