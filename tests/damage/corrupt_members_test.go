package damage_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// noMembers have the layout of no Redisson release.
var noMembers = map[string]string{
	"text": "a", "empty": "", "B and more": "123456789", "D of another length": "\x10abcdefghijklmno\x01\x00\x00\x00",
	"C of another length": "\x09\x00\x00\x00\x00\x00\x00\x0012345678\x01\x00\x00\x00", "a UUID": "3f2b8f4e-8c1b-4c6e-9f4e-3b1d6a0c9f11",
	"no bytes of ASCII": "\xff\xfe\x00\r\n%s", "long": strings.Repeat("x", 10_000),
}

func TestCorruptMembers(t *testing.T) {
	t.Parallel()
	ages := map[string]time.Duration{
		"oldest, run out": 90 * time.Minute, "oldest": 55 * time.Minute, "middle": 20 * time.Minute,
		"newest": time.Minute, "dated in the future": -time.Minute,
	}
	for where, age := range ages {
		for _, what := range some(slices.Sorted(maps.Keys(noMembers))) {
			member := noMembers[what]
			t.Run(what+"/"+where, func(t *testing.T) {
				t.Parallel()
				mustFail := memberUses
				if age < 10*time.Minute {
					mustFail = append([]string{"Take"}, memberUses...)
				}
				requireCorrupt(t, rratelimiter.Overall, mustFail, true, func(t *testing.T, d damaged) (string, string) {
					addMember(t, d, age, member)
					return d.permits, "member"
				})
			})
		}
	}
}

func addMember(t *testing.T, d damaged, age time.Duration, member string) {
	score := float64(limitertest.ServerNow(t, d.rdb) - age.Milliseconds())
	require.NoError(t, d.rdb.ZAdd(t.Context(), d.permits, redis.Z{Score: score, Member: member}).Err())
}

// What else has to be done with the state must wait until all of it is known
// to be in order.
func TestCorruptMembersBesideOtherWork(t *testing.T) {
	t.Parallel()
	for what, more := range map[string]func(*testing.T, damaged){
		"members that have run out": func(t *testing.T, d damaged) { limitertest.AddGrants(t, d.rdb, d.permits, 2*time.Hour, 3, 1) },
		"members of the future":     func(t *testing.T, d damaged) { limitertest.AddGrants(t, d.rdb, d.permits, -time.Hour, 3, 1) },
		"both": func(t *testing.T, d damaged) {
			limitertest.AddGrants(t, d.rdb, d.permits, 2*time.Hour, 3, 1)
			limitertest.AddGrants(t, d.rdb, d.permits, -time.Hour, 3, 1)
		},
		"a value above the rate": func(t *testing.T, d damaged) {
			limitertest.AddGrants(t, d.rdb, d.permits, time.Minute, 1, 2)
			require.NoError(t, d.rdb.Set(t.Context(), d.value, 11, redis.KeepTTL).Err())
		},
		"no value":       func(t *testing.T, d damaged) { require.NoError(t, d.rdb.Del(t.Context(), d.value).Err()) },
		"leaked permits": func(t *testing.T, d damaged) { require.NoError(t, d.rdb.DecrBy(t.Context(), d.value, 3).Err()) },
		"a keep-alive time": func(t *testing.T, d damaged) {
			require.NoError(t, d.rdb.HSet(t.Context(), d.keys.Config, "keepAliveTime", 5*3600*1000).Err())
		},
		"a value without TTL": func(t *testing.T, d damaged) { require.NoError(t, d.rdb.Persist(t.Context(), d.value).Err()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
				requireCorrupt(t, kind, memberUses, true, func(t *testing.T, d damaged) (string, string) {
					addMember(t, d, 20*time.Minute, "of no layout")
					more(t, d)
					return d.permits, "member"
				})
			})
		})
	}
}

func TestCorruptMembersSideBySide(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		d := newDamaged(t, rdb, rratelimiter.Overall)
		require.NoError(t, rdb.Del(t.Context(), d.permits).Err())
		for i, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2} {
			addMember(t, d, time.Duration(50-10*i)*time.Minute, limitertest.NewMember(t, layout, uint32(i+1)))
		}
		require.NoError(t, rdb.Set(t.Context(), d.value, 0, redis.KeepTTL).Err())
		for permits, wait := range map[int64]int{1: 10, 2: 20, 3: 20, 4: 30, 6: 30, 7: 40, 10: 40} {
			decision, err := d.limiter.Take(t.Context(), permits)
			require.NoError(t, err)
			assert.False(t, decision.Granted)
			assert.InDelta(t, wait, decision.RetryAfter.Minutes(), 1, "%d permits", permits)
		}
	})
}
