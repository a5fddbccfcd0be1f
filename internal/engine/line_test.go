package engine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A round of the line that takes two batches ends where those of the second have
// gone before it left.
func TestARoundWhoseLastHaveGoneEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, f := farEngine(t, 2)
		f.takes(0)
		const cfg = "2 10000 0 0"
		first, second := testLimiter("a", cfg), testLimiter("a", "3 10000 0 0")
		_, _, err := e.Acquire(t.Context(), first, Wish{Permits: 1})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			a, _, err := e.Acquire(t.Context(), first, Wish{Permits: 2, Waits: true})
			assert.NoError(t, err)
			assert.True(t, a.Granted)
			assert.Less(t, time.Since(start), 16*time.Second)
		})
		synctest.Wait()
		wg.Go(func() { // in a batch of its own, for its default
			_, _, err := e.Acquire(ctx, second, Wish{Permits: 2, Waits: true})
			assert.ErrorIs(t, err, context.Canceled)
		})
		time.Sleep(5 * time.Second)
		_, _, err = e.Acquire(t.Context(), first, Wish{Permits: 1})
		require.NoError(t, err)

		// The first has asked for an interval at 10 s: a round asks for both.
		f.takes(900 * time.Millisecond)
		time.Sleep(5*time.Second + 100*time.Millisecond)
		assert.NoError(t, e.takeTurn(t.Context(), first, &turn{run: func(context.Context, *turn) error {
			cancel() // the first batch has landed
			synctest.Wait()
			return nil
		}}))
		wg.Wait()
		assert.Zero(t, e.Active())
	})
}

// A grant whose answer is lost is looked for though its caller's patience has ended
// meanwhile, and goes back.
func TestALostGrantOfOneWhoHasGoneGoesBack(t *testing.T) {
	t.Parallel()
	impatient := Wish{Permits: 4, Waits: true, Timeout: 100 * time.Millisecond}
	for name, ask := range map[string]func(ctx context.Context, e *Engine, a, b *Limiter) error{
		"one": func(ctx context.Context, e *Engine, a, _ *Limiter) error {
			_, _, err := e.Acquire(ctx, a, impatient)
			return err
		},
		"several": func(ctx context.Context, e *Engine, a, b *Limiter) error {
			_, err := e.AcquireAll(ctx, []*Limiter{a, b}, impatient.Permits, impatient.Timeout)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, f := farEngine(t, 2)
				f.takes(0)
				f.loses = 1
				a, b := testLimiter("{a}1", hourly), testLimiter("{a}2", hourly)
				err := ask(t.Context(), e, a, b)
				require.ErrorIs(t, err, limit.ErrUnknownOutcome)
				time.Sleep(script.DefaultTimeout)
				assert.Zero(t, e.Active())
				for _, l := range []*Limiter{a, b} {
					answer, _, err := e.Acquire(t.Context(), l, Wish{Permits: 100})
					require.NoError(t, err)
					assert.True(t, answer.Granted, l.Name)
				}
			})
		})
	}
}
