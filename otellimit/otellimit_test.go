package otellimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// tellAll tells an observer something by each of its methods.
func tellAll(ctx context.Context, o limit.Observer) {
	start := time.Now()
	granted := limit.Decided{Limiter: "a", Call: "Take", Permits: 3, Outcome: limit.Granted, Source: limit.FromRedis, Start: start, Waited: 2 * time.Millisecond}
	o.Decided(ctx, granted)
	o.Decided(ctx, granted)
	refused := granted
	refused.Outcome, refused.Source, refused.Shadow = limit.Refused, limit.FromMemory, true
	o.Decided(ctx, refused)
	failed := limit.Decided{Limiter: "a", Permits: -1, Outcome: limit.Failed, Err: limit.ErrInvalidPermits, Kind: limit.KindInvalid, Start: start, Waited: time.Second}
	o.Decided(ctx, failed)

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
	o.Happened(limit.Event{Kind: limit.PermitsGivenUp, Limiter: "a", Permits: 2})
	o.Happened(limit.Event{Kind: limit.AskedNoMore})
	o.Happened(limit.Event{Kind: limit.AskedNoMore})
	o.Happened(limit.Event{Kind: limit.AskedAgain})
}

func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	c := newCollector()
	tellAll(t.Context(), c.observer())
	points := c.points(t)
	maps.DeleteFunc(points, func(point, value string) bool { return strings.HasPrefix(point, "ratelimiter.events") && value == "0" })
	a := "ratelimiter.name=a"
	assert.Equal(t, map[string]string{
		"ratelimiter.decisions{" + a + ",ratelimiter.outcome=granted,ratelimiter.source=redis}":                          "2",
		"ratelimiter.decisions{" + a + ",ratelimiter.outcome=refused,ratelimiter.shadow=true,ratelimiter.source=memory}": "1",
		"ratelimiter.decisions{error.type=invalid_argument," + a + ",ratelimiter.outcome=failed}":                        "1",
		"ratelimiter.permits{" + a + ",ratelimiter.outcome=granted,ratelimiter.source=redis}":                            "6",
		"ratelimiter.permits{" + a + ",ratelimiter.outcome=refused,ratelimiter.shadow=true,ratelimiter.source=memory}":   "3",
		"ratelimiter.permits{error.type=invalid_argument," + a + ",ratelimiter.outcome=failed}":                          "0",
		"ratelimiter.decision.duration{" + a + ",ratelimiter.outcome=granted}":                                           "2 in 0.004 s",
		"ratelimiter.decision.duration{" + a + ",ratelimiter.outcome=refused}":                                           "1 in 0.002 s",
		"ratelimiter.decision.duration{" + a + ",ratelimiter.outcome=failed}":                                            "1 in 1 s",
		"ratelimiter.waiting_callers{" + a + "}":                                                                         "2",
		"ratelimiter.waiting_callers{ratelimiter.name=b}":                                                                "0",
		"ratelimiter.round_trip.duration{}":                                                                              "1 in 0.001 s",
		"ratelimiter.round_trip.duration{error.type=unavailable}":                                                        "1 in 3 s",
		"ratelimiter.round_trip.requests{}":                                                                              "11",
		"ratelimiter.round_trip.calls{}":                                                                                 "5",
		"ratelimiter.round_trip.repeats{}":                                                                               "1",
		"ratelimiter.lease.count{" + a + "}":                                                                             "1",
		"ratelimiter.lease.permits{" + a + "}":                                                                           "100",
		"ratelimiter.lease.unused{" + a + "}":                                                                            "15",
		"ratelimiter.open_breakers{}":                                                                                    "1",
		"ratelimiter.events{ratelimiter.event=permits_given_up}":                                                         "1",
		"ratelimiter.events{ratelimiter.event=asked_no_more}":                                                            "2",
		"ratelimiter.events{ratelimiter.event=asked_again}":                                                              "1",
	}, points)
}

// metricRow is a line of the package's table: name, kind and unit.
var metricRow = regexp.MustCompile(`(?m)^//\t(ratelimiter\.\S+) +(\w+), (\S+):`)

func TestTheTableOfMetricsIsTheCode(t *testing.T) {
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
		// Those that are told together add up.
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
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := newCollector()
	o := c.observer(otellimit.WithMaxNames(10))
	const callers, rounds = 16, 300
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range rounds {
				name := fmt.Sprint((caller + i) % 20)
				o.Decided(t.Context(), limit.Decided{Limiter: name, Permits: 2, Outcome: limit.Outcome([]string{"granted", "refused"}[i%2])})
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
func TestEachEventIsThereFromTheBeginning(t *testing.T) {
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

// Observers of several Clients have the same instruments: who waits in each adds up.
func TestTwoObserversAddUp(t *testing.T) {
	t.Parallel()
	c := newCollector()
	one, two := c.observer(), c.observer()
	one.Waiting("a", 3)
	two.Waiting("a", 5)
	one.Waiting("a", 1)
	assert.Equal(t, "6", c.points(t)["ratelimiter.waiting_callers{ratelimiter.name=a}"])
}

func TestARealClient(t *testing.T) {
	t.Parallel()
	c := newCollector()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	client := rratelimiter.New(rdb, rratelimiter.WithObserver(c.observer()))
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
	is := func(point, value string) func() bool {
		return func() bool { return c.points(t)[point] == value }
	}
	const patience, pause = 20 * time.Second, 5 * time.Millisecond
	assert.Eventually(t, is("ratelimiter.waiting_callers{ratelimiter.name=api}", "1"), patience, pause)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	assert.Eventually(t, is("ratelimiter.waiting_callers{ratelimiter.name=api}", "0"), patience, pause)
	points := c.points(t)
	for point, value := range map[string]string{
		"ratelimiter.outcome=granted,ratelimiter.source=redis":                                "2",
		"ratelimiter.outcome=refused,ratelimiter.source=redis":                                "3",
		"ratelimiter.outcome=failed,ratelimiter.source=redis,error.type=permits_exceed_rate,": "1",
		"ratelimiter.outcome=failed,ratelimiter.source=redis,error.type=canceled,":            "1",
	} {
		words := append(strings.FieldsFunc(point, func(r rune) bool { return r == ',' }), "ratelimiter.name=api")
		slices.Sort(words)
		assert.Equal(t, value, points["ratelimiter.decisions{"+strings.Join(words, ",")+"}"], "%v in %v", words, points)
	}
}

// refusing is a provider whose meters make no counters.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New("no counters here")
}

// Not parallel: the error handler is everybody's.
//
//nolint:paralleltest // the error handler is everybody's
func TestWhatAProviderRefusesGoesToTheErrorHandler(t *testing.T) {
	var handled []error
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = append(handled, err) }))
	defer otel.SetErrorHandler(before)
	o := otellimit.New(otellimit.WithMeterProvider(refusing{}))
	require.Len(t, handled, 1)
	require.ErrorContains(t, handled[0], "no counters here")
	tellAll(t.Context(), o)
}

func TestNothingIsSetUp(t *testing.T) {
	t.Parallel()
	tellAll(t.Context(), otellimit.New(nil, otellimit.WithMeterProvider(nil), otellimit.WithTracerProvider(nil)))
}
