package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// maxClients is how many clients are read at most.
const maxClients = 100

// shown is all that show tells. Rate, interval, type and keep-alive time are
// nil where they can't be read.
type shown struct {
	Name        string   `json:"name"`
	Exists      bool     `json:"exists"`
	Rate        *int64   `json:"rate"`
	IntervalMS  *int64   `json:"interval_ms"`
	Type        *string  `json:"type"`
	KeepAliveMS *int64   `json:"keep_alive_ms"`
	TTLMS       *int64   `json:"ttl_ms"`
	Clients     int      `json:"clients"` // that have keys of their own, and were looked for
	States      []state  `json:"states"`
	NamesError  string   `json:"names_error,omitempty"` // why no client is called by its name
	Anomalies   findings `json:"anomalies"`

	nowMS int64
}

func newShow(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a limiter: rate, free permits, permits in use",
		Long: `Show a limiter: its rate, times to live, free permits and the permits in use,
oldest first, who has them, and whatever is not as it should be. It only reads.
Clients are known by the names that WithClientName gives them.

Where each client has permits of its own, all clients are looked for by walking
the keys of the database, unless --client-id names one.

Exits 1 where there is no such limiter.`,
		Example: `  rrl show orders
  rrl show orders --limit 100 --json`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return errors.New("--limit is negative")
			}
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				found, err := interruptible(cmd.Context(), func() (*shown, error) {
					found, err := inspect(cmd.Context(), conn, args[0], a.clientID)
					if err == nil {
						found.tellClients(cmd.Context(), conn)
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
				return yesOrNo(found.Exists, err)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "show at most this many permits in use")
	return cmd
}

// inspect reads a limiter and judges it.
func inspect(ctx context.Context, conn *connect.Connection, name, clientID string) (*shown, error) {
	k := redisson.KeysOf(name, clientID)
	shared, err := readSnapshot(ctx, conn, k.Config, k.Value, k.Permits)
	if err != nil {
		return nil, err
	}
	sharedState := shared.value.exists() || shared.permits.exists()
	found := &shown{
		Name: name, Exists: shared.config.exists() || sharedState,
		TTLMS: millis(shared.config.ttl), States: []state{}, Anomalies: findings{}, nowMS: shared.nowMS,
	}
	if !found.Exists {
		return found, nil
	}
	var cfg *fields
	parsed, err := parseFields(shared.fields)
	if err == nil {
		cfg = &parsed
		typeName := parsed.typeName()
		found.Rate, found.IntervalMS, found.Type, found.KeepAliveMS = &parsed.rate, &parsed.intervalMS, &typeName, &parsed.keepAliveMS
	}
	found.Anomalies.checkConfig(shared, err)
	if cfg != nil && parsed.rateType == int64(rratelimiter.PerClient) {
		if sharedState {
			found.Anomalies.add("keys_of_other_type", "keys %s, %s are left from when all clients shared the permits",
				k.Value, k.Permits)
		}
		return found, found.inspectClients(ctx, conn, name, clientID, cfg)
	}
	st := newState(shared, cfg, nil)
	found.Anomalies.checkState(shared, &st, cfg)
	found.States = append(found.States, st)
	return found, nil
}

// tellClients says whose the permits are, and who the clients. Who may not read the names
// sees the rest.
func (f *shown) tellClients(ctx context.Context, conn *connect.Connection) {
	if len(f.States) == 0 {
		return
	}
	names, err := readNames(ctx, conn, f.nowMS)
	if err != nil {
		f.NamesError = fmt.Sprintf("key %s can't be read: %v", clients.Key, err)
	}
	for i := range f.States {
		f.States[i].tell(names)
	}
}

// readNames reads the names of Clients that are known at a time in epoch ms.
func readNames(ctx context.Context, conn *connect.Connection, nowMS int64) (names clients.Names, err error) {
	err = conn.OnNode(ctx, clients.Key, func(ctx context.Context, node *redis.Client) (err error) {
		names, err = clients.Read(ctx, node, nowMS)
		return err
	})
	return names, err
}

// inspectClients adds the states of one client, or of all.
func (f *shown) inspectClients(ctx context.Context, conn *connect.Connection, name, clientID string, cfg *fields) error {
	ids := []string{clientID}
	if clientID == "" {
		var err error
		if ids, err = findClients(ctx, conn, name); err != nil {
			return err
		}
	}
	f.Clients = len(ids)
	for _, id := range ids[:min(len(ids), maxClients)] {
		k := redisson.KeysOf(name, id)
		snap, err := readSnapshot(ctx, conn, k.Config, k.ClientValue, k.ClientPermits)
		if err != nil {
			return err
		}
		st := newState(snap, cfg, &id)
		f.Anomalies.checkState(snap, &st, cfg)
		f.States = append(f.States, st)
	}
	return nil
}

func (a *app) printShown(s *shown) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	name := a.out.Paint(output.Bold, output.Printable(s.Name))
	if !s.Exists {
		line("%s: no such limiter", name)
		return w.Flush()
	}
	line("%s", name)
	if s.Rate != nil {
		line("  rate\t%s", formatRate(*s.Rate, *s.IntervalMS))
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
		line("\nwhat clients are called is not known: %s", output.Printable(s.NamesError))
	}
	if len(s.Anomalies) > 0 {
		line("\n%s", a.out.Paint(output.Red, "not as it should be"))
	}
	for _, found := range s.Anomalies {
		line("  - %s", found.Text)
	}
	return w.Flush()
}

// user tells who has a share.
func user(s clients.Share) string {
	switch s.Kind {
	case clients.Named:
		return output.Printable(s.Name)
	case clients.Unnamed:
		return "a client without a name, " + s.Mark
	case clients.Redisson:
		return "Redisson"
	}
	return "clients that leave no mark"
}

func printState(line func(format string, args ...any), st *state, rate *int64) {
	line("")
	if st.ClientID != nil {
		name := ""
		if st.ClientName != "" {
			name = ", called " + output.Printable(st.ClientName)
		}
		line("client %s%s", output.Printable(*st.ClientID), name)
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
	if st.Window {
		line("  window\tends in %s; kept by a Redisson before 3.13.3, which records no single permits", formatTTL(st.ValueTTLMS))
	}
	line("  in use\t%d", st.InUse)
	for _, s := range st.Shares {
		line("  - by %s\t%d", user(s), s.Permits)
	}
	line("  run out\t%d, to be reclaimed by coming requests", st.RunOut)
	line("  value\t%s, expires in %s", value, formatTTL(st.ValueTTLMS))
	line("  set\t%s, expires in %s", output.Plural(st.Members, "member"), formatTTL(st.PermitsTTLMS))
	if len(st.Permits) == 0 {
		return
	}
	line("\n  AGE\tBACK IN\tPERMITS\tLAYOUT\tID")
	for _, p := range st.Permits {
		back := "unknown"
		if p.BackInMS != nil {
			back = "now"
			if *p.BackInMS > 0 {
				back = output.Soon(*p.BackInMS)
			}
		}
		line("  %s\t%s\t%d\t%s\t%s", output.Ago(p.AgeMS), back, p.Permits, p.Layout, p.ID)
	}
	if more := st.Members - int64(len(st.Permits)); more > 0 {
		line("  and %d more", more)
	}
}
