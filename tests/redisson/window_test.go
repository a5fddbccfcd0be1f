package redisson_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

var windows = map[string]scenario{
	"shared both ways": {cfg: every(10, minute), version: windowed, steps: []step{
		there(1), take(3), valueEnds(minute), wait(20 * second), oldTakes(4), free(3), take(2), oldRefuses(2), refuse(2),
		there(2), valueEnds(40 * second), // no set is kept, the window's end stays
		func(p *play) {
			d, err := p.l.Take(p.Context(), 2)
			require.NoError(p, err)
			assert.Equal(p, limit.Decision{Limit: 10, Remaining: 1, RetryAfter: 40 * second, ResetAfter: 40 * second}, d)
		},
		// All permits come back together, at the end of the window.
		within(10, 50*second, true), func(p *play) { assert.Equal(p, minute, time.Since(p.began).Round(second)) },
		oldRefuses(1), wait(61 * second), oldTakes(9), acquire(1), refuse(1),
	}},
	"what needs a record is refused": {cfg: every(10, minute), version: windowed, steps: []step{take(3), untouched(
		func(p *play) {
			fails(rratelimiter.ErrUnsupported, func(*play) error { return p.l.Release(p.Context(), 1) }, p.l.Name(), windowed)(p)
		},
		fails(rratelimiter.ErrUnsupported, func(p *play) error { return p.l.SetRate(p.Context(), every(20, minute), keep) }),
		fails(rratelimiter.ErrUnsupported, func(p *play) error {
			return limitertest.Second(p.l.UpdateRate(p.Context(), every(20, minute), keep))
		}),
		exceeds(rratelimiter.ErrPermitsExceedRate, 11),
	)}},
	"of each client": {cfg: perClient(5, minute), version: windowed, steps: []step{
		take(5), wait(30 * second), refuse(1), other(take(4)), wait(31 * second), take(5), other(free(1)),
		wait(30 * second), other(free(5)), refuse(1),
	}},
	"a rate set on the way": {cfg: every(10, minute), version: windowed, steps: []step{
		take(8), set(every(4, minute)), free(4), oldTakes(4), refuse(1),
		// A rate that somebody lowers in the hash alone holds at once.
		wait(minute + ms), oldTakes(1), put("rate", 2), take(2), refuse(1),
	}},
	// No time to live of the limiter moves the end of a window: its permits come back then.
	"keeps its end":           {cfg: every(10, minute), version: windowed, steps: slices.Concat(keepsItsEnd, keepsItsEndBesideAnEnd)},
	"keeps its end, not told": {cfg: every(10, minute), steps: keepsItsEnd},
	"without an end gets one": {cfg: every(10, minute), version: windowed, steps: []step{putValue(0), within(1, 2*minute, true)}},
	"an end too far away comes nearer": {cfg: every(10, minute), version: windowed, steps: []step{
		take(1), func(p *play) { require.NoError(p, p.rdb.PExpire(p.Context(), p.keys().Value, minute+ms).Err()) },
		take(1), valueEnds(minute),
	}},
	"without an end when a rate is set": {cfg: every(10, minute), version: windowed, steps: []step{
		putValue(1), loseConfig, trySet(true, every(10, minute)), valueEnds(minute), oldRefuses(2), wait(minute + ms), oldTakes(10),
	}},
	"without an end when the limiter gets one": {cfg: perClient(10, minute), version: windowed, steps: []step{
		take(3), persist, put("type", 0), expire(hour), wait(hour + ms), there(0),
	}},
	"a release fills no window": {cfg: every(10, minute), steps: []step{oldTakes(7), take(1), release(1), free(3)}},
	// A Client that was not told of the old release reads its state right all the same.
	"read by every client": {cfg: every(10, minute), steps: []step{
		free(10), there(1), // a value without an end would never be full again
		oldTakes(7), free(3), refuse(4), decides(4, 3, minute), wait(30 * second), take(1), take(1), refuse(2), free(1),
		// The value goes with the window; what the Client took is still in use.
		wait(31 * second), free(8), wait(30 * second), free(10),
	}},
	// A keep-alive time that ends with the window makes it no other value.
	"a keep-alive time": {cfg: keepAlive(1, minute, minute), both: true, version: windowed, steps: []step{
		take(1), times(6, refuse(1), wait(9*second)), wait(6*second + ms), take(1),
	}},
	// A value whose end is that of an earlier Expire is no window.
	"KeepState after Expire makes none": {cfg: every(10, second), steps: []step{
		expire(hour), take(1), wait(2 * second), set(every(10, second), keep), take(10), wait(2 * second), free(10),
		wait(10 * minute), free(10), take(1),
	}},
	"a config made anew after Expire makes none": {cfg: every(10, second), steps: []step{
		expire(hour), take(1), wait(2 * second), free(10), loseConfig, trySet(true, every(10, second)), take(10),
		wait(2 * second), free(10), wait(10 * minute), free(10),
	}},
	// The limiter's own end is not the window's.
	"beside the limiter's end":       {cfg: every(10, minute), steps: slices.Concat([]step{expire(hour)}, takesInAWindow)},
	"beside the limiter's keepAlive": {cfg: keepAlive(10, minute, 10*minute), steps: takesInAWindow},
	// A value without an end gets one an interval away, not the limiter's.
	"AvailablePermits makes no long one": {cfg: every(10, second), version: windowed, steps: []step{
		expire(hour), oldTakes(10),
		func(p *play) { require.NoError(p, p.rdb.Persist(p.Context(), p.keys().Value).Err()) }, // clearExpire of old
		free(0), wait(2 * second), take(1),
	}},
	// The value that the other Client made has the limiter's end.
	"beside a Client that was not told": {cfg: every(10, second), steps: []step{
		expire(hour), take(3), as(windowed, take(7), wait(2*second), take(1)),
	}},
	// What the Client has in use ends before the window, but gives it nothing.
	"when to ask again": {cfg: every(10, minute), steps: []step{take(5), wait(50 * second), loseValue, oldTakes(8), func(p *play) {
		d, err := p.l.Take(p.Context(), 5)
		require.NoError(p, err)
		require.False(p, d.Granted)
		time.Sleep(d.RetryAfter + ms) // Redis keeps a key to the end of its last
	}, take(5)}},
	// A client that never comes back leaves nothing behind, migrated or not.
	"migrated, of a client that has gone": {cfg: perClient(10, minute), version: windowed, steps: []step{
		take(3), as(newest, migrate), wait(24 * hour), there(1),
	}},
}

