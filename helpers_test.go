package rratelimiter_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// virtual runs test in a bubble where time.Sleep moves both the program's clock
// and that of a server of the test's own.
func virtual(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	redistest.Virtual(t, test)
}

// newClient returns a Client that is closed when t ends.
func newClient(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.Option) *rratelimiter.Client {
	t.Helper()
	client := rratelimiter.New(rdb, opts...)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	return client
}

// newHandle returns a limiter of a new name and a Client of its own. Nothing is
// set up in Redis.
func newHandle(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	t.Helper()
	return newClient(t, rdb).RateLimiter(redistest.Name(t), opts...)
}

// queued returns how many requests for the limiter wait to be sent or to be sent
// again, for tests that want them in one batch.
func queued(client *rratelimiter.Client, limiter string) int {
	return engine.Of(client).Waiting(limiter)
}

// newLimiter is newHandle with a rate set.
func newLimiter(t testing.TB, rdb rratelimiter.Redis, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	t.Helper()
	l := newHandle(t, rdb)
	mustTrySetRate(t, l, cfg)
	return l
}

// every returns the Config of rate permits an interval, shared by all clients.
func every(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: interval}
}

// perClient returns the Config of rate permits an interval for each client.
func perClient(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: rratelimiter.PerClient, Rate: rate, Interval: interval}
}

// bothTypes runs test as a subtest for each type of limiter.
func bothTypes(t *testing.T, test func(t *testing.T, kind rratelimiter.RateType)) {
	t.Helper()
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

func mustTrySetRate(t testing.TB, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
	t.Helper()
	set, err := l.TrySetRate(t.Context(), cfg)
	require.NoError(t, err)
	require.True(t, set, "the limiter had a rate already")
}

// try asks once and tells whether the permits were granted.
func try(t testing.TB, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	ok, err := l.TryAcquire(t.Context(), permits, 0)
	require.NoError(t, err)
	return ok
}

// mustAcquire takes permits that must be free.
func mustAcquire(t testing.TB, l *rratelimiter.RateLimiter, permits int64) {
	t.Helper()
	require.True(t, try(t, l, permits), "%d permits were refused", permits)
}

// mustRefuse asks for permits that must not be free.
func mustRefuse(t testing.TB, l *rratelimiter.RateLimiter, permits int64) {
	t.Helper()
	require.False(t, try(t, l, permits), "%d permits were granted", permits)
}

// grants asks for one permit, tries times, and returns how often it was granted.
func grants(t testing.TB, l *rratelimiter.RateLimiter, tries int) int {
	t.Helper()
	granted := 0
	for range tries {
		if try(t, l, 1) {
			granted++
		}
	}
	return granted
}

func available(t testing.TB, l *rratelimiter.RateLimiter) int64 {
	t.Helper()
	permits, err := l.AvailablePermits(t.Context())
	require.NoError(t, err)
	return permits
}

// keysOf returns the keys that all clients share; the client's own are those of
// an empty client id.
func keysOf(l *rratelimiter.RateLimiter) redisson.Keys { return redisson.KeysOf(l.Name(), "") }

// besides returns another name than the one given, in the same slot of a
// cluster.
func besides(name string) string { return "{" + name + "}2" }

// serverNow returns the server's clock, in epoch milliseconds.
func serverNow(t testing.TB, rdb redis.UniversalClient) int64 {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UnixMilli()
}

// newMember packs a member of the permits set as a Redisson release would.
func newMember(t testing.TB, layout codec.Layout, permits uint32) string {
	t.Helper()
	sizes := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}
	id := make([]byte, sizes[layout])
	_, _ = rand.Read(id)
	member, err := codec.Append(nil, layout, id, permits)
	require.NoError(t, err)
	return string(member)
}

