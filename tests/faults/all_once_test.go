package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A bundleWire is a wire to several limiters that share a hash tag.
type bundleWire struct {
	*limitertest.Wire // to the first

	each   []*limitertest.Wire // what CheckHeld needs of each
	family *limitertest.Family // through the proxy
	others *limitertest.Family // another Client's, past it
}

// newBundleWire returns three limiters of that rate; the second is of type
// PerClient, and the third is set up by its first use.
func newBundleWire(t testing.TB, rate int64, version string) *bundleWire {
	t.Helper()
	server := redistest.Shared(t)
	opts := []rratelimiter.Option{rratelimiter.WithRedissonVersion(version), rratelimiter.WithClientID("the-client")}
	w := &bundleWire{Wire: limitertest.NewWireOf(t, server, limitertest.Hourly(rate), false, 20, opts...)}
	other := limitertest.NewClient(t, w.Redis, opts...)
	w.family = &limitertest.Family{Client: w.Client}
	w.others = &limitertest.Family{Client: other}
	for i, name := range []string{w.Name(), "{" + w.Name() + "}:own", "{" + w.Name() + "}:default"} {
		set := redisson.KeysOf(name, "the-client")
		l := w.Client.RateLimiter(name)
		switch i {
		case 1:
			limitertest.MustTrySetRate(t, other.RateLimiter(name), limitertest.PerClient(rate, time.Hour))
			set.Value, set.Permits = set.ClientValue, set.ClientPermits
		case 2:
			l = w.Client.RateLimiter(name, rratelimiter.WithDefault(limitertest.Hourly(rate)))
		}
		w.family.Limiters = append(w.family.Limiters, l)
		w.others.Limiters = append(w.others.Limiters, other.RateLimiter(name, rratelimiter.WithDefault(limitertest.Hourly(rate))))
		w.each = append(w.each, &limitertest.Wire{RateLimiter: l, Proxy: w.Proxy, Redis: w.Redis, Keys: set, Rate: rate})
	}
	return w
}

// use has another Client take permits of each limiter; 0 for none.
func (w *bundleWire) use(t testing.TB, permits [3]int64) {
	t.Helper()
	for i, n := range permits {
		if n > 0 {
			limitertest.MustAcquire(t, w.others.Limiters[i], n)
		}
	}
}

// TryAll asks for permits of all.
func (w *bundleWire) tryAll(ctx context.Context, permits int64, timeout time.Duration) (int64, error) {
	ok, err := w.Client.TryAcquireAll(ctx, permits, timeout, w.family.Limiters...)
	return limitertest.Counted(permits, ok, err)
}

// checkAll is CheckHeld of each.
func (w *bundleWire) checkAll(t testing.TB, held [3]int64, when string) bool {
	t.Helper()
	ok := true
	for i, each := range w.each {
		ok = each.CheckHeld(t, held[i], fmt.Sprintf("%s, limiter %d", when, i)) && ok
	}
	return ok
}

func plus(a [3]int64, n int64) [3]int64 {
	for i := range a {
		a[i] += n
	}
	return a
}

// Where one answer is lost, late or doubled, all limiters or none have been
// charged, once.
func TestAllHappensOnce(t *testing.T) {
	t.Parallel()
	faulty := maps.Clone(lossy)
	maps.Copy(faulty, tardy)
	faulty["request doubled"] = meet(redistest.Duplicate)
	for name, faults := range faulty {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				if name == "request doubled" && layout != "D2" && layout != "D2 merged" {
					return // the copy is told that the id is another's, and nobody listens
				}
				var wg sync.WaitGroup
				for what, tt := range map[string]struct {
					inUse   [3]int64
					permits int64
					timeout time.Duration
					want    int64
				}{
					"granted":               {[3]int64{2, 0, 0}, 3, 0, 3},
					"granted all":           {[3]int64{}, 10, 0, 10},
					"refused by the first":  {[3]int64{9, 1, 0}, 3, 0, 0},
					"refused by the second": {[3]int64{0, 9, 3}, 3, 0, 0},
					"refused by the last":   {[3]int64{1, 2, 9}, 3, 0, 0},
					"refused by all":        {[3]int64{9, 9, 9}, 3, 0, 0},
					"waiting":               {[3]int64{9, 1, 2}, 3, limitertest.Outlasts, 0},
				} {
					wg.Go(func() {
						w := newBundleWire(t, 10, version)
						w.use(t, tt.inUse)
						w.On(lua.AcquireAll, faults(w.Held)...)
						got, err := w.tryAll(context.Background(), tt.permits, tt.timeout)
						assert.NoError(t, err, what)
						assert.Equal(t, tt.want, got, what)
						w.LetGo()
						w.checkAll(t, plus(tt.inUse, got), what)
					})
				}
				wg.Wait()
			})
		}
	}
}

