package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

// maxNames is how many limits have metrics of their own.
const maxNames = 10_000

// metrics are what Prometheus reads.
type metrics struct {
	http.Handler

	provider *metric.MeterProvider
	reloads  *prometheus.CounterVec
	loaded   prometheus.Gauge
}

// newMetrics returns metrics under the names that the dashboard and the alert rules of docs/observability know.
func newMetrics() (*metrics, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo(),
	)
	if err != nil {
		return nil, err
	}
	m := &metrics{
		Handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		provider: metric.NewMeterProvider(metric.WithReader(exporter)),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rratelimitd_config_reloads_total", Help: "Changed configurations, by whether they are in use.",
		}, []string{"result"}),
		loaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rratelimitd_config_valid", Help: "1 if the configuration in the directory is the one in use.",
		}),
	}
	registry.MustRegister(m.reloads, m.loaded)
	return m, nil
}

// observer returns the option of a Client that is to be measured.
func (m *metrics) observer() rratelimiter.Option {
	return rratelimiter.WithObserver(otellimit.New(otellimit.WithMeterProvider(m.provider), otellimit.WithMaxNames(maxNames)))
}

// read notes whether a configuration that was read is in use.
func (m *metrics) read(used bool) {
	if used {
		m.reloads.WithLabelValues("used").Inc()
		m.loaded.Set(1)
	} else {
		m.reloads.WithLabelValues("refused").Inc()
		m.loaded.Set(0)
	}
}
