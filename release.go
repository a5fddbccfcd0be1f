package rratelimiter

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// maxLooks is how many calls of a Release, of 512 members each, may find none
// of this Client's. Beyond them it takes those of others.
const maxLooks = 512

// release gives permits back, in as many calls as it takes.
func (l *RateLimiter) release(ctx context.Context, permits int64) error {
	left, err := permits, error(nil)
	granted := l.client.grantTime(l.keys.Names()[0]).Load()
	if len(l.client.mark()) > 0 && granted != l.ownless.Load() {
		left, err = l.releaseOwn(ctx, permits, granted)
	}
	if err == nil && left > 0 {
		left, err = l.takeOff(ctx, left, "")
	}
	if err == nil {
		return nil
	}
	err = l.client.explain(ctx, l.keys.Names(), err)
	if left < permits {
		err = fmt.Errorf("%w: %d of %d permits are given back: %w", ErrUnknownOutcome, permits-left, permits, err)
	}
	return err
}

// releaseOwn gives permits of this Client's members back, wherever in the set
// they are; where that is small, others' as well. granted is when the Client was
// granted some last. It returns how many permits are left to be given back.
func (l *RateLimiter) releaseOwn(ctx context.Context, permits, granted int64) (left int64, err error) {
	left, err = l.takeOff(ctx, permits, "own")
	last := l.client.made.Add(time.Duration(granted))
	age := time.Since(last)
	// Clocks may differ by a second, and by a thousandth in their pace.
	age = max(0, age-age/1000-time.Second)
	place, since := "", ""
	for looks := 0; err == nil && left > 0 && looks < maxLooks; {
		reply, readErr := script.Read(ctx, l.client.sender, lua.FindOwn, l.keys, l.client.mark(), age.Milliseconds(), place, since)
		if readErr != nil {
			return left, readErr
		}
		before := left
		if next, _, more := again(reply); more {
			place = next
		} else if found, ok := reply.([]any); ok && len(found) == 2 {
			place, _ = found[1].(string)
			left, err = l.takeOff(ctx, left, "own:"+place)
		} else if age > 0 {
			// The server's clock may have gone back: then they are dated later.
			place, since, age = "", formatAge(time.Since(last)), 0
		} else {
			l.ownless.Store(granted)
			break
		}
		if left == before {
			looks++
		}
	}
	return left, err
}

// takeOff has the script take permits off those members, as long as it finds
// some. It returns how many permits are left to be given back.
func (l *RateLimiter) takeOff(ctx context.Context, permits int64, members string) (left int64, err error) {
	token, left := "", permits
	for token != "search" {
		// It is not repeated once it may have run: nothing would tell that.
		reply, err := script.Once(ctx, l.client.sender, lua.Release, l.keys, left, l.client.mark(), token, members)
		if err != nil {
			return left, err
		}
		next, rest, more := again(reply)
		if !more {
			return 0, nil
		}
		numbers, err := integers(rest, 1)
		if err != nil {
			return left, err
		}
		token, left = next, numbers[0]
	}
	return left, nil
}

// grantTimes tell for each limiter when its Client was granted permits last, or
// may have been: in nanoseconds since the Client was made, 0 for never. Limiters
// may share a time: then a Release looks at some members in vain.
type grantTimes [1024]atomic.Int64

var grantTimesSeed = maphash.MakeSeed()

// grantTime returns the time of the limiter of that key.
func (c *Client) grantTime(key string) *atomic.Int64 {
	return &c.taken[maphash.String(grantTimesSeed, key)%uint64(len(c.taken))]
}

// granted is told that the Client may have been granted permits of the limiter of
// that key. No two grants have the same time.
func (c *Client) granted(key string) {
	last := c.grantTime(key)
	for {
		before := last.Load()
		if last.CompareAndSwap(before, max(before+1, int64(time.Since(c.made)))) {
			return
		}
	}
}
