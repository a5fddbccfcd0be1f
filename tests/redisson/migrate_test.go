package redisson_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// migrates rewrites that many members.
func migrates(want int64) step {
	return answers(want, func(p *play) (int64, error) { return p.l.Migrate(p.Context()) })
}

// add puts members of one permit into the set, as granted age ago, and takes them off the value.
func (p *play) add(layout codec.Layout, age time.Duration, permits uint32) {
	p.Helper()
	row := redis.Z{Score: float64(limitertest.ServerNow(p, p.rdb) - age.Milliseconds()), Member: limitertest.NewMember(p, layout, permits)}
	require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, row).Err())
	left, there := limitertest.StoredValue(p, p.rdb, p.keys().Value)
	if !there {
		left = p.cfg.Rate
	}
	putValue(left - int64(permits))(p)
}

var migrations = map[string]scenario{
	"rewrites every layout": {cfg: every(100, minute), steps: []step{func(p *play) {
		now := limitertest.ServerNow(p, p.rdb)
		scores := map[int64]uint32{}
		for i, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2, codec.LayoutB} {
			age, permits := time.Duration(i)*10*second, uint32(i+1)
			p.add(layout, age, permits)
			scores[now-age.Milliseconds()] = permits
		}
		migrates(4)(p)
		for _, z := range p.rdb.ZRangeWithScores(p.Context(), p.keys().Permits, 0, -1).Val() {
			m, err := codec.Parse(z.Member.(string))
			require.NoError(p, err)
			assert.Equal(p, codec.LayoutD2, m.Layout)
			assert.Equal(p, scores[int64(z.Score)], m.Permits)
			delete(scores, int64(z.Score))
		}
		assert.Empty(p, scores, "members lost")
	}, free(85), wait(21 * second), free(90), migrates(0)}},
	// Migrate between a lost answer and its repeat, by the same Client.
	"waits for calls in doubt": {cfg: every(10, hour), version: "3.17.7", everywhere: true, steps: []step{take(1), func(p *play) {
		migrated, calls := make(chan error, 1), 0
		p.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if calls++; calls == 2 {
				go func() { migrated <- tryMigrate(p) }()
			}
			err := next()
			if calls == 1 {
				return redistest.Fail(cmds, errors.New("EOF of the wire"))
			}
			return err
		}))
		take(3)(p)
		require.NoError(p, <-migrated)
	}, free(6)}},
	// Rows that run out between two pages must not hide one to rewrite.
	"leaves no row out": {cfg: every(10_000, minute), steps: []step{
		as("3.27.2", times(300, take(1)), wait(30*second)), as("3.16.8", take(5)), as("3.27.2", times(10, take(1))),
		wait(29_700 * ms), func(p *play) {
			pages := 0
			p.rdb.AddHook(limitertest.BeforeScript(lua.Migrate, func() {
				if pages++; pages == 2 {
					time.Sleep(600 * ms)
				}
			}))
			migrate(p)
			require.Greater(p, pages, 1)
			for _, m := range members(p, p.rdb, p.keys().Permits) {
				assert.NotEqual(p, codec.LayoutC, m.Layout)
			}
		},
	}},
	// 256 members of 32 bits each are the most.
	"a window too large for members": {cfg: every(1<<45, minute), steps: []step{
		func(p *play) { require.NoError(p, p.rdb.Set(p.Context(), p.keys().Value, 1, minute).Err()) },
		fails(rratelimiter.ErrCorrupt, tryMigrate),
		free(1),
	}},
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	all := maps.Clone(migrations)
	for _, rate := range []int64{10, 3 << 32} {
		// It becomes members that run out when it would have ended.
		all[fmt.Sprint("a window of ", rate)] = scenario{cfg: every(rate, minute), version: windowed, steps: []step{
			oldTakes(rate - 3), wait(20 * second), as(newest, migrates(max(1, rate>>32)), inUse(rate-3), valueEnds(noEnd), free(3), take(2),
				wait(39*second), free(1), wait(second), free(rate-2), wait(20*second), free(rate)),
		}}
	}
	perform(t, all)
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	of := func(name string) func(p *play) error {
		return func(p *play) error { return limitertest.Second(p.client.RateLimiter(name).Migrate(p.Context())) }
	}
	scenario{cfg: every(10, minute), steps: []step{
		take(3),
		untouched(
			as(windowed, fails(rratelimiter.ErrUnsupported, tryMigrate, windowed)),
			as("3.16.8", fails(rratelimiter.ErrUnsupported, tryMigrate, "3.16.8")),
			fails(rratelimiter.ErrNotInitialized, of("nobody")), fails(rratelimiter.ErrInvalidConfig, of("")),
		),
		func(p *play) {
			require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, redis.Z{Score: 1, Member: "junk"}).Err())
		},
		untouched(fails(rratelimiter.ErrCorrupt, tryMigrate)),
	}}.perform(t)
}

// What others took is theirs in the new layout too: a Release takes this Client's
// off first.
func TestMigrateTakesOverNoPermits(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, limitertest.Rows(codec.LayoutB, codec.LayoutC, codec.LayoutD1), func(t *testing.T, layout codec.Layout) {
		scenario{cfg: every(100, hour), steps: []step{
			take(3), wait(second), func(p *play) {
				for range 5 {
					p.add(layout, 0, 1)
				}
			}, migrate, release(3), func(p *play) {
				rows, err := p.rdb.ZRangeWithScores(p.Context(), p.keys().Permits, 0, -1).Result()
				require.NoError(p, err)
				assert.Len(p, rows, 5, "those of others")
				for _, row := range rows {
					assert.InDelta(p, limitertest.ServerNow(p, p.rdb), row.Score, 0)
				}
			},
		}}.perform(t)
	})
}

// nextID returns the id, of layout B, that the Client gives its next member: one more than the newest has.
func (p *play) nextID() []byte {
	p.Helper()
	all := members(p, p.rdb, p.keys().Permits)
	id := all[len(all)-1].ID
	next := 1 + int(id[1]) + int(id[2])<<8 + int(id[3])<<16
	return []byte{id[0], byte(next), byte(next >> 8), byte(next >> 16)}
}

// meets gives another Client the Client's next member, if that is of so many permits. It was written no moment ago: it is no copy of the
// next request.
func meets(permits uint32) step {
	return func(p *play) {
		member, err := codec.Append(nil, codec.LayoutB, p.nextID(), permits)
		require.NoError(p, err)
		row := redis.Z{Score: float64(limitertest.ServerNow(p, p.rdb) - minute.Milliseconds()), Member: member}
		require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, row).Err())
		require.NoError(p, p.rdb.DecrBy(p.Context(), p.keys().Value, int64(permits)).Err())
	}
}

// Of two Clients' short ids some may be the same.
func TestShortIDs(t *testing.T) {
	t.Parallel()
	perform(t, map[string]scenario{
		"of members": {cfg: every(1000, hour), version: "3.15.5", everywhere: true, steps: []step{func(p *play) {
			take(1)(p)
			meets(1)(p)
			take(1)(p)
			r := limitertest.Reserve(p, p.l, 1)
			meets(5)(p)
			require.NoError(p, r.Settle(p.Context(), 6), "what it charges has an id of its own")
		}, free(1000 - 2 - 6 - 1 - 5)}},
		// Its note of an attempt that was decided means another attempt.
		"in a note of an attempt": {cfg: every(1000, hour), version: "3.15.5", everywhere: true, steps: []step{take(1), func(p *play) {
			put("answered", fmt.Sprintf("%d:%x;", limitertest.ServerNow(p, p.rdb), p.nextID()))(p)
		}, take(2)}},
	})
}
