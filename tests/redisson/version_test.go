package redisson_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestWithRedissonVersion_RefusesUnknown(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, limitertest.Rows(
		"", "3.15", "3.15.5.1", "v3.15.5", "3.15.05", "3.15.-5", "3.15.5-SNAPSHOT", "3.11.6", "3.15.7", "99999999999999999999.0.0",
	), func(t *testing.T, version string) {
		// Redis is not there: nothing may reach it.
		rdb := redistest.NewClient("127.0.0.1:1", nil)
		t.Cleanup(func() { _ = rdb.Close() })
		l := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter("orders")
		_, err := l.TryAcquire(t.Context(), 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		assert.ErrorContains(t, err, "3.12.0 to 4.7.0")
	})
}

func TestWithRedissonVersion_NewerCountsAsNewest(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewClient("", nil)
	t.Cleanup(func() { _ = rdb.Close() })
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		client := rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("4.7.1"), limitertest.LogTo(&log))
		_, _ = client.RateLimiter("orders"), client.RateLimiter("sales")
		synctest.Wait()
		assert.Equal(t, 1, strings.Count(log.String(), "version 4.7.1 of Redisson is newer than 4.7.0, the newest that was tested"), log.String())
	})
}

func TestMembersAreThoseOfTheOldestRedisson(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for version, want := range map[string]codec.Layout{
		"3.13.3": codec.LayoutB, "3.16.3": codec.LayoutB, "3.16.4": codec.LayoutC, "3.16.8": codec.LayoutC, "3.17.0": codec.LayoutD1,
		"3.20.1": codec.LayoutD1, "3.21.0": codec.LayoutD2, newest: codec.LayoutD2, "5.0.0": codec.LayoutD2,
	} {
		all[version] = scenario{cfg: every(10, minute), version: version, steps: []step{
			take(3), wait(second), take(4), release(2), func(p *play) {
				for _, m := range members(p, p.rdb, p.keys().Permits) {
					assert.Equal(p, want, m.Layout)
				}
			}, inUse(5),
		}}
	}
	perform(t, all)
}

// Redisson before 3.35 counts members instead of permits.
func TestRequestsShareNoMemberBesideRedissonBefore335(t *testing.T) {
	t.Parallel()
	const rate = 700
	all := map[string]scenario{}
	for _, version := range []string{"3.15.5", "3.16.8", "3.20.1", "3.34.1"} {
		all[version] = scenario{cfg: every(rate, hour), version: version, everywhere: true, steps: []step{func(p *play) {
			var granted atomic.Int64
			limitertest.Together(400, func(i int) {
				if limitertest.Try(p, p.l, 1+int64(i)%3) {
					granted.Add(1)
				}
			})
			assert.Len(p, members(p, p.rdb, p.keys().Permits), int(granted.Load()))
		}, inUse(rate), free(0)}}
	}
	perform(t, all)
}

// What has run out does not wait beside these releases, which must sweep it all at once.
func TestExpiredMembers_AreSweptBesideRedissonBefore335(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	left := func(want int) step {
		return func(p *play) { assert.Len(p, members(p, p.rdb, p.keys().Permits), want) }
	}
	perform(t, map[string]scenario{
		// The value at the rate beside thousands of rows that have run out: a Redisson that found the value gone made a full one.
		"though the limiter is full": {cfg: every(20_000, minute), version: "3.13.6", steps: []step{func(p *play) {
			for i := range 9 {
				limitertest.AddGrants(p, p.rdb, p.keys().Permits, time.Duration(i)*ms, 1000, 1)
			}
		}, putValue(20_000), wait(30 * second), take(1), wait(31 * second), take(1), left(2)}},
		"more than one call drops": {cfg: every(5000, minute), version: "3.20.1", steps: []step{
			times(600, take(1)), wait(30 * second), take(7), wait(31 * second), take(9), left(2), value(5000 - 7 - 9),
		}},
	})
}

// sweeps checks that what ran out piles up to a 64th of the rate at most, or 16: a Redisson sweeps all of it in one call.
func sweeps(rate, most int64) scenario {
	return scenario{cfg: every(rate, second), steps: []step{times(300, take(1), wait(1100*ms), func(p *play) {
		assert.LessOrEqual(p, p.rdb.ZCard(p.Context(), p.keys().Permits).Val(), most+1)
	})}}
}

func TestUpkeep(t *testing.T) {
	t.Parallel()
	note := ""
	perform(t, map[string]scenario{
		"grants sweep what has run out":                  sweeps(3200, 3200/64),
		"grants sweep what has run out of a small limit": sweeps(800, 16),
		"answered attempts are forgotten after a minute": {cfg: every(10, hour), steps: []step{
			func(p *play) {
				note = strconv.FormatInt(limitertest.ServerNow(p, p.rdb), 10) + ":" + strings.Repeat("ab", 16) + ";"
				put("answered", note)(p)
			},
			wait(59 * second), take(1),
			func(p *play) { assert.Equal(p, note, p.rdb.HGet(p.Context(), p.l.Name(), "answered").Val()) },
			wait(2 * second), take(1),
			func(p *play) { assert.False(p, p.rdb.HExists(p.Context(), p.l.Name(), "answered").Val()) },
		}},
	})
}

func TestRenameToAKeyOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	to := func(key func(redisson.Keys) string) step {
		return fails(rratelimiter.ErrInvalidConfig, func(p *play) error { return p.l.Rename(p.Context(), key(p.keys())) })
	}
	scenario{cfg: every(5, hour), steps: []step{take(1), untouched(
		to(func(k redisson.Keys) string { return k.Value }), to(func(k redisson.Keys) string { return k.Permits }),
	)}}.perform(t)
}

func TestRename_OnARingNeedsTheSameHashTag(t *testing.T) {
	t.Parallel()
	ring := redistest.NewRing(map[string]string{"one": "127.0.0.1:0"}, nil)
	t.Cleanup(func() { _ = ring.Close() })
	require.ErrorIs(t, limitertest.NewClient(t, ring).RateLimiter("{shop}orders").Rename(t.Context(), "sales"), rratelimiter.ErrUnsupported)
}

// answersSoon has a request be answered by the next round trip but one, of a millisecond each.
func answersSoon(p *play) {
	start := time.Now()
	require.NoError(p, limitertest.Second(p.l.Take(p.Context(), 1)))
	assert.LessOrEqual(p, time.Since(start), 5*ms)
}

func TestReleasesLeaveRoundTripsToRequests(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(10, hour), steps: []step{func(p *play) {
		p.rdb.AddHook(limitertest.Slow(ms))
		beside(p, 4, func(ctx context.Context, _ int) { _ = p.l.Release(ctx, 1) }, func() { times(1, wait(10*ms), answersSoon)(p) })
	}}}.perform(t)
}

func TestTryAcquire_NotHeldUpByLongLine(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	scenario{cfg: every(1000, 10*second), steps: []step{take(1000), func(p *play) {
		beside(p, 2000, func(ctx context.Context, i int) { _ = p.l.Acquire(ctx, int64(100+i%2)) }, func() {
			synctest.Wait()
			time.Sleep(9900 * ms)
			p.rdb.AddHook(limitertest.Slow(ms))
			times(200, answersSoon)(p)
		})
	}}}.perform(t)
}

