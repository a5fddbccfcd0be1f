package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
	"github.com/rratelimiter/rratelimiter/dashboard"
	"github.com/rratelimiter/rratelimiter/internal/connect"
)

const (
	defaultListen = "127.0.0.1:8320"

	// minToken is how short a chosen token may be.
	minToken = 16
)

// board is what rrl dashboard was asked for.
type board struct {
	listen    string
	hosts     []string
	demo      bool
	open      bool
	lookToken string
	write     bool
	tokenFile string
	others    []string
	reads     int
}

func newDashboard(a *app) *cobra.Command {
	var b board
	cmd := &cobra.Command{
		Use:   "dashboard [PATTERN]",
		Short: "Serve a web page that shows limiters live, and changes them",
		Long: `Serve a web page that shows the limiters live: how much of each is in use, which
clients use it, when permits come back, and what is wrong. PATTERN is one of Redis' SCAN,
such as 'api:*': limiters that don't match can be neither seen nor changed.

With --demo it brings its own small server, with limiters in use, to look around.
It never sends more than about --reads commands a second, however many pages are
open, and none while no page is open.

It listens on this machine alone, unless --listen says otherwise. If other machines
reach it, looking needs a token: --token, or $RRL_DASHBOARD_READ_TOKEN, which ps does
not show. With --open looking needs none. For browsers that reach the page by a host
name, give that name with --host.

Changes need --write and a token of their own: $RRL_DASHBOARD_TOKEN, or the content of
--token-file, or else a new one that is printed.

Keys of fixed windows, sliding logs and token buckets look like other keys: --keys
names them, as KIND:PREFIX=LIMIT/WINDOW; buckets have CAPACITY+REFILL/INTERVAL
instead. A comma and the hash of thresholds may follow those of
sliding logs: no other hash's are shown.`,
		Example: `  rrl dashboard --demo
  rrl dashboard
  rrl dashboard --redis redis://cache:6379 --write
  rrl dashboard --redis cache:6379 --listen :8320 --host limits.example.com --token a-long-secret-word
  rrl dashboard --redis cache:6379 --keys fixed-window:api:=500/30s --keys token-bucket:mail:=40+5/1s`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, a, strings.Join(args, "")) },
	}
	flags := cmd.Flags()
	flags.StringVar(&b.listen, "listen", defaultListen, "`ADDRESS` to serve the page on; port 0 takes a free one")
	flags.StringArrayVar(&b.hosts, "host", nil, "`NAME` or address by which browsers reach the page; may be given more than once")
	flags.BoolVar(&b.demo, "demo", false, "show limiters in use on a server of its own, whatever $REDIS_URL says")
	flags.StringVar(&b.lookToken, "token", "", "`TOKEN` that looking needs (default $RRL_DASHBOARD_READ_TOKEN, or none)")
	flags.BoolVar(&b.open, "open", false, "let everyone who reaches --listen look, without a token")
	flags.BoolVar(&b.write, "write", false, "offer changes to users with the token for them")
	flags.StringVar(&b.tokenFile, "token-file", "", "read the token for changes from this `FILE`")
	flags.StringArrayVar(&b.others, "keys", nil, "`KIND:PREFIX=RATE` of keys that are shown too; may be given more than once")
	flags.IntVar(&b.reads, "reads", 2000, "send about so many commands a second at most")
	return cmd
}

// run checks the flags and serves the page of the limiters whose names match a pattern.
func (b *board) run(cmd *cobra.Command, a *app, pattern string) error {
	cfg := dashboard.Config{
		Write: b.write, Pattern: pattern, RedissonVersion: a.redisson, Reads: b.reads,
		Logger: slog.New(slog.NewTextHandler(a.stderr, nil)),
	}
	switch {
	case b.reads < minReads:
		return fmt.Errorf("--reads is at least %d", minReads)
	case cmd.Flags().Changed("token") && b.lookToken == "":
		return errors.New("--token is empty")
	case slices.ContainsFunc(b.hosts, func(host string) bool { return host == "" || strings.Contains(host, "/") }):
		return errors.New("--host is a name or an address, such as limits.example.com")
	}
	others, err := parseKeys(b.others)
	if err != nil {
		return err
	}
	tokens, err := b.tokens(a.connect.Getenv)
	switch {
	case err != nil:
		return err
	case b.demo && connects(cmd):
		return errors.New("--demo starts its own server: leave out the flags that name another")
	case b.demo && len(others) > 0:
		return errors.New("--demo shows keys of its own: leave out --keys")
	case b.demo:
		return b.serveDemo(cmd.Context(), a, cfg, tokens)
	}
	reached := false
	err = a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
		reached = true
		cfg.Redis, cfg.Server = conn.Client, conn.Description()
		client := rratelimiter.New(conn.Client, rratelimiter.WithCallTimeout(a.connect.CallTimeout()))
		defer closeClient(cmd.Context(), client)
		for _, keys := range others {
			cfg.Others = append(cfg.Others, keys(client))
		}
		return b.serve(cmd.Context(), a, cfg, tokens)
	})
	if err != nil && !reached && !connects(cmd) && a.connect.Getenv("REDIS_URL") == "" {
		err = fmt.Errorf("%w; --redis or $REDIS_URL names another server, --demo starts one to look around", err)
	}
	return err
}

