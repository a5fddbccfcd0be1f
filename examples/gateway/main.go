// Command gateway is an example: a reverse proxy before a language model that limits the requests and the
// tokens of each user, by minute and by day, as the user's plan says. README.md shows what to try.
//
//	go run -C examples/gateway .
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:8080", "the `address` to serve at")
	redisURL := flags.String("redis", "", "the `URL` of a Redis, such as redis://127.0.0.1:6379; without it, one inside this process")
	paid := flags.String("paid", "bob", "the `users` with the paid plan, with commas between; others have the free one")
	timeout := flags.Duration("timeout", httplimit.DefaultTimeout, "how long Redis may take")
	failure := limit.FailClosed()
	flags.Func("failure", "what answers while Redis does not: `closed` refuses all, open lets all pass, local limits in this process (default closed)",
		func(name string) (err error) {
			failure, err = failureOf(name)
			return err
		})
	if err := flags.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	rdb, closeRedis, err := connect(ctx, *redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	model, stopModel, err := start("127.0.0.1:0", chat(), log)
	if err != nil {
		return err
	}
	defer stopModel()
	meters, metrics, stopMetrics, err := newMetrics()
	if err != nil {
		return err
	}
	defer stopMetrics()
	users := strings.Split(*paid, ",")
	g, err := newGateway(config{
		rdb: rdb, model: model, transport: http.DefaultTransport, timeout: *timeout, failure: failure, meters: meters, log: log,
		planOf: func(user string) string {
			if slices.Contains(users, user) {
				return "paid"
			}
			return "free"
		},
	})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = g.client.Close(closing)
	}()
	routes := http.NewServeMux()
	routes.Handle("POST /chat", g)
	routes.Handle("GET /metrics", metrics)
	address, stop, err := start(*listen, routes, log)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(stdout, "Serving at %[1]s\n\nTry, and repeat:\n\n"+
		"curl -i -H 'X-User: ann' -d '{\"prompt\": \"Say hello\", \"words\": 20}' %[1]s/chat\n", address)
	<-ctx.Done()
	return nil
}

// failureOf reads the flag of that name.
func failureOf(name string) (limit.Failure, error) {
	switch name {
	case "closed":
		return limit.FailClosed(), nil
	case "open":
		return limit.FailOpen(), nil
	case "local":
		return limit.FailLocal(1), nil // of n gateways each takes 1/n
	}
	return limit.Failure{}, errors.New("it is closed, open or local")
}
