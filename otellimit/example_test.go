package otellimit_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// A program that exports metrics has a reader of Prometheus or OTLP in place of this
// one, and may set its provider with otel.SetMeterProvider.
func Example() {
	ctx := context.Background()
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	defer func() { _ = provider.Shutdown(ctx) }()

	rdb, stop := limittest.ConnectExample()
	defer stop()

	client := rratelimiter.New(rdb, rratelimiter.WithObserver(otellimit.New(otellimit.WithMeterProvider(provider))))
	users := client.Keyed("users:", rratelimiter.PerMinute(2))
	for range 3 {
		if _, err := users.Take(ctx, "ann", 1); err != nil {
			fmt.Println(err)
		}
	}

	var got metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &got); err != nil {
		fmt.Println(err)
	}
	for _, m := range got.ScopeMetrics[0].Metrics {
		if m.Name != "ratelimiter.decisions" {
			continue
		}
		for _, point := range m.Data.(metricdata.Sum[int64]).DataPoints {
			fmt.Println(point.Attributes.Encoded(attribute.DefaultEncoder()), point.Value)
		}
	}
	// Unordered output:
	// ratelimiter.name=users:,ratelimiter.outcome=granted,ratelimiter.source=redis 2
	// ratelimiter.name=users:,ratelimiter.outcome=refused,ratelimiter.source=redis 1
}
