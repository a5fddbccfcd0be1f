package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/live"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

const (
	minInterval = 100 * time.Millisecond
	minReads    = 100
	// pipedColumns is how wide tables are without a terminal.
	pipedColumns = 120
	pipedRows    = 20

	watchInterval = 500 * time.Millisecond
)

// pace is how often live commands sample, and how many times.
type pace struct {
	interval time.Duration
	count    int
	once     bool
}

func (p *pace) flags(f *pflag.FlagSet, interval time.Duration) {
	f.DurationVar(&p.interval, "interval", interval, "how often to sample, at least "+minInterval.String())
	f.IntVar(&p.count, "count", 0, "print this many samples, then end (default: go on)")
	f.BoolVar(&p.once, "once", false, "print one sample, as --count 1")
}

func (p *pace) check() error {
	switch {
	case p.interval < minInterval:
		return fmt.Errorf("--interval %v: at least %v", p.interval, minInterval)
	case p.count < 0:
		return errors.New("--count is negative")
	case p.once:
		p.count = 1
	}
	return nil
}

func newTop(a *app) *cobra.Command {
	top := live.Top{}
	var p pace
	cmd := &cobra.Command{
		Use:   "top [PATTERN]",
		Short: "Show limiters live, those in most use first",
		Long: `Show limiters live: how much of each is in use and free, how many permits were
granted in the last second, and who took those in use, if known.
PATTERN is one of Redis' SCAN, such as 'api:*'. Limiters that are broken, as ls
lists them, come first in the order by use.

On a terminal it draws a screen: the arrows, j and k, page keys, g and G scroll,
enter opens a limiter as watch shows it and q or escape comes back; q quits, s changes
the order, r reverses it, / filters by a part of the name while you type, p pauses.
Without a terminal, or with --count, it prints a table for each sample, and with
--json an object on each line.

It never sends more than about --reads commands a second, a SCAN counted as 50:
it walks all keys again and again in pages, reads a little of each limiter that it
finds, and reads in full only those that it shows. The first line says how far
the first walk is, the second what this costs the server.`,
		Example: `  rrl top
  rrl top 'api:*' --sort granted
  rrl top --json --once --rows 5`,
		Args: named("[PATTERN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(p.check(), top.View.Check()); err != nil {
				return err
			}
			if top.Reads < minReads || top.View.Rows < 0 {
				return fmt.Errorf("--reads is at least %d, --rows at least 0", minReads)
			}
			top.Interval, top.Count = p.interval, p.count
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				top.Reader = look.NewReader(conn.Client, strings.Join(args, ""))
				top.Reader.Named(namesOn(conn))
				top.Explain = conn.Explain
				top.Open = func(name string) *live.Watch { return a.watch(conn, name, pace{interval: watchInterval}) }
				if screen := a.screen(p); screen != nil {
					defer screen.Close()
					return top.Show(cmd.Context(), screen, a.out.Paint)
				}
				if top.View.Rows == 0 {
					top.View.Rows = pipedRows
				}
				return untilStopped(cmd.Context(), func() error { return top.Print(cmd.Context(), &a.out, a.columns()) })
			})
		},
	}
	flags := cmd.Flags()
	p.flags(flags, time.Second)
	flags.StringVar(&top.View.Sort, "sort", "use", "`ORDER`: "+strings.Join(look.Sorts(), ", "))
	flags.BoolVar(&top.View.Reverse, "reverse", false, "turn the order round")
	flags.StringVar(&top.View.Filter, "filter", "", "only limiters with this `TEXT` in their name")
	flags.IntVar(&top.View.Rows, "rows", 0, "limiters shown (default: what fits, "+strconv.Itoa(pipedRows)+" without a terminal)")
	flags.IntVar(&top.Reads, "reads", 3000, "send about so many commands a second at most")
	return cmd
}

func newWatch(a *app) *cobra.Command {
	var p pace
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Show a limiter's free permits and grants as a live graph",
		Long: `Show a limiter's free permits and what it grants, as a graph that moves on with
each sample; q quits. If the output is not a terminal, it prints a line for each
sample, and with --json an object on each line. Each sample costs the server about
seven short commands.

Grants are counted from what Redis holds when a sample is taken: choose an
--interval shorter than the limiter's.

If each client has permits of its own, free permits are those of the client
with the fewest; --client-id names one.

Exits 1 if there is no such limiter.`,
		Example: `  rrl watch orders
  rrl watch orders --interval 200ms --count 50 --json`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			err := a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				w := a.watch(conn, args[0], p)
				if screen := a.screen(p); screen != nil {
					defer screen.Close()
					return w.Show(cmd.Context(), screen, a.out.Paint)
				}
				return untilStopped(cmd.Context(), func() error { return w.Print(cmd.Context(), &a.out) })
			})
			if errors.Is(err, live.ErrGone) {
				return a.answer(struct {
					Name string `json:"name"`
					Gone bool   `json:"gone"`
				}{args[0], true}, live.Safe(args[0])+": no such limiter", false)
			}
			return err
		},
	}
	p.flags(cmd.Flags(), watchInterval)
	return cmd
}

// watch returns what watches a limiter.
func (a *app) watch(conn *connect.Connection, name string, p pace) *live.Watch {
	return &live.Watch{
		Watcher:  look.Watcher{Client: conn.Client, Name: name, ClientID: a.clientID, Names: namesOn(conn)},
		Interval: p.interval, Count: p.count, ASCII: !a.unicode(), Explain: conn.Explain,
	}
}

// namesOn returns what reads the names of Clients.
func namesOn(conn *connect.Connection) func(context.Context) (look.Names, error) {
	return func(ctx context.Context) (look.Names, error) {
		return look.ReadNames(ctx, conn.Client, time.Now().UnixMilli())
	}
}

// screen takes over the terminal, or returns nil if the output is none, can't
// be drawn on, or should still be there when the command has ended.
func (a *app) screen(p pace) *live.Screen {
	if a.out.JSON || p.count > 0 || a.connect.Getenv("TERM") == "dumb" {
		return nil
	}
	return live.OpenScreen(a.out.Writer)
}

// stopTime is how long a sample may take to end that was under way at Ctrl-C.
const stopTime = 500 * time.Millisecond

// untilStopped returns what show returns, or nil soon after ctx has ended: Ctrl-C
// is how these commands end, also if a server hangs.
func untilStopped(ctx context.Context, show func() error) error {
	done := make(chan error, 1)
	go func() { done <- show() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(stopTime):
		return nil
	}
}

// columns is how wide tables are.
func (a *app) columns() int {
	if a.out.Width > 0 {
		return a.out.Width
	}
	if n, err := strconv.Atoi(a.connect.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return pipedColumns
}

// unicode reports whether the terminal takes more than ASCII, as far as the
// environment says.
func (a *app) unicode() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := a.connect.Getenv(name); locale != "" {
			locale = strings.ToLower(locale)
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return true
}
