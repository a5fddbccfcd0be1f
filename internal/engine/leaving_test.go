package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// slow keeps the answers of one script back.
type slow struct {
	script atomic.Pointer[lua.Script]
	by     time.Duration
}

func (s *slow) send(_ context.Context, cmds []redis.Cmder, next func() error) error {
	err := next()
	if one := s.script.Load(); one != nil && slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return redistest.Calls(cmd, one.SHA) }) {
		time.Sleep(s.by)
	}
	return err
}

// answers keeps the answers of that script back from now on.
func (s *slow) answers(one *lua.Script, by time.Duration) {
	s.by = by
	s.script.Store(one)
}

// onSlow runs test in a bubble, with an Engine that reports to o and a client of the same server, which knows the scripts.
func onSlow(t *testing.T, o *observe.Observer, test func(t *testing.T, e *Engine, s *slow, rdb redistest.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		direct, m := redistest.Mini(t)
		for _, one := range []*lua.Script{lua.Acquire, lua.AcquireAll, lua.Command, lua.GiveBack, lua.SetRate} {
			require.NoError(t, direct.ScriptLoad(t.Context(), one.Source).Err())
		}
		rdb := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 10})
		s := &slow{}
		rdb.AddHook(redistest.Hook(s.send))
		e := New(rdb, script.DefaultTimeout, redisson.NewestRules, redisson.NewIdentities(redisson.NewestRules.Layout), o)
		test(t, e, s, direct)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, e.Close(ctx))
		time.Sleep(time.Minute) // calls under way end
	})
}

// newerDefaults returns two limiters, the first of which has an older default in Redis.
func newerDefaults(t *testing.T, e *Engine) []Claim {
	t.Helper()
	since := time.Now()
	old := testLimiter("{x}a", fmt.Sprintf("10 60000 0 0 %d", since.Add(-time.Minute).UnixMicro()))
	old.Learnt = since.Add(-time.Minute)
	_, err := acquire(t.Context(), e, old, decide.Ask{Permits: 1})
	require.NoError(t, err)
	var both []Claim
	for _, name := range []string{"{x}a", "{x}b"} {
		l := testLimiter(name, fmt.Sprintf("20 60000 0 0 %d", since.UnixMicro()))
		l.Rate = limit.Rate{Permits: 20, Interval: time.Minute}
		both = append(both, Claim{Limiter: l, Permits: 1})
	}
	return both
}

func assertRate(t *testing.T, e *Engine, l *Limiter, permits int64) {
	t.Helper()
	rate, err := e.Rate(t.Context(), l)
	require.NoError(t, err)
	assert.Equal(t, permits, rate.Permits)
}

func TestUndo_WithAnEndedContextKeepsNoCloseWaiting(t *testing.T) {
	t.Parallel()
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, _ redistest.Client) {
		a, err := acquire(t.Context(), e, testLimiter("a", hourly), decide.Ask{Permits: 1, Undo: true})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Undo(ctx), context.Canceled)
	})
}

// A try whose caller has gone replaces no older default, and leaves that to the next.
func TestAcquireAll_NextCallerReplacesTheDefaultThatOneWhoLeftFound(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]*lua.Script{
		"the try was under way": lua.AcquireAll,
		"the try waited":        lua.Acquire,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onSlow(t, nil, func(t *testing.T, e *Engine, s *slow, _ redistest.Client) {
				both := newerDefaults(t, e)
				s.answers(late, 100*time.Millisecond)
				for i := range 4 { // more than the flights that leave at once
					go func() {
						_, _ = acquire(t.Context(), e, testLimiter(fmt.Sprint("{x}", i), hourly), decide.Ask{Permits: 1})
					}()
					synctest.Wait()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				_, err := e.AcquireAll(ctx, both, decide.Ask{})
				require.ErrorIs(t, err, context.DeadlineExceeded)
				time.Sleep(time.Second)
				_, err = e.AcquireAll(t.Context(), both, decide.Ask{})
				require.NoError(t, err)
				assertRate(t, e, both[0].Limiter, 20)
			})
		})
	}
}

// recorder keeps the kinds of events.
type recorder struct {
	limit.NoObserver

	kinds redistest.List[limit.EventKind]
}

func (r *recorder) Happened(e limit.Event) { r.kinds.Add(e.Kind) }

