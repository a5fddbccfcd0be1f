package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
)

// Exit codes of every command.
const (
	exitYes   = 0
	exitNo    = 1
	exitError = 2
)

// errNo ends a command that worked and whose answer is no; it was printed.
var errNo = errors.New("the answer is no")

const defaultURL = "redis://127.0.0.1:6379"

// closeTimeout bounds what is done after a command's context has ended.
const closeTimeout = 2 * time.Second

// app is what the commands share: the persistent flags and where to print.
type app struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	color          bool

	redisURL string
	json     bool
	clientID string
	redisson string
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	a := &app{stdout: stdout, stderr: stderr, getenv: getenv, color: wantsColor(stdout, getenv)}
	root := newRoot(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	}
	// A flag that can't be parsed hides those after it.
	a.json = a.json || slices.Contains(args, "--json")
	a.printError(err)
	return exitError
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "rrl",
		Short: "Work with rate limiters kept in Redis, shared with Redisson",
		Long: `rrl works with the rate limiters that package rratelimiter and Redisson's
RRateLimiter keep in Redis: sets rates, takes and returns permits, and shows
what is in there.

Rates are written permits/interval: 100/1s, 5/500ms, 1000/1h.

Exit codes: 0 done or granted; 1 the answer is no: not granted, not set, not
there; 2 an error, wrong usage included.`,
		Example: `  rrl demo                                    see a limiter at work, no Redis needed
  rrl try-set-rate orders 100/1s              give "orders" a rate, unless it has one
  rrl acquire orders --permits 2 --timeout 1s wait up to a second for two permits
  rrl acquire orders && ./call-the-api        one try, then the exit code decides
  rrl show orders                             rate, free permits, permits in use
  rrl ls 'api:*' --json                       all limiters whose name matches
  rrl take counter api:ann --limit 500/30s    one try at a counter, window, log or bucket`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)

	flags := root.PersistentFlags()
	flags.StringVar(&a.redisURL, "redis", "", "`URL` of the server (default $REDIS_URL, else "+defaultURL+")")
	flags.BoolVar(&a.json, "json", false, "print JSON")
	flags.StringVar(&a.clientID, "client-id", "", "`ID` to act as, where each client has permits of its own (default random)")
	flags.StringVar(&a.redisson, "redisson", "", "oldest `RELEASE` of Redisson that shares the limiter (default 3.35.0 or newer)")

	const look, permits, rates = "look", "permits", "rates"
	root.AddGroup(
		&cobra.Group{ID: look, Title: "Look:"},
		&cobra.Group{ID: permits, Title: "Permits:"},
		&cobra.Group{ID: rates, Title: "Limiters:"},
	)
	for _, c := range []struct {
		group string
		cmd   *cobra.Command
	}{
		{look, newDemo(a)}, {look, newShow(a)}, {look, newList(a)},
		{permits, newAcquire(a)}, {permits, newRelease(a)}, {permits, newTake(a)}, {permits, newThreshold(a)},
		{rates, newTrySetRate(a)}, {rates, newSetRate(a)}, {rates, newUpdateRate(a)},
		{rates, newExpire(a)}, {rates, newDelete(a)}, {rates, newMigrate(a)},
	} {
		c.cmd.GroupID = c.group
		root.AddCommand(c.cmd)
	}
	return root
}

// named returns the check of a command's arguments, which the usage line calls
// by these names.
func named(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("%s is missing; usage: %s", names[len(args)], cmd.UseLine())
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q; usage: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

// connect returns a client of the server that flags and environment name.
func (a *app) connect() (*redis.Client, error) {
	address := a.redisURL
	if address == "" {
		address = a.getenv("REDIS_URL")
	}
	if address == "" {
		address = defaultURL
	}
	opts, err := redis.ParseURL(address)
	if err != nil {
		// The text of a url.Error has the URL, and that may have a password.
		if urlErr, ok := errors.AsType[*url.Error](err); ok {
			err = urlErr.Err
		}
		return nil, fmt.Errorf("the server's URL: %w", err)
	}
	// Whoever waits at a terminal wants to hear soon that nobody answers.
	opts.DialerRetries = 1
	return redis.NewClient(opts), nil
}

// withLimiter calls do with the limiter called name.
func (a *app) withLimiter(ctx context.Context, name string, do func(*rratelimiter.RateLimiter) error) error {
	rdb, err := a.connect()
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()
	client := a.newClient(rdb, a.clientID)
	defer closeClient(ctx, client)
	return do(client.RateLimiter(name))
}

// newClient returns a client with that id, "" for a random one.
func (a *app) newClient(rdb *redis.Client, id string) *rratelimiter.Client {
	var opts []rratelimiter.Option
	if id != "" {
		opts = append(opts, rratelimiter.WithClientID(id))
	}
	if a.redisson != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(a.redisson))
	}
	return rratelimiter.New(rdb, opts...)
}

// closeClient closes a client also when ctx has ended, as after Ctrl-C.
func closeClient(ctx context.Context, client *rratelimiter.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = client.Close(ctx)
}

// version tells the module's version and the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	words := []string{info.Main.Version, info.GoVersion}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			words = append(words, s.Value)
		}
	}
	return strings.Join(words, " ")
}
