package redisson_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// mixed is of limiters whose set holds members of a Client among those of others.
var mixed = every(100_000, hour)

// othersTake lets others take one permit each, that many times, after all that was taken
// before.
func othersTake(count int) step {
	return func(p *play) {
		time.Sleep(2 * ms)
		if _, there := limitertest.StoredValue(p, p.rdb, p.keys().Value); !there {
			putValue(mixed.Rate)(p)
		}
		score := float64(limitertest.ServerNow(p, p.rdb))
		rows := make([]redis.Z, count)
		for i := range rows {
			member := limitertest.NewMember(p, codec.LayoutD2, 1)
			rows[i] = redis.Z{Score: score, Member: member}
			p.theirs[member] = true
		}
		require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, rows...).Err())
		require.NoError(p, p.rdb.DecrBy(p.Context(), p.keys().Value, int64(count)).Err())
		othersLose(-int64(count))(p)
	}
}

// othersLose notes that count permits of others are no longer in use.
func othersLose(count int64) step { return func(p *play) { p.others -= count } }

// exactly has the Client leave its members as they are.
func exactly(p *play) { p.l = p.client.RateLimiter(p.l.Name(), rratelimiter.WithExact()) }

// own compares the permits in use: that many permits of the Client's, beside those of others.
func own(want int64) step {
	return func(p *play) {
		rows, err := p.rdb.ZRange(p.Context(), p.keys().Permits, 0, -1).Result()
		require.NoError(p, err)
		others := int64(0)
		for _, row := range rows {
			if p.theirs[row] {
				others++
			}
		}
		used := limitertest.InUse(p, p.rdb, p.keys().Permits)
		assert.Equal(p, want, used-others, "permits of the Client's in use")
		assert.Equal(p, p.others, others, "permits of others in use")
		value(mixed.Rate - used)(p)
	}
}

// A Release takes this Client's members first, however many of others are newer.
func TestReleaseFindsItsOwnBehindOthers(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for name, s := range map[string]scenario{
		"a part of one": {steps: []step{take(3), othersTake(300), release(2), own(1)}},
		"behind thousands that came much later": {steps: []step{
			take(3), wait(10 * minute), othersTake(6000), wait(10 * minute), release(3), own(0),
		}},
		"several, apart from each other": {steps: []step{
			times(4, take(3), wait(minute), othersTake(1500), wait(2*minute)), release(10), own(2),
		}},
		"many":                     {steps: []step{times(300, take(1), othersTake(5)), othersTake(300), release(290), own(10)}},
		"shrunk by another Client": {steps: []step{take(5), as("", release(2)), othersTake(300), release(2), own(1)}},
		"taken after a Release that found none": {steps: []step{
			take(1), othersTake(1000), release(401), othersLose(400), take(3), othersTake(1000), release(3), own(0),
		}},
		"beside others' that have run out": {steps: []step{
			othersTake(2000), wait(30 * minute), take(3), othersTake(1000), wait(30 * minute), does("AvailablePermits"), othersLose(2000),
			release(3), own(0),
		}},
		"taken with all limiters": {steps: []step{func(p *play) {
			require.True(p, limitertest.TryAll(p, p.client, 3, p.l, limitertest.ByDefault(p.client, limitertest.Besides(p.l.Name()), mixed)))
		}, othersTake(300), release(3), own(0)}},
		"in layout D1": {version: "3.20.1", steps: []step{take(3), othersTake(300), release(3), own(0)}},
	} {
		s.cfg, s.both = mixed, true
		all[name] = s
	}
	perform(t, all)
}