func TestWindows(t *testing.T) {
	t.Parallel()
	perform(t, windows)
}

var (
	keepsItsEnd = []step{
		oldTakes(4), expire(hour), valueEnds(minute), does("ExpireAt"), valueEnds(minute), does("ClearExpire"), valueEnds(minute),
		free(6), valueEnds(minute), trySet(false, every(3, second)), valueEnds(minute),
		// The rate is lost and set again, as after a delete by that release.
		loseConfig, trySet(true, every(10, minute)), valueEnds(minute), free(6),
	}
	// To a Client that was not told an end of the limiter before the window's is that of all
	// keys.
	keepsItsEndBesideAnEnd = []step{
		expire(10 * second), valueEnds(minute), times(2, take(3), valueEnds(minute)), refuse(1), free(0), valueEnds(minute),
		wait(10*second + ms), exists(false), trySet(true, every(10, minute)), refuse(1),
	}
	takesInAWindow = []step{
		oldTakes(7), decides(1, 2, 0), valueEnds(minute), decides(1, 1, 0), valueEnds(minute), refuse(2), free(1), refuse(2),
	}
)

// A value is a window if it ends in an interval at most, and more than a second before the
// rest of the limiter. Then Expire leaves its end alone.
func TestWhatIsAWindow(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for _, ends := range []struct{ Value, Config, Permits, After time.Duration }{ // 0 for never
		{minute, 0, 0, minute}, {minute + ms, 0, 0, hour},
		{minute, 61*second + ms, 0, minute}, {minute, 61 * second, 0, hour},
		{minute, 0, 61*second + ms, minute}, {minute, 0, 61 * second, hour},
	} {
		all[fmt.Sprint(ends)] = scenario{cfg: every(10, minute), steps: []step{take(1), func(p *play) {
			k := p.keys()
			for key, end := range map[string]time.Duration{k.Config: ends.Config, k.Value: ends.Value, k.Permits: ends.Permits} {
				if end > 0 {
					require.NoError(p, p.rdb.PExpire(p.Context(), key, end).Err())
				}
			}
		}, expire(hour), valueEnds(ends.After)}}
	}
	perform(t, all)
}

