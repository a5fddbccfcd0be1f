package redisson_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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
		"one":              {steps: []step{take(3), othersTake(300), release(3), own(0)}},
		"a part of one":    {steps: []step{take(3), othersTake(300), release(2), own(1)}},
		"behind thousands": {steps: []step{take(3), othersTake(6000), release(3), own(0)}},
		"behind thousands that came much later": {steps: []step{
			take(3), wait(10 * minute), othersTake(6000), wait(10 * minute), release(3), own(0),
		}},
		"several, apart from each other": {steps: []step{
			times(4, take(3), wait(minute), othersTake(1500), wait(2*minute)), release(10), own(2),
		}},
		"some new, some old":        {steps: []step{take(3), wait(minute), othersTake(1500), take(3), release(5), own(1)}},
		"many":                      {steps: []step{times(300, take(1), othersTake(5)), othersTake(300), release(290), own(10)}},
		"shrunk by its own Release": {steps: []step{take(5), othersTake(300), release(2), othersTake(300), release(2), own(1)}},
		"shrunk by another Client":  {steps: []step{take(5), as("", release(2)), othersTake(300), release(2), own(1)}},
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
	// Layouts B and C have no mark of the Client: the newest are taken.
	for _, version := range []string{"3.15.5", "3.16.8"} {
		all["no mark beside "+version] = scenario{cfg: mixed, version: version, steps: []step{
			take(3), wait(minute), othersTake(300), release(3), othersLose(3), own(3),
		}}
	}
	// By a clock that has gone back its own members are dated later than it took them.
	for _, back := range []time.Duration{10 * second, 10 * minute} {
		all[fmt.Sprint("its own are ", back, " ahead")] = scenario{cfg: mixed, steps: []step{
			take(3), othersTake(1000), wait(minute), func(p *play) { p.setClock(-back) }, release(3), own(0),
		}}
	}
	perform(t, all)
}

// onWire runs test with a play of a limiter on a server, that a proxy stands before.
func onWire(t *testing.T, test func(w *limitertest.Wire, p *play)) {
	t.Helper()
	redistest.VirtualServer(t, func(t *testing.T, rdb redistest.Client) {
		w := limitertest.NewWire(t, rdb, mixed, false)
		test(w, &play{T: t, scenario: scenario{cfg: mixed}, rdb: w.Redis, client: w.Client, l: w.RateLimiter, theirs: map[string]bool{}})
	})
}

// No members are searched for those of a Client that took none, or
// none since a Release found none.
func TestRelease_SearchesOwnMembersOnlyIfAny(t *testing.T) {
	t.Parallel()
	onWire(t, func(w *limitertest.Wire, p *play) {
		times(1, othersTake(5000), release(1))(p)
		assert.Zero(p, w.Sent(lua.InUse), "it took none")
		times(1, wait(ms), take(1), release(1))(p)
		assert.Zero(p, w.Sent(lua.InUse), "it is the newest")
		release(1)(p)
		looks := w.Sent(lua.InUse)
		assert.Positive(p, looks, "there may be more")
		release(1)(p)
		assert.Equal(p, looks, w.Sent(lua.InUse), "there were none")
	})
}

// A look for members may be lost and made again; a call that may have given
// permits back is not.
func TestReleaseInManyCallsMeetsFaults(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]func(w *limitertest.Wire, p *play){"a look": func(w *limitertest.Wire, p *play) {
		times(2, wait(ms), take(3), times(1, wait(ms), othersTake(2000)))(p)
		w.On(lua.InUse, redistest.DropAnswer, redistest.Cut, redistest.Pass, redistest.Swallow)
		times(1, release(5), own(1))(p)
	}, "a give-back in the middle": func(w *limitertest.Wire, p *play) {
		exactly(p)
		times(2, wait(ms), take(3), times(1, wait(ms), othersTake(2000)))(p)
		// The first finds none among the newest, the second takes a member, the
		// third a part of another.
		w.On(lua.Release, redistest.Pass, redistest.Pass, redistest.DropAnswer)
		call := func(p *play) error { return p.l.Release(p.Context(), 5) }
		times(1, fails(rratelimiter.ErrUnknownOutcome, call, "3 of 5 permits are given back"), own(1))(p)
	}}, onWire)
}

