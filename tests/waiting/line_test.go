package waiting_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const (
	ms      = time.Millisecond
	forever = limitertest.Forever
	endless = -forever // the patience of Acquire
)

// A caller asks for permits of a line's limiter at a moment of its own.
type caller struct {
	at       time.Duration
	permits  int64
	patience time.Duration
	want     string // how the call ends, and when
	err      error
	other    bool                         // of the other Client
	opts     []rratelimiter.LimiterOption // of a handle of its own; nil for the scene's handle
	plain    bool                         // its context can't end
	gone     time.Duration                // when its context is cancelled; 0: never
	deadline time.Duration                // of its context; 0: none
}

func asks(at time.Duration, permits int64, patience time.Duration, want string) caller {
	return caller{at: at, permits: permits, patience: patience, want: want}
}

// taken are permits that the other Client takes at once.
func taken(at time.Duration, permits int64) caller {
	return caller{at: at, permits: permits, want: fmt.Sprint("true at ", at), other: true}
}

func (c caller) start(ctx context.Context, t *testing.T, s *limitertest.Scene) *limitertest.Caller {
	if c.plain {
		ctx = context.WithoutCancel(ctx)
	}
	if c.gone > 0 {
		gone, cancel := context.WithCancel(ctx)
		time.AfterFunc(c.gone-s.Now(), cancel)
		ctx = gone
	}
	if c.deadline > 0 {
		until, cancel := context.WithDeadline(ctx, s.Start.Add(c.deadline))
		t.Cleanup(cancel)
		ctx = until
	}
	l := s.RateLimiter
	switch {
	case c.other:
		l = s.Other
	case c.opts != nil:
		l = s.Client.RateLimiter(s.Name(), c.opts...)
	}
	if c.patience == endless {
		return s.Go(func() (bool, error) {
			err := l.Acquire(ctx, c.permits)
			return err == nil, err
		})
	}
	return s.Go(func() (bool, error) { return l.TryAcquire(ctx, c.permits, c.patience) })
}

// A lineTest is some callers of one limiter, and what becomes of them.
type lineTest struct {
	cfg     rratelimiter.Config
	callers []caller
	kept    int64         // permits that the other Client keeps in use
	keptFor time.Duration // 0: without end
	at      time.Duration // of change
	change  func(ctx context.Context, s *limitertest.Scene) error
	scripts int   // at most that many calls; 0: any number
	inUse   int64 // in the end, all else being free; 0: not looked at
}

func (lt lineTest) run(t *testing.T) {
	s := limitertest.NewScene(t, lt.cfg)
	end := forever
	if lt.kept > 0 {
		end = time.Minute
		stop := sync.OnceFunc(s.KeepInUse(t, lt.kept))
		defer stop()
		if lt.keptFor > 0 {
			time.AfterFunc(lt.keptFor, stop)
		}
	}
	var started []*limitertest.Caller
	for _, c := range lt.callers {
		s.Until(c.at)
		started = append(started, c.start(t.Context(), t, s))
	}
	if lt.change != nil {
		s.Until(lt.at)
		require.NoError(t, lt.change(t.Context(), s))
	}
	s.Until(end)
	for i, c := range lt.callers {
		ending, done := started[i].Ended()
		require.True(t, done, "number %d waits", i)
		require.ErrorIs(t, ending.Err, c.err, "number %d", i)
		assert.Equal(t, c.want, fmt.Sprintf("%v at %v", ending.Ok, ending.At), "number %d", i)
	}
	if lt.scripts > 0 {
		assert.LessOrEqual(t, s.Sent.Scripts(), lt.scripts)
	}
	if lt.inUse > 0 {
		value, _ := limitertest.StoredValue(t, s.Redis, limitertest.KeysOf(s.RateLimiter).Value)
		assert.Equal(t, lt.inUse, limitertest.InUse(t, s.Redis, limitertest.KeysOf(s.RateLimiter).Permits))
		assert.Equal(t, lt.cfg.Rate-lt.inUse, value)
	}
}

// reserves takes permits as a reservation, and fails if they are not granted.
func reserves(ctx context.Context, l *rratelimiter.RateLimiter, permits int64, patience time.Duration, opts ...rratelimiter.ReserveOption) error {
	r, err := l.Reserve(ctx, permits, patience, opts...)
	return limitertest.Granted(err == nil && r.Granted, err)
}

