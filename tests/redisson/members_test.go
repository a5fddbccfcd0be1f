package redisson_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// mixed is of limiters whose set holds members of a Client among those of others.
var mixed = every(100_000, hour)

// othersTake lets others take one permit each, that many times, after all that was taken before.
func othersTake(count int) step {
	return func(p *play) {
		time.Sleep(2 * ms)
		all := make([]string, count)
		for i := range all {
			all[i] = limitertest.NewMember(p, codec.LayoutD2, 1)
			p.theirs[all[i]] = true
		}
		p.add(0, all...)
		othersLose(-int64(count))(p)
	}
}

// othersLose notes that count permits of others are no longer in use.
func othersLose(count int64) step { return func(p *play) { p.others -= count } }

// own compares the permits in use: that many permits of the Client's, beside those of others.
func own(want int64) step {
	return func(p *play) {
		rows := limitertest.Must(p.rdb.ZRange(p.Context(), p.keys().Permits, 0, -1).Result())(p)
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

// takeOfAll takes permits of several limiters, of which the play's becomes one.
func takeOfAll(p *play) {
	first, second := p.client.RateLimiter("{"+p.l.Name()+"}first"), p.client.RateLimiter("{"+p.l.Name()+"}second")
	for _, l := range []*rratelimiter.RateLimiter{first, second} {
		limitertest.MustTrySetRate(p, l, mixed)
	}
	require.True(p, limitertest.TryAll(p, p.client, 3, first, second))
	require.NoError(p, second.Rename(p.Context(), p.l.Name()))
}

// A Release takes this Client's members first, however many of others are newer.
func TestReleaseFindsItsOwnBehindOthers(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{"taken with all limiters": {cfg: mixed, steps: []step{takeOfAll, othersTake(300), release(3), own(0)}}}
	for name, s := range map[string]scenario{
		"a part of one":                         {steps: []step{take(3), othersTake(300), release(2), own(1)}},
		"behind thousands that came much later": {steps: []step{take(3), wait(10 * minute), othersTake(6000), wait(10 * minute), release(3), own(0)}},
		"several, apart from each other":        {steps: []step{times(4, take(3), wait(minute), othersTake(1500), wait(2*minute)), release(10), own(2)}},
		"many":                                  {steps: []step{times(300, take(1), othersTake(5)), othersTake(300), release(290), own(10)}},
		"shrunk by another Client":              {steps: []step{take(5), as("", release(2)), othersTake(300), release(2), own(1)}},
		"taken after a Release that found none": {steps: []step{
			take(1), othersTake(1000), release(401), othersLose(400), take(3), othersTake(1000), release(3), own(0),
		}},
		"beside others' that have run out": {steps: []step{
			othersTake(2000), wait(30 * minute), take(3), othersTake(1000), wait(30 * minute), does("AvailablePermits"), othersLose(2000),
			release(3), own(0),
		}},
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
				assert.EqualValues(p, 200, p.rdb.ZCount(p.Context(), p.keys().Permits, before, "+inf").Val())
			},
			release(5000),
			func(p *play) { assert.Zero(p, p.rdb.Exists(p.Context(), p.keys().Permits).Val()) },
			free(mixed.Rate),
		}},
		// What has run out is not in use, though it may be in the set still: of this Client's, too.
		"run out": {cfg: mixed, steps: []step{
			func(p *play) { p.l = p.client.RateLimiter(p.l.Name(), rratelimiter.WithExact()) },
			times(300, take(1)), wait(hour), othersTake(10), release(5), othersLose(5),
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

// No members are searched for those of a Client that took none, or none since a Release found none.
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

// A look for members may be lost and made again. A call that may have given permits back is not, and its error says how many are back.
func TestRelease_InManyCallsMeetsFaults(t *testing.T) {
	t.Parallel()
	redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
		w := limitertest.NewWire(t, rdb, mixed, false)
		l := w.Client.RateLimiter(w.Name(), rratelimiter.WithExact())
		p := &play{T: t, scenario: scenario{cfg: mixed}, rdb: rdb, client: w.Client, l: l, theirs: map[string]bool{}}
		apart := times(2, wait(ms), take(3), times(1, wait(ms), othersTake(2000)))
		apart(p)
		w.On(lua.InUse, redistest.DropAnswer, redistest.Cut, redistest.Pass, redistest.Swallow)
		times(1, release(5), own(1), release(1))(p)
		apart(p)
		// The first finds none among the newest, the second takes a member, the third a part of another.
		w.On(lua.Release, redistest.Pass, redistest.Pass, redistest.DropAnswer)
		times(1, fails(rratelimiter.ErrUnknownOutcome, func(p *play) error { return l.Release(p.Context(), 5) }, "3 of 5 permits are given back"), own(1))(p)
	})
}

// peeksAndTakes compares what Peek and Take answer at the same moment, and checks that Peek leaves all as it is.
func peeksAndTakes(permits int64) step {
	return func(p *play) {
		var peeked limit.Decision
		untouched(func(p *play) { peeked = limitertest.Must(p.l.Peek(p.Context(), permits))(p) })(p)
		assert.Equal(p, peeked, limitertest.Take(p, p.l, permits), permits)
	}
}

// Of a set that one call does not read Peek answers what Take does (tests/hostile has smaller ones); TakeUpTo takes what is free.
func TestPeekAnswersWhatTakeWould(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for what, steps := range map[string][]step{
		"in use":                 {rows(700, minute), putValue(300)},
		"run out":                {rows(700, 2*hour), putValue(300)},
		"some run out":           {rows(300, 2*hour), rows(400, minute), putValue(300)},
		"the value is lost":      {rows(700, minute)},
		"the value is too high":  {rows(700, minute), putValue(400)},
		"some have leaked":       {rows(700, minute), putValue(10)},
		"few of which leaked":    {rows(70, minute), putValue(10)},
		"the configuration lost": {rows(700, minute), putValue(300), loseConfig},
	} {
		for version, checks := range map[string][]step{"": {peeksAndTakes(299), peeksAndTakes(301), peeksAndTakes(1000)}, "3.16.8": nil} {
			all[what+" "+version] = scenario{cfg: every(1000, hour), version: version, byDefault: true, both: true, steps: slices.Concat([]step{set(every(1000, hour))}, steps, checks, []step{
				func(p *play) {
					d := limitertest.Must(p.l.Peek(p.Context(), 0))(p)
					taken, _, err := p.l.TakeUpTo(p.Context(), 500)
					require.NoError(p, err)
					assert.Equal(p, min(500, d.Remaining), taken)
				},
			})}
		}
	}
	perform(t, all)
}

func migrates(want int64) step {
	return answers(want, func(p *play) (int64, error) { return p.l.Migrate(p.Context()) })
}

// rows puts that many members of a permit into the set, as granted age ago.
func rows(n int, age time.Duration) step {
	return func(p *play) { limitertest.AddGrants(p, p.rdb, p.keys().Permits, age, n, 1) }
}

// add puts members into the set, as granted age ago, and takes their permits off the value.
func (p *play) add(age time.Duration, members ...string) {
	p.Helper()
	if _, there := limitertest.StoredValue(p, p.rdb, p.keys().Value); !there {
		putValue(p.cfg.Rate)(p)
	}
	score, rows, sum := float64(limitertest.ServerNow(p, p.rdb)-age.Milliseconds()), make([]redis.Z, len(members)), int64(0)
	for i, member := range members {
		rows[i] = redis.Z{Score: score, Member: member}
		sum += limitertest.PermitsIn(p, member)
	}
	require.NoError(p, p.rdb.ZAdd(p.Context(), p.keys().Permits, rows...).Err())
	require.NoError(p, p.rdb.DecrBy(p.Context(), p.keys().Value, sum).Err())
}

var migrations = map[string]scenario{
	"rewrites every layout": {cfg: every(100, minute), steps: []step{func(p *play) {
		now := limitertest.ServerNow(p, p.rdb)
		scores := map[int64]uint32{}
		for i, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2, codec.LayoutB} {
			age, permits := time.Duration(i)*10*second, uint32(i+1)
			p.add(age, limitertest.NewMember(p, layout, permits))
			scores[now-age.Milliseconds()] = permits
		}
		migrates(4)(p)
		for _, z := range p.rdb.ZRangeWithScores(p.Context(), p.keys().Permits, 0, -1).Val() {
			m := limitertest.Must(codec.Parse(z.Member.(string)))(p)
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

// What others took is theirs in the new layout too: a Release takes this Client's off first.
func TestMigrateTakesOverNoPermits(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, limitertest.Rows(codec.LayoutB, codec.LayoutC, codec.LayoutD1), func(t *testing.T, layout codec.Layout) {
		scenario{cfg: every(100, hour), steps: []step{
			take(3), wait(second), func(p *play) {
				for range 5 {
					p.add(0, limitertest.NewMember(p, layout, 1))
				}
			}, migrate, release(3), func(p *play) {
				rows := limitertest.Must(p.rdb.ZRangeWithScores(p.Context(), p.keys().Permits, 0, -1).Result())(p)
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

// meets gives another Client the Client's next member, if that is of so many permits, too long ago for a copy of the next request.
func meets(permits uint32) step {
	return func(p *play) {
		p.add(minute, string(limitertest.Must(codec.Append(nil, codec.LayoutB, p.nextID(), permits))(p)))
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
