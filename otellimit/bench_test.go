package otellimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

var decided = limit.Decided{
	Limiter: "api", Call: "TryAcquire", Permits: 1, Outcome: limit.Granted, Source: limit.FromRedis, Start: time.Now(), Waited: 300 * time.Microsecond,
}

// What a decision costs its caller.
func BenchmarkDecided(b *testing.B) {
	for name, opts := range map[string][]otellimit.Option{
		"metrics":                        nil,
		"and spans that are not sampled": {otellimit.WithTracerProvider(trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())))},
		"and spans":                      {otellimit.WithTracerProvider(trace.NewTracerProvider())},
	} {
		b.Run(name, func(b *testing.B) {
			o, ctx := newCollector().observer(opts...), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				o.Decided(ctx, decided)
			}
		})
	}
}

// The same from several goroutines, with more limiters than are told apart.
func BenchmarkDecidedTogether(b *testing.B) {
	o, ctx := newCollector().observer(), b.Context()
	var names [2 * otellimit.DefaultMaxNames]string
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		d := decided
		for i := 0; pb.Next(); i++ {
			d.Limiter = names[i%len(names)]
			o.Decided(ctx, d)
		}
	})
}

func BenchmarkLanded(b *testing.B) {
	o := newCollector().observer()
	b.ReportAllocs()
	for b.Loop() {
		o.Landed(limit.Flight{Requests: 10, Calls: 4, RoundTrip: time.Millisecond})
	}
}

//nolint:paralleltest // AllocsPerRun counts the allocations of the whole process
func TestCountingAllocatesNothing(t *testing.T) {
	o, ctx := newCollector().observer(), t.Context()
	for what, tell := range map[string]func(){
		"Decided": func() { o.Decided(ctx, decided) },
		"Landed":  func() { o.Landed(limit.Flight{Requests: 10, Calls: 4, RoundTrip: time.Millisecond}) },
		"Waiting": func() { o.Waiting("api", 1) },
		"Leased":  func() { o.Leased(limit.Lease{Limiter: "api", Permits: 1}) },
	} {
		tell()
		assert.Zero(t, testing.AllocsPerRun(100, tell), what)
	}
}
