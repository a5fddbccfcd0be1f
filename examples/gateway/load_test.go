package main

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// traffic is requests to a gateway, and what came of them.
type traffic struct {
	t    *testing.T
	site *site

	done    chan struct{}
	callers sync.WaitGroup
	mu      sync.Mutex
	answers []sample
}

var userNumber atomic.Int64

func newUser() string { return fmt.Sprintf("user%d", userNumber.Add(1)) }

// sample is an answer.
type sample struct {
	at     time.Time
	path   string
	status int
}

func newTraffic(t *testing.T, s *site) *traffic {
	t.Helper()
	return &traffic{t: t, site: s, done: make(chan struct{})}
}

// send has so many callers make requests until stop is called, each with a pause
// after an answer.
func (l *traffic) send(callers int, pause time.Duration, user func() string, method, path string) {
	for range callers {
		l.callers.Go(func() {
			for {
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
				got, err := l.site.try(method+" "+path, "", http.Header{"X-User": {user()}})
				if !assert.NoError(l.t, err) {
					return
				}
				l.mu.Lock()
				l.answers = append(l.answers, sample{time.Now(), path, got.StatusCode})
				l.mu.Unlock()
			}
		})
	}
}

// stop ends the requests and returns when all are answered.
func (l *traffic) stop() {
	close(l.done)
	l.callers.Wait()
}

// count returns how many answers of a path had a status, in a span that ends at a
// moment.
func (l *traffic) count(path string, status int, end time.Time, span time.Duration) (n float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.answers {
		if s.path == path && s.status == status && s.at.After(end.Add(-span)) && !s.at.After(end) {
			n++
		}
	}
	return n
}

// The paths.
const (
	hello  = "/hello"
	orders = "/orders"
)

// rates are how many answers of each kind came a second.
type rates struct{ hello, helloRefused, orders, undecided float64 }

func (r rates) String() string {
	return fmt.Sprintf("answers a second: %s to hello, %s refused, %s to orders, %s undecided",
		figure(r.hello), figure(r.helloRefused), figure(r.orders), figure(r.undecided))
}

// ratesOf are those of several gateways in a span that ends at a moment.
func ratesOf(at time.Time, span time.Duration, all ...*traffic) (r rates) {
	for _, l := range all {
		r.hello += l.count(hello, http.StatusOK, at, span) / span.Seconds()
		r.helloRefused += l.count(hello, http.StatusTooManyRequests, at, span) / span.Seconds()
		r.orders += l.count(orders, http.StatusOK, at, span) / span.Seconds()
		r.undecided += (l.count(hello, http.StatusServiceUnavailable, at, span) + l.count(orders, http.StatusServiceUnavailable, at, span)) / span.Seconds()
	}
	return r
}