// leaver is a caller of two limiters whose context, deadline or time for an answer ends after 100 ms.
type leaver struct {
	engine *Engine
	redis  redistest.Client
	slow   *slow
	events *recorder

	ends bool // the context does
	ask  decide.Ask
}

// leave asks, and returns the error with which the caller leaves in time.
func (l *leaver) leave(t *testing.T, both []Claim) error {
	t.Helper()
	ctx := t.Context()
	if l.ends {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
	}
	start := time.Now()
	_, err := l.engine.AcquireAll(ctx, both, l.ask)
	assert.LessOrEqual(t, time.Since(start), 200*time.Millisecond)
	return err
}

func eachLeaver(t *testing.T, test func(t *testing.T, l *leaver)) {
	t.Helper()
	for name, l := range map[string]*leaver{
		"context":  {ends: true},
		"deadline": {ask: decide.Ask{MayWait: true, Timeout: 100 * time.Millisecond}},
		"within":   {ask: decide.Ask{Within: 100 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l.events = &recorder{}
			onSlow(t, observe.New(l.events, nil), func(t *testing.T, e *Engine, s *slow, rdb redistest.Client) {
				l.engine, l.slow, l.redis = e, s, rdb
				test(t, l)
			})
		})
	}
}

// The call that replaces an older default takes none of its caller's time beyond the end of that, and goes on then.
func TestAcquireAll_CallerLeavesWhileTheDefaultIsReplaced(t *testing.T) {
	t.Parallel()
	eachLeaver(t, func(t *testing.T, l *leaver) {
		both := newerDefaults(t, l.engine)
		l.slow.answers(lua.SetRate, 300*time.Millisecond)
		require.Error(t, l.leave(t, both))
		require.NoError(t, l.engine.Close(t.Context()))
		synctest.Wait()
		assert.Equal(t, []limit.EventKind{limit.RateReplaced}, l.events.kinds.All())
	})
}

func TestAcquireAll_CallerLeavesWhileAnErrorIsExplained(t *testing.T) {
	t.Parallel()
	eachLeaver(t, func(t *testing.T, l *leaver) {
		both := []Claim{{Limiter: testLimiter("{x}a", hourly), Permits: 1}, {Limiter: testLimiter("{x}b", hourly), Permits: 1}}
		require.NoError(t, l.redis.Set(t.Context(), both[0].Limiter.Config, "", 0).Err())
		l.slow.answers(lua.Command, 10*time.Second) // with which types are asked for
		require.ErrorIs(t, l.leave(t, both), limit.ErrCorrupt)
	})
}

// Callers who share a flight leave at their own times, without a timer each.
func TestWaiters_LeaveInTimeThoughTheyShareAFlight(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"under way": false, "not sent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onSlow(t, nil, func(t *testing.T, e *Engine, s *slow, _ redistest.Client) {
				l := testLimiter("a", hourly)
				s.answers(lua.Acquire, 10*time.Millisecond)
				if held {
					s.answers(lua.Acquire, 2*time.Second)
				}
				var all sync.WaitGroup
				for range 2 { // as many flights as may be under way
					all.Go(func() { _, _ = acquire(t.Context(), e, l, decide.Ask{Permits: 1}) })
					synctest.Wait()
				}
				start := time.Now()
				leaves := func(after time.Duration, want error, ask decide.Ask) {
					all.Go(func() {
						_, err := acquire(t.Context(), e, l, ask)
						assert.ErrorIs(t, err, want)
						assert.Equal(t, after, time.Since(start), "%+v", ask)
					})
				}
				want := limit.ErrUnknownOutcome
				if held {
					want = limit.ErrUnavailable
				}
				all.Go(func() { _, _ = acquire(t.Context(), e, l, decide.Ask{Permits: 1}) })
				leaves(150*time.Millisecond, want, decide.Ask{Permits: 1, MayWait: true, Timeout: 50 * time.Millisecond})
				leaves(120*time.Millisecond, want, decide.Ask{Permits: 1, MayWait: true, Timeout: 20 * time.Millisecond})
				leaves(70*time.Millisecond, want, decide.Ask{Permits: 1, Within: 70 * time.Millisecond})
				synctest.Wait()
				s.answers(lua.Acquire, 2*time.Second)
				all.Wait()
			})
		})
	}
}
