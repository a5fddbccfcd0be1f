package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

const defaultURL = "redis://127.0.0.1:6379"

// closeTimeout bounds what is done after a command's context has ended.
const closeTimeout = 2 * time.Second

// withRedis calls do with a client of the server that flags and environment
// name.
func (a *app) withRedis(do func(*redis.Client) error) error {
	address := a.redisURL
	if address == "" {
		address = a.getenv("REDIS_URL")
	}
	if address == "" {
		address = defaultURL
	}
	opts, err := parseURL(address)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(opts)
	defer func() { _ = rdb.Close() }()
	return do(rdb)
}

// errURL says no more than that: what can't be read may be a password.
var errURL = errors.New("it can't be read; in user and password write %2F for / and %40 for @, and so all that is no letter or digit")

// parseURL reads a server's URL.
func parseURL(address string) (*redis.Options, error) {
	opts, err := redis.ParseURL(address)
	if err != nil {
		at, urlErr := url.Parse(address)
		if urlErr != nil || strings.Contains(at.EscapedPath()+at.RawQuery+at.EscapedFragment(), "@") {
			err = errURL
		}
		return nil, fmt.Errorf("the server's URL: %w", err)
	}
	// Whoever waits at a terminal wants to hear soon that nobody answers.
	opts.DialerRetries = 1
	return opts, nil
}

// withLimiter calls do with the limiter called name.
func (a *app) withLimiter(ctx context.Context, name string, do func(*rratelimiter.RateLimiter) error) error {
	return a.withRedis(func(rdb *redis.Client) error {
		client := a.newClient(rdb, a.clientID)
		defer closeClient(ctx, client)
		return do(client.RateLimiter(name))
	})
}

// newClient returns a client with that id, "" for a random one.
func (a *app) newClient(rdb *redis.Client, id string) *rratelimiter.Client {
	var opts []rratelimiter.Option
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
