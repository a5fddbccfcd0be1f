package redistest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A Hook is a redis.Hook that is called with each command, or with all of a pipeline,
// which next sends. A nil Hook changes nothing.
type Hook func(ctx context.Context, cmds []redis.Cmder, next func() error) error

// BeforeCommands returns a Hook that calls f before commands are sent.
func BeforeCommands(f func(cmds ...redis.Cmder)) Hook {
	return func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		f(cmds...)
		return next()
	}
}

// DialHook changes nothing.
func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls the Hook with one command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook calls the Hook with the commands of a pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// Fail sets the error of all commands and returns it.
func Fail(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// Calls reports whether cmd calls the script with that SHA1.
func Calls(cmd redis.Cmder, sha string) bool {
	return cmd.Name() == "evalsha" && cmd.Args()[1] == sha
}