// newWindow returns a limiter of 10 that counts windows of an hour.
func newWindow(t *testing.T) *limitertest.Wire {
	t.Helper()
	return limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
}

// Nothing tells whether a call without an answer has run.
func TestWindowRepeatsNothing(t *testing.T) {
	t.Parallel()
	w := newWindow(t)
	w.On(lua.Acquire, redistest.DropAnswer)
	_, err := w.TryAcquire(t.Context(), 3, 0)
	require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
	assert.Equal(t, 1, w.Sent(lua.Acquire))
	left, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
	assert.EqualValues(t, 7, left)
	limitertest.MustAcquire(t, w.Other, 7)
	limitertest.MustRefuse(t, w.Other, 1)
}

// Who goes away while the request is on its way gets its permits back, in the
// window that they are of.
func TestWindowGivesBack(t *testing.T) {
	t.Parallel()
	w := newWindow(t)
	limitertest.MustAcquire(t, w.Other, 2)
	got := w.CancelledInFlight(t, []int64{1, 4, 2}, []bool{false, true, true})
	assert.EqualValues(t, 1, limitertest.Sum(got))
	assert.Eventually(t, func() bool {
		left, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
		return left == 7
	}, time.Minute, ms)
}

func TestWindowGivesNothingBackToTheNextOne(t *testing.T) {
	t.Parallel()
	w := newWindow(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone, back := make(chan struct{}), make(chan struct{})
	w.OnScript(func(s *lua.Script, _ int) redistest.Action {
		switch s {
		case lua.Acquire:
			cancel()
			<-gone
		case lua.GiveBack:
			defer close(back)
			// Another window has begun meanwhile.
			assert.NoError(t, w.Redis.Set(t.Context(), w.Keys.Value, 5, 2*hour).Err())
		}
		return redistest.Pass
	})
	_, err := w.TryAcquire(ctx, 4, 0)
	close(gone)
	require.ErrorIs(t, err, context.Canceled)
	<-back
	w.Proxy.Settle(t)
	left, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
	assert.EqualValues(t, 5, left)
}

// A rate set soon after a window began makes another one that ends soon after it.
func TestWindowGivesNothingBackToOneThatBeganSoon(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(10, minute), version: windowed, steps: []step{func(p *play) {
		ctx, cancel := context.WithCancel(p.Context())
		z := newScripted(p)
		z.before = func(cmd redis.Cmder) error {
			switch {
			case isScript(cmd, lua.Acquire):
				cancel()
				time.Sleep(ms) // until the caller has gone
			case isScript(cmd, lua.GiveBack):
				z.before = nil
				time.Sleep(20 * ms)
				times(1, set(every(10, minute)), take(10))(p)
			}
			return nil
		}
		_, err := z.l.TryAcquire(ctx, 4, 0)
		require.ErrorIs(p, err, context.Canceled)
		require.NoError(p, z.client.Close(p.Context()))
	}, free(0)}}.perform(t)
}

func TestWindowManyCallersTogether(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(100, hour), version: windowed, everywhere: true, steps: []step{func(p *play) {
		granted, _ := p.atOnce(300, 1)
		assert.EqualValues(p, 100, granted)
	}}}.perform(t)
}

// Until the server has removed it, the value counts, also in the last
// millisecond of its window.
func TestWindowUpToItsLastMillisecond(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(1, 5*ms), version: windowed, everywhere: true, steps: []step{func(p *play) {
		const windows = 40
		granted := 0
		began := time.Now()
		var took time.Duration
		for took < windows*5*ms {
			if limitertest.Try(p, p.l, 1) {
				granted++
			}
			took = time.Since(began)
		}
		// Windows are counted in whole milliseconds: one may be a part shorter.
		assert.LessOrEqual(p, granted, int(took/(4*ms))+1)
	}}}.perform(t)
}
