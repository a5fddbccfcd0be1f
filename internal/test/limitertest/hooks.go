package limitertest

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/lua"
)

// BeforeScript does something before each call of a script.
type BeforeScript struct {
	Script *lua.Script
	Do     func()
}

// DialHook changes nothing.
func (BeforeScript) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook looks for the script.
func (b BeforeScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == b.Script.SHA {
			b.Do()
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook changes nothing.
func (BeforeScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Slow makes each command of a client take a while.
type Slow time.Duration

// DialHook changes nothing.
func (Slow) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook waits before the command.
func (s Slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(s))
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook changes nothing.
func (Slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
