package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/live"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// listed is one limiter of the list. If it is broken, the rest may be missing.
type listed struct {
	Name        string      `json:"name"`
	State       look.Health `json:"state,omitempty"` // "" if clients have permits of their own
	Rate        int64       `json:"rate"`
	IntervalMS  int64       `json:"interval_ms"`
	Type        string      `json:"type"`
	Origin      look.Origin `json:"origin,omitempty"`
	Ends        *look.Ends  `json:"ends,omitempty"` // of a rate that was set for a while
	KeepAliveMS int64       `json:"keep_alive_ms"`
	TTLMS       *int64      `json:"ttl_ms"`
	Broken      string      `json:"broken,omitempty"` // why it does not work
}

func newList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "ls [PATTERN]",
		SuggestFor: []string{"list"},
		Short:      "List limiters, all or those that match",
		Long: `List limiters: the hashes that have a rate, an interval and a type. PATTERN is
one of Redis' SCAN, such as 'api:*'. All keys of the database are walked, in
small steps that don't hold up the server.

Limiters that are broken come first, with what is wrong, then those that are used
up: no permit is free. A hash that is no limiter is listed as a broken one if it has
a rate, and two of rate, interval and type are as Redisson writes them. If each
client has permits of its own, the state is not shown: rrl show NAME shows it.

The origin of a rate is default if a program's WithDefault gave it, and the next
program with another default replaces it; override if it was set otherwise, until
rrl use-default takes it back; then taken back, until a program has another default.`,
		Example: `  rrl ls
  rrl ls 'api:*' --json`,
		Args: named("[PATTERN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				w := newWalk(conn, strings.Join(args, ""))
				stop := a.showProgress(w)
				found, err := interruptible(cmd.Context(), func() ([]*look.Short, error) { return w.run(cmd.Context()) })
				stop()
				if err != nil && len(found) == 0 {
					return err
				}
				limiters := listedOf(found)
				if a.out.JSON {
					return cmp.Or(err, output.WriteJSON(a.out, limiters))
				}
				return cmp.Or(err, a.printList(limiters))
			})
		},
	}
}

// walk looks for limiters among all keys of all masters.
type walk struct {
	conn    *connect.Connection
	pattern string

	mu    sync.Mutex
	found map[string]*look.Short // SCAN may show a key more than once
	keys  int64                  // about how many there are
	seen  int64                  // of these, about
}

func newWalk(conn *connect.Connection, pattern string) *walk {
	return &walk{conn: conn, pattern: pattern, found: map[string]*look.Short{}}
}

// run returns the limiters, broken and used up ones first, then by name, also beside an
// error: those of the masters that have answered.
func (w *walk) run(ctx context.Context) ([]*look.Short, error) {
	err := w.conn.ForEachMaster(ctx, w.walkNode)
	limiters := slices.SortedFunc(maps.Values(w.found), func(a, b *look.Short) int {
		return cmp.Or(cmp.Compare(attention(a), attention(b)), cmp.Compare(a.Name, b.Name))
	})
	if err != nil && len(limiters) > 0 {
		return limiters, fmt.Errorf("the list is not complete: %w", err)
	}
	return limiters, err
}

// attention returns a limiter's place in the list: those that need attention come first.
func attention(l *look.Short) int { return min(l.State.Rank(), look.Refusing.Rank()) }

func (w *walk) walkNode(ctx context.Context, node nodes.Client) error {
	// Only for the progress, and so not a right that this needs.
	size, err := node.DBSize(ctx).Result()
	if answered, _ := errors.AsType[redis.Error](err); err != nil && answered == nil {
		return err
	}
	w.add(nil, size, 0)
	return look.EachPage(ctx, w.conn.Client, node, w.pattern, func(keys int, found []*look.Short) { w.add(found, 0, int64(keys)) })
}

func (w *walk) add(page []*look.Short, keys, seen int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys += keys
	w.seen += seen
	for _, l := range page {
		w.found[l.Name] = l
	}
}

func listedOf(found []*look.Short) []listed {
	all := []listed{}
	for _, f := range found {
		l := listed{Name: f.Name, State: f.State, Broken: f.Broken, TTLMS: millis(f.TTL)}
		if !f.NoRate {
			l.Rate, l.IntervalMS, l.Type, l.KeepAliveMS = f.Rate, f.IntervalMS, f.TypeName(), f.KeepAliveMS
			l.Origin, l.Ends = f.Origin, f.End()
		}
		all = append(all, l)
	}
	return all
}

func (a *app) printList(limiters []listed) error {
	if len(limiters) == 0 {
		_, err := fmt.Fprintln(a.out, "no limiters")
		return err
	}
	rows := [][]string{{"NAME", "STATE", "RATE", "ORIGIN", "TYPE", "KEEP-ALIVE", "EXPIRES IN"}}
	var broken strings.Builder
	now := time.Now()
	for _, l := range limiters {
		row := []string{
			live.Safe(l.Name), l.State.Signed(), words.ShortRate(l.Rate, l.IntervalMS), l.Ends.Or(l.Origin, now), l.Type,
			formatKeepAlive(l.KeepAliveMS), formatTTL(l.TTLMS),
		}
		if l.Type == "" {
			row[2], row[3], row[4] = "-", "-", "-"
		}
		if l.Broken != "" {
			fmt.Fprintf(&broken, "%s is broken: %s\n", row[0], live.Safe(l.Broken))
		}
		rows = append(rows, row)
	}
	text := table(rows, a.out.Width, func(row int, line string) string {
		if row == 0 {
			return line
		}
		return live.PaintHealth(a.out.Paint, limiters[row-1].State, line)
	})
	if broken.Len() > 0 {
		text += "\n" + broken.String()
	}
	_, err := io.WriteString(a.out, text)
	return err
}

const (
	maxNameColumn = 60 // a name moves the columns behind it at most this far
	minNameColumn = 12
)

// table puts rows below each other, in columns. The first holds names: on a
// terminal those are shortened that have no room, elsewhere they are in full, but
// only those of usual length make the column wider. paint colours a row's line.
func table(rows [][]string, terminal int, paint func(row int, line string) string) string {
	widths := make([]int, len(rows[0]))
	var others int
	for i := range widths {
		for _, row := range rows {
			if w := live.Width(row[i]); i > 0 || w <= maxNameColumn {
				widths[i] = max(widths[i], w)
			}
		}
		if i > 0 {
			others += 2 + widths[i]
		}
	}
	if terminal > 0 {
		for _, row := range rows {
			widths[0] = max(widths[0], live.Width(row[0]))
		}
		widths[0] = min(widths[0], max(terminal-others, minNameColumn))
	}
	var b strings.Builder
	for n, row := range rows {
		if terminal > 0 {
			row[0] = live.Fit(row[0], widths[0])
		}
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", max(widths[i]-live.Width(cell), 0)+2))
			}
		}
		b.WriteString(paint(n, line.String()) + "\n")
	}
	return b.String()
}
