package dashboard

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestInVirtualTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"one poller": testOnePoller, "a Redis that goes away and comes back": testRedisThatGoesAway, "a Redis that hangs": testRedisThatHangs,
		"hostile names": testHostileNames, "turns": testTurns, "a viewer who is logged out": testStreamEndsWhenViewerIsLoggedOut, "an observer": testObserver,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

func testHostileNames(t *testing.T) {
	s := newSite(t)
	names := []string{
		`<img src=x onerror=alert(1)>`, "\u202egnp.exe", "\u05e9\u05dc", "a\x00b\xff\xfe", strings.Repeat("\x80\x01", 2048), "line\nfeed", " ",
	}
	for _, name := range names {
		s.limiter(name, rratelimiter.PerHour(10), 1)
	}
	all := rows(t, s.get("/api/limiters?limit=100&sort=name"), "limiters")
	assert.Len(t, all, len(names))
	for shown, row := range all {
		id, err := base64.RawURLEncoding.DecodeString(row["id"].(string))
		require.NoError(t, err)
		name := string(id)
		assert.Contains(t, names, name)
		assert.LessOrEqual(t, len(shown), 10*maxShown)
		assert.NotRegexp(t, "[\x00-\x1f\x7f\u202e\ufffd]", shown)
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

func TestCodeInDocs(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(string(text), "")
	}
	_, code, found := strings.Cut(read("../docs/dashboard.md"), "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "\n```")
	assert.Contains(t, read("example_test.go"), code)
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

// Each address has its share of the places, whatever a proxy says of its clients. If all are taken, others have one all the same, at
// the cost of the newest page of the address with most. A place is given back once, also by who has lost it.
func TestPlaces_AreSharedByAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.h.(*handler).poller
	var viewers []*viewer
	var leave []func()
	join := func(from string, most int) (n int) {
		for ; n < most; n++ {
			v := &viewer{kind: listEvent, from: from}
			l, err := p.join(v)
			if err != nil {
				break
			}
			viewers, leave = append(viewers, v), append(leave, l)
		}
		return n
	}
	const first = "192.0.2.1"
	assert.Equal(t, maxShare, join(first, maxViewers))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/limiters/stream", http.NoBody)
	r.RemoteAddr = first + ":5"
	r.Header.Set("X-Forwarded-For", "192.0.2.9")
	refused := s.do(r)
	assert.Equal(t, http.StatusServiceUnavailable, refused.Code)
	assert.Equal(t, "10", refused.Header().Get("Retry-After"))
	assert.Equal(t, maxShare, join("second", maxShare), "all places are taken")
	assert.Equal(t, maxViewers/3, join("third", maxViewers), "each has a third")
	require.NotContains(t, p.viewers, viewers[maxShare-1])
	<-viewers[maxShare-1].ended
	for _, l := range leave {
		l()
		l()
	}
	assert.Empty(t, p.viewers)

	for remote, want := range map[string]string{
		"192.0.2.1:5": first, "[::ffff:192.0.2.1]:5": first, "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:5": "fe80::/64", "@": "@", "": "",
	} {
		assert.Equal(t, want, addressOf(remote), remote)
	}
}

func TestRequests_RepeatedOnesAreSlowedDown(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/limiters", "/api/key?key=l:00", "/api/thresholds?hash=l:00"} {
		synctest.Test(t, func(t *testing.T) {
			rdb, mini := redistest.Mini(t)
			require.NoError(t, rdb.Ping(t.Context()).Err()) // from which on there is a server to hook
			for i := range 50 {
				mini.HSet("l:"+string(rune('a'+i)), "rate", "10", "interval", "1000", "type", "0")
			}
			s := siteOn(t, rdb, withLogs("l:00"), func(c *Config) { c.Reads = minReads })
			var sent atomic.Int64
			mini.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
				sent.Add(1)
				return false
			})
			const span = 20
			for start := time.Now(); time.Since(start) < span*time.Second; {
				s.read(path)
				time.Sleep(10 * time.Millisecond)
			}
			assert.Less(t, sent.Load(), int64(span*minReads*3/2), path)
		})
	}
}

// A stream ends soon after its viewer is logged out.
func testStreamEndsWhenViewerIsLoggedOut(t *testing.T) {
	rdb, _ := redistest.Mini(t)
	until := time.Now().Add(5 * time.Minute)
	s := siteOn(t, rdb, func(c *Config) {
		c.Authorize = func(*http.Request, Access) (string, error) {
			if time.Now().After(until) {
				return "ann", ErrUnauthenticated
			}
			return "ann", nil
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	s.do(httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/limiters/stream", http.NoBody))
	assert.WithinDuration(t, until, time.Now(), 2*time.Minute)
}

// A pattern must not match what Redis' own does not: the list goes by that.
func TestPattern_MatchesAsRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	text := func(letters string, most int) string {
		all := make([]byte, 1+rand.IntN(most))
		for i := range all {
			all[i] = letters[rand.IntN(len(letters))]
		}
		return string(all)
	}
	for range 200 {
		require.NoError(t, rdb.Set(t.Context(), text("abc-*]\\\x00", 5), 1, 0).Err())
	}
	names, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for range 3000 {
		pattern := text(`abc**??[[]]^-\`, 7)
		want, err := rdb.Keys(t.Context(), pattern).Result()
		require.NoError(t, err)
		got := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !matches(pattern, name) })
		require.ElementsMatch(t, want, got, "%q", pattern)
	}
	for pattern, name := range map[string]string{"": "any", "api:*": "api:\n", "*\x00*": "a\x00\nb", `[\]]`: "]"} {
		assert.True(t, matches(pattern, name), "%q %q", pattern, name)
	}
	assert.False(t, matches("api:*", "API:a"))
}

func testTurns(t *testing.T) {
	var all turns
	for range 30 {
		go func() { _ = all.wait(t.Context(), 10, 50) }()
	}
	synctest.Wait()
	assert.Error(t, all.wait(t.Context(), 10, 50), "a long wait is an error")
}

// A writer that can't flush is an error, not a viewer that has gone.
func TestStream_WriterWithoutFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/limiters/stream", http.NoBody)
	s.h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, r)
	assert.Contains(t, s.log.String(), "hides http.Flusher")
}

func testObserver(t *testing.T) {
	o := &Observer{}
	decided := func(name string, outcome limit.Outcome) {
		o.Decided(t.Context(), limit.Decided{Limiter: name, Outcome: outcome})
	}
	limitertest.Together(8, func(int) {
		for i := range 1000 {
			decided(strconv.Itoa(i%10), limit.Refused)
		}
	})
	decided("failed", limit.Failed)
	for i := range maxObserved + 1 {
		decided(strconv.Itoa(i), limit.Granted)
	}
	total, pace, _ := o.of("9")
	assert.Equal(t, int64(800), total)
	assert.InDelta(t, 80, pace, 1e-9)
	time.Sleep((refusalSpan - 1) * time.Second)
	_, pace, _ = o.of("9")
	assert.InDelta(t, 80, pace, 1e-9)
	time.Sleep(time.Second)
	decided("9", limit.Refused) // in the place of those
	_, pace, _ = o.of("9")
	assert.InDelta(t, 0.1, pace, 1e-9, "older ones no longer count")
	for name, want := range map[string]bool{strconv.Itoa(maxObserved - 1): true, strconv.Itoa(maxObserved): false, "failed": false} {
		_, _, known := o.of(name)
		assert.Equal(t, want, known, name)
	}
}
