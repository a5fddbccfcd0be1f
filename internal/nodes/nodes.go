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

// Masters returns a client of each server that may be written to, sorted by
// address: the masters of a cluster, the shards of a ring that answer, otherwise the
// one server. They belong to rdb, which closes them.
func Masters(ctx context.Context, rdb redis.UniversalClient) ([]*redis.Client, error) {
	var (
		mu  sync.Mutex
		all []*redis.Client
	)
	err := ForEach(ctx, rdb, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node)
		return nil
	})
	slices.SortFunc(all, func(a, b *redis.Client) int { return cmp.Compare(Addr(a), Addr(b)) })
	return all, err
}

// ForEach calls fn, at the same time, with each of the servers of Masters, and waits
// for all.
func ForEach(ctx context.Context, rdb redis.UniversalClient, fn func(ctx context.Context, node *redis.Client) error) error {
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, fn)
	case *redis.Ring:
		return c.ForEachShard(ctx, fn)
	case *redis.Client:
		return fn(ctx, c)
	}
	return unreachable(rdb)
}

func unreachable(rdb redis.UniversalClient) error {
	return fmt.Errorf("no way to the servers behind a %T", rdb)
}

// Addr returns a server's address.
func Addr(node *redis.Client) string { return node.Options().Addr }

// Of returns a client of the server that has a key, as things are now.
func Of(ctx context.Context, rdb redis.UniversalClient, key string) (*redis.Client, error) {
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
func On(ctx context.Context, rdb redis.UniversalClient, key string, fn func(ctx context.Context, node *redis.Client) error) error {
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
