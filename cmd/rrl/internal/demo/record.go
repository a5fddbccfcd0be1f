package demo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// record gathers the grants that the server recorded: the times at which clients
// hear of them are too coarse to judge a limiter by.
type record struct {
	rdb      redis.UniversalClient
	key      string
	interval time.Duration

	mu     sync.Mutex
	latest float64
	grants map[string]grant // by the member of the limiter's set
}

func newRecord(rdb redis.UniversalClient, name string, interval time.Duration) *record {
	return &record{
		rdb: rdb, key: redisson.KeysOf(name, "").Permits, interval: interval,
		latest: math.Inf(-1), grants: map[string]grant{},
	}
}

// read adds the grants that came since the last call. The server's clock only
// moves on, so none is older than those seen.
func (r *record) read(ctx context.Context) error {
	r.mu.Lock()
	since := strconv.FormatFloat(r.latest, 'f', -1, 64)
	r.mu.Unlock()
	members, err := r.rdb.ZRangeByScoreWithScores(ctx, r.key, &redis.ZRangeBy{Min: since, Max: "+inf"}).Result()
	if err != nil {
		return fmt.Errorf("read the grants: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, z := range members {
		packed, _ := z.Member.(string)
		member, err := codec.Parse(packed)
		if err != nil {
			return fmt.Errorf("read the grants: %w", err)
		}
		at := time.Duration(z.Score) * time.Millisecond
		r.grants[packed] = grant{at: at, permits: int64(member.Permits)}
		r.latest = max(r.latest, z.Score)
	}
	return nil
}

// peak returns how many permits were seen granted, in all and in the fullest
// interval.
func (r *record) peak() (total, highest int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	grants := slices.SortedFunc(maps.Values(r.grants), func(a, b grant) int { return cmp.Compare(a.at, b.at) })
	for _, one := range grants {
		total += one.permits
	}
	highest, _, _ = fullest(grants, r.interval)
	return total, highest
}
