package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
	"github.com/rratelimiter/rratelimiter/internal/connect"
)

func newDemo(a *app) *cobra.Command {
	var (
		d    demo.Clients
		rate string
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a limiter at work, no Redis needed",
		Long: `See a limiter at work: clients try to take a permit, one try after the other,
and each try prints a line. At the end it prints, from the server's own record,
how many permits any one interval granted.

The demo starts its own small server. It uses another only if --redis names it,
whatever $REDIS_URL says, and deletes from it what it made.

Each other limiter has a demo of its own, by name.`,
		Example: `  rrl demo
  rrl demo fixed-window
  rrl demo --clients 3
  rrl demo --rate 10/500ms --tries 100 --timeout 20ms
  rrl demo --redis redis://127.0.0.1:6379`,
		Args: named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if d.Rate, d.Interval, err = parseRate(rate); err != nil {
				return err
			}
			if d.Tries < 1 || d.Count < 1 || d.Timeout < 0 {
				return errors.New("--tries and --clients are at least 1, --timeout at least 0")
			}
			d.CallTimeout = a.connect.CallTimeout()
			if cmd.Flags().Changed("redis") {
				return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
					return yesOrNo(d.RunOn(cmd.Context(), &a.out, conn.Client))
				})
			}
			return yesOrNo(d.Run(cmd.Context(), &a.out))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&rate, "rate", "3/1s", "the limiter's `RATE`")
	flags.IntVar(&d.Tries, "tries", 30, "how many tries each client makes")
	flags.DurationVar(&d.Timeout, "timeout", 100*time.Millisecond, "how long a try may wait for a permit")
	flags.IntVar(&d.Count, "clients", 1, "how many clients share the limiter")
	flags.StringVar(&d.Prefix, "prefix", "", "what the limiter's `NAME` begins with, for users who may not use others")
	for _, s := range demo.Scenarios() {
		cmd.AddCommand(newScenario(a, s))
	}
	return cmd
}

func newScenario(a *app, s demo.Scenario) *cobra.Command {
	return &cobra.Command{
		Use:     s.Name,
		Short:   s.Short,
		Long:    s.Long + "\n\nIt starts its own small server and moves the server's clock, so minutes pass\nquickly.",
		Example: "  rrl demo " + s.Name + "\n  rrl demo " + s.Name + " --json",
		Args:    named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("redis") {
				return errors.New("--redis: this demo moves its server's clock, so it starts its own server; " +
					"on yours try rrl take " + s.Name)
			}
			return yesOrNo(s.Run(cmd.Context(), &a.out))
		},
	}
}
