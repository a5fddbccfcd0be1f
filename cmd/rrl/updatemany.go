package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/live"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/rates"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	// pageNames is how many names on standard input are looked up at once.
	pageNames = 500
	fromStdin = "-"
)

// updateMany changes the rates of all limiters that a pattern or standard input names.
type updateMany struct {
	app   *app
	flags *rateFlags
	cmd   *cobra.Command
	cfg   rratelimiter.Config

	yes, dryRun bool
}

// try changes the limiters that the argument names if these are many, or nothing is to be
// changed, and reports whether it did. A limiter of that very name comes first, so that
// those can be changed whose name looks like a pattern.
func (u *updateMany) try(ctx context.Context, name string) (done bool, err error) {
	many := name == fromStdin || strings.ContainsAny(name, `*?[`)
	if !many && !u.dryRun {
		return false, nil
	}
	err = u.app.withRedis(ctx, func(conn *connect.Connection) error {
		if many {
			client := u.app.newClient(conn.Client, "")
			defer closeClient(ctx, client)
			there, err := client.RateLimiter(name).Exists(ctx)
			if err != nil {
				return err
			}
			many = !there
		}
		if !many && !u.dryRun {
			return nil
		}
		done = true
		return u.run(ctx, conn, name, many)
	})
	return done, err
}

// run plans the change, asks, and makes it.
func (u *updateMany) run(ctx context.Context, conn *connect.Connection, name string, many bool) error {
	found, missing, err := u.find(ctx, conn, name, many)
	if err != nil {
		return err
	}
	client := u.app.newClient(conn.Client, "")
	defer closeClient(ctx, client)
	set := u.setter(client)
	plan := u.plan(found, set)
	plan.Missing = len(missing)
	a := u.app
	switch {
	case plan.Found == 0:
		return a.answer(plan, "no limiters, nothing changed", false)
	case u.dryRun || plan.Planned() == 0:
		plan.DryRun = u.dryRun
		return plan.result(a.out.Print(plan, plan.text()))
	case !u.yes:
		if err := u.ask(plan, name); err != nil {
			return err
		}
	case !a.out.JSON:
		fmt.Fprintln(a.out, plan.text())
	}
	err = u.change(ctx, conn, plan, set)
	return plan.result(errors.Join(a.out.Print(plan, plan.report(err != nil)), err))
}

// find returns the limiters that the argument names, and names of none.
func (u *updateMany) find(ctx context.Context, conn *connect.Connection, name string, many bool) (
	found []*look.Short, missing []string, err error,
) {
	if many && name != fromStdin {
		w := newWalk(conn, name)
		stop := u.app.showProgress(w)
		defer stop()
		found, err = interruptible(ctx, func() ([]*look.Short, error) { return w.run(ctx) })
		return found, nil, err // a list that is not complete is an error too
	}
	names := []string{name}
	if many {
		if names, err = readNames(u.cmd.InOrStdin()); err != nil {
			return nil, nil, err
		}
	}
	for page := range slices.Chunk(names, pageNames) {
		limiters, err := interruptible(ctx, func() ([]*look.Short, error) { return look.ReadShort(ctx, conn.Client, page) })
		if err != nil {
			return nil, nil, err
		}
		found = append(found, limiters...)
		for _, name := range page {
			if !slices.ContainsFunc(limiters, func(l *look.Short) bool { return l.Name == name }) {
				missing = append(missing, name)
			}
		}
	}
	return found, missing, nil
}

// readNames reads names, one a line, each once.
func readNames(from io.Reader) (names []string, err error) {
	seen := map[string]bool{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if name := strings.TrimSuffix(lines.Text(), "\r"); name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("names on standard input: %w", err)
	}
	return names, nil
}

// change makes the planned changes. It ends early if ctx does, or Redis does not decide;
// then it can be run again.
func (u *updateMany) change(ctx context.Context, conn *connect.Connection, plan *ratePlan, set rates.Setter) error {
	if width, terminal := output.Width(u.app.stderr); terminal {
		defer drawProgress(u.app.stderr, func() string { return plan.progress(width) }, progressAfter)()
	}
	for plan.Left() > 0 {
		if err := plan.Step(ctx, conn.Client, set); err != nil {
			return err
		}
	}
	return nil
}