func keepRate(cfg rratelimiter.Config) func(ctx context.Context, s *limitertest.Scene) error {
	return func(ctx context.Context, s *limitertest.Scene) error {
		return s.SetRate(ctx, cfg, rratelimiter.KeepState())
	}
}

var (
	twoByDefault = []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(2, time.Second))}
	tenByDefault = []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(10, time.Second))}
)

var lineTests = map[string]lineTest{
	"what is free is granted at once": {cfg: limitertest.Every(10, time.Second), scripts: 2, callers: []caller{
		asks(0, 4, endless, "true at 0s"),
		asks(0, 6, time.Hour, "true at 0s"),
	}},
	"the next is served when the head gives up": {cfg: limitertest.Every(2, time.Minute), callers: []caller{
		taken(0, 1),
		asks(0, 2, 300*ms, "false at 300ms"),
		asks(0, 2, 400*ms, "false at 400ms"),
		asks(0, 1, forever, "true at 400ms"),
	}},
	"one in the middle gives up alone": {cfg: limitertest.Every(2, time.Second), scripts: 3, callers: []caller{
		taken(0, 2),
		asks(0, 1, forever, "true at 1s"),
		asks(0, 1, 600*ms, "false at 600ms"),
		asks(0, 1, forever, "true at 1s"),
	}},
	// The second has no room in the batch of the first, for whose refusal it is not asked.
	"one that is not asked at its timeout": {cfg: limitertest.Every(6e9, time.Second), kept: 2e9 + 1, callers: []caller{
		asks(50*ms, 4e9, 5*time.Second, "false at 5.05s"),
		asks(100*ms, 1e9, 900*ms, "false at 1s"),
	}},
	"Acquire waits without end": {cfg: limitertest.Every(1, 6*time.Hour), scripts: 1500, callers: []caller{
		taken(0, 1),
		asks(0, 1, endless, "true at 6h0m0s"),
		{permits: 1, patience: endless, plain: true, want: "true at 12h0m0s"},
	}},
	"each client has its own of a PerClient limiter": {cfg: limitertest.PerClient(2, time.Second), callers: []caller{
		asks(0, 2, 0, "true at 0s"),
		taken(0, 2),
		{at: 500 * ms, permits: 1, other: true, want: "false at 500ms"},
		asks(500*ms, 2, forever, "true at 1s"),
	}},
	"a rate lowered below what one wants": {
		cfg: limitertest.Every(10, time.Second), at: 300 * ms, change: keepRate(limitertest.Every(5, time.Second)),
		callers: []caller{
			taken(0, 10),
			asks(0, 3, forever, "true at 1s"),
			{permits: 8, patience: forever, want: "false at 300ms", err: rratelimiter.ErrPermitsExceedRate},
			asks(0, 3, forever, "true at 2s"),
		},
	},
	"a rate lowered below what the head wants": {
		cfg: limitertest.Every(10, time.Second), at: 300 * ms, change: keepRate(limitertest.Every(6, time.Second)),
		callers: []caller{
			taken(0, 5),
			{permits: 8, patience: forever, want: "false at 300ms", err: rratelimiter.ErrPermitsExceedRate},
			asks(0, 1, forever, "true at 300ms"),
		},
	},
	"Redis loses the limiter": {
		cfg: limitertest.Every(1, time.Second), at: 500 * ms,
		change: func(ctx context.Context, s *limitertest.Scene) error { return s.Redis.FlushAll(ctx).Err() },
		callers: []caller{
			taken(0, 1),
			{permits: 1, patience: endless, want: "false at 1s", err: rratelimiter.ErrNotInitialized},
			{permits: 1, patience: endless, want: "false at 1s", err: rratelimiter.ErrNotInitialized},
		},
	},
	"different defaults": {callers: []caller{
		{permits: 2, want: "true at 0s", opts: twoByDefault}, // which is the limiter's rate
		{permits: 1, patience: forever, want: "true at 1s", opts: tenByDefault},
		{permits: 1, patience: forever, want: "true at 1s", opts: []rratelimiter.LimiterOption{}},
		{permits: 1, patience: forever, want: "true at 2s", opts: twoByDefault},
		{permits: 1, patience: forever, want: "true at 2s", opts: tenByDefault},
		// A default replaces no rate.
		{permits: 3, patience: forever, want: "false at 5ms", opts: tenByDefault, err: rratelimiter.ErrPermitsExceedRate},
	}},
	// What another Client does is seen when the server said.
	"another Client releases": {
		cfg: limitertest.Every(2, time.Second), callers: []caller{taken(0, 2), asks(0, 1, endless, "true at 1s")},
		at: 300 * ms, change: func(ctx context.Context, s *limitertest.Scene) error { return s.Other.Release(ctx, 2) },
	},
	"another Client sets a rate": {
		cfg: limitertest.Every(2, time.Second), callers: []caller{taken(0, 2), asks(0, 1, endless, "true at 1s")},
		at: 300 * ms, change: func(ctx context.Context, s *limitertest.Scene) error {
			return s.Other.SetRate(ctx, limitertest.Every(9, time.Hour))
		},
	},
}

