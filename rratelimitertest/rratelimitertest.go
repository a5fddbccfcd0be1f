// Package rratelimitertest helps to test code that uses limiters, without a Redis
// and without waiting: [New] gives a Client on a server in memory, whose clock the
// test moves, and [NewScript] a limit.Limiter that answers what the test says.
//
// docs/testing.md shows both. Only tests are to import this package.
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

// Env is a server in memory and a Client on it, whose time the test moves.
//
// Outside a bubble of testing/synctest the time stands still but for
// [Env.Advance]: a caller who waits for permits waits for that. All limiters that
// are made on Redis go by it: those of Client, those of further Clients, those of
// packages fixedwindow, slidinglog and tokenbucket, and what answers for Redis while
// the server fails: see [Env.Down]. What is not the limiters', as the deadline of a
// context, goes by the machine's time, and so does how long a server is waited for.
//
// Within a bubble the time is the bubble's. All that waits goes by it, contexts
// too, and it moves by itself when all goroutines of the bubble wait.
type Env struct {
	Client *rratelimiter.Client
	Redis  *redis.Client

	t      testing.TB
	server *miniredis.Miniredis
	link   *link
	clock  *standing // nil in a bubble

	mu sync.Mutex // held while the clock is moved
}

// New returns an Env, which is closed when the test ends: callers who wait then get
// rratelimiter.ErrClosed. Its time starts at the machine's, at the full second. A
// test in a bubble calls New in there.
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

// Advance moves the time by d: permits whose time comes are free, keys expire,
// leases and remembered refusals end, and callers who wait are granted their
// permits, or refused where their timeout is over. All that happens in the order of
// its moments. Advance returns when each caller whom it woke has been answered, or
// waits again.
//
// Outside a bubble nobody can tell what a goroutine does between two calls: one that
// asks again and again may miss moments of one Advance. Move the time in steps
// there, or use a bubble, where Advance is time.Sleep(d) and synctest.Wait.
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
		// The server first: a caller who asks in between would else be told to wait
		// for too long.
		e.server.SetTime(next)
		e.clock.set(next)
	}
	e.settle(0)
}

// AwaitWaiting returns when n callers at least wait for permits, so that an Advance
// after it finds them. In a bubble it is synctest.Wait.
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

// settle returns when nothing is under way but what waits for the time, n callers at
// least, and when the first of that is due.
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

// inBubble reports whether the goroutine is in a bubble of testing/synctest, which
// has no other way to tell.
func inBubble() (in bool) {
	defer func() {
		if said := recover(); said != nil {
			in = !strings.Contains(fmt.Sprint(said), "not in a bubble")
		}
	}()
	synctest.Wait()
	return true
}

// clocks are those of the Redis clients of Envs outside bubbles.
var clocks sync.Map

func init() {
	clock.Of = func(rdb any) *clock.Clock {
		found, _ := clocks.Load(rdb)
		c, _ := found.(*clock.Clock)
		return c
	}
}