var windows = map[string]scenario{
	"shared both ways": {cfg: every(10, minute), version: windowed, steps: []step{
		there(1), take(3), valueEnds(minute), wait(20 * second), oldTakes(4), free(3), take(2), oldRefuses(2), refuse(2),
		there(2), valueEnds(40 * second), // no set is kept, the window's end stays
		func(p *play) {
			want := limit.Decision{Limit: 10, Remaining: 1, RetryAfter: 40 * second, ResetAfter: 40 * second}
			assert.Equal(p, want, limitertest.Take(p, p.l, 2))
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
		fails(rratelimiter.ErrUnsupported, func(p *play) error {
			r, err := p.l.Reserve(p.Context(), 1, 0)
			assert.Nil(p, r)
			return err
		}),
		exceeds(rratelimiter.ErrPermitsExceedRate, 11),
	)}},
	// Such a Redisson can't read the interval of a rate that ends by itself.
	"is refused a rate for a while": {cfg: every(10, minute), steps: []step{
		oldTakes(3), untouched(
			fails(rratelimiter.ErrUnsupported, func(p *play) error { return p.l.SetRate(p.Context(), every(20, minute), rratelimiter.For(hour)) }),
			fails(rratelimiter.ErrUnsupported, func(p *play) error {
				return limitertest.Second(p.l.UpdateRate(p.Context(), every(20, minute), rratelimiter.For(hour)))
			}),
		), oldTakes(7), valueEnds(minute), wait(minute + ms), oldTakes(10),
	}},
	// No time to live of the limiter moves the end of a window: its permits come back then.
	"keeps its end": {cfg: every(10, minute), steps: []step{
		oldTakes(4), expire(hour), valueEnds(minute), does("ExpireAt"), valueEnds(minute), does("ClearExpire"), valueEnds(minute),
		free(6), valueEnds(minute), trySet(false, every(3, second)), valueEnds(minute),
		// The rate is lost and set again, as after a delete by that release.
		loseConfig, trySet(true, every(10, minute)), valueEnds(minute), free(6),
	}},
	// A Client without WithRedissonVersion reads the old release's state right all the same.
	"read by every client": {cfg: every(10, minute), steps: []step{
		free(10), there(1), // a value without an end would never be full again
		oldTakes(7), free(3), refuse(4), peeksAndTakes(4), decides(4, 3, minute), wait(30 * second), take(1), take(1), refuse(2), free(1),
		// The value goes with the window; what the Client took is still in use.
		wait(31 * second), free(8), wait(30 * second), free(10),
	}},
	// A keep-alive time that ends with the window makes it no other value.
	"a keep-alive time": {cfg: keepAlive(1, minute, minute), both: true, version: windowed, steps: []step{
		take(1), times(6, refuse(1), wait(9*second)), wait(6*second + ms), take(1),
	}},
	// A value whose end comes from an earlier Expire is no window.
	"KeepState after Expire makes none": {cfg: every(10, second), steps: []step{
		expire(hour), take(1), wait(2 * second), set(every(10, second), keep), take(10), wait(2 * second), free(10),
		wait(10 * minute), free(10), take(1),
	}},
	// The limiter's own end is not the window's.
	"beside the limiter's end": {cfg: every(10, minute), steps: []step{
		expire(hour), oldTakes(7), decides(1, 2, 0), valueEnds(minute), decides(1, 1, 0), valueEnds(minute), refuse(2), free(1), refuse(2),
	}},
	"what runs out beside it gives it nothing": {cfg: every(10, minute), steps: []step{
		take(5), wait(50 * second), loseValue, oldTakes(8), take(1), wait(11 * second), free(1),
	}},
	// Its interval is all that the keep-alive time is: the limiter outlives the window.
	"beside a keep-alive time": {cfg: every(100, minute), steps: []step{
		oldTakes(93), loseConfig, trySet(true, keepAlive(100, minute, minute)), grants(7, 8), wait(50 * second), refuse(1), valueEnds(10 * second), wait(10*second + ms), free(100),
	}},
	"an end too far away comes nearer": {cfg: every(10, minute), version: windowed, steps: []step{
		take(1), func(p *play) { require.NoError(p, p.rdb.PExpire(p.Context(), p.keys().Value, minute+ms).Err()) },
		take(1), valueEnds(minute),
	}},
	"without an end when the limiter gets one": {cfg: every(10, minute), version: windowed, steps: []step{
		take(3), func(p *play) { p.rdb.Persist(p.Context(), p.keys().Value) }, expire(hour), valueEnds(minute),
	}},
	// What the Client has in use ends before the window, but gives it nothing.
	"when to ask again": {cfg: every(10, minute), steps: []step{take(5), wait(50 * second), loseValue, oldTakes(8), func(p *play) {
		d := limitertest.Take(p, p.l, 5)
		require.False(p, d.Granted)
		time.Sleep(d.RetryAfter + ms) // Redis keeps a key to the end of its last
	}, take(5)}},
	// A client that never comes back leaves nothing behind, migrated or not.
	"migrated, of a client that has gone": {cfg: perClient(10, minute), version: windowed, steps: []step{
		take(3), as(newest, migrate), wait(24 * hour), there(1),
	}},
	// A rate set soon after a window began makes another one that ends soon after it.
	"gives nothing back to one that began soon": {cfg: every(10, minute), version: windowed, steps: []step{func(p *play) {
		ctx, cancel := context.WithCancel(p.Context())
		p.rdb.AddHook(limitertest.BeforeScript(lua.Acquire, func() {
			cancel()
			time.Sleep(ms) // until the caller has gone
		}))
		p.rdb.AddHook(limitertest.BeforeScript(lua.GiveBack, sync.OnceFunc(func() {
			time.Sleep(20 * ms)
			times(1, set(every(10, minute)), take(10))(p)
		})))
		client := limitertest.NewClient(p, p.rdb, p.options(p.version)...)
		require.ErrorIs(p, limitertest.Second(client.RateLimiter(p.l.Name()).TryAcquire(ctx, 4, 0)), context.Canceled)
		require.NoError(p, client.Close(p.Context()))
	}, free(0)}},
	// Until the server has removed it, the value counts, also in the last millisecond of its window.
	"up to its last millisecond": {cfg: every(1, 5*ms), version: windowed, everywhere: true, steps: []step{func(p *play) {
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
	}}},
}

func TestWindows(t *testing.T) {
	t.Parallel()
	perform(t, windows)
}

// A value is a window if it ends in an interval at most, and more than a second before the
// rest of the limiter. Then Expire leaves its end alone.
func TestWindow_IsRecognized(t *testing.T) {
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

// Nothing reports whether a call without an answer has run. Who goes away while the request is on its way gets its
// permits back, in the window that they are of.
func TestWindow_WithoutAnAnswer(t *testing.T) {
	t.Parallel()
	redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
		w := limitertest.NewWire(t, rdb, limitertest.Hourly(10), false, rratelimiter.WithRedissonVersion(windowed))
		w.On(lua.Acquire, redistest.DropAnswer)
		require.ErrorIs(t, limitertest.Second(w.TryAcquire(t.Context(), 3, 0)), rratelimiter.ErrUnknownOutcome)
		assert.Equal(t, 1, w.Sent(lua.Acquire))
		left := func() int64 {
			value, _ := limitertest.StoredValue(t, w.Redis, w.Keys.Value)
			return value
		}
		assert.EqualValues(t, 7, left())
		got := w.CancelledInFlight(t, []int64{1, 4, 2}, []bool{false, true, true})
		assert.EqualValues(t, 1, limitertest.Sum(got))
		assert.Eventually(t, func() bool { return left() == 6 }, time.Minute, ms)
		limitertest.MustAcquire(t, w.Other, 6)
		limitertest.MustRefuse(t, w.Other, 1)
	})
}
