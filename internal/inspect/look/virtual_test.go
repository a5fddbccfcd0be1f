package look

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestEnds_SaysUntilWhen(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.November, 27, 15, 0, 0, 0, time.Local)
	for in, want := range map[time.Duration]string{
		19 * time.Hour:       "override until Sat 10:00 (in 19h), then 10/1m",
		10 * 24 * time.Hour:  "override until 2026-12-07 15:00 (in 240h), then 10/1m",
		0:                    "override until Fri 15:00 (in 0s), then 10/1m", // by a clock that is ahead of the server's
		-19 * 24 * time.Hour: "override until Sun 15:00 (in 0s), then 10/1m",
	} {
		ends := &Ends{AtMS: now.Add(in).UnixMilli(), Rate: 10, IntervalMS: 60_000}
		assert.Equal(t, want, ends.Or(Override, now))
	}
	assert.Equal(t, "default", (*Ends)(nil).Or(Default, now))
	assert.Nil(t, Fields{}.End())
}

func TestParseFields_OfAnOverride(t *testing.T) {
	t.Parallel()
	f := limitertest.Must(ParseFields([]any{"100", "060000", "0", "72060000", "10 60000 0 60000 5", "1790000000000 10 60000 60000"}))(t)
	assert.Equal(t, Fields{
		Rate: 100, IntervalMS: 60_000, KeepAliveMS: 60_000, Origin: Override, then: Default,
		Ends: Ends{AtMS: 1_790_000_000_000, Rate: 10, IntervalMS: 60_000},
	}, f)
	require.NoError(t, limitertest.Second(ParseFields([]any{"100", "060000", "0", "0"})), "without the end: that is not asked for")
	for _, field := range []any{nil, "", "1 2 3", "1 2 3 4 5", "1 2 3 x", "1 2 3 04"} {
		require.ErrorContains(t, limitertest.Second(ParseFields([]any{"100", "060000", "0", "0", nil, field})), "field override", field)
	}
	for _, interval := range []string{"0060000", "0x1", "00"} {
		require.ErrorContains(t, limitertest.Second(ParseFields([]any{"100", interval, "0", "0", nil, "1 2 3 4"})), "field interval", interval)
	}
}

// What is shown once an override is over is what the next request finds, though none has come yet.
func TestOverride_IsShownAsGoneOnceItIsOver(t *testing.T) {
	t.Parallel()
	const during = 100 * time.Minute
	for name, c := range map[string]struct {
		before, override rratelimiter.Config
		taken, more      int64 // before and during the override
	}{
		"raised":                 {rratelimiter.PerDay(10), rratelimiter.PerDay(100), 4, 3},
		"raised, more than back": {rratelimiter.PerDay(10), rratelimiter.PerDay(100), 4, 50},
		"lowered":                {rratelimiter.PerDay(10), rratelimiter.PerDay(5), 4, 1},
		"lowered, all in use":    {rratelimiter.PerDay(10), rratelimiter.PerDay(2), 4, 0},
		"of a longer interval":   {limitertest.Every(10, 2*time.Hour), rratelimiter.PerDay(100), 4, 7},
		"unused":                 {rratelimiter.PerDay(10), rratelimiter.PerDay(100), 0, 0},
	} {
		for kind, end := range map[rratelimiter.RateType]func(context.Context, *rratelimiter.RateLimiter) error{
			rratelimiter.Overall: func(ctx context.Context, l *rratelimiter.RateLimiter) error {
				return limitertest.Second(l.Peek(ctx, 1))
			},
			// Which sums a client's own permits up.
			rratelimiter.PerClient: func(ctx context.Context, l *rratelimiter.RateLimiter) error {
				return limitertest.Second(l.AvailablePermits(ctx))
			},
		} {
			t.Run(fmt.Sprint(name, kind), func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					before, override := c.before, c.override
					before.Type, override.Type = kind, kind
					ann := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("ann"))
					l := limitertest.ByDefault(ann, "orders", before)
					limitertest.MustAcquire(t, l, c.taken+1)
					require.NoError(t, l.Release(t.Context(), 1))
					bob := limitertest.NewClient(t, rdb, rratelimiter.WithClientID("bob")).RateLimiter("orders")
					require.NoError(t, bob.SetRate(t.Context(), override, rratelimiter.For(during)))
					if c.more > 0 {
						limitertest.MustAcquire(t, l, c.more)
					}
					reader := NewReader(rdb, "orders")
					overview(t, reader, byUse())
					time.Sleep(during)
					shown := everyView(t, rdb, "orders")
					inspection := shown["Inspect"].(*Inspection)
					assert.Empty(t, inspection.Anomalies)
					assert.Nil(t, inspection.Ends)
					lastly := overview(t, reader, byUse())
					assert.Equal(t, shown["Reader"].(Limiter).Free, lastly.Limiters[0].Free)
					require.NoError(t, end(t.Context(), l))
					assert.Equal(t, everyView(t, rdb, "orders"), shown)
					assert.Equal(t, lastly.Used, overview(t, reader, View{Sort: "use"}).Used, "at a glance")
					assert.Equal(t, before, limitertest.ConfigOf(t, l))
				})
			})
		}
	}
}

