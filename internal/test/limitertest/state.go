package limitertest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// KeysOf returns the keys that all clients share; the client's own are those of
// an empty client id.
func KeysOf(l *rratelimiter.RateLimiter) redisson.Keys { return redisson.KeysOf(l.Name(), "") }

// Besides returns another name than the one given, in the same slot of a cluster.
func Besides(name string) string {
	if script.HashTag(name) != name {
		return name + "2"
	}
	return "{" + name + "}2"
}

// ServerNow returns the server's clock, in epoch milliseconds.
func ServerNow(t testing.TB, rdb redistest.Client) int64 {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UnixMilli()
}

// NewMember packs a member of the permits set as a Redisson release would.
func NewMember(t testing.TB, layout codec.Layout, permits uint32) string {
	t.Helper()
	sizes := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
	id := make([]byte, sizes[layout])
	_, _ = rand.Read(id)
	member, err := codec.Append(nil, layout, id, permits)
	require.NoError(t, err)
	return string(member)
}

// PermitsIn returns the permits that a member holds.
func PermitsIn(t testing.TB, member string) int64 {
	t.Helper()
	m, err := codec.Parse(member)
	require.NoError(t, err)
	return int64(m.Permits)
}

// addGrants has the server put the ids together: counting on from a first one
// costs a tenth of packing each member here.
var addGrants = redis.NewScript(`
local rows = {}
for i = tonumber(ARGV[4]), tonumber(ARGV[5]) do
	rows[#rows + 1] = ARGV[1]
	rows[#rows + 1] = ARGV[2] .. string.format('%08d', i) .. ARGV[3]
end
return redis.call('ZADD', KEYS[1], unpack(rows))`)

// AddGrants adds count members of that many permits each to the permits set, in layout D2, as
// granted age ago; a negative age dates them in the future. The value is left alone.
func AddGrants(t testing.TB, rdb redistest.Client, key string, age time.Duration, count int, permits uint32) {
	t.Helper()
	score := ServerNow(t, rdb) - age.Milliseconds()
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	member, err := codec.Append(nil, codec.LayoutD2, id, permits)
	require.NoError(t, err)
	before, after, found := strings.Cut(string(member), string(id))
	require.True(t, found)
	before += string(id[:8])
	for first := 1; first <= count; first += 2000 {
		last := min(count, first+1999)
		require.NoError(t, addGrants.Run(t.Context(), rdb, []string{key}, score, before, after, first, last).Err())
	}
}

// InUse returns the permits in the set, those that have run out included.
func InUse(t testing.TB, rdb redistest.Client, permitsKey string) int64 {
	t.Helper()
	members, err := rdb.ZRange(t.Context(), permitsKey, 0, -1).Result()
	require.NoError(t, err)
	sum := int64(0)
	for _, text := range members {
		member, err := codec.Parse(text)
		require.NoError(t, err)
		sum += int64(member.Permits)
	}
	return sum
}

// StoredValue returns the value key's number, and false if it is missing.
func StoredValue(t testing.TB, rdb redistest.Client, valueKey string) (int64, bool) {
	t.Helper()
	text, err := rdb.Get(t.Context(), valueKey).Result()
	if errors.Is(err, redis.Nil) {
		return 0, false
	}
	require.NoError(t, err)
	value, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return value, true
}

// KeyState is what Redis holds under one key.
type KeyState = redistest.Value

// ReadState returns all that Redis holds of the limiter called name, for all
// clients, by key.
func ReadState(t testing.TB, rdb redistest.Client, name string) map[string]KeyState {
	t.Helper()
	state := map[string]KeyState{}
	for _, key := range LimiterKeys(t, rdb, name) {
		state[key] = redistest.Read(t, rdb, key)
	}
	return state
}

// LimiterKeys returns the keys that exist of the limiter called name, for all
// clients, sorted.
func LimiterKeys(t testing.TB, rdb redistest.Client, name string) []string {
	t.Helper()
	set := redisson.KeysOf(name, "")
	tagged := strings.TrimSuffix(set.Value, "value")
	pattern := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(tagged) + "*"
	found := slices.DeleteFunc(redistest.Keys(t, rdb, pattern), func(key string) bool {
		return key != set.Value && key != set.Permits &&
			!strings.HasPrefix(key, set.ClientValue) && !strings.HasPrefix(key, set.ClientPermits)
	})
	n, err := rdb.Exists(t.Context(), name).Result()
	require.NoError(t, err)
	if n == 1 {
		found = append(found, name)
	}
	slices.Sort(found)
	return found
}

// TTLs returns the time to live of each key that exists of the limiter called
// name; -1 stands for none.
func TTLs(t testing.TB, rdb redistest.Client, name string) map[string]time.Duration {
	t.Helper()
	all := map[string]time.Duration{}
	for _, key := range LimiterKeys(t, rdb, name) {
		ttl, err := rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = ttl
	}
	return all
}

// RequireUntouched runs f and checks that it left all that Redis holds of the
// limiter as it was, times to live included, apart from what passes of them.
func RequireUntouched(t testing.TB, rdb redistest.Client, name string, f func()) {
	t.Helper()
	state, ttl := ReadState(t, rdb, name), TTLs(t, rdb, name)
	f()
	require.Equal(t, state, ReadState(t, rdb, name))
	for key, after := range TTLs(t, rdb, name) {
		require.InDelta(t, ttl[key], after, float64(10*time.Second), "time to live of %s", key)
	}
}

// Java does to a limiter's keys what Redisson 4.7.0 does, its mistakes included, one
// command after another: for tests in which nothing else is at work meanwhile.
type Java struct {
	Redis redistest.Client
	Name  string
	ID    string        // of its Redisson instance
	Fast  time.Duration // how far its clock is ahead of the server's
}

