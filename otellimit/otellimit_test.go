package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

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
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// A program that exports metrics has a reader of Prometheus or OTLP in place of this
// one, and may set its provider with otel.SetMeterProvider.
func Example() {
	ctx := context.Background()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
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

type collector struct {
	limit.Observer

	reader *sdk.ManualReader
}

func newCollector(opts ...otellimit.Option) *collector {
	reader := sdk.NewManualReader()
	provider := otellimit.WithMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	return &collector{otellimit.New(append(opts, provider)...), reader}
}

func (c *collector) metrics(t testing.TB) map[string]metricdata.Metrics {
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

// points returns the values of all metrics, a histogram's being its count and sum, by their name and attributes, without the
// "ratelimiter." of each: "decisions{error.type=other}".
func (c *collector) points(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, m := range c.metrics(t) {
		add := func(of attribute.Set, value string) {
			point := fmt.Sprintf("%s{%s}", name, of.Encoded(attribute.DefaultEncoder()))
			all[strings.ReplaceAll(point, "ratelimiter.", "")] = value
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
	tellAll(t.Context(), c)
	points := c.points(t)
	maps.DeleteFunc(points, func(point, value string) bool { return strings.HasPrefix(point, "events") && value == "0" })
	assert.Equal(t, map[string]string{
		"decisions{name=a,outcome=granted,source=redis}":               "2",
		"decisions{name=a,outcome=refused,shadow=true,source=memory}":  "1",
		"decisions{error.type=invalid_argument,name=a,outcome=failed}": "1",
		"decisions{name=b,outcome=too_costly,source=redis}":            "1",
		"permits{name=a,outcome=granted,source=redis}":                 "6",
		"permits{name=a,outcome=refused,shadow=true,source=memory}":    "3",
		"permits{error.type=invalid_argument,name=a,outcome=failed}":   "0",
		"permits{name=b,outcome=too_costly,source=redis}":              "11",
		"decision.duration{name=a,outcome=granted}":                    "2 in 0.004 s",
		"decision.duration{name=a,outcome=refused}":                    "1 in 0.002 s",
		"decision.duration{name=a,outcome=failed}":                     "1 in 1 s",
		"decision.duration{name=b,outcome=too_costly}":                 "1 in 0.002 s",
		"utilization{name=a}":                                          "3 in 2.2 1",
		"waiting_callers{name=a}":                                      "2",
		"waiting_callers{name=b}":                                      "0",
		"round_trip.duration{}":                                        "1 in 0.001 s",
		"round_trip.duration{error.type=unavailable}":                  "1 in 3 s",
		"round_trip.requests{}":                                        "11",
		"round_trip.calls{}":                                           "5",
		"round_trip.repeats{}":                                         "1",
		"lease.count{name=a}":                                          "1",
		"lease.permits{name=a}":                                        "100",
		"lease.unused{name=a}":                                         "15",
		"settlements{name=a}":                                          "2",
		"settlements{error.type=unavailable,name=a}":                   "1",
		"settlement.reserved{name=a}":                                  "20",
		"settlement.used{name=a}":                                      "34",
		"open_breakers{}":                                              "1",
		"events{event=permits_given_up}":                               "1",
		"events{event=asked_no_more}":                                  "2",
		"events{event=asked_again}":                                    "1",
	}, points)
}

// metricRow is a line of the package's table: name, kind and unit.
var metricRow = regexp.MustCompile(`(?m)^//\t(ratelimiter\.\S+) +(\w+), (\S+):`)

func TestMetrics_MatchDocTable(t *testing.T) {
	t.Parallel()
	text := limitertest.Must(os.ReadFile("doc.go"))(t)
	c := newCollector()
	tellAll(t.Context(), c)
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
		is := "histogram"
		if sum, counts := m.Data.(metricdata.Sum[int64]); counts {
			is = map[bool]string{true: "counter", false: "updowncounter"}[sum.IsMonotonic]
		}
		assert.Equal(t, is, kind, name)
	}
	assert.Empty(t, all, "metrics that the table lacks")
}

var nameOf = regexp.MustCompile(`\bname=([^,}]+)`)

func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]map[string]bool{0: {"_OTHER": true}, -1: {"_OTHER": true}, 2: {"_OTHER": true, "user0": true, "user1": true}} {
		c := newCollector(otellimit.WithMaxNames(most))
		for i := range 2 * 1000 {
			name := fmt.Sprintf("user%d", i%1000)
			c.Decided(t.Context(), limit.Decided{Limiter: name, Permits: 1, Outcome: limit.Granted})
			c.Waiting(name, i%1000)
			c.Leased(limit.Lease{Limiter: name, Permits: 1})
			c.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: name})
		}
		seen, points := map[string]bool{}, c.points(t)
		for point := range points {
			if match := nameOf.FindStringSubmatch(point); match != nil {
				seen[match[1]] = true
			}
		}
		assert.Equal(t, want, seen, "%d names", most)
		// Those that are reported together add up.
		apart := max(0, most)
		assert.Equal(t, fmt.Sprint(2*(1000-apart)), points["decisions{name=_OTHER,outcome=granted}"])
		assert.Equal(t, fmt.Sprint(999*1000/2-apart*(apart-1)/2), points["waiting_callers{name=_OTHER}"])
	}
	c := newCollector()
	for i := range 3 * otellimit.DefaultMaxNames {
		c.Waiting(fmt.Sprint(i), 1)
	}
	_, names := sums(c.points(t))
	assert.Equal(t, otellimit.DefaultMaxNames+1, names["waiting_callers"])
}

