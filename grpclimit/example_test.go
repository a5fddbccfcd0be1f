package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthserver "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// limitTo returns a limiter of so many permits a minute. The clock of its Redis stands still,
// so that the examples print the same figures each time.
func limitTo(n int64) (limiter limit.Limiter, stop func()) {
	rdb, stop := limittest.ConnectExample()
	client := rratelimiter.New(rdb)
	return slidinglog.New(client, slidinglog.Config{Limit: n, Window: time.Minute}), stop
}

// start starts a server of health checks, and returns a client of it.
func start(server []grpc.ServerOption, client ...grpc.DialOption) (health healthpb.HealthClient, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer(server...)
	healthpb.RegisterHealthServer(s, healthserver.NewServer())
	go func() { _ = s.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(client, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		panic(err)
	}
	return healthpb.NewHealthClient(conn), func() { _ = conn.Close(); s.Stop() }
}

// A server, and a client that reads when to come back.
func Example() {
	limiter, stop := limitTo(2)
	defer stop()
	limits := grpclimit.New(limiter)
	client, stopServer := start([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(limits.UnaryServer()), grpc.ChainStreamInterceptor(limits.StreamServer()),
	})
	defer stopServer()

	for range 3 {
		answer, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		if err == nil {
			fmt.Println(answer.GetStatus())
			continue
		}
		fmt.Println(status.Code(err))
		for _, detail := range status.Convert(err).Details() {
			if retry, ok := detail.(*errdetails.RetryInfo); ok {
				fmt.Println("come back in", retry.GetRetryDelay().AsDuration())
			}
		}
	}
	// Output:
	// SERVING
	// SERVING
	// ResourceExhausted
	// come back in 1m0s
}

// A limit for each tenant, named by a proxy before the server. Checks of
// health are free.
func ExampleWithKey() {
	limiter, stop := limitTo(1)
	defer stop()
	client, stopServer := start([]grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.New(limiter,
			grpclimit.WithPrefix("tenants:"),
			grpclimit.WithKey(grpclimit.Metadata("x-tenant")),
			grpclimit.WithSkip(func(_ context.Context, call grpclimit.Call) bool {
				return call.Method == healthpb.Health_Check_FullMethodName
			}),
		).UnaryServer())})
	defer stopServer()

	for _, tenant := range []string{"acme", "acme", "umbrella"} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x-tenant", tenant)
		_, checked := client.Check(ctx, &healthpb.HealthCheckRequest{})
		_, listed := client.List(ctx, &healthpb.HealthListRequest{})
		fmt.Println(tenant, status.Code(checked), status.Code(listed))
	}
	// Output:
	// acme OK OK
	// acme OK ResourceExhausted
	// umbrella OK OK
}

// A client that keeps to what it may send, together with all others that use the
// same Redis.
func ExampleInterceptors_UnaryClient() {
	limiter, stop := limitTo(1)
	defer stop()
	client, stopServer := start(nil, grpc.WithChainUnaryInterceptor(
		grpclimit.New(limiter, grpclimit.WithPrefix("partner:"), grpclimit.WithWait()).UnaryClient()))
	defer stopServer()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// rpc error: code = ResourceExhausted desc = rate limit exceeded, retry after 1m0s
}
