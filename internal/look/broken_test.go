package look

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A limiter whose calls fail is shown as broken and first, by whatever reads it. What
// only looks a little like a limiter is an application's.
func TestBrokenLimiters(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Name(t)
		put := func(name string, fields ...any) (value, set string) {
			name = prefix + ":" + name
			require.NoError(t, rdb.HSet(t.Context(), name, fields...).Err())
			return "{" + name + "}:value", "{" + name + "}:permits"
		}
		good := []any{"rate", 10, "interval", 60_000, "type", 0}
		value, set := put("healthy", good...)
		require.NoError(t, rdb.Set(t.Context(), value, 6, 0).Err())
		limitertest.AddGrants(t, rdb, set, time.Second, 4, 1)
		_, set = put("set", good...)
		require.NoError(t, rdb.Set(t.Context(), set, "x", 0).Err())
		value, _ = put("value", good...)
		require.NoError(t, rdb.RPush(t.Context(), value, "x").Err())
		value, _ = put("text", good...)
		require.NoError(t, rdb.Set(t.Context(), value, "\x1b[31m"+strings.Repeat("many", 1000), 0).Err())
		_, set = put("member", good...)
		require.NoError(t, rdb.ZAdd(t.Context(), set, redis.Z{Score: 1, Member: "what is this"}).Err())
		value, set = put("mixed", good...)
		require.NoError(t, rdb.Set(t.Context(), value, 8, 0).Err())
		limitertest.AddGrants(t, rdb, set, 0, 1, 1)
		now := float64(limitertest.ServerNow(t, rdb))
		require.NoError(t, rdb.ZAdd(t.Context(), set, redis.Z{Score: now - 10, Member: limitertest.NewMember(t, codec.LayoutB, 1)}).Err())
		put("rate", "rate", "ten\a", "interval", 1000, "type", 0)
		put("interval", "rate", 10, "type", 0)
		put("type", "rate", 10, "interval", 1000)
		put("keep", "rate", 10, "interval", 1000, "type", 0, "keepAliveTime", "x")

		put("review", "rate", "4.5", "type", 1, "text", "good")
		put("car", "rate", 120, "type", "car")
		put("job", "interval", 60, "type", 1)
		put("loan", "rate", "12.5", "interval", "monthly", "type", "loan")
		put("user", "name", "ann")

		s := overview(t, NewReader(rdb, prefix+"*"), byUse())
		assert.Equal(t, []int{10, 9}, []int{s.Known, s.Broken})
		last := s.Limiters[len(s.Limiters)-1]
		assert.Equal(t, prefix+":healthy", last.Name, "what is broken comes first")
		got := map[string]string{}
		for _, l := range s.Limiters {
			name := strings.TrimPrefix(l.Name, prefix+":")
			got[name] = strings.ReplaceAll(l.Broken, prefix, "P")
			if name != "mixed" && name != "member" && l.Broken != "" {
				assert.Nil(t, l.Free, name)
			}
			found, err := Inspect(t.Context(), rdb, l.Name, nil)
			require.NoError(t, err)
			assert.Equal(t, l.Broken != "", found.Broken != "", "%s: %q", name, found.Broken)
			w := Watcher{Client: rdb, Name: l.Name}
			p, err := w.Sample(t.Context())
			require.NoError(t, err)
			assert.False(t, p.Gone)
			assert.Equal(t, l.Broken, p.Broken)
		}
		const number = ", not a whole number from 0 to 9007199254740991"
		mixed, _, _ := strings.Cut(got["mixed"], ", written")
		got["mixed"] = mixed
		assert.Equal(t, map[string]string{
			"healthy": "", "set": "key {P:set}:permits is not a sorted set", "value": "key {P:value}:value is not a string",
			"text":   `key {P:text}:value holds "\x1b[31m` + strings.Repeat("many", 8) + `man"..., not a whole number`,
			"member": "1 member of {P:member}:permits: no release of Redisson writes such a member",
			"mixed":  "{P:mixed}:permits has layouts B, D2", "rate": `field rate is "ten\a"` + number,
			"interval": "field interval is missing", "type": "field type is missing", "keep": `field keepAliveTime is "x"` + number,
		}, got)

		require.NoError(t, rdb.Set(t.Context(), prefix+":string", "x", 0).Err())
		w := Watcher{Client: rdb, Name: prefix + ":string"}
		p, err := w.Sample(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "key "+prefix+":string is not a hash", p.Broken)
		w.Name = prefix + ":review"
		p, err = w.Sample(t.Context())
		require.NoError(t, err)
		assert.True(t, p.Gone)
	})
}

// A mended limiter is no longer broken, and one that breaks while it is shown is.
func TestBrokenComesAndGoes(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	put := func(rate any) {
		require.NoError(t, rdb.HSet(t.Context(), "orders", "rate", rate, "interval", 60_000, "type", 0).Err())
	}
	r := NewReader(rdb, "")
	shown := func() string {
		s := overview(t, r, byUse())
		if len(s.Limiters) == 0 {
			return "none"
		}
		return s.Limiters[0].Broken
	}
	put(10)
	assert.Empty(t, shown())
	put("ten")
	assert.Contains(t, shown(), "field rate is")
	put(10)
	assert.Empty(t, shown())
	require.NoError(t, rdb.Set(t.Context(), "{orders}:permits", "x", 0).Err())
	assert.Contains(t, shown(), "is not a sorted set")
	require.NoError(t, rdb.Del(t.Context(), "{orders}:permits").Err())
	assert.Empty(t, shown())
	require.NoError(t, rdb.Del(t.Context(), "orders").Err())
	require.NoError(t, rdb.Set(t.Context(), "orders", "x", 0).Err())
	assert.Equal(t, "none", shown(), "a key of another type is not looked for")
}