// connects reports whether a flag says which server to show, or how to reach it.
func connects(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{
		"redis", "ring", "sentinel-master", "user", "password-file", "tls", "tls-ca", "tls-cert", "tls-server-name", "tls-skip-verify",
	}, cmd.Flags().Changed)
}

// serveDemo serves the page of limiters in use on a server of its own.
func (b *board) serveDemo(ctx context.Context, a *app, cfg dashboard.Config, t tokens) error {
	cfg.Observer = &dashboard.Observer{}
	load, err := demo.StartLoad(ctx, cfg.Observer)
	if err != nil {
		return err
	}
	defer load.Close()
	cfg.Redis, cfg.Server = load.Redis, "a demo: a server of its own, with limiters in use"
	cfg.Others = []dashboard.Other{
		{Name: "fixed window", Prefix: demo.WindowKeys, Limiter: load.Windows},
		{Name: "sliding log", Prefix: demo.LogKeys, Limiter: load.Logs, Thresholds: demo.Thresholds},
		{Name: "token bucket", Prefix: demo.BucketKeys, Limiter: load.Buckets},
	}
	return b.serve(ctx, a, cfg, t)
}

// serve serves the page until ctx ends.
func (b *board) serve(ctx context.Context, a *app, cfg dashboard.Config, t tokens) error {
	cfg.Authorize = dashboard.WithTokens(t.look, t.change)
	listener, err := b.listenWith(ctx, t.look)
	if err != nil {
		return err
	}
	cfg.Hosts = append(hostsAt(listener.Addr()), b.hosts...)
	server := &http.Server{
		Handler:           dashboard.Handler(cfg),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // of one answer; streams set their own
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	answer := served{URL: urlOf(listener.Addr(), b.hosts), Shows: cfg.Server}
	if t.made {
		answer.Token = t.change
	}
	if err := a.out.Print(answer, answer.String()); err != nil {
		_ = listener.Close()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// Streams end with ctx.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if server.Shutdown(stopping) != nil {
		_ = server.Close()
	}
	return nil
}

// served is the address of the page.
type served struct {
	URL   string `json:"url"`
	Shows string `json:"shows"`
	Token string `json:"token,omitempty"`
}

func (s served) String() string {
	text := "dashboard: " + s.URL + " shows " + s.Shows
	if s.Token != "" {
		text += "\ntoken: " + s.Token
	}
	return text
}

// tokens are what users of the page need.
type tokens struct {
	look, change string // "" for none
	made         bool   // the one for changes is new: no one knows it
}

func (b *board) tokens(getenv func(string) string) (t tokens, err error) {
	if t.look, err = b.readToken(getenv); err != nil {
		return t, err
	}
	if t.change, t.made, err = b.token(getenv); err != nil {
		return t, err
	}
	if t.look != "" && t.look == t.change {
		err = errors.New("the token for looking is also the one for changes: choose another, or everyone who may look may change")
	}
	return t, err
}

// token returns the token that changes need, and whether it was made up now. It is ""
// if nothing can be changed.
func (b *board) token(getenv func(string) string) (token string, made bool, err error) {
	if !b.write {
		return "", false, nil
	}
	token = strings.TrimSpace(getenv("RRL_DASHBOARD_TOKEN"))
	if b.tokenFile != "" {
		text, err := os.ReadFile(b.tokenFile)
		if err != nil {
			return "", false, fmt.Errorf("--token-file: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token == "" && b.tokenFile == "" {
		return rand.Text(), true, nil
	}
	return token, false, checkToken(token)
}

// readToken returns the token that looking needs, "" for none.
func (b *board) readToken(getenv func(string) string) (string, error) {
	token := cmp.Or(b.lookToken, strings.TrimSpace(getenv("RRL_DASHBOARD_READ_TOKEN")))
	if token == "" {
		return "", nil
	}
	if b.open {
		return "", errors.New("--open lets everyone look: give it no token for that")
	}
	return token, checkToken(token)
}

// checkToken says what is wrong with a token that a user chose.
func checkToken(token string) error {
	switch {
	case len(token) < minToken:
		return fmt.Errorf("the token has %d characters, which is easily guessed; use at least %d", len(token), minToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' }):
		return errors.New("the token has characters that a browser can't send: use ASCII letters, digits and signs")
	}
	return nil
}