// What becomes of the limiters between an attempt whose request is late and the
// late request must not let that take permits for nobody.
func TestARequestForAllThatIsLateTakesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		inUse [3]int64
		then  func(t *testing.T, w *bundleWire) (given [3]int64)
	}{
		"refused, released since": {[3]int64{2, 9, 0}, func(t *testing.T, w *bundleWire) [3]int64 {
			require.NoError(t, w.others.Limiters[1].Release(t.Context(), 8))
			return [3]int64{0, 8, 0}
		}},
		"granted, some released of one": {[3]int64{2, 0, 1}, func(t *testing.T, w *bundleWire) [3]int64 {
			require.NoError(t, w.family.Limiters[0].Release(t.Context(), 2))
			return [3]int64{2, 0, 0}
		}},
		"granted, all released": {[3]int64{2, 0, 1}, func(t *testing.T, w *bundleWire) [3]int64 {
			for _, l := range w.family.Limiters {
				require.NoError(t, l.Release(t.Context(), 3))
			}
			return [3]int64{3, 3, 3}
		}},
		"granted, one deleted": {[3]int64{0, 0, 0}, func(t *testing.T, w *bundleWire) [3]int64 {
			require.NoError(t, w.others.Limiters[2].SetRate(t.Context(), limitertest.Hourly(10)))
			return [3]int64{0, 0, 3}
		}},
		"granted, all released, one forgotten": {[3]int64{0, 0, 0}, func(t *testing.T, w *bundleWire) [3]int64 {
			for i, l := range w.family.Limiters {
				require.NoError(t, l.Release(t.Context(), 3))
				if i != 1 {
					require.NoError(t, w.Redis.HDel(t.Context(), l.Name(), "answered").Err())
				}
			}
			return [3]int64{3, 3, 3}
		}},
	} {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				for _, answered := range []bool{false, true} {
					w := newBundleWire(t, 10, version)
					w.use(t, tt.inUse)
					late := []redistest.Action{redistest.Late.When(w.Held)}
					if answered {
						late = append([]redistest.Action{redistest.DropAnswer}, late...) // it is a repeat that is late
					}
					w.On(lua.AcquireAll, late...)
					got, err := w.tryAll(t.Context(), 3, 0)
					require.NoError(t, err)
					held := plus(tt.inUse, got)
					for i, given := range tt.then(t, w) {
						held[i] -= given
					}
					w.LetGo()
					w.checkAll(t, held, "the request arrived")
				}
			})
		}
	}
}

