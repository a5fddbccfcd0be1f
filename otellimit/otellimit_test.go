package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// collector is what one observer or several count.
type collector struct {
	reader   *sdk.ManualReader
	provider *sdk.MeterProvider
}

func newCollector() collector {
	reader := sdk.NewManualReader()
	return collector{reader, sdk.NewMeterProvider(sdk.WithReader(reader))}
}

func (c collector) observer(opts ...otellimit.Option) limit.Observer {
	return otellimit.New(append(opts, otellimit.WithMeterProvider(c.provider))...)
}

// metrics returns all metrics by their names.
func (c collector) metrics(t testing.TB) map[string]metricdata.Metrics {
	t.Helper()
	var got metricdata.ResourceMetrics
	require.NoError(t, c.reader.Collect(t.Context(), &got))
	all := map[string]metricdata.Metrics{}
	for _, scope := range got.ScopeMetrics {
		require.Equal(t, otellimit.ScopeName, scope.Scope.Name)
		for _, m := range scope.Metrics {
			all[m.Name] = m
		}
	}
	return all
}

// points returns the values of all metrics, a histogram's being its count and sum, by
// their name and attributes: "ratelimiter.decisions{error.type=other}".
func (c collector) points(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, m := range c.metrics(t) {
		add := func(of attribute.Set, value string) {
			all[fmt.Sprintf("%s{%s}", name, of.Encoded(attribute.DefaultEncoder()))] = value
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				add(p.Attributes, fmt.Sprint(p.Value))
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				add(p.Attributes, fmt.Sprintf("%d in %.3g %s", p.Count, p.Sum, m.Unit))
			}
		default:
			t.Fatalf("%s is a %T", name, data)
		}
	}
	return all
}

// tellAll tells an observer something by each of its methods.
func tellAll(ctx context.Context, o limit.Observer) {
	start := time.Now()
	granted := limit.Decided{
		Key: "http:ann", Limit: 10, Remaining: 4, Limiter: "a", Call: "Take", Permits: 3, Outcome: limit.Granted, Source: limit.FromRedis, Start: start, Waited: 2 * time.Millisecond,
	}
	o.Decided(ctx, granted)
	o.Decided(ctx, granted)
	refused := granted
	refused.Outcome, refused.Source, refused.Shadow, refused.Remaining = limit.Refused, limit.FromMemory, true, 0
	o.Decided(ctx, refused)
	costly := granted
	costly.Limiter, costly.Permits, costly.Outcome, costly.Remaining = "b", 11, limit.TooCostly, 0 // it is not known
	o.Decided(ctx, costly)
	o.Decided(ctx, limit.Decided{
		Limiter: "a", Permits: -1, Outcome: limit.Failed, Err: limit.ErrInvalidPermits, Kind: limit.KindInvalid,
		Start: start, Waited: time.Second,
	})

	o.Landed(limit.Flight{Requests: 10, Calls: 4, Repeats: 1, RoundTrip: time.Millisecond})
	o.Landed(limit.Flight{Requests: 1, Calls: 1, RoundTrip: 3 * time.Second, Err: limit.ErrUnavailable})
	for _, callers := range []int{5, 7, 2} {
		o.Waiting("a", callers)
	}
	o.Waiting("b", 1)
	o.Waiting("b", 0)
	o.Leased(limit.Lease{Limiter: "a", Permits: 40})
	o.Leased(limit.Lease{Limiter: "a", Permits: 60})
	o.Leased(limit.Lease{Limiter: "a", Permits: 40, Ended: true, Unused: 15})
	o.Settled(limit.Settled{Limiter: "a", Reserved: 10, Actual: 4, Charged: true})
	o.Settled(limit.Settled{Limiter: "a", Reserved: 10, Actual: 30})
	o.Settled(limit.Settled{Limiter: "a", Reserved: 10, Actual: 30, Err: limit.ErrUnavailable, Kind: limit.KindUnavailable})
	o.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: "a", Permits: 2})
	o.Happened(limit.Event{Kind: limit.AskedNoMore})
	o.Happened(limit.Event{Kind: limit.AskedNoMore})
	o.Happened(limit.Event{Kind: limit.AskedAgain})
}

