package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Exit codes of every command.
const (
	exitYes   = 0
	exitNo    = 1
	exitError = 2
)

// errNo ends a command that worked and whose answer is no; it was printed.
var errNo = errors.New("the answer is no")

// errBad ends a command that worked and found errors; they were printed.
var errBad = errors.New("errors were found")

// app is what the commands share: the persistent flags and where to print.
type app struct {
	in       io.Reader
	out      output.Printer
	stderr   io.Writer
	terminal bool // someone can be asked

	connect  connect.Options
	clientID string
	redisson string

	completeTime time.Duration // how long the shell waits for names, at most
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	return newApp(stdout, stderr, getenv).run(ctx, args)
}

func newApp(stdout, stderr io.Writer, getenv func(string) string) *app {
	width, terminal := output.Width(stdout)
	if !terminal {
		width = 0
	}
	return &app{
		in:     os.Stdin,
		out:    output.Printer{Writer: stdout, Color: output.WantsColor(stdout, getenv), Width: width},
		stderr: stderr, terminal: onTerminal(stderr), connect: connect.Options{Getenv: getenv}, completeTime: completeTime,
	}
}

func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, errBad):
		return exitError
	}
	err = suggest(root, err)
	// A flag that can't be parsed hides those after it.
	a.out.JSON = a.out.JSON || slices.Contains(args, "--json")
	a.printError("error", err)
	return exitError
}

// printError writes err to standard error, as people or programs expect it; kind,
// "error" or "warning", is its name in JSON.
func (a *app) printError(kind string, err error) {
	if a.out.JSON {
		_ = output.WriteJSON(a.stderr, map[string]string{kind: inWords(err)})
		return
	}
	fmt.Fprintln(a.stderr, "rrl: "+inWords(err))
}

// answer prints v if JSON is wanted, otherwise the text, and ends a command by
// whether the answer is yes.
func (a *app) answer(v any, text string, yes bool) error {
	return yesOrNo(yes, a.out.Print(v, text))
}

// yesOrNo ends a command whose answer was printed, if err is nil.
func yesOrNo(yes bool, err error) error {
	if err == nil && !yes {
		return errNo
	}
	return err
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "rrl",
		Short: "Work with rate limiters kept in Redis, shared with Redisson",
		Long: `rrl works with the rate limiters that package rratelimiter and Redisson's
RRateLimiter keep in Redis: sets rates, takes and returns permits, and shows
what is in there.

Rates are written permits/interval: 100/s, 5/500ms, 10/1m30s, 1000/1d.

Exit codes: 0 done or granted; 1 the answer is no: not granted, not set, not
there; 2 an error, wrong usage included.`,
		Example: `  rrl demo                                    see a limiter at work, no Redis needed
  rrl dashboard --demo                        see limiters in a browser, no Redis needed
  rrl try-set-rate orders 100/1s              give "orders" a rate, unless it has one
  rrl acquire orders --permits 2 --timeout 1s wait up to a second for two permits
  rrl acquire orders && ./call-the-api        one try, then the exit code decides
  rrl show orders                             rate, free permits, permits in use
  rrl ls 'api:*' --json                       all limiters with a matching name
  rrl take counter api:ann --limit 500/30s    one try at a counter, window, log or bucket`,
		Version: strings.TrimPrefix(thisBuild().String(), "rrl "),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.checkFlags(cmd.Flags(), cmd.Root().PersistentFlags())
		},
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // suggest has them on one line
	}
	root.SetOut(a.out.Writer)
	root.SetErr(a.stderr)

	flags := root.PersistentFlags()
	a.connect.Bind(flags)
	flags.BoolVar(&a.out.JSON, "json", false, "print JSON")
	flags.StringVar(&a.clientID, "client-id", "", "`ID` to act as, if each client has permits of its own (default random)")
	flags.StringVar(&a.redisson, "redisson", "", "oldest `RELEASE` of Redisson that shares the limiter (default 3.35.0 or newer)")

	add := func(title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: title, Title: title})
		for _, c := range commands {
			c.GroupID = title
			root.AddCommand(c)
		}
	}
	add("Look:", newDemo(a), a.completed(newShow(a)), a.completed(newList(a)), a.completed(newTop(a)), a.completed(newWatch(a)),
		a.completed(newDoctor(a)), newBench(a), newDashboard(a))
	add("Permits:", a.completed(newAcquire(a)), a.completed(newRelease(a)), newTake(a), newThreshold(a))
	add("Limiters:", a.completed(newTrySetRate(a)), a.completed(newSetRate(a)), a.completed(newUpdateRate(a)),
		a.completed(newUseDefault(a)), a.completed(newReset(a)), a.completed(newExpire(a)), a.completed(newDelete(a)),
		a.completed(newMigrate(a)))
	root.AddCommand(newVersion(a))
	root.SetHelpCommand(newHelp())
	root.SetFlagErrorFunc(flagError)
	strictCompletion(root)
	noFiles(root)
	return root
}

// checkFlags checks the flags that all commands have, even if the command does not use them.
func (a *app) checkFlags(flags, root *pflag.FlagSet) error {
	if err := notEmpty(flags, root); err != nil {
		return err
	}
	if flags.Changed("redisson") {
		rules, err := redisson.RulesFor(a.redisson)
		if err != nil {
			return err
		}
		if untested := rules.Untested(); untested != nil {
			a.printError("warning", untested)
		}
	}
	return a.connect.Check()
}