// Between an attempt whose answer was lost and its repeat, others may change
// what it left: a member in one limiter shows that all were charged.
func TestAllHappensOnceThoughOthersInterfere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(t *testing.T, w *bundleWire) error
		given  [3]int64
	}{
		"some of each released": {func(t *testing.T, w *bundleWire) error {
			for _, l := range w.others.Limiters {
				if err := l.Release(t.Context(), 2); err != nil {
					return err
				}
			}
			return nil
		}, [3]int64{2, 2, 2}},
		"all of two released": {func(t *testing.T, w *bundleWire) error {
			return errors.Join(w.others.Limiters[0].Release(t.Context(), 5), w.others.Limiters[1].Release(t.Context(), 5))
		}, [3]int64{5, 5, 0}},
		"all of the last released": {func(t *testing.T, w *bundleWire) error {
			return w.others.Limiters[2].Release(t.Context(), 5)
		}, [3]int64{0, 0, 5}},
		"a new start of the first": {func(t *testing.T, w *bundleWire) error {
			return w.others.Limiters[0].SetRate(t.Context(), limitertest.Hourly(10))
		}, [3]int64{5, 0, 0}},
		"others take the rest": {func(t *testing.T, w *bundleWire) error {
			limitertest.MustAcquire(t, w.others.Limiters[0], 5)
			limitertest.MustAcquire(t, w.others.Limiters[2], 4)
			return nil
		}, [3]int64{-5, 0, -4}},
		"the values are lost": {func(t *testing.T, w *bundleWire) error {
			return w.Redis.Del(t.Context(), w.each[0].Keys.Value, w.each[1].Keys.Value).Err()
		}, [3]int64{}},
		"a lower rate of the second": {func(t *testing.T, w *bundleWire) error {
			w.each[1].Rate = 2
			return w.others.Limiters[1].SetRate(t.Context(), limitertest.PerClient(2, time.Hour), rratelimiter.KeepState())
		}, [3]int64{}},
		"the first is gone": {func(t *testing.T, w *bundleWire) error {
			_, err := w.others.Limiters[0].Delete(t.Context())
			return err
		}, [3]int64{5, 0, 0}},
		"many newer members": {func(t *testing.T, w *bundleWire) error {
			for _, each := range w.each {
				each.Rate += 600
				each.ManyRows(t, -time.Millisecond, 600)
				if err := w.Redis.HSet(t.Context(), each.Name(), "rate", each.Rate).Err(); err != nil {
					return err
				}
				if err := w.Redis.IncrBy(t.Context(), each.Keys.Value, 600).Err(); err != nil {
					return err
				}
			}
			return errors.Join(w.others.Limiters[0].Release(t.Context(), 600), w.others.Limiters[1].Release(t.Context(), 600), w.others.Limiters[2].Release(t.Context(), 601))
		}, [3]int64{0, 0, 1}},
	} {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				w := newBundleWire(t, 10, version)
				changed := false
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					switch {
					case s == lua.AcquireAll && n == 1:
						return redistest.DropAnswer
					case s == lua.AcquireAll && !changed:
						changed = true
						assert.NoError(t, tt.change(t, w))
					}
					return redistest.Pass
				})
				got, err := w.tryAll(t.Context(), 5, 0)
				require.NoError(t, err)
				assert.EqualValues(t, 5, got)
				held := plus([3]int64{}, got)
				for i, given := range tt.given {
					held[i] -= given
					_, _ = w.others.Limiters[i].AvailablePermits(t.Context()) // makes the value that was lost
				}
				w.checkAll(t, held, "repeated")
			})
		}
	}
}

// A repeat that takes several calls finds an attempt that arrives between them.
func TestAnAttemptForAllThatArrivesDuringItsRepeat(t *testing.T) {
	t.Parallel()
	for layout, version := range limitertest.MembersOf {
		for arrives := 1; arrives <= 4; arrives++ {
			t.Run(fmt.Sprint(layout, ", after call ", arrives-1), func(t *testing.T) {
				t.Parallel()
				w := newBundleWire(t, 1000, version)
				w.use(t, [3]int64{1, 1, 1})
				for _, each := range w.each {
					w.manyRowsOf(t, each, 400)
				}
				arrived := false
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					switch {
					case s != lua.AcquireAll:
					case n == 1 && arrives == 1:
						arrived = true
						return redistest.Cut // it never does
					case n == 1:
						return redistest.Late.When(w.Held)
					case arrives > 1 && n == arrives+1:
						w.LetGo()
						arrived = assert.Eventually(t, func() bool {
							return limitertest.InUse(t, w.Redis, w.each[0].Keys.Permits) == 1+400+3
						}, time.Minute, time.Millisecond)
					}
					return redistest.Pass
				})
				got, err := w.tryAll(t.Context(), 3, 0)
				require.NoError(t, err)
				assert.True(t, arrived)
				assert.EqualValues(t, 3, got)
				w.checkAll(t, [3]int64{404, 404, 404}, "repeated")
			})
		}
	}
}

