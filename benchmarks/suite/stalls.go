package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/codec"
)

// Cases of what has piled up.
const (
	OneIsLeft  = "all but one have run out"
	HalfIsLeft = "half of them have run out"
)

// piles are the cases, by the interval that makes them.
var piles = []struct {
	mode     string
	interval time.Duration
}{
	{OneIsLeft, 10 * time.Minute},
	{HalfIsLeft, time.Hour},
}

// template is the key of a set of permits that have piled up, each a member of
// its own, as Redisson writes them: half of them taken two hours ago, the others
// half an hour ago, except the last, which was taken just now.
const template = "bench:template"

// stalls measures the longest script if members have piled up.
func (r *run) stalls(ctx context.Context, round int) error {
	if err := r.redis.Flush(ctx); err != nil {
		return err
	}
	if err := r.pile(ctx); err != nil {
		return err
	}
	time.Sleep(time.Second) // until the last member is one second old
	for _, pile := range piles {
		for _, p := range r.peersOf(report.Direct, round) {
			if p.Name != peer.Ours && p.Name != peer.Redisson {
				continue
			}
			longest, err := r.stall(ctx, p, peer.Rule{Limit: int64(r.Piled), Interval: pile.interval})
			if err != nil {
				return fmt.Errorf("%s, %s: %w", p.Name, pile.mode, err)
			}
			k := report.Key{Metric: report.Longest, Peer: p.Name, Network: report.Direct, Mode: pile.mode, Callers: 1, Limiters: 1}
			r.results.Add(k, micros(longest))
		}
	}
	return r.redis.Flush(ctx)
}

// stall returns the longest script that callers run on such a limiter: of Redisson, one
// acquire, which does it all; of ours, which does it bit by bit, everything.
func (r *run) stall(ctx context.Context, p *opened, rule peer.Rule) (time.Duration, error) {
	prefix := r.prefix()
	if err := p.peer.Make(ctx, prefix, 1, rule); err != nil {
		return 0, err
	}
	name := prefix + "0"
	value, permits := "{"+name+"}:value", "{"+name+"}:permits"
	db := r.redis.Client()
	_, err := db.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Copy(ctx, template, permits, 0, true)
		pipe.Set(ctx, value, 0, 0)
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer db.Del(ctx, name, value, permits)
	if p.Name == peer.Redisson {
		return r.redis.Longest(ctx, func() error {
			_, err := p.peer.Load(ctx, load.Load{Callers: 1, Limiters: 1, Length: 200 * time.Millisecond})
			return err
		})
	}
	rdb := peer.NewClient(r.redis.Addr, connectionsNear)
	defer func() { _ = rdb.Close() }()
	client := rratelimiter.New(rdb)
	l := client.RateLimiter(name)
	longest, err := r.redis.Longest(ctx, func() error {
		for range 200 {
			if _, err := l.TryAcquire(ctx, 1, 0); err != nil {
				return err
			}
		}
		_, few := l.AvailablePermits(ctx)
		_, all := l.TryAcquire(ctx, rule.Limit, 0)
		_, half := l.Take(ctx, rule.Limit/2)
		released := l.Release(ctx, 1000)
		cfg := rratelimiter.Config{Rate: 2 * rule.Limit, Interval: rule.Interval}
		kept := l.SetRate(ctx, cfg, rratelimiter.KeepState())
		set := l.SetRate(ctx, cfg)
		return errors.Join(few, all, half, released, kept, set)
	})
	return longest, errors.Join(err, client.Close(ctx))
}

// pile writes the template.
func (r *run) pile(ctx context.Context) error {
	const page = 1000
	now, err := r.redis.Client().Time(ctx).Result()
	if err != nil {
		return err
	}
	rows, id := make([]redis.Z, page), make([]byte, 16)
	for done := 0; done < r.Piled; done += page {
		taken := now.Add(-2 * time.Hour)
		if done >= r.Piled/2 {
			taken = now.Add(-30 * time.Minute)
		}
		for i := range rows {
			if done+i == r.Piled-1 {
				taken = now
			}
			_, _ = rand.Read(id)
			member, err := codec.Append(nil, codec.LayoutD2, id, 1)
			if err != nil {
				return err
			}
			rows[i] = redis.Z{Score: float64(taken.UnixMilli()), Member: string(member)}
		}
		if err := r.redis.Client().ZAdd(ctx, template, rows...).Err(); err != nil {
			return err
		}
	}
	return nil
}
