package faults_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// panicking is a hook that panics while it is on.
type panicking struct{ on atomic.Bool }

func (*panicking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if p.on.Load() {
			panic("a hook")
		}
		return next(ctx, cmd)
	}
}

func (p *panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if p.on.Load() {
			panic("a hook")
		}
		return next(ctx, cmds)
	}
}

// Whatever the call and its context, a hook that panics reaches its caller, by the
// panic or as an error, and leaves nothing behind that later calls would wait for.
func TestAPanicLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	calls := map[string]func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error{
		"TryAcquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.TryAcquire(ctx, 1, 0)
			return err
		},
		"TryAcquire with a timeout": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.TryAcquire(ctx, 1, time.Second)
			return err
		},
		"Acquire": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return l.Acquire(ctx, 1)
		},
		"Take": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.Take(ctx, 1)
			return err
		},
		"AvailablePermits": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := l.AvailablePermits(ctx)
			return err
		},
		"TryAcquireAll": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := c.TryAcquireAll(ctx, 1, 0, l, c.RateLimiter("{a}other", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))))
			return err
		},
		"Keyed": func(ctx context.Context, c *rratelimiter.Client, _ *rratelimiter.RateLimiter) error {
			_, err := c.Keyed("keyed:", limitertest.Every(1000, time.Hour)).Take(ctx, "key", 1)
			return err
		},
		"Release": func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			return l.Release(ctx, 1)
		},
		"Migrate": func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
			_, err := c.Migrate(ctx, l.Name())
			return err
		},
	}
	contexts := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"background": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithoutCancel(ctx), func() {}
		},
		"cancellable": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		},
	}
	for name, call := range calls {
		for kind, with := range contexts {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rdb, m := redistest.Mini(t)
					hooked := redistest.MiniClient(t, m, nil)
					hook := &panicking{}
					hooked.AddHook(hook)
					c := rratelimiter.New(hooked)
					l := c.RateLimiter("{a}", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
					require.NoError(t, l.Acquire(t.Context(), 100))
					ctx, cancel := with(t.Context())
					defer cancel()
					start := time.Now()
					for range 5 {
						hook.on.Store(true)
						var err error
						panicked := func() (value any) {
							defer func() { value = recover() }()
							err = call(ctx, c, l)
							return nil
						}()
						if panicked == nil {
							require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
							assert.Equal(t, name != "AvailablePermits", errors.Is(err, rratelimiter.ErrUnknownOutcome), "%v", err)
							require.ErrorContains(t, err, "a hook")
						} else {
							assert.Equal(t, "a hook", panicked)
						}
						hook.on.Store(false)
						require.NoError(t, call(ctx, c, l))
						require.NoError(t, l.Release(ctx, 1))
						require.NoError(t, l.Acquire(ctx, 1))
					}
					assert.Less(t, time.Since(start), 5*time.Second)
					synctest.Wait()
					assert.Zero(t, engine.Of(c).Groups())
					require.NoError(t, c.Close(t.Context()))
					assert.EqualValues(t, 1, rdb.Exists(t.Context(), "{a}").Val())
				})
			})
		}
	}
}

// panicsOn is a hook that panics on commands with a word.
type panicsOn struct{ word atomic.Pointer[string] }

func (p *panicsOn) check(cmds ...redis.Cmder) {
	word := p.word.Load()
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			if text, ok := arg.(string); ok && word != nil && strings.Contains(text, *word) {
				panic("a hook")
			}
		}
	}
}

func (p *panicsOn) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if word := p.word.Load(); word != nil && *word == "dial" {
			panic("a hook")
		}
		return next(ctx, network, addr)
	}
}

func (p *panicsOn) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.check(cmd)
		return next(ctx, cmd)
	}
}

func (p *panicsOn) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.check(cmds...)
		return next(ctx, cmds)
	}
}

// recovered runs f, and tells what it panicked with.
func recovered(f func() error) (panicked any, err error) {
	defer func() { panicked = recover() }()
	return nil, f()
}

