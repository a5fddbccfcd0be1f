package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
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
	})
}

func TestUndo_WithAnEndedContextKeepsNoCloseWaiting(t *testing.T) {
	t.Parallel()
	onSlow(t, nil, func(t *testing.T, e *Engine, _ *slow, _ redistest.Client) {
		a, err := acquire(t.Context(), e, testLimiter("a", hourly), outage.Ask{Permits: 1, Undo: true})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Undo(ctx), context.Canceled)
	})
}
