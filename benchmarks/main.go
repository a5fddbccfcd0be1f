// Command benchmarks measures this module's limiter beside others, in one run, and writes the
// results to docs/performance.md, and beside the project's aims to docs/development.md.
//
//	go run . -short                # the aims, two minutes, to the terminal
//	go run . -sections alone,hung  # some of it, to the terminal
//	go run . -rounds 3             # all in fewer rounds, into results/ and ../docs
//	go run .                       # all
//	go run . -render               # results/ into ../docs again
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
	"github.com/rratelimiter/rratelimiter/benchmarks/suite"
)

func main() {
	server.Serve()
	peer.Serve()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		stop()
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "benchmarks:", err)
	os.Exit(1)
}

func run(ctx context.Context) error {
	var (
		o      = suite.Options{Log: os.Stderr}
		only   = flag.String("only", "", "`regexp` of the peers to measure")
		some   = flag.String("sections", "", "`sections` to measure, with commas between, of "+strings.Join(suite.Sections(), ","))
		out    = flag.String("out", "", "`folder` for results.tsv; by default results, and none with -short, -only or -sections")
		docs   = flag.String("docs", "", "`folder` of the pages and plots; by default ../docs if the results go into results")
		render = flag.Bool("render", false, "measure nothing: show what -out holds")
	)
	flag.IntVar(&o.Rounds, "rounds", 0, "rounds; 5 by default, and 1 with -short")
	flag.BoolVar(&o.Short, "short", false, "the aims only: one round, fewer peers, shorter loads")
	flag.StringVar(&o.Server, "server", "", "`path` of the redis-server, or a release such as redis-7.0")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("what is %q?", flag.Arg(0))
	}
	if o.Rounds == 0 {
		o.Rounds = 5
		if o.Short {
			o.Rounds = 1
		}
	}
	if *only != "" {
		var err error
		if o.Only, err = regexp.Compile(*only); err != nil {
			return err
		}
	}
	if *some != "" {
		o.Sections = strings.Split(*some, ",")
		for _, section := range o.Sections {
			if !slices.Contains(suite.Sections(), section) {
				return fmt.Errorf("no section is called %q", section)
			}
		}
	}
	if *out == "" && (*render || !o.Short && *only == "" && *some == "") {
		*out = "results"
		if *docs == "" {
			*docs = filepath.Join("..", "docs")
		}
	}

	results, err := measured(ctx, o, *out, *render)
	if err != nil {
		return err
	}
	if *docs != "" {
		if err := report.Render(results, *docs); err != nil {
			return err
		}
	}
	return report.Text(os.Stdout, results)
}

// measured measures, or reads what has been measured.
func measured(ctx context.Context, o suite.Options, out string, read bool) (*report.Results, error) {
	path := filepath.Join(out, "results.tsv")
	if read {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		return report.Read(f)
	}
	results, err := suite.Run(ctx, o)
	if err != nil || out == "" {
		return results, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return results, errors.Join(results.Write(f), f.Close())
}
