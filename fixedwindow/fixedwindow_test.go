package fixedwindow_test

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // whatever the machine has

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/articles"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	limittest.Run(t, limittest.Kind{
		New: func(client *rratelimiter.Client, permits int64, window time.Duration, opts ...rratelimiter.LimiterOption) limittest.Limiter {
			return fixedwindow.New(client, fixedwindow.Config{Limit: permits, Window: window}, opts...)
		},
		Keys:     func(key string) []string { return []string{key} },
		Type:     "string",
		Corrupt:  []string{"", "abc", "-1", "1.5", "1e3", " 3", "3 ", "9007199254740992", "99999999999999999999", "0x1", "\x00"},
		Shortest: []time.Duration{time.Millisecond, 3 * time.Millisecond, 250 * time.Millisecond, 1750 * time.Millisecond},
		Longest:  math.MaxInt64 * time.Nanosecond / 1e6 * 1e6,
		Most:     fixedwindow.MaxLimit,
		Limit:    "limit",
		Window:   "window",
		AtEdge:   19,
		Articles: func(rdb redis.Cmdable, key string, permits int64) []limittest.Rule {
			return []limittest.Rule{
				articles.FixedWindow{Redis: rdb, Key: key, Limit: permits, Seconds: 3600}.Eval,
				articles.Counter{Redis: rdb, Key: key, Limit: permits, Seconds: 3600}.Eval,
			}
		},
	})
}

// window is the rule of a fixed window that three programs share.
type window struct {
	limit  int64
	length time.Duration

	count int64
	end   time.Duration // 0: none has begun
}

func (w *window) at(now time.Duration) {
	if now >= w.end {
		w.count, w.end = 0, 0
	}
}

func (w *window) add(now time.Duration, n int64) {
	if w.count += n; w.end == 0 {
		w.end = now + w.length
	}
}

// take is what this package answers.
func (w *window) take(now time.Duration, n int64) limit.Decision {
	w.at(now)
	d := limit.Decision{Limit: w.limit, Granted: w.count+n <= w.limit}
	if d.Granted {
		w.add(now, n)
	} else {
		d.RetryAfter = w.end - now
	}
	d.Remaining, d.ResetAfter = max(0, w.limit-w.count), w.end-now
	return d
}

// fixed is what the articles' fixed window answers.
func (w *window) fixed(now time.Duration) int64 {
	if w.at(now); w.count >= w.limit {
		return 0
	}
	w.add(now, 1)
	return 1
}

// counter is what the articles' counter answers.
func (w *window) counter(now time.Duration) int64 {
	w.at(now)
	w.add(now, 1)
	if w.count > w.limit {
		return -1
	}
	return w.count
}

// play lets three programs share a key: one with this package, one with the articles' fixed window and one with their counter.
func play(t *testing.T, h limittest.History) func() (mismatch string) {
	w := &window{limit: 1 + h.Draw.Int64N(12), length: h.Span(10)}
	l := fixedwindow.New(limitertest.OpenClient(h.Redis), fixedwindow.Config{Limit: w.limit, Window: w.length})
	seconds := int64(w.length / time.Second)
	fixed := articles.FixedWindow{Redis: h.Redis, Key: h.Key, Limit: w.limit, Seconds: seconds}
	counter := articles.Counter{Redis: h.Redis, Key: h.Key, Limit: w.limit, Seconds: seconds}
	return func() string {
		h.MayPause(w.length)
		if h.Passed() == w.end {
			// Redis keeps a key for this very millisecond, miniredis does not.
			time.Sleep(time.Millisecond)
		}
		now := h.Passed()
		switch h.Draw.IntN(4) {
		case 0:
			return h.Theirs(t, fixed.Eval, w.fixed(now))
		case 1:
			return h.Theirs(t, counter.Eval, w.counter(now))
		}
		n := 1 + h.Draw.Int64N(min(4, w.limit))
		return h.Ours(t, l, n, w.take(now, n), nil)
	}
}

func TestTurnsWithTheArticles(t *testing.T) {
	t.Parallel()
	limittest.Turns{Limiter: "fixedwindow", Play: play}.Take(t)
}

