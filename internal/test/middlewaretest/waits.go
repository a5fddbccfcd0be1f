package middlewaretest

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A request waits as long as its context allows, and fails at once if that is known not to suffice. One that waits is one
// decision.
func (k Kind[O, K]) testWaits(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		says limit.Decision // until three seconds are over
		err  error
		in   time.Duration // the request's deadline; below 0, when its caller goes
		opts []O
		took time.Duration
		want Verdict
	}{
		"for ever":        {says: limit.Decision{Limit: 1, RetryAfter: second}, took: 3 * second, want: Passed},
		"names no time":   {says: limit.Decision{Limit: 1}, took: 3 * second, want: Passed},
		"long enough":     {says: limit.Decision{Limit: 1, RetryAfter: second}, in: 5 * second, took: 3 * second, want: Passed},
		"too short":       {says: limit.Decision{Limit: 1, RetryAfter: second}, in: 2500 * time.Millisecond, took: 2 * second, want: Refused},
		"the caller goes": {says: limit.Decision{Limit: 1, RetryAfter: second}, in: -1500 * time.Millisecond, took: 1500 * time.Millisecond, want: Gone},
		"never":           {says: limit.Decision{Limit: 1, RetryAfter: math.MaxInt64}, want: Refused},
		"a limit of 0":    {says: limit.Decision{RetryAfter: time.Minute}, want: Refused},
		"too costly":      {err: limit.ErrPermitsExceedRate, want: Refused},
		"in shadow":       {says: limit.Decision{Limit: 1, RetryAfter: second}, opts: []O{k.WithShadow()}, want: Passed},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			limiter := &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				if time.Since(start) >= 3*second {
					return limit.Decision{Granted: true, Limit: 1}, nil
				}
				return c.says, c.err
			}}
			r := k.rig(t, limiter, append(c.opts, k.WithWait())...)
			ctx, cancel := context.WithCancel(t.Context())
			if c.in > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.in)
			} else if c.in < 0 {
				time.AfterFunc(-c.in, cancel)
			}
			defer cancel()
			got := r.handle(ctx, "")
			assert.Equal(t, c.want, got.Verdict, name)
			assert.Equal(t, c.took, time.Since(start), name)
			if c.want == Refused {
				assert.Equal(t, name == "too short", got.RetryAfter == second, name)
			}
			if name == "names no time" {
				assert.Len(t, limiter.Asked(), 31, "it is asked a few times a second")
			}
			decisions := r.told.Decisions()
			require.Len(t, decisions, 1, name)
			if c.want == Passed {
				assert.Equal(t, map[bool]limit.Outcome{true: limit.Refused, false: limit.Granted}[name == "in shadow"], decisions[0].Outcome)
				assert.Equal(t, c.took, decisions[0].Waited)
			}
		})
	}
}

// A KeyedLimiter waits by itself: in order, and woken by a release. A request whose deadline comes too early ends at once,
// with what a refusal says.
func (k Kind[O, K]) testWaitsInOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(1))
		handle := k.Wrap(t, keyed, k.WithWait(), k.WithKey(k.Text("a", nil)))
		require.NoError(t, keyed.Acquire(t.Context(), k.Prefix+"a", 1))
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				assert.Equal(t, Passed, handle(t.Context(), "").Verdict)
				order <- i
			}()
			time.Sleep(time.Second)
		}
		start := time.Now()
		require.NoError(t, keyed.Release(t.Context(), k.Prefix+"a", 1))
		assert.Equal(t, 0, <-order)
		assert.Zero(t, time.Since(start), "at once")
		assert.Equal(t, 1, <-order)
		assert.Equal(t, 2, <-order)
		assert.Equal(t, 2*time.Minute, time.Since(start).Round(time.Second))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		assert.Equal(t, time.Minute, handle(ctx, "").RetryAfter.Round(time.Second))
		assert.Zero(t, time.Since(start), "it is known")
	})
}

// A policy in shadow shows in no figures, and counts as refused what the others let pass. One that fails lets requests
// pass, and the error handler learns of it. Requests that wait do not wait for one.
func (k Kind[O, K]) testShadowPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		says    *Fake
		outcome limit.Outcome
	}{
		"down":       {Says(limit.Decision{}, errDown), limit.Failed},
		"refuses":    {Says(limit.Decision{Limit: 1, RetryAfter: time.Minute}, nil), limit.Refused},
		"never":      {Says(limit.Decision{}, nil), limit.Refused},
		"too costly": {Says(limit.Decision{Limit: 1}, limit.ErrPermitsExceedRate), limit.TooCostly},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := []O{k.WithPolicy(Policy{Name: "watches", Limiter: c.says, Shadow: true})}
			if k.WithWait != nil {
				opts = append(opts, k.WithWait())
			}
			r := k.rig(t, Budget(1, math.MaxInt64), opts...)
			var heard []error
			if name == "down" {
				heard = []error{errDown}
			}
			start := time.Now()
			assert.Equal(t, k.figures(1, 0), r.ask(Passed, heard...).Figures, name)
			assert.Zero(t, time.Since(start), name)
			assert.Equal(t, k.figures(1, 0), r.handle(t.Context(), "").Figures, name)
			var shadows []limit.Outcome
			for _, d := range r.told.Decisions() {
				if d.Limiter == "watches" {
					assert.True(t, d.Shadow)
					shadows = append(shadows, d.Outcome)
				}
			}
			assert.Equal(t, []limit.Outcome{c.outcome}, shadows, "%s: only of a request that the other let pass", name)
		})
	}
}
