package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func newExpire(a *app) *cobra.Command {
	var forget bool
	cmd := &cobra.Command{
		Use:   "expire NAME TTL",
		Short: "Let a limiter expire, or keep it for good",
		Long: `Let a limiter expire, its rate included, after the time TTL. With --clear in
place of TTL, it no longer expires. A key that holds something else is left alone,
and so is a limiter with a keep-alive time, which its next request would set again:
take that off first, by rrl set-rate --keep-alive 0.

Exits 1 if nothing changed: there is no such limiter, or nothing to clear.`,
		Example: `  rrl expire orders 10m
  rrl expire orders --clear`,
		Args: func(cmd *cobra.Command, args []string) error {
			if forget {
				if len(args) > 1 {
					return errors.New("--clear and a TTL exclude each other")
				}
				return named("NAME")(cmd, args)
			}
			return named("NAME", "TTL")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			var ttl time.Duration
			if !forget {
				var err error
				if ttl, err = parseTTL(args[1]); err != nil {
					return err
				}
			}
			return a.withLimiter(cmd.Context(), name, refuseKept, func(l *rratelimiter.RateLimiter) error {
				var changed bool
				var err error
				text := words.Printable(name) + " no longer expires"
				if forget {
					changed, err = l.ClearExpire(cmd.Context())
				} else {
					changed, err = l.Expire(cmd.Context(), ttl)
					text = words.Printable(name) + " expires in " + words.Duration(ttl)
				}
				if err != nil {
					return err
				}
				otherwise := noLimiter
				if forget && !changed {
					there, err := l.Exists(cmd.Context())
					if err != nil {
						return err
					}
					if there {
						otherwise = "has no time to live, nothing changed"
					}
				}
				return a.printChanged(name, "changed", changed, text, otherwise)
			})
		},
	}
	cmd.Flags().BoolVar(&forget, "clear", false, "keep the limiter for good")
	return cmd
}

// refuseKept is the check that fails for a limiter whose next request would set its time to live itself.
func refuseKept(ctx context.Context, rdb redis.UniversalClient, name string) error {
	if err := refuseForeign(look.Foreign)(ctx, rdb, name); err != nil || name == "" {
		return err
	}
	found, err := look.ReadHashes(ctx, rdb, []string{name})
	if err != nil || found[0] == nil || found[0].KeepAliveMS == 0 {
		return err
	}
	rate, life := words.ShortRate(found[0].Rate, found[0].IntervalMS), words.Millis(found[0].KeepAliveMS)
	if end := found[0].End(); end != nil { // an override is not to stay for good
		rate = words.ShortRate(end.Rate, end.IntervalMS)
	}
	return fmt.Errorf("%s has a keep-alive time of %s, and its next request would set its time to live back to that: nothing changed; "+
		"first take that off: rrl set-rate %s %s --keep-alive 0", words.Printable(name), life, words.Printable(name), rate)
}

func parseTTL(s string) (time.Duration, error) {
	ttl, err := words.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("TTL %q is not a time, such as 90s, 10m or 1d", s)
	}
	if ttl < time.Millisecond {
		return 0, errors.New("TTL is below 1ms; to remove a limiter, use delete")
	}
	return ttl, nil
}

func newDelete(a *app) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use:        "delete NAME",
		SuggestFor: []string{"del", "rm", "remove"},
		Short:      "Delete a limiter with all it keeps",
		Long: `Delete a limiter with all it keeps. On a terminal it asks first, unless --yes or
--json is given. A key that holds something else is left alone unless --force is
given. rrl ls lists what counts as a limiter, broken or not.

Exits 1 if there is no such limiter.`,
		Example: `  rrl delete orders`,
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			refuse := func(ctx context.Context, rdb redis.UniversalClient, name string) error {
				if !force {
					if err := refuseForeign(look.Foreign)(ctx, rdb, name); err != nil {
						return err
					}
				}
				if yes || !a.canAsk() {
					return nil
				}
				return a.askToDelete(cmd, rdb, name)
			}
			return a.withLimiter(cmd.Context(), name, refuse, func(l *rratelimiter.RateLimiter) error {
				deleted, err := l.Delete(cmd.Context())
				if err != nil {
					return err
				}
				return a.printChanged(name, "deleted", deleted, "deleted "+words.Printable(name), noLimiter)
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete the key whatever it holds")
	cmd.Flags().BoolVar(&yes, "yes", false, "delete without asking")
	return cmd
}

// askToDelete has the user agree, and says what goes. If there is no such key nothing is asked.
func (a *app) askToDelete(cmd *cobra.Command, rdb redis.UniversalClient, name string) error {
	kind, err := rdb.Type(cmd.Context(), name).Result()
	if err != nil || kind == "none" {
		return err
	}
	what := words.Printable(name)
	// What can't be read, for lack of a right, may be deleted all the same.
	switch found, err := look.ReadShort(cmd.Context(), rdb, []string{name}); {
	case err != nil:
	case len(found) == 0:
		what += ", a " + kind
	case found[0].NoRate:
		what += ", a broken limiter"
	default:
		what += ", a limiter of " + words.ShortRate(found[0].Rate, found[0].IntervalMS)
		if !found[0].PerClient() {
			what += " with " + words.Plural(found[0].InUse, "permit") + " in use"
		}
	}
	return a.ask(cmd, "delete "+what)
}

// otherHash is for commands that set a rate: that cures a hash which has some of the
// fields.
func otherHash(kind string, fields []any) bool {
	return kind == "hash" && !slices.ContainsFunc(fields, func(field any) bool { return field != nil })
}

// refuseForeign returns the check that fails if a key holds something other than a limiter, most
// often because of a mistyped name. foreign reports that of a key of that type, with these values of
// look.FieldNames if it is a hash.
func refuseForeign(foreign func(kind string, fields []any) bool) check {
	return func(ctx context.Context, rdb redis.UniversalClient, name string) error {
		if name == "" {
			return nil // the library says so
		}
		kind, err := rdb.Type(ctx, name).Result()
		if err != nil || kind == "none" {
			return err
		}
		what, fields := kind, []any(nil)
		if kind == "hash" {
			what = "hash of something else"
			if fields, err = rdb.HMGet(ctx, name, look.FieldNames...).Result(); err != nil {
				return err
			}
		}
		if foreign(kind, fields) {
			return fmt.Errorf("%s is a %s, not a limiter: nothing changed", words.Printable(name), what)
		}
		return nil
	}
}

const noLimiter = "is no limiter, nothing changed"

// printChanged prints the outcome of a change, under the given JSON field: text, or otherwise
// if nothing changed.
func (a *app) printChanged(name, field string, changed bool, text, otherwise string) error {
	if !changed {
		text = words.Printable(name) + " " + otherwise
	}
	return a.answer(map[string]any{"name": name, field: changed}, text, changed)
}
