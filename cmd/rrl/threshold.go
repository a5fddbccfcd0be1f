package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// commonHash is the key of thresholds that services have in common.
const commonHash = "rate:limit:config"

func newThreshold(a *app) *cobra.Command {
	var (
		hash   string
		forget bool
	)
	cmd := &cobra.Command{
		Use:   "threshold KEY [N]",
		Short: "Show, set or reset the threshold of a sliding log",
		Long: `Show, set or reset the threshold that Redis keeps for a sliding log. A change
takes effect at the next decision, in all programs that read the same hash. A
threshold of 0 refuses all requests; without one the programs' own limit holds.

Exits 1 if there is no threshold to show.`,
		Example: `  rrl threshold limit:ann:/orders
  rrl threshold limit:ann:/orders 5
  rrl threshold limit:ann:/orders --reset`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && forget {
				return errors.New("--reset and a threshold exclude each other")
			}
			return named("KEY", "[N]")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var n int64
			if len(args) == 2 {
				var err error
				if n, err = strconv.ParseInt(args[1], 10, 64); err != nil {
					return fmt.Errorf("threshold %q is not a whole number", args[1])
				}
			}
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				t := thresholds{rdb: conn.Client, hash: hash, key: args[0]}
				// The rule plays no part here, but a log must have one.
				cfg := slidinglog.Config{Limit: 1, Window: time.Minute, Thresholds: hash}
				client := rratelimiter.New(conn.Client, rratelimiter.WithCallTimeout(a.connect.CallTimeout()))
				defer closeClient(cmd.Context(), client)
				t.log = slidinglog.New(client, cfg)
				var answer threshold
				var err error
				switch {
				case forget:
					answer, err = t.reset(cmd.Context())
				case len(args) == 2:
					answer, err = t.set(cmd.Context(), n)
				default:
					answer, err = t.show(cmd.Context())
				}
				if err != nil {
					return err
				}
				return a.answer(answer, answer.String(), answer.Threshold != nil || forget)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&hash, "thresholds", commonHash, "`KEY` of the hash that has the thresholds")
	flags.BoolVar(&forget, "reset", false, "remove the threshold")
	return cmd
}

// threshold is a key's threshold in the hash, nil if it has none.
type threshold struct {
	Key       string `json:"key"`
	Threshold *int64 `json:"threshold"`
}

func (t threshold) String() string {
	if t.Threshold == nil {
		return words.Printable(t.Key) + " has no threshold"
	}
	return fmt.Sprintf("%s has a threshold of %d", words.Printable(t.Key), *t.Threshold)
}

// thresholds reads and writes the threshold of a key.
type thresholds struct {
	rdb       redis.UniversalClient
	log       *slidinglog.Limiter
	hash, key string
}

func (t thresholds) show(ctx context.Context) (threshold, error) {
	n, err := t.log.Threshold(ctx, t.key)
	if err != nil {
		return threshold{}, err
	}
	found, err := t.rdb.HExists(ctx, t.hash, t.key).Result()
	if err != nil || !found {
		return threshold{Key: t.key}, err
	}
	return threshold{t.key, &n}, nil
}

func (t thresholds) set(ctx context.Context, n int64) (threshold, error) {
	return threshold{t.key, &n}, t.log.SetThreshold(ctx, t.key, n)
}

func (t thresholds) reset(ctx context.Context) (threshold, error) {
	return threshold{Key: t.key}, t.log.ResetThreshold(ctx, t.key)
}
