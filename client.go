package rratelimiter

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Client hands out limiters that live in one Redis. It is safe for use by
// several goroutines; a program wants one for each Redis, since callers of one
// Client share round trips and wait in one line.
type Client struct {
	rdb    Redis
	sender *script.Sender
	id     string
	rules  rules
	mapper func(string) string
	err    error // of the options

	origin   [8]byte       // what the ids of this Client's members begin with, where they have room for it
	attempts atomic.Uint64 // the counter in the ids

	mu     sync.Mutex        // taken last, after a queue's
	queues map[string]*queue // by mapped name, as long as somebody uses them or a lease lives
	active int               // calls and background work under way
	closed bool
	idle   chan struct{} // closed when closed and nothing is active

	// bundles are those that wait, by the mapped name of each of their limiters.
	// Guarded by mu.
	bundles map[string]*crowd

	made    time.Time
	taken   grantTimes                      // for Release
	changes changes                         // for refusal caches
	counted map[string]weak.Pointer[grants] // likewise, by mapped name; guarded by mu
	notices *notices
}

// New returns a Client on rdb, which stays the caller's to close. It does no
// I/O.
func New(rdb Redis, opts ...Option) *Client {
	c := &Client{
		rdb:    rdb,
		sender: script.NewSender(rdb),
		id:     uuid.NewString(),
		rules:  newestRules,
		mapper: func(name string) string { return name },
		queues: make(map[string]*queue),
		idle:   make(chan struct{}),
		made:   time.Now(),
	}
	c.err = script.CheckClient(rdb)
	c.notices = newNotices(c)
	_, _ = rand.Read(c.origin[:]) // never fails
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt(c); err != nil {
			c.err = errors.Join(c.err, err)
		}
	}
	if c.rules.layout != codec.LayoutD2 {
		var start [4]byte
		_, _ = rand.Read(start[:])
		c.attempts.Store(uint64(binary.LittleEndian.Uint32(start[:])))
	}
	return c
}

// RateLimiter returns a handle of the limiter called name. It does no I/O;
// handles of one name share one line of waiting callers.
func (c *Client) RateLimiter(name string, opts ...LimiterOption) *RateLimiter {
	l := &RateLimiter{client: c, name: name, err: c.err}
	mapped := c.mapper(name)
	if name == "" || mapped == "" {
		l.err = errors.Join(l.err, fmt.Errorf("%w: the limiter's name is empty", ErrInvalidConfig))
	}
	l.keys = script.KeysOf(keys.For(mapped, c.id).List()...)
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt(l); err != nil {
			l.err = errors.Join(l.err, err)
		}
	}
	l.err = errors.Join(l.err, l.check())
	return l
}

// Close ends the Client: callers that wait get ErrClosed, those whose request
// is on its way get its answer, and so do permits that are being given back.
// It returns when all are done, or with ctx.Err() before. Later calls on the
// Client's limiters fail with ErrClosed. The Redis client stays open.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	var queues []*queue
	if !c.closed {
		c.closed = true
		if c.active == 0 {
			close(c.idle)
		}
		queues = slices.Collect(maps.Values(c.queues))
		for _, crowd := range c.bundles {
			for b := range crowd.waiting {
				b.wake()
			}
		}
	}
	c.mu.Unlock()
	for _, q := range queues {
		q.close()
	}
	c.forgetRefusals()
	c.notices.stop()
	select {
	case <-c.idle:
		return nil
	default:
	}
	select {
	case <-c.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin counts a call in; end counts it out.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.active++
	return nil
}

func (c *Client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked()
}

func (c *Client) endLocked() {
	c.active--
	if c.closed && c.active == 0 {
		close(c.idle)
	}
}

// enter counts a caller in at the limiter's queue; leave counts it out. A queue
// that nobody uses is forgotten.
func (c *Client) enter(l *RateLimiter) (*queue, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.active++
	key := l.keys.Names()[0]
	q := c.queues[key]
	if q == nil {
		q = &queue{client: c, keys: l.keys}
		q.grants.Store(c.counted[key].Value())
		c.queues[key] = q
	}
	q.users++
	return q, nil
}

func (c *Client) leave(q *queue) {
	c.mu.Lock()
	q.users--
	unused := q.users == 0
	if unused {
		delete(c.queues, q.keys.Names()[0])
	}
	c.endLocked()
	c.mu.Unlock()
	if unused {
		q.stop()
	}
}

// stay counts background work of a queue in, for a caller that is in itself.
func (c *Client) stay(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active++
	q.users++
}

// visit counts a caller in at the limiter's queue, if there is one.
func (c *Client) visit(key string) *queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[key]
	if q != nil {
		q.users++
		c.active++
	}
	return q
}

// wake is told that the limiter of that key was changed. Callers that wait for
// it ask at once; leases of it and refusals end.
func (c *Client) wake(key string) {
	c.changed(key)
	if q := c.visit(key); q != nil {
		q.recall()
		q.poll(true)
		c.leave(q)
	}
}

// ask is told that permits of the limiter of that key were given back. Callers
// that wait for it ask at once.
func (c *Client) ask(key string) {
	c.changed(key)
	if q := c.visit(key); q != nil {
		q.poll(true)
		c.leave(q)
	}
}

