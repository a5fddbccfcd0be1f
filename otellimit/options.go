package otellimit

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// DefaultMaxNames is how many limiters metrics distinguish, unless [WithMaxNames] says
// otherwise.
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

// WithMeterProvider sets who gets the metrics, by default the global provider
// ([otel.GetMeterProvider]). nil changes nothing.
func WithMeterProvider(provider metric.MeterProvider) Option {
	return option(func(c *config) {
		if provider != nil {
			c.meters = provider
		}
	})
}

// WithTracerProvider makes each decision a span of that provider. Without it, and for
// nil, there are none.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return option(func(c *config) { c.tracers = provider })
}

// WithMaxNames sets how many limiters metrics distinguish: the first n that are heard
// of. Other limiters are counted as _OTHER. At 0 or less all are _OTHER.
func WithMaxNames(n int) Option {
	return option(func(c *config) { c.maxNames = max(0, n) })
}
