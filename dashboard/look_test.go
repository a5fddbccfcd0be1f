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

// names returns those of the rows, in their order.
func names(list m) (all []any) {
	for _, item := range list["limiters"].([]any) {
		all = append(all, item.(m)["name"])
	}
	return all
}

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
		"hostile names": testHostileNames, "limiters that are broken": testLimitersThatAreBroken,
		"refusals come from an observer": testRefusalsComeFromAnObserver,
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

func testRefusalsComeFromAnObserver(t *testing.T) {
	observer := &Observer{}
	s := newSite(t, func(c *Config) { c.Observer = observer })
	s.limiter("quiet", rratelimiter.PerHour(10), 9)
	s.client(func(client *rratelimiter.Client) {
		busy := client.RateLimiter("busy", rratelimiter.WithDefault(rratelimiter.PerHour(10)))
		for range 3 {
			limitertest.Try(t, busy, 6)
		}
	}, rratelimiter.WithObserver(observer))
	list := s.get("/api/limiters?sort=refusals&limit=1")
	has(t, m{"refused": 2.0, "refused_per_second": 0.2, "state": "refusing"}, rows(t, list, "limiters")["busy"], "%v", list)
	has(t, m{"free": 4.0, "state": "refusing"}, s.show("busy"))
	assert.Equal(t, []any{"busy", "quiet"}, names(s.get("/api/limiters")), "before what is more in use")
	has(t, m{"refused": nil}, rows(t, s.get("/api/limiters"), "limiters")["quiet"])
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

// A limiter whose calls fail must not look like one that is unused.
func testLimitersThatAreBroken(t *testing.T) {
	s := newSite(t)
	ctx := t.Context()
	damage := map[string]func(name string) error{
		"set is text":     func(name string) error { return s.rdb.Set(ctx, "{"+name+"}:permits", "x", 0).Err() },
		"value is a list": func(name string) error { return s.rdb.RPush(ctx, "{"+name+"}:value", "x").Err() },
		"value is a word": func(name string) error { return s.rdb.Set(ctx, "{"+name+"}:value", "many", 0).Err() },
	}
	for name, spoil := range damage {
		s.limiter(name, rratelimiter.PerHour(10), 0)
		require.NoError(t, spoil(name))
		s.client(func(client *rratelimiter.Client) {
			require.ErrorIs(t, limitertest.Second(client.RateLimiter(name).TryAcquire(ctx, 1, 0)), rratelimiter.ErrCorrupt, name)
		})
	}
	s.limiter("healthy", rratelimiter.PerHour(10), 9)
	list := s.limiters()
	require.Len(t, list, 4)
	for name := range damage {
		has(t, m{"use": nil, "free": nil, "in_use": nil}, list[name], name)
		assert.NotEmpty(t, list[name]["broken"], name)
		has(t, m{"free": nil, "in_use": nil}, s.show(name), name)
		has(t, m{"state": "broken"}, s.show(name), name)
		assert.Equal(t, name == "set is text", s.read("/api/clients?name="+url.QueryEscape(name)).Code == http.StatusConflict, name)
		_, preview := s.post("/api/preview/delete?name="+url.QueryEscape(name), m{})
		inUse := facts(preview["before"])[factInUse]
		assert.Equal(t, name != "value is a word", inUse == "not known", "%s: %s", name, inUse)
	}
	has(t, m{"broken": nil, "state": "fine", "use": 0.9}, list["healthy"])
	for _, row := range s.get("/api/limiters?limit=3")["limiters"].([]any) {
		assert.NotEmpty(t, row.(m)["broken"], "they come before what is in use")
	}

	// A limiter that nearly is one is no healthy one either.
	require.NoError(t, s.rdb.HSet(ctx, "nearly", "rate", "ten", "interval", "1000", "type", "0").Err())
	require.Eventually(t, func() bool { return s.limiters()["nearly"] != nil }, time.Minute, 10*time.Millisecond)
	assert.Contains(t, s.limiters()["nearly"]["broken"], "rate, interval or type")
	has(t, m{"broken": 4.0}, s.get("/api/limiters"))
	assert.Contains(t, s.show("nearly")["broken"], "rate, interval or type")
	assert.Equal(t, looksBroken, s.looks("nearly"))

	// A mended limiter is shown as such.
	require.NoError(t, s.rdb.Del(ctx, "{set is text}:permits").Err())
	require.Eventually(t, func() bool { return s.limiters()["set is text"]["broken"] == nil }, time.Minute, 10*time.Millisecond)
	has(t, m{"broken": nil}, s.show("set is text"))
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
