package redistest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A Hook is a hook of a go-redis client. It is called for each round trip, of one
// command or of a pipeline; next makes it.
type Hook func(cmds []redis.Cmder, next func() error) error

// DialHook changes nothing.
func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls h for one command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook calls h for the commands of a pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(cmds, func() error { return next(ctx, cmds) })
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
