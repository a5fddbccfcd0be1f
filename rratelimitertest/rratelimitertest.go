// Package rratelimitertest helps to test code that uses limiters, without a Redis and without waiting.
// [New] returns a Client on a server in memory, whose time the test moves. [NewScript] returns a
// limit.Limiter that gives the answers that the test lists.
//
// docs/testing.md shows both. Import this package only in tests.
package rratelimitertest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

// Env is a server in memory and a Client on it.
//
// Outside a bubble of testing/synctest the server's time stands still except for [Env.Advance], so that
// figures are exact on a slow machine too. Within a bubble the server's time is the bubble's.
type Env struct {
	Client *rratelimiter.Client
	Redis  *redis.Client

	t      testing.TB
	server *miniredis.Miniredis
	link   *link

	bubble bool // the server's time is the bubble's

	mu  sync.Mutex
	now time.Time // the server's outside a bubble
}

// New returns an Env, which is closed when the test ends: waiting callers then get
// rratelimiter.ErrClosed. The server's time starts at the machine's, at the full second. A test in a
// bubble calls New inside the bubble.
func New(t testing.TB, opts ...rratelimiter.Option) *Env {
	t.Helper()
	e := &Env{t: t, server: miniredis.NewMiniRedis(), link: newLink(), bubble: inBubble()}
	if !e.bubble {
		e.now = time.Now().Truncate(time.Second)
		e.server.SetTime(e.now)
	}
	e.server.ClockTTL(true)
	t.Cleanup(e.server.Close)
	rdb, end := netpipe.NewClient(redis.Options{}, func() (net.Conn, error) {
		conn, err := e.link.dial(e.server.Dial)
		if err != nil {
			return nil, err
		}
		return netpipe.Buffer(conn), nil
	})
	e.Redis = rdb
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("rratelimitertest: closing the Redis client: %v", err)
		}
	})
	e.Client = rratelimiter.New(rdb, opts...)
	t.Cleanup(func() {
		if err := e.Client.Close(context.Background()); err != nil {
			t.Errorf("rratelimitertest: closing the Client: %v", err)
		}
	})
	t.Cleanup(e.Up)
	return e
}

// Now returns the server's time.
func (e *Env) Now() time.Time {
	if e.bubble {
		return time.Now()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now
}

// Advance moves the server's time by d: permits come back, and keys expire.
//
// Outside a bubble all else goes by the machine's time: callers who wait, what WithLease and
// WithRefusalCache remember, local limiters and probes during an outage, and contexts. Test those in a
// bubble, where Advance is time.Sleep(d) and synctest.Wait, and moves everything.
func (e *Env) Advance(d time.Duration) {
	e.t.Helper()
	if d < 0 {
		e.t.Fatalf("rratelimitertest: Advance: %v: time does not go back", d)
	}
	if e.bubble {
		time.Sleep(d)
		synctest.Wait()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = e.now.Add(d)
	e.server.SetTime(e.now)
}

// inBubble reports whether the goroutine is in a bubble of testing/synctest, which offers no other
// way to find out.
func inBubble() (in bool) {
	defer func() {
		if said := recover(); said != nil {
			in = !strings.Contains(fmt.Sprint(said), "not in a bubble")
		}
	}()
	synctest.Wait()
	return true
}
