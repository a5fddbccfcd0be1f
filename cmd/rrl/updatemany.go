package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/live"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	updatesAtOnce = 32
	// firstNames is how many limiters a plan or a report names.
	firstNames = 10
	// maxUnavailable is after how many calls that Redis did not decide the rest is left.
	maxUnavailable = 20
	fromStdin      = "-"
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
	plan := u.plan(found)
	plan.Missing = len(missing)
	a := u.app
	switch {
	case plan.Found == 0:
		return a.answer(plan, "no limiters, nothing changed", false)
	case u.dryRun || len(plan.todo) == 0:
		plan.DryRun = u.dryRun
		return a.out.Print(plan, plan.text())
	case !u.yes:
		if err := u.ask(plan, name); err != nil {
			return err
		}
	case !a.out.JSON:
		fmt.Fprintln(a.out, plan.text())
	}
	err = u.change(ctx, conn, plan)
	if printed := a.out.Print(plan, plan.report(err != nil)); printed != nil || err != nil {
		return errors.Join(printed, err)
	}
	if plan.Failed > 0 {
		return errBad
	}
	return nil
}

// find returns the limiters that the argument names, and names of none.
func (u *updateMany) find(ctx context.Context, conn *connect.Connection, name string, many bool) (
	found []listed, missing []string, err error,
) {
	if many && name != fromStdin {
		w := newWalk(conn, name)
		stop := u.app.showProgress(w)
		defer stop()
		found, err = interruptible(ctx, func() ([]listed, error) { return w.run(ctx) })
		return found, nil, err // a list that is not complete is an error too
	}
	names := []string{name}
	if many {
		if names, err = readNames(u.cmd.InOrStdin()); err != nil {
			return nil, nil, err
		}
	}
	for page := range slices.Chunk(names, scanCount) {
		limiters, err := interruptible(ctx, func() ([]listed, error) { return readConfigs(ctx, conn.Client, page) })
		if err != nil {
			return nil, nil, err
		}
		found = append(found, limiters...)
		for _, name := range page {
			if !slices.ContainsFunc(limiters, func(l listed) bool { return l.Name == name }) {
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

// change makes the planned changes, some at a time. It ends early if ctx does, or Redis
// does not decide; then it can be run again.
func (u *updateMany) change(ctx context.Context, conn *connect.Connection, plan *ratePlan) error {
	client := u.app.newClient(conn.Client, "")
	defer closeClient(ctx, client)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if width, terminal := output.Width(u.app.stderr); terminal {
		defer drawProgress(u.app.stderr, func() string { return plan.progress(width) }, progressAfter)()
	}
	todo := make(chan rateChange)
	var group sync.WaitGroup
	for range updatesAtOnce {
		group.Go(func() {
			for c := range todo {
				set, err := client.RateLimiter(c.Name).UpdateRate(ctx, c.to, u.flags.options()...)
				if plan.done(c.Name, set, err) >= maxUnavailable {
					cancel(fmt.Errorf("stopped after %d calls that failed: %w", maxUnavailable, err))
				}
			}
		})
	}
	for _, c := range plan.todo {
		select {
		case todo <- c:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(todo)
	group.Wait()
	return context.Cause(ctx)
}

// ask shows the plan and has the user agree.
func (u *updateMany) ask(plan *ratePlan, name string) error {
	a := u.app
	in, ok := u.cmd.InOrStdin().(*os.File)
	if ok {
		_, ok = output.Width(in)
	}
	if !ok || name == fromStdin || a.out.JSON {
		return fmt.Errorf("%s would change: --yes changes them, --dry-run shows which", words.Plural(int64(len(plan.todo)), "limiter"))
	}
	fmt.Fprintf(a.out, "%s\nchange %s? [y/N] ", plan.text(), words.Plural(int64(len(plan.todo)), "limiter"))
	line, err := bufio.NewReader(in).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	fmt.Fprintln(a.out, "nothing changed")
	return errNo
}

// rateChange is one limiter that gets another rate.
type rateChange struct {
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`

	to rratelimiter.Config
}

type rateFailure struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// ratePlan is what is to be changed, and then what was.
type ratePlan struct {
	Found    int           `json:"found"`
	Already  int           `json:"already"` // of these, with that rate
	Missing  int           `json:"missing"` // names of no limiter
	Changed  int           `json:"changed"`
	Gone     int           `json:"gone"` // were deleted meanwhile
	Failed   int           `json:"failed"`
	DryRun   bool          `json:"dry_run"`
	First    []rateChange  `json:"first"` // of those that change
	Failures []rateFailure `json:"failures"`

	todo        []rateChange
	reset       bool
	mu          sync.Mutex // of the counts, while it is made
	unavailable int
}

// plan keeps of each limiter what the flags don't name.
func (u *updateMany) plan(found []listed) *ratePlan {
	p := &ratePlan{Found: len(found), First: []rateChange{}, Failures: []rateFailure{}, reset: len(u.flags.options()) == 0}
	given := u.cmd.Flags()
	for i := range found {
		l := &found[i]
		now := rratelimiter.Config{Type: rratelimiter.Overall, Rate: l.Rate, Interval: ms(l.IntervalMS), KeepAlive: ms(l.KeepAliveMS)}
		if l.Type == rratelimiter.PerClient.String() {
			now.Type = rratelimiter.PerClient
		}
		to := u.cfg
		if !given.Changed("type") {
			to.Type = now.Type
		}
		if !given.Changed("keep-alive") {
			to.KeepAlive = now.KeepAlive
		}
		from := words.ShortRate(l.Rate, l.IntervalMS)
		if l.Type == "" {
			from = "broken"
		} else if to == now && !p.reset {
			p.Already++
			continue
		}
		p.todo = append(p.todo, rateChange{l.Name, from, words.ShortRate(to.Rate, to.Interval.Milliseconds()), to})
	}
	p.First = append(p.First, p.todo[:min(len(p.todo), firstNames)]...)
	return p
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// done counts a change, and returns how many calls Redis did not decide.
func (p *ratePlan) done(name string, set bool, err error) (unavailable int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil:
		p.Failed++
		if len(p.Failures) < firstNames {
			p.Failures = append(p.Failures, rateFailure{name, strings.TrimPrefix(inWords(err), words.Printable(name)+": ")})
		}
		if errors.Is(err, limit.ErrUnavailable) {
			p.unavailable++
		}
	case set:
		p.Changed++
	default:
		p.Gone++
	}
	return p.unavailable
}

func (p *ratePlan) progress(width int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%d of %s changed, %d failed", p.Changed, words.Plural(int64(len(p.todo)), "limiter"), p.Failed)
	return text[:min(len(text), max(width-1, 0))]
}

// text is the plan for people.
func (p *ratePlan) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s would change", len(p.todo), words.Plural(int64(p.Found), "limiter"))
	if p.Already > 0 {
		fmt.Fprintf(&b, ", %d have that rate already", p.Already)
	}
	if p.Missing > 0 {
		fmt.Fprintf(&b, ", %s of no limiter", words.Plural(int64(p.Missing), "name"))
	}
	if p.reset {
		b.WriteString("; permits in use are forgotten")
	}
	for _, c := range p.First {
		fmt.Fprintf(&b, "\n  %s  %s -> %s", live.Safe(c.Name), c.From, c.To)
	}
	if more := len(p.todo) - len(p.First); more > 0 {
		fmt.Fprintf(&b, "\n  and %d more", more)
	}
	return b.String()
}

// report says what was changed; stopped is that some were not tried.
func (p *ratePlan) report(stopped bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "changed %d of %s", p.Changed, words.Plural(int64(len(p.todo)), "limiter"))
	if p.Gone > 0 {
		fmt.Fprintf(&b, ", %d were deleted meanwhile", p.Gone)
	}
	if p.Failed > 0 {
		fmt.Fprintf(&b, ", %d failed", p.Failed)
	}
	if stopped {
		b.WriteString("; run it again for the rest")
	}
	for _, f := range p.Failures {
		fmt.Fprintf(&b, "\n  %s: %s", live.Safe(f.Name), f.Error)
	}
	if more := p.Failed - len(p.Failures); more > 0 {
		fmt.Fprintf(&b, "\n  and %d more", more)
	}
	return b.String()
}