func TestLine(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, lineTests, func(t *testing.T, lt lineTest) { lt.run(t) })
}

func TestLine_EqualRequestsAreServedInOrder(t *testing.T) {
	t.Parallel()
	lt := lineTest{cfg: limitertest.Every(2, time.Second), callers: []caller{taken(0, 2)}}
	for i := range 40 {
		want := fmt.Sprintf("true at %v", time.Duration(i/2+1)*time.Second)
		lt.callers = append(lt.callers, asks(time.Duration(i)*25*ms, 1, forever, want))
	}
	synctest.Test(t, lt.run)
}

// A permit that comes back at the moment at which patience ends is in time.
func TestTryAcquire_PermitAtTimeoutIsInTime(t *testing.T) {
	t.Parallel()
	lt := lineTest{cfg: limitertest.Every(3, time.Second), callers: []caller{
		taken(0, 3),
		asks(0, 1, time.Second, "true at 1s"),
		asks(0, 1, time.Second, "true at 1s"),
		asks(0, 1, time.Second, "true at 1s"),
		asks(0, 1, time.Second, "false at 1s"),
	}}
	// Several timers end at once, in any order.
	limitertest.Bubbles(t, limitertest.Seeds(10), func(t *testing.T, _ uint64) { lt.run(t) })
}

func TestLine_CancelledCallerLeaves(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]lineTest{
		"in the middle": {cfg: limitertest.Every(2, time.Second), scripts: 3, callers: []caller{
			taken(0, 2),
			asks(0, 1, endless, "true at 1s"),
			{permits: 1, patience: endless, gone: 300 * ms, want: "false at 300ms", err: context.Canceled},
			asks(0, 1, endless, "true at 1s"),
		}},
		"at the head": {cfg: limitertest.Every(3, time.Minute), inUse: 3, callers: []caller{
			taken(0, 1),
			{permits: 3, patience: endless, gone: 300 * ms, want: "false at 300ms", err: context.Canceled},
			asks(0, 1, endless, "true at 300ms"),
			asks(0, 1, endless, "true at 300ms"),
		}},
		"a deadline before the timeout": {cfg: limitertest.Every(1, time.Second), callers: []caller{
			taken(0, 1),
			{permits: 1, patience: 700 * ms, deadline: 400 * ms, want: "false at 400ms", err: context.DeadlineExceeded},
			{permits: 1, patience: 700 * ms, deadline: time.Hour, want: "false at 700ms"},
			{permits: 1, patience: endless, deadline: time.Hour, want: "true at 1s"},
		}},
	}, func(t *testing.T, lt lineTest) { lt.run(t) })
}

