package limitertest

import (
	"cmp"
	"crypto/rand"
	"errors"
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
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// KeysOf returns the keys that all clients share; the client's own are those of an empty client id.
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
	return Must(rdb.Time(t.Context()).Result())(t).UnixMilli()
}

// NewMember packs a member of the permits set as a Redisson release would.
func NewMember(t testing.TB, layout codec.Layout, permits uint32) string {
	t.Helper()
	sizes := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
	id := make([]byte, sizes[layout])
	_, _ = rand.Read(id)
	return string(Must(codec.Append(nil, layout, id, permits))(t))
}

// PermitsIn returns the permits that a member holds.
func PermitsIn(t testing.TB, member string) int64 {
	t.Helper()
	return int64(Must(codec.Parse(member))(t).Permits)
}

// addGrants has the server put the ids together: counting on from a first one costs a tenth of packing each member here.
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
	before, after, found := strings.Cut(string(Must(codec.Append(nil, codec.LayoutD2, id, permits))(t)), string(id))
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
	members := Must(rdb.ZRange(t.Context(), permitsKey, 0, -1).Result())(t)
	sum := int64(0)
	for _, member := range members {
		sum += PermitsIn(t, member)
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
	return Must(strconv.ParseInt(text, 10, 64))(t), true
}

// KeyState is what Redis holds under one key.
type KeyState = redistest.Value

// ReadState returns all that Redis holds of the limiter called name, for all clients, by key.
func ReadState(t testing.TB, rdb redistest.Client, name string) map[string]KeyState {
	t.Helper()
	state := map[string]KeyState{}
	for _, key := range LimiterKeys(t, rdb, name) {
		state[key] = redistest.Read(t, rdb, key)
	}
	return state
}

// LimiterKeys returns the keys that exist of the limiter called name, for all clients, sorted.
func LimiterKeys(t testing.TB, rdb redistest.Client, name string) []string {
	t.Helper()
	set := redisson.KeysOf(name, "")
	tagged := strings.TrimSuffix(set.Value, "value")
	pattern := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(tagged) + "*"
	found := slices.DeleteFunc(redistest.Keys(t, rdb, pattern), func(key string) bool {
		return key != set.Value && key != set.Permits &&
			!strings.HasPrefix(key, set.ClientValue) && !strings.HasPrefix(key, set.ClientPermits)
	})
	if Must(rdb.Exists(t.Context(), name).Result())(t) == 1 {
		found = append(found, name)
	}
	slices.Sort(found)
	return found
}

// TTLs returns the time to live of each key that exists of the limiter called name; -1 stands for none.
func TTLs(t testing.TB, rdb redistest.Client, name string) map[string]time.Duration {
	t.Helper()
	all := map[string]time.Duration{}
	for _, key := range LimiterKeys(t, rdb, name) {
		all[key] = Must(rdb.PTTL(t.Context(), key).Result())(t)
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

// Java does to a limiter's keys what a Redisson does, mistakes included, by the model of its release, while nothing else is at work.
type Java struct {
	Redis   redistest.Client
	Name    string
	ID      string        // of its Redisson instance
	Version string        // 4.7.0 unless another is named
	Fast    time.Duration // how far its clock is ahead of the server's
}

// call makes a call, and returns what it answers. What it grants stands in the set as that member.
func (j Java) call(t testing.TB, do string, permits int64, member string) string {
	t.Helper()
	ctx, keys, release := t.Context(), redisson.KeysOf(j.Name, j.ID), model.ReleaseOf(cmp.Or(j.Version, "4.7.0"))
	config := Must(j.Redis.HGetAll(ctx, keys.Config).Result())(t)
	if config["type"] == "1" {
		keys.Value, keys.Permits = keys.ClientValue, keys.ClientPermits
	}
	now, all, err := model.Look(ctx, j.Redis, []string{keys.Config, keys.Value, keys.Permits})
	require.NoError(t, err)
	before := Must(model.PairOf(all[1], all[2], now))(t)
	c := &model.Call{State: model.NewState(), Who: model.Client{ID: j.ID, Layout: release.Layout}, Now: now + j.Fast.Milliseconds()}
	c.Config, c.Pairs[""], c.Pairs[j.ID] = config, before, before
	if ttl := all[0].TTL; ttl >= 0 {
		c.ConfigEnd = now + ttl.Milliseconds()
	}
	did := release.Outcomes(c, model.Op{Do: do, Permits: permits})[0]
	c.State = did.State
	after, pipe := c.Pair(), j.Redis.TxPipeline()
	for _, row := range before.Rows {
		if !slices.Contains(after.Rows, row) {
			pipe.ZRem(ctx, keys.Permits, string(row.Member))
		}
	}
	for _, row := range after.Rows {
		if row.Member == "" {
			pipe.ZAdd(ctx, keys.Permits, redis.Z{Score: float64(row.At), Member: member})
		}
	}
	if before.HasValue && (before.ValueEnd == 0 || after.ValueEnd != 0) {
		pipe.IncrBy(ctx, keys.Value, after.Value-before.Value)
	} else if after.HasValue {
		pipe.Set(ctx, keys.Value, after.Value, 0)
	}
	for key, end := range map[string]int64{keys.Config: c.ConfigEnd, keys.Value: after.ValueEnd, keys.Permits: after.RowsEnd} {
		if end != 0 {
			pipe.PExpireAt(ctx, key, time.UnixMilli(end))
		}
	}
	require.NoError(t, Second(pipe.Exec(ctx)))
	return did.Text
}

// TryAcquire asks for permits and returns whether they were granted.
func (j Java) TryAcquire(t testing.TB, permits int64) (granted bool, err error) {
	t.Helper()
	return j.Resend(t, permits, NewMember(t, codec.LayoutD2, uint32(permits)))
}

// Resend is TryAcquire with a given member: with the same one again it is the second copy of a request.
func (j Java) Resend(t testing.TB, permits int64, member string) (granted bool, err error) {
	t.Helper()
	said := j.call(t, "tryAcquire", permits, member)
	if said != "true" && said != "false" {
		err = errors.New(said)
	}
	return said == "true", err
}

// Release raises the value and leaves the set alone.
func (j Java) Release(t testing.TB, permits int64) {
	t.Helper()
	require.Equal(t, "done", j.call(t, "release", permits, ""))
}

// AvailablePermits reclaims without looking at the rate, and writes a value with no time to live.
func (j Java) AvailablePermits(t testing.TB) int64 {
	t.Helper()
	return Must(strconv.ParseInt(j.call(t, "availablePermits", 0, ""), 10, 64))(t)
}

// AsRedisson3123 takes permits as that release does, and reports whether they were free.
func AsRedisson3123(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	return Must(Java{Redis: rdb, Name: l.Name(), Version: "3.12.3"}.TryAcquire(t, permits))(t)
}
