package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

// scanCount is how many keys one SCAN looks at.
const scanCount = 500

// listed is one limiter of the list.
type listed struct {
	Name        string `json:"name"`
	Rate        int64  `json:"rate"`
	IntervalMS  int64  `json:"interval_ms"`
	Type        string `json:"type"`
	KeepAliveMS int64  `json:"keep_alive_ms"`
	TTLMS       *int64 `json:"ttl_ms"`
}

func newList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List limiters, all or those whose name matches",
		Long: `List limiters: the hashes that have a rate, an interval and a type. PATTERN is
one of Redis' SCAN, such as 'api:*'. All keys of the database are walked, in
small steps that don't hold up the server.`,
		Example: `  rrl ls
  rrl ls 'api:*' --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRedis(func(rdb *redis.Client) error {
				limiters, err := list(cmd.Context(), rdb, strings.Join(args, ""))
				if err != nil {
					return err
				}
				if a.out.JSON {
					return output.WriteJSON(a.out, limiters)
				}
				return a.printList(limiters)
			})
		},
	}
}

// list returns the limiters whose name matches, sorted by name.
func list(ctx context.Context, rdb *redis.Client, pattern string) ([]listed, error) {
	// SCAN may show a key more than once.
	found := map[string]listed{}
	var cursor uint64
	for {
		names, next, err := rdb.ScanType(ctx, cursor, pattern, scanCount, "hash").Result()
		if err != nil {
			return nil, fmt.Errorf("list limiters: %w", err)
		}
		page, err := readConfigs(ctx, rdb, names)
		if err != nil {
			return nil, fmt.Errorf("list limiters: %w", err)
		}
		for _, l := range page {
			found[l.Name] = l
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	limiters := make([]listed, 0, len(found))
	for _, l := range found {
		limiters = append(limiters, l)
	}
	slices.SortFunc(limiters, func(a, b listed) int { return cmp.Compare(a.Name, b.Name) })
	return limiters, nil
}

// readConfigs returns those of the hashes that are limiters.
func readConfigs(ctx context.Context, rdb *redis.Client, names []string) ([]listed, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := rdb.Pipeline()
	answers := make([]*redis.SliceCmd, len(names))
	ttls := make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		answers[i] = pipe.HMGet(ctx, name, fieldNames...)
		ttls[i] = pipe.PTTL(ctx, name)
	}
	// A key may have become another type since SCAN saw it.
	if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, err
	}
	var limiters []listed
	for i, name := range names {
		f, err := parseFields(answers[i].Val())
		if err != nil {
			continue
		}
		limiters = append(limiters, listed{
			Name: name, Rate: f.rate, IntervalMS: f.intervalMS, Type: f.typeName(),
			KeepAliveMS: f.keepAliveMS, TTLMS: millis(ttls[i].Val()),
		})
	}
	return limiters, nil
}

func (a *app) printList(limiters []listed) error {
	if len(limiters) == 0 {
		_, err := fmt.Fprintln(a.out, "no limiters")
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tRATE\tTYPE\tKEEP-ALIVE\tEXPIRES IN")
	for _, l := range limiters {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", output.Printable(l.Name), formatRate(l.Rate, l.IntervalMS), l.Type,
			formatKeepAlive(l.KeepAliveMS), formatTTL(l.TTLMS))
	}
	return w.Flush()
}
