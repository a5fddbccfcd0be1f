package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
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
			rdb, err := a.connect()
			if err != nil {
				return err
			}
			defer func() { _ = rdb.Close() }()
			limiters, err := list(cmd.Context(), rdb, strings.Join(args, ""))
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, limiters)
			}
			return a.printList(limiters)
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
		answers[i] = pipe.HMGet(ctx, name, "rate", "interval", "type", "keepAliveTime")
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

// fields are the fields of a limiter's hash, in their own units.
type fields struct {
	rate, intervalMS, rateType, keepAliveMS int64
}

// parseFields reads rate, interval, type and keepAliveTime as HMGET answers
// them. The last may be missing.
func parseFields(answer []any) (fields, error) {
	names := [...]string{"rate", "interval", "type", "keepAliveTime"}
	if len(answer) != len(names) {
		return fields{}, errors.New("no fields")
	}
	var n [len(names)]int64
	for i, name := range names {
		text, ok := answer[i].(string)
		if !ok {
			if name == "keepAliveTime" {
				continue
			}
			return fields{}, fmt.Errorf("field %s is missing", name)
		}
		var err error
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil || n[i] < 0 {
			return fields{}, fmt.Errorf("field %s is %q, not a whole number from 0", name, text)
		}
	}
	if n[2] > int64(rratelimiter.PerClient) {
		return fields{}, fmt.Errorf("field type is %d, neither 0 nor 1", n[2])
	}
	return fields{rate: n[0], intervalMS: n[1], rateType: n[2], keepAliveMS: n[3]}, nil
}

// typeName is Redisson's name of the type.
func (f fields) typeName() string { return rratelimiter.RateType(f.rateType).String() }

func (a *app) printList(limiters []listed) error {
	if len(limiters) == 0 {
		_, err := fmt.Fprintln(a.stdout, "no limiters")
		return err
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tRATE\tTYPE\tKEEP-ALIVE\tEXPIRES IN")
	for _, l := range limiters {
		keepAlive := "-"
		if l.KeepAliveMS > 0 {
			keepAlive = formatMillis(l.KeepAliveMS)
		}
		_, _ = fmt.Fprintf(w, "%s\t%d/%s\t%s\t%s\t%s\n",
			printable(l.Name), l.Rate, formatMillis(l.IntervalMS), l.Type, keepAlive, formatTTL(l.TTLMS))
	}
	return w.Flush()
}

func formatMillis(ms int64) string {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return formatDuration(time.Duration(ms) * time.Millisecond)
}

func formatTTL(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return formatMillis(*ms)
}

// printable quotes a name that a terminal would not show as it is.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