// resets leaves the configuration and its time to live.
func resets(p *play) {
	name := p.l.Name()
	before, lives := limitertest.ReadState(p, p.rdb, name)[name], limitertest.TTLs(p, p.rdb, name)[name]
	require.NoError(p, p.l.Reset(p.Context()))
	assert.Equal(p, before, limitertest.ReadState(p, p.rdb, name)[name])
	assert.Equal(p, lives, limitertest.TTLs(p, p.rdb, name)[name])
}

// Reset leaves what Redisson takes for a limiter of which nothing is in use: no value and
// no set.
func TestReset(t *testing.T) {
	t.Parallel()
	all := map[string]scenario{}
	for _, version := range []string{newest, "3.16.8", windowed} {
		for kind, then := range map[rratelimiter.RateType]step{
			rratelimiter.Overall:   there(1),
			rratelimiter.PerClient: other(free(3)), // what others keep stays
		} {
			cfg := keepAlive(5, minute, hour)
			cfg.Type = kind
			all[fmt.Sprint(version, " ", kind)] = scenario{cfg: cfg, version: version, steps: []step{
				take(3), other(take(2)), wait(second), resets, then, take(5), refuse(1), func(p *play) {
					d, err := p.l.Peek(p.Context(), 1)
					require.NoError(p, err)
					assert.Equal(p, minute, d.RetryAfter)
				},
			}}
		}
	}
	perform(t, all)
}

func TestReset_OfLeasesAndDefaults(t *testing.T) {
	t.Parallel()
	perform(t, map[string]scenario{
		"ends leases": {cfg: every(1000, hour), byDefault: true, steps: []step{
			ahead(limitertest.Ahead(0)), times(200, take(1)), does("Reset"), free(1000), decides(1000, 0, 0), refuse(1),
		}},
		"none": {everywhere: true, steps: []step{
			fails(rratelimiter.ErrNotInitialized, func(p *play) error { return p.l.Reset(p.Context()) }),
		}},
		"by default": {cfg: every(3, hour), byDefault: true, everywhere: true, steps: []step{
			does("Reset"), take(3), loseConfig, does("Reset"), take(3),
		}},
	})
}

// ahead has the play's handle take permits ahead.
func ahead(opts ...rratelimiter.LimiterOption) step {
	return func(p *play) {
		p.l = p.client.RateLimiter(p.l.Name(), append(opts, rratelimiter.WithDefault(p.cfg))...)
	}
}

// drawnState is a state that Redisson, this module or an accident may have left.
type drawnState struct {
	*rand.Rand

	rdb  redistest.Client
	keys redisson.Keys
	cfg  rratelimiter.Config
}

// drawState puts a state into Redis under a name.
func drawState(t *testing.T, draw *rand.Rand, rdb redistest.Client, name string) *drawnState {
	t.Helper()
	s := &drawnState{Rand: draw, rdb: rdb}
	s.cfg = rratelimiter.Config{
		Type: rratelimiter.RateType(draw.IntN(2)), Rate: 1 + draw.Int64N(20), Interval: time.Duration(1+draw.IntN(20)) * time.Second,
	}
	s.keys = keysInUse(name, s.cfg.Type)
	if draw.IntN(3) == 0 {
		s.cfg.KeepAlive = s.cfg.Interval * time.Duration(1+draw.IntN(3))
	}
	if draw.IntN(6) > 0 {
		require.NoError(t, rdb.HSet(t.Context(), s.keys.Config, "rate", s.cfg.Rate, "interval", s.cfg.Interval.Milliseconds(),
			"type", int(s.cfg.Type), "keepAliveTime", s.cfg.KeepAlive.Milliseconds()).Err())
	}
	inUse := s.addMembers(t)
	s.setValue(t, inUse)
	for _, key := range []string{s.keys.Config, s.keys.Value, s.keys.Permits} {
		if draw.IntN(4) == 0 {
			life := s.cfg.Interval/2 + time.Duration(draw.Int64N(int64(3*s.cfg.Interval)))
			require.NoError(t, rdb.PExpire(t.Context(), key, life).Err())
		}
	}
	return s
}

