package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/bench"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/connect"
)

func newBench(a *app) *cobra.Command {
	var opts bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what the servers give from here",
		Long: `Measure what the servers give from here: how long one caller waits for a
decision, and how many decisions a second many callers get, of one limiter and of
many. All callers are in this process and share one Client, as in a program;
every request is granted.

It loads the servers as much as the callers can, for --time in all. Its keys have
names of their own, begin with --prefix, and are removed at the end, after Ctrl-C
too; those of a bench that was killed expire within about a minute.`,
		Example: `  rrl bench
  rrl bench --time 60s --callers 1,64,1024
  rrl bench --json --redis rediss://cache.example.com:6380`,
		Args: named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Time < 100*time.Millisecond || opts.Limiters < 2 || slices.ContainsFunc(opts.Callers, func(n int) bool { return n < 1 }) {
				return errors.New("--time is at least 100ms, --limiters at least 2, each of --callers at least 1")
			}
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				opts.Client = append(opts.Client, rratelimiter.WithCallTimeout(a.connect.CallTimeout()))
				if a.redisson != "" {
					opts.Client = append(opts.Client, rratelimiter.WithRedissonVersion(a.redisson))
				}
				var unwritten error
				if !a.out.JSON {
					_, unwritten = fmt.Fprintf(a.out, "%8s %9s %12s %10s %10s\n", "callers", "limiters", "decisions/s", "p50", "p99")
					opts.Done = func(r bench.Result) {
						_, err := fmt.Fprintln(a.out, benchLine(r))
						unwritten = cmp.Or(unwritten, err)
					}
				}
				report, err := bench.Run(cmd.Context(), conn.Client, opts)
				if err == nil && a.out.JSON {
					err = output.WriteJSON(a.out, report)
				}
				return cmp.Or(err, unwritten)
			})
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&opts.Time, "time", 15*time.Second, "how long to measure, all runs together")
	flags.IntSliceVar(&opts.Callers, "callers", []int{8, 64, 256}, "how many callers; each number is run with one limiter and with many")
	flags.IntVar(&opts.Limiters, "limiters", 1000, "how many limiters the runs with many use")
	flags.StringVar(&opts.Prefix, "prefix", "", "what the `NAMES` of its limiters begin with, for users who may not use others")
	return cmd
}

func benchLine(r bench.Result) string {
	line := fmt.Sprintf("%8d %9d %12.0f %10s %10s", r.Callers, r.Limiters, r.PerSecond, micros(r.P50Micros), micros(r.P99Micros))
	if r.Refused > 0 {
		line += fmt.Sprintf("  %d refused", r.Refused)
	}
	return line
}

// micros writes a time in microseconds as people say it.
func micros(us float64) string {
	d := time.Duration(us * float64(time.Microsecond))
	if d >= time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
