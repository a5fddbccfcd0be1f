package otellimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

func TestSpans(t *testing.T) {
	t.Parallel()
	c := newCollector()
	recorder := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	o := c.observer(otellimit.WithTracerProvider(tracers), otellimit.WithMaxNames(0))
	ctx, parent := tracers.Tracer("test").Start(t.Context(), "request")
	start := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	o.Decided(ctx, limit.Decided{
		Limiter: "api", Call: "TryAcquire", Permits: 3, Outcome: limit.Granted, Source: limit.FromRedis, Start: start, Waited: 20 * time.Millisecond,
	})
	o.Decided(ctx, limit.Decided{
		Limiter: "api", Call: "Take", Permits: 1, Outcome: limit.Failed, Err: limit.ErrUnavailable, Kind: limit.KindUnavailable, Start: start, Waited: time.Second,
	})
	parent.End()

	spans := recorder.Ended()
	require.Len(t, spans, 3)
	granted, failed := spans[0], spans[1]
	for _, span := range spans[:2] {
		assert.Equal(t, parent.SpanContext().SpanID(), span.Parent().SpanID())
		assert.Equal(t, start, span.StartTime())
		assert.Equal(t, otellimit.ScopeName, span.InstrumentationScope().Name)
		assert.Contains(t, span.Attributes(), attribute.String("ratelimiter.name", "api"))
	}
	assert.Equal(t, "ratelimiter.TryAcquire", granted.Name())
	assert.Equal(t, start.Add(20*time.Millisecond), granted.EndTime())
	assert.ElementsMatch(t, []attribute.KeyValue{
		attribute.String("ratelimiter.name", "api"), attribute.String("ratelimiter.call", "TryAcquire"), attribute.Int64("ratelimiter.permits", 3),
		attribute.String("ratelimiter.outcome", "granted"), attribute.String("ratelimiter.source", "redis"),
	}, granted.Attributes())
	assert.Equal(t, codes.Unset, granted.Status().Code)
	assert.Equal(t, "ratelimiter.Take", failed.Name())
	assert.Equal(t, codes.Error, failed.Status().Code)
	assert.Equal(t, limit.ErrUnavailable.Error(), failed.Status().Description)
	assert.Contains(t, failed.Attributes(), attribute.String("error.type", "unavailable"))
}

// What is not sampled is counted all the same.
func TestSpansThatAreNotSampled(t *testing.T) {
	t.Parallel()
	c := newCollector()
	recorder := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(recorder), trace.WithSampler(trace.NeverSample()))
	tellAll(t.Context(), c.observer(otellimit.WithTracerProvider(tracers)))
	assert.Empty(t, recorder.Ended())
	assert.Equal(t, "2", c.points(t)["ratelimiter.decisions{ratelimiter.name=a,ratelimiter.outcome=granted,ratelimiter.source=redis}"])
}
