// Command middleware measures requests a second through middleware: httplimit with and
// without leases, and httprate in memory and on Redis, in one run.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

const (
	callers = 64
	most    = 1_000_000_000 // permits an hour: nothing is refused
	header  = "X-Key"
	warm    = 2 * time.Second // before a measurement: most keys are known in a service
)

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

type kind struct {
	name string
	make func(rdb *redis.Client) func(http.Handler) http.Handler
}

var kinds = []kind{
	{"httplimit", func(rdb *redis.Client) func(http.Handler) http.Handler { return ours(rdb) }},
	{"httplimit with leases", func(rdb *redis.Client) func(http.Handler) http.Handler {
		return ours(rdb, rratelimiter.WithLease(rratelimiter.Lease{}))
	}},
	{"httprate in memory", func(*redis.Client) func(http.Handler) http.Handler {
		return httprate.Limit(most, time.Hour, httprate.WithKeyFuncs(keyOf))
	}},
	{"httprate-redis", func(rdb *redis.Client) func(http.Handler) http.Handler {
		return httprate.Limit(most, time.Hour, httprate.WithKeyFuncs(keyOf), httprateredis.WithRedisLimitCounter(
			&httprateredis.Config{Client: rdb, FallbackDisabled: true, FallbackTimeout: time.Minute}))
	}},
}

func ours(rdb *redis.Client, opts ...rratelimiter.LimiterOption) func(http.Handler) http.Handler {
	l := rratelimiter.New(rdb).Keyed("http:", rratelimiter.Config{Rate: most, Interval: time.Hour}, opts...)
	return httplimit.New(l, httplimit.WithKey(keyOf), httplimit.WithTimeout(time.Minute)).Handler
}

func keyOf(r *http.Request) (string, error) { return r.Header.Get(header), nil }

func main() {
	testing.Init()
	if err := flag.Set("test.benchtime", "3s"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("| keys | middleware | requests a second | ns a request |\n|---:|---|---:|---:|")
	for _, keys := range []int{1, 10_000} {
		requests := make([]*http.Request, keys)
		for i := range requests {
			requests[i] = &http.Request{Header: http.Header{header: {"k" + strconv.Itoa(i)}}}
		}
		for _, kind := range kinds {
			r := testing.Benchmark(kind.requests(requests))
			fmt.Printf("| %d | %s | %.0f | %d |\n", keys, kind.name, float64(r.N)/r.T.Seconds(), r.NsPerOp())
		}
	}
}

// requests makes them with one key, or with many of which few have most.
func (k kind) requests(requests []*http.Request) func(b *testing.B) {
	return func(b *testing.B) {
		b.Helper()
		redis, err := server.Start(context.Background(), "")
		if err != nil {
			log.Fatal(err)
		}
		defer redis.Close()
		client := peer.NewClient(redis.Addr, callers)
		defer func() { _ = client.Close() }()
		handler := k.make(client)(ok)
		serve := func(more func() bool) {
			draw := func() int { return 0 }
			if len(requests) > 1 {
				random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
				zipf := rand.NewZipf(random, load.ZipfExponent, 1, uint64(len(requests)-1))
				draw = func() int { return int(zipf.Uint64()) }
			}
			for more() {
				w := writer{header: http.Header{}}
				if handler.ServeHTTP(&w, requests[draw()]); w.code != http.StatusOK {
					log.Fatalf("%s: status %d", k.name, w.code)
				}
			}
		}
		var warming sync.WaitGroup
		for range callers {
			end := time.Now().Add(warm)
			warming.Go(func() { serve(func() bool { return time.Now().Before(end) }) })
		}
		warming.Wait()
		b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) { serve(pb.Next) })
		b.StopTimer()
	}
}

// writer keeps no body.
type writer struct {
	header http.Header
	code   int
}

func (w *writer) Header() http.Header            { return w.header }
func (w *writer) WriteHeader(code int)           { w.code = code }
func (w *writer) Write(text []byte) (int, error) { return len(text), nil }
