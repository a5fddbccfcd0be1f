package otellimit

import (
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// buckets are the bounds of histograms in seconds: an answer from memory takes less than the
// first, one from Redis some of those after it, and a caller that waits for permits up
// to its timeout.
var buckets = []float64{
	0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
}

// shares are the bounds of histograms of shares, closest where little is left.
var shares = []float64{0, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1}

type instruments struct {
	decisions, permits       metric.Int64Counter
	decisionTime             metric.Float64Histogram
	utilization              metric.Float64Histogram
	waiting                  metric.Int64UpDownCounter
	roundTripTime            metric.Float64Histogram
	requests, calls, repeats metric.Int64Counter
	leases                   metric.Int64UpDownCounter
	leased, unused           metric.Int64Counter
	settlements              metric.Int64Counter
	reserved, used           metric.Int64Counter
	open                     metric.Int64UpDownCounter
	events                   metric.Int64Counter
}

// newInstruments reports instruments that the meter refuses to OpenTelemetry's error handler;
// they then count nothing.
func newInstruments(m metric.Meter) instruments {
	b := builder{meter: m}
	i := instruments{
		decisions:     b.counter("ratelimiter.decisions", "{decision}", "Calls that asked for permits."),
		permits:       b.counter("ratelimiter.permits", "{permit}", "Permits that were asked for."),
		decisionTime:  b.histogram("ratelimiter.decision.duration", "s", "From the call to its answer, the wait for permits included.", buckets),
		utilization:   b.histogram("ratelimiter.utilization", "1", "The share of the limit that is used after a decision.", shares),
		waiting:       b.upDown("ratelimiter.waiting_callers", "{caller}", "Callers that wait for permits."),
		roundTripTime: b.histogram("ratelimiter.round_trip.duration", "s", "Round trips to Redis, until the answer or until they were given up.", buckets),
		requests:      b.counter("ratelimiter.round_trip.requests", "{request}", "Callers' requests in round trips."),
		calls:         b.counter("ratelimiter.round_trip.calls", "{call}", "Script calls in round trips."),
		repeats:       b.counter("ratelimiter.round_trip.repeats", "{call}", "Script calls that had been sent before."),
		leases:        b.upDown("ratelimiter.lease.count", "{lease}", "Leases of permits taken ahead."),
		leased:        b.counter("ratelimiter.lease.permits", "{permit}", "Permits that leases took ahead."),
		unused:        b.counter("ratelimiter.lease.unused", "{permit}", "Permits of leases that were given back."),
		settlements:   b.counter("ratelimiter.settlements", "{settlement}", "Reservations that were settled, or could not be."),
		reserved:      b.counter("ratelimiter.settlement.reserved", "{permit}", "Permits that reservations took before they were settled."),
		used:          b.counter("ratelimiter.settlement.used", "{permit}", "Permits that reservations were settled with."),
		open:          b.upDown("ratelimiter.open_breakers", "{breaker}", "Servers that are asked no more until a probe shows that they answer."),
		events:        b.counter("ratelimiter.events", "{event}", "Rare events."),
	}
	if err := errors.Join(b.faults...); err != nil {
		otel.Handle(err)
	}
	return i
}

type builder struct {
	meter  metric.Meter
	faults []error
}

// or returns the instrument, or if there is an error one that does nothing.
func or[T any](b *builder, made T, err error, nothing T) T {
	if err != nil {
		b.faults = append(b.faults, err)
		return nothing
	}
	return made
}

func (b *builder) counter(name, unit, description string) metric.Int64Counter {
	made, err := b.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return or[metric.Int64Counter](b, made, err, noop.Int64Counter{})
}

func (b *builder) upDown(name, unit, description string) metric.Int64UpDownCounter {
	made, err := b.meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return or[metric.Int64UpDownCounter](b, made, err, noop.Int64UpDownCounter{})
}

func (b *builder) histogram(name, unit, description string, bounds []float64) metric.Float64Histogram {
	made, err := b.meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	return or[metric.Float64Histogram](b, made, err, noop.Float64Histogram{})
}
