package envoylimit_test

import (
	"context"
	"fmt"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
)

func ExampleNew() {
	rdb, stop := limittest.ConnectExample() // redis.NewClient in a program
	defer stop()
	client := rratelimiter.New(rdb)
	defer func() { _ = client.Close(context.Background()) }()
	config, err := envoylimit.Parse([]envoylimit.File{{Name: "web.yaml", Data: []byte(`
domain: web
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 2 }
`)}}) // or envoylimit.Load("limits")
	if err != nil {
		fmt.Println(err)
		return
	}
	service := envoylimit.New(client, config)
	server := grpc.NewServer() // then server.Serve(listener)
	ratelimitv3.RegisterRateLimitServiceServer(server, service)

	// What Envoy asks.
	for range 3 {
		answer, err := service.ShouldRateLimit(context.Background(), &ratelimitv3.RateLimitRequest{
			Domain:      "web",
			Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "ann"}}}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(answer.GetOverallCode(), answer.GetStatuses()[0].GetLimitRemaining())
	}
	// Output:
	// OK 1
	// OK 0
	// OVER_LIMIT 0
}