// addMembers returns the permits of all members that it adds.
func (s *drawnState) addMembers(t *testing.T) (permits int64) {
	t.Helper()
	count := []int{0, 1, 3, 10, 300, 700}[min(s.IntN(8), 5)]
	if count > 10 {
		s.cfg.Rate += int64(count)
		if s.rdb.HExists(t.Context(), s.keys.Config, "rate").Val() {
			require.NoError(t, s.rdb.HSet(t.Context(), s.keys.Config, "rate", s.cfg.Rate).Err())
		}
	}
	now, interval := limitertest.ServerNow(t, s.rdb), s.cfg.Interval.Milliseconds()
	oldest, newest := 2*interval, -interval/10
	switch s.IntN(4) {
	case 0:
		newest = interval // all have run out
	case 1:
		oldest, newest = interval-1, 0 // none has
	}
	var rows []redis.Z
	for range count {
		layout := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2}[s.IntN(4)]
		n := uint32(s.IntN(3))
		member := limitertest.NewMember(t, layout, n)
		if count <= 10 && s.IntN(50) == 0 {
			member = "what is this?"
			n = 0
		}
		permits += int64(n)
		age := newest + s.Int64N(max(1, oldest-newest))
		rows = append(rows, redis.Z{Score: float64(now - age), Member: member})
	}
	if count > 0 {
		require.NoError(t, s.rdb.ZAdd(t.Context(), s.keys.Permits, rows...).Err())
	}
	return permits
}

func (s *drawnState) setValue(t *testing.T, inUse int64) {
	t.Helper()
	var value any
	switch s.IntN(8) {
	case 0:
		return
	case 1:
		value = s.cfg.Rate + s.Int64N(5)
	case 2:
		value = s.cfg.Rate - inUse + 1 + s.Int64N(3)
	case 3:
		value = s.Int64N(s.cfg.Rate+1) - 2
	case 4:
		value = 0
	case 5:
		if value = s.cfg.Rate - inUse; s.IntN(10) == 0 {
			value = "none"
		}
	default:
		value = s.cfg.Rate - inUse
	}
	require.NoError(t, s.rdb.Set(t.Context(), s.keys.Value, value, 0).Err())
}

// requireSameAnswer compares answers, whose errors name the calls.
func requireSameAnswer(t *testing.T, what string, peeked limit.Decision, peekErr error, took limit.Decision, takeErr error) {
	t.Helper()
	if takeErr != nil || peekErr != nil {
		require.Error(t, takeErr, "%s: %v", what, peekErr)
		require.EqualError(t, peekErr, strings.Replace(takeErr.Error(), "Take ", "Peek ", 1), what)
	}
	require.Equal(t, took, peeked, what)
}

// Peek answers what Take answers at the same moment, whatever the state, and leaves it as
// it is. TakeUpTo takes what is free then.
func TestPeekAnswersWhatTakeWould(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, limitertest.Rows(newest, "3.20.0", "3.16.8", "3.16.0", windowed), func(t *testing.T, rdb redistest.Client, version string) {
		draw, client := rand.New(rand.NewPCG(1, 2)), scenario{}.newClient(t, rdb, version)
		seen := map[string]int{}
		for i := range 60 {
			peekAndTake(t, drawState(t, draw, rdb, redistest.Name(t)), client, seen)
			peekAndTakeUpTo(t, drawState(t, draw, rdb, redistest.Name(t)), client)
			if i%4 == 0 {
				peekAndLook(t, drawState(t, draw, rdb, redistest.Name(t)), client)
			}
		}
		for _, what := range []string{"granted", "refused", "failed"} {
			assert.Greater(t, seen[what], 20, "%s: %v", what, seen)
		}
	})
}

