package merging_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A party is a Client whose members are merged on real servers, and what it holds.
type party struct {
	*rratelimiter.RateLimiter

	rdb  redistest.Client
	held int64
	undo []func(ctx context.Context) error
}

const partyRate = 1_000_000

func newParty(t *testing.T, rdb redistest.Client, opts ...rratelimiter.Option) *party {
	t.Helper()
	p := &party{rdb: rdb}
	p.RateLimiter = limitertest.NewClient(t, rdb, append(opts, limitertest.Patient())...).RateLimiter(redistest.Name(t))
	limitertest.MustTrySetRate(t, p.RateLimiter, limitertest.Every(partyRate, interval))
	return p
}

// use takes permits, of which some may go back later.
func (p *party) use(t *testing.T, client *rratelimiter.Client, n int) {
	t.Helper()
	keyed := client.Keyed("", limitertest.Every(partyRate, interval))
	for i := range n {
		if i%4 > 0 {
			limitertest.MustAcquire(t, p.RateLimiter, 1)
			p.held++
			continue
		}
		d, undo, err := keyed.TakeReturnable(t.Context(), p.Name(), 2)
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
	redistest.SkipShort(t, "a cluster")
	cluster := redistest.StartCluster(t, 3, 0)
	rdb := cluster.Client(t, nil)
	client := limitertest.NewClient(t, rdb, limitertest.Patient())
	p := newParty(t, rdb)
	p.RateLimiter = client.RateLimiter(p.Name())
	p.use(t, client, 150)
	keys := limitertest.KeysOf(p.RateLimiter)
	slot := cluster.Slot(t, p.Name())
	owner, _ := cluster.Owner(t, slot)
	for _, node := range cluster.Nodes() {
		if node == owner {
			continue
		}
		move := cluster.StartMove(t, slot, node)
		p.use(t, client, 60)
		move.MoveKeys(t, keys.Config, keys.Value)
		over := limitertest.Go(func() { p.use(t, client, 60) }) // waits until the set has come, too
		move.MoveKeys(t, keys.Permits)
		limitertest.Soon(t, over, "while keys move")
		move.Finish(t)
		p.use(t, client, 60)
		p.check(t, "moved")
		break
	}
	p.giveBack(t)
	p.check(t, "given back")
}

// Grants that a replica must confirm are merged, and a failover keeps them.
func TestMerged_WithReplicasAndAFailover(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a cluster")
	cluster := redistest.StartCluster(t, 3, 1)
	rdb := cluster.Client(t, nil)
	client := limitertest.NewClient(t, rdb, limitertest.Patient(), rratelimiter.WithReplicas(1, 20*time.Second))
	p := newParty(t, rdb)
	p.RateLimiter = client.RateLimiter(p.Name())
	p.use(t, client, 120)
	p.check(t, "confirmed")
	master, replicas := cluster.Owner(t, cluster.Slot(t, p.Name()))
	require.NotNil(t, master)
	cluster.Failover(t, replicas[0], false)
	p.use(t, client, 120)
	p.check(t, "after a failover")
	p.giveBack(t)
	p.check(t, "given back")
}
