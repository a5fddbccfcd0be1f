package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/envoylimit"
)

// watcher reads the files of a directory again and again, which finds every way to change them: writing, renaming, and the
// swap of a symbolic link that Kubernetes makes. Configurations are small.
type watcher struct {
	dir     string
	every   time.Duration
	options []envoylimit.ConfigOption
	log     *slog.Logger
	metrics *metrics
	use     func(*envoylimit.Config)

	used []envoylimit.File // or refused
}

// load reads the first configuration.
func (w *watcher) load() (*envoylimit.Config, error) {
	files, err := envoylimit.ReadFiles(w.dir)
	if err != nil {
		return nil, err
	}
	config, err := envoylimit.Parse(files, w.options...)
	if err != nil {
		return nil, err
	}
	w.used = files
	w.warn(config)
	w.metrics.read(true)
	return config, nil
}

// run uses changed files until ctx ends. They must be the same twice, so that none is half written. What is wrong is
// logged once, and the configuration before stays.
func (w *watcher) run(ctx context.Context) {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	seen, failure := w.used, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		files, err := envoylimit.ReadFiles(w.dir)
		if err != nil {
			if err.Error() != failure {
				w.refuse(err)
			}
			failure = err.Error()
			continue
		}
		stable := same(files, seen)
		seen = files
		if !stable || same(files, w.used) && failure == "" {
			continue
		}
		w.used, failure = files, ""
		config, err := envoylimit.Parse(files, w.options...)
		if err != nil {
			w.refuse(err)
			continue
		}
		w.use(config)
		w.warn(config)
		w.metrics.read(true)
		w.log.InfoContext(ctx, "configuration reloaded", "domains", config.Domains())
	}
}

func (w *watcher) refuse(err error) {
	w.metrics.read(false)
	w.log.Error("the changed configuration is not used", "error", err)
}

func (w *watcher) warn(config *envoylimit.Config) {
	for _, text := range config.Warnings() {
		w.log.Warn("configuration: " + text)
	}
}

func same(a, b []envoylimit.File) bool {
	return slices.EqualFunc(a, b, func(a, b envoylimit.File) bool { return a.Name == b.Name && string(a.Data) == string(b.Data) })
}