// peekAndTake compares the two, and counts what came of them.
func peekAndTake(t *testing.T, s *drawnState, client *rratelimiter.Client, seen map[string]int) {
	t.Helper()
	var opts []rratelimiter.LimiterOption
	if s.IntN(2) == 0 {
		opts = append(opts, rratelimiter.WithDefault(s.cfg))
	}
	name := s.keys.Config
	l := client.RateLimiter(name, opts...)
	for range 3 { // later the handle knows more
		permits := 1 + s.Int64N(s.cfg.Rate+1)
		if s.IntN(2) == 0 {
			permits = 1 + s.Int64N(3)
		}
		state, lives := limitertest.ReadState(t, s.rdb, name), limitertest.TTLs(t, s.rdb, name)
		free, freeErr := l.Peek(t.Context(), 0)
		peeked, peekErr := l.Peek(t.Context(), permits)
		require.Equal(t, state, limitertest.ReadState(t, s.rdb, name))
		require.Equal(t, lives, limitertest.TTLs(t, s.rdb, name))
		took, takeErr := l.Take(t.Context(), permits)
		what := fmt.Sprintf("%s: %d of %+v: value %v, %d members, ttl %v", name, permits, s.cfg,
			state[s.keys.Value].Text, len(state[s.keys.Permits].Members), lives)
		requireSameAnswer(t, what, peeked, peekErr, took, takeErr)
		if freeErr != nil {
			require.Error(t, takeErr, what)
		} else if takeErr == nil {
			require.True(t, free.Granted || free.Remaining == 0, "unless more are in use than the rate: %s", what)
			require.Zero(t, free.RetryAfter, what)
			require.GreaterOrEqual(t, free.Remaining, took.Remaining, what)
			require.False(t, took.Granted && free.Remaining < took.Remaining+permits, what)
		}
		switch {
		case takeErr != nil:
			seen["failed"]++
		case took.Granted:
			seen["granted"]++
		default:
			seen["refused"]++
		}
		time.Sleep(time.Duration(s.Int64N(int64(s.cfg.Interval) / 4)).Truncate(ms))
	}
}

// peekAndTakeUpTo compares the two, by new handles: they look for leaked permits.
func peekAndTakeUpTo(t *testing.T, s *drawnState, client *rratelimiter.Client) {
	t.Helper()
	name, byDefault, n := s.keys.Config, rratelimiter.WithDefault(s.cfg), 1+s.Int64N(s.cfg.Rate)
	d, peekErr := client.RateLimiter(name, byDefault).Peek(t.Context(), n)
	taken, _, takeErr := client.RateLimiter(name, byDefault).TakeUpTo(t.Context(), n)
	require.Equal(t, peekErr == nil, takeErr == nil, "%v, %v", peekErr, takeErr)
	if d.Granted {
		d.Remaining += n
	}
	require.Equal(t, min(n, d.Remaining), taken, "TakeUpTo(%d) of %+v", n, s.cfg)
}

// peekAndLook compares what is free, by both calls that say so.
func peekAndLook(t *testing.T, s *drawnState, client *rratelimiter.Client) {
	t.Helper()
	l := client.RateLimiter(s.keys.Config, rratelimiter.WithDefault(s.cfg))
	state, lives := limitertest.ReadState(t, s.rdb, l.Name()), limitertest.TTLs(t, s.rdb, l.Name())
	d, peekErr := l.Peek(t.Context(), 0)
	require.Equal(t, state, limitertest.ReadState(t, s.rdb, l.Name()))
	require.Equal(t, lives, limitertest.TTLs(t, s.rdb, l.Name()))
	set, err := l.TrySetRate(t.Context(), s.cfg)
	if peekErr != nil || err != nil {
		return
	}
	free, err := l.AvailablePermits(t.Context())
	require.NoError(t, err)
	require.Equal(t, free, d.Remaining, "%+v, made: %t", s.cfg, set)
}

// A lease's permits are in use to Peek, so are many of a configuration that was lost, and
// what the handle remembers of refusals is nothing to it.
func TestPeekWithLeaseAndRefusals(t *testing.T) {
	t.Parallel()
	peeks := func(granted bool) step {
		return answers(granted, func(p *play) (bool, error) {
			d, err := p.l.Peek(p.Context(), 1)
			return d.Granted && d.Remaining == max(0, limitertest.Available(p, p.l)-1), err
		})
	}
	lease := rratelimiter.WithLease(rratelimiter.Lease{Permits: 50, Life: second})
	scenario{cfg: every(1000, minute), byDefault: true, steps: []step{
		ahead(lease, rratelimiter.WithRefusalCache()), times(200, take(1)), peeks(true),
		set(every(1, minute)), take(1), refuse(1), loseValue, losePermits, peeks(true), refuse(1),
	}}.perform(t)
	lost := answers(true, func(p *play) (bool, error) {
		d, err := p.l.Peek(p.Context(), 1)
		return d.Remaining == 39, err
	})
	scenario{cfg: every(300, minute), byDefault: true, steps: []step{times(260, take(1)), loseConfig, lost}}.perform(t)
}
