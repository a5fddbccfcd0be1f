package redisson_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// repeats has lua.Acquire repeat an attempt that was granted 3 permits a second ago, of so
// many that are free, and ask for more; and returns the permits that it was granted and the
// wait of the last request.
func repeats(p *play, stored int, requests ...any) (granted, wait int64) {
	p.Helper()
	id, sum := "\x10"+strings.Repeat("i", 16), uint32(0)
	for i := 0; i < len(requests); i += 2 {
		sum += uint32(requests[i].(int))
	}
	member := func(permits uint32) string {
		packed, err := codec.Append(nil, codec.LayoutD2, []byte(id[1:]), permits)
		require.NoError(p, err)
		return string(packed)
	}
	row := redis.Z{Score: float64(limitertest.ServerNow(p, p.rdb) - 1000), Member: member(3)}
	require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, row).Err())
	putValue(int64(stored))(p)
	args := append([]any{member(sum), sum, "", "", 60_000, "", 0}, requests...)
	reply, err := p.rdb.Eval(p.Context(), lua.Acquire.Source, limitertest.KeysOf(p.l).List(), args...).Int64Slice()
	require.NoError(p, err)
	require.Len(p, reply, 7, "one wait")
	return reply[2], reply[6]
}

func TestWaitsOfARepeat(t *testing.T) {
	t.Parallel()
	perform(t, map[string]scenario{
		// A repeat whose attempt was granted tells each refused request its own wait.
		"beside a request above the rate": {cfg: every(10, hour), everywhere: true, steps: []step{func(p *play) {
			granted, wait := repeats(p, 7, 3, 1, 16, 1, 8, 1)
			assert.EqualValues(p, 3, granted)
			assert.InDelta(p, hour.Milliseconds(), wait, 5000, "that of the request for 8")
		}}},
		// A repeat that finds its attempt need not reclaim all that has run out; what is
		// left of it makes no wait.
		"beside members that ran out": {cfg: every(1000, minute), everywhere: true, steps: []step{func(p *play) {
			limitertest.AddGrants(p, p.rdb, p.keys().Permits, hour, 600, 1)
			granted, wait := repeats(p, 0, 3, 1, 400, 1)
			assert.EqualValues(p, 3, granted)
			assert.EqualValues(p, 1, max(wait, -wait), "at once, or a page on")
		}}},
	})
}

func TestUpkeep(t *testing.T) {
	t.Parallel()
	note := ""
	perform(t, map[string]scenario{
		// What ran out while the value sufficed piles up to a 64th of the rate at most: a
		// Redisson sweeps all of it in one call.
		"grants sweep what has run out": {cfg: every(3200, second), steps: []step{times(300, take(1), wait(1100*ms), func(p *play) {
			assert.LessOrEqual(p, p.rdb.ZCard(p.Context(), p.keys().Permits).Val(), int64(3200/64+1))
		})}},
		"answered attempts are forgotten after a minute": {cfg: every(10, hour), steps: []step{
			func(p *play) {
				note = strconv.FormatInt(limitertest.ServerNow(p, p.rdb), 10) + ":" + strings.Repeat("ab", 16) + ";"
				put("answered", note)(p)
			},
			wait(59 * second), take(1),
			func(p *play) { assert.Equal(p, note, p.rdb.HGet(p.Context(), p.l.Name(), "answered").Val()) },
			wait(2 * second), take(1),
			func(p *play) { assert.False(p, p.rdb.HExists(p.Context(), p.l.Name(), "answered").Val()) },
		}},
		"a refusal dates members of the future anew": {cfg: every(2, minute), steps: []step{take(1), refuse(2), take(1), func(p *play) {
			newest := p.rdb.ZRange(p.Context(), p.keys().Permits, -1, -1).Val()[0]
			row := redis.Z{Score: float64(limitertest.ServerNow(p, p.rdb) + hour.Milliseconds()), Member: newest}
			require.NoError(p, p.rdb.ZAddXX(p.Context(), p.keys().Permits, row).Err())
			refuse(1)(p)
			assert.Equal(p, limitertest.ServerNow(p, p.rdb), int64(p.rdb.ZScore(p.Context(), p.keys().Permits, newest).Val()))
		}}},
	})
}

// The value at the rate beside thousands of rows that have run out.
func TestRowsThatRanOutGoThoughTheLimiterIsFull(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	scenario{cfg: every(20_000, minute), version: "3.13.6", steps: []step{func(p *play) {
		var rows []redis.Z
		now := limitertest.ServerNow(p, p.rdb)
		for i := range 9000 {
			m := engine.Of(p.client).Identities().NextIn(nil, codec.LayoutB, 1)
			m[4] = 1
			rows = append(rows, redis.Z{Score: float64(now + int64(i%2)), Member: string(m)})
		}
		require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, rows...).Err())
	}, putValue(20_000), // a Redisson that found the value gone made a full one
		wait(30 * second), take(1), wait(31 * second), take(1), func(p *play) { assert.Len(p, members(p, p.rdb, p.keys().Permits), 2) },
	}}.perform(t)
}

// A handle that knows its limiter to be shared passes fewer keys. Others may
// change the type at any time.
func TestTypeChangesUnderAHandle(t *testing.T) {
	t.Parallel()
	var steps []step
	for _, cfg := range []rratelimiter.Config{every(3, hour), perClient(3, hour), perClient(3, hour), every(3, hour), perClient(3, hour)} {
		steps = append(steps, as("", set(cfg)), times(3, take(1)), times(2, refuse(1)), func(p *play) {
			shared, own := redisson.KeysOf(p.l.Name(), ownID).Permits, redisson.KeysOf(p.l.Name(), ownID).ClientPermits
			if cfg.Type == rratelimiter.PerClient {
				shared, own = own, shared
			}
			assert.EqualValues(p, 3, limitertest.InUse(p, p.rdb, shared), cfg.Type)
			assert.Zero(p, p.rdb.Exists(p.Context(), own).Val(), cfg.Type)
		})
	}
	scenario{everywhere: true, steps: steps}.perform(t)
}

func TestRenameToAKeyOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewClient(t, rdb).RateLimiter("{x}")
		limitertest.MustTrySetRate(t, l, every(5, hour))
		limitertest.MustAcquire(t, l, 1)
		limitertest.RequireUntouched(t, rdb, l.Name(), func() {
			require.ErrorIs(t, l.Rename(t.Context(), "{x}:value"), rratelimiter.ErrInvalidConfig)
			require.ErrorIs(t, l.Rename(t.Context(), "{x}:permits"), rratelimiter.ErrInvalidConfig)
		})
	})
}

// The shards of a Ring know nothing of each other.
func TestRenameOnARingStaysOnItsShard(t *testing.T) {
	t.Parallel()
	client := limitertest.NewClient(t, redistest.StartRing(t, 2).Client(t, nil))
	for i := range 20 {
		tag := fmt.Sprintf("{shop%d}", i)
		l := client.RateLimiter(tag + "orders")
		limitertest.MustTrySetRate(t, l, every(5, hour))
		limitertest.MustAcquire(t, l, 2)
		require.ErrorIs(t, l.Rename(t.Context(), "sales"+strconv.Itoa(i)), rratelimiter.ErrUnsupported)
		require.NoError(t, l.Rename(t.Context(), tag+"sales"))
		assert.EqualValues(t, 3, limitertest.Available(t, client.RateLimiter(tag+"sales")))
	}
}
