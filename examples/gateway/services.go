package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

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

// greeter is the first service behind the gateway.
func greeter() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "Hello %q\n", user(r))
	})
}

// shop is the second: it takes orders and counts them.
func shop() http.Handler {
	var orders atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 1<<16)); err != nil {
				http.Error(w, "too large an order", http.StatusRequestEntityTooLarge)
				return
			}
			orders.Add(1)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "%d orders\n", orders.Load())
	})
}

// chat is the third: a language model that says hello as often as a request asks. A word is a
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
