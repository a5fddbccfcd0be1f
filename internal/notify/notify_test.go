package notify_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/notify"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const (
	channel = "{orders}:changed"
	timeout = 3 * time.Second
)

// host counts what its Notices do.
type host struct {
	*notify.Notices

	active atomic.Int32
	closed atomic.Bool
	heard  redistest.List[string]
}

func newHost(t *testing.T, rdb *redis.Client, id string) *host {
	t.Helper()
	h := &host{}
	h.Notices = notify.New(rdb, timeout, notify.Host{
		ID: []byte(id),
		Begin: func() error {
			if h.closed.Load() {
				return errors.New("closed")
			}
			h.active.Add(1)
			return nil
		},
		End:   func() { h.active.Add(-1) },
		Wants: func(string) bool { return true },
		Heard: h.heard.Add,
	})
	t.Cleanup(h.Stop)
	return h
}

// requireState compares calls under way and messages received, once nothing moves.
func (h *host) requireState(t *testing.T, active int32, heard ...string) {
	t.Helper()
	synctest.Wait()
	assert.Equal(t, active, h.active.Load())
	assert.Equal(t, heard, h.heard.All())
}

func channels(t *testing.T, rdb *redis.Client) []string {
	t.Helper()
	synctest.Wait()
	all, err := rdb.PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	return all
}

func TestCan(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	assert.True(t, notify.Can(rdb))
	assert.True(t, notify.Can(&redis.ClusterClient{}))
	assert.True(t, notify.Can(&redis.Ring{}))
	assert.False(t, notify.Can(struct{ redis.Scripter }{rdb}))
}

func TestChannel(t *testing.T) {
	t.Parallel()
	assert.Equal(t, channel, notify.Channel("{orders}:value"))
}

func TestOthersHearWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		a, b := newHost(t, rdb, "a"), newHost(t, rdb, "b")
		for _, h := range []*host{a, b} {
			h.Listen(channel, "orders", time.Now().Add(time.Hour))
		}
		assert.Equal(t, []string{channel}, channels(t, rdb))
		a.Announce(channel)
		a.Announce("{sales}:changed")
		a.requireState(t, 1) // it knows
		b.requireState(t, 1, "orders")
	})
}

// A subscription lasts a little longer than the last who wants it, and no longer.
func TestASubscriptionEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		h := newHost(t, rdb, "a")
		h.Listen(channel, "orders", time.Now().Add(3*time.Second))
		h.Listen(channel, "orders", time.Now().Add(10*time.Second))
		h.Listen("{sales}:changed", "sales", time.Now().Add(5*time.Second))
		assert.Len(t, channels(t, rdb), 2)
		time.Sleep(8 * time.Second)
		assert.Equal(t, []string{channel}, channels(t, rdb))
		time.Sleep(5 * time.Second)
		assert.Empty(t, channels(t, rdb))
		h.requireState(t, 0)
		h.Listen(channel, "orders", time.Now().Add(time.Second))
		assert.Len(t, channels(t, rdb), 1)
		time.Sleep(5 * time.Second)
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		h := newHost(t, rdb, "a")
		h.Listen(channel, "orders", time.Now().Add(time.Hour))
		assert.Len(t, channels(t, rdb), 1)
		h.Stop()
		assert.Empty(t, channels(t, rdb))
		h.requireState(t, 0)
		h.closed.Store(true)
		h.Listen(channel, "orders", time.Now().Add(time.Hour))
		h.Announce(channel)
		assert.Empty(t, channels(t, rdb))
	})
}
