package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Who wants more than a lease has left ends it. Its rest goes back before Redis decides, which a remembered refusal
// knows nothing of.
func TestLease_RestGoesBackBeforeALargerRequest(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(e *Engine, l *Limiter, permits int64) bool{
		"alone": func(e *Engine, l *Limiter, permits int64) bool { return e.TakeLeased(t.Context(), l, permits) },
		"with figures": func(e *Engine, l *Limiter, permits int64) bool {
			return e.FromMemory(t.Context(), l, &decide.Ask{Permits: permits, Figures: true}, &decide.Answer{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, rdb redistest.Client) {
				const rate = 100_000
				l := testLimiter("a", "100000 3600000 0 0")
				l.Lease, l.Refusals = &lease.Planner{Most: rate}, e.NewRefusals(l.Config)
				taken := int64(0)
				for ; !l.prefetched.lasts(); taken++ {
					_, err := acquire(t.Context(), e, l, decide.Ask{Permits: 1})
					require.NoError(t, err)
				}
				more := l.prefetched.current.Load().Left() + 1
				l.Refusals.Note(1, time.Now(), l.Refusals.Now(), limit.Decision{Limit: rate, RetryAfter: time.Hour}, time.Time{})

				assert.False(t, ask(e, l, more))
				assert.Nil(t, l.prefetched.current.Load())
				assert.False(t, e.FromMemory(t.Context(), l, &decide.Ask{Permits: more}, &decide.Answer{}), "the refusal is too old")
				a, err := acquire(t.Context(), e, l, decide.Ask{Permits: more})
				require.NoError(t, err)
				assert.True(t, a.Granted)
				require.NoError(t, e.Close(t.Context()))
				other := newTestEngine(rdb)
				free, err := other.Available(t.Context(), l)
				require.NoError(t, err)
				assert.Equal(t, rate-taken-more, free)
				assert.NoError(t, other.Close(t.Context()))
			})
		})
	}
}

// A caller who ends a lease by asking for more than is left has the rest: it goes back also if the Engine closes meanwhile.
func TestLease_RestGoesBackThoughACallerFindsItDuringClose(t *testing.T) {
	t.Parallel()
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, rdb redistest.Client) {
		l := testLimiter("a", "1000 3600000 0 0 1")
		l.Lease = &lease.Planner{Most: 100}
		taken := int64(0)
		for !l.prefetched.lasts() {
			if !e.TakeLeased(t.Context(), l, 1) {
				a, err := acquire(t.Context(), e, l, decide.Ask{Permits: 1})
				require.NoError(t, err)
				require.True(t, a.Granted)
			}
			taken++
			require.Less(t, taken, int64(500))
			time.Sleep(time.Millisecond)
		}
		left := l.prefetched.current.Load().Left()
		require.NoError(t, e.lanes.Close(t.Context(), func() {
			assert.False(t, e.TakeLeased(t.Context(), l, left+1))
			for _, q := range e.queues.All() {
				e.withQueue(q.config, (*queue).close)
			}
		}))
		other := newTestEngine(rdb)
		free, err := other.Available(t.Context(), l)
		require.NoError(t, err)
		assert.Equal(t, 1000-taken, free)
		require.NoError(t, other.Close(t.Context()))
	})
}
