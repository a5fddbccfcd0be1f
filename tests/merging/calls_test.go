package merging_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
)

// scriptCase is a call of the script. Members are a letter and their permits, as a2; in a set their dates are added, in ms:
// a2@64000. The interval is 64 s, so a slice is a second.
type scriptCase struct {
	rate   int    // 1000 unless set
	set    string // before
	groups string // each what is to stand for all, and these
	answer string // without rate, interval and time
	then   string // the set
}

var scriptCases = map[string]scriptCase{
	"the last rows":              {set: "x1@63500 a1@64000 b2@64500 c3@64900", groups: "m6=a1,b2,c3", answer: "64", then: "x1@63500 m6@64900"},
	"all rows":                   {set: "a1@64000 b2@64500", groups: "m3=a1,b2", answer: "64", then: "m3@64500"},
	"all rows, not in order":     {set: "a1@64000 b2@64500", groups: "m3=b2,a1", answer: "64", then: "m3@64500"},
	"a few are behind them":      {set: "x1@1 a1@64000 b2@64500 y1@64600 z1@64700", groups: "m3=a1,b2", answer: "64", then: "x1@1 m3@64500 y1@64600 z1@64700"},
	"many are behind them":       {set: "a1@64000 b2@64500 s1@65000 t1@65000 u1@65000 v1@65000 w1@65000", groups: "m3=a1,b2", answer: "64", then: "m3@64500 s1@65000 t1@65000 u1@65000 v1@65000 w1@65000"},
	"others are among them":      {set: "x1@1 a1@64000 y1@64100 b2@64500", groups: "m3=a1,b2", answer: "64", then: "x1@1 y1@64100 m3@64500"},
	"the newest is named first":  {set: "x1@1 a1@64000 y1@64100 b2@64500", groups: "m3=b2,a1", answer: "64", then: "x1@1 y1@64100 m3@64500"},
	"two slices":                 {set: "x1@1 a1@64000 b2@64999 c3@65000", groups: "m6=a1,b2,c3", answer: "0 64 64 65", then: "x1@1 a1@64000 b2@64999 c3@65000"},
	"two slices, not in order":   {set: "x1@1 a1@64000 b2@64999 c3@65000", groups: "m6=c3,a1,b2", answer: "0 65 64 64", then: "x1@1 a1@64000 b2@64999 c3@65000"},
	"one has gone":               {set: "x1@1 a1@64000 c3@64500", groups: "m6=a1,b2,c3", answer: "0 64 0 64", then: "x1@1 a1@64000 c3@64500"},
	"the first has gone":         {set: "x1@1 b2@64000 c3@64500", groups: "m6=a1,b2,c3", answer: "0 0 64 64", then: "x1@1 b2@64000 c3@64500"},
	"one has fewer permits":      {set: "x1@1 a1@64000 b1@64200 c3@64500", groups: "m6=a1,b2,c3", answer: "0 64 -1 64", then: "x1@1 a1@64000 b1@64200 c3@64500"},
	"the last has fewer permits": {set: "x1@1 a1@64000 b2@64200 c2@64500", groups: "m6=a1,b2,c3", answer: "0 64 64 -2", then: "x1@1 a1@64000 b2@64200 c2@64500"},
	"it has come before":         {set: "x1@1 m6@64500", groups: "m6=a1,b2,c3", answer: "64", then: "x1@1 m6@64500"},
	"it has come, and some went": {set: "x1@1 m5@64500", groups: "m6=a1,b2,c3", answer: "0 0 0 0", then: "x1@1 m5@64500"},
	"several groups": {
		set: "a1@62000 b1@62001 c1@63000 d1@63001 e1@64000 f1@64001", groups: "m2=e1,f1 n2=c1,d1 o2=a1,b1", answer: "64 63 62",
		then: "o2@62001 n2@63001 m2@64001",
	},
	"one of several groups": {
		set: "a1@62000 b1@62001 c1@63000 e1@64000 f1@64001", groups: "m2=e1,f1 n2=c1,d1 o2=a1,b1", answer: "64 0 63 0 62",
		then: "o2@62001 c1@63000 m2@64001",
	},
	"no set":                   {groups: "m3=a1,b2", answer: "0 0 0"},
	"a rate that is too low":   {rate: 128, set: "a1@64000 b2@64500", groups: "m3=a1,b2", then: "a1@64000 b2@64500"},
	"a rate that is no better": {rate: 129, set: "a1@64000 b2@64500", groups: "m3=a1,b2", answer: "64", then: "m3@64500"},
}

