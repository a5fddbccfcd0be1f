package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// crowd is those who wait for one limiter beside others. Its Client's lock guards
// it.
type crowd struct {
	waiting map[*bundle]struct{}
	asked   time.Time // when the last question was sent that has its answer
	claimed time.Time // when one of them last went to keep the limiter alive
}

// acquire asks until the permits are granted or the time is over.
func (b *bundle) acquire(ctx context.Context, timeout time.Duration) (bool, error) {
	if timeout <= 0 {
		b.patience = time.Second
		v, err := b.ask(ctx)
		return v.granted, err
	}
	deadline := time.Now().Add(timeout)
	b.client.join(b)
	defer b.client.part(b)
	for {
		select {
		case <-b.woken:
		default:
		}
		b.patience = min(time.Until(deadline), script.Patience)
		v, err := b.ask(ctx)
		if err != nil || v.granted {
			return v.granted, err
		}
		b.client.noteAsked(b, v.sent)
		if more, err := b.wait(ctx, v, deadline); !more || err != nil {
			return false, err
		}
	}
}

// wait returns when it is time to ask again: when those that refused could grant,
// or before; false where the deadline is sooner.
func (b *bundle) wait(ctx context.Context, v verdict, deadline time.Time) (bool, error) {
	at := time.Now().Add(v.wait)
	last := at
	if deadline.Before(at) {
		last = deadline
	}
	for {
		if b.client.isClosed() {
			return false, ErrClosed
		}
		next, mine := b.client.keepAlive(b, v.keeps, last)
		if mine {
			return true, nil
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-b.woken:
			timer.Stop()
			if b.client.isClosed() {
				return false, ErrClosed
			}
			return time.Now().Before(deadline), nil
		case <-timer.C:
			if next.Equal(last) {
				return last.Equal(at), nil
			}
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		}
	}
}

// secondTry is the part of a keep-alive time, one in so many, after which another
// asks where the one whose turn it was has no answer.
const secondTry = 4 * keepAliveShare

// keepAlive tells whether the caller is to ask now to keep its limiters alive:
// one of those who wait for a limiter does it for all. Else it returns when to
// look again, last at the latest.
func (c *Client) keepAlive(b *bundle, keeps []time.Duration, last time.Time) (next time.Time, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	next = last
	for i, keep := range keeps {
		if keep == 0 {
			continue
		}
		crowd := c.bundles[b.limiters[i].keys.Names()[0]]
		due := crowd.asked.Add(keep / keepAliveShare)
		if again := crowd.claimed.Add(keep / secondTry); again.After(due) {
			due = again
		}
		if !due.After(now) {
			crowd.claimed, mine = now, true
		}
		if due.Before(next) {
			next = due
		}
	}
	return next, mine
}

// noteAsked is told that a question sent at that time has its answer: it has
// started the keep-alive times of the caller's limiters anew.
func (c *Client) noteAsked(b *bundle, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range b.limiters {
		if crowd := c.bundles[l.keys.Names()[0]]; sent.After(crowd.asked) {
			crowd.asked = sent
		}
	}
}

// wake has the caller ask again.
func (b *bundle) wake() {
	select {
	case b.woken <- struct{}{}:
	default:
	}
}

// join has changes of its limiters wake the caller; part ends that.
func (c *Client) join(b *bundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bundles == nil {
		c.bundles = make(map[string]*crowd)
	}
	for _, q := range b.queues {
		key := q.keys.Names()[0]
		if c.bundles[key] == nil {
			c.bundles[key] = &crowd{waiting: make(map[*bundle]struct{})}
		}
		c.bundles[key].waiting[b] = struct{}{}
	}
}

func (c *Client) part(b *bundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range b.queues {
		key := q.keys.Names()[0]
		delete(c.bundles[key].waiting, b)
		if len(c.bundles[key].waiting) == 0 {
			delete(c.bundles, key)
		}
	}
}

// wakeBundles has those ask again that wait for the limiter of that key beside
// others.
func (c *Client) wakeBundles(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if crowd := c.bundles[key]; crowd != nil {
		for b := range crowd.waiting {
			b.wake()
		}
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
