package faults_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A repeat may take several script calls, before it finds the attempt and after.
func TestARepeatOfSeveralCalls(t *testing.T) {
	t.Parallel()
	inPart := []limitertest.Wish{limitertest.TryFor(300), limitertest.TakeFor(900), limitertest.TryFor(200)}

	t.Run("for newer members", func(t *testing.T) {
		t.Parallel()
		w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(2500), false)
		limitertest.MustAcquire(t, w.Other, 1400)
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				w.ManyRows(t, -time.Millisecond, 600)
			}
			return redistest.Pass
		})
		got := w.Ask(t, inPart...)
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.CheckHeld(t, 1400+600+500, "repeated")
	})

	// Those that have been looked at are released, so that the attempt stands
	// where the search has been.
	t.Run("for newer members that go", func(t *testing.T) {
		t.Parallel()
		w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(2500), false)
		limitertest.MustAcquire(t, w.Other, 1400)
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				w.ManyRows(t, -time.Millisecond, 600)
			case s == lua.Acquire && n == 3:
				w.NewestGo(t, 500)
				assert.NoError(t, w.Other.Release(t.Context(), 1000))
			}
			return redistest.Pass
		})
		got := w.Ask(t, inPart...)
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.CheckHeld(t, 400+100+500, "repeated")
	})

	t.Run("for members that ran out", func(t *testing.T) {
		t.Parallel()
		w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Every(2500, 3*time.Second), false)
		limitertest.MustAcquire(t, w.Other, 800)
		w.ManyRows(t, 2500*time.Millisecond, 600)
		runOut := time.Now().Add(505 * time.Millisecond)
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				time.Sleep(time.Until(runOut))
			}
			return redistest.Pass
		})
		got := w.Ask(t, limitertest.TryFor(300), limitertest.TakeFor(850), limitertest.TryFor(200))
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.CheckHeld(t, 800+500, "repeated")
	})

	t.Run("for a value that was lost", func(t *testing.T) {
		t.Parallel()
		w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(2500), false)
		limitertest.MustAcquire(t, w.Other, 1300)
		w.ManyRows(t, time.Minute, 600)
		w.OnScript(func(s *lua.Script, n int) redistest.Action {
			switch {
			case s == lua.Acquire && n == 1:
				return redistest.DropAnswer
			case s == lua.Acquire && n == 2:
				assert.NoError(t, w.Redis.Del(t.Context(), w.Keys.Value).Err())
			}
			return redistest.Pass
		})
		got := w.Ask(t, inPart...)
		assert.Equal(t, []int64{300, 0, 200}, got)
		w.CheckHeld(t, 1300+600+500, "repeated")
	})
}

func TestAcquireWithoutAnyAnswer(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]redistest.Action{
		"dropped": redistest.DropAnswer,
		"cut":     redistest.Cut,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
			w.OnScript(func(s *lua.Script, _ int) redistest.Action {
				if s == lua.Acquire {
					return action
				}
				return redistest.Pass
			})
			ok, err := w.TryAcquire(t.Context(), 3, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			assert.False(t, ok)
			_, err = w.Take(t.Context(), 2)
			require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			require.ErrorIs(t, w.Acquire(t.Context(), 2), rratelimiter.ErrUnknownOutcome)
			assert.LessOrEqual(t, w.Sent(lua.Acquire), 3*5)
			if action == redistest.Cut {
				w.CheckHeld(t, 0, "none arrived")
			} else {
				w.CheckHeld(t, 3+2+2, "each arrived, and counts once")
			}

			w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
			limitertest.MustAcquire(t, w.RateLimiter, 1)
		})
	}
}

