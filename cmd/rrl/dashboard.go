package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
	"github.com/rratelimiter/rratelimiter/dashboard"
)

const (
	defaultListen = "127.0.0.1:8320"

	// minToken is how short a token may be that somebody chose.
	minToken = 16
)

// board is what rrl dashboard was asked for.
type board struct {
	listen    string
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
		Long: `Serve a web page that shows the limiters live: how much of each is in use and by
whom, when permits come back, and what is wrong. PATTERN is one of Redis' SCAN,
such as 'api:*'.

Without --redis it brings its own small server, with limiters in use, to look
around: $REDIS_URL is not used. With it, it never sends more than about --reads
commands a second, however many look, and none while nobody does.

It listens on this machine alone, unless --listen says otherwise: whoever reaches
it can look. Nothing can be changed without --write, and then with a token only:
it is $RRL_DASHBOARD_TOKEN or what --token-file has, else a new one that is
printed.

Keys of fixed windows, sliding logs and token buckets can't be told from other
keys: --keys names them, by KIND:PREFIX=LIMIT/WINDOW; of buckets it is
CAPACITY+REFILL/INTERVAL.`,
		Example: `  rrl dashboard
  rrl dashboard --redis redis://cache:6379 --write
  rrl dashboard --redis cache:6379 --keys fixed-window:api:=500/30s --keys token-bucket:mail:=40+5/1s`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := dashboard.Config{
				Write: b.write, Pattern: strings.Join(args, ""), RedissonVersion: a.redisson, Reads: b.reads,
				Logger: slog.New(slog.NewTextHandler(a.stderr, nil)),
			}
			if b.reads < minReads {
				return fmt.Errorf("--reads is at least %d", minReads)
			}
			if !cmd.Flags().Changed("redis") {
				return b.demo(cmd.Context(), a, cfg)
			}
			return a.withRedis(cmd.Context(), func(conn *connect.Connection) error {
				cfg.Redis, cfg.Server = conn.Client, conn.Description()
				var err error
				if cfg.Others, err = parseOthers(conn.Client, b.others); err != nil {
					return err
				}
				return b.serve(cmd.Context(), a, cfg)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.listen, "listen", defaultListen, "`ADDRESS` to serve the page on; port 0 takes a free one")
	flags.BoolVar(&b.write, "write", false, "offer changes, to whoever has the token")
	flags.StringVar(&b.tokenFile, "token-file", "", "read the token from this `FILE`")
	flags.StringArrayVar(&b.others, "keys", nil, "`KIND:PREFIX=RATE` of keys that are shown too; may be given more than once")
	flags.IntVar(&b.reads, "reads", 2000, "commands a second, at most about so many")
	return cmd
}

// demo serves the page of limiters in use on a server of its own.
func (b *board) demo(ctx context.Context, a *app, cfg dashboard.Config) error {
	if len(b.others) > 0 {
		return errors.New("--keys needs --redis")
	}
	cfg.Observer = &dashboard.Observer{}
	load, err := demo.StartLoad(ctx, cfg.Observer)
	if err != nil {
		return err
	}
	defer load.Close()
	cfg.Redis, cfg.Server = load.Redis, "a server of its own, with limiters in use"
	cfg.Others = []dashboard.Other{
		{Name: "fixed window", Prefix: demo.WindowKeys, Limiter: load.Windows},
		{Name: "sliding log", Prefix: demo.LogKeys, Limiter: load.Logs, Thresholds: demo.Thresholds},
		{Name: "token bucket", Prefix: demo.BucketKeys, Limiter: load.Buckets},
	}
	return b.serve(ctx, a, cfg)
}

// serve serves the page until ctx ends.
func (b *board) serve(ctx context.Context, a *app, cfg dashboard.Config) error {
	token, made, err := b.token(a.connect.Getenv)
	if err != nil {
		return err
	}
	cfg.Authorize = dashboard.WithToken(token)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", b.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", b.listen, err)
	}
	server := &http.Server{
		Handler:           onlyHere(listener.Addr(), dashboard.Handler(cfg)),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // of one answer; streams see to theirs
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	answer := served{URL: "http://" + listener.Addr().String() + "/"}
	if made {
		answer.Token = token
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

// served is where the page is.
type served struct {
	URL   string `json:"url"`
	Token string `json:"token,omitempty"`
}

func (s served) String() string {
	text := "dashboard: " + s.URL
	if s.Token != "" {
		text += "\ntoken: " + s.Token
	}
	return text
}

// token returns the token that changes need, and whether it was made up now. It is ""
// where nothing can be changed.
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
	switch {
	case token == "" && b.tokenFile == "":
		return rand.Text(), true, nil
	case len(token) < minToken:
		return "", false, fmt.Errorf("the token has %d characters, which is easily guessed; at least %d are wanted", len(token), minToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' }):
		return "", false, errors.New("the token has characters that a browser can't send: letters, digits and signs of ASCII are wanted")
	}
	return token, false, nil
}

// onlyHere refuses requests by names that are not this machine's, where only it is
// listened to: a site whose name leads here must not read what its visitors can.
func onlyHere(addr net.Addr, next http.Handler) http.Handler {
	if tcp, ok := addr.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		ip, err := netip.ParseAddr(host)
		if !strings.EqualFold(host, "localhost") && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "this page is served to this machine only", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