// addGrants adds count members of so many permits each to the permits set, in
// layout D2, as granted age ago; a negative age dates them in the future. The
// value is left alone.
func addGrants(t testing.TB, rdb redis.UniversalClient, key string, age time.Duration, count int, permits uint32) {
	t.Helper()
	score := float64(serverNow(t, rdb) - age.Milliseconds())
	for count > 0 {
		page := make([]redis.Z, min(count, 5000))
		for i := range page {
			page[i] = redis.Z{Score: score, Member: newMember(t, codec.LayoutD2, permits)}
		}
		require.NoError(t, rdb.ZAdd(t.Context(), key, page...).Err())
		count -= len(page)
	}
}

// used returns the permits in the set, those that have run out included.
func used(t testing.TB, rdb redis.UniversalClient, permitsKey string) int64 {
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

// storedValue returns the value key's number, and false where it is missing.
func storedValue(t testing.TB, rdb redis.UniversalClient, valueKey string) (int64, bool) {
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

// keyState is what Redis holds under one key.
type keyState struct {
	Type    string
	Text    string            // of a string
	Fields  map[string]string // of a hash
	Members []redis.Z         // of a sorted set
	Values  []string          // of a list or set, sorted
}

// readState returns all that Redis holds of the limiter called name, for all
// clients, by key.
func readState(t testing.TB, rdb redis.UniversalClient, name string) map[string]keyState {
	t.Helper()
	state := map[string]keyState{}
	for _, key := range limiterKeys(t, rdb, name) {
		kind, err := rdb.Type(t.Context(), key).Result()
		require.NoError(t, err)
		s := keyState{Type: kind}
		switch kind {
		case "string":
			s.Text, err = rdb.Get(t.Context(), key).Result()
		case "hash":
			s.Fields, err = rdb.HGetAll(t.Context(), key).Result()
		case "zset":
			s.Members, err = rdb.ZRangeWithScores(t.Context(), key, 0, -1).Result()
		case "list":
			s.Values, err = rdb.LRange(t.Context(), key, 0, -1).Result()
		case "set":
			s.Values, err = rdb.SMembers(t.Context(), key).Result()
			slices.Sort(s.Values)
		default:
			t.Fatalf("key %q is of type %s", key, kind)
		}
		require.NoError(t, err)
		state[key] = s
	}
	return state
}

// limiterKeys returns the keys that exist of the limiter called name, for all
// clients, sorted.
func limiterKeys(t testing.TB, rdb redis.UniversalClient, name string) []string {
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

// ttls returns the time to live of each key that exists of the limiter called
// name; -1 stands for none.
func ttls(t testing.TB, rdb redis.UniversalClient, name string) map[string]time.Duration {
	t.Helper()
	all := map[string]time.Duration{}
	for _, key := range limiterKeys(t, rdb, name) {
		ttl, err := rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = ttl
	}
	return all
}

// requireUntouched runs f and checks that it left all that Redis holds of the
// limiter as it was, times to live included, save for what passes of them.
func requireUntouched(t testing.TB, rdb redis.UniversalClient, name string, f func()) {
	t.Helper()
	state, ttl := readState(t, rdb, name), ttls(t, rdb, name)
	f()
	require.Equal(t, state, readState(t, rdb, name))
	for key, after := range ttls(t, rdb, name) {
		require.InDelta(t, ttl[key], after, float64(10*time.Second), "time to live of %s", key)
	}
}

// counter counts the commands that a go-redis client sends.
type counter struct {
	mu    sync.Mutex
	names map[string]int
}

// countCommands counts what rdb sends from now on.
func countCommands(rdb redis.UniversalClient) *counter {
	c := &counter{names: map[string]int{}}
	rdb.AddHook(c)
	return c
}

// total returns the number of commands sent, those of pipelines one by one.
func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for _, n := range c.names {
		sum += n
	}
	return sum
}

// scripts returns the number of script calls sent.
func (c *counter) scripts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names["evalsha"] + c.names["eval"]
}

func (c *counter) add(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		c.names[cmd.Name()]++
	}
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

// some returns a test's first case with -short, else all.
func some[T any](all []T) []T {
	if testing.Short() {
		return all[:1]
	}
	return all
}
