// Command rratelimitd is a rate limit service for Envoy: package envoylimit as a server of its own.
//
//	rratelimitd serve --config DIR --redis redis://localhost:6379
//	rratelimitd check DIR
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	_ "time/tzdata" // for containers without time zones

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/envoylimit"
)

// Exit codes.
const (
	exitDone  = 0
	exitBad   = 1 // of a configuration, or the service failed
	exitUsage = 2
)

const usage = `rratelimitd answers Envoy's rate limit requests, with limits as envoyproxy/ratelimit configures them.

  rratelimitd serve --config DIR [--redis URL]   serve the limits in DIR; see rratelimitd serve -h
  rratelimitd check [--merge-domains] DIR        say what is wrong with them
  rratelimitd version
`

// silent drops what go-redis logs: rratelimitd reports each error once, by itself.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// run executes one command line, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve":
		return serve(ctx, args, stderr, getenv)
	case "check":
		return check(args, stdout, stderr)
	case "version", "--version":
		fmt.Fprintln(stdout, version())
		return exitDone
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return exitDone
	default:
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
}

// parse reads flags. done says that the command ends with that code.
func parse(flags *flag.FlagSet, args []string) (code int, done bool) {
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone, true
	case err != nil:
		return exitUsage, true
	default:
		return exitDone, false
	}
}

// check says what is wrong with the files of a directory.
func check(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rratelimitd check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	merge := flags.Bool("merge-domains", false, "several files may have limits of one domain")
	if code, done := parse(flags, args); done {
		return code
	}
	if flags.NArg() != 1 {
		fmt.Fprintln(stderr, "rratelimitd: check wants one directory, after flags")
		return exitUsage
	}
	config, err := envoylimit.Load(flags.Arg(0), configOptions(*merge)...)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitBad
	}
	for _, w := range config.Warnings() {
		fmt.Fprintln(stderr, w)
	}
	for _, name := range config.Domains() {
		fmt.Fprintln(stdout, "domain", name)
	}
	return exitDone
}

func configOptions(merge bool) []envoylimit.ConfigOption {
	if merge {
		return []envoylimit.ConfigOption{envoylimit.MergeDomains()}
	}
	return nil
}

func version() string {
	info, known := debug.ReadBuildInfo()
	if !known {
		return "rratelimitd"
	}
	commit := ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			commit = " " + s.Value
		}
	}
	return "rratelimitd " + info.Main.Version + commit + " " + info.GoVersion
}
