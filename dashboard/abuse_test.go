package dashboard

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// slow is who takes nothing of an answer until let go.
type slow struct {
	*httptest.ResponseRecorder

	begun, goOn chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	close(s.begun)
	<-s.goOn
	return s.ResponseRecorder.Write(p)
}

// Who reads slowly holds no place, and nobody asks Redis on for them.
func TestASlowReaderOfOneAnswer(t *testing.T) {
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

// A hook that panics holds up nobody else.
func TestAnAuthorizeThatPanics(t *testing.T) {
	t.Parallel()
	angry := true
	s := newSite(t, func(c *Config) {
		c.Authorize = func(*http.Request, Action) (string, error) {
			if angry {
				panic("angry")
			}
			return "ann", nil
		}
	})
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	for _, path := range []string{"/api/change", "/api/preview"} {
		assert.Panics(t, func() { s.do(s.request(path, rateBody("orders", 20, 1000, false))) })
	}
	assert.Panics(t, func() { s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/about", http.NoBody)) })
	angry = false
	s.change(rateBody("orders", 20, 1000, false))
}

// What was tried and not done is in the list of changes and the log as well.
func TestTriesAreToldToo(t *testing.T) {
	t.Parallel()
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	_, answer := s.change(rateBody("orders", 20, 1000, false))
	s.limiter("orders", rratelimiter.PerHour(99), 0)
	code, _ := s.post("/api/change", m{"action": "undo", "entry": answer["entry"].(map[string]any)["entry"]})
	assert.Equal(t, http.StatusConflict, code)
	told := s.entries()[0]
	assert.Equal(t, []any{"undo", refused}, []any{told["action"], told["outcome"]})
	assert.Equal(t, "orders", told["limiter"].(map[string]any)["name"])

	code, _ = s.post("/api/change", m{"action": "delete", "id": idOf("nothing")})
	assert.Equal(t, http.StatusNotFound, code)
	assert.Equal(t, []any{"delete", refused}, []any{s.entries()[0]["action"], s.entries()[0]["outcome"]})

	mini.SetError("LOADING Redis is loading the dataset in memory")
	code, _ = s.post("/api/change", m{"action": "delete", "id": idOf("orders")})
	assert.Equal(t, http.StatusServiceUnavailable, code)
	mini.SetError("")
	assert.Equal(t, []any{"delete", failed}, []any{s.entries()[0]["action"], s.entries()[0]["outcome"]})
	assert.Contains(t, s.log.String(), "action=undo limiter=orders outcome=refused")
	assert.Contains(t, s.log.String(), "action=delete limiter=orders outcome=failed")
}

// What may have been done is told so, in the answer too.
func TestAChangeOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	rdb, mini := redistest.Mini(t)
	s := siteOn(t, rdb)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	body := rateBody("orders", 20, 1000, false)
	code, preview := s.post("/api/preview", body)
	require.Equal(t, http.StatusOK, code)
	body["expect"] = preview["expect"]
	mini.Server().SetPreHook(func(peer *server.Peer, cmd string, _ ...string) bool {
		if cmd != "EVALSHA" && cmd != "EVAL" {
			return false
		}
		peer.Close()
		return true
	})
	code, _ = s.post("/api/change", body)
	mini.Server().SetPreHook(nil)
	assert.Equal(t, http.StatusBadGateway, code)
	assert.Equal(t, unknown, s.entries()[0]["outcome"])
	assert.Contains(t, s.log.String(), "limiter perhaps changed")
}

// A client that is nil must not end the program from the goroutine that reads.
func TestANilClient(t *testing.T) {
	t.Parallel()
	for _, rdb := range []redis.UniversalClient{(*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil)} {
		s := siteOn(t, rdb)
		assert.Equal(t, http.StatusInternalServerError, s.code(http.MethodGet, "/api/limiters", nil), "%T", rdb)
	}
}

// What a key holds is told, but not by megabytes each second.
func TestHugeTextsAreCutShort(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("thresholds"))
	s.limiter("orders", rratelimiter.PerHour(10), 1)
	huge := strings.Repeat("\u2028\x00\xff\n", 1<<17)
	require.NoError(t, s.rdb.Set(t.Context(), "{orders}:value", huge, 0).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "damaged", "rate", huge, "interval", 1, "type", 0).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "thresholds", "log:ann", huge).Err())
	for _, path := range []string{
		"/api/limiter?id=" + idOf("orders"), "/api/limiter?id=" + idOf("damaged"), "/api/thresholds?hash=" + idOf("thresholds"), "/api/key?key=" + idOf("{orders}:value"),
	} {
		w := s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		assert.Equal(t, http.StatusOK, w.Code, path)
		assert.Less(t, w.Body.Len(), 32<<10, path)
	}
	w := s.do(s.request("/api/preview", m{"action": "unthreshold", "hash": idOf("thresholds"), "id": idOf("log:ann")}))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Less(t, w.Body.Len(), 32<<10)
}

// Keys of any type where a limiter's should be are told of, and harm nothing else.
func TestKeysOfOtherTypes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, name := range []string{"a", "b", "healthy"} {
		s.limiter(name, rratelimiter.PerHour(10), 1)
	}
	require.NoError(t, s.rdb.Del(t.Context(), "{a}:value", "{b}:permits").Err())
	require.NoError(t, s.rdb.RPush(t.Context(), "{a}:value", "x").Err())
	require.NoError(t, s.rdb.Set(t.Context(), "{b}:permits", "x", 0).Err())
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{healthy}:permits:x", redis.Z{Score: math.Inf(1), Member: "x"}).Err())
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{healthy}:permits", redis.Z{Score: math.Inf(-1), Member: "x"}).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "zero", "rate", 0, "interval", 0, "type", 1).Err())
	list := s.limiters()
	assert.Len(t, list, 4)
	for _, name := range []string{"a", "b", "healthy", "zero"} {
		found := s.get("/api/limiter?id=" + idOf(name))
		assert.Equal(t, true, found["exists"], name)
		for _, body := range []m{rateBody(name, 20, 1000, true), {"action": "expire", "id": idOf(name), "ttl_ms": maxMillis}, {"action": "migrate", "id": idOf(name)}, {"action": "delete", "id": idOf(name)}} {
			code, preview := s.post("/api/preview", body)
			require.Equal(t, http.StatusOK, code, "%v", preview)
			body["expect"] = preview["expect"]
			code, answer := s.post("/api/change", body)
			assert.Contains(t, []int{http.StatusOK, http.StatusConflict}, code, "%s: %v", name, answer)
		}
	}
}

// An answer without a body ends at once, and takes no place.
func TestAskingForTheHeadOfAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		for path := range endpoints {
			if !strings.HasSuffix(path, "/stream") {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			w := s.do(httptest.NewRequestWithContext(ctx, http.MethodHead, path+"?id="+idOf("orders"), http.NoBody))
			assert.NoError(t, ctx.Err(), path)
			assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"), path)
			cancel()
		}
	})
}
