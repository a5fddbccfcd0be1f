package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// grantLog gathers the grants that the server recorded: the times at which
// clients hear of them are too coarse to judge a limiter by.
type grantLog struct {
	rdb      *redis.Client
	key      string
	interval time.Duration

	mu     sync.Mutex
	latest float64
	grants map[string]grant
}

// grant is one member of the limiter's set.
type grant struct {
	at      int64 // ms
	permits int64
}

func (g *grantLog) start(rdb *redis.Client, name string, cfg rratelimiter.Config) {
	*g = grantLog{
		rdb: rdb, key: redisson.KeysOf(name, "").Permits, interval: cfg.Interval,
		latest: math.Inf(-1), grants: map[string]grant{},
	}
}

// read adds the grants that came since the last call. The server's clock only
// moves on, so none is older than those seen.
func (g *grantLog) read(ctx context.Context) error {
	g.mu.Lock()
	since := strconv.FormatFloat(g.latest, 'f', -1, 64)
	g.mu.Unlock()
	members, err := g.rdb.ZRangeByScoreWithScores(ctx, g.key, &redis.ZRangeBy{Min: since, Max: "+inf"}).Result()
	if err != nil {
		return fmt.Errorf("read the grants: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, z := range members {
		packed, _ := z.Member.(string)
		member, err := codec.Parse(packed)
		if err != nil {
			return fmt.Errorf("read the grants: %w", err)
		}
		g.grants[packed] = grant{at: int64(z.Score), permits: int64(member.Permits)}
		g.latest = max(g.latest, z.Score)
	}
	return nil
}

// peak returns how many permits were seen granted, in all and in the fullest
// interval.
func (g *grantLog) peak() (total, highest int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []grant
	for _, one := range g.grants {
		all = append(all, one)
		total += one.permits
	}
	slices.SortFunc(all, func(a, b grant) int { return cmp.Compare(a.at, b.at) })
	var inWindow int64
	first := 0
	for _, one := range all {
		inWindow += one.permits
		// A permit comes back one interval after it was granted.
		for all[first].at+g.interval.Milliseconds() <= one.at {
			inWindow -= all[first].permits
			first++
		}
		highest = max(highest, inWindow)
	}
	return total, highest
}
