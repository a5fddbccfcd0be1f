package main

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

// newMetrics returns what counts, and a handler that shows Prometheus the counts.
func newMetrics() (meters metric.MeterProvider, handler http.Handler, stop func(), err error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		otelprometheus.WithoutScopeInfo(),
	)
	if err != nil {
		return nil, nil, nil, err
	}
	provider := sdk.NewMeterProvider(sdk.WithReader(exporter))
	return provider, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		func() { _ = provider.Shutdown(context.Background()) }, nil
}
