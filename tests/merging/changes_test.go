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
	"Release of all":                 {do: limitertest.Release(1000), rate: 1000, starts: true},
	"Reset":                          {do: reset, rate: 1000, starts: true},
	"SetRate":                        {do: limitertest.SetRate(limitertest.Every(500, interval)), rate: 500, starts: true},
	"SetRate, small":                 {do: limitertest.SetRate(limitertest.Every(50, interval)), rate: 50, starts: true},
	"SetRate, KeepState":             {do: limitertest.SetRate(limitertest.Every(500, interval), rratelimiter.KeepState()), rate: 500},
	"UpdateRate, KeepState, longer":  {do: keep(2000, 10*interval), rate: 2000},
	"UpdateRate, KeepState, shorter": {do: keep(1000, interval/10), rate: 1000},
	"UpdateRate, KeepState, fewer":   {do: keep(20, interval), rate: 20},
	"UpdateRate, KeepState, run out": {do: keep(1000, time.Millisecond), rate: 1000, ends: true},
	"another type":                   {do: limitertest.SetRate(limitertest.PerClient(1000, interval))},
	"Delete":                         {do: limitertest.Delete},
	"Rename":                         {do: limitertest.Rename},
	"another takes its name":         {do: limitertest.ReplaceBy(limitertest.Every(700, interval)), rate: 700, starts: true},
	"made anew":                      {do: limitertest.MakeAnew(limitertest.Every(700, interval)), rate: 700, starts: true},
	"an expiry that ends":            {do: limitertest.Expire(time.Millisecond)},
	"an expiry":                      {do: limitertest.Expire(interval), rate: 1000},
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

// A set all of whose members are merged into one keeps its time to live.
func TestSet_KeepsItsTimeToLive(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]bool{"all are merged": true, "beside others": false}, func(t *testing.T, alone bool) {
		s := newScene(t, 1000, 0)
		s.take(t, few-1)
		if alone {
			require.NoError(t, s.Other.Release(t.Context(), few))
			s.held = 0
		}
		s.take(t, together)
		synctest.Wait()
		require.NoError(t, limitertest.Second(s.Other.Expire(t.Context(), time.Hour)))
		require.False(t, limitertest.Try(t, s.RateLimiter, 1000), "it takes the merging call along")
		s.check(t, "merged")
		if alone {
			require.Equal(t, 1, s.members(t))
		}
		require.Less(t, s.members(t), few+together)
		left := s.Mini.PTTL(t.Context(), s.permits()).Val()
		assert.InDelta(t, time.Hour, left, float64(time.Minute), "its time to live")
	})
}

// A rate is lowered for a time, to what is not merged, and raised again. No answer to claims says so unless it is asked for.
func TestRate_IsLowForATime(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, client := limitertest.NewLimiter(t, rdb, rratelimiter.PerMinute(1000)), limitertest.NewClient(t, rdb)
		ours := client.RateLimiter(l.Name())
		beside := client.RateLimiter("{"+l.Name()+"}:beside", rratelimiter.WithDefault(rratelimiter.PerMinute(10_000)))
		use := func(n int, pause time.Duration) {
			for range n {
				require.True(t, limitertest.TryAll(t, client, 1, ours, beside))
				time.Sleep(pause)
			}
		}
		use(200, 100*time.Millisecond)
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerMinute(120), rratelimiter.KeepState()))
		time.Sleep(time.Minute)
		use(150, 600*time.Millisecond)
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerMinute(1000), rratelimiter.KeepState()))
		use(1000, 70*time.Millisecond)
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val(), int64(small))
	})
}

// A party is a Client whose members are merged on a cluster, and what it holds.
type party struct {
	*rratelimiter.RateLimiter

	cluster *redistest.Cluster
	rdb     redistest.Client
	keyed   *rratelimiter.KeyedLimiter
	held    int64
	undo    []func(ctx context.Context) error
}

const partyRate = 1_000_000

// newParty starts three masters with so many replicas each.
func newParty(t *testing.T, replicas int, opts ...rratelimiter.Option) *party {
	t.Helper()
	redistest.SkipShort(t, "a cluster")
	p, cfg := &party{cluster: redistest.StartCluster(t, 3, replicas)}, limitertest.Every(partyRate, interval)
	p.rdb = p.cluster.Client(t, nil)
	client := limitertest.NewClient(t, p.rdb, opts...)
	p.RateLimiter, p.keyed = client.RateLimiter(redistest.Name(t)), client.Keyed("", cfg)
	limitertest.MustTrySetRate(t, limitertest.NewClient(t, p.rdb).RateLimiter(p.Name()), cfg)
	return p
}

// use takes permits, of which some may go back later.
func (p *party) use(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if i%4 > 0 {
			limitertest.MustAcquire(t, p.RateLimiter, 1)
			p.held++
			continue
		}
		d, undo, err := p.keyed.TakeReturnable(t.Context(), p.Name(), 2)
		require.NoError(t, err)
		require.True(t, d.Granted)
		p.undo = append(p.undo, undo)
		p.held += 2
	}
}

// giveBack gives back what may go back.
func (p *party) giveBack(t *testing.T) {
	t.Helper()
	for _, f := range p.undo {
		require.NoError(t, f(t.Context()))
		p.held -= 2
	}
	p.undo = nil
}

// check checks that members are merged, and that what is held is in use.
func (p *party) check(t *testing.T, when string) {
	t.Helper()
	keys := limitertest.KeysOf(p.RateLimiter)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Less(c, p.rdb.ZCard(t.Context(), keys.Permits).Val(), int64(few+4*together))
	}, time.Minute, time.Millisecond, when)
	assert.Equal(t, p.held, limitertest.InUse(t, p.rdb, keys.Permits), "%s: permits in use", when)
	assert.Equal(t, partyRate-p.held, limitertest.Available(t, p.RateLimiter), "%s: free permits", when)
}

// A slot moves while members are merged, with some of the limiter's keys here and some there for a time.
func TestMerged_SlotMoves(t *testing.T) {
	t.Parallel()
	p := newParty(t, 0)
	p.use(t, 150)
	keys, slot := limitertest.KeysOf(p.RateLimiter), p.cluster.Slot(t, p.Name())
	owner, _ := p.cluster.Owner(t, slot)
	nodes := p.cluster.Nodes()
	move := p.cluster.StartMove(t, slot, nodes[slices.IndexFunc(nodes, func(n *redistest.Server) bool { return n != owner })])
	p.use(t, 60)
	move.MoveKeys(t, keys.Config, keys.Value)
	over := limitertest.Go(func() { p.use(t, 60) }) // waits until the set has come, too
	move.MoveKeys(t, keys.Permits)
	limitertest.Soon(t, over, "while keys move")
	move.Finish(t)
	p.use(t, 60)
	p.check(t, "moved")
	p.giveBack(t)
	p.check(t, "given back")
}

// Grants that a replica must confirm are merged, and a failover keeps them.
func TestMerged_WithReplicasAndAFailover(t *testing.T) {
	t.Parallel()
	p := newParty(t, 1, rratelimiter.WithReplicas(1, 20*time.Second))
	p.use(t, 120)
	p.check(t, "confirmed")
	master, replicas := p.cluster.Owner(t, p.cluster.Slot(t, p.Name()))
	require.NotNil(t, master)
	p.cluster.Failover(t, replicas[0], false)
	p.use(t, 120)
	p.check(t, "after a failover")
	p.giveBack(t)
	p.check(t, "given back")
}
