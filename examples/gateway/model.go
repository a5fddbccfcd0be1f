package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// connect returns a client of the Redis at that URL, or of one in this process,
// which is gone with it.
func connect(ctx context.Context, redisURL string) (rdb *redis.Client, closeAll func(), err error) {
	if redisURL != "" {
		opt, err := redis.ParseURL(redisURL)
		if err != nil {
			return nil, nil, err
		}
		rdb = redis.NewClient(opt)
		if err := rdb.Ping(ctx).Err(); err != nil {
			_ = rdb.Close()
			return nil, nil, err
		}
		return rdb, func() { _ = rdb.Close() }, nil
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{
		Addr:                     "memory",
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return rdb, func() {
		_ = rdb.Close()
		m.Close()
	}, nil
}

// chat is a language model that says hello as often as a request asks. A word is a
// token. The usage is in the answer or, of one that is streamed, in its last event.
func chat() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Prompt string
			Words  int
			Stream bool
		}
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&asked)
		if err != nil || asked.Words < 0 || asked.Words > 10_000 {
			http.Error(w, `want {"prompt": "...", "words": 20, "stream": false}`, http.StatusBadRequest)
			return
		}
		usage := fmt.Sprintf(`"usage":{"total_tokens":%d}`, len(strings.Fields(asked.Prompt))+asked.Words)
		if !asked.Stream {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"text":%q,%s}`+"\n", strings.Repeat("hello ", asked.Words), usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range asked.Words {
			fmt.Fprint(w, "data: {\"text\":\"hello \"}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		fmt.Fprintf(w, "data: {%s}\n\ndata: [DONE]\n\n", usage)
	})
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
