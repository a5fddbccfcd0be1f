package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
)

const (
	liveClients, liveProcesses = 200, 4
	liveRate                   = 20_000 // a second

	// tick is how long requests gather before they are made, so that a small machine can
	// make all of them.
	tick = 2 * time.Millisecond
)

// crew is the Clients of one process.
type crew struct {
	addr, name string
	clients    int
	rate       int64
	demand     float64 // of each, a second
	from, to   int64   // counts the grants between these, Unix ms
}

func (c *crew) flags() {
	flag.StringVar(&c.addr, "child", "", "`address` of the Redis of a process of -live")
	flag.StringVar(&c.name, "name", "", "its limiter")
	flag.IntVar(&c.clients, "clients", 0, "its Clients")
	flag.Int64Var(&c.rate, "child-rate", 0, "its limiter's rate")
	flag.Float64Var(&c.demand, "demand", 0, "requests a second of each")
	flag.Int64Var(&c.from, "from", 0, "counts from then, Unix ms")
	flag.Int64Var(&c.to, "to", 0, "to then")
}

// work makes the requests of a process, and prints what each Client was granted.
func (c *crew) work(ctx context.Context) error {
	granted, errs := make([]float64, c.clients), make([]error, c.clients)
	var all sync.WaitGroup
	for i := range c.clients {
		all.Go(func() { granted[i], errs[i] = c.client(ctx) })
	}
	all.Wait()
	return errors.Join(errors.Join(errs...), json.NewEncoder(os.Stdout).Encode(granted))
}

func (c *crew) client(ctx context.Context) (granted float64, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: c.addr, PoolSize: 4})
	client := rratelimiter.New(rdb)
	limiter := client.RateLimiter(c.name, rratelimiter.WithRefusalCache(), rratelimiter.WithLease(rratelimiter.Lease{}),
		rratelimiter.WithDefault(rratelimiter.Config{Rate: c.rate, Interval: time.Second, KeepAlive: time.Minute}))
	from, to := time.UnixMilli(c.from), time.UnixMilli(c.to)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	time.Sleep(time.Duration(r.Float64() * float64(50*time.Millisecond)))
	for last := time.Now(); last.Before(to); {
		time.Sleep(tick)
		now := time.Now()
		for range poisson(r, c.demand*now.Sub(last).Seconds()) {
			ok, err := limiter.TryAcquire(ctx, 1, 0)
			if err != nil {
				return 0, err
			}
			if ok && now.After(from) && now.Before(to) {
				granted++
			}
		}
		last = now
	}
	return granted, errors.Join(client.Close(ctx), rdb.Close())
}

// measure shows what 200 Clients do on a real Redis, and what the simulation says of it.
func measure(ctx context.Context, w io.Writer) error {
	s, err := server.Start(ctx, "")
	if err != nil {
		return err
	}
	defer s.Close()
	_, _ = fmt.Fprintln(w, "| demand | calls a second | simulated | used | simulated | fairness | simulated | µs of CPU a call | in the script |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	for i, demand := range []float64{0.5, 0.9, 1, 2, 10} {
		granted, cost, took, err := measureOne(ctx, s, strconv.Itoa(i), demand)
		if err != nil {
			return err
		}
		sum := 0.0
		for _, n := range granted {
			sum += n
		}
		r := simulate(liveClients, time.Second, liveRate, demand, even, true)
		_, _ = fmt.Fprintf(w, "| %v | %.0f | %.0f | %.3f | %.3f | %.3f | %.3f | %.1f | %.1f |\n", demand, float64(cost.Scripts)/took.Seconds(), r.calls,
			sum/took.Seconds()/liveRate/min(1, demand), r.used, jain(granted), r.jain, float64(cost.CPU.Microseconds())/float64(cost.Scripts),
			float64(cost.Took.Microseconds())/float64(cost.Scripts))
	}
	return nil
}

// measureOne runs the processes once.
func measureOne(ctx context.Context, s *server.Redis, name string, demand float64) (granted []float64, cost server.Cost, took time.Duration, err error) {
	from := time.Now().Add(4 * time.Second)
	to := from.Add(10 * time.Second)
	var outs [liveProcesses]bytes.Buffer
	var all []*exec.Cmd
	for i := range liveProcesses {
		cmd := exec.CommandContext(ctx, os.Args[0], "-child", s.Addr, "-name", name, "-clients", strconv.Itoa(liveClients/liveProcesses),
			"-child-rate", strconv.Itoa(liveRate), "-demand", fmt.Sprint(demand*liveRate/liveClients),
			"-from", strconv.FormatInt(from.UnixMilli(), 10), "-to", strconv.FormatInt(to.UnixMilli(), 10))
		cmd.Stdout, cmd.Stderr = &outs[i], os.Stderr
		if err := cmd.Start(); err != nil {
			return nil, cost, 0, err
		}
		all = append(all, cmd)
	}
	time.Sleep(time.Until(from))
	before, err := s.Usage(ctx)
	if err != nil {
		return nil, cost, 0, err
	}
	time.Sleep(time.Until(to))
	after, err := s.Usage(ctx)
	if err != nil {
		return nil, cost, 0, err
	}
	for i, cmd := range all {
		if err := cmd.Wait(); err != nil {
			return nil, cost, 0, err
		}
		var some []float64
		if err := json.Unmarshal(outs[i].Bytes(), &some); err != nil {
			return nil, cost, 0, err
		}
		granted = append(granted, some...)
	}
	return granted, after.Since(before, map[string]float64{"evalsha": 0, "eval": 0}), to.Sub(from), nil
}
