// Package engine makes all calls of RateLimiters: it takes permits, in batches of requests for
// each limiter, keeps the line of waiting callers, runs exclusive jobs alone, charges several limits at
// once, and reads and changes limiters.
package engine

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/refusal"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// grace is how much longer than its timeout a caller waits for an answer under way, if that does not
// wait for replicas.
const grace = 100 * time.Millisecond

// Engine serves the limiters of one Client.
type Engine struct {
	conn     *script.Conn
	lanes    *lane.Lanes
	rules    redisson.Rules
	ids      *redisson.Identities
	refusals refusal.Counts
	made     time.Time
	taken    grantTimes // for Release
	observer *observe.Observer
	book     *clients.Book // nil if the Client has no name
	grace    time.Duration // how much longer than its timeout a caller waits for an answer

	logs   *mergeLogs          // by config key
	queues lane.Shards[*queue] // by config key, while in use or while a lease lives
	joints sync.Mutex          // guards those who wait for several limiters; it is taken after a queue's

	reports      sync.Mutex                // guards what follows; it is taken last
	lastReported map[limit.Event]time.Time // of events that are not reported again and again
}

// Lanes returns what the Engine's calls go by.
func (e *Engine) Lanes() *lane.Lanes { return e.lanes }

// AwaitReplicas makes grants count only once replicas have them. An answer may then come later by twice the wait: a
// flight before may wait for replicas without success, and so may its own. Callers wait that much longer.
func (e *Engine) AwaitReplicas(count int, wait time.Duration) {
	e.lanes.AwaitReplicas(lane.Replicas{Count: count, Wait: wait})
	e.grace = grace + 2*wait
}

// NoteName keeps the Client's name written in Redis while the Client is used.
func (e *Engine) NoteName(c clients.Client) {
	e.book = clients.NewBook(c, e.inBackground, func(err error) {
		e.observer.Happened(limit.Event{Kind: limit.NameNotNoted, Err: err})
	})
}

// inBackground makes a call for which no caller waits, and then calls done, unless the Engine is closed.
func (e *Engine) inBackground(ctx context.Context, c *script.Call, done func(error)) {
	if e.lanes.Begin() != nil {
		return
	}
	go func() {
		defer e.lanes.End()
		_, err := e.lanes.Run(ctx, c)
		done(err)
	}()
}

// New returns an Engine whose calls to rdb are answered within timeout. The observer, which may be
// nil, receives all events except decisions, of which the caller knows more.
func New(rdb script.Redis, timeout time.Duration, rules redisson.Rules, ids *redisson.Identities, observer *observe.Observer) *Engine {
	conn := script.NewConn(rdb, timeout)
	lanes := lane.New(conn, observer)
	return &Engine{
		conn: conn, lanes: lanes, observer: observer, rules: rules, ids: ids, made: time.Now(),
		lastReported: make(map[limit.Event]time.Time), grace: grace, logs: newMergeLogs(),
	}
}

// Close fails the waiting callers, and returns when all other work is done or ctx ends.
func (e *Engine) Close(ctx context.Context) error {
	e.book.Stop()
	defer e.refusals.Forget()
	return e.lanes.Close(ctx, func() {
		for _, q := range e.queues.All() {
			e.withQueue(q.config, (*queue).close)
		}
	})
}

// Closed returns limit.ErrClosed once the Engine is closed.
func (e *Engine) Closed() error {
	if e.lanes.Closed() {
		return limit.ErrClosed
	}
	return nil
}

// NewRefusals returns a cache of refusals for a handle of the limiter.
func (e *Engine) NewRefusals(key string) *refusal.Cache { return e.refusals.NewCache(key) }

// grantTimes holds when each limiter's client was last granted permits, or may have been: in nanoseconds since the
// Engine was made, 0 for never. Limiters may share an entry; a Release then looks at some members without success.
type grantTimes [1024]atomic.Int64

var grantTimesSeed = maphash.MakeSeed()

// grantTime returns the time of the limiter of that key.
func (e *Engine) grantTime(key string) *atomic.Int64 {
	return &e.taken[maphash.String(grantTimesSeed, key)%uint64(len(e.taken))]
}

// Granted records that the client may have been granted permits of the limiter with that key. No two
// grants have the same time.
func (e *Engine) Granted(key string) {
	e.refusals.Granted(key)
	last := e.grantTime(key)
	for {
		before := last.Load()
		if last.CompareAndSwap(before, max(before+1, int64(time.Since(e.made)))) {
			return
		}
	}
}
