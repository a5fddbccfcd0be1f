package otellimit

import (
	"context"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/rratelimiter/rratelimiter/limit"
)

// ScopeName is the name of the meter and of the tracer.
const ScopeName = "github.com/rratelimiter/rratelimiter/otellimit"

// The attributes.
const (
	nameKey    = attribute.Key("ratelimiter.name")
	outcomeKey = attribute.Key("ratelimiter.outcome")
	sourceKey  = attribute.Key("ratelimiter.source")
	shadowKey  = attribute.Key("ratelimiter.shadow")
	eventKey   = attribute.Key("ratelimiter.event")
	callKey    = attribute.Key("ratelimiter.call")
	permitsKey = attribute.Key("ratelimiter.permits")
	errorKey   = attribute.Key("error.type")
)

type observer struct {
	limit.NoObserver // methods that are to come

	instruments
	sets
	tracer trace.Tracer // nil: no spans

	mu    sync.Mutex
	waits map[string]int // waiting callers, by limiter; zeros are not kept
}

// New returns an observer for the WithObserver of one Client or one limiter of keys. Errors of
// the meter provider go to [go.opentelemetry.io/otel.Handle].
func New(opts ...Option) limit.Observer {
	c := newConfig(opts)
	o := &observer{
		instruments: newInstruments(c.meters.Meter(ScopeName)),
		sets:        newSets(c.maxNames),
		waits:       make(map[string]int),
	}
	if c.tracers != nil {
		o.tracer = c.tracers.Tracer(ScopeName)
	}
	o.open.Add(context.Background(), 0)
	for _, kind := range known {
		o.happened(kind, 0)
	}
	return o
}

// Decided counts the call and how long it took, and makes a span of it.
func (o *observer) Decided(ctx context.Context, d limit.Decided) {
	of := o.of(d.Limiter)
	all := of.decided(d)
	o.decisions.Add(ctx, 1, all.add...)
	o.permits.Add(ctx, max(0, d.Permits), all.add...)
	o.decisionTime.Record(ctx, d.Waited.Seconds(), of.ended(d.Outcome).record...)
	if d.Limit > 0 && (d.Outcome == limit.Granted || d.Outcome == limit.Refused) {
		o.utilization.Record(ctx, float64(max(0, d.Limit-d.Remaining))/float64(d.Limit), of.record...)
	}
	if o.tracer != nil {
		o.span(ctx, d)
	}
}

func (o *observer) span(ctx context.Context, d limit.Decided) {
	_, span := o.tracer.Start(ctx, "ratelimiter."+d.Call,
		trace.WithTimestamp(d.Start), trace.WithAttributes(nameKey.String(d.Limiter)))
	if span.IsRecording() {
		span.SetAttributes(append(decisionAttributes(d), callKey.String(d.Call), permitsKey.Int64(d.Permits))...)
		if d.Outcome == limit.Failed {
			why := ""
			if d.Err != nil {
				why = d.Err.Error()
			}
			span.SetStatus(codes.Error, why)
		}
	}
	span.End(trace.WithTimestamp(d.Start.Add(d.Waited)))
}

// decisionAttributes are the attributes of a decision except the limiter's name.
func decisionAttributes(d limit.Decided) []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 6)
	all = append(all, outcomeKey.String(string(d.Outcome)))
	if d.Source != "" {
		all = append(all, sourceKey.String(string(d.Source)))
	}
	if d.Shadow {
		all = append(all, shadowKey.Bool(true))
	}
	if d.Kind != "" {
		all = append(all, errorKey.String(string(d.Kind)))
	}
	return all
}

// Landed counts a round trip and what went in it.
func (o *observer) Landed(f limit.Flight) {
	ctx := context.Background()
	var failed []metric.RecordOption
	if f.Err != nil {
		failed = o.failed(limit.KindOf(f.Err)).record
	}
	o.roundTripTime.Record(ctx, f.RoundTrip.Seconds(), failed...)
	o.requests.Add(ctx, int64(f.Requests))
	o.calls.Add(ctx, int64(f.Calls))
	o.repeats.Add(ctx, int64(f.Repeats))
}

// Waiting brings the number of callers that wait up to date.
func (o *observer) Waiting(limiter string, callers int) {
	o.mu.Lock()
	change := callers - o.waits[limiter]
	if callers == 0 {
		delete(o.waits, limiter)
	} else {
		o.waits[limiter] = callers
	}
	o.mu.Unlock()
	o.waiting.Add(context.Background(), int64(change), o.of(limiter).add...)
}

// Leased counts leases and their permits.
func (o *observer) Leased(l limit.Lease) {
	ctx, of := context.Background(), o.of(l.Limiter)
	if l.Ended {
		o.leases.Add(ctx, -1, of.add...)
		o.unused.Add(ctx, max(0, l.Unused), of.add...)
		return
	}
	o.leases.Add(ctx, 1, of.add...)
	o.leased.Add(ctx, max(0, l.Permits), of.add...)
}

// Settled counts a settlement and, if it did not fail, its permits.
func (o *observer) Settled(s limit.Settled) {
	ctx, of := context.Background(), o.of(s.Limiter)
	if s.Err != nil {
		o.settlements.Add(ctx, 1, of.failedWith(s.Kind).add...)
		return
	}
	o.settlements.Add(ctx, 1, of.add...)
	o.reserved.Add(ctx, max(0, s.Reserved), of.add...)
	o.used.Add(ctx, max(0, s.Actual), of.add...)
}

// known are the events that are there with a count of 0 from the beginning: a counter that
// begins with its first event does not show how much of it came lately.
var known = []limit.EventKind{
	limit.ServerSilent, limit.ServerAnswers, limit.AskedNoMore, limit.AskedAgain,
	limit.PermitsGivenUp, limit.StateRepaired, limit.LayoutsExclude, limit.ReplicasBehind, limit.ReplicasKeepUp,
	limit.RateReplaced, limit.RateDiffers, limit.PrefixesMeet, limit.NameNotNoted, limit.RedissonUntested,
}

// Happened counts rare events.
func (o *observer) Happened(e limit.Event) {
	o.happened(e.Kind, 1)
	switch e.Kind {
	case limit.AskedNoMore:
		o.open.Add(context.Background(), 1)
	case limit.AskedAgain:
		o.open.Add(context.Background(), -1)
	}
}

func (o *observer) happened(kind limit.EventKind, n int64) {
	word := strings.ReplaceAll(string(kind), " ", "_")
	o.events.Add(context.Background(), n, metric.WithAttributes(eventKey.String(word)))
}
