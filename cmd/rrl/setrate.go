package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/rates"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// rateFlags are the flags of the commands that take a rate.
type rateFlags struct {
	rateType  string
	keepAlive span
	span      span // for how long; 0: until it is changed
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
	usually := "never"
	if state {
		usually = "as before, or never; 0 never"
	}
	flags.Var(&f.keepAlive, "keep-alive", "delete the limiter when unused for this long (default "+usually+")")
	if state {
		flags.Var(&f.span, "for", "for this long, such as 20h; then it goes back to what it is now (default for ever)")
		flags.BoolVar(&f.reset, "reset", false, "start full: forget the permits in use")
		flags.BoolVar(&f.keepState, "keep-state", true, "keep the permits in use counted")
		// It fails for flags that are not there.
		_ = flags.MarkHidden("keep-state")
	}
}

// config returns the configuration that the arguments and the flags name.
func (f *rateFlags) config(name, rate string) (rratelimiter.Config, error) {
	permits, interval, err := parseRate(rate)
	if err != nil {
		return rratelimiter.Config{}, err
	}
	rateType, err := parseType(f.rateType)
	if err != nil {
		return rratelimiter.Config{}, err
	}
	cfg := rratelimiter.Config{Type: rateType, Rate: permits, Interval: interval, KeepAlive: time.Duration(f.keepAlive)}
	if err := checkKeepAlive(cfg); err != nil {
		return rratelimiter.Config{}, fmt.Errorf("%s: %w", words.Printable(name), err)
	}
	return cfg, nil
}

// checkSpan fails if --for stands beside a flag that it rules out.
func (f *rateFlags) checkSpan(flags *pflag.FlagSet) error {
	if err := exclusive(flags, "for", "reset", "keep-state", "keep-alive", "type"); err != nil {
		return err
	}
	if flags.Changed("for") && f.span <= 0 {
		return errors.New("--for is not longer than 0")
	}
	return nil
}

// checkKeepAlive fails if a limiter would be deleted while its permits are in use.
func checkKeepAlive(cfg rratelimiter.Config) error {
	if cfg.KeepAlive == 0 || cfg.KeepAlive >= cfg.Interval {
		return nil
	}
	interval := words.Duration(cfg.Interval)
	return fmt.Errorf("keep-alive time %s is shorter than the interval %s: give --keep-alive %s or more, or 0 for none",
		words.Duration(cfg.KeepAlive), interval, interval)
}

func (f *rateFlags) options() []rratelimiter.RateOption {
	if f.reset || !f.keepState {
		return nil
	}
	if f.span > 0 {
		return []rratelimiter.RateOption{rratelimiter.For(time.Duration(f.span))}
	}
	return []rratelimiter.RateOption{rratelimiter.KeepState()}
}

// setter is a command that gives a limiter a rate.
type setter struct {
	about     *cobra.Command
	state     bool // the limiter may have permits in use
	many      bool // a pattern or standard input may name the limiters
	creates   bool // and if there is no limiter, it is made
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
		if err := cmp.Or(exclusive(cmd.Flags(), "reset", "keep-state"), f.checkSpan(cmd.Flags())); err != nil {
			return err
		}
		cfg, err := f.config(name, args[1])
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
				return s.change(a, cmd, l, cfg, f.options(), yes)
			}
			set, err := s.set(l, cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return a.printChanged(name, "set", set, words.Printable(name)+" has "+describe(cfg), s.otherwise)
		})
	}
	f.add(cmd, s.state)
	if s.many {
		cmd.Flags().BoolVar(&yes, "yes", false, "change many limiters without asking")
		cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, and change nothing")
	}
	if s.creates {
		cmd.Flags().BoolVar(&yes, "yes", false, "create a limiter without asking")
	}
	return cmd
}

// rateChange is what a change of a rate did.
type rateChange struct {
	Name    string  `json:"name"`
	Set     bool    `json:"set"`
	Created bool    `json:"created"`
	From    *string `json:"from"` // nil if there was no rate
	To      *string `json:"to"`   // nil if none was set

	Ends *look.Ends `json:"ends,omitempty"` // if it was set for a while
}