// The head asks for what can't be had while the other Client goes on. Those behind it wait one
// interval at most, from when the head began.
func TestLine_LargeRequestYieldsAfterAnInterval(t *testing.T) {
	t.Parallel()
	const billion = 1_000_000_000
	many := lineTest{cfg: limitertest.Every(1000, time.Second), kept: 499}
	for i := range 300 {
		many.callers = append(many.callers, asks(50*ms, int64(502+i%2), 5*time.Second, "false at 5.05s"))
	}
	many.callers = append(many.callers, asks(100*ms, 1, 3*time.Second, "true at 1.05s"))
	all := map[string]lineTest{
		"many that can't be served": many,
		"behind it from the start": {
			cfg: limitertest.Every(10, time.Second), kept: 1, keptFor: 2 * time.Second, scripts: 12,
			callers: []caller{
				asks(50*ms, 10, forever, "true at 2.8s"), // first in line still
				asks(100*ms, 2, forever, "true at 1.05s"),
				asks(100*ms, 3, 960*ms, "true at 1.05s"),
				asks(1500*ms, 1, forever, "true at 1.5s"), // from then on new ones are tried at once
			},
		},
		// The head was alone when the server answered 1.6s, a moment beyond its interval.
		"behind it only later": {cfg: limitertest.Every(10, time.Second), callers: []caller{
			taken(0, 5),
			asks(100*ms, 10, forever, "true at 2.1s"),
			taken(600*ms, 4),
			asks(1050*ms, 1, 300*ms, "true at 1.1s"),
		}},
		// One batch is for no more permits than a member holds.
		"permits beyond a batch": {cfg: limitertest.Every(6*billion, time.Second), kept: 2*billion + 1, callers: []caller{
			asks(50*ms, 4*billion, 5*time.Second, "false at 5.05s"),
			asks(100*ms, billion, 3*time.Second, "true at 1.05s"),
			asks(100*ms, billion/2, 0, "true at 100ms"),
		}},
	}
	// One batch has one configuration.
	head := []rratelimiter.LimiterOption{rratelimiter.WithDefault(limitertest.Every(30, time.Second))}
	for name, behind := range map[string][]rratelimiter.LimiterOption{
		"no default": {}, "another default": {rratelimiter.WithDefault(limitertest.Every(20, time.Second))},
	} {
		all[name] = lineTest{cfg: limitertest.Every(10, time.Second), kept: 1, callers: []caller{
			{at: 50 * ms, permits: 10, patience: 5 * time.Second, want: "false at 5.05s", opts: head},
			{at: 100 * ms, permits: 1, patience: 3 * time.Second, want: "true at 1.05s", opts: behind},
			{at: 1500 * ms, permits: 1, want: "true at 1.5s", opts: behind}, // one try overtakes
		}}
	}
	limitertest.Bubbles(t, all, func(t *testing.T, lt lineTest) { lt.run(t) })
}

func TestLine_ThousandWaitersShareCalls(t *testing.T) {
	t.Parallel()
	type row struct {
		rate, waiters int
		pace          int // this many come in a millisecond
		first, calls  int // in the first interval, and in all
	}
	limitertest.Virtual(t, map[string]row{
		"at once":            {100, 1000, 1000, 4, 30},       // a few calls for each interval
		"one by one":         {100, 1000, 10, 4 + 100/5, 50}, // those who come make it ask each 5 ms
		"a permit at a time": {1, 100, 100, 4, 3 * 100},
	}, func(t *testing.T, rdb redistest.Client, row row) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(int64(row.rate), time.Second))
		limitertest.MustAcquire(t, l, int64(row.rate))
		s := &limitertest.Scene{Sent: limitertest.CountCommands(rdb), Start: time.Now()}
		s.Until(500 * ms)
		client := limitertest.NewClient(t, rdb)
		handles := []*rratelimiter.RateLimiter{client.RateLimiter(l.Name()), client.RateLimiter(l.Name()), client.RateLimiter(l.Name())}
		served := make(chan struct{}, row.waiters)
		for i := range row.waiters {
			go func() {
				if assert.NoError(t, handles[i%len(handles)].Acquire(t.Context(), 1)) {
					served <- struct{}{}
				}
			}()
			if (i+1)%row.pace == 0 {
				s.Until(s.Now() + ms)
			}
		}
		s.Until(900 * ms)
		assert.LessOrEqual(t, s.Sent.Scripts(), row.first, "the first flights have asked for all")

		end := time.Duration(row.waiters/row.rate) * time.Second
		s.Until(end - ms)
		assert.Len(t, served, row.waiters-row.rate)
		s.Until(end + ms) // passes come at parts of a millisecond, in which servers don't count
		assert.Len(t, served, row.waiters, "as fast as the rate allows")
		assert.LessOrEqual(t, s.Sent.Scripts(), row.calls)
	})
}