// The next tests are each named after something that the articles' scripts do wrong.

func tenAMinute(rdb redistest.Client) *fixedwindow.Limiter {
	return fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Window: time.Minute})
}

// A value written by hand, or whose writer crashed before EXPIRE, refuses for ever. A window belongs to those who opened it: we
// leave its end alone unless it is further away than any of ours could be, because the clock was set back.
func TestFaultValueWithoutTTL(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, map[string]time.Duration{
		"none": 0, "half": 30 * time.Second, "whole": time.Minute, "longer": 90 * time.Second, "hour": time.Hour,
	}, func(t *testing.T, rdb redistest.Client, ttl time.Duration) {
		l, want := tenAMinute(rdb), time.Minute
		if ttl > 0 {
			want = min(ttl, want)
		}
		for count, left := range map[int]int64{0: 9, 1: 8, 4: 5, 9: 0, 10: 0, 5000: 0} {
			require.NoError(t, rdb.Set(t.Context(), "key", count, ttl).Err())
			d := limittest.Take(t, l, "key", 1)
			assert.Equal(t, count < 10, d.Granted)
			assert.Equal(t, left, d.Remaining)
			assert.Equal(t, want, d.ResetAfter)
			assert.Equal(t, want, rdb.PTTL(t.Context(), "key").Val())
			time.Sleep(want)
			assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
		}
	})
}

var ofWindows = limitertest.Tests[redistest.Client]{
	// The counter counts what it refuses, so that the count has no bound.
	"FaultCountGrowsWhileRefused": func(t *testing.T, rdb redistest.Client) {
		l, ctx := tenAMinute(rdb), t.Context()
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 100))
		assert.Equal(t, "10", rdb.Get(ctx, "key").Val())
		assert.False(t, limittest.Take(t, l, "key", 7).Granted)
		assert.Equal(t, "10", rdb.Get(ctx, "key").Val())

		// Theirs has gone beyond the limit: full, until the window ends.
		counter := articles.Counter{Redis: rdb, Key: "key", Limit: 10, Seconds: 60}
		for range 50 {
			require.EqualValues(t, -1, limitertest.Must(counter.Eval(ctx))(t))
		}
		time.Sleep(20 * time.Second)
		assert.Equal(t, limit.Decision{Limit: 10, RetryAfter: 40 * time.Second, ResetAfter: 40 * time.Second}, limittest.Take(t, l, "key", 1))
		time.Sleep(40 * time.Second)
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
	},

	// The articles' scripts, which know no calendar, count in the same window. One that they began ends at midnight, at the latest.
	"Calendar_ArticlesShareTheKey": func(t *testing.T, rdb redistest.Client) {
		l, ctx := tenADay(t, rdb), t.Context()
		counter := articles.Counter{Redis: rdb, Key: "key", Limit: 10, Seconds: 24 * 60 * 60}
		time.Sleep(10 * time.Hour) // it is 11 o'clock in Berlin
		for want := range int64(2) {
			assert.Equal(t, want+1, limitertest.Must(counter.Eval(ctx))(t))
		}
		want := limit.Decision{Granted: true, Limit: 10, Remaining: 4, ResetAfter: 13 * time.Hour}
		assert.Equal(t, want, limitertest.Must(l.Peek(ctx, "key", 4))(t))
		assert.Equal(t, 24*time.Hour, rdb.PTTL(ctx, "key").Val())
		assert.Equal(t, want, limittest.Take(t, l, "key", 4))
		assert.Equal(t, 13*time.Hour, rdb.PTTL(ctx, "key").Val())
		require.NoError(t, rdb.Persist(ctx, "key").Err())
		assert.False(t, limittest.Take(t, l, "key", 5).Granted)
		assert.Equal(t, 13*time.Hour, rdb.PTTL(ctx, "key").Val(), "an end is put back")
	},

	"Calendar_EveryCallCountsInItsWindow": func(t *testing.T, rdb redistest.Client) {
		l, ctx := tenADay(t, rdb), t.Context()
		time.Sleep(22*time.Hour + 59*time.Minute) // it is 23:59 in Berlin
		taken, d, err := l.TakeUpTo(ctx, "key", 4)
		require.NoError(t, err)
		assert.EqualValues(t, 4, taken)
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 6, ResetAfter: time.Minute}, d)
		soon, late := limittest.Returnable(t, l, "key", 2), limittest.Returnable(t, l, "key", 3)
		require.NoError(t, soon(ctx))
		d = limitertest.Must(l.Peek(ctx, "key", 4))(t)
		assert.Equal(t, limit.Decision{Limit: 10, Remaining: 3, RetryAfter: time.Minute, ResetAfter: time.Minute}, d)
		time.Sleep(time.Minute)
		assert.Equal(t, int64(3), limittest.Take(t, l, "key", 7).Remaining)
		require.NoError(t, late(ctx))
		assert.Equal(t, int64(2), limittest.Take(t, l, "key", 1).Remaining, "of another day nothing comes back")
		require.NoError(t, l.Reset(ctx, "key"))
		assert.Equal(t, int64(9), limittest.Take(t, l, "key", 1).Remaining)
		time.Sleep(24*time.Hour + time.Millisecond)
		assert.Empty(t, rdb.Keys(ctx, "*").Val())
	},
}