// change sets the rate of a limiter, which keeps what no flag names.
func (s setter) change(a *app, cmd *cobra.Command, l *rratelimiter.RateLimiter, cfg rratelimiter.Config, opts []rratelimiter.RateOption, yes bool) error {
	name, from, ended := words.Printable(l.Name()), "", false
	now, err := l.Config(cmd.Context())
	switch {
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		if s.creates && cmd.Flags().Changed("for") {
			return fmt.Errorf("%s: there is no rate to go back to; give it that one first by rrl try-set-rate", name)
		}
		if s.creates && !yes && a.canAsk() {
			if err := a.ask(cmd, name+" is no limiter: create it with "+describe(cfg)); err != nil {
				return err
			}
		}
	case errors.Is(err, rratelimiter.ErrCorrupt):
		from = string(look.IsBroken) // setting the rate cures it, or reports the error
	case err != nil:
		return err
	default:
		from = briefly(now)
		if cfg, err = keep(cmd.Flags(), now, cfg); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if cfg == now {
			if _, ended, err = l.Override(cmd.Context()); err != nil {
				return err
			}
		}
	}
	set, err := s.set(l, cmd.Context(), cfg, opts...)
	switch {
	case err != nil:
		return err
	case !set:
		return a.answer(rateChange{Name: l.Name()}, name+" "+s.otherwise, false)
	}
	to := briefly(cfg)
	done := rateChange{Name: l.Name(), Set: true, Created: from == "", To: &to}
	if !done.Created {
		done.From = &from
	}
	if cmd.Flags().Changed("for") {
		return a.answerOverride(cmd.Context(), l, done)
	}
	if ended {
		return a.answer(done, name+" has "+describe(cfg)+", which has no end any more", true)
	}
	return a.answer(done, name+done.text(now, cfg), true)
}

// answerOverride is the answer to a rate that was set for a while.
func (a *app) answerOverride(ctx context.Context, l *rratelimiter.RateLimiter, done rateChange) error {
	o, overridden, err := l.Override(ctx)
	if err != nil {
		return err
	}
	if overridden { // it may be over already
		done.Ends = &look.Ends{AtMS: o.Until.UnixMilli(), Rate: o.Then.Rate, IntervalMS: o.Then.Interval.Milliseconds()}
	}
	text := fmt.Sprintf("%s: %s -> %s, %s", words.Printable(l.Name()), *done.From, *done.To, done.Ends.Or(look.Override, time.Now()))
	return a.answer(done, text, true)
}

// text says what changed, behind the limiter's name.
func (c rateChange) text(before, after rratelimiter.Config) string {
	switch {
	case c.Created:
		return " created: " + describe(after)
	case before == after:
		return " has " + describe(after) + ", as before"
	case before.KeepAlive > 0 && after.KeepAlive == 0:
		return ": " + *c.From + " -> " + *c.To + ", no longer deleted when unused"
	}
	return ": " + *c.From + " -> " + *c.To + alive(after)
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

// keep returns cfg with what a limiter keeps unless a flag names it: its type and its keep-alive time.
func keep(flags *pflag.FlagSet, now, cfg rratelimiter.Config) (rratelimiter.Config, error) {
	if !flags.Changed("type") {
		cfg.Type = now.Type
	}
	if !flags.Changed("keep-alive") && !flags.Changed("for") {
		cfg = rates.Keep(now, cfg)
	}
	return cfg, checkKeepAlive(cfg)
}

func newTrySetRate(a *app) *cobra.Command {
	return setter{
		about: &cobra.Command{
			Use:        "try-set-rate NAME RATE",
			SuggestFor: []string{"create", "new", "add"},
			Short:      "Give a limiter a rate, unless it has one",
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
			Use:        "set-rate NAME RATE",
			SuggestFor: []string{"limit"},
			Short:      "Set a limiter's rate, whatever it was",
			Long: `Set a limiter's rate, whatever it was, and say what it was. Permits in use stay
counted, unless --reset is given or --type changes the type: then the limiter starts
full. Type and keep-alive time stay, unless a flag names another. So the rate of a
limiter that is deleted when unused goes then: --keep-alive 0 keeps it.

With --for it goes back to the rate that it has now when that time is over, however
much it is used: an override of one for a day.

If there is no such limiter, it is created. On a terminal set-rate asks before,
unless --yes or --json is given: the name may be mistyped.

If each client has permits of its own, --reset affects only the client that
--client-id names.`,
			Example: `  rrl set-rate orders 100/1s
  rrl set-rate orders 200/1s --for 20h
  rrl set-rate orders 200/1s --reset`,
		},
		state:   true,
		creates: true,
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
	return s + alive(cfg)
}

func alive(cfg rratelimiter.Config) string {
	if cfg.KeepAlive == 0 {
		return ""
	}
	return ", deleted when unused for " + words.Duration(cfg.KeepAlive)
}

// briefly is a configuration in short, without its keep-alive time.
func briefly(cfg rratelimiter.Config) string {
	s := words.ShortRate(cfg.Rate, cfg.Interval.Milliseconds())
	if cfg.Type == rratelimiter.PerClient {
		s += " for each client"
	}
	return s
}