// A write is not repeated once it may have run.
func TestWritesRunAtMostOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script *lua.Script
		write  func(ctx context.Context, w *limitertest.Wire) error
		ran    func(t *testing.T, w *limitertest.Wire) bool
	}{
		"Release": {
			lua.Release,
			func(ctx context.Context, w *limitertest.Wire) error { return w.Release(ctx, 2) },
			func(t *testing.T, w *limitertest.Wire) bool {
				return limitertest.InUse(t, w.Redis, w.Keys.Permits) == 4
			},
		},
		"TrySetRate": {
			lua.TrySetRate,
			func(ctx context.Context, w *limitertest.Wire) error {
				_, err := w.Client.RateLimiter(w.Name()+":new").TrySetRate(ctx, limitertest.Hourly(5))
				return err
			},
			func(t *testing.T, w *limitertest.Wire) bool {
				return w.Redis.Exists(t.Context(), w.Name()+":new").Val() == 1
			},
		},
		"SetRate": {
			lua.SetRate,
			func(ctx context.Context, w *limitertest.Wire) error { return w.SetRate(ctx, limitertest.Hourly(20)) },
			func(t *testing.T, w *limitertest.Wire) bool {
				return w.Redis.HGet(t.Context(), w.Name(), "rate").Val() == "20"
			},
		},
		"UpdateRate": {
			lua.SetRate,
			func(ctx context.Context, w *limitertest.Wire) error {
				_, err := w.UpdateRate(ctx, limitertest.Hourly(20), rratelimiter.KeepState())
				return err
			},
			func(t *testing.T, w *limitertest.Wire) bool {
				return w.Redis.HGet(t.Context(), w.Name(), "rate").Val() == "20"
			},
		},
		"Delete": {
			lua.Delete,
			func(ctx context.Context, w *limitertest.Wire) error {
				_, err := w.Delete(ctx)
				return err
			},
			func(t *testing.T, w *limitertest.Wire) bool { return w.Redis.Exists(t.Context(), w.Name()).Val() == 0 },
		},
		"Rename": {
			lua.Rename,
			func(ctx context.Context, w *limitertest.Wire) error { return w.Rename(ctx, w.Name()+":new") },
			func(t *testing.T, w *limitertest.Wire) bool { return w.Redis.Exists(t.Context(), w.Name()).Val() == 0 },
		},
		"Expire": {
			lua.Expire,
			func(ctx context.Context, w *limitertest.Wire) error {
				_, err := w.Expire(ctx, time.Hour)
				return err
			},
			func(t *testing.T, w *limitertest.Wire) bool { return w.Redis.TTL(t.Context(), w.Name()).Val() > 0 },
		},
		"ExpireAt": {
			lua.Expire,
			func(ctx context.Context, w *limitertest.Wire) error {
				_, err := w.ExpireAt(ctx, time.Now().Add(time.Hour))
				return err
			},
			func(t *testing.T, w *limitertest.Wire) bool { return w.Redis.TTL(t.Context(), w.Name()).Val() > 0 },
		},
		"ClearExpire": {
			lua.ClearExpire,
			func(ctx context.Context, w *limitertest.Wire) error {
				if err := w.Redis.Expire(ctx, w.Name(), time.Hour).Err(); err != nil {
					return err
				}
				_, err := w.ClearExpire(ctx)
				return err
			},
			func(t *testing.T, w *limitertest.Wire) bool { return w.Redis.TTL(t.Context(), w.Name()).Val() == -1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for fault, action := range map[string]func(w *limitertest.Wire) redistest.Action{
				"answer dropped":   func(*limitertest.Wire) redistest.Action { return redistest.DropAnswer },
				"answer swallowed": func(*limitertest.Wire) redistest.Action { return redistest.Swallow },
				"answer held":      func(w *limitertest.Wire) redistest.Action { return redistest.Pass.When(w.Held) },
				"request cut":      func(*limitertest.Wire) redistest.Action { return redistest.Cut },
				"request late":     func(w *limitertest.Wire) redistest.Action { return redistest.Late.When(w.Held) },
			} {
				wg.Go(func() {
					w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
					limitertest.MustAcquire(t, w.RateLimiter, 6)
					w.On(tt.script, action(w))
					err := tt.write(context.Background(), w)
					assert.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome, fault)
					assert.ErrorContains(t, err, w.Name(), fault)
					w.LetGo()
					w.Proxy.Settle(t)
					assert.Equal(t, 1, w.Sent(tt.script), "%s: it is not repeated", fault)
					assert.Equal(t, fault != "request cut", tt.ran(t, w), "%s: it ran", fault)
				})
			}
			wg.Wait()
		})
	}
}

