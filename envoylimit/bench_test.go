package envoylimit

import (
	"fmt"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// BenchmarkService measures decisions without gRPC, on a real Redis.
func BenchmarkService(b *testing.B) {
	text := "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n"
	for _, bc := range []struct {
		name string
		keys int
		opts []Option
	}{{"hot", 1, nil}, {"10000", 10_000, nil}, {"leases", 1, []Option{WithLeases()}}} {
		b.Run(bc.name, func(b *testing.B) {
			s := newService(b, redistest.Redis(b), text, bc.opts...)
			var requests []*ratelimitv3.RateLimitRequest
			for i := range bc.keys {
				requests = append(requests, request("web", fmt.Sprintf("user=%d-%d", time.Now().UnixNano(), i)))
			}
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := s.ShouldRateLimit(b.Context(), requests[i%len(requests)]); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
