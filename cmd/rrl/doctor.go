package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/doctor"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// maxSearched is how many limiters doctor looks for clients of: it walks all keys
// each time.
const maxSearched = 3

func newDoctor(a *app) *cobra.Command {
	var opts doctor.Options
	var all, selfTest bool
	cmd := &cobra.Command{
		Use:   "doctor [PATTERN]",
		Short: "Look for what is wrong with the servers and the limiters on them",
		Long: `Look for what is wrong: the servers' version, the round trip, what this user
may do, eviction, memory, persistence, replicas, the cluster's state, the
servers' clocks, and the limiters whose name matches PATTERN: all of them if
--time allows, otherwise it says how many. Each finding says why it matters and
what to do.

It changes nothing, except that it tries a user's rights on three keys of its own,
whose names begin as PATTERN does, and removes them at once.

With --self-test it looks at no limiters, but proves within a minute, in keys of
its own, that the servers do what limiters need: scripts, the time in them, exact
integers, times to live, pipelines, WAIT, and a history of each kind of
limiter. For each thing that does not work it says what that costs. Run it before you
trust a server that says that it is compatible with Redis.

Exits 0 if all that was looked at is well, notes included; 1 if the worst is a
warning; 2 if it is an error, such as a limiter that is broken, or the servers
can't be asked.`,
		Example: `  rrl doctor
  rrl doctor 'api:*' --time 30s
  rrl doctor --all
  rrl doctor --self-test
  rrl doctor --json | jq '.findings[] | select(.level != "ok")'`,
		Args: named("[PATTERN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Time <= 0 || opts.Sample < 0 {
				return errors.New("--time is above 0, --sample at least 0")
			}
			for _, pair := range [][2]string{{"all", "time"}, {"all", "sample"}, {"self-test", "all"}, {"self-test", "time"}, {"self-test", "sample"}} {
				if err := exclusive(cmd.Flags(), pair[0], pair[1]); err != nil {
					return err
				}
			}
			if all {
				opts.Time, opts.Sample = 0, 0
			}
			if len(args) > 0 {
				opts.Pattern = args[0]
			}
			return a.diagnose(cmd.Context(), opts, selfTest)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opts.Sample, "sample", 0, "look at this many limiters at most (default: as many as the time allows)")
	flags.DurationVar(&opts.Time, "time", 5*time.Second, "look at limiters for this long at most")
	flags.BoolVar(&all, "all", false, "look at all limiters, however long that takes")
	flags.BoolVar(&selfTest, "self-test", false, "prove that the servers do what limiters need")
	return cmd
}

// diagnose prints what doctor finds, in limiters or by its self-test. The error says how
// bad the worst of it is.
func (a *app) diagnose(ctx context.Context, opts doctor.Options, selfTest bool) error {
	return a.withRedis(ctx, func(conn *connect.Connection) error {
		opts.Name = conn.Description()
		opts.Check = (&checker{conn: conn}).check
		run, grace := doctor.Run, time.Duration(0)
		if selfTest {
			run, grace = doctor.SelfTest, closeTimeout // to remove its keys
		}
		report, err := withinGrace(ctx, grace, func() (*doctor.Report, error) { return run(ctx, conn.Client, opts) })
		if err != nil {
			return err
		}
		if a.out.JSON {
			err = output.WriteJSON(a.out, report)
		} else {
			_, err = fmt.Fprint(a.out, doctor.Text(report, a.columns(), a.out.Paint))
		}
		if err != nil {
			return err
		}
		switch report.Worst {
		case doctor.Error:
			return errBad
		case doctor.Warning:
			return errNo
		}
		return nil
	})
}

// checker looks at limiters for doctor.
type checker struct {
	conn     *connect.Connection
	searched atomic.Int32
}

// noClient is a client's id that no client has.
const noClient = "rrl-doctor"

func (c *checker) inspect(ctx context.Context, name, clientID string) (*look.Inspection, error) {
	return look.Inspect(ctx, c.conn.Client, name, look.OneClient(c.conn.Client, name, clientID))
}

func (c *checker) check(ctx context.Context, name string) (doctor.Checked, error) {
	found, err := c.inspect(ctx, name, noClient)
	if err != nil {
		return doctor.Checked{}, err
	}
	checked := doctor.Checked{}
	if found.PerClient() {
		if c.searched.Add(1) > maxSearched {
			checked.Partly = true
		} else if found, err = c.inspect(ctx, name, ""); err != nil {
			return doctor.Checked{}, err
		}
	}
	checked.State = found.State
	for _, anomaly := range found.Anomalies {
		checked.Problems = append(checked.Problems, doctor.Problem{Kind: anomaly.Kind, Text: anomaly.Text})
	}
	var stay int
	for i := range found.States {
		st := &found.States[i]
		if st.ClientID != nil && st.Value != nil && st.ValueTTLMS == nil {
			stay++
		}
		for _, p := range st.Permits {
			if p.Known() && !slices.Contains(checked.Layouts, p.Layout) {
				checked.Layouts = append(checked.Layouts, p.Layout)
			}
		}
	}
	if stay > 0 {
		checked.Problems = append(checked.Problems, doctor.Problem{
			Kind: "client_no_ttl", Text: "keys of " + words.Plural(int64(stay), "client") + " have no time to live",
		})
	}
	return checked, nil
}
