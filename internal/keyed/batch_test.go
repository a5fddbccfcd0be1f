package keyed

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Close looks at a lane once. A request that it let in before and that gathers later fails too, and no other is let in.
func TestClose_FailsARequestThatComesMeanwhile(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	g := New(rratelimiter.New(rdb), Rule{Package: "desk", Most: 1}, nil)
	l := g.Lanes.To(t.Context(), "key")
	require.True(t, l.TryReserve(), "others are under way")
	moved, _, err := g.lock(new(lane.Lane), "key")
	require.NoError(t, err)
	moved.Unlock()
	b, gathers, err := g.lock(l, "key")
	require.NoError(t, err)
	assert.NotSame(t, moved, b, "the key's master is another by now")
	moved.Close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, g.Lanes.Close(over, nil), context.Canceled)
	b.Unlock()
	_, _, err = g.lock(l, "key")
	b.Lock()
	require.ErrorIs(t, err, limit.ErrClosed)
	r := &request{ctx: t.Context(), permits: 1}
	assert.Nil(t, b.join(r, gathers, false))
	require.True(t, r.Answered())
	r.Unlock()
	assert.ErrorIs(t, b.err, limit.ErrClosed)
	b.Close() // which comes by it late
	require.NoError(t, g.Lanes.Close(t.Context(), nil))
}
