package connect

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// universal returns what the options of a cluster and of Sentinels have in
// common.
func (s *settings) universal() *redis.UniversalOptions {
	o := s.client
	u := &redis.UniversalOptions{
		DB: o.DB, Username: o.Username, Password: o.Password, ClientName: o.ClientName, Protocol: o.Protocol,
		MaxRetries: o.MaxRetries, MinRetryBackoff: o.MinRetryBackoff, MaxRetryBackoff: o.MaxRetryBackoff,
		DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled,
		PoolFIFO:              o.PoolFIFO, PoolSize: o.PoolSize, PoolTimeout: o.PoolTimeout,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxActiveConns: o.MaxActiveConns,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime, Dialer: o.Dialer,
	}
	for _, a := range s.addrs {
		u.Addrs = append(u.Addrs, a.addr)
	}
	return u
}

// ring returns the options of a ring without its shards.
func (s *settings) ring() *redis.RingOptions {
	o := s.client
	return &redis.RingOptions{
		Addrs: map[string]string{},
		// A shard that is given up would leave its limiters to another one, where
		// they are not.
		HeartbeatFrequency: time.Hour, HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
		DB: o.DB, Username: o.Username, Password: o.Password, ClientName: o.ClientName, Protocol: o.Protocol,
		MaxRetries: o.MaxRetries, MinRetryBackoff: o.MinRetryBackoff, MaxRetryBackoff: o.MaxRetryBackoff,
		DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled,
		PoolFIFO:              o.PoolFIFO, PoolSize: o.PoolSize, PoolTimeout: o.PoolTimeout,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxActiveConns: o.MaxActiveConns,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime, Dialer: o.Dialer,
	}
}
