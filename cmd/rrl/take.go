package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// kind is one of the other limiters, as take offers it. Its flags are required
// if they have no default; rule reads them.
type kind struct {
	name, short, example string
	required             []string
	instead              string // a flag in place of the required ones; "" for none
	flags                func(*pflag.FlagSet)
	rule                 func() (newLimiter, error)
}

// newLimiter returns a limiter of a rule.
type newLimiter func(*rratelimiter.Client) peeker

// peeker is what each of them can do.
type peeker interface {
	limit.Limiter

	Peek(ctx context.Context, key string, permits int64) (limit.Decision, error)
}

func newTake(a *app) *cobra.Command {
	kinds := []kind{
		windowKind("fixed-window", "Take permits of a fixed window",
			"  rrl take fixed-window api:limit:user1 --limit 100/1m"),
		windowKind("counter", "Take permits of a counter, which shares keys with the fixed window",
			"  rrl take counter ip:10.0.0.7:/orders --limit 10/1s"),
		logKind(), bucketKind(),
	}
	var names, examples []string
	for _, k := range kinds {
		names, examples = append(names, k.name), append(examples, k.example)
	}
	slices.Sort(names)
	cmd := &cobra.Command{
		Use:   "take",
		Short: "Take permits of a fixed window, counter, sliding log or token bucket",
		Long: `Take permits of one of the limiters that many services keep in Redis by a script
of a few lines, under the same keys. It is one try; acquire is for limiters of
Redisson's kind. With --peek nothing is taken.

Nothing in their keys names the limiter or the limit, so ls and top can't list
them.

Exits 0 if the permits were granted, 1 if not.`,
		Example: strings.Join(examples, "\n"),
		RunE: func(cmd *cobra.Command, args []string) error {
			want := strings.Join(names, ", ")
			if len(args) > 0 {
				return fmt.Errorf("unknown limiter %q: want one of %s", args[0], want)
			}
			return fmt.Errorf("the limiter is missing; usage: %s LIMITER KEY, with one of %s", cmd.CommandPath(), want)
		},
		Args: cobra.ArbitraryArgs, // RunE says what is wrong with them
	}
	for _, k := range kinds {
		cmd.AddCommand(newTakeOf(a, k))
	}
	return cmd
}

func newTakeOf(a *app, k kind) *cobra.Command {
	var (
		permits int64
		peek    bool
	)
	cmd := &cobra.Command{
		Use:     k.name + " KEY",
		Short:   k.short,
		Example: k.example,
		Args:    named("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if k.instead == "" || !cmd.Flags().Changed(k.instead) {
				if err := required(cmd.Flags(), k.required...); err != nil {
					return err
				}
			} else if err := exclusive(cmd.Flags(), k.instead, k.required...); err != nil {
				return err
			}
			limiterOn, err := k.rule()
			if err != nil {
				return err
			}
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				client := rratelimiter.New(conn.Client, rratelimiter.WithCallTimeout(a.connect.CallTimeout()))
				defer closeClient(cmd.Context(), client) // what comes too late goes back
				l := limiterOn(client)
				ask := l.Take
				if peek {
					ask = l.Peek
				}
				d, err := ask(cmd.Context(), args[0], permits)
				if err != nil {
					return err
				}
				answer := taken{k.name, args[0], permits, output.DecisionOf(d), peek}
				return a.answer(answer, answer.String(), d.Granted)
			})
		},
	}
	k.flags(cmd.Flags())
	cmd.Flags().Int64VarP(&permits, "permits", "n", 1, "how many permits")
	cmd.Flags().BoolVar(&peek, "peek", false, "take nothing, print what taking them would return")
	return cmd
}

func windowKind(name, short, example string) kind {
	var rate string
	return kind{
		name: name, short: short, example: example, required: []string{"limit"},
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&rate, "limit", "", "a `RATE`, such as 100/1m or 1000/daily@Europe/Berlin: so many permits in a window")
		},
		rule: func() (newLimiter, error) {
			cfg, err := parseWindow(rate)
			return func(client *rratelimiter.Client) peeker { return fixedwindow.New(client, cfg) }, err
		},
	}
}

func logKind() kind {
	var rate, thresholds string
	return kind{
		name: "sliding-log", short: "Take permits of a sliding log",
		example: "  rrl take sliding-log limit:ann:/orders --limit 3/1m --thresholds " + commonHash, required: []string{"limit"},
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&rate, "limit", "", "a `RATE`, such as 3/1m: so many permits in any such span")
			f.StringVar(&thresholds, "thresholds", "", "`KEY` of the hash with limits of single keys, such as "+commonHash)
		},
		rule: func() (newLimiter, error) {
			permits, window, err := parseRate(rate)
			return func(client *rratelimiter.Client) peeker {
				return slidinglog.New(client, slidinglog.Config{Limit: permits, Window: window, Thresholds: thresholds})
			}, err
		},
	}
}

func bucketKind() kind {
	var (
		cfg            tokenbucket.Config
		bucket, refill string
	)
	return kind{
		name: "token-bucket", short: "Take tokens out of a bucket",
		example: "  rrl take token-bucket jobs:ann --limit 10+1/1s --permits 3", instead: "limit", required: []string{"capacity", "refill"},
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&bucket, "limit", "", "a `BUCKET`, such as 10+1/1s: its capacity, and so many tokens added each interval")
			f.Int64Var(&cfg.Capacity, "capacity", 0, "how many tokens a full bucket has, in place of --limit")
			f.StringVar(&refill, "refill", "", "a `RATE`, such as 1/1s: so many tokens are added each interval, in place of --limit")
			f.Int64Var(&cfg.Borrow, "borrow", 0, "how many tokens may be taken beyond those in the bucket")
		},
		rule: func() (newLimiter, error) {
			var err error
			if bucket != "" {
				borrow := cfg.Borrow
				cfg, err = parseBucket(bucket)
				cfg.Borrow = borrow
			} else {
				cfg.Refill, cfg.Interval, err = parseRate(refill)
			}
			return func(client *rratelimiter.Client) peeker { return tokenbucket.New(client, cfg) }, err
		},
	}
}

// taken is the answer of one take.
type taken struct {
	Limiter string `json:"limiter"`
	Key     string `json:"key"`
	Permits int64  `json:"permits"`
	output.Decision
	peek bool
}

func (t taken) String() string {
	if t.peek {
		free := t.Remaining
		if t.Granted {
			free += t.Permits // the decision is the one of taking them
		}
		s := fmt.Sprintf("%d of %d left", free, t.Limit)
		if t.RetryAfterMS > 0 {
			s += ", " + words.Plural(t.Permits, "permit") + " in " + words.Soon(t.RetryAfterMS)
		}
		return s
	}
	return acquired{Permits: t.Permits, Granted: t.Granted, Remaining: &t.Remaining, RetryAfterMS: &t.RetryAfterMS}.String()
}
