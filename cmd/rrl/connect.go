package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/words"
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
	return withinGrace(ctx, 0, read)
}

// withinGrace is like interruptible, but leaves read some time to end by itself, and to clean up.
func withinGrace[T any](ctx context.Context, grace time.Duration, read func() (T, error)) (T, error) {
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
	}
	if grace > 0 {
		select {
		case <-done:
		case <-time.After(grace):
		}
	}
	var none T
	return none, ctx.Err()
}

// check fails if a command must not change the limiter of that name.
type check func(ctx context.Context, rdb redis.UniversalClient, name string) error

// withLimiter calls do with the limiter called name, unless refuse, if it is not nil, fails.
func (a *app) withLimiter(ctx context.Context, name string, refuse check, do func(*rratelimiter.RateLimiter) error) error {
	return a.withRedis(ctx, func(conn *connect.Connection) error {
		if refuse != nil {
			if err := refuse(ctx, conn.Client, name); err != nil {
				return err
			}
		}
		client := a.newClient(conn.Client, a.clientID)
		defer closeClient(ctx, client)
		return do(client.RateLimiter(name))
	})
}

// refuseExcluded returns the check that fails if a limiter holds permits of Redissons that can't
// read what rrl would write beside them: both would fail, or grant too much, once the permits run out.
// If the command takes no permits, only older Redissons that --redisson does not name count.
func (a *app) refuseExcluded(takes bool) check {
	return func(ctx context.Context, rdb redis.UniversalClient, name string) error {
		ours := redisson.NewestRules
		if a.redisson != "" {
			ours, _ = redisson.RulesFor(a.redisson) // checked with the flags
		}
		theirs, err := look.OldestWriters(ctx, rdb, name, a.clientID)
		switch {
		case redis.HasErrorPrefix(err, "NOPERM"):
			return nil // the command says what it may not do
		case err != nil || theirs == nil || theirs.Share(ours.Layout):
			return err
		case theirs.Layout < ours.Layout:
			return fmt.Errorf("%s has permits of Redisson %s, which can't read newer ones: give --redisson %s; if no such Redisson is left, run rrl migrate first",
				words.Printable(name), theirs, theirs.First)
		case takes:
			return fmt.Errorf("%s has permits of Redisson %s, which %s can't read: leave out --redisson, or name a newer one",
				words.Printable(name), theirs, ours.Version)
		}
		return nil
	}
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
