package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/rates"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// rateFlags are the flags of the commands that take a rate.
type rateFlags struct {
	rateType  string
	keepAlive span
	reset     bool
	keepState bool // the default without reset; it had a flag before reset had one
}

func (f *rateFlags) add(cmd *cobra.Command, state bool) {
	flags := cmd.Flags()
	if state {
		flags.StringVar(&f.rateType, "type", "overall", "`WHO` shares the permits: overall or per-client (default: as before, or overall)")
		flags.Lookup("type").DefValue = ""
	} else {
		flags.StringVar(&f.rateType, "type", "overall", "`WHO` shares the permits: overall or per-client")
	}
	// It fails for flags that are not there.
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions([]string{"overall", "per-client"}, cobra.ShellCompDirectiveNoFileComp))
	flags.Var(&f.keepAlive, "keep-alive", "delete the limiter when unused for this long (default never)")
	if state {
		flags.BoolVar(&f.reset, "reset", false, "start full: forget the permits in use")
		flags.BoolVar(&f.keepState, "keep-state", true, "keep the permits in use counted")
		// It fails for flags that are not there.
		_ = flags.MarkHidden("keep-state")
	}
}

// config returns the configuration that the argument and the flags name.
func (f *rateFlags) config(rate string) (rratelimiter.Config, error) {
	permits, interval, err := parseRate(rate)
	if err != nil {
		return rratelimiter.Config{}, err
	}
	rateType, err := parseType(f.rateType)
	if err != nil {
		return rratelimiter.Config{}, err
	}
	return rratelimiter.Config{Type: rateType, Rate: permits, Interval: interval, KeepAlive: time.Duration(f.keepAlive)}, nil
}

func (f *rateFlags) options() []rratelimiter.RateOption {
	if f.reset || !f.keepState {
		return nil
	}
	return []rratelimiter.RateOption{rratelimiter.KeepState()}
}

// setter is a command that gives a limiter a rate.
type setter struct {
	about     *cobra.Command
	state     bool // the limiter may have permits in use
	many      bool // a pattern or standard input may name the limiters
	set       func(*rratelimiter.RateLimiter, context.Context, rratelimiter.Config, ...rratelimiter.RateOption) (bool, error)
	otherwise string // the text if the limiter did not get the rate
}

func (s setter) command(a *app) *cobra.Command {
	var f rateFlags
	var yes, dryRun bool
	cmd := s.about
	cmd.Args = named("NAME", "RATE")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		if err := exclusive(cmd.Flags(), "reset", "keep-state"); err != nil {
			return err
		}
		cfg, err := f.config(args[1])
		if err != nil {
			return err
		}
		if s.many {
			u := &updateMany{app: a, flags: &f, cmd: cmd, cfg: cfg, yes: yes, dryRun: dryRun}
			if done, err := u.try(cmd.Context(), name); done || err != nil {
				return err
			}
		}
		return a.withLimiter(cmd.Context(), name, s.refuses(a, &f), func(l *rratelimiter.RateLimiter) error {
			if s.state {
				if cfg, err = s.keep(cmd, l, cfg); err != nil {
					return err
				}
			}
			set, err := s.set(l, cmd.Context(), cfg, f.options()...)
			if err != nil {
				return err
			}
			text := words.Printable(name) + " " + s.otherwise
			if set {
				text = words.Printable(name) + " has " + describe(cfg)
			}
			return a.answer(struct {
				Name string `json:"name"`
				Set  bool   `json:"set"`
			}{name, set}, text, set)
		})
	}
	f.add(cmd, s.state)
	if s.many {
		cmd.Flags().BoolVar(&yes, "yes", false, "change many limiters without asking")
		cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, and change nothing")
	}
	return cmd
}

// refuses is the check before a rate is set. With permits in use kept, these must be of Redissons
// that --redisson allows for.
func (s setter) refuses(a *app, f *rateFlags) check {
	return func(ctx context.Context, rdb redis.UniversalClient, name string) error {
		err := refuseForeign(otherHash)(ctx, rdb, name)
		if err == nil && s.state && f.options() != nil {
			err = a.refuseExcluded(false)(ctx, rdb, name)
		}
		return err
	}
}