var lineScenes = map[string]limitertest.SceneTest[*limitertest.Scene]{
	// A line that is overdue was refused what its newest members want too: they ask once.
	"arriving waiters ask once what was refused": {Cfg: limitertest.Every(10, time.Second), Run: func(t *testing.T, s *limitertest.Scene) {
		defer s.KeepInUse(t, 4)()
		s.Until(50 * ms)
		s.StartTryAcquire(t.Context(), 8, 5*time.Second)
		s.StartTryAcquire(t.Context(), 7, 5*time.Second)
		s.Until(1200 * ms)
		before := s.Sent.Scripts()
		for range 100 {
			s.StartTryAcquire(t.Context(), 7, 500*ms)
		}
		assert.LessOrEqual(t, s.Sent.Scripts(), before+1)
		assert.Equal(t, "true at 1.2s", s.StartTryAcquire(t.Context(), 2, forever).Outcome(), "less is worth a call")
		s.Until(10 * time.Second)
	}},
	"one try overtakes the line": {Cfg: limitertest.Every(5, time.Second), Run: func(t *testing.T, s *limitertest.Scene) {
		limitertest.MustAcquire(t, s.Other, 2)
		head := s.StartTryAcquire(t.Context(), 4, forever)
		behind := s.StartTryAcquire(t.Context(), 1, forever)

		s.Until(100 * ms)
		assert.Equal(t, "true at 100ms", s.StartTryAcquire(t.Context(), 1, 0).Outcome())
		assert.Equal(t, "true at 100ms", s.StartTryAcquire(t.Context(), 1, -time.Second).Outcome())
		d := limitertest.Take(t, s.RateLimiter, 1)
		assert.True(t, d.Granted)
		assert.Zero(t, d.Remaining)
		assert.Equal(t, "false at 100ms", s.StartTryAcquire(t.Context(), 1, 0).Outcome())
		d = limitertest.Take(t, s.RateLimiter, 1)
		assert.False(t, d.Granted)
		assert.Equal(t, 900*ms, d.RetryAfter)
		assert.Equal(t, 100*ms, s.Now(), "none of them waited")
		assert.Equal(t, "waits", head.Outcome())

		s.Until(time.Minute)
		assert.Equal(t, "true at 1.1s", head.Outcome())
		assert.Equal(t, "true at 1s", behind.Outcome(), "the head had its interval")
	}},
	"a waiter asks again until it is served": {Cfg: limitertest.Every(1, time.Second), Run: func(t *testing.T, s *limitertest.Scene) {
		limitertest.MustAcquire(t, s.Other, 1)
		// The other Client is there first, three times over.
		var all []*limitertest.Caller
		for range 3 {
			all = append(all, s.Go(func() (bool, error) { return s.Other.TryAcquire(t.Context(), 1, forever) }))
		}
		all = append(all, s.StartAcquire(t.Context(), 1))
		gaveUp := s.StartTryAcquire(t.Context(), 1, 1700*ms)
		s.Until(time.Minute)
		assert.Equal(t, "false at 1.7s", gaveUp.Outcome())
		var ends []string
		for _, c := range all {
			ends = append(ends, c.Outcome())
		}
		assert.ElementsMatch(t, []string{"true at 1s", "true at 2s", "true at 3s", "true at 4s"}, ends)
		assert.LessOrEqual(t, s.Sent.Scripts(), 10)
	}},
}

func TestLineScenes(t *testing.T) {
	t.Parallel()
	limitertest.OnScenes(t, lineScenes, func(t *testing.T, cfg rratelimiter.Config) *limitertest.Scene {
		return limitertest.NewScene(t, cfg)
	})
}

