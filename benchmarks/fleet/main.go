// Command fleet shows what a thousand programs on one limiter cost Redis: in virtual time, with
// the code that sizes leases and a server that costs what was measured.
//
//	go run ./fleet                # the table, to the terminal
//	go run ./fleet -docs ../docs  # and into docs/scale.md, with its plot
//	go run ./fleet -csv           # the shapes of demand too, as CSV
//	go run ./fleet -live          # 200 Clients in four processes on a real Redis, beside the simulation
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/rratelimiter/rratelimiter/benchmarks/server"
)

const (
	// callCost is the CPU that a server needs for a call that comes alone, as results.tsv has it.
	callCost = 36 * time.Microsecond
	wire     = 500 * time.Microsecond
)

var demands = []float64{0.1, 0.5, 0.9, 1, 2, 10}

func main() {
	server.Serve()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var (
		docs     = flag.String("docs", "", "`folder` of scale.md")
		csv      = flag.Bool("csv", false, "all shapes of demand, as CSV")
		live     = flag.Bool("live", false, "measure too")
		programs = flag.Int("programs", 1000, "how many there are")
		rate     = flag.Int64("rate", 1_000_000, "permits of an interval")
		child    crew
	)
	child.flags()
	flag.Parse()
	switch {
	case child.addr != "":
		return child.work(ctx)
	case *live:
		return measure(ctx, os.Stdout)
	case *csv:
		return lines(os.Stdout, *programs, *rate)
	}
	return pages(os.Stdout, *docs, *programs, *rate)
}

func simulate(programs int, interval time.Duration, rate int64, demand float64, shape string, leases bool) result {
	return scenario{
		programs: programs, interval: interval, rate: rate, demand: demand, shape: shape, leases: leases,
		wire: wire, cost: callCost, seed: 1,
	}.run()
}

// lines writes a line for each scenario.
func lines(w io.Writer, programs int, rate int64) error {
	_, err := fmt.Fprintln(w, "programs,interval,rate,shape,demand,leases,calls,used,jain,newcomer,charged,over,life")
	for _, interval := range []time.Duration{time.Second, time.Minute} {
		for _, shape := range []string{even, zipf, bursts, churn} {
			for _, demand := range demands {
				r := simulate(programs, interval, rate, demand, shape, true)
				_, one := fmt.Fprintf(w, "%d,%v,%d,%s,%v,%v,%.0f,%.3f,%.4f,%.2f,%.3f,%.3f,%v\n", programs, interval, rate, shape, demand,
					r.leases, r.calls, r.used, r.jain, r.newcomer, r.charged, r.over, r.life)
				err = errors.Join(err, one)
			}
		}
	}
	return err
}