func TestReleaseFindsNoneOfItsOwn(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{
		// Permits beyond this Client's own come off the newest of others.
		"too few": {cfg: mixed, steps: []step{
			othersTake(500), take(3), wait(minute), othersTake(500), release(303), othersLose(300), own(0),
			func(p *play) {
				before := strconv.FormatInt(limitertest.ServerNow(p, p.rdb)-second.Milliseconds(), 10)
				newer, err := p.rdb.ZCount(p.Context(), p.keys().Permits, before, "+inf").Result()
				require.NoError(p, err)
				assert.EqualValues(p, 200, newer)
			},
			release(5000),
			func(p *play) { assert.Zero(p, p.rdb.Exists(p.Context(), p.keys().Permits).Val()) },
			free(mixed.Rate),
		}},
		// What has run out is not in use, though it may be in the set still: of this
		// Client's, too.
		"run out": {cfg: mixed, steps: []step{
			exactly, times(300, take(1)), wait(hour), othersTake(10), release(5), othersLose(5),
			own(300 - 256), // which the call has reclaimed
			free(mixed.Rate - 5),
		}},
	}
	// By a clock that has gone back its own members are dated later than it took them.
	for _, back := range []time.Duration{10 * second, 10 * minute} {
		all[fmt.Sprint("its own are ", back, " ahead")] = scenario{cfg: mixed, steps: []step{
			take(3), othersTake(1000), wait(minute), func(p *play) { p.setClock(-back) }, release(3), own(0),
		}}
	}
	perform(t, all)
}

// No members are searched for those of a Client that took none, or
// none since a Release found none.
func TestRelease_SearchesOwnMembersOnlyIfAny(t *testing.T) {
	t.Parallel()
	looks := 0
	looked := func(want int) step { return func(p *play) { assert.Equal(p, want, looks) } }
	scenario{cfg: mixed, steps: []step{
		othersTake(5000), func(p *play) { p.rdb.AddHook(limitertest.BeforeScript(lua.InUse, func() { looks++ })) },
		release(1), looked(0), wait(ms), take(1), release(1), looked(0), // it is the newest
		release(1), func(p *play) {
			require.Positive(p, looks, "there may be more")
			times(1, release(1), looked(looks))(p)
		},
	}}.perform(t)
}

// peeksAndTakes compares what Peek and Take answer at the same moment, and checks that Peek leaves all as it is.
func peeksAndTakes(permits int64) step {
	return func(p *play) {
		var peeked limit.Decision
		untouched(func(p *play) {
			var err error
			peeked, err = p.l.Peek(p.Context(), permits)
			require.NoError(p, err)
		})(p)
		assert.Equal(p, peeked, limitertest.Take(p, p.l, permits), permits)
	}
}

// Of a set that one call does not read Peek answers what Take answers too: tests/hostile has smaller ones. TakeUpTo takes what
// is free then.
func TestPeekAnswersWhatTakeWould(t *testing.T) {
	t.Parallel()
	rows := func(n int, age time.Duration) step {
		return func(p *play) { limitertest.AddGrants(p, p.rdb, p.keys().Permits, age, n, 1) }
	}
	all := map[string]scenario{}
	for what, steps := range map[string][]step{
		"in use":                 {rows(700, minute), putValue(300)},
		"run out":                {rows(700, 2*hour), putValue(300)},
		"some run out":           {rows(300, 2*hour), rows(400, minute), putValue(300)},
		"the value is lost":      {rows(700, minute)},
		"the value is too high":  {rows(700, minute), putValue(400)},
		"some have leaked":       {rows(700, minute), putValue(10)},
		"the configuration lost": {rows(700, minute), putValue(300), loseConfig},
	} {
		all[what] = scenario{cfg: every(1000, hour), byDefault: true, both: true, steps: slices.Concat([]step{set(every(1000, hour))}, steps, []step{
			peeksAndTakes(299), peeksAndTakes(301), peeksAndTakes(1000), func(p *play) {
				d, err := p.l.Peek(p.Context(), 0)
				require.NoError(p, err)
				taken, _, err := p.l.TakeUpTo(p.Context(), 500)
				require.NoError(p, err)
				assert.Equal(p, min(500, d.Remaining), taken)
			},
		})}
	}
	perform(t, all)
}