// The same while the repeat reclaims what has run out: the attempt may find that
// so little is left of it that one call is enough.
func TestAnAttemptForAllThatArrivesWhileItsRepeatReclaims(t *testing.T) {
	t.Parallel()
	for layout, version := range limitertest.MembersOf {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			w := newBundleWire(t, 2000, version)
			w.use(t, [3]int64{1, 1, 1})
			last := w.each[2].Keys
			limitertest.AddGrants(t, w.Redis, last.Permits, 2*time.Hour, 1500, 1)
			require.NoError(t, w.Redis.Set(t.Context(), last.Value, 499, 0).Err())
			arrived := false
			w.OnScript(func(s *lua.Script, n int) redistest.Action {
				if s != lua.AcquireAll {
					return redistest.Pass
				}
				if n == 1 {
					return redistest.Late.When(w.Held)
				}
				left := w.Redis.ZCount(t.Context(), last.Permits, "-inf", fmt.Sprint(limitertest.ServerNow(t, w.Redis)-time.Hour.Milliseconds())).Val()
				if !arrived && left < 256 {
					w.LetGo()
					arrived = assert.Eventually(t, func() bool {
						return limitertest.InUse(t, w.Redis, w.each[0].Keys.Permits) > 1
					}, time.Minute, time.Millisecond)
				}
				return redistest.Pass
			})
			got, err := w.tryAll(t.Context(), 1900, 0)
			require.NoError(t, err)
			assert.True(t, arrived)
			assert.EqualValues(t, 1900, got)
			w.checkAll(t, [3]int64{1901, 1901, 1901}, "repeated")
		})
	}
}

// manyRowsOf adds members of one permit each, just granted.
func (w *bundleWire) manyRowsOf(t testing.TB, each *limitertest.Wire, count int) {
	t.Helper()
	limitertest.AddGrants(t, w.Redis, each.Keys.Permits, 0, count, 1)
	require.NoError(t, w.Redis.DecrBy(t.Context(), each.Keys.Value, int64(count)).Err())
}

// A short interval's member has run out and gone before the repeat: the others
// tell that it was there.
func TestARepeatForAllKnowsWhatHasRunOut(t *testing.T) {
	t.Parallel()
	for layout, version := range limitertest.MembersOf {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				client := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version))
				f := limitertest.NewFamilyOf(t, client, limitertest.Every(2, time.Millisecond), limitertest.Every(10, time.Hour))
				others := f.SeenBy(limitertest.NewClient(t, rdb))
				rdb.AddHook(&lostOnce{script: lua.AcquireAll, then: func() {
					time.Sleep(2 * time.Millisecond)
					limitertest.MustAcquire(t, others.Limiters[0], 1)
				}})
				require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
				assert.True(t, f.Try(t, 2))
				assert.EqualValues(t, 8, limitertest.Available(t, f.Limiters[1]))
				assert.EqualValues(t, 2, limitertest.InUse(t, rdb, limitertest.KeysOf(f.Limiters[1]).Permits))
			})
		})
	}
}

// lostOnce loses the answer of a script's first call.
type lostOnce struct {
	script *lua.Script
	then   func()
	lost   bool
}

func (*lostOnce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lostOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if !h.lost && cmd.Name() == "evalsha" && cmd.Args()[1] == h.script.SHA {
			h.lost = true
			h.then()
			err = errors.New("the line is dead")
			cmd.SetErr(err)
		}
		return err
	}
}

