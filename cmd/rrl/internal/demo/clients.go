package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// keepAlive, after the longest pause between two requests, removes what a killed
// demo left in a given Redis.
const keepAlive = time.Minute

// closeTimeout bounds the work after a demo's context has ended.
const closeTimeout = 5 * time.Second

// A busy machine alone may keep an answer from coming in time. A client asks again after a pause, while
// it has patience; a server inside this process has that for each call.
const (
	patience = 10 * time.Second
	pause    = 100 * time.Millisecond
)

// Clients is the demo of a RateLimiter: clients try to take a permit, one try
// after the other.
type Clients struct {
	Rate     int64
	Interval time.Duration
	Count    int
	Tries    int           // of each client
	Timeout  time.Duration // of each try
	Prefix   string        // of the limiter's name

	CallTimeout time.Duration // for an answer of Redis
}

// Run makes the tries on a Redis of its own, prints them and their results, and reports whether
// the limiter kept to its rate, as far as is known.
func (c Clients) Run(ctx context.Context, out *output.Printer) (kept bool, err error) {
	rdb, m := embedded(c.Count)
	defer m.Close()
	defer func() { _ = rdb.Close() }()
	return c.run(ctx, out, rdb, "a Redis of its own")
}

// RunOn is Run on a given Redis, on which it deletes the limiters it made.
func (c Clients) RunOn(ctx context.Context, out *output.Printer, rdb redis.UniversalClient) (kept bool, err error) {
	return c.run(ctx, out, rdb, "the Redis given")
}

func (c Clients) run(ctx context.Context, out *output.Printer, rdb redis.UniversalClient, server string) (kept bool, err error) {
	r := &clientsRun{Clients: c, out: out, rdb: rdb, name: c.Prefix + "rrl-demo:" + rand.Text()}
	r.record = newRecord(rdb, r.name, c.Interval)

	setup := rratelimiter.New(rdb, rratelimiter.WithCallTimeout(c.CallTimeout))
	defer closeClient(ctx, setup)
	limiter := setup.RateLimiter(r.name)
	cfg := rratelimiter.Config{
		Rate: c.Rate, Interval: c.Interval,
		KeepAlive: (c.Interval + c.Timeout + keepAlive).Truncate(time.Millisecond),
	}
	if err := limiter.SetRate(ctx, cfg); err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := afterwards(ctx)
		defer cancel()
		if _, deleteErr := limiter.Delete(ctx); err == nil {
			err = deleteErr
		}
	}()

	r.printHead(server)
	r.start = time.Now()
	if err := r.runAll(ctx); err != nil {
		return false, err
	}
	return r.report(time.Since(r.start))
}

// clientsRun is one run of the demo.
type clientsRun struct {
	Clients

	out    *output.Printer
	rdb    redis.UniversalClient
	name   string
	start  time.Time
	record *record

	mu   sync.Mutex
	done []try
}

// try is one TryAcquire of the demo. Times count from the demo's start.
type try struct {
	client  int
	at      time.Duration // when the answer was there
	waited  time.Duration
	granted bool
	left    int64
}

// runAll makes all clients' tries.
func (r *clientsRun) runAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var clients sync.WaitGroup
	for n := 1; n <= r.Count; n++ {
		clients.Go(func() {
			if err := r.runClient(ctx, n); err != nil {
				cancel(err)
			}
		})
	}
	clients.Wait()
	return context.Cause(ctx)
}

// runClient makes the tries of the n-th client.
func (r *clientsRun) runClient(ctx context.Context, n int) error {
	client := rratelimiter.New(r.rdb, rratelimiter.WithCallTimeout(r.CallTimeout))
	defer closeClient(ctx, client)
	limiter := client.RateLimiter(r.name, rratelimiter.WithExact()) // the record tells grants by their members
	for range r.Tries {
		begin := time.Now()
		granted, err := limiter.TryAcquire(ctx, 1, r.Timeout)
		for errors.Is(err, rratelimiter.ErrUnavailable) && time.Since(begin) < patience {
			time.Sleep(pause)
			granted, err = limiter.TryAcquire(ctx, 1, r.Timeout)
		}
		if err != nil {
			return err
		}
		end := time.Now()
		if err := r.record.read(ctx); err != nil {
			return err
		}
		left, err := limiter.AvailablePermits(ctx)
		if err != nil {
			return err
		}
		r.add(try{client: n, at: end.Sub(r.start), waited: end.Sub(begin), granted: granted, left: left})
	}
	return nil
}

// afterwards returns a context for what must happen also when ctx has ended, as
// after Ctrl-C.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
}

func closeClient(ctx context.Context, client *rratelimiter.Client) {
	ctx, cancel := afterwards(ctx)
	defer cancel()
	_ = client.Close(ctx)
}

// add keeps a try and prints its line.
func (r *clientsRun) add(t try) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, t)
	if r.out.JSON {
		return
	}
	who := ""
	if r.Count > 1 {
		who = fmt.Sprintf("client %-3d ", t.client)
	}
	word := r.out.Paint(output.Red, "denied ")
	if t.granted {
		word = r.out.Paint(output.Green, "granted")
	}
	fmt.Fprint(r.out, r.out.Wrap(fmt.Sprintf("%7.3fs  %s%s  %d left, waited %v\n",
		t.at.Seconds(), who, word, t.left, t.waited.Round(time.Millisecond))))
}

func (r *clientsRun) printHead(server string) {
	if r.out.JSON {
		return
	}
	who := "a client tries"
	if r.Count > 1 {
		who = fmt.Sprintf("%d clients try", r.Count)
	}
	fmt.Fprint(r.out, r.out.Wrap(fmt.Sprintf("%s on %s; %s %s, each waiting at most %v\n\n",
		r.out.Paint(output.Bold, words.Rate(r.Rate, r.Interval)), server,
		who, words.Plural(int64(r.Tries), "time"), words.Duration(r.Timeout))))
}
