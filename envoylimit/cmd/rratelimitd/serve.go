package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/internal/connect"
)

// settings are what the flags of serve say.
type settings struct {
	config  string
	merge   bool
	every   time.Duration
	redis   connect.Options
	grpc    string
	http    string
	metrics string
	headers bool
	leases  bool
	shadow  bool
	drain   time.Duration
	tls     tlsFiles
	level   slog.Level
	json    bool

	listening func(grpc, http, metrics string) // learns the addresses; may be nil
}

// newFlags returns the flags that set s.
func newFlags(s *settings) *flag.FlagSet {
	flags := flag.NewFlagSet("rratelimitd serve", flag.ContinueOnError)
	flags.StringVar(&s.config, "config", "", "the `DIRECTORY` with the limits, files *.yaml; it may change while the service runs")
	flags.BoolVar(&s.merge, "merge-domains", false, "several files may have limits of one domain")
	flags.DurationVar(&s.every, "config-every", time.Second, "how often the directory is read; a change must be found twice")
	redis := flag.NewFlagSet("", flag.ContinueOnError)
	s.redis.Bind(redis)
	redis.VisitAll(func(f *flag.Flag) {
		name := strings.TrimPrefix(inFlags("--"+f.Name), "--")
		flags.Var(f.Value, name, inFlags(f.Usage))
	})
	flags.StringVar(&s.grpc, "grpc", ":8081", "the `ADDRESS` at which Envoy asks")
	flags.StringVar(&s.http, "http", ":8080", "the `ADDRESS` of /healthcheck and /json; \"\" for none")
	flags.StringVar(&s.metrics, "metrics", ":9102", "the `ADDRESS` of /metrics, for Prometheus; \"\" for none")
	flags.BoolVar(&s.headers, "headers", false, "add RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset and Retry-After to answers")
	flags.BoolVar(&s.leases, "leases", false, "take permits ahead, so that descriptors in much use cost no round trip")
	flags.BoolVar(&s.shadow, "shadow", false, "let all requests pass, and only count what limits refuse")
	flags.DurationVar(&s.drain, "drain", 10*time.Second, "how long calls under way have after SIGTERM")
	flags.StringVar(&s.tls.cert, "tls-cert", "", "the gRPC server's certificate, a `FILE` in PEM")
	flags.StringVar(&s.tls.key, "tls-key", "", "its key, a `FILE` in PEM")
	flags.StringVar(&s.tls.clientCA, "tls-client-ca", "", "clients need a certificate of these authorities, a `FILE` in PEM")
	flags.TextVar(&s.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flags.BoolVar(&s.json, "log-json", false, "log JSON")
	return flags
}

// logger returns the log.
func (s *settings) logger(to io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.level}
	if s.json {
		return slog.New(slog.NewJSONHandler(to, o))
	}
	return slog.New(slog.NewTextHandler(to, o))
}

// serve serves until ctx ends.
func serve(ctx context.Context, args []string, stderr io.Writer, getenv func(string) string) int {
	s := &settings{redis: connect.Options{Getenv: getenv}}
	flags := newFlags(s)
	flags.SetOutput(stderr)
	if code, done := parse(flags, args); done {
		return code
	}
	switch {
	case flags.NArg() > 0:
		fmt.Fprintln(stderr, "rratelimitd: serve wants flags only")
		return exitUsage
	case s.config == "":
		fmt.Fprintln(stderr, "rratelimitd: serve wants --config DIRECTORY")
		return exitUsage
	case s.every <= 0 || s.drain < 0:
		fmt.Fprintln(stderr, "rratelimitd: --config-every is above 0, and --drain 0 or more")
		return exitUsage
	}
	if err := s.redis.Check(); err != nil {
		fmt.Fprintln(stderr, "rratelimitd:", inFlags(err.Error()))
		return exitUsage
	}
	if err := s.run(ctx, s.logger(stderr)); err != nil {
		fmt.Fprintln(stderr, "rratelimitd:", err)
		return exitBad
	}
	return exitDone
}

// run serves until ctx ends.
func (s *settings) run(ctx context.Context, log *slog.Logger) error {
	creds, err := s.tls.credentials()
	if err != nil {
		return err
	}
	m, err := newMetrics()
	if err != nil {
		return err
	}
	w := &watcher{dir: s.config, every: s.every, options: configOptions(s.merge), log: log, metrics: m}
	config, err := w.load()
	if err != nil {
		return err
	}
	d := &daemon{settings: s, log: log, metrics: m, config: config}
	w.use = d.setConfig
	l, err := s.listen(ctx)
	if err != nil {
		return err
	}
	d.start(ctx)
	options := []grpc.ServerOption{grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsEvery, PermitWithoutStream: true})}
	if creds != nil {
		options = append(options, grpc.Creds(creds))
	}
	server, healthy := grpc.NewServer(options...), newHealthServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, d)
	healthv1.RegisterHealthServer(server, healthy)
	failed := make(chan error, len(l))
	var background sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	background.Go(func() { w.run(watching) })
	go func() { failed <- server.Serve(l[0]) }()
	pages := serveHTTP(failed, l, d.web(), m)
	log.InfoContext(ctx, "serving", "grpc", address(l[0]), "http", address(l[1]), "metrics", address(l[2]), "domains", config.Domains())
	if s.listening != nil {
		s.listening(address(l[0]), address(l[1]), address(l[2]))
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	log.Info("draining")
	d.draining.Store(true)
	healthy.drain()
	stop()
	background.Wait()
	s.shutDown(server, pages, d)
	return err
}

// pingsEvery is how often clients may ping: those of gRPC alone do so rarely, and Envoy as its connection_keepalive says.
const pingsEvery = 100 * time.Millisecond

// closing is how long what is under way to Redis has at the end, even if --drain is over.
const closing = 2 * time.Second

// shutDown ends calls under way, within the time of --drain, and then what they left to do.
func (s *settings) shutDown(server *grpc.Server, pages []*http.Server, d *daemon) {
	ctx, cancel := context.WithTimeout(context.Background(), s.drain)
	defer cancel()
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		server.Stop()
	}
	if left, _ := ctx.Deadline(); time.Until(left) < closing {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(context.Background(), closing)
		defer end()
	}
	d.close(ctx)
	for _, page := range pages {
		_ = page.Shutdown(ctx)
		_ = page.Close()
	}
}

// listen returns the listeners of gRPC, HTTP and metrics; nil for those that are not wanted.
func (s *settings) listen(ctx context.Context) ([]net.Listener, error) {
	all := make([]net.Listener, 3)
	for i, at := range []string{s.grpc, s.http, s.metrics} {
		if at == "" && i > 0 {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
		if err != nil {
			for _, l := range all[:i] {
				if l != nil {
					_ = l.Close()
				}
			}
			return nil, err
		}
		all[i] = l
	}
	return all, nil
}

func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// serveHTTP serves pages and metrics.
func serveHTTP(failed chan<- error, l []net.Listener, pages http.Handler, m *metrics) (all []*http.Server) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", m)
	for i, handler := range []http.Handler{pages, mux} {
		at := l[1+i]
		if at == nil {
			continue
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		all = append(all, server)
		go func() {
			if err := server.Serve(at); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	return all
}

// serviceOptions are those of every Service.
func (s *settings) serviceOptions() (all []envoylimit.Option) {
	if s.headers {
		all = append(all, envoylimit.WithHeaders())
	}
	if s.leases {
		all = append(all, envoylimit.WithLeases())
	}
	if s.shadow {
		all = append(all, envoylimit.WithShadow())
	}
	return all
}
