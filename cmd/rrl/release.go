package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func newRelease(a *app) *cobra.Command {
	var permits int64
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Give permits back before their interval is over",
		Long: `Give permits back before their interval is over, those that were taken last
first, and say how many. What is not in use is not given back.

If each client has permits of its own, --client-id chooses the client.`,
		Example: `  rrl release orders --permits 2`,
		Args:    named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				released, err := a.release(cmd.Context(), conn, name, permits)
				if err != nil {
					return err
				}
				return a.out.Print(struct {
					Name     string `json:"name"`
					Released int64  `json:"released"`
				}{name, released}, releasedText(released, permits))
			})
		},
	}
	cmd.Flags().Int64VarP(&permits, "permits", "n", 1, "how many permits")
	return cmd
}

func releasedText(released, permits int64) string {
	switch released {
	case permits:
		return "gave back " + words.Plural(released, "permit")
	case 0:
		return "gave back nothing, no permits were in use"
	}
	return "gave back " + words.Plural(released, "permit") + ", no more were in use"
}

// release gives permits back and returns how many. The library's Release does not
// tell that, so this runs its script; the library checks the arguments and the rate.
func (a *app) release(ctx context.Context, conn *connect.Connection, name string, permits int64) (released int64, err error) {
	client := a.newClient(conn.Client, a.clientID)
	defer closeClient(ctx, client)
	limiter := client.RateLimiter(name)
	if permits < 1 || permits > rratelimiter.MaxRate {
		return 0, limiter.Release(ctx, permits)
	}
	if err := limiter.Release(ctx, 0); err != nil {
		return 0, err
	}
	cfg, err := limiter.Config(ctx)
	if err != nil {
		return 0, err
	}
	if cfg.Type == rratelimiter.PerClient && a.clientID == "" {
		return 0, fmt.Errorf("%s: each client has permits of its own: choose the client with --client-id", words.Printable(name))
	}
	var left atomic.Int64
	left.Store(permits)
	keys, ids := script.KeysOf(redisson.KeysOf(name, a.clientID).List()...), redisson.NewIdentities(redisson.NewestRules.Layout)
	call := script.Call{
		Script: lua.Release, Keys: keys,
		Args: script.ArgumentsFunc(func(all []any, at script.Attempt) []any {
			call := ids.Next(nil, 1)
			return append(all, left.Load(), "", at.Token, "", call[:len(call)-4])
		}),
		Continued: func(_ string, rest []any) (more bool, err error) {
			numbers, err := script.Integers(rest, 1)
			if err == nil {
				left.Store(numbers[0])
			}
			return true, err
		},
	}
	lanes := lane.New(script.NewConn(conn.Client, a.connect.CallTimeout()), nil)
	defer lanes.Close(ctx, nil) //nolint:errcheck // nothing is under way then
	notFreed, err := script.Integer(lanes.Run(ctx, &call))
	if err == nil {
		return permits - notFreed, nil
	}
	err = fmt.Errorf("%s: %w", words.Printable(name), a.explainRelease(ctx, conn, name, keys, err))
	if back := permits - left.Load(); back > 0 {
		err = fmt.Errorf("%w; %s had been given back", err, words.Plural(back, "permit"))
	}
	return 0, err
}

// explainRelease puts in words why the script failed. What a limiter's keys hold is
// printed as show prints it.
func (a *app) explainRelease(ctx context.Context, conn *connect.Connection, name string, keys *script.Keys, err error) error {
	if answer, ok := errors.AsType[redis.Error](err); ok && (script.Code(answer) == "CORRUPT" || script.Code(answer) == "WRONGTYPE") {
		found, lookErr := look.Inspect(ctx, conn.Client, name, look.OneClient(conn.Client, name, a.clientID))
		if lookErr == nil && found.Broken != "" {
			return errors.New("broken: " + found.Broken + "; see rrl show")
		}
	}
	return script.Explain(err, keys.Names(), "what a limiter has there", script.NameAdvice)
}
