// Command rrl looks at and works with the rate limiters of package
// rratelimiter and of Redisson, and shows by a demo what they do.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // for machines without time zones

	"github.com/redis/go-redis/v9"
)

// silent drops what go-redis logs: rrl reports each error once, by itself.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
