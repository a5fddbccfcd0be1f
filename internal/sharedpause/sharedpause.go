// Package sharedpause keeps in Redis for how long upstreams pause calls, for all programs.
package sharedpause

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Pauses are those in the Redis of a Client, by the name of what is paused. Each is a key that expires when it ends.
type Pauses struct{ Client *rratelimiter.Client }

// Left returns how much longer a name is paused.
func (p Pauses) Left(ctx context.Context, name string) (time.Duration, error) {
	ms, err := script.Integer(p.run(ctx, name, script.Call{Script: lua.Command, Args: script.Constant{"PTTL"}, Repeat: true, Reads: true}))
	return script.Millis(max(0, ms)), err
}

// Extend pauses a name until then, unless it is paused for longer. why is for people who look at the key.
func (p Pauses) Extend(ctx context.Context, name string, until time.Time, why string) error {
	args := script.ArgumentsFunc(func(all []any, _ script.Attempt) []any {
		return append(all, time.Until(until).Milliseconds()+1, why)
	})
	_, err := p.run(ctx, name, script.Call{Script: lua.Pause, Args: args, Repeat: true})
	return err
}

// run makes a call about a name's key. It may be one for which no caller waits, so a panic is an error.
func (p Pauses) run(ctx context.Context, name string, c script.Call) (reply any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	l := p.Client.RateLimiter(name) // of which only the name is used
	b, _ := door.Behind[engine.Behind](l)
	if err := l.Err(); err != nil {
		return nil, err
	}
	lanes := b.Engine.Lanes()
	if err := lanes.Begin(); err != nil {
		return nil, err
	}
	defer lanes.End()
	c.Keys = script.KeysOf(redisson.PauseKey(b.Limiter.Config))
	return lanes.Run(ctx, &c)
}
