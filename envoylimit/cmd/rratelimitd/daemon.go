package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/internal/connect"
)

// daemon is the service, whatever Redis does. Until Redis can be reached for the first time, it is one whose Redis is away.
type daemon struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	*settings

	log      *slog.Logger
	metrics  *metrics
	draining atomic.Bool
	logged   atomic.Int64 // when a failure was logged last, in Unix seconds

	mu      sync.Mutex // guards the configuration, and which backend is in use
	config  *envoylimit.Config
	serving atomic.Pointer[backend]
	stop    context.CancelFunc
	dialing sync.WaitGroup
}

// backend is a Service with what it needs.
type backend struct {
	service *envoylimit.Service
	client  *rratelimiter.Client
	close   func() error // the connections
}

// ShouldRateLimit answers by the Service in use.
func (d *daemon) ShouldRateLimit(ctx context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	answer, err := d.serving.Load().service.ShouldRateLimit(ctx, r)
	if err != nil {
		d.logFailure(r.GetDomain(), err)
	}
	return answer, err
}

// logFailure logs a call that failed and shouldn't have, one a second at most: Envoy does not say why. What Redis'
// outages and callers' deadlines do is counted.
func (d *daemon) logFailure(domain string, err error) {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return
	default:
	}
	now, last := time.Now().Unix(), d.logged.Load()
	if now != last && d.logged.CompareAndSwap(last, now) {
		d.log.Error("a request failed", "domain", domain, "error", err)
	}
}

// setConfig replaces the configuration.
func (d *daemon) setConfig(config *envoylimit.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config = config
	d.serving.Load().service.SetConfig(config)
}

// start connects to Redis, and goes on trying in the background if it can't be reached.
func (d *daemon) start(ctx context.Context) {
	conn, err := d.redis.Open(ctx)
	if err == nil {
		d.use(conn)
		return
	}
	d.log.ErrorContext(ctx, "Redis can't be reached: domains answer as their failure says", "error", inFlags(err.Error()))
	d.set(d.newBackend(unreachable(err), nil))
	ctx, d.stop = context.WithCancel(ctx)
	d.dialing.Go(func() { d.dial(ctx) })
}

// dial tries until Redis is reached or ctx ends.
func (d *daemon) dial(ctx context.Context) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if conn, err := d.redis.Open(ctx); err == nil {
			d.use(conn)
			return
		}
	}
}

// use serves with a connection.
func (d *daemon) use(conn *connect.Connection) {
	d.set(d.newBackend(conn.Client, conn.Close))
	d.log.Info("connected to Redis", "servers", conn.Description())
}

// unreachable returns a client of a Redis that can't be reached.
func unreachable(why error) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: "unreachable", MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, why },
	})
}

func (d *daemon) newBackend(rdb rratelimiter.Redis, closing func() error) *backend {
	client := rratelimiter.New(rdb, d.metrics.observer(), rratelimiter.WithLogger(d.log), rratelimiter.WithClientName("rratelimitd"),
		rratelimiter.WithCallTimeout(d.redis.CallTimeout()))
	return &backend{service: envoylimit.New(client, nil, d.serviceOptions()...), client: client, close: closing}
}

// set serves with a backend in place of the one before.
func (d *daemon) set(b *backend) {
	d.mu.Lock()
	b.service.SetConfig(d.config)
	before := d.serving.Swap(b)
	d.mu.Unlock()
	if before != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = before.end(ctx)
	}
}

// end ends a backend once what it does in the background is done.
func (b *backend) end(ctx context.Context) error {
	err := b.client.Close(ctx)
	if b.close != nil {
		err = errors.Join(err, b.close())
	}
	return err
}

// close ends the daemon: what is given back or settled arrives.
func (d *daemon) close(ctx context.Context) {
	if d.stop != nil {
		d.stop()
		d.dialing.Wait()
	}
	if err := d.serving.Load().end(ctx); err != nil {
		d.log.Error("not all that was under way has ended", "error", err)
	}
}

// flagNames are the flags of rrl that are called otherwise here.
var flagNames = regexp.MustCompile(`--(tls|ring|sentinel|user|password|connect)`)

// inFlags returns a text of package connect with the flags as they are called here.
func inFlags(text string) string { return flagNames.ReplaceAllString(text, "--redis-$1") }
