package otellimit

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// DefaultMaxNames is how many limiters metrics distinguish, unless [WithMaxNames] sets another
// number.
const DefaultMaxNames = 200

// Option configures an observer.
type Option interface{ apply(c *config) }

type config struct {
	meters   metric.MeterProvider
	tracers  trace.TracerProvider // nil: no spans
	maxNames int
}

type option func(*config)

func (o option) apply(c *config) { o(c) }

func newConfig(opts []Option) config {
	c := config{meters: otel.GetMeterProvider(), maxNames: DefaultMaxNames}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&c)
		}
	}
	return c
}

// WithMeterProvider sets the provider of the meter, by default the global one
// ([otel.GetMeterProvider]). nil changes nothing.
func WithMeterProvider(provider metric.MeterProvider) Option {
	return option(func(c *config) {
		if provider != nil {
			c.meters = provider
		}
	})
}

// WithTracerProvider makes each decision a span of that provider. By default, and with nil,
// there are no spans.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return option(func(c *config) { c.tracers = provider })
}

// WithMaxNames sets how many limiters metrics distinguish, by default DefaultMaxNames: the first
// n that report anything. Other limiters are counted as _OTHER. If n is 0 or less, all are.
func WithMaxNames(n int) Option {
	return option(func(c *config) { c.maxNames = max(0, n) })
}
