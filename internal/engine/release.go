package engine

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// maxLooks is how many calls of a Release, of 512 members each, may find none
// of this client's. Beyond them it takes those of others.
const maxLooks = 512

// Release gives permits back before their interval is over. Those that wait for
// their turn go as one call.
func (e *Engine) Release(ctx context.Context, l *Limiter, permits int64) error {
	defer e.changed(l)
	t := &turn{release: true, permits: permits, since: time.Now()}
	t.run = func(ctx context.Context, t *turn) error { return e.release(ctx, l, t.permits, t.since) }
	e.recall(ctx, l, t.since) // while what is under way lands
	return e.takeTurn(ctx, l, t)
}

// release gives permits back, in as many calls as it takes; since is when the first
// caller came.
func (e *Engine) release(ctx context.Context, l *Limiter, permits int64, since time.Time) error {
	left, err := permits, error(nil)
	granted := e.grantTime(l.Config).Load()
	if len(e.ids.Mark()) > 0 && granted != l.ownless.Load() {
		left, err = e.releaseOwn(ctx, l, permits, granted, since)
		since = time.Time{} // the server answers
	}
	if err == nil && left > 0 {
		left, err = e.takeOff(ctx, l, left, "", since)
	}
	if err == nil {
		return nil
	}
	err = e.explain(l.Keys.Names(), err)
	if left < permits {
		err = fmt.Errorf("%w: %d of %d permits are given back: %w", limit.ErrUnknownOutcome, permits-left, permits, err)
	}
	return err
}

// releaseOwn gives permits of this client's members back, wherever in the set
// they are; where that is small, others' as well. granted is when the client was
// granted some last. It returns how many permits are left to be given back.
func (e *Engine) releaseOwn(ctx context.Context, l *Limiter, permits, granted int64, since time.Time) (left int64, err error) {
	left, err = e.takeOff(ctx, l, permits, "own", since)
	last := e.made.Add(time.Duration(granted))
	age := e.clock.Since(last)
	// Clocks may differ by a second, and by a thousandth in their pace.
	age = max(0, age-age/1000-time.Second)
	place, from := "", ""
	for looks := 0; err == nil && left > 0 && looks < maxLooks; {
		c := script.Call{Script: lua.FindOwn, Keys: l.Keys, Repeat: true, Args: script.Constant{e.ids.Mark(), age.Milliseconds(), place, from}}
		next := ""
		c.Stop = func(token string) bool {
			next = token
			return true
		}
		reply, readErr := c.Run(ctx, e.conn)
		if readErr != nil {
			return left, readErr
		}
		before := left
		if next != "" {
			place = next
		} else if found, ok := reply.([]any); ok && len(found) == 2 {
			place, _ = found[1].(string)
			left, err = e.takeOff(ctx, l, left, "own:"+place, time.Time{})
		} else if age > 0 {
			// The server's clock may have gone back: then they are dated later.
			place, from, age = "", formatAge(e.clock.Since(last)), 0
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
func (e *Engine) takeOff(ctx context.Context, l *Limiter, permits int64, members string, since time.Time) (left int64, err error) {
	left = permits
	// It is not repeated once it may have run: nothing would tell that.
	c := script.Call{Script: lua.Release, Keys: l.Keys, Since: since}
	c.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		return append(all, left, e.ids.Mark(), a.Token, members)
	})
	c.Continued = func(rest []any) error {
		numbers, err := lane.Integers(rest, 1)
		if err == nil {
			left = numbers[0]
		}
		return err
	}
	stopped := false
	c.Stop = func(token string) bool {
		stopped = token == "search"
		return stopped
	}
	if _, err := c.Run(ctx, e.conn); err != nil || stopped {
		return left, err
	}
	return 0, nil
}

// grantTimes tell for each limiter when its client was granted permits last, or
// may have been: in nanoseconds since the Engine was made, 0 for never. Limiters
// may share a time: then a Release looks at some members in vain.
type grantTimes [1024]atomic.Int64

var grantTimesSeed = maphash.MakeSeed()

// grantTime returns the time of the limiter of that key.
func (e *Engine) grantTime(key string) *atomic.Int64 {
	return &e.taken[maphash.String(grantTimesSeed, key)%uint64(len(e.taken))]
}

// Granted is told that the client may have been granted permits of the limiter of
// that key. No two grants have the same time.
func (e *Engine) Granted(key string) {
	e.refusals.Granted(key)
	last := e.grantTime(key)
	for {
		before := last.Load()
		if last.CompareAndSwap(before, max(before+1, int64(e.clock.Since(e.made)))) {
			return
		}
	}
}
