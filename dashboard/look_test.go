package dashboard

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

func testMergedMembers(t *testing.T) {
	s := newSite(t)
	s.client(func(client *rratelimiter.Client) {
		limiter := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerDay(10_000)))
		for range 67 {
			time.Sleep(100 * time.Millisecond)
			require.True(t, limitertest.Try(t, limiter, 1))
		}
		found := s.show("orders")
		has(t, m{"in_use": 67.0}, found)
		assert.InDelta(t, 10, found["granted_per_second"], 1)
		has(t, m{"merged": 1.0, "late_ms": 1_350_000.0}, found["states"].([]any)[0].(m))
	})
}

// The figures count the grants in a second, and answers wait for their turns.
func TestInVirtualTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"merged members": testMergedMembers, "one poller": testOnePoller,
		"a Redis that goes away and comes back": testRedisThatGoesAway, "a Redis that hangs": testRedisThatHangs,
		"hostile names": testHostileNames,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

func testHostileNames(t *testing.T) {
	s := newSite(t)
	names := []string{
		`<img src=x onerror=alert(1)>`, "\u202egnp.exe", "\u05e9\u05dc\u05d5\u05dd", "a\x00b\xff\xfe", strings.Repeat("\x80\x01", 2048),
		"line\nfeed", `"quoted"`, " ", "</script>",
	}
	for _, name := range names {
		s.limiter(name, rratelimiter.PerHour(10), 1)
	}
	all := rows(t, s.get("/api/limiters?limit=100&sort=name"), "limiters")
	assert.Len(t, all, len(names))
	for _, row := range all {
		id, err := base64.RawURLEncoding.DecodeString(row["id"].(string))
		require.NoError(t, err)
		name := string(id)
		assert.Contains(t, names, name)
		shown := row["name"].(string)
		assert.LessOrEqual(t, len(shown), 10*maxShown)
		for _, r := range shown {
			assert.False(t, r < ' ' || r == 0x7f || r == '\u202e' || r == '\ufffd', "%q is shown as %q", name, shown)
		}
		has(t, m{"exists": true}, s.show(name), "%q", name)
		s.play(`change rate?name=NAME {"rate":20} => {"limiter":{"name":"~^[^\\x00]*$"}}`, "NAME", url.QueryEscape(name))
	}
	assert.NotContains(t, s.read("/api/limiters?limit=100").Body.String(), "<img", "not even in JSON")
}

func testOnePoller(t *testing.T) {
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	pollers := func() (n int) {
		synctest.Wait()
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		of := fmt.Sprintf("(*poller).loop(%p", s.h.(*handler).poller)
		return strings.Count(string(stacks), of)
	}
	assert.Zero(t, pollers())
	s.follow("/api/limiters/stream", func(kind string, list m) bool {
		assert.Equal(t, listEvent, kind)
		s.follow("/api/limiter/stream?name=orders", func(kind string, one m) bool {
			assert.Equal(t, limiterEvent, kind)
			has(t, m{"name": "orders"}, one)
			assert.Equal(t, 1, pollers())
			return true
		})
		return len(list["limiters"].([]any)) == 1
	})
	time.Sleep(time.Minute)
	assert.Zero(t, pollers())
	s.get("/api/limiters") // and again for the next viewer
}

func testRedisThatGoesAway(t *testing.T) {
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	var seen []string
	s.follow("/api/limiters/stream", func(kind string, _ m) bool {
		if len(seen) == 0 || seen[len(seen)-1] != kind {
			seen = append(seen, kind)
		}
		mini.SetError("")
		if kind == listEvent && len(seen) == 1 {
			mini.SetError("LOADING Redis is loading the dataset in memory")
		}
		return len(seen) == 3
	})
	assert.Equal(t, []string{listEvent, faultEvent, listEvent}, seen)
}

func testRedisThatHangs(t *testing.T) {
	s := newSite(t)
	p := s.h.(*handler).poller
	p.running, p.stop = true, func() {} // and under way with a question
	s.follow("/api/limiters/stream", func(kind string, data m) bool {
		assert.Equal(t, faultEvent, kind)
		assert.Contains(t, data["message"], "does not answer in time")
		return true
	})
}

