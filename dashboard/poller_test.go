package dashboard

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

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
func TestStream_HeadEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		for _, path := range []string{"/api/limiters/stream", "/api/limiter/stream?name=orders", "/api/others/stream"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			w := s.do(httptest.NewRequestWithContext(ctx, http.MethodHead, path, http.NoBody))
			assert.NoError(t, ctx.Err(), path)
			assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"), path)
			cancel()
		}
	})
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
func TestStream_EndsWhenViewerIsLoggedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// A writer that can't flush is an error, not a viewer that has gone.
func TestStream_WriterWithoutFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/limiters/stream", http.NoBody)
	s.h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, r)
	assert.Contains(t, s.log.String(), "hides http.Flusher")
}

func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	})
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

func TestObserver_CountsWhatComesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	})
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
