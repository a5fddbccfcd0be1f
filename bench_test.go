package rratelimiter_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func BenchmarkTryAcquire(b *testing.B) {
	rdb := redistest.Redis(b)
	ctx := context.Background()
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	client := rratelimiter.New(rdb)
	granting := client.RateLimiter(redistest.Name(b), rratelimiter.WithDefault(rratelimiter.PerSecond(1_000_000)))
	refusing := client.RateLimiter(redistest.Name(b), rratelimiter.WithDefault(rratelimiter.PerHour(1)))
	_, err := refusing.TryAcquire(ctx, 1, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw := redis.NewScript("return 1")
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := raw.Run(ctx, rdb, []string{"{a}1", "{a}2", "{a}3", "{a}4", "{a}5"},
				"012345678901234567890", "1", "", "", "", "", 0, "1", 1).Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, ctx := range map[string]context.Context{"plain": ctx, "cancellable": cancellable} {
		for what, limiter := range map[string]*rratelimiter.RateLimiter{"granting": granting, "refusing": refusing} {
			b.Run(what+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := limiter.TryAcquire(ctx, 1, 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(128)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := granting.TryAcquire(ctx, 1, 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
