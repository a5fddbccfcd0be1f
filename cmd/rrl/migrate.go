package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func newMigrate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate NAME",
		Short: "Rewrite what older Redissons have written",
		Long: `Rewrite the permits in use that older Redissons have written in the layout of
Redisson 3.21 and newer, for the same permits at the same times. The limiter can
be in use meanwhile.

Run it when no Redisson before 3.17 shares the limiter any more: those can't read
the new layout. Newer Redissons fail on permits in an older one.

If each client has permits of its own, those of all clients are rewritten,
unless --client-id names one.`,
		Example: `  rrl migrate orders`,
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				members, err := a.migrate(cmd.Context(), conn, name)
				if err != nil {
					return err
				}
				return a.out.Print(struct {
					Name      string `json:"name"`
					Rewritten int64  `json:"rewritten"`
				}{name, members}, words.Printable(name)+": "+words.Plural(members, "member")+" rewritten")
			})
		},
	}
}

// migrate rewrites the members of a limiter, or of all its clients.
func (a *app) migrate(ctx context.Context, conn *connect.Connection, name string) (int64, error) {
	client := a.newClient(conn.Client, a.clientID)
	defer closeClient(ctx, client)
	cfg, err := client.RateLimiter(name).Config(ctx)
	if err != nil {
		return 0, err
	}
	var all int64
	_, err = a.eachClient(ctx, conn, name, cfg, func(client *rratelimiter.Client) error {
		members, err := client.RateLimiter(name).Migrate(ctx)
		all += members
		return err
	})
	return all, err
}
