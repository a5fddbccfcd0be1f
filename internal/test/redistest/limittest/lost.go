package limittest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A request whose answer is lost takes its permits once, or it is not repeated and
// its caller gets ErrUnknownOutcome.
func testAnswerLost(t *testing.T, k Kind) {
	limitertest.Bubbles(t, map[string]redistest.Action{
		"connection closed": redistest.DropAnswer, "never answered": redistest.Swallow,
	}, func(t *testing.T, fault redistest.Action) {
		h := newHeld(t, k, 10)
		for lost := range 3 {
			calls := 0
			h.proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if c.Name() != "evalsha" {
					return redistest.Pass
				}
				if calls++; calls <= lost+1 {
					return fault
				}
				return redistest.Pass
			})
			d, err := h.Take(t.Context(), "orders", 2)
			h.proxy.OnCommand(nil)
			h.proxy.Settle(t)
			if !k.Once {
				require.ErrorIs(t, err, limit.ErrUnknownOutcome)
				assert.ErrorContains(t, err, `orders"`)
				assert.Equal(t, 1, calls)
				assert.Zero(t, d)
				continue
			}
			require.NoError(t, err)
			assert.True(t, d.Granted)
			assert.Equal(t, int64(8-2*lost), d.Remaining)
			assert.Equal(t, lost+2, calls)
		}
		assert.Equal(t, int64(3), Take(t, h.other, "orders", 1).Remaining, "each has taken its two")
		// TakeUpTo says how many it has taken.
		h.proxy.OnCommand(redistest.Nth(1, "evalsha", fault))
		taken, _, err := h.TakeUpTo(t.Context(), "orders", 20)
		h.proxy.OnCommand(nil)
		h.proxy.Settle(t)
		if k.Once {
			require.NoError(t, err)
			assert.Equal(t, int64(3), taken)
		} else {
			require.ErrorIs(t, err, limit.ErrUnknownOutcome)
			assert.Zero(t, taken)
		}
		assert.False(t, Take(t, h.other, "orders", 1).Granted)
	})
}

// The same for callers who ask at once, on a connection that breaks again and again.
func testAnswersLostOfMany(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		const permits = 300
		h := newHeld(t, k, permits)
		calls := 0
		h.proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() != "evalsha" {
				return redistest.Pass
			}
			if calls++; calls%5 == 3 {
				return redistest.DropAnswer
			}
			return redistest.Pass.After(time.Millisecond)
		})
		var granted, unknown atomic.Int64
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 10 {
					switch d, err := h.Take(t.Context(), "orders", 1); {
					case err == nil && d.Granted:
						granted.Add(1)
					case err != nil:
						assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
						unknown.Add(1)
					}
				}
			})
		}
		wg.Wait()
		h.proxy.Settle(t)
		left := Take(t, h.other, "orders", 1).Remaining + 1
		if k.Once {
			assert.Zero(t, unknown.Load())
			assert.EqualValues(t, 200, granted.Load())
			assert.EqualValues(t, permits-200, left)
			return
		}
		assert.Positive(t, unknown.Load())
		assert.EqualValues(t, 200, granted.Load()+unknown.Load())
		assert.EqualValues(t, permits-200, left, "each has run once")
	})
}

// An attempt that comes late, after the one that repeated it was answered, takes
// nothing and makes nothing last longer.
func testLateCopy(t *testing.T, k Kind) {
	if !k.Once {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, k, 10)
		gate := make(chan struct{})
		h.proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Late.When(gate)))
		assert.Equal(t, int64(7), Take(t, h, "orders", 3).Remaining)
		time.Sleep(20 * time.Minute)
		close(gate)
		h.proxy.Settle(t)
		d := Take(t, h.other, "orders", 8)
		assert.False(t, d.Granted)
		assert.Equal(t, int64(7), d.Remaining)
		assert.Equal(t, 40*time.Minute, d.ResetAfter)
		assert.Equal(t, 40*time.Minute, d.RetryAfter)
	})
}

// A request that comes twice counts once, whichever answer is heard.
func testTwice(t *testing.T, k Kind) {
	if !k.Once {
		return // nothing tells two requests of a fixed window or a bucket apart
	}
	limitertest.Bubbles(t, map[string]redistest.Action{
		"first": redistest.Duplicate, "last": redistest.DuplicateLast,
	}, func(t *testing.T, twice redistest.Action) {
		h := newHeld(t, k, 10)
		h.proxy.OnCommand(limitertest.OnEach("evalsha", twice))
		for _, n := range []int64{3, 1, 1} {
			assert.True(t, Take(t, h, "orders", n).Granted)
		}
		taken, _, err := h.TakeUpTo(t.Context(), "orders", 20)
		require.NoError(t, err)
		assert.EqualValues(t, 5, taken)
		assert.True(t, Take(t, h, "all", 10).Granted)
		_, undo, err := h.TakeReturnable(t.Context(), "undone", 3)
		require.NoError(t, err)
		require.NoError(t, undo(t.Context()))
		h.proxy.Settle(t)
		for key, left := range map[string]int64{"orders": 0, "all": 0, "undone": 10} {
			d, err := h.other.Peek(t.Context(), key, 0)
			require.NoError(t, err)
			assert.Equal(t, left, d.Remaining, key)
		}
	})
}

// What can't have run is repeated, whatever the limiter: the server is not there
// for a moment.
func testNeverSent(t *testing.T, k Kind) {
	var dials atomic.Int64
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) <= 2 {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	rdb := redistest.Shared(t).Client(t, &redistest.Options{MaxRetries: -1, DialerRetries: 1, Dialer: dial})
	l := k.on(rdb, 10, time.Hour)
	assert.Equal(t, int64(9), Take(t, l, Key(t), 1).Remaining)
	assert.Greater(t, dials.Load(), int64(2))
}
