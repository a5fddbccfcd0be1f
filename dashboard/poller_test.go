package dashboard

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
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
		"hostile names": testHostileNames, "a stream of a HEAD": testStreamHeadEndsAtOnce, "turns": testTurns,
		"a viewer who is logged out": testStreamEndsWhenViewerIsLoggedOut, "an observer of what comes at once": testObserverCountsWhatComesAtOnce,
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

// slow is a client that reads nothing of an answer until it goes on.
type slow struct {
	*httptest.ResponseRecorder

	begun, goOn chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	close(s.begun)
	<-s.goOn
	return s.ResponseRecorder.Write(p)
}

// A slow reader holds no place, and Redis is not asked on its behalf.
func TestAnswer_SlowReaderHoldsNoPlace(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := &slow{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/limiters", http.NoBody))
	}()
	<-w.begun
	p := s.h.(*handler).poller
	p.mu.Lock()
	assert.Empty(t, p.viewers)
	p.mu.Unlock()
	close(w.goOn)
	<-ended
}

func TestAuthorize_Panics(t *testing.T) {
	t.Parallel()
	angry := true
	s := newSite(t, func(c *Config) {
		c.Authorize = func(*http.Request, Access) (string, error) {
			if angry {
				panic("angry")
			}
			return "ann", nil
		}
	})
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	for _, path := range []string{"/api/change", "/api/preview"} {
		assert.Panics(t, func() { s.do(s.request(path+"/rate?name=orders", m{"rate": 20})) })
	}
	assert.Panics(t, func() { s.read("/api/about") })
	angry = false
	s.play(`change rate?name=orders {"rate":20}`)
}

// An answer has at most some kilobytes of what a key holds.
func TestHugeTextsAreCutShort(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("thresholds"))
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	huge := strings.Repeat("\u2028\x00\xff\n", 1<<17)
	require.NoError(t, s.rdb.Set(t.Context(), "{orders}:value", huge, 0).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "damaged", "rate", huge, "interval", 1, "type", 0).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "thresholds", "log:ann", huge).Err())
	for _, path := range []string{
		"/api/limiter?name=orders", "/api/limiter?name=damaged", "/api/thresholds?hash=thresholds",
		"/api/key?key=%7Borders%7D:value",
	} {
		w := s.read(path)
		assert.Equal(t, http.StatusOK, w.Code, path)
		assert.Less(t, w.Body.Len(), 32<<10, path)
	}
	w := s.do(s.request("/api/preview/unthreshold?hash=thresholds&key=log:ann", m{}))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Less(t, w.Body.Len(), 32<<10)
}

// An answer without a body ends at once, and takes no place.
func testStreamHeadEndsAtOnce(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/api/limiters/stream", "/api/limiter/stream?name=orders", "/api/others/stream"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		w := s.do(httptest.NewRequestWithContext(ctx, http.MethodHead, path, http.NoBody))
		assert.NoError(t, ctx.Err(), path)
		assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"), path)
		cancel()
	}
}

type stream struct {
	status int
	later  string // Retry-After
	body   io.Reader
}

// from opens a stream from an address of this machine.
func from(t *testing.T, url, address string) stream {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("X-Forwarded-For", fmt.Sprintf("10.0.0.%d", len(t.Name())%250)) // which counts for nothing
	answer, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = answer.Body.Close()
	})
	return stream{answer.StatusCode, answer.Header.Get("Retry-After"), answer.Body}
}

func TestPlacesAreSharedByAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := httptest.NewServer(s.h)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // before that: streams have no end of their own
	url := server.URL + "/api/limiters/stream"
	for i := range maxShare {
		require.Equal(t, http.StatusOK, from(t, url, "127.0.0.1").status, "%d", i)
	}
	refused := from(t, url, "127.0.0.1")
	assert.Equal(t, http.StatusServiceUnavailable, refused.status)
	assert.Equal(t, "10", refused.later)
	var last stream
	for i := range maxShare {
		last = from(t, url, "127.0.0.2")
		require.Equal(t, http.StatusOK, last.status, "%d", i)
	}
	// All places are taken by two. Each other address has one all the same, at the cost of the
	// newest page of the address with most.
	ended := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, last.body)
		ended <- n
	}()
	for i := 3; i < 13; i++ {
		require.Equal(t, http.StatusOK, from(t, url, fmt.Sprint("127.0.0.", i)).status, "%d", i)
	}
	<-ended
	p := s.h.(*handler).poller
	p.mu.Lock()
	assert.Len(t, p.viewers, maxViewers)
	p.mu.Unlock()
	assert.Equal(t, http.StatusOK, from(t, server.URL+"/api/limiters", "127.0.0.20").status, "nor do single answers wait")
}