// A line of several kinds is served in its order, in a few flights.
func TestLine_OfSeveralKindsIsServedTogether(t *testing.T) {
	t.Parallel()
	const callers, trip = 200, 20 * ms
	cfg := rratelimiter.PerSecond(callers)
	type ask func(t *testing.T, l *rratelimiter.RateLimiter) error
	acquires := func(t *testing.T, l *rratelimiter.RateLimiter) error {
		return limitertest.Granted(l.TryAcquire(t.Context(), 1, forever))
	}
	reserving := func(t *testing.T, l *rratelimiter.RateLimiter) error { return reserves(t.Context(), l, 1, forever) }
	holding := func(t *testing.T, l *rratelimiter.RateLimiter) error {
		return reserves(t.Context(), l, 1, forever, rratelimiter.Hold(time.Duration(1+time.Now().UnixMilli()%500)*ms))
	}
	type row struct {
		asks      [2]ask
		noDefault bool // the second's handle has none
	}
	limitertest.Bubbles(t, map[string]row{
		"TryAcquire and Reserve":               {asks: [2]ask{acquires, reserving}},
		"Reserve, each with a hold of its own": {asks: [2]ask{holding, reserving}},
		"handles with and without a default":   {[2]ask{acquires, acquires}, true},
	}, func(t *testing.T, row row) {
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		l := limitertest.ByDefault(c, "orders", cfg)
		handles := []*rratelimiter.RateLimiter{l, l}
		if row.noDefault {
			handles[1] = c.RateLimiter("orders")
		}
		require.NoError(t, limitertest.Granted(l.TryAcquire(t.Context(), callers, 0)))
		start := time.Now()
		limitertest.Together(callers, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			assert.NoError(t, row.asks[i%2](t, handles[i%2]))
		})
		assert.LessOrEqual(t, time.Since(start), time.Second+6*trip)
		require.NoError(t, c.Close(t.Context()))
	})
}

// A largeRequest waits for permits of the limiter "key:a".
type largeRequest func(ctx context.Context, c *rratelimiter.Client, keyed *rratelimiter.KeyedLimiter, permits int64) error

var large = map[string]largeRequest{
	"Acquire": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.KeyedLimiter, permits int64) error {
		return c.RateLimiter("key:a").Acquire(ctx, permits)
	},
	"TryAcquire": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.KeyedLimiter, permits int64) error {
		return limitertest.Granted(c.RateLimiter("key:a").TryAcquire(ctx, permits, forever))
	},
	"Reserve": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.KeyedLimiter, permits int64) error {
		return reserves(ctx, c.RateLimiter("key:a"), permits, forever, rratelimiter.Hold(500*ms))
	},
	"Keyed": func(ctx context.Context, _ *rratelimiter.Client, keyed *rratelimiter.KeyedLimiter, permits int64) error {
		return keyed.Acquire(ctx, "a", permits)
	},
	"transport": func(ctx context.Context, _ *rratelimiter.Client, keyed *rratelimiter.KeyedLimiter, permits int64) error {
		transport := httplimit.NewTransport(upstream{}, keyed,
			httplimit.WithKey(func(*http.Request) (string, error) { return "a", nil }),
			httplimit.WithCost(func(*http.Request) (int64, error) { return permits, nil }))
		resp, err := transport.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.org/", http.NoBody))
		if err != nil {
			return err
		}
		return resp.Body.Close()
	},
}

// upstream answers each request at once.
type upstream struct{}

func (upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// A request for most of the permits is served in its turn, an interval after it became the first at most, though many
// smaller ones were in line before it and come again and again.
func TestLine_LargeRequestIsServedBehindALongLine(t *testing.T) {
	t.Parallel()
	const rate, permits, others, small, trip = 1000, 900, 48, 60, 3 * ms
	limitertest.Bubbles(t, large, func(t *testing.T, acquire largeRequest) {
		client := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		cfg := limitertest.Every(rate, time.Second)
		l, keyed := limitertest.ByDefault(client, "key:a", cfg), client.Keyed("key:", cfg)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range others {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 7 * ms)
				for l.Acquire(ctx, small) == nil {
					time.Sleep(ms)
				}
			})
		}
		time.Sleep(1500 * ms)
		// What was in line before it, and its own interval.
		soon, end := context.WithTimeout(t.Context(), (others*small/rate+2)*time.Second)
		assert.NoError(t, acquire(soon, client, keyed, permits))
		end()
		cancel()
		wg.Wait()
		require.NoError(t, client.Close(t.Context()))
	})
}