// The commands a second are bounded, however many limiters there are.
func TestManyLimitersAreReadInSmallSteps(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	prefix := redistest.Name(t)
	pipe := rdb.Pipeline()
	for i := range 3000 {
		pipe.HSet(t.Context(), fmt.Sprint(prefix, ":", i), "rate", 100, "interval", 60_000, "type", 0)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
	s := siteOn(t, rdb, func(c *Config) { c.Reads, c.Pattern = 1000, prefix+"*" })
	list := s.get("/api/limiters?limit=10")
	has(t, m{"complete": false}, list, "the first answer does not wait for all keys")
	assert.LessOrEqual(t, list["cost"].(m)["commands_per_second"], 2500.0)
	assert.Len(t, list["limiters"], 10)
}

// A rate and a threshold count from the next request on, also in other processes.
func TestOnAllServers(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		name := redistest.Name(t)
		hash, key := name+":config", name+":log"
		s := siteOn(t, rdb, withLogs(hash), func(c *Config) { c.Pattern = name + "*" })
		s.limiter(name, rratelimiter.PerHour(10), 4)
		has(t, m{"free": 6.0}, s.limiters()[name])
		other := limitertest.NewClient(t, rdb).RateLimiter(name)
		require.ErrorIs(t, limitertest.Second(other.TryAcquire(t.Context(), 15, 0)), rratelimiter.ErrPermitsExceedRate)
		s.play(`change rate?name=NAME {"rate":20}`, "NAME", url.QueryEscape(name))
		has(t, m{"free": 16.0}, s.show(name))
		assert.True(t, limitertest.Try(t, other, 15))
		s.play("change delete?name=NAME", "NAME", url.QueryEscape(name))
		has(t, m{"exists": false}, s.show(name))

		log := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 1, Window: time.Hour, Thresholds: hash})
		takes := func(want bool) {
			t.Helper()
			d, err := log.Take(t.Context(), key, 1)
			require.NoError(t, err)
			assert.Equal(t, want, d.Granted)
		}
		takes(true)
		takes(false)
		s.play(`change threshold?OF {"threshold":2}`, "OF", ofKey(hash, key))
		takes(true)
		takes(false)
		s.play("change unthreshold?OF", "OF", ofKey(hash, key))
		takes(false)
		t.Cleanup(func() { rdb.Unlink(context.Background(), key, hash) })
	})
}

// A user who may not read one limiter in full still sees the list.
func TestList_UserWithoutInspect(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	name := redistest.Name(t)
	siteOn(t, server.Client(t, nil)).limiter(name, rratelimiter.PerHour(10), 4)
	user := redistest.AddUser(t, server, nil, "~*", "+@read", "+scan", "+time", "-multi")
	s := siteOn(t, user, func(c *Config) { c.Pattern = name + "*" })
	assert.Contains(t, s.limiters(), name)
	assert.Equal(t, http.StatusServiceUnavailable, s.read("/api/limiter?name="+url.QueryEscape(name)).Code)
	assert.Contains(t, s.limiters(), name)
}

func TestCodeInDocs(t *testing.T) {
	t.Parallel()
	lines := func(path string) (all []string) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			all = append(all, strings.TrimSpace(line))
		}
		return all
	}
	example := strings.Join(lines("example_test.go"), "\n")
	_, code, found := strings.Cut(strings.Join(lines("../docs/dashboard.md"), "\n"), "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "\n```")
	assert.Contains(t, example, code)
}

func TestAbout_NamesTheAddressUnlessServerIsSet(t *testing.T) {
	t.Parallel()
	has(t, m{"server": "a test"}, newSite(t).get("/api/about"))
	for want, rdb := range map[string]redis.UniversalClient{
		"cache:6379":         redis.NewClient(&redis.Options{Addr: "cache:6379", Password: "secret"}),
		"one:6379, two:6379": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"one:6379", "two:6379"}}),
		"a:1, b:2":           redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"shard2": "b:2", "shard1": "a:1"}}),
	} {
		t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
		has(t, m{"server": want}, newSite(t, func(c *Config) { c.Redis, c.Server = rdb, "" }).get("/api/about"))
	}
}
