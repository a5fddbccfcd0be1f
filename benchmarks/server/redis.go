// Package server starts the Redis that limiters are measured on, reads what
// they cost it, and puts a delay before it.
package server

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// ErrNoServer says that this machine has no redis-server.
var ErrNoServer = redistest.ErrNoServer

// A Redis is a server of this run's own that keeps nothing on disk.
type Redis struct {
	Addr    string
	Version string
	server  *redistest.Server
	admin   *redis.Client
}

// Start starts the redis-server at path, or a release such as redis-7.0; if path is
// empty the one that RRL_REDIS_SERVER names, that of .cache/bin or of the PATH.
func Start(ctx context.Context, path string) (*Redis, error) {
	server, err := redistest.Start(redistest.Version(path))
	if err != nil {
		return nil, err
	}
	s := &Redis{Addr: server.Addr(), server: server, admin: redis.NewClient(&redis.Options{
		Addr: server.Addr(), MaxRetries: -1, ReadTimeout: time.Minute,
	})}
	info, err := s.info(ctx, "server")
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Version = info["redis_version"]
	return s, nil
}

// Close ends the server.
func (s *Redis) Close() {
	_ = s.admin.Close()
	s.server.Kill()
}

// Freeze has the server hang until thaw is called. It keeps its connections.
func (s *Redis) Freeze() (thaw func(), err error) {
	return func() { _ = s.server.Hang(false) }, s.server.Hang(true)
}

// Flush removes all keys.
func (s *Redis) Flush(ctx context.Context) error { return s.admin.FlushAll(ctx).Err() }

// Client is a client for commands that are no part of a measurement.
func (s *Redis) Client() *redis.Client { return s.admin }
