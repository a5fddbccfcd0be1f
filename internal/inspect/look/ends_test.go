package look

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
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
	f, err := ParseFields([]any{"100", "060000", "0", "72060000", "10 60000 0 60000 5", "1790000000000 10 60000 60000"})
	require.NoError(t, err)
	assert.Equal(t, Fields{
		Rate: 100, IntervalMS: 60_000, KeepAliveMS: 60_000, Origin: Override, then: Default,
		Ends: Ends{AtMS: 1_790_000_000_000, Rate: 10, IntervalMS: 60_000},
	}, f)
	_, err = ParseFields([]any{"100", "060000", "0", "0"}) // without the end: that is not asked for
	require.NoError(t, err)
	for _, field := range []any{nil, "", "1 2 3", "1 2 3 4 5", "1 2 3 x", "1 2 3 04"} {
		_, err := ParseFields([]any{"100", "060000", "0", "0", nil, field})
		require.ErrorContains(t, err, "field override", field)
	}
	for _, interval := range []string{"0060000", "0x1", "00"} {
		_, err := ParseFields([]any{"100", interval, "0", "0", nil, "1 2 3 4"})
		require.ErrorContains(t, err, "field interval", interval)
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
	short, err := ReadShort(t.Context(), rdb, []string{name})
	require.NoError(t, err)
	require.Len(t, short, 1)
	found, err := Inspect(t.Context(), rdb, name, OneClient(rdb, name, ""))
	require.NoError(t, err)
	listed := overview(t, NewReader(rdb, name), byUse())
	require.Len(t, listed.Limiters, 1)
	short[0].over, found.Trips = 0, nil
	for i := range found.States {
		found.States[i].ValueTTLMS, found.States[i].PermitsTTLMS = nil, nil // a client's own pair lives on with each use
	}
	return map[string]any{"ReadShort": short[0], "Inspect": found, "Reader": listed.Limiters[0], "Watcher": watch(t, rdb, name).Limiter}
}
