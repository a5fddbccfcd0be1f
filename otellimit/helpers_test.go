package otellimit_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// collector is what one observer or several count.
type collector struct {
	reader   *metric.ManualReader
	provider *metric.MeterProvider
}

func newCollector(opts ...metric.Option) collector {
	reader := metric.NewManualReader()
	return collector{reader, metric.NewMeterProvider(append(opts, metric.WithReader(reader))...)}
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
				add(p.Attributes, fmt.Sprintf("%d in %.3g s", p.Count, p.Sum))
			}
		default:
			t.Fatalf("%s is a %T", name, data)
		}
	}
	return all
}