// scriptMember is a member by its letter and permits.
func scriptMember(t *testing.T, word string) string {
	t.Helper()
	permits := uint32(word[1] - '0')
	return string(limitertest.Must(codec.Append(nil, codec.LayoutD2, []byte(strings.Repeat(word[:1], 16)), permits))(t))
}

func TestScript(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, scriptCases, func(t *testing.T, rdb redistest.Client, c scriptCase) {
		keys := redisson.KeysOf("limiter", "")
		require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", cmp.Or(c.rate, 1000), "interval", 64_000, "type", 0).Err())
		for word := range strings.FieldsSeq(c.set) {
			member, at, _ := strings.Cut(word, "@")
			score := limitertest.Must(strconv.ParseFloat(at, 64))(t)
			require.NoError(t, rdb.ZAdd(t.Context(), keys.Permits, redis.Z{Score: score, Member: scriptMember(t, member)}).Err())
		}
		rdb.PExpire(t.Context(), keys.Permits, time.Hour)
		args := []any{128}
		for group := range strings.FieldsSeq(c.groups) {
			text := ""
			for word := range strings.FieldsFuncSeq(group, func(r rune) bool { return r == '=' || r == ',' }) {
				text += scriptMember(t, word)
			}
			args = append(args, text)
		}
		answer := limitertest.Must(rdb.Eval(t.Context(), lua.Merge.Source, []string{keys.Config, keys.Value, keys.Permits}, args...).Int64Slice())(t)
		said := strings.Trim(fmt.Sprint(answer[min(3, len(answer)):]), "[]")
		assert.Equal(t, c.answer, said)
		var then []string
		for _, row := range rdb.ZRangeWithScores(t.Context(), keys.Permits, 0, -1).Val() {
			member := row.Member.(string)
			then = append(then, fmt.Sprintf("%c%d@%.0f", member[1], limitertest.PermitsIn(t, member), row.Score))
			assert.Greater(t, rdb.PTTL(t.Context(), keys.Permits).Val(), time.Minute)
		}
		assert.Equal(t, c.then, strings.Join(then, " "))
	})
}

// Members that another Client merges between two pages of Migrate hide none of an old layout.
func TestMigrate_WhileOthersMerge(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(10_000, interval))
	limitertest.MustAcquire(t, l, 1)
	keys := limitertest.KeysOf(l)
	add := func(ids *redisson.Identities, n int, ago time.Duration) (all []byte) {
		for range n {
			m := ids.Next(nil, 1)
			redisson.SetPermits(m, 1)
			all = append(all, m...)
			require.NoError(t, rdb.Do(t.Context(), "zadd", keys.Permits, time.Now().Add(-ago).UnixMilli(), m).Err())
			require.NoError(t, rdb.Decr(t.Context(), keys.Value).Err())
		}
		return all
	}
	add(redisson.NewIdentities(codec.LayoutC), 300, 10*time.Hour)
	ids := redisson.NewIdentities(codec.LayoutD2)
	fresh := add(ids, 16, 0)
	all, token := redisson.KeysOf(l.Name(), "id").List(), ""
	for page := 0; ; page++ {
		reply := limitertest.Must(rdb.Eval(t.Context(), lua.Migrate.Source, all, ids.Next(nil, 256), token).Result())(t)
		words, more := reply.([]any)
		if !more {
			assert.EqualValues(t, 300, reply)
			break
		}
		if token = words[1].(string); page == 0 {
			merged := ids.Next(nil, 1)
			redisson.SetPermits(merged, 16)
			require.NoError(t, rdb.Eval(t.Context(), lua.Merge.Source, all, 128, append(merged, fresh...)).Err())
			require.EqualValues(t, 302, rdb.ZCard(t.Context(), keys.Permits).Val())
		}
	}
	for _, m := range rdb.ZRange(t.Context(), keys.Permits, 0, -1).Val() {
		assert.Len(t, m, 21)
	}
}

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
	"Reset":                          {do: limitertest.Reset, rate: 1000, starts: true},
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
	"Migrate":                        {do: limitertest.Migrate, rate: 1000},
}

func keep(rate int64, interval time.Duration) limitertest.Change {
	return limitertest.UpdateRate(limitertest.Every(rate, interval), rratelimiter.KeepState())
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