// everyView is what each way to look at a limiter finds, without what is of the moment.
func everyView(t *testing.T, rdb redistest.Client, name string) map[string]any {
	t.Helper()
	short := limitertest.Must(ReadShort(t.Context(), rdb, []string{name}))(t)
	require.Len(t, short, 1)
	found := limitertest.Must(Inspect(t.Context(), rdb, name, OneClient(rdb, name, "")))(t)
	listed := overview(t, NewReader(rdb, name), byUse())
	require.Len(t, listed.Limiters, 1)
	short[0].over, found.Trips = 0, nil
	for i := range found.States {
		found.States[i].ValueTTLMS, found.States[i].PermitsTTLMS = nil, nil // a client's own pair lives on with each use
	}
	return map[string]any{"ReadShort": short[0], "Inspect": found, "Reader": listed.Limiters[0], "Watcher": watch(t, rdb, name).Limiter}
}

// Merged members are dated as the newest, so the last second's dates say too much and those of the seconds before too little.
func TestMergedGrants_AreCountedOnce(t *testing.T) {
	t.Parallel()
	type row struct {
		cfg   rratelimiter.Config
		exact bool
	}
	limitertest.Virtual(t, map[string]row{
		"1000 a minute":   {rratelimiter.PerMinute(1000), false},
		"10,000 an hour":  {rratelimiter.PerHour(10_000), false},
		"10,000 a day":    {rratelimiter.PerDay(10_000), false},
		"a limit of 120":  {rratelimiter.PerMinute(120), false},
		"without merging": {rratelimiter.PerMinute(1000), true},
	}, func(t *testing.T, rdb redistest.Client, c row) {
		var opts []rratelimiter.LimiterOption
		if c.exact {
			opts = append(opts, rratelimiter.WithExact())
		}
		l := limitertest.NewClient(t, rdb).RateLimiter("orders", opts...)
		limitertest.MustTrySetRate(t, l, c.cfg)
		r, watcher := NewReader(rdb, ""), &Watcher{Client: rdb, Name: "orders"}
		look := func() (pace, watched float64, granted int64) {
			s := overview(t, r, byUse())
			p := sampled(t, watcher)
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
			merged = max(merged, limitertest.Must(Inspect(t.Context(), rdb, "orders", nil))(t).States[0].Merged)
		}
		small := c.exact || merge.LeftAlone(c.cfg.Rate)
		assert.Equal(t, small, merged == 0)
	})
}

// A first look has nothing to compare with: what a merged member stands for counts as granted evenly in its slice.
func TestMergedGrants_AtFirstSight(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		const perSecond = 10
		l := limitertest.NewClient(t, rdb).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10_000)))
		late := int64(0)
		for i := range 60 * perSecond {
			time.Sleep(time.Second / time.Duration(perSecond))
			require.True(t, limitertest.Try(t, l, 1))
			if i < 20*perSecond || i%7 != 0 {
				continue
			}
			found := limitertest.Must(Inspect(t.Context(), rdb, "orders", nil))(t)
			for _, got := range []float64{found.PerSecond(), overview(t, NewReader(rdb, ""), byUse()).Limiters[0].PerSecond} {
				assert.InDelta(t, perSecond, got, 2, "the first of the slice are not merged")
			}
			late = max(late, found.States[0].LateMS)
		}
		assert.Equal(t, time.Hour.Milliseconds()/64, late)
	})
}