// sums returns what the points of each metric are together, a histogram's being its count, and how many there are.
func sums(points map[string]string) (sum map[string]int64, count map[string]int) {
	sum, count = map[string]int64{}, map[string]int{}
	for point, value := range points {
		name, _, _ := strings.Cut(point, "{")
		var n int64
		_, _ = fmt.Sscan(value, &n)
		sum[name] += n
		count[name]++
	}
	return sum, count
}

// Many goroutines see their limiters for the first time at once: nothing is lost, and no more names are kept than may be.
func TestObserver_ManyGoroutines(t *testing.T) {
	t.Parallel()
	c := newCollector(otellimit.WithMaxNames(10))
	const callers, rounds = 16, 300
	limitertest.Together(callers, func(caller int) {
		for i := range rounds {
			name := fmt.Sprint((caller + i) % 20)
			outcome := []limit.Outcome{limit.Granted, limit.Refused}[i%2]
			c.Decided(t.Context(), limit.Decided{Limiter: name, Permits: 2, Outcome: outcome})
			c.Landed(limit.Flight{Requests: 1, Err: errors.New("x")})
			c.Leased(limit.Lease{Limiter: name, Permits: 1, Ended: i%2 == 1})
			c.Waiting(fmt.Sprint(caller), i)
			c.Happened(limit.Event{Kind: limit.ServerSilent, Limiter: name})
		}
	})
	sum, names := sums(c.points(t))
	assert.LessOrEqual(t, names["waiting_callers"], 11)
	const told = callers * rounds
	assert.Equal(t, map[string]int64{
		"decisions": told, "permits": 2 * told, "decision.duration": told,
		"round_trip.duration": told, "round_trip.requests": told, "round_trip.calls": 0, "round_trip.repeats": 0,
		"lease.count": 0, "lease.permits": told / 2, "lease.unused": 0,
		"waiting_callers": callers * (rounds - 1), "events": told, "open_breakers": 0,
	}, sum)
}

var kindConstant = regexp.MustCompile(`(?m)^\t\w+ +EventKind = "(.*)"`)

// A count of events can only be watched if it is there before the first of them.
func TestEvents_StartAtZero(t *testing.T) {
	t.Parallel()
	kinds := kindConstant.FindAllStringSubmatch(string(limitertest.Must(os.ReadFile("../limit/observe.go"))(t)), -1)
	require.NotEmpty(t, kinds)
	points := newCollector().points(t)
	for _, kind := range kinds {
		point := "events{event=" + strings.ReplaceAll(kind[1], " ", "_") + "}"
		assert.Equal(t, "0", points[point], "known lacks %q", kind[1])
		delete(points, point)
	}
	assert.Equal(t, map[string]string{"open_breakers{}": "0"}, points)
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
	tellAll(t.Context(), otellimit.New(nil, otellimit.WithMeterProvider(nil), otellimit.WithTracerProvider(nil)))
}

func TestSpans(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	o := newCollector(otellimit.WithTracerProvider(tracers), otellimit.WithMaxNames(0))
	ctx, parent := tracers.Tracer("test").Start(t.Context(), "request")
	start := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	of := decided
	of.Permits, of.Start, of.Waited = 3, start, 20*time.Millisecond
	o.Decided(ctx, of)
	o.Decided(ctx, limit.Decided{Limiter: "api", Call: "Take", Outcome: limit.Failed, Err: limit.ErrUnavailable, Kind: limit.KindUnavailable, Start: start})
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

var decided = limit.Decided{
	Limiter: "api", Call: "TryAcquire", Permits: 1, Outcome: limit.Granted, Source: limit.FromRedis,
	Start: time.Now(), Waited: 300 * time.Microsecond, Limit: 100, Remaining: 40,
}

//nolint:paralleltest // AllocsPerRun counts the allocations of the whole process
func TestCountingAllocatesNothing(t *testing.T) {
	o, ctx := newCollector(), t.Context()
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