func TestMetrics_Values(t *testing.T) {
	t.Parallel()
	c := newCollector()
	tellAll(t.Context(), c.observer())
	points := c.points(t)
	maps.DeleteFunc(points, func(point, value string) bool { return strings.HasPrefix(point, "ratelimiter.events") && value == "0" })
	assert.Equal(t, map[string]string{
		"ratelimiter.decisions{ratelimiter.name=a,ratelimiter.outcome=granted,ratelimiter.source=redis}": "2",

		"ratelimiter.decisions{ratelimiter.name=a,ratelimiter.outcome=refused,ratelimiter.shadow=true,ratelimiter.source=memory}": "1",

		"ratelimiter.decisions{error.type=invalid_argument,ratelimiter.name=a,ratelimiter.outcome=failed}": "1",
		"ratelimiter.permits{ratelimiter.name=a,ratelimiter.outcome=granted,ratelimiter.source=redis}":     "6",

		"ratelimiter.permits{ratelimiter.name=a,ratelimiter.outcome=refused,ratelimiter.shadow=true,ratelimiter.source=memory}": "3",

		"ratelimiter.permits{error.type=invalid_argument,ratelimiter.name=a,ratelimiter.outcome=failed}": "0",
		"ratelimiter.decision.duration{ratelimiter.name=a,ratelimiter.outcome=granted}":                  "2 in 0.004 s",
		"ratelimiter.decision.duration{ratelimiter.name=a,ratelimiter.outcome=refused}":                  "1 in 0.002 s",
		"ratelimiter.decision.duration{ratelimiter.name=a,ratelimiter.outcome=failed}":                   "1 in 1 s",
		"ratelimiter.utilization{ratelimiter.name=a}":                                                    "3 in 2.2 1",

		"ratelimiter.decisions{ratelimiter.name=b,ratelimiter.outcome=too_costly,ratelimiter.source=redis}": "1",
		"ratelimiter.permits{ratelimiter.name=b,ratelimiter.outcome=too_costly,ratelimiter.source=redis}":   "11",
		"ratelimiter.decision.duration{ratelimiter.name=b,ratelimiter.outcome=too_costly}":                  "1 in 0.002 s",

		"ratelimiter.waiting_callers{ratelimiter.name=a}":                    "2",
		"ratelimiter.waiting_callers{ratelimiter.name=b}":                    "0",
		"ratelimiter.round_trip.duration{}":                                  "1 in 0.001 s",
		"ratelimiter.round_trip.duration{error.type=unavailable}":            "1 in 3 s",
		"ratelimiter.round_trip.requests{}":                                  "11",
		"ratelimiter.round_trip.calls{}":                                     "5",
		"ratelimiter.round_trip.repeats{}":                                   "1",
		"ratelimiter.lease.count{ratelimiter.name=a}":                        "1",
		"ratelimiter.lease.permits{ratelimiter.name=a}":                      "100",
		"ratelimiter.lease.unused{ratelimiter.name=a}":                       "15",
		"ratelimiter.settlements{ratelimiter.name=a}":                        "2",
		"ratelimiter.settlements{error.type=unavailable,ratelimiter.name=a}": "1",
		"ratelimiter.settlement.reserved{ratelimiter.name=a}":                "20",
		"ratelimiter.settlement.used{ratelimiter.name=a}":                    "34",
		"ratelimiter.open_breakers{}":                                        "1",
		"ratelimiter.events{ratelimiter.event=permits_given_up}":             "1",
		"ratelimiter.events{ratelimiter.event=asked_no_more}":                "2",
		"ratelimiter.events{ratelimiter.event=asked_again}":                  "1",
	}, points)
}

