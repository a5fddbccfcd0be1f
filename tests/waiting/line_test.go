package waiting_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
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
	"a rate lowered below what the head wants": {
		cfg: limitertest.Every(10, time.Second), at: 300 * ms, change: keepRate(limitertest.Every(6, time.Second)),
		callers: []caller{
			taken(0, 5),
			{permits: 8, patience: forever, want: "false at 300ms", err: rratelimiter.ErrPermitsExceedRate},
			asks(0, 1, forever, "true at 300ms"),
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
	"a permit that comes back as patience ends is in time": {cfg: limitertest.Every(2, time.Second), callers: []caller{
		taken(0, 2),
		asks(0, 1, time.Second, "true at 1s"),
		asks(0, 1, time.Second, "true at 1s"),
		asks(0, 1, time.Second, "false at 1s"),
	}},
	// What another Client does is seen when the server said.
	"another Client releases": {
		cfg: limitertest.Every(2, time.Second), callers: []caller{taken(0, 2), asks(0, 1, endless, "true at 1s")},
		at: 300 * ms, change: func(ctx context.Context, s *limitertest.Scene) error { return s.Other.Release(ctx, 2) },
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

// The head asks for what can't be had while the other Client goes on. Those behind it wait one interval at most, from when the head began.
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

// A line that is overdue was refused what its newest members want too: they ask once.
func TestLine_ArrivingWaitersAskOnceWhatWasRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(10, time.Second))
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
	})
}

func TestLine_OneTryOvertakesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limitertest.NewScene(t, limitertest.Every(5, time.Second))
		limitertest.MustAcquire(t, s.Other, 2)
		head := s.StartTryAcquire(t.Context(), 4, forever)
		behind := s.StartTryAcquire(t.Context(), 1, forever)
		s.Until(100 * ms)
		assert.Equal(t, "true at 100ms", s.StartTryAcquire(t.Context(), 1, 0).Outcome())
		assert.Equal(t, "true at 100ms", s.StartTryAcquire(t.Context(), 1, -time.Second).Outcome())
		assert.Equal(t, limit.Decision{Granted: true, Limit: 5, ResetAfter: time.Second}, limitertest.Take(t, s.RateLimiter, 1))
		assert.Equal(t, "false at 100ms", s.StartTryAcquire(t.Context(), 1, 0).Outcome())
		assert.Equal(t, limit.Decision{Limit: 5, RetryAfter: 900 * ms, ResetAfter: time.Second}, limitertest.Take(t, s.RateLimiter, 1))
		assert.Equal(t, 100*ms, s.Now(), "none of them waited")
		assert.Equal(t, "waits", head.Outcome())
		s.Until(time.Minute)
		assert.Equal(t, "true at 1.1s", head.Outcome())
		assert.Equal(t, "true at 1s", behind.Outcome(), "the head had its interval")
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
	limitertest.Bubbles(t, map[string][2]ask{
		"TryAcquire and Reserve": {acquires, reserving}, "Reserve, each with a hold of its own": {holding, reserving},
	}, func(t *testing.T, asks [2]ask) {
		c := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		l := limitertest.ByDefault(c, "orders", cfg)
		require.NoError(t, limitertest.Granted(l.TryAcquire(t.Context(), callers, 0)))
		start := time.Now()
		limitertest.Together(callers, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			assert.NoError(t, asks[i%2](t, l))
		})
		assert.LessOrEqual(t, time.Since(start), time.Second+6*trip)
		require.NoError(t, c.Close(t.Context()))
	})
}

// A request for most of the permits is served in its turn, an interval after it became the first at most, though many
// smaller ones were in line before it and come again and again.
func TestLine_LargeRequestIsServedBehindALongLine(t *testing.T) {
	t.Parallel()
	const rate, permits, others, small, trip = 1000, 900, 48, 60, 3 * ms
	limitertest.Bubbles(t, map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{
		"Acquire": func(ctx context.Context, l *rratelimiter.RateLimiter) error { return l.Acquire(ctx, permits) },
		"Reserve": func(ctx context.Context, l *rratelimiter.RateLimiter) error {
			return reserves(ctx, l, permits, forever, rratelimiter.Hold(500*ms))
		},
	}, func(t *testing.T, acquire func(ctx context.Context, l *rratelimiter.RateLimiter) error) {
		client := rratelimiter.New(limitertest.FarAway(t, trip), limitertest.Patient())
		l := limitertest.ByDefault(client, "orders", limitertest.Every(rate, time.Second))
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
		assert.NoError(t, acquire(soon, l))
		end()
		cancel()
		wg.Wait()
		require.NoError(t, client.Close(t.Context()))
	})
}