// decide sends a batch, as often as the script asks for it.
func (c *Client) decide(ctx context.Context, keys *script.Keys, b *batch) (outcome, error) {
	for {
		b.sign(c)
		reply, err := c.attempt(ctx, keys, b)
		limiter := b.requests[0].limiter
		if isWord(reply, "keys") {
			limiter.shared.Store(nil)
			continue
		}
		if isTaken(reply, err) {
			c.attempts.Add(mathrand.Uint64N(1 << numberBits(b.rules.layout)))
			continue
		}
		if err != nil {
			return outcome{}, c.explain(ctx, keys.Names(), err)
		}
		if _, short := reply.(int64); short && limiter.shared.Load() == nil {
			limiter.shared.Store(limiter.keys.Pick(0, 1, 3))
		}
		return b.parseOutcome(reply)
	}
}

// isWord tells whether a script answered with a word alone.
func isWord(reply any, word string) bool {
	words, _ := reply.([]any)
	return len(words) == 1 && words[0] == word
}

// isTaken tells whether the script knows the attempt's identity as another's:
// those of old layouts are short. Where it is in doubt whether an attempt has
// run, no answer says so.
func isTaken(reply any, err error) bool {
	if err != nil {
		_, isAnswer := errors.AsType[redis.Error](err)
		return isAnswer && !errors.Is(err, script.ErrLost) && script.Code(err) == "LATE"
	}
	return isWord(reply, "taken")
}

// attempt sends a batch until it is decided. Where nothing in Redis would tell
// that it has been, it is not repeated after a lost answer.
func (c *Client) attempt(ctx context.Context, keys *script.Keys, b *batch) (any, error) {
	if shared := b.requests[0].limiter.shared.Load(); shared != nil {
		keys = shared
	}
	if b.rules.windowed() {
		return untilDone(func(token string) (any, error) {
			return script.Once(ctx, c.sender, lua.Acquire, keys, b.args(nil, -1, token)...)
		})
	}
	call := script.Call{Script: lua.Acquire, Keys: keys, Patience: b.patience(time.Now()), Joint: b.part(keys)}
	return c.untilDecided(ctx, call, b.args)
}

// untilDecided makes a call as often as its script asks for it, and repeats it
// after lost answers. args appends its arguments, given the token of the last
// answer and the age of the first attempt that may have run, below 0 while there
// is none.
func (c *Client) untilDecided(
	ctx context.Context, call script.Call, args func(all []any, age time.Duration, token string) []any,
) (any, error) {
	var doubt time.Time // when the first attempt was sent that may have run
	call.Repeat = true
	return untilDone(func(token string) (any, error) {
		if token != "" || !doubt.IsZero() {
			call.Joint = nil
		}
		return call.Run(ctx, c.sender, func(all []any, age time.Duration) []any {
			if age >= 0 {
				token = "" // what it stood for may have been done
				if doubt.IsZero() {
					doubt = time.Now().Add(-age)
				}
			}
			if !doubt.IsZero() {
				age = time.Since(doubt)
			}
			return args(all, age, token)
		})
	})
}

// giveBack returns what requests of a batch, by their places in it, were
// granted, as their callers went away. Where that fails the permits come back an
// interval after they were granted.
func (c *Client) giveBack(ctx context.Context, keys *script.Keys, b *batch, places []int, ahead int64, o outcome) {
	defer c.changed(keys.Names()[0])
	if b.rules.windowed() {
		_ = c.giveBackInWindow(ctx, keys, b.grants(places, ahead, o)[0].permits, o.windowEnd)
		return
	}
	var wg sync.WaitGroup
	for _, g := range b.grants(places, ahead, o) {
		wg.Go(func() { _ = c.giveBackGrant(ctx, keys, g, b.sent) })
	}
	wg.Wait()
}

// undo returns what gives back the grant of one request of a batch.
func (c *Client) undo(keys *script.Keys, b *batch, place int, o outcome) func(context.Context) error {
	g, sent, windowed := b.grants([]int{place}, 0, o)[0], b.sent, b.rules.windowed()
	return func(ctx context.Context) error {
		if windowed {
			return c.giveBackInWindow(ctx, keys, g.permits, o.windowEnd)
		}
		return c.giveBackGrant(ctx, keys, g, sent)
	}
}

func (c *Client) giveBackInWindow(ctx context.Context, keys *script.Keys, permits, end int64) error {
	_, err := script.Once(ctx, c.sender, lua.GiveBack, keys, "", permits, "", end, "", "")
	return err
}

func (c *Client) giveBackGrant(ctx context.Context, keys *script.Keys, g grant, sent time.Time) error {
	own := c.identity(nil, 1)
	_, err := untilDone(func(token string) (any, error) {
		args := func(all []any, age time.Duration) []any {
			repeated := ""
			if age >= 0 {
				repeated = "1"
			}
			return append(all, g.member, g.permits, repeated, formatAge(time.Since(sent)), token, own[:len(own)-4])
		}
		return script.Call{Script: lua.GiveBack, Keys: keys, Repeat: true}.Run(ctx, c.sender, args)
	})
	return err
}