// metricRow is a line of the package's table: name, kind and unit.
var metricRow = regexp.MustCompile(`(?m)^//\t(ratelimiter\.\S+) +(\w+), (\S+):`)

func TestMetrics_MatchDocTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	c := newCollector()
	tellAll(t.Context(), c.observer())
	all := c.metrics(t)
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		name, kind, unit := row[1], row[2], row[3]
		m, ok := all[name]
		if !assert.True(t, ok, "there is no metric %s", name) {
			continue
		}
		delete(all, name)
		assert.Equal(t, unit, m.Unit, name)
		assert.NotEmpty(t, m.Description, name)
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			assert.Equal(t, "histogram", kind, name)
		case metricdata.Sum[int64]:
			assert.Equal(t, data.IsMonotonic, kind == "counter", name)
			assert.Contains(t, []string{"counter", "updowncounter"}, kind, name)
		}
	}
	assert.Empty(t, all, "metrics that the table lacks")
}

func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	for most, want := range map[int][]string{0: {"_OTHER"}, -1: {"_OTHER"}, 2: {"_OTHER", "user0", "user1"}} {
		c := newCollector()
		o := c.observer(otellimit.WithMaxNames(most))
		for range 2 {
			for i := range 1000 {
				name := fmt.Sprintf("user%d", i)
				o.Decided(t.Context(), limit.Decided{Limiter: name, Permits: 1, Outcome: limit.Granted})
				o.Waiting(name, i)
				o.Leased(limit.Lease{Limiter: name, Permits: 1})
				o.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: name})
			}
		}
		seen := map[string]bool{}
		points := c.points(t)
		for point := range points {
			if _, name, found := strings.Cut(point, "ratelimiter.name="); found {
				seen[strings.FieldsFunc(name, func(r rune) bool { return r == ',' || r == '}' })[0]] = true
			}
		}
		assert.Len(t, seen, len(want))
		for _, name := range want {
			assert.True(t, seen[name], "%d names: %s", most, name)
		}
		// Those that are reported together add up.
		apart := max(0, most)
		assert.Equal(t, fmt.Sprint(2*(1000-apart)), points["ratelimiter.decisions{ratelimiter.name=_OTHER,ratelimiter.outcome=granted}"])
		assert.Equal(t, fmt.Sprint(999*1000/2-apart*(apart-1)/2), points["ratelimiter.waiting_callers{ratelimiter.name=_OTHER}"])
	}
	c := newCollector()
	o := c.observer()
	for i := range 3 * otellimit.DefaultMaxNames {
		o.Waiting(fmt.Sprint(i), 1)
	}
	waiting, ok := c.metrics(t)["ratelimiter.waiting_callers"].Data.(metricdata.Sum[int64])
	require.True(t, ok)
	assert.Len(t, waiting.DataPoints, otellimit.DefaultMaxNames+1)
}

