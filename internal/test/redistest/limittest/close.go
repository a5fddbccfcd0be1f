package limittest

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// gate holds what a Redis client sends while it is shut.
type gate struct{ opened atomic.Pointer[chan struct{}] }

func newGate(rdb redistest.Client) *gate {
	g := &gate{}
	rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		if opened := g.opened.Load(); opened != nil {
			<-*opened
		}
		return next()
	}))
	return g
}

func (g *gate) shut() {
	opened := make(chan struct{})
	g.opened.Store(&opened)
}

// open lets pass what is held, and nothing more if the gate is shut again at once.
func (g *gate) open() { close(*g.opened.Swap(nil)) }

func (g *gate) step() {
	held := g.opened.Load()
	g.shut()
	close(*held)
	synctest.Wait()
}

// background starts a call, and returns where its error is once it has ended.
func background(call func() error) *atomic.Pointer[error] {
	var ended atomic.Pointer[error]
	go func() {
		err := call()
		ended.Store(&err)
	}()
	synctest.Wait()
	return &ended
}

// closing runs test in a bubble, with a limiter of 10 permits an hour whose scripts the server knows.
func (k Kind) closing(t *testing.T, test func(t *testing.T, client *rratelimiter.Client, rdb redistest.Client, l Limiter)) {
	t.Helper()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		client := limitertest.OpenClient(rdb)
		l := k.New(client, 10, time.Hour)
		_, giveBack, err := l.TakeReturnable(t.Context(), "warm", 1)
		require.NoError(t, err)
		require.NoError(t, giveBack(t.Context()))
		test(t, client, rdb, l)
	})
}

// Callers whose requests have gathered fail, those whose requests are under way get their answer, and later calls fail.
func testClose(t *testing.T, k Kind) {
	k.closing(t, func(t *testing.T, client *rratelimiter.Client, rdb redistest.Client, l Limiter) {
		_, giveBack, err := l.TakeReturnable(t.Context(), "before", 1)
		require.NoError(t, err)
		g := newGate(rdb)
		g.shut()
		take := func(key string) *atomic.Pointer[error] {
			return background(func() error {
				d, err := l.Take(t.Context(), key, 1)
				assert.Equal(t, err == nil, d.Granted)
				return err
			})
		}
		underWay := []*atomic.Pointer[error]{take("a"), take("b")}
		gathered := []*atomic.Pointer[error]{take("c"), take("c"), take("d")}
		closed := background(func() error { return client.Close(t.Context()) })
		for _, ended := range gathered {
			if assert.NotNil(t, ended.Load()) {
				require.ErrorIs(t, *ended.Load(), limit.ErrClosed)
			}
		}
		assert.Nil(t, closed.Load(), "two calls are under way")
		_, err = l.Take(t.Context(), "a", 1)
		require.ErrorIs(t, err, limit.ErrClosed)
		_, err = l.Peek(t.Context(), "a", 1)
		require.ErrorIs(t, err, limit.ErrClosed)
		_, _, err = l.TakeUpTo(t.Context(), "a", 1)
		require.ErrorIs(t, err, limit.ErrClosed)
		require.ErrorIs(t, l.Reset(t.Context(), "a"), limit.ErrClosed)
		require.ErrorIs(t, giveBack(t.Context()), limit.ErrClosed)

		g.open()
		synctest.Wait()
		for _, ended := range append(underWay, closed) {
			if assert.NotNil(t, ended.Load()) {
				assert.NoError(t, *ended.Load())
			}
		}
		assert.NoError(t, client.Close(t.Context()))
	})
}

// What a caller who has gone was granted goes back before Close returns, as does what is given back meanwhile.
func testCloseAwaitsGiveBacks(t *testing.T, k Kind) {
	k.closing(t, func(t *testing.T, client *rratelimiter.Client, rdb redistest.Client, l Limiter) {
		_, giveBack, err := l.TakeReturnable(t.Context(), "returned", 4)
		require.NoError(t, err)
		g := newGate(rdb)
		g.shut()
		ctx, leave := context.WithCancel(t.Context())
		left := background(func() error {
			_, err := l.Take(ctx, "left", 4)
			return err
		})
		returned := background(func() error { return giveBack(ctx) })
		leave()
		synctest.Wait()
		for _, ended := range []*atomic.Pointer[error]{left, returned} {
			if assert.NotNil(t, ended.Load()) {
				require.ErrorIs(t, *ended.Load(), context.Canceled)
			}
		}
		closed := background(func() error { return client.Close(t.Context()) })
		g.step() // what was sent arrives, and what the caller who left was granted goes back
		assert.Nil(t, closed.Load(), "a give-back is under way")
		g.open()
		synctest.Wait()
		if assert.NotNil(t, closed.Load()) {
			assert.NoError(t, *closed.Load())
		}
		after := k.on(rdb, 10, time.Hour)
		for _, key := range []string{"left", "returned"} {
			d, err := after.Peek(t.Context(), key, 0)
			require.NoError(t, err)
			assert.Equal(t, int64(10), d.Remaining, key)
		}
	})
}

// The Client's observer, policy and shadow are the limiter's too, and its name mapper is not.
func testOptionsOfTheClient(t *testing.T, k Kind) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		told := &limitertest.Recorder{}
		mapped := rratelimiter.WithNameMapper(func(name string) string {
			assert.True(t, k.Keyed, "the mapper was asked for %q", name)
			return name
		})
		client := limitertest.OpenClient(rdb, rratelimiter.WithObserver(told), rratelimiter.WithFailure(limit.FailLocal(0.5)), mapped)
		l, watches := k.New(client, 10, time.Hour, rratelimiter.WithName("mine")), k.New(client, 10, time.Hour, rratelimiter.WithShadow())
		assert.Equal(t, 10, Grants(t, l, "ann", 11))
		assert.True(t, Take(t, watches, "ann", 1).Granted)
		for _, d := range told.Decisions()[:11] {
			assert.Equal(t, "mine", d.Limiter)
			assert.False(t, d.Shadow)
		}
		rdb.AddHook(redistest.Hook(func(context.Context, []redis.Cmder, func() error) error { return redis.ErrPoolTimeout }))
		assert.Equal(t, 5, Grants(t, l, "bob", 11), "half of the limit")
	})
}

// Without a replica a grant does not count, and goes back; a refusal does.
func testNotReplicated(t *testing.T, k Kind) {
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t) // a server whose clock stands still would wait for ever
		rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			if last, ok := cmds[len(cmds)-1].(interface{ SetVal(any) }); ok && cmds[len(cmds)-1].Name() == "wait" {
				cmds[len(cmds)-1].SetErr(nil)
				last.SetVal(int64(0))
				err = nil
			}
			return err
		}))
		l := k.New(limitertest.NewClient(t, rdb, rratelimiter.WithReplicas(1, time.Millisecond)), 10, time.Hour)
		_, err := l.Take(t.Context(), "ann", 4)
		require.ErrorIs(t, err, limit.ErrNotReplicated)
		taken, d, err := l.TakeUpTo(t.Context(), "ann", 4)
		require.ErrorIs(t, err, limit.ErrNotReplicated)
		assert.Zero(t, d)
		assert.Zero(t, taken)
		synctest.Wait()
		d, err = l.Peek(t.Context(), "ann", 0)
		require.NoError(t, err)
		assert.Equal(t, int64(10), d.Remaining)
		assert.Equal(t, 10, Grants(t, k.on(rdb, 10, time.Hour), "ann", 10))
		assert.False(t, Take(t, l, "ann", 1).Granted)
	})
}
