package dashboard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// However fast somebody asks, Redis is asked about as often as it may be.
func TestWhoAsksAgainAndAgain(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/limiters", "/api/key?key=" + idOf("l:00"), "/api/thresholds?hash=" + idOf("l:00")} {
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
				s.do(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
				time.Sleep(10 * time.Millisecond)
			}
			assert.Less(t, sent.Load(), int64(span*minReads*3/2), path)
		})
	}
}

// Who is logged out while a stream goes on sees no more of it.
func TestAStreamEndsWithTheRightToLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		until := time.Now().Add(5 * time.Minute)
		s := siteOn(t, rdb, func(c *Config) {
			c.Authorize = func(*http.Request, Action) (string, error) {
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

// What hides how to flush is told of, and not taken for a viewer that has gone.
func TestAWriterThatCantFlush(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/limiters/stream", http.NoBody))
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
		assert.Error(t, all.wait(t.Context(), 10, 50), "who would wait for long is told so")
	})
}
