// Command gateway is an example: a reverse proxy before three small services that
// limits each user by route and by the tokens of a language model, and each client
// by address. The limits can be changed while it runs. README.md shows what to try.
//
//	go run -C examples/gateway .
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
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
	token := flags.String("token", "", "the `secret` that /admin/ asks for; without it, a new one")
	perClient := flags.Int64("per-client", 600, "how many requests a minute each address may make, and as many to /admin/")
	shopRate := flags.Int64("shop-rate", 100, "how many requests a second the shop gets in all; others wait")
	tokens := flags.Int64("tokens", 1000, "how many tokens a minute of the language model each user may use")
	timeout := flags.Duration("timeout", httplimit.DefaultTimeout, "how long Redis may take, and a request wait for the shop")
	failure := limit.FailClosed()
	flags.Func("failure", "what answers while Redis does not: `closed` refuses all, open lets all pass, local limits in this process (default closed)",
		func(name string) (err error) {
			failure, err = failureOf(name)
			return err
		})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *token == "" {
		*token = rand.Text()
	}

	rdb, closeRedis, err := connect(ctx, *redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	log := slog.New(slog.NewTextHandler(stderr, nil))
	greeterURL, stopGreeter, err := start("127.0.0.1:0", greeter(), log)
	if err != nil {
		return err
	}
	defer stopGreeter()
	shopURL, stopShop, err := start("127.0.0.1:0", shop(), log)
	if err != nil {
		return err
	}
	defer stopShop()
	chatURL, stopChat, err := start("127.0.0.1:0", chat(), log)
	if err != nil {
		return err
	}
	defer stopChat()
	meters, metrics, stopMetrics, err := newMetrics()
	if err != nil {
		return err
	}
	defer stopMetrics()
	transport := &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute}
	defer transport.CloseIdleConnections()
	g := newGateway(config{
		rdb: rdb, greeter: greeterURL, shop: shopURL, chat: chatURL, transport: transport,
		token: *token, perClient: *perClient, shopRate: *shopRate, tokens: *tokens, timeout: *timeout, failure: failure,
		meters: meters, metrics: metrics, log: log,
	})
	defer g.close()
	address, stop, err := start(*listen, g, log)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(stdout, welcome, address, *token)
	<-ctx.Done()
	return nil
}

const welcome = `Serving at %[1]s

Try, and repeat:

curl -i -H 'X-User: ann' %[1]s/hello
curl -i -H 'X-User: ann' -d tea %[1]s/orders
curl -i -H 'X-User: ann' -d '{"prompt": "Say hello", "words": 20}' %[1]s/chat

More for ann, at the next decision:

curl -X PUT -H 'Authorization: Bearer %[2]s' -H 'Content-Type: application/json' -d '{"threshold": 10}' \
  '%[1]s/admin/threshold?limiter=hello&key=limit:ann:/hello'

All that can be changed: curl -H 'Authorization: Bearer %[2]s' %[1]s/admin/openapi.json
Metrics, for Prometheus: curl %[1]s/metrics
`

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

// start serves handler at address and returns the address it got, and a function that stops it:
// requests under way have a few seconds to end.
func start(address string, handler http.Handler, log *slog.Logger) (at *url.URL, stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends by stop
	}()
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-done
	}
	return &url.URL{Scheme: "http", Host: l.Addr().String()}, stop, nil
}
