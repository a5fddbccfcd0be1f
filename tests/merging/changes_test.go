package merging_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// change is what others do to a limiter of rate 1000 whose members are named.
type change struct {
	do     limitertest.Change
	rate   int64 // then; 0: there is no such limiter any more, or of another type
	less   int64 // fewer permits are in use
	starts bool  // from anew, with none in use
	ends   bool  // permits run out, and are not in use any more once a call has found that
}

var changes = map[string]change{
	"Release":                        {do: limitertest.Release(5), rate: 1000, less: 5},
	"Reset":                          {do: reset, rate: 1000, starts: true},
	"SetRate":                        {do: limitertest.SetRate(limitertest.Every(500, interval)), rate: 500, starts: true},
	"SetRate, KeepState":             {do: limitertest.SetRate(limitertest.Every(500, interval), rratelimiter.KeepState()), rate: 500},
	"UpdateRate, KeepState, shorter": {do: keep(1000, interval/10), rate: 1000},
	"UpdateRate, KeepState, fewer":   {do: keep(20, interval), rate: 20},
	"UpdateRate, KeepState, run out": {do: keep(1000, time.Millisecond), rate: 1000, ends: true},
	"another type":                   {do: limitertest.SetRate(limitertest.PerClient(1000, interval))},
	"Delete":                         {do: limitertest.Delete},
	"Rename":                         {do: limitertest.Rename},
	"made anew":                      {do: limitertest.MakeAnew(limitertest.Every(700, interval)), rate: 700, starts: true},
	"an expiry that ends":            {do: limitertest.Expire(time.Millisecond)},
	"Migrate":                        {do: migrate, rate: 1000},
}

func keep(rate int64, interval time.Duration) limitertest.Change {
	return limitertest.UpdateRate(limitertest.Every(rate, interval), rratelimiter.KeepState())
}

func reset(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return l.Reset(ctx)
}

func migrate(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return limitertest.Second(l.Migrate(ctx))
}

// Others change a limiter while a merging call is on its way.
func TestChange_WhileMembersAreNamed(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]string{"before the call": "late", "before its repeat": "drop-late"},
		func(t *testing.T, faults string) {
			limitertest.Bubbles(t, changes, func(t *testing.T, c change) {
				s := newScene(t, 1000, 0)
				undo := s.nearly(t)
				full := s.Client.RateLimiter("{"+s.Name()+"}:full", rratelimiter.WithDefault(limitertest.Every(1, interval)))
				limitertest.MustAcquire(t, full, 1)
				s.on(lua.Merge, faults)
				s.Go(func() (bool, error) { // it is refused, also if it is repeated, and takes the merging call along
					all, err := s.Client.TakeAll(t.Context(), s.Claim(1), full.Claim(1))
					return err == nil && all[0].Granted, err
				})
				synctest.Wait()
				require.Equal(t, 1, s.sent(lua.Merge))
				require.NoError(t, c.do(t.Context(), s.Client, s.Other))
				time.Sleep(2 * time.Millisecond)
				s.letGo()
				if s.rate, s.held = c.rate, s.held-c.less; c.rate == 0 {
					s.checkGone(t)
					return
				}
				if c.starts || c.ends && limitertest.InUse(t, s.Mini, s.permits()) == 0 {
					s.held = 0
				}
				s.checkSum(t, "merged or not")
				assert.Equal(t, s.held, limitertest.InUse(t, s.Mini, s.permits()))
				for range few + 2*together {
					limitertest.Try(t, s.RateLimiter, 1)
				}
				s.checkSum(t, "others were granted")
				for _, f := range undo { // what they were granted may not be in use any more
					before := limitertest.InUse(t, s.Mini, s.permits())
					err := f(t.Context())
					if err == nil && c.less > 0 { // those of others were released
						require.Equal(t, before-2, limitertest.InUse(t, s.Mini, s.permits()))
					}
					if faults == "late" {
						require.NoError(t, err)
					} else if err != nil { // nor does the repeat know what the first attempt did
						require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
					}
				}
				s.checkSum(t, "given back")
			})
		})
}

// checkSum checks that free permits and those in use are the rate.
func (s *scene) checkSum(t *testing.T, when string) {
	t.Helper()
	s.rest()
	inUse := limitertest.InUse(t, s.Mini, s.permits())
	if free, ok := limitertest.StoredValue(t, s.Mini, limitertest.KeysOf(s.RateLimiter).Value); ok || inUse > 0 {
		require.Equal(t, s.rate, free+inUse, when)
	}
}

// checkGone checks that no set has been made again. If it has another name, that has it as it was.
func (s *scene) checkGone(t *testing.T) {
	t.Helper()
	s.rest()
	require.Zero(t, s.members(t))
	other := limitertest.KeysOf(s.Client.RateLimiter(limitertest.Besides(s.Name())))
	if inUse := limitertest.InUse(t, s.Mini, other.Permits); inUse > 0 {
		free, _ := limitertest.StoredValue(t, s.Mini, other.Value)
		assert.EqualValues(t, 1000, free+inUse)
		assert.Equal(t, s.held, inUse)
	}
}

// A slot moves while members are merged, with some of the limiter's keys here and some there for a time.
func TestMerged_SlotMoves(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a cluster")
	const rate = 1_000_000
	cluster, cfg := redistest.StartCluster(t, 3, 0), limitertest.Every(rate, interval)
	rdb := cluster.Client(t, nil)
	client := limitertest.NewClient(t, rdb)
	l, keyed := client.RateLimiter(redistest.Name(t)), client.Keyed("", cfg)
	limitertest.MustTrySetRate(t, limitertest.NewClient(t, rdb).RateLimiter(l.Name()), cfg)
	keys, held := limitertest.KeysOf(l), int64(0)
	var undo []func(ctx context.Context) error
	use := func(n int) {
		for i := range n {
			if i%4 > 0 {
				limitertest.MustAcquire(t, l, 1)
				held++
				continue
			}
			d, back, err := keyed.TakeReturnable(t.Context(), l.Name(), 2)
			require.NoError(t, err)
			require.True(t, d.Granted)
			undo = append(undo, back)
			held += 2
		}
	}
	check := func(when string) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.Less(c, rdb.ZCard(t.Context(), keys.Permits).Val(), int64(few+4*together))
		}, time.Minute, time.Millisecond, when)
		assert.Equal(t, held, limitertest.InUse(t, rdb, keys.Permits), "%s: permits in use", when)
		assert.Equal(t, rate-held, limitertest.Available(t, l), "%s: free permits", when)
	}
	use(150)
	slot, nodes := cluster.Slot(t, l.Name()), cluster.Nodes()
	owner, _ := cluster.Owner(t, slot)
	move := cluster.StartMove(t, slot, nodes[slices.IndexFunc(nodes, func(n *redistest.Server) bool { return n != owner })])
	use(60)
	move.MoveKeys(t, keys.Config, keys.Value)
	over := limitertest.Go(func() { use(60) }) // waits until the set has come, too
	move.MoveKeys(t, keys.Permits)
	limitertest.Soon(t, over, "while keys move")
	move.Finish(t)
	use(60)
	check("moved")
	for _, back := range undo {
		require.NoError(t, back(t.Context()))
		held -= 2
	}
	check("given back")
}