// keep returns cfg with what a limiter keeps unless a flag names it: its type and, of update-rate,
// its keep-alive time.
func (s setter) keep(cmd *cobra.Command, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) (rratelimiter.Config, error) {
	flags := cmd.Flags()
	ofType, keepAlive := !flags.Changed("type"), s.many && !flags.Changed("keep-alive")
	if !ofType && !keepAlive {
		return cfg, nil
	}
	now, err := l.Config(cmd.Context())
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized), errors.Is(err, rratelimiter.ErrCorrupt):
		return cfg, nil // setting the rate reports the error
	case err != nil:
		return cfg, err
	}
	if ofType {
		cfg.Type = now.Type
	}
	if keepAlive {
		cfg = rates.Keep(now, cfg)
	}
	return cfg, nil
}

func newTrySetRate(a *app) *cobra.Command {
	return setter{
		about: &cobra.Command{
			Use:   "try-set-rate NAME RATE",
			Short: "Give a limiter a rate, unless it has one",
			Long: `Give a limiter a rate, unless it has one.

Exits 1 if the limiter has a rate already; nothing changes then.`,
			Example: `  rrl try-set-rate orders 100/1s
  rrl try-set-rate mail 5/1m --type per-client --keep-alive 1h`,
		},
		set: func(l *rratelimiter.RateLimiter, ctx context.Context, cfg rratelimiter.Config, _ ...rratelimiter.RateOption) (bool, error) {
			return l.TrySetRate(ctx, cfg)
		},
		otherwise: "has a rate already, nothing changed",
	}.command(a)
}

func newSetRate(a *app) *cobra.Command {
	return setter{
		about: &cobra.Command{
			Use:   "set-rate NAME RATE",
			Short: "Set a limiter's rate, whatever it was",
			Long: `Set a limiter's rate, whatever it was. Permits in use stay counted, unless
--reset is given or --type changes the type: then the limiter starts full.

If each client has permits of its own, --reset affects only the client that
--client-id names.`,
			Example: `  rrl set-rate orders 100/1s
  rrl set-rate orders 200/1s --reset`,
		},
		state: true,
		set: func(l *rratelimiter.RateLimiter, ctx context.Context, cfg rratelimiter.Config, opts ...rratelimiter.RateOption) (bool, error) {
			return true, l.SetRate(ctx, cfg, opts...)
		},
	}.command(a)
}

func newUpdateRate(a *app) *cobra.Command {
	return setter{
		about: &cobra.Command{
			Use:   "update-rate NAME RATE",
			Short: "Change the rate of a limiter that has one, or of many",
			Long: `Change the rate of a limiter that has one. Permits in use stay counted, unless
--reset is given, as with set-rate.

NAME may be a pattern of Redis' SCAN, such as 'api:*', unless a limiter has that
very name, or - for names on standard input, one a line. It then shows how many
would change and the first of them, and asks; --yes answers, --dry-run ends there.

Each limiter keeps its type and its keep-alive time, unless a flag names another;
a keep-alive time that was the interval follows the interval.
Ctrl-C stops it between two limiters; run again, it changes the rest.

Exits 1 if there is no such limiter (none is made) or the answer was no; 2 if
some could not be changed.`,
			Example: `  rrl update-rate orders 50/1s
  rrl update-rate 'api:*' 50/1h --dry-run
  rrl ls 'api:*' --json | jq -r '.[] | select(.state == "used up").name' | rrl update-rate - 200/1h --yes`,
		},
		state:     true,
		many:      true,
		set:       (*rratelimiter.RateLimiter).UpdateRate,
		otherwise: "has no rate, nothing changed",
	}.command(a)
}

// describe puts a configuration in words.
func describe(cfg rratelimiter.Config) string {
	s := words.Rate(cfg.Rate, cfg.Interval)
	if cfg.Type == rratelimiter.PerClient {
		s += " for each client"
	}
	if cfg.KeepAlive > 0 {
		s += ", deleted when unused for " + words.Duration(cfg.KeepAlive)
	}
	return s
}
