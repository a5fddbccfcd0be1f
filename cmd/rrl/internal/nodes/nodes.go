// Package nodes finds the servers behind a client, for commands that ask each
// of them something.
package nodes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Masters returns a client of each server that may be written to, sorted by
// address: the masters of a cluster, the shards of a ring that answer, else the
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