// Reads are repeated.
func TestReadsOutliveLostAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script *lua.Script
		read   func(ctx context.Context, w *limitertest.Wire) (any, error)
		want   any
	}{
		"Config":           {lua.Config, func(ctx context.Context, w *limitertest.Wire) (any, error) { return w.Config(ctx) }, limitertest.Hourly(10)},
		"AvailablePermits": {lua.Available, func(ctx context.Context, w *limitertest.Wire) (any, error) { return w.AvailablePermits(ctx) }, int64(4)},
		"TTL": {lua.TTL, func(ctx context.Context, w *limitertest.Wire) (any, error) {
			_, expires, err := w.TTL(ctx)
			return expires, err
		}, false},
		"Exists": {lua.TTL, func(ctx context.Context, w *limitertest.Wire) (any, error) { return w.Exists(ctx) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := limitertest.NewWire(t, redistest.Shared(t), limitertest.Hourly(10), false)
			limitertest.MustAcquire(t, w.RateLimiter, 6)
			w.On(tt.script, redistest.DropAnswer, redistest.Swallow, redistest.Cut)
			got, err := tt.read(t.Context(), w)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
			w.CheckHeld(t, 6, "read")
		})
	}
}

func TestScriptsThatTheServerForgot(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	for name, tt := range map[string]struct {
		actions []redistest.Action // EVALSHA, EVAL, EVALSHA ...
		forget  int                // before that call, too
	}{
		"no fault":             {nil, 0},
		"answer dropped":       {[]redistest.Action{redistest.Pass, redistest.DropAnswer}, 0},
		"NOSCRIPT dropped":     {[]redistest.Action{redistest.DropAnswer}, 0},
		"cut":                  {[]redistest.Action{redistest.Pass, redistest.Cut, redistest.Pass, redistest.DropAnswer}, 0},
		"forgotten meanwhile":  {[]redistest.Action{redistest.Pass, redistest.DropAnswer}, 3},
		"forgotten, then lost": {[]redistest.Action{redistest.Pass, redistest.DropAnswer, redistest.Pass, redistest.DropAnswer}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := limitertest.NewWire(t, server, limitertest.Hourly(10), false)
			limitertest.MustAcquire(t, w.Other, 3)
			for _, wishes := range [][]limitertest.Wish{{limitertest.TryFor(2)}, {limitertest.TryFor(1), limitertest.TryFor(9), limitertest.TakeFor(1)}} {
				require.NoError(t, w.Redis.ScriptFlush(t.Context()).Err())
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					switch {
					case s != lua.Acquire:
						return redistest.Pass
					case n == tt.forget:
						assert.NoError(t, w.Redis.ScriptFlush(t.Context()).Err())
					}
					if n <= len(tt.actions) {
						return tt.actions[n-1]
					}
					return redistest.Pass
				})
				assert.EqualValues(t, 2, limitertest.Sum(w.Ask(t, wishes...)))
			}
			w.CheckHeld(t, 7, "acquired")

			require.NoError(t, w.Redis.ScriptFlush(t.Context()).Err())
			require.NoError(t, w.Release(t.Context(), 3), "NOSCRIPT says that it did not run")
			w.CheckHeld(t, 4, "released")
			require.NoError(t, w.Redis.ScriptFlush(t.Context()).Err())
			w.On(lua.Release, redistest.Pass, redistest.DropAnswer)
			require.ErrorIs(t, w.Release(t.Context(), 1), rratelimiter.ErrUnknownOutcome)
			w.CheckHeld(t, 3, "released once")
		})
	}
}