// errNilArithmetic is what its scripts fail with if a request is refused and
// nothing is in use.
var errNilArithmetic = errors.New("attempt to perform arithmetic on a nil value")

// pair returns the rate, the interval in ms and the two keys in use.
func (j Java) pair(t testing.TB) (rate, interval int64, valueKey, permitsKey string) {
	t.Helper()
	set := redisson.KeysOf(j.Name, j.ID)
	cfg, err := j.Redis.HGetAll(t.Context(), set.Config).Result()
	require.NoError(t, err)
	rate, err = strconv.ParseInt(cfg["rate"], 10, 64)
	require.NoError(t, err)
	interval, err = strconv.ParseInt(cfg["interval"], 10, 64)
	require.NoError(t, err)
	if cfg["type"] == "1" {
		return rate, interval, set.ClientValue, set.ClientPermits
	}
	return rate, interval, set.Value, set.Permits
}

// TryAcquire asks for permits and returns whether they were granted, else the wait.
func (j Java) TryAcquire(t testing.TB, permits int64) (granted bool, wait time.Duration, err error) {
	t.Helper()
	return j.Resend(t, permits, NewMember(t, codec.LayoutD2, uint32(permits)))
}

// Resend is TryAcquire with a given member: with the same one again it is the
// second copy of a request.
func (j Java) Resend(t testing.TB, permits int64, member string) (granted bool, wait time.Duration, err error) {
	t.Helper()
	rate, interval, valueKey, permitsKey := j.pair(t)
	now := ServerNow(t, j.Redis) + j.Fast.Milliseconds()
	value, there := StoredValue(t, j.Redis, valueKey)
	if !there {
		value = rate
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, value, 0).Err())
	} else if out := j.sweep(t, permitsKey, now-interval); out > 0 {
		if value += out; value > rate {
			value = rate - InUse(t, j.Redis, permitsKey)
		}
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, value, 0).Err())
	}
	defer j.tail(t, valueKey, permitsKey)
	if value >= permits {
		require.NoError(t, j.Redis.ZAdd(t.Context(), permitsKey, redis.Z{Score: float64(now), Member: member}).Err())
		require.NoError(t, j.Redis.DecrBy(t.Context(), valueKey, permits).Err())
		return true, 0, nil
	}
	first, err := j.Redis.ZRangeWithScores(t.Context(), permitsKey, 0, 0).Result()
	require.NoError(t, err)
	if len(first) == 0 {
		return false, 0, errNilArithmetic
	}
	return false, time.Duration(3+interval-(now-int64(first[0].Score))) * time.Millisecond, nil
}

// sweep removes the members of that score and below, and returns their permits.
func (j Java) sweep(t testing.TB, permitsKey string, score int64) int64 {
	t.Helper()
	before := InUse(t, j.Redis, permitsKey)
	require.NoError(t, j.Redis.ZRemRangeByScore(t.Context(), permitsKey, "-inf", fmt.Sprint(score)).Err())
	return before - InUse(t, j.Redis, permitsKey)
}

// tail puts the configuration's time to live on the pair.
func (j Java) tail(t testing.TB, valueKey, permitsKey string) {
	t.Helper()
	keepAlive, err := j.Redis.HGet(t.Context(), j.Name, "keepAliveTime").Int64()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	ttl := time.Duration(keepAlive) * time.Millisecond
	if ttl > 0 {
		require.NoError(t, j.Redis.PExpire(t.Context(), j.Name, ttl).Err())
	} else {
		ttl, err = j.Redis.PTTL(t.Context(), j.Name).Result()
		require.NoError(t, err)
	}
	if ttl > 0 {
		require.NoError(t, j.Redis.PExpire(t.Context(), valueKey, ttl).Err())
		require.NoError(t, j.Redis.PExpire(t.Context(), permitsKey, ttl).Err())
	}
}

// Release raises the value and leaves the set alone.
func (j Java) Release(t testing.TB, permits int64) {
	t.Helper()
	rate, _, valueKey, permitsKey := j.pair(t)
	value, there := StoredValue(t, j.Redis, valueKey)
	if !there {
		value = rate
	}
	require.NoError(t, j.Redis.SetArgs(t.Context(), valueKey, min(rate, value+permits), redis.SetArgs{KeepTTL: true}).Err())
	j.tail(t, valueKey, permitsKey)
}

// AvailablePermits reclaims without looking at the rate, and writes a value
// with no time to live.
func (j Java) AvailablePermits(t testing.TB) int64 {
	t.Helper()
	rate, interval, valueKey, permitsKey := j.pair(t)
	value, there := StoredValue(t, j.Redis, valueKey)
	if !there {
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, rate, 0).Err())
		return rate
	}
	if out := j.sweep(t, permitsKey, ServerNow(t, j.Redis)+j.Fast.Milliseconds()-interval); out > 0 {
		value += out
		require.NoError(t, j.Redis.Set(t.Context(), valueKey, value, 0).Err())
	}
	return value
}

// AsRedisson3123 takes permits as that release does, with plain commands, and
// reports whether they were free.
func AsRedisson3123(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	k := KeysOf(l)
	value, ok := StoredValue(t, rdb, k.Value)
	if !ok {
		rate := rdb.HGet(t.Context(), k.Config, "rate").Val()
		interval, err := rdb.HGet(t.Context(), k.Config, "interval").Int64()
		require.NoError(t, err)
		require.NoError(t, rdb.Set(t.Context(), k.Value, rate, time.Duration(interval)*time.Millisecond).Err())
	} else if value < permits {
		return false
	}
	require.NoError(t, rdb.DecrBy(t.Context(), k.Value, permits).Err())
	return true
}
