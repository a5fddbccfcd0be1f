// Package rratelimitertest helps to test code that uses limiters, without a Redis and without waiting.
// [New] returns a Client on a server in memory, whose clock the test moves. [NewScript] returns a
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
	"github.com/rratelimiter/rratelimiter/internal/clock"
	"github.com/rratelimiter/rratelimiter/internal/memory"
)

// Env is a server in memory and a Client on it, with a clock that the test moves.
//
// Outside a bubble of testing/synctest the time stands still except for [Env.Advance]: callers that
// wait for permits wait for it. All limiters made on Redis use this time: those of Client and of further
// Clients, those of packages fixedwindow, slidinglog and tokenbucket, and the policies that answer while
// the server is down ([Env.Down]). Everything else uses the machine's time, such as the deadline of a
// context and the timeout for an answer of the server.
//
// Within a bubble the time is the bubble's. All waiting uses it, contexts too, and it moves by itself
// when all goroutines of the bubble wait.
type Env struct {
	Client *rratelimiter.Client
	Redis  *redis.Client

	t      testing.TB
	server *miniredis.Miniredis
	link   *link
	clock  *standing // nil in a bubble

	mu sync.Mutex // held while the clock is moved
}

// New returns an Env, which is closed when the test ends: waiting callers then get
// rratelimiter.ErrClosed. Its time starts at the machine's, at the full second. A test in a bubble
// calls New inside the bubble.
func New(t testing.TB, opts ...rratelimiter.Option) *Env {
	t.Helper()
	e := &Env{t: t, server: miniredis.NewMiniRedis(), link: newLink()}
	if !inBubble() {
		e.clock = newStanding(time.Now().Truncate(time.Second))
		e.server.SetTime(e.clock.Now())
	}
	e.server.ClockTTL(true)
	t.Cleanup(e.server.Close)
	rdb, end := memory.NewClient(redis.Options{}, func() (net.Conn, error) {
		conn, err := e.link.dial(e.server.Dial)
		if err != nil {
			return nil, err
		}
		return memory.Buffer(conn), nil
	})
	e.Redis = rdb
	t.Cleanup(func() {
		clocks.Delete(rdb)
		if err := end(); err != nil {
			t.Errorf("rratelimitertest: closing the Redis client: %v", err)
		}
	})
	if e.clock != nil {
		clocks.Store(rdb, &clock.Clock{Test: e.clock})
	}
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
	if e.clock == nil {
		return time.Now()
	}
	return e.clock.Now()
}

// Advance moves the time by d: permits come back, keys expire, leases and remembered refusals end, and
// waiting callers get their permits, or are refused if their timeout is over, all in the order of time.
// Advance returns when each caller that it woke has its answer or waits again.
//
// Outside a bubble Advance can't see what a goroutine does between two calls: one that asks again and
// again may miss moments of one Advance. Move the time in small steps there, or use a bubble, in which
// Advance is time.Sleep(d) and synctest.Wait.
func (e *Env) Advance(d time.Duration) {
	e.t.Helper()
	if d < 0 {
		e.t.Fatalf("rratelimitertest: Advance: %v: time does not go back", d)
	}
	if e.clock == nil {
		time.Sleep(d)
		synctest.Wait()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	end := e.clock.Now().Add(d)
	for e.clock.Now().Before(end) {
		_, next := e.settle(0)
		if next.IsZero() || next.After(end) {
			next = end
		}
		// The server first: otherwise a caller that asks in between would get too long a wait.
		e.server.SetTime(next)
		e.clock.set(next)
	}
	e.settle(0)
}

// AwaitWaiting returns when at least n callers wait for permits, so that an Advance after it finds
// them. In a bubble it is synctest.Wait.
func (e *Env) AwaitWaiting(n int) {
	e.t.Helper()
	if e.clock == nil {
		synctest.Wait()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(n)
}

// patience is how long calls may take by the machine's time.
const patience = 10 * time.Second

// settle returns when everything under way waits for the time, at least n callers, and when the first
// of it is due.
func (e *Env) settle(n int) (waiting int, next time.Time) {
	e.t.Helper()
	for start := time.Now(); ; {
		waiting, next, rests := e.clock.rest()
		if rests && waiting >= n {
			return waiting, next
		}
		if time.Since(start) > patience {
			if rests {
				e.t.Fatalf("rratelimitertest: AwaitWaiting: %d callers wait after %v, not %d", waiting, patience, n)
			}
			e.t.Fatalf("rratelimitertest: calls have been under way for %v", patience)
		}
		time.Sleep(20 * time.Microsecond)
	}
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

// clocks are the clocks of the Redis clients of Envs outside bubbles.
var clocks sync.Map

func init() {
	clock.Of = func(rdb any) *clock.Clock {
		found, _ := clocks.Load(rdb)
		c, _ := found.(*clock.Clock)
		return c
	}
}