func TestWindows(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, ofWindows, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	return limitertest.Must(time.LoadLocation(name))(t)
}

// tenADay returns a limiter of 10 permits each day of Berlin.
func tenADay(t testing.TB, rdb redistest.Client) *fixedwindow.Limiter {
	t.Helper()
	return fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Calendar: fixedwindow.Daily(zone(t, "Europe/Berlin"))})
}

// Days and months are as long as they are in the zone, whatever its clocks do around midnight.
func TestCalendar_WindowEndsWithTheDayOrMonth(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		zone, now, day, month string
	}{
		{"UTC", "2028-02-28T23:59:59.999Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"UTC", "2027-12-31T00:00:00Z", "2028-01-01T00:00:00Z", "2028-01-01T00:00:00Z"},
		{"Asia/Kathmandu", "2026-11-27T18:14:59Z", "2026-11-27T18:15:00Z", "2026-11-30T18:15:00Z"},
		// 23 hours and 25.
		{"Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-31T22:00:00Z"},
		{"Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-31T23:00:00Z"},
		// There is no midnight: clocks skip from 0:00 to 1:00.
		{"America/Sao_Paulo", "2018-11-04T02:59:59Z", "2018-11-04T03:00:00Z", "2018-12-01T02:00:00Z"},
		{"America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", "2018-12-01T02:00:00Z"},
		// The last hour comes twice, at 0:00 and at 0:01.
		{"America/Sao_Paulo", "2018-02-18T01:30:00Z", "2018-02-18T03:00:00Z", "2018-03-01T03:00:00Z"},
		{"America/St_Johns", "2006-10-29T02:30:30Z", "2006-10-30T03:30:00Z", "2006-11-01T03:30:00Z"},
		{"America/St_Johns", "2006-10-29T03:00:00Z", "2006-10-30T03:30:00Z", "2006-11-01T03:30:00Z"},
		// Midnight comes twice.
		{"America/Havana", "2026-11-01T03:59:59Z", "2026-11-01T04:00:00Z", "2026-11-01T04:00:00Z"},
		{"America/Havana", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-12-01T05:00:00Z"},
		// A day is left out.
		{"Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", "2011-12-31T10:00:00Z"},
	} {
		t.Run(tc.zone+" "+tc.now, func(t *testing.T) {
			t.Parallel()
			rdb, m := redistest.Mini(t)
			now := limitertest.Must(time.Parse(time.RFC3339, tc.now))(t)
			m.SetTime(now)
			loc := zone(t, tc.zone)
			for ends, calendar := range map[string]fixedwindow.Calendar{tc.day: fixedwindow.Daily(loc), "m" + tc.month: fixedwindow.Monthly(loc)} {
				l := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Calendar: calendar})
				end := limitertest.Must(time.Parse(time.RFC3339, ends[len(ends)-len("2026-11-27T00:00:00Z"):]))(t)
				want := limit.Decision{Granted: true, Limit: 10, Remaining: 9, ResetAfter: end.Sub(now)}
				assert.Equal(t, want, limittest.Take(t, l, ends, 1))
				assert.Equal(t, end.Sub(now), rdb.PTTL(t.Context(), ends).Val())
			}
		})
	}
}