// A panic reaches those in whose flight it happens, beside whomever they ask and
// wherever it is recovered, and later calls find all in order.
func TestAPanicBesideOthers(t *testing.T) {
	t.Parallel()
	for name := range questions(rratelimiter.New(nil), nil, "") {
		for kind, opt := range map[string]redis.Options{"": {}, ", ContextTimeoutEnabled": {ContextTimeoutEnabled: true}} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					_, m := redistest.Mini(t)
					rdb := redistest.MiniClient(t, m, &opt)
					hook := &panicsOn{}
					rdb.AddHook(limitertest.Slow(time.Millisecond))
					rdb.AddHook(hook)
					c := rratelimiter.New(rdb)
					ask := questions(c, rdb, "{bad}")[name]
					for _, key := range []string{"{bad}", "{good}"} {
						require.NoError(t, c.RateLimiter(key, rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))).Acquire(t.Context(), 1))
						require.NoError(t, ask(t.Context(), key))
					}
					require.NoError(t, c.RateLimiter("{bad}", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))).Acquire(t.Context(), 1))
					word := "{bad}"
					hook.word.Store(&word)
					var wg sync.WaitGroup
					for i := range 40 {
						wg.Go(func() {
							key := []string{"{bad}", "{good}", "{other}"}[i%3]
							ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
							defer cancel()
							switch i % 4 {
							case 0:
								ctx = context.WithoutCancel(ctx)
							case 1:
								ctx, cancel = context.WithCancel(ctx)
								defer cancel()
							}
							time.Sleep(time.Duration(i/8) * time.Millisecond)
							start := time.Now()
							panicked, err := recovered(func() error {
								if i%3 < 2 {
									return ask(ctx, key)
								}
								_, err := c.RateLimiter("{other}", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))).TryAcquire(ctx, 1, 0)
								return err
							})
							assert.LessOrEqual(t, time.Since(start), 3*time.Second)
							switch {
							case panicked != nil:
								assert.Equal(t, "a hook", panicked)
							case err != nil && !errors.Is(err, rratelimiter.ErrNotInitialized):
								assert.ErrorIs(t, err, rratelimiter.ErrUnavailable)
								assert.ErrorContains(t, err, "a hook")
							default:
								assert.False(t, key == "{bad}" && err == nil)
							}
						})
					}
					wg.Wait()
					hook.word.Store(nil)
					time.Sleep(5 * time.Second)
					start := time.Now()
					for _, key := range []string{"{bad}", "{good}"} {
						l := c.RateLimiter(key, rratelimiter.WithDefault(limitertest.Every(1000, time.Hour)))
						require.NoError(t, l.Acquire(t.Context(), 1))
						require.NoError(t, l.Release(t.Context(), 1))
						require.NoError(t, ask(t.Context(), key))
					}
					assert.Less(t, time.Since(start), 100*time.Millisecond)
					require.NoError(t, c.Close(t.Context()))
				})
			})
		}
	}
}

// go-redis turns what a dial hook panics with into an error.
func TestADialHookThatPanics(t *testing.T) {
	t.Parallel()
	for name := range questions(rratelimiter.New(nil), nil, "") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &panicsOn{}
			askBehind(t, name, nil, hook, func(t *testing.T, c *rratelimiter.Client, ask question) {
				word := "dial"
				hook.word.Store(&word)
				panicked, _ := recovered(func() error { return ask(t.Context(), "{key}") })
				assert.Nil(t, panicked)
				hook.word.Store(nil)
				require.NoError(t, c.RateLimiter("{key}", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))).Acquire(t.Context(), 1))
				require.NoError(t, ask(t.Context(), "{key}"))
			})
		})
	}
}

// The question what is wrong with a limiter may meet a hook that panics too, on
// whichever goroutine it is asked.
func TestAPanicWhileAnErrorIsExplained(t *testing.T) {
	t.Parallel()
	for kind, opt := range map[string]redis.Options{"by default": {}, "ContextTimeoutEnabled": {ContextTimeoutEnabled: true}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				direct, m := redistest.Mini(t)
				rdb := redistest.MiniClient(t, m, &opt)
				hook := &panicsOn{}
				rdb.AddHook(limitertest.Slow(time.Millisecond))
				rdb.AddHook(hook)
				c := limitertest.NewClient(t, rdb)
				l := c.RateLimiter("{wrong}")
				require.NoError(t, direct.Set(t.Context(), "{wrong}", "text", 0).Err())
				hook.word.Store(&lua.Types.SHA)
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						panicked, err := recovered(func() error { _, err := l.TryAcquire(t.Context(), 1, 0); return err })
						if panicked == nil && !errors.Is(err, rratelimiter.ErrUnknownOutcome) { // it may go with another's question
							assert.ErrorIs(t, err, rratelimiter.ErrCorrupt)
						}
						panicked, _ = recovered(func() error {
							_, err := c.TryAcquireAll(t.Context(), 1, 0, l, c.RateLimiter("{wrong}2", rratelimiter.WithDefault(limitertest.Every(10, time.Hour))))
							return err
						})
						assert.Nil(t, panicked)
						_, _ = recovered(func() error { return l.Release(t.Context(), 1) })
					})
				}
				wg.Wait()
			})
		})
	}
}
