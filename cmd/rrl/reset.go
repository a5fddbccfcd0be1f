package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/rates"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func newReset(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "reset NAME",
		SuggestFor: []string{"clear", "flush"},
		Short:      "Free all permits of a limiter, its rate as it is",
		Long: `Free all permits of a limiter, as if none had been taken. Its rate and its time to
live stay. Who holds the permits does not learn of it: more than the rate may be
under way for an interval.

If each client has permits of its own, those of all clients are freed, unless
--client-id names one.

Exits 1 if there is no such limiter.`,
		Example: `  rrl reset orders`,
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				cfg, err := a.configOf(cmd.Context(), conn, name)
				if errors.Is(err, rratelimiter.ErrNotInitialized) {
					return a.printChanged(name, "reset", false, "", noLimiter)
				}
				if err != nil {
					return err
				}
				whose, err := a.eachClient(cmd.Context(), conn, name, cfg, func(client *rratelimiter.Client) error {
					return client.RateLimiter(name).Reset(cmd.Context())
				})
				if err != nil {
					return err
				}
				text := fmt.Sprintf("%s has all %s free%s", words.Printable(name), words.Plural(cfg.Rate, "permit"), whose)
				return a.printChanged(name, "reset", true, text, "")
			})
		},
	}
}

func newUseDefault(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "use-default NAME",
		SuggestFor: []string{"unset", "unset-rate"},
		Short:      "Take an override back: programs' WithDefault counts again",
		Long: `Take an override back: a rate that was set by set-rate, try-set-rate or update-rate,
by a program or by Redisson. Programs' WithDefault leaves such a rate alone. After
use-default a program that has another default sets that at its next request for
the limiter, or within a minute. Until then the rate stays; of one with an end,
that which comes back. Permits in use stay counted.

Exits 1 if there is no such limiter, or its rate is a default already.`,
		Example: `  rrl use-default orders`,
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				_, err := a.configOf(cmd.Context(), conn, name)
				if errors.Is(err, rratelimiter.ErrNotInitialized) {
					return a.printChanged(name, "changed", false, "", noLimiter)
				}
				if err != nil {
					return err
				}
				changed, err := rates.UseDefault(cmd.Context(), conn.Client, name, a.connect.CallTimeout())
				if err != nil {
					return fmt.Errorf("%s: %w", words.Printable(name), err)
				}
				cfg, err := a.configOf(cmd.Context(), conn, name) // of an override that had an end, what came back
				if err != nil {
					return err
				}
				rate := words.ShortRate(cfg.Rate, cfg.Interval.Milliseconds())
				return a.printChanged(name, "changed", changed,
					words.Printable(name)+" follows programs' defaults again; "+rate+" stays until a program has another one",
					"has a default already, nothing changed")
			})
		},
	}
}

// configOf returns the rate of a limiter, ErrNotInitialized if it has none, unless the key holds
// something else.
func (a *app) configOf(ctx context.Context, conn *connect.Connection, name string) (rratelimiter.Config, error) {
	if err := refuseForeign(look.Foreign)(ctx, conn.Client, name); err != nil {
		return rratelimiter.Config{}, err
	}
	client := a.newClient(conn.Client, a.clientID)
	defer closeClient(ctx, client)
	return client.RateLimiter(name).Config(ctx)
}

// eachClient calls do with a client, or, if each client has permits of its own and --client-id names
// none, with one in place of each. It returns whose permits these are, "" for all.
func (a *app) eachClient(ctx context.Context, conn *connect.Connection, name string, cfg rratelimiter.Config,
	do func(*rratelimiter.Client) error,
) (whose string, err error) {
	ids := []string{a.clientID}
	switch {
	case cfg.Type != rratelimiter.PerClient:
	case a.clientID != "":
		whose = ", of client " + words.Printable(a.clientID)
	default:
		if ids, err = look.FindClients(ctx, conn.Client, name); err != nil {
			return "", fmt.Errorf("clients of %s: %w", words.Printable(name), err)
		}
		if len(ids) > 0 {
			whose = ", of " + words.Plural(int64(len(ids)), "client")
		}
	}
	for _, id := range ids {
		client := a.newClient(conn.Client, id)
		err := do(client)
		closeClient(ctx, client)
		if err != nil && id != a.clientID {
			err = fmt.Errorf("client %s: %w", words.Printable(id), err)
		}
		if err != nil {
			return whose, err
		}
	}
	return whose, nil
}
