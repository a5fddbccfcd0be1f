// Package peer has the limiters that are measured, each behind [Peer].
package peer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

// A Rule is what every limiter of a measurement allows, as far as its model can express it.
type Rule struct {
	Limit    int64
	Interval time.Duration
}

// A Peer is one library, on one server.
type Peer interface {
	// Make makes n limiters of the rule, called prefix0, prefix1 and so on, in
	// place of those made before.
	Make(ctx context.Context, prefix string, n int, rule Rule) error
	// Each takes one permit of each of them and returns how many were granted.
	Each(ctx context.Context) (int, error)
	// Drain takes permits of the first until it refuses, or most are taken.
	Drain(ctx context.Context, most int) (int, error)
	// Load puts load on them, Crowd a crowd on the first.
	Load(ctx context.Context, l load.Load) (*load.Result, error)
	Crowd(ctx context.Context, c load.Crowd) ([]load.Grant, error)
	Close() error
}

// A Kind is a library that can be measured.
type Kind struct {
	Name  string
	Setup string // how it is used, for the reader
	// Floor: no limiter, but what a limiter can't be faster than. It grants all.
	Floor bool
	// Java: opened by a JVM of its own.
	Java bool
	// Aim: the project's aims are measured beside it.
	Aim bool
	// Log: it keeps what it granted for an interval, so that there is something
	// to reclaim.
	Log bool
	// Patience is how long its callers may wait for the last answers of a load;
	// 0 for the usual.
	Patience time.Duration
	// Value returns the key with a limiter's free permits, if there is one.
	Value func(name string) string
	// Commands are those that it sends. The number is how often each of its
	// scripts and transactions calls the same.
	Commands map[string]float64
	// Open opens it on the server at addr. Connections is the most that it may
	// have.
	Open func(ctx context.Context, addr string, connections int) (Peer, error)
}

// maker makes the limiters of a Go library.
type maker func(ctx context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error)

// inGo is a Peer that this process calls.
type inGo struct {
	rdb    *redis.Client
	make   maker
	take   load.Take
	count  int
	closes func() error
}

func open(m maker) func(context.Context, string, int) (Peer, error) {
	return func(_ context.Context, addr string, connections int) (Peer, error) {
		rdb := NewClient(addr, connections)
		return &inGo{rdb: rdb, make: m, closes: rdb.Close}, nil
	}
}

// NewClient returns the go-redis client that all Go libraries get: its defaults,
// except for the size of the pool.
func NewClient(addr string, connections int) *redis.Client {
	return redis.NewClient(options(addr, connections))
}

// NewPunctualClient returns the same with ContextTimeoutEnabled: its connections
// keep the deadlines of contexts.
func NewPunctualClient(addr string, connections int) *redis.Client {
	o := options(addr, connections)
	o.ContextTimeoutEnabled = true
	return redis.NewClient(o)
}

func options(addr string, connections int) *redis.Options {
	return &redis.Options{Addr: addr, PoolSize: connections, PoolTimeout: time.Minute}
}

func (p *inGo) Make(ctx context.Context, prefix string, n int, rule Rule) error {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i)
	}
	take, err := p.make(ctx, p.rdb, names, rule)
	p.take, p.count = take, n
	return err
}

func (p *inGo) Each(ctx context.Context) (int, error) { return load.Each(ctx, p.count, p.take) }

func (p *inGo) Drain(ctx context.Context, most int) (int, error) {
	return load.Drain(ctx, most, p.take)
}

func (p *inGo) Load(ctx context.Context, l load.Load) (*load.Result, error) {
	return load.Run(ctx, l, p.take), nil
}

func (p *inGo) Crowd(ctx context.Context, c load.Crowd) ([]load.Grant, error) {
	return c.Run(ctx, p.take), nil
}

func (p *inGo) Close() error { return p.closes() }

// Take returns what the peer's callers call, if this process does; else nil.
func Take(p Peer) load.Take {
	if p, ok := p.(*inGo); ok {
		return p.take
	}
	return nil
}

// Kinds returns all that can be measured, ours first.
func Kinds() []Kind { return slices.Concat(ours, others, java, libraries, fromArticles, floors) }

// Find returns the kind of that name.
func Find(name string) (Kind, bool) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}
