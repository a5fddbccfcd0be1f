package limitertest

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Counter counts the commands that a go-redis client sends.
type Counter struct {
	mu    sync.Mutex
	names map[string]int
}

// CountCommands counts what rdb sends from now on.
func CountCommands(rdb redis.UniversalClient) *Counter {
	c := &Counter{names: map[string]int{}}
	rdb.AddHook(c)
	return c
}

// Total returns the number of commands sent, those of pipelines one by one.
func (c *Counter) Total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for _, n := range c.names {
		sum += n
	}
	return sum
}

// Scripts returns the number of script calls sent.
func (c *Counter) Scripts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names["evalsha"] + c.names["eval"]
}

func (c *Counter) add(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		c.names[cmd.Name()]++
	}
}

// DialHook changes nothing.
func (c *Counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts a command.
func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts those of a pipeline.
func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}
