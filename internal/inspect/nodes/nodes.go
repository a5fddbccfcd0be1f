// Package nodes finds the servers behind a client, for code that asks each of them.
package nodes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is the part of a go-redis client that asks servers. A package that names redis.UniversalClient
// or *redis.Client takes a second longer to compile: see script.Master.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	Process(ctx context.Context, cmd redis.Cmder) error
	Close() error
}

// Masters returns a client of each server that may be written to, sorted by
// address: the masters of a cluster, the shards of a ring that answer, otherwise the
// one server. They belong to rdb, which closes them.
func Masters(ctx context.Context, rdb Client) ([]Client, error) {
	var (
		mu  sync.Mutex
		all []Client
	)
	err := ForEach(ctx, rdb, func(_ context.Context, node Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node)
		return nil
	})
	slices.SortFunc(all, func(a, b Client) int { return cmp.Compare(Addr(a), Addr(b)) })
	return all, err
}

// ForEach calls fn, at the same time, with each of the servers of Masters, and waits
// for all.
func ForEach(ctx context.Context, rdb Client, fn func(ctx context.Context, node Client) error) error {
	visit := func(ctx context.Context, node *redis.Client) error { return fn(ctx, node) }
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, visit)
	case *redis.Ring:
		return c.ForEachShard(ctx, visit)
	case *redis.Client:
		return fn(ctx, c)
	}
	return unreachable(rdb)
}

func unreachable(rdb Client) error {
	return fmt.Errorf("no way to the servers behind a %T", rdb)
}

// Addr returns the address of a server of Masters.
//
//go:noinline // a caller would name *redis.Client
func Addr(node Client) string {
	if c, ok := node.(*redis.Client); ok {
		return c.Options().Addr
	}
	return ""
}

// IsCluster reports whether the servers behind a client are a cluster.
//
//go:noinline // a caller would name *redis.ClusterClient
func IsCluster(rdb Client) bool {
	_, is := rdb.(*redis.ClusterClient)
	return is
}

// Of returns a client of the server that has a key, as things are now.
func Of(ctx context.Context, rdb Client, key string) (Client, error) {
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Ring:
		return c.GetShardClientForKey(key)
	case *redis.Client:
		return c, nil
	}
	return nil, unreachable(rdb)
}

// tries is how often On calls its function at most.
const tries = 3

// On calls fn with the server that has key. On a cluster that has moved the key
// meanwhile, it calls fn again with the server that has it then.
func On(ctx context.Context, rdb Client, key string, fn func(ctx context.Context, node Client) error) error {
	cluster, isCluster := rdb.(*redis.ClusterClient)
	for try := 1; ; try++ {
		node, err := Of(ctx, rdb, key)
		if err != nil {
			return err
		}
		if err = fn(ctx, node); !isCluster || try == tries || err == nil || !Moving(err) {
			return err
		}
		cluster.ReloadState(ctx)
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause gives a cluster a moment, and the client that reloads its state.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}

// Moving reports whether an error comes from a node that had the keys or will have them.
func Moving(err error) bool {
	for _, prefix := range []string{"MOVED", "ASK", "TRYAGAIN", "EXECABORT"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