func TestAddressOf(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:5": "fe80::/64", "@": "@", "": "",
	} {
		assert.Equal(t, want, addressOf(remote), remote)
	}
}

// A place is given back once, also by who has lost it.
func TestStream_LostPlaceIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	p := newSite(t).h.(*handler).poller
	var leave []func()
	join := func(from string) error {
		l, err := p.join(&viewer{kind: listEvent, from: from})
		if err == nil {
			leave = append(leave, l)
		}
		return err
	}
	for i := range maxViewers {
		require.NoError(t, join(strings.Repeat("x", i%2)))
	}
	require.NoError(t, join("new"))
	for i := range maxViewers/3 - 1 {
		require.NoError(t, join("new"), "%d", i)
	}
	require.Error(t, join("new"), "each of three has its third")
	for _, l := range leave {
		l()
		l()
	}
	assert.Empty(t, p.viewers)
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

// A writer that can't flush is an error, not a viewer that has gone.
func TestStream_WriterWithoutFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/limiters/stream", http.NoBody)
	s.h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, r)
	assert.Contains(t, s.log.String(), "hides http.Flusher")
}

func testTurns(t *testing.T) {
	var all turns
	start := time.Now()
	for range 5 {
		require.NoError(t, all.wait(t.Context(), 10, 50))
	}
	assert.Equal(t, 800*time.Millisecond, time.Since(start))
	for range 30 {
		go func() { _ = all.wait(t.Context(), 10, 50) }()
	}
	synctest.Wait()
	assert.Error(t, all.wait(t.Context(), 10, 50), "a long wait is an error")
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

func TestOldRefusalsNoLongerCount(t *testing.T) {
	t.Parallel()
	r, now := &refusals{}, time.Unix(1000, 0)
	for range 5 {
		r.add(now)
	}
	assert.InDelta(t, 0.5, r.pace(now.Add((refusalSpan-1)*time.Second)), 1e-9)
	assert.Zero(t, r.pace(now.Add(refusalSpan*time.Second)))
	r.add(now.Add(refusalSpan * time.Second))
	assert.InDelta(t, 0.1, r.pace(now.Add(refusalSpan*time.Second)), 1e-9, "the second's place is used again")
	assert.Equal(t, int64(6), r.total.Load())
}

func testObserverCountsWhatComesAtOnce(t *testing.T) {
	o := &Observer{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				name := strconv.Itoa(i % 10)
				o.Decided(t.Context(), limit.Decided{Limiter: name, Outcome: limit.Refused})
				o.Decided(t.Context(), limit.Decided{Limiter: name, Outcome: limit.Granted})
				o.Decided(t.Context(), limit.Decided{Limiter: "failed", Outcome: limit.Failed})
			}
		})
	}
	all.Wait()
	for i := range 10 {
		total, pace, known := o.of(strconv.Itoa(i))
		assert.True(t, known)
		assert.Equal(t, int64(800), total)
		assert.InDelta(t, 80, pace, 1e-9)
	}
	_, _, known := o.of("failed")
	assert.False(t, known)
}

func TestObserver_CountsSoManyLimiters(t *testing.T) {
	t.Parallel()
	o := &Observer{}
	for i := range maxObserved + 1 {
		o.Decided(t.Context(), limit.Decided{Limiter: strconv.Itoa(i), Outcome: limit.Refused})
	}
	_, _, known := o.of(strconv.Itoa(maxObserved - 1))
	assert.True(t, known)
	_, _, known = o.of(strconv.Itoa(maxObserved))
	assert.False(t, known)
}

// What a decision costs its caller. All others count too.
func BenchmarkObserver(b *testing.B) {
	for _, d := range []limit.Decided{{Limiter: "api", Outcome: limit.Granted}, {Limiter: "api", Outcome: limit.Refused}} {
		b.Run(string(d.Outcome), func(b *testing.B) {
			o := &Observer{}
			b.ReportAllocs()
			b.RunParallel(func(next *testing.PB) {
				for next.Next() {
					o.Decided(b.Context(), d)
				}
			})
		})
	}
}