// Many goroutines see their limiters for the first time at once: nothing is lost, and
// no more names are kept than may be.
func TestObserver_ManyGoroutines(t *testing.T) {
	t.Parallel()
	c := newCollector()
	o := c.observer(otellimit.WithMaxNames(10))
	const callers, rounds = 16, 300
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range rounds {
				name := fmt.Sprint((caller + i) % 20)
				outcome := []limit.Outcome{limit.Granted, limit.Refused}[i%2]
				o.Decided(t.Context(), limit.Decided{Limiter: name, Permits: 2, Outcome: outcome})
				o.Landed(limit.Flight{Requests: 1, Err: errors.New("x")})
				o.Leased(limit.Lease{Limiter: name, Permits: 1, Ended: i%2 == 1})
				o.Waiting(fmt.Sprint(caller), i)
				o.Happened(limit.Event{Kind: limit.ServerSilent, Limiter: name})
			}
		})
	}
	all.Wait()
	sums := map[string]int64{}
	for name, m := range c.metrics(t) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				sums[name] += p.Value
			}
			if name == "ratelimiter.waiting_callers" {
				assert.LessOrEqual(t, len(data.DataPoints), 11)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				sums[name] += int64(p.Count)
			}
		}
	}
	const told = callers * rounds
	assert.Equal(t, map[string]int64{
		"ratelimiter.decisions": told, "ratelimiter.permits": 2 * told, "ratelimiter.decision.duration": told,
		"ratelimiter.round_trip.duration": told, "ratelimiter.round_trip.requests": told,
		"ratelimiter.round_trip.calls": 0, "ratelimiter.round_trip.repeats": 0,
		"ratelimiter.lease.count": 0, "ratelimiter.lease.permits": told / 2, "ratelimiter.lease.unused": 0,
		"ratelimiter.waiting_callers": callers * (rounds - 1), "ratelimiter.events": told, "ratelimiter.open_breakers": 0,
	}, sums)
}

var kindConstant = regexp.MustCompile(`(?m)^\t\w+ +EventKind = "(.*)"`)

// A count of events can only be watched if it is there before the first of them.
func TestEvents_StartAtZero(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../limit/observe.go")
	require.NoError(t, err)
	kinds := kindConstant.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, kinds)
	c := newCollector()
	c.observer()
	points := c.points(t)
	for _, kind := range kinds {
		point := "ratelimiter.events{ratelimiter.event=" + strings.ReplaceAll(kind[1], " ", "_") + "}"
		assert.Equal(t, "0", points[point], "known lacks %q", kind[1])
		delete(points, point)
	}
	assert.Equal(t, map[string]string{"ratelimiter.open_breakers{}": "0"}, points)
}

// Observers of several Clients have the same instruments: their waiting callers add up.
func TestTwoObserversAddUp(t *testing.T) {
	t.Parallel()
	c := newCollector()
	one, two := c.observer(), c.observer()
	one.Waiting("a", 3)
	two.Waiting("a", 5)
	one.Waiting("a", 1)
	assert.Equal(t, "6", c.points(t)["ratelimiter.waiting_callers{ratelimiter.name=a}"])
}

func TestObserver_RealClient(t *testing.T) {
	t.Parallel()
	c := newCollector()
	server := miniredis.RunT(t)
	rdb := redistest.NewClient(server.Addr(), &redistest.Options{ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = rdb.Close() })
	client := rratelimiter.New(rdb, rratelimiter.WithObserver(c.observer()), rratelimiter.WithCallTimeout(time.Minute))
	limiter := client.RateLimiter("api", rratelimiter.WithDefault(rratelimiter.PerHour(2)))
	for range 5 {
		_, err := limiter.TryAcquire(t.Context(), 1, 0)
		require.NoError(t, err)
	}
	_, err := limiter.TryAcquire(t.Context(), 3, 0)
	require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- limiter.Acquire(ctx, 1) }()
	waiting := func(want string) {
		t.Helper()
		assert.EventuallyWithT(t, func(collect *assert.CollectT) {
			assert.Equal(collect, want, c.points(t)["ratelimiter.waiting_callers{ratelimiter.name=api}"])
		}, time.Minute, 5*time.Millisecond)
	}
	waiting("1")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	waiting("0")
	points := c.points(t)
	for attributes, value := range map[string]string{
		"ratelimiter.name=api,ratelimiter.outcome=granted,ratelimiter.source=redis":                    "2",
		"ratelimiter.name=api,ratelimiter.outcome=refused,ratelimiter.source=redis":                    "3",
		"ratelimiter.name=api,ratelimiter.outcome=too_costly,ratelimiter.source=redis":                 "1",
		"error.type=canceled,ratelimiter.name=api,ratelimiter.outcome=failed,ratelimiter.source=redis": "1",
	} {
		assert.Equal(t, value, points["ratelimiter.decisions{"+attributes+"}"], "%s in %v", attributes, points)
	}
}