func (*lostOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAllWithoutAnyAnswer(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]redistest.Action{"dropped": redistest.DropAnswer, "cut": redistest.Cut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBundleWire(t, 10, "4.7.0")
			w.OnScript(func(s *lua.Script, _ int) redistest.Action {
				if s == lua.AcquireAll {
					return action
				}
				return redistest.Pass
			})
			_, err := w.tryAll(t.Context(), 3, 0)
			require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			assert.LessOrEqual(t, w.Sent(lua.AcquireAll), 5)
			if action == redistest.Cut {
				w.checkAll(t, [3]int64{}, "none arrived")
			} else {
				w.checkAll(t, [3]int64{3, 3, 3}, "each arrived, and counts once")
			}
		})
	}
}

// What is given back for callers that went away is given back to each, once.
func TestGiveBackOfAllHappensOnce(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]faults{
		"no fault":                     lossy["no fault"],
		"answer dropped":               lossy["answer dropped"],
		"answers dropped":              lossy["answers dropped"],
		"request cut":                  lossy["request cut"],
		"request late, answer dropped": tardy["request late, answer dropped"],
	} {
		for layout, version := range limitertest.MembersOf {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				w := newBundleWire(t, 10, version)
				w.use(t, [3]int64{2, 0, 1})
				ctx, cancel := context.WithCancel(t.Context())
				gone := make(chan struct{})
				actions := faults(w.Held)
				w.OnScript(func(s *lua.Script, n int) redistest.Action {
					switch {
					case s == lua.AcquireAll && n == 1:
						cancel()
						<-gone
					case s == lua.GiveBack && n <= len(actions):
						return actions[n-1]
					}
					return redistest.Pass
				})
				_, err := w.tryAll(ctx, 4, 0)
				close(gone)
				require.ErrorIs(t, err, context.Canceled)
				w.LetGo()
				w.checkAll(t, [3]int64{2, 0, 1}, "given back")
			})
		}
	}
}

// Short ids of two Clients may meet, in one limiter of several: in a member, or
// in the note of an attempt that was decided.
func TestAllOfAnIdThatIsAnothers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		meet func(t *testing.T, w *bundleWire, each *limitertest.Wire, id string)
		more int64 // in use of that limiter
	}{
		"a member": {func(t *testing.T, w *bundleWire, each *limitertest.Wire, id string) {
			member := redis.Z{Score: float64(limitertest.ServerNow(t, w.Redis)), Member: id + "\x03\x00\x00\x00"}
			require.NoError(t, w.Redis.ZAdd(t.Context(), each.Keys.Permits, member).Err())
			require.NoError(t, w.Redis.DecrBy(t.Context(), each.Keys.Value, 3).Err())
		}, 3},
		"a note": {func(t *testing.T, w *bundleWire, each *limitertest.Wire, id string) {
			note := fmt.Sprintf("%d:%x;", limitertest.ServerNow(t, w.Redis), id)
			require.NoError(t, w.Redis.HSet(t.Context(), each.Name(), "answered", note).Err())
		}, 0},
	} {
		for place := range 3 {
			w := newBundleWire(t, 100, "3.15.5")
			got, err := w.tryAll(t.Context(), 3, 0)
			require.NoError(t, err)
			require.EqualValues(t, 3, got)
			id := []byte(w.Redis.ZRange(t.Context(), w.each[place].Keys.Permits, 0, 0).Val()[0][:4])
			next := 1 + int(id[1]) + int(id[2])<<8 + int(id[3])<<16
			id[1], id[2], id[3] = byte(next), byte(next>>8), byte(next>>16)
			tt.meet(t, w, w.each[place], string(id))
			got, err = w.tryAll(t.Context(), 3, 0)
			require.NoError(t, err)
			assert.EqualValues(t, 3, got, "%s, limiter %d", name, place)
			held := [3]int64{6, 6, 6}
			held[place] += tt.more
			w.checkAll(t, held, name)
		}
	}
}
