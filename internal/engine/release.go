package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// maxLooks is how many calls of a Release, of 512 members each, may find none of this client's
// members. After that it takes permits of others.
const maxLooks = 512

// Release gives permits back before their interval is over. Releases that wait share one call.
func (e *Engine) Release(ctx context.Context, l *Limiter, permits int64) error {
	t := &job{release: true, permits: permits, since: time.Now()}
	t.run = func(ctx context.Context, t *job) error {
		defer e.changed(l.Config)
		return (&release{engine: e, limiter: l, job: t}).run(ctx)
	}
	e.recall(ctx, l, t.since) // while requests under way finish
	return e.runJob(ctx, l, t)
}

// release is a job that gives permits back, in as many calls as needed.
type release struct {
	engine    *Engine
	limiter   *Limiter
	job       *job
	asked     atomic.Int64 // permits; 0 until its first call is sent
	remaining atomic.Int64 // of these, still to be given back
}

func (r *release) run(ctx context.Context) (err error) {
	e, l := r.engine, r.limiter
	granted := e.grantTime(l.Config).Load()
	if len(e.ids.Mark()) > 0 && granted != l.noOwnMembersAt.Load() {
		err = r.takeOwn(ctx, granted)
	}
	if err == nil && (r.asked.Load() == 0 || r.remaining.Load() > 0) {
		err = r.takeOff(ctx, "")
	}
	if err == nil {
		return nil
	}
	err = e.explain(l.Keys().Names(), err)
	if asked, left := r.asked.Load(), r.remaining.Load(); left < asked {
		err = fmt.Errorf("%w: %d of %d permits are given back: %w", limit.ErrUnknownOutcome, asked-left, asked, err)
	}
	return err
}

// takeOwn gives back permits of this client's members, wherever in the set they are. In a small set it
// takes others' too. granted is when the client was last granted permits.
func (r *release) takeOwn(ctx context.Context, granted int64) error {
	e, l := r.engine, r.limiter
	err := r.takeOff(ctx, "own")
	last := e.made.Add(time.Duration(granted))
	age := script.ShortAge(time.Since(last))
	place, from := "", ""
	for looks := 0; err == nil && r.remaining.Load() > 0 && looks < maxLooks; {
		c := script.Call{Script: lua.InUse, Keys: l.Keys(), Repeat: true, Args: script.Constant{place, e.ids.Mark(), age.Milliseconds(), from}}
		next := ""
		c.Continued = func(token string, _ []any) (more bool, err error) {
			next = token
			return false, nil
		}
		reply, readErr := e.lanes.Run(ctx, &c)
		if readErr != nil {
			return readErr
		}
		before := r.remaining.Load()
		found := ""
		if words, ok := reply.([]any); ok && len(words) == 2 {
			found, _ = words[1].(string)
		}
		switch {
		case next != "":
			place = next
		case found != "":
			place = found
			err = r.takeOff(ctx, "own:"+place)
		case age > 0:
			// If the server's clock went back, they are dated later.
			place, from, age = "", script.LongAge(time.Since(last)), 0
		default:
			l.noOwnMembersAt.Store(granted)
			return err
		}
		if r.remaining.Load() == before {
			looks++
		}
	}
	return err
}

// takeOff makes the script take permits off those members, as long as it finds some.
func (r *release) takeOff(ctx context.Context, members string) error {
	// It is not repeated once it may have run: nothing would show that it has.
	c := script.Call{Script: lua.Release, Keys: r.limiter.Keys()}
	if r.asked.Load() == 0 {
		c.Since, c.Wanted = r.job.since, r.begin
	}
	c.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
		call := r.engine.ids.NextIn(nil, redisson.NewestRules.Layout, 1)
		return append(all, r.remaining.Load(), r.engine.ids.Mark(), a.Token, members, call[:len(call)-4])
	})
	stopped := false
	c.Continued = func(token string, rest []any) (more bool, err error) {
		r.job.answered.Store(true)
		numbers, err := script.Integers(rest, 1)
		if err == nil {
			r.remaining.Store(numbers[0])
		}
		stopped = token == "search"
		return !stopped, err
	}
	if _, err := r.engine.lanes.Run(ctx, &c); err != nil {
		return err
	}
	r.job.answered.Store(true)
	if !stopped {
		r.remaining.Store(0)
	}
	return nil
}

// begin records how many permits the remaining callers want to give back.
func (r *release) begin() bool {
	permits, wanted := r.job.begin()
	r.remaining.Store(permits)
	r.asked.Store(permits)
	return wanted
}
