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
	add := func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, node)
		return nil
	}
	err := fmt.Errorf("no way to the servers behind a %T", rdb)
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, add)
	case *redis.Ring:
		err = c.ForEachShard(ctx, add)
	case *redis.Client:
		return []*redis.Client{c}, nil
	}
	slices.SortFunc(all, func(a, b *redis.Client) int { return cmp.Compare(Addr(a), Addr(b)) })
	return all, err
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
	return nil, fmt.Errorf("no way to the servers behind a %T", rdb)
}
