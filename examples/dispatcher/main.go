// Command dispatcher is an example: it queues the calls of many tenants to partners, and sends them as fast as the partners
// allow, together with all programs that use the same Redis. README.md shows what to try.
//
//	go run ./examples/dispatcher
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

func main() {
	addr := flag.String("redis", "127.0.0.1:6379", "the `address` of Redis")
	listen := flag.String("listen", "127.0.0.1:8081", "the `address` to take jobs at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	d, err := newDispatcher(config{
		rdb:      redis.NewClient(&redis.Options{Addr: *addr, ContextTimeoutEnabled: true}),
		base:     pretending{}, // in place of http.DefaultTransport
		partners: map[string]partner{"acme.example": {perSecond: 5, perDay: 1000}, "other.example": {perSecond: 1, perDay: 10}},
		rateOf:   func(string) rratelimiter.Config { return rratelimiter.PerSecond(2) },
		ended:    func(host string, j job, err error) { slog.Info("job ended", "partner", host, "id", j.ID, "error", err) },
	})
	if err != nil {
		slog.Error("bad options", "error", err)
		return
	}
	server := &http.Server{Addr: *listen, Handler: http.HandlerFunc(d.serveHTTP)}
	go func() { slog.Info("no more jobs are taken", "reason", server.ListenAndServe()) }()
	if err := errors.Join(d.run(ctx), server.Close()); err != nil {
		slog.Error("not ended well", "error", err)
	}
}

// pretending is all partners. To a call of the path /stop they answer 429.
type pretending struct{}

func (pretending) RoundTrip(r *http.Request) (*http.Response, error) {
	slog.Info("called", "partner", r.URL.Host, "path", r.URL.Path)
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}, Request: r}
	if r.URL.Path == "/stop" {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", "10")
	}
	return resp, nil
}

// serveHTTP takes a job for the partner that the path names.
func (d *dispatcher) serveHTTP(w http.ResponseWriter, r *http.Request) {
	var j job
	j.Deadline = time.Now().Add(time.Minute) // unless the job says another
	if err := json.NewDecoder(r.Body).Decode(&j); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	eta, err := d.submit(r.Context(), r.URL.Path[1:], j)
	if err != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(eta/time.Second)+1))
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintln(w, "it can be sent in", eta.Round(time.Millisecond))
}