// Aligned windows begin at the multiples of their length since 1970 began, whichever of two programs counts first.
func TestAligned_WindowsBeginAtMultiples(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	limitertest.Stepping(t, limitertest.Rows[time.Duration](
		time.Second, 1500*time.Millisecond, time.Minute, time.Hour, day, 7*day, 30*day, 365*day, 40*365*day, 290*365*day,
	), func(t *testing.T, rdb redistest.Client, step func(time.Duration), length time.Duration) {
		cfg := fixedwindow.Config{Limit: 10, Calendar: fixedwindow.Aligned(length)}
		l, other := fixedwindow.New(limitertest.OpenClient(rdb), cfg), fixedwindow.New(limitertest.OpenClient(rdb), cfg)
		step(5 * time.Hour)
		assert.Equal(t, length, l.Window())
		time.Sleep((length / 3).Truncate(time.Millisecond))
		for range 3 {
			now := rdb.Time(t.Context()).Val().UnixMilli()
			left := length - time.Duration(now%length.Milliseconds())*time.Millisecond
			assert.Equal(t, left, limittest.Take(t, l, "key", 7).ResetAfter)
			assert.Equal(t, left, limittest.Take(t, other, "key", 4).RetryAfter)
			if length > 40*365*day {
				return // time ends before it does
			}
			time.Sleep(left)
		}
	})
}

// Programs whose clocks are wrong count in the window that it is by the server's clock.
func TestCalendar_ServerClockDecidesWhichWindowItIs(t *testing.T) {
	t.Parallel()
	const years = 365 * 24 * time.Hour
	limitertest.Stepping(t, limitertest.Rows[time.Duration](
		0, time.Minute, 13*time.Hour, 25*time.Hour, 49*time.Hour, 40*years,
		-time.Minute, -13*time.Hour, -25*time.Hour, -49*time.Hour, -20*years,
	), func(t *testing.T, rdb redistest.Client, step func(time.Duration), ahead time.Duration) {
		l := tenADay(t, rdb)
		step(ahead)
		first := limittest.Take(t, l, "other", 1)
		assert.Positive(t, first.ResetAfter)
		time.Sleep(first.ResetAfter - time.Minute)
		sent := limitertest.CountCommands(rdb)
		for range 3 {
			before := sent.Scripts()
			assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
			assert.LessOrEqual(t, sent.Scripts()-before, 13, "at most one more, for the server's time")
			refused := limittest.Take(t, l, "key", 1)
			assert.Equal(t, refused.ResetAfter, refused.RetryAfter)
			time.Sleep(refused.RetryAfter - time.Millisecond)
			assert.Equal(t, time.Millisecond, limittest.Take(t, l, "key", 1).RetryAfter)
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, 24*time.Hour, limittest.Take(t, l, "key", 1).ResetAfter)
	})
}

// If the server's clock goes back to an earlier day, the window ends with that.
func TestCalendar_ServerClockGoesBack(t *testing.T) {
	t.Parallel()
	limitertest.Stepping(t, limitertest.Rows(time.Second, time.Hour, 24*time.Hour, 1000*time.Hour), func(t *testing.T, rdb redistest.Client, step func(time.Duration), back time.Duration) {
		l := tenADay(t, rdb)
		time.Sleep(limittest.Take(t, l, "key", 10).ResetAfter)
		require.True(t, limittest.Take(t, l, "key", 7).Granted)
		step(-back)
		d := limittest.Take(t, l, "key", 1)
		assert.Equal(t, limit.Decision{Granted: true, Limit: 10, Remaining: 2, ResetAfter: (back-1)%(24*time.Hour) + 1}, d)
		assert.Equal(t, d.ResetAfter, rdb.PTTL(t.Context(), "key").Val())
		time.Sleep(d.ResetAfter)
		assert.Equal(t, 10, limittest.Grants(t, l, "key", 12))
	})
}