// setter sets the rate of one of the limiters.
func (u *updateMany) setter(client *rratelimiter.Client) rates.Setter {
	opts := u.flags.options()
	return func(ctx context.Context, c rates.Change) (bool, error) {
		return client.RateLimiter(c.Name).UpdateRate(ctx, c.Config, opts...)
	}
}

// ask shows the plan and has the user agree.
func (u *updateMany) ask(plan *ratePlan, name string) error {
	limiters := words.Plural(int64(plan.Planned()), "limiter")
	if !u.app.canAsk() || name == fromStdin {
		return fmt.Errorf("%s would change: --yes changes them, --dry-run shows which", limiters)
	}
	fmt.Fprintln(u.app.out, plan.text())
	return u.app.ask(u.cmd, "change "+limiters)
}

// ratePlan is what will be changed, and then what was.
type ratePlan struct {
	*rates.Plan

	Missing int  `json:"missing"` // names of no limiter
	DryRun  bool `json:"dry_run"`

	reset bool
	span  span // for how long; 0: until it is changed
}

// plan keeps of each limiter what the flags don't name.
func (u *updateMany) plan(found []*look.Short, set rates.Setter) *ratePlan {
	p := &ratePlan{reset: len(u.flags.options()) == 0, span: u.flags.span}
	given := u.cmd.Flags()
	p.Plan = rates.NewPlan(found, func(now rratelimiter.Config) rratelimiter.Config {
		to := u.cfg
		if !given.Changed("type") {
			to.Type = now.Type
		}
		if !given.Changed("keep-alive") {
			to = rates.Keep(now, to)
		}
		return to
	}, p.reset || p.span > 0, set, func(name string, err error) string {
		return strings.TrimPrefix(inWords(err), words.Printable(name)+": ")
	})
	return p
}

func (p *ratePlan) progress(width int) string {
	changed, failed := p.Counts()
	text := fmt.Sprintf("%d of %s changed, %d failed", changed, words.Plural(int64(p.Planned()), "limiter"), failed)
	return text[:min(len(text), max(width-1, 0))]
}

// text is the plan for people.
func (p *ratePlan) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s would change", p.Planned(), words.Plural(int64(p.Found), "limiter"))
	if p.span > 0 {
		b.WriteString(" for " + p.span.String())
	}
	if p.Already > 0 {
		fmt.Fprintf(&b, ", %d have that rate already", p.Already)
	}
	if p.Missing > 0 {
		fmt.Fprintf(&b, ", %s of no limiter", words.Plural(int64(p.Missing), "name"))
	}
	if p.Failed > 0 {
		fmt.Fprintf(&b, ", %d can't have it", p.Failed)
	}
	if p.reset {
		b.WriteString("; permits in use are forgotten")
	} else if p.Over > 0 {
		fmt.Fprintf(&b, "; %d with more permits in use than that", p.Over)
	}
	for _, c := range p.First {
		fmt.Fprintf(&b, "\n  %s  %s -> %s", live.Safe(c.Name), c.From, c.To)
	}
	if more := p.Planned() - len(p.First); more > 0 {
		fmt.Fprintf(&b, "\n  and %d more", more)
	}
	p.failures(&b)
	return b.String()
}

// failures lists limiters that did not get their rate, and why.
func (p *ratePlan) failures(b *strings.Builder) {
	for _, f := range p.Failures {
		fmt.Fprintf(b, "\n  %s: %s", live.Safe(f.Name), f.Error)
	}
	if more := p.Failed - len(p.Failures); more > 0 {
		fmt.Fprintf(b, "\n  and %d more", more)
	}
}

// result ends the command once the plan was printed, if err is nil.
func (p *ratePlan) result(err error) error {
	if err == nil && p.Failed > 0 {
		return errBad
	}
	return err
}

// report lists the changes; stopped says that some were not tried.
func (p *ratePlan) report(stopped bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "changed %d of %s", p.Changed, words.Plural(int64(p.Meant()), "limiter"))
	if p.Gone > 0 {
		fmt.Fprintf(&b, ", %d were deleted meanwhile", p.Gone)
	}
	if p.Meanwhile > 0 {
		fmt.Fprintf(&b, ", %d got another rate meanwhile and keep it", p.Meanwhile)
	}
	if p.Failed > 0 {
		fmt.Fprintf(&b, ", %d failed", p.Failed)
	}
	if stopped {
		b.WriteString("; run it again for the rest")
	}
	p.failures(&b)
	return b.String()
}
