package merging_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	member, err := codec.Append(nil, codec.LayoutD2, []byte(strings.Repeat(word[:1], 16)), permits)
	require.NoError(t, err)
	return string(member)
}

func TestScript(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, scriptCases, func(t *testing.T, rdb redistest.Client, c scriptCase) {
		keys := redisson.KeysOf("limiter", "")
		require.NoError(t, rdb.HSet(t.Context(), keys.Config, "rate", cmp.Or(c.rate, 1000), "interval", 64_000, "type", 0).Err())
		for word := range strings.FieldsSeq(c.set) {
			member, at, _ := strings.Cut(word, "@")
			score, err := strconv.ParseFloat(at, 64)
			require.NoError(t, err)
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
		answer, err := rdb.Eval(t.Context(), lua.Merge.Source, []string{keys.Config, keys.Value, keys.Permits}, args...).Int64Slice()
		require.NoError(t, err)
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
		reply, err := rdb.Eval(t.Context(), lua.Migrate.Source, all, ids.Next(nil, 256), token).Result()
		require.NoError(t, err)
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