// While Redis does not decide, this process has its share of each day.
func TestCalendar_LocalLimiterKeepsToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var down atomic.Bool
		rdb.AddHook(redistest.FailWhile(&down, errors.New("connection refused")))
		l := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Calendar: fixedwindow.Daily(zone(t, "Europe/Berlin"))},
			rratelimiter.WithFailure(limit.FailLocal(0.5)))
		time.Sleep(20 * time.Hour) // it is 21 o'clock in Berlin
		down.Store(true)
		assert.Equal(t, 5, limittest.Grants(t, l, "key", 7))
		time.Sleep(2 * time.Hour)
		midnight := time.Date(2000, 1, 1, 23, 0, 0, 0, time.UTC)
		d := limittest.Take(t, l, "key", 1)
		assert.Equal(t, limit.Decision{Limit: 5, RetryAfter: time.Until(midnight), ResetAfter: time.Until(midnight)}, d)
		time.Sleep(d.RetryAfter)
		assert.Equal(t, 5, limittest.Grants(t, l, "key", 7))
		down.Store(false)
		time.Sleep(time.Minute) // for the last probe
	})
}

// Window is the length of the current day, week or month.
func TestCalendar_Window(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		berlin := zone(t, "Europe/Berlin")
		window := func(c fixedwindow.Calendar) time.Duration {
			return fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 1, Calendar: c}).Window()
		}
		for _, tc := range []struct {
			date       string
			day, month time.Duration
		}{
			{"2000-01-31", 24 * time.Hour, 31 * 24 * time.Hour},
			{"2000-02-29", 24 * time.Hour, 29 * 24 * time.Hour},
			{"2000-03-26", 23 * time.Hour, 31*24*time.Hour - time.Hour},
			{"2000-10-29", 25 * time.Hour, 31*24*time.Hour + time.Hour},
		} {
			midnight := limitertest.Must(time.ParseInLocation(time.DateOnly, tc.date, berlin))(t)
			time.Sleep(time.Until(midnight.Add(12 * time.Hour)))
			assert.Equal(t, tc.day, window(fixedwindow.Daily(berlin)), tc.date)
			assert.Equal(t, tc.month, window(fixedwindow.Monthly(berlin)), tc.date)
			days := tc.day - 24*time.Hour + 7*24*time.Hour // of the week in which this day is the only one of another length
			assert.Equal(t, days, window(fixedwindow.Weekly(berlin, midnight.Weekday())), tc.date)
			assert.Equal(t, days, window(fixedwindow.Weekly(berlin, (midnight.Weekday()+1)%7)), tc.date)
		}
	})
}

func TestCalendar_Input(t *testing.T) {
	t.Parallel()
	type row struct {
		cfg  fixedwindow.Config
		text string
	}
	limitertest.Each(t, map[string]row{
		"no zone":   {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Daily(nil)}, "time zone"},
		"no day":    {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Weekly(time.UTC, 7)}, "weekday"},
		"bad day":   {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Weekly(time.UTC, -1)}, "weekday"},
		"negative":  {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Aligned(-time.Hour)}, "aligned windows"},
		"too short": {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Aligned(999 * time.Millisecond)}, "aligned windows can't last 999ms"},
		"too exact": {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Aligned(time.Second + 1)}, "aligned windows"},
		"both":      {fixedwindow.Config{Limit: 1, Calendar: fixedwindow.Daily(time.UTC), Window: time.Minute}, "window 1m0s"},
		"neither":   {fixedwindow.Config{Limit: 1}, "window 0s"},
	}, func(t *testing.T, tc row) {
		l := fixedwindow.New(limitertest.OpenClient(limittest.Unreachable(t)), tc.cfg)
		limittest.RequireRefused(t, l, "key", 1, limit.ErrInvalidConfig, tc.text)
		require.ErrorIs(t, l.Err(), limit.ErrInvalidConfig)
		assert.NotPanics(t, func() { l.Window() })
	})
}
