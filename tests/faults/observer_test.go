package faults_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
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

// A server that hangs is told of once, and that it answers again.
func TestObserverIsToldOfAHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		hook := &hanging{}
		rdb.AddHook(hook)
		r, said := &limitertest.Recorder{}, &bytes.Buffer{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(r), rratelimiter.WithLogger(slog.New(slog.NewTextHandler(said, nil))))
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		limitertest.MustAcquire(t, l, 1)
		r.Decisions()

		hook.hang(true)
		for range 3 {
			_, err := l.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
		}
		for _, d := range r.Decisions() {
			assert.Equal(t, limit.Failed, d.Outcome)
			assert.Equal(t, limit.KindUnknownOutcome, d.Kind)
			assert.LessOrEqual(t, d.Waited, 3*time.Second)
		}
		hook.hang(false)
		time.Sleep(time.Minute)
		limitertest.MustAcquire(t, l, 1)
		synctest.Wait()

		failed := 0
		for _, f := range r.Flights() {
			if f.Err != nil {
				failed++
			}
		}
		assert.Positive(t, failed)
		assert.Equal(t, []limit.Event{{Kind: limit.ServerSilent}, {Kind: limit.ServerAnswers}}, r.Events())
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		require.Len(t, lines, 2)
		assert.Contains(t, lines[0], `level=WARN msg="rratelimiter: server silent"`)
		assert.Contains(t, lines[1], `level=INFO msg="rratelimiter: server answers"`)
	})
}

// Permits that can't be given back, since their server answers nobody, are told of.
func TestObserverIsToldOfPermitsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		hook := &hanging{}
		r := &limitertest.Recorder{}
		client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(r))
		l := client.RateLimiter("orders", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
		limitertest.MustAcquire(t, l, 1)

		// The answer is a grant, and comes when its caller has gone and the server hangs.
		rdb.AddHook(&lateAnswer{then: hook})
		rdb.AddHook(hook)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		synctest.Wait() // the flight of the first call is over
		require.ErrorIs(t, l.Acquire(ctx, 7), context.DeadlineExceeded)
		time.Sleep(time.Minute)
		synctest.Wait()
		var given []limit.Event
		for _, e := range r.Events() {
			if e.Kind == limit.PermitsGivenUp {
				given = append(given, e)
			}
		}
		require.Len(t, given, 1)
		assert.Equal(t, "orders", given[0].Limiter)
		assert.Equal(t, int64(7), given[0].Permits)
		assert.Error(t, given[0].Err)
	})
}

// lateAnswer is a hook that keeps the first answer back, and has the server hang
// meanwhile.
type lateAnswer struct {
	redistest.Hook
	once sync.Once
	then *hanging
}

func (h *lateAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.once.Do(func() {
			h.then.hang(true)
			time.Sleep(700 * time.Millisecond) // the attempt has a second
		})
		return err
	}
}
