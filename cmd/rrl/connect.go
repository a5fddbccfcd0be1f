package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// closeTimeout bounds the work after a command's context has ended.
const closeTimeout = 2 * time.Second

// withRedis calls do with a connection to the servers that flags and
// environment name.
func (a *app) withRedis(ctx context.Context, do func(*connect.Connection) error) error {
	conn, err := a.connect.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return conn.Explain(do(conn))
}

// interruptible returns what read returns, or why ctx was cancelled, whichever is
// first: go-redis reads on until an answer or its timeout comes.
func interruptible[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// withLimiter calls do with the limiter called name.
func (a *app) withLimiter(ctx context.Context, name string, do func(*rratelimiter.RateLimiter) error) error {
	return a.withOwn(ctx, name, nil, do)
}

// withOwn is like withLimiter, but refuses a key that is foreign, unless that is nil.
func (a *app) withOwn(ctx context.Context, name string, foreign isForeign, do func(*rratelimiter.RateLimiter) error) error {
	return a.withRedis(ctx, func(conn *connect.Connection) error {
		if foreign != nil {
			if err := refuseForeign(ctx, conn.Client, name, foreign); err != nil {
				return err
			}
		}
		client := a.newClient(conn.Client, a.clientID)
		defer closeClient(ctx, client)
		return do(client.RateLimiter(name))
	})
}

// newClient returns a client with that id, "" for a random one.
func (a *app) newClient(rdb redis.UniversalClient, id string) *rratelimiter.Client {
	opts := []rratelimiter.Option{rratelimiter.WithCallTimeout(a.connect.CallTimeout())}
	if id != "" {
		opts = append(opts, rratelimiter.WithClientID(id))
	}
	if a.redisson != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(a.redisson))
	}
	return rratelimiter.New(rdb, opts...)
}

// closeClient closes a client also when ctx has ended, as after Ctrl-C.
func closeClient(ctx context.Context, client *rratelimiter.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = client.Close(ctx)
}
