package redisson_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestWithRedissonVersionRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, version := range []string{
		"", "3", "3.15", "3.15.5.1", "v3.15.5", "3.15.05", "3.15.-5", "3.15.5-SNAPSHOT", " 3.15.5",
		"2.15.2", "3.11.6", "3.15.7", "3.53.0", "4.8.0", "5.0.0", "99999999999999999999.0.0",
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			// Redis is not there: nothing may reach it.
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			t.Cleanup(func() { _ = rdb.Close() })
			l := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(version)).RateLimiter("orders")
			_, err := l.TryAcquire(t.Context(), 1, 0)
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
			assert.ErrorContains(t, err, "3.12.0 to 4.7.0")
			_, err = l.TrySetRate(t.Context(), rratelimiter.PerSecond(1))
			require.ErrorIs(t, err, rratelimiter.ErrInvalidConfig)
		})
	}
}

func TestMembersAreThoseOfTheOldestRedisson(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for version, want := range map[string]codec.Layout{
		"3.13.3": codec.LayoutB, "3.13.6": codec.LayoutB, "3.15.5": codec.LayoutB, "3.16.3": codec.LayoutB,
		"3.16.4": codec.LayoutC, "3.16.8": codec.LayoutC,
		"3.17.0": codec.LayoutD1, "3.20.1": codec.LayoutD1,
		"3.21.0": codec.LayoutD2, "3.34.1": codec.LayoutD2, "3.35.0": codec.LayoutD2, newest: codec.LayoutD2,
	} {
		all[version] = scenario{cfg: every(10, minute), version: version, steps: []step{
			take(3), wait(second), take(4), wait(second), release(2), func(p *play) {
				var permits []uint32
				ids := map[string]bool{}
				for _, m := range members(p, p.rdb, p.keys().Permits) {
					assert.Equal(p, want, m.Layout)
					permits = append(permits, m.Permits)
					ids[string(m.ID)] = true
				}
				assert.Equal(p, []uint32{3, 2}, permits)
				assert.Len(p, ids, 2)
			}, free(5), wait(minute), free(10),
		}}
	}
	perform(t, all)
}

// Redissons that read layout D take one of layout C for theirs, and find the
// permits where theirs have them.
func TestMembersOfLayoutCReadTheSameInLayoutD(t *testing.T) {
	t.Parallel()
	check := func(want uint32) step {
		return func(p *play) {
			for _, text := range p.rdb.ZRange(p.Context(), p.keys().Permits, 0, -1).Val() {
				m, err := codec.Parse(text[:13])
				require.NoError(p, err)
				assert.Equal(p, codec.LayoutD1, m.Layout)
				assert.Equal(p, want, m.Permits)
			}
		}
	}
	scenario{cfg: every(500, hour), version: "3.16.8", everywhere: true, steps: []step{
		take(300), check(300), release(40), check(260),
	}}.perform(t)
}

// Redisson before 3.35 counts members where it should count permits.
func TestRequestsShareNoMemberBesideRedissonBefore335(t *testing.T) {
	t.Parallel()
	const callers, rate = 400, 700
	all := map[string]scenario{}
	for _, version := range []string{"3.15.5", "3.16.8", "3.20.1", "3.27.2", "3.34.1"} {
		all[version] = scenario{cfg: every(rate, hour), version: version, everywhere: true, steps: []step{func(p *play) {
			var granted, sum atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					permits := int64(1 + i%3)
					ok, err := p.l.TryAcquire(p.Context(), permits, 0)
					assert.NoError(p, err)
					if ok {
						granted.Add(1)
						sum.Add(permits)
					}
				})
			}
			wg.Wait()
			assert.EqualValues(p, rate, sum.Load())
			assert.Len(p, members(p, p.rdb, p.keys().Permits), int(granted.Load()))
		}, inUse(rate), free(0)}}
	}
	perform(t, all)
}

// What has run out does not wait beside these releases, which must sweep it all
// at once.
func TestNothingThatRanOutStaysBesideRedissonBefore335(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	all := map[string]scenario{}
	for _, version := range []string{"3.13.6", "3.20.1", "3.27.2"} {
		all[version] = scenario{cfg: every(5000, minute), version: version, steps: []step{
			times(600, take(1)), // more than one call drops
			wait(30 * second), take(7), wait(31 * second), take(9),
			func(p *play) { assert.Len(p, members(p, p.rdb, p.keys().Permits), 2) },
			value(5000 - 7 - 9),
		}}
	}
	perform(t, all)
}
