package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
)

// demoKeepAlive, after the longest pause between two requests, removes what a
// killed demo left in a given Redis.
const demoKeepAlive = time.Minute

// demo is one run of the command demo.
type demo struct {
	app     *app
	rate    string
	tries   int
	timeout time.Duration
	clients int

	cfg   rratelimiter.Config
	name  string
	start time.Time

	mu    sync.Mutex
	done  []try
	grant grantLog
}

// try is one TryAcquire of the demo. Times count from the demo's start.
type try struct {
	client  int
	at      time.Duration // when the answer was there
	waited  time.Duration
	granted bool
	left    int64
}

func newDemo(a *app) *cobra.Command {
	d := &demo{app: a}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a limiter at work, no Redis needed",
		Long: `See a limiter at work: clients try to take a permit, one try after the other,
and each try prints a line. At the end the server's own record tells how many
permits any one interval granted.

The demo brings its own small server. It uses another one only where --redis
names it, not by $REDIS_URL, and deletes there what it made.

Each other limiter has a demo of its own, by name.`,
		Example: `  rrl demo
  rrl demo fixed-window
  rrl demo --clients 3
  rrl demo --rate 10/500ms --tries 100 --timeout 20ms
  rrl demo --redis redis://127.0.0.1:6379`,
		Args: named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			permits, interval, err := parseRate(d.rate)
			if err != nil {
				return err
			}
			if d.tries < 1 || d.clients < 1 || d.timeout < 0 {
				return errors.New("--tries and --clients are at least 1, --timeout at least 0")
			}
			d.cfg = rratelimiter.Config{Rate: permits, Interval: interval, KeepAlive: (interval + d.timeout + demoKeepAlive).Truncate(time.Millisecond)}
			if cmd.Flags().Changed("redis") {
				rdb, err := a.connect()
				if err != nil {
					return err
				}
				return d.run(cmd.Context(), rdb, "the Redis given")
			}
			rdb, m := embedded(d.clients)
			defer m.Close()
			return d.run(cmd.Context(), rdb, "a Redis of its own")
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&d.rate, "rate", "3/1s", "the limiter's `RATE`")
	flags.IntVar(&d.tries, "tries", 30, "how many tries each client makes")
	flags.DurationVar(&d.timeout, "timeout", 100*time.Millisecond, "how long a try may wait for a permit")
	flags.IntVar(&d.clients, "clients", 1, "how many clients share the limiter")
	for _, sc := range scenarios {
		cmd.AddCommand(newScenario(a, sc))
	}
	return cmd
}

// embedded returns a client of a server inside this process, which needs no
// port, and the server. Each of the demo's clients has up to two calls under way
// at once.
func embedded(clients int) (*redis.Client, *miniredis.Miniredis) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "memory",
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		PoolSize:                 10 + 2*clients,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return rdb, m
}

// run makes the tries, prints them and what came of them, and closes rdb.
func (d *demo) run(ctx context.Context, rdb *redis.Client, server string) (err error) {
	defer func() { _ = rdb.Close() }()
	d.name = "rrl-demo:" + rand.Text()
	d.grant.start(rdb, d.name, d.cfg)

	setup := rratelimiter.New(rdb)
	defer closeClient(ctx, setup)
	limiter := setup.RateLimiter(d.name)
	if err := limiter.SetRate(ctx, d.cfg); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if _, deleteErr := limiter.Delete(ctx); err == nil {
			err = deleteErr
		}
	}()

	d.printHead(server)
	d.start = time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var clients sync.WaitGroup
	for n := 1; n <= d.clients; n++ {
		clients.Go(func() {
			if err := d.runClient(ctx, rdb, n); err != nil {
				cancel(err)
			}
		})
	}
	clients.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.report(time.Since(d.start))
}

// runClient makes the tries of the n-th client.
func (d *demo) runClient(ctx context.Context, rdb *redis.Client, n int) error {
	client := rratelimiter.New(rdb)
	defer closeClient(ctx, client)
	limiter := client.RateLimiter(d.name)
	for range d.tries {
		begin := time.Now()
		granted, err := limiter.TryAcquire(ctx, 1, d.timeout)
		if err != nil {
			return err
		}
		end := time.Now()
		if err := d.grant.read(ctx); err != nil {
			return err
		}
		left, err := limiter.AvailablePermits(ctx)
		if err != nil {
			return err
		}
		d.add(try{client: n, at: end.Sub(d.start), waited: end.Sub(begin), granted: granted, left: left})
	}
	return nil
}

// add keeps a try and prints its line.
func (d *demo) add(t try) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = append(d.done, t)
	if d.app.json {
		return
	}
	who := ""
	if d.clients > 1 {
		who = fmt.Sprintf("client %-3d ", t.client)
	}
	word := d.app.paint(red, "denied ")
	if t.granted {
		word = d.app.paint(green, "granted")
	}
	_, _ = fmt.Fprintf(d.app.stdout, "%7.3fs  %s%s  %d left, waited %v\n",
		t.at.Seconds(), who, word, t.left, t.waited.Round(time.Millisecond))
}

func (d *demo) printHead(server string) {
	if d.app.json {
		return
	}
	who := "a client tries"
	if d.clients > 1 {
		who = fmt.Sprintf("%d clients try", d.clients)
	}
	_, _ = fmt.Fprintf(d.app.stdout, "%s on %s; %s %s, each waiting at most %v\n\n",
		d.app.paint(bold, describe(rratelimiter.Config{Rate: d.cfg.Rate, Interval: d.cfg.Interval})), server,
		who, plural(int64(d.tries), "time"), formatDuration(d.timeout))
}
