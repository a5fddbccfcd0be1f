package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
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

// Behind proxies: only what they have written into x-forwarded-for is believed.
func ExampleClientIP() {
	limiter, stop := limitTo(1)
	defer stop()
	byClient := grpclimit.ClientIP(grpclimit.ClientIPConfig{Trusted: []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"),
	}})
	proxy, stopServer := start([]grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.New(limiter, grpclimit.WithKey(byClient)).UnaryServer())})
	defer stopServer()

	for _, forwarded := range []string{"192.0.2.1", "203.0.113.9, 192.0.2.1, 10.0.0.2", "192.0.2.2"} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x-forwarded-for", forwarded)
		_, err := proxy.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println(forwarded, status.Code(err))
	}
	// Output:
	// 192.0.2.1 OK
	// 203.0.113.9, 192.0.2.1, 10.0.0.2 ResourceExhausted
	// 192.0.2.2 OK
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

// While Redis is down calls pass, and the error handler is called.
func ExampleWithFailure() {
	limiter, stop := limitTo(1)
	stop() // Redis goes down
	client, stopServer := start([]grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.New(limiter,
			grpclimit.WithFailure(limit.FailOpen()),
			grpclimit.WithTimeout(10*time.Millisecond),
			grpclimit.WithErrorHandler(func(_ context.Context, call grpclimit.Call, _ error) {
				fmt.Println("not limited:", call.Method)
			}),
		).UnaryServer())})
	defer stopServer()

	_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(err)
	// Output:
	// not limited: /grpc.health.v1.Health/Check
	// <nil>
}

// refusals prints what a limit would have refused.
type refusals struct{ limit.NoObserver }

func (refusals) Decided(_ context.Context, d limit.Decided) {
	if d.Outcome == limit.Refused {
		fmt.Println("the limit", d.Limiter, "would refuse this:")
	}
}

// What would a limit of one call a minute do? No call is refused.
func ExampleWithShadow() {
	limiter, stop := limitTo(1)
	defer stop()
	client, stopServer := start([]grpc.ServerOption{grpc.ChainUnaryInterceptor(
		grpclimit.New(grpclimit.Policy{Name: "minute", Limiter: limiter},
			grpclimit.WithShadow(), grpclimit.WithObserver(refusals{})).UnaryServer())})
	defer stopServer()

	for range 2 {
		answer, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(answer.GetStatus(), err)
	}
	// Output:
	// SERVING <nil>
	// the limit minute would refuse this:
	// SERVING <nil>
}

// A client reads how many permits are left.
func ExampleInterceptors_UnaryServer() {
	limiter, stop := limitTo(3)
	defer stop()
	client, stopServer := start([]grpc.ServerOption{grpc.ChainUnaryInterceptor(grpclimit.New(limiter).UnaryServer())})
	defer stopServer()

	var trailer metadata.MD
	_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	fmt.Println(trailer.Get(grpclimit.TrailerRemaining), "of", trailer.Get(grpclimit.TrailerLimit), err)
	// Output: [2] of [3] <nil>
}