// refusing is a provider whose meters make no counters.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New("no counters here")
}

// Not parallel: the error handler is global.
//
//nolint:paralleltest // the error handler is everybody's
func TestProvider_ErrorsGoToErrorHandler(t *testing.T) {
	var handled []error
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = append(handled, err) }))
	defer otel.SetErrorHandler(before)
	o := otellimit.New(otellimit.WithMeterProvider(refusing{}))
	require.Len(t, handled, 1)
	require.ErrorContains(t, handled[0], "no counters here")
	tellAll(t.Context(), o)
}

func TestNew_NoProviders(t *testing.T) {
	t.Parallel()
	tellAll(t.Context(), otellimit.New(nil, otellimit.WithMeterProvider(nil), otellimit.WithTracerProvider(nil)))
}

func TestSpans(t *testing.T) {
	t.Parallel()
	c := newCollector()
	recorder := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	o := c.observer(otellimit.WithTracerProvider(tracers), otellimit.WithMaxNames(0))
	ctx, parent := tracers.Tracer("test").Start(t.Context(), "request")
	start := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	o.Decided(ctx, limit.Decided{
		Limiter: "api", Call: "TryAcquire", Permits: 3, Outcome: limit.Granted, Source: limit.FromRedis,
		Start: start, Waited: 20 * time.Millisecond,
	})
	o.Decided(ctx, limit.Decided{
		Limiter: "api", Call: "Take", Permits: 1, Outcome: limit.Failed, Err: limit.ErrUnavailable, Kind: limit.KindUnavailable,
		Start: start, Waited: time.Second,
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
		attribute.String("ratelimiter.name", "api"), attribute.String("ratelimiter.call", "TryAcquire"),
		attribute.Int64("ratelimiter.permits", 3),
		attribute.String("ratelimiter.outcome", "granted"), attribute.String("ratelimiter.source", "redis"),
	}, granted.Attributes())
	assert.Equal(t, codes.Unset, granted.Status().Code)
	assert.Equal(t, "ratelimiter.Take", failed.Name())
	assert.Equal(t, codes.Error, failed.Status().Code)
	assert.Equal(t, limit.ErrUnavailable.Error(), failed.Status().Description)
	assert.Contains(t, failed.Attributes(), attribute.String("error.type", "unavailable"))
}

// Decisions that are not sampled are counted all the same.
func TestSpansThatAreNotSampled(t *testing.T) {
	t.Parallel()
	c := newCollector()
	recorder := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(recorder), trace.WithSampler(trace.NeverSample()))
	tellAll(t.Context(), c.observer(otellimit.WithTracerProvider(tracers)))
	assert.Empty(t, recorder.Ended())
	assert.Equal(t, "2", c.points(t)["ratelimiter.decisions{ratelimiter.name=a,ratelimiter.outcome=granted,ratelimiter.source=redis}"])
}

var decided = limit.Decided{
	Limiter: "api", Call: "TryAcquire", Permits: 1, Outcome: limit.Granted, Source: limit.FromRedis,
	Start: time.Now(), Waited: 300 * time.Microsecond, Limit: 100, Remaining: 40,
}

// What a decision costs its caller. All others count too.
func BenchmarkDecided(b *testing.B) {
	for name, opts := range map[string][]otellimit.Option{
		"metrics":                        nil,
		"and spans that are not sampled": {otellimit.WithTracerProvider(trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())))},
		"and spans":                      {otellimit.WithTracerProvider(trace.NewTracerProvider())},
	} {
		b.Run(name, func(b *testing.B) {
			o, ctx := newCollector().observer(opts...), b.Context()
			b.ReportAllocs()
			b.RunParallel(func(next *testing.PB) {
				for next.Next() {
					o.Decided(ctx, decided)
				}
			})
		})
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
