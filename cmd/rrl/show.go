package main

import (
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/live"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func newShow(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:        "show NAME",
		SuggestFor: []string{"get", "info", "inspect", "describe", "status"},
		Short:      "Show a limiter: rate, free permits, permits in use",
		Long: `Show a limiter: its rate, times to live, free permits and the permits in use,
those that come back first first, who has them, and problems. It only reads.
Clients are known by the names that WithClientName gives them.

If each client has permits of its own, all clients are looked for by walking
the keys of the database, unless --client-id names one.

Exits 1 if there is no such limiter, no RateLimiter has the key, or it is broken:
its calls fail, or grant too many permits, until you repair it.`,
		Example: `  rrl show orders
  rrl show orders --limit 100 --json`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return errors.New("--limit is negative")
			}
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				found, err := interruptible(cmd.Context(), func() (*look.Inspection, error) {
					found, err := look.Inspect(cmd.Context(), conn.Client, args[0], look.OneClient(conn.Client, args[0], a.clientID))
					if err == nil {
						found.TellClients(cmd.Context(), conn.Client)
					}
					return found, err
				})
				if err != nil {
					return fmt.Errorf("show %q: %w", args[0], err)
				}
				for i := range found.States {
					st := &found.States[i]
					st.Permits = st.Permits[:min(limit, len(st.Permits))]
				}
				if a.out.JSON {
					err = output.WriteJSON(a.out, found)
				} else {
					err = a.printShown(found)
				}
				return yesOrNo(found.Rate != nil && found.Broken == "", err)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "show at most this many permits in use")
	return cmd
}

func (a *app) printShown(s *look.Inspection) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	name := a.out.Paint(output.Bold, words.Printable(s.Name))
	if !s.Exists {
		line("%s: no such limiter", name)
		return w.Flush()
	}
	if s.Foreign && s.Broken == "" {
		line("%s", s.Anomalies[0].Text)
		return w.Flush()
	}
	line("%s", name)
	line("  state\t%s", live.PaintHealth(a.out.Paint, s.State, stateText(s)))
	if s.Rate != nil {
		line("  rate\t%s", words.ShortRate(*s.Rate, *s.IntervalMS))
		line("  origin\t%s", s.Ends.Or(s.Origin, time.UnixMilli(s.NowMS)))
		line("  type\t%s", *s.Type)
		line("  keep-alive\t%s", formatKeepAlive(*s.KeepAliveMS))
	}
	line("  expires in\t%s", formatTTL(s.TTLMS))
	if s.Clients > 0 {
		line("  clients\t%d", s.Clients)
	}
	for i := range s.States {
		printState(line, &s.States[i], s.Rate)
	}
	if more := s.Clients - len(s.States); more > 0 {
		line("\nand %d more clients", more)
	}
	if s.NamesError != "" {
		line("\nthe names of clients are not known: %s", words.Printable(s.NamesError))
	}
	a.printAnomalies(line, s)
	return w.Flush()
}

// stateText returns the state, and why or until when it is so.
func stateText(s *look.Inspection) string {
	text := s.State.Signed()
	switch {
	case s.State == look.IsBroken:
		return text + ": " + live.Safe(s.Broken)
	case s.State == look.UsedUp && len(s.States) == 1:
		if more := s.States[0].UsedUpText(); more != "" {
			return text + ": " + more
		}
	case s.State == look.UsedUp:
		return text + " for a client"
	}
	return text
}

// printAnomalies prints the limiter's problems and, if one breaks it, what to do.
func (a *app) printAnomalies(line func(format string, args ...any), s *look.Inspection) {
	if len(s.Anomalies) == 0 {
		return
	}
	title := "problems"
	if s.Broken != "" {
		title = "broken"
	}
	line("\n%s", a.out.Paint(output.Red, title))
	for _, found := range s.Anomalies {
		line("  - %s", found.Text)
		if p := look.ProblemOf(found.Kind); p.Level == look.Error {
			line("    %s: %s", p.Reason, p.Advice)
		}
	}
}

// user names the owner of a share.
func user(s holders.Share) string {
	switch s.Kind {
	case holders.Named:
		return words.Printable(s.Name)
	case holders.Unnamed:
		return "a client without a name, " + s.Mark
	case holders.Redisson:
		return "Redisson"
	}
	return "clients that leave no mark"
}

// backText says in what time permits come back.
func backText(ms *int64, in string) string {
	switch {
	case ms == nil:
		return "unknown"
	case *ms <= 0:
		return "now"
	}
	return in + words.Soon(*ms)
}

func printState(line func(format string, args ...any), st *look.State, rate *int64) {
	line("")
	if st.ClientID != nil {
		name := ""
		if st.ClientName != "" {
			name = ", called " + words.Printable(st.ClientName)
		}
		line("client %s%s", words.Printable(*st.ClientID), name)
	}
	free := "unknown"
	if st.Free != nil {
		free = fmt.Sprintf("%d of %d", *st.Free, *rate)
	}
	value := "not set"
	if st.Value != nil {
		value = strconv.FormatInt(*st.Value, 10)
	}
	line("  free\t%s", free)
	if st.Debt > 0 {
		line("  debt\t%d: none is free until more than these have come back", st.Debt)
	}
	if st.Window {
		line("  window\tends in %s; kept by a Redisson before 3.13.3, which records no single permits", formatTTL(st.ValueTTLMS))
	}
	if st.Unreadable {
		line("  in use\tunknown")
		return
	}
	if more := st.UsedUpText(); more != "" && st.ClientID != nil {
		line("  used up\t%s", more)
	}
	line("  in use\t%d", st.InUse)
	for i := range st.Shares {
		s := &st.Shares[i]
		line("  - by %s\t%d, the first back %s", user(s.Share), s.Permits, backText(s.BackInMS, "in "))
	}
	line("  run out\t%d, to be reclaimed by coming requests", st.RunOut)
	line("  value\t%s, expires in %s", value, formatTTL(st.ValueTTLMS))
	line("  set\t%s, expires in %s", words.Plural(st.Members, "member"), formatTTL(st.PermitsTTLMS))
	if st.Merged > 0 {
		line("  merged\t%d of them, whose permits come back up to %s late", st.Merged, words.Soon(st.LateMS))
	}
	if len(st.Permits) == 0 {
		return
	}
	line("\n  BACK IN\tPERMITS\tLAYOUT\tID")
	for _, p := range st.Permits {
		line("  %s\t%d\t%s\t%s", backText(p.BackInMS, ""), p.Permits, p.Layout, p.ID)
	}
	if more := st.Members - int64(len(st.Permits)); more > 0 {
		line("  and %d more", more)
	}
}
