package admin_test

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
)

func ExampleNew() {
	server := miniredis.NewMiniRedis() // in earnest, a Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() }})
	defer func() { _ = rdb.Close() }()
	ctx := context.Background()
	client := rratelimiter.New(rdb)
	defer func() { _ = client.Close(ctx) }()
	if err := client.RateLimiter("orders").SetRate(ctx, rratelimiter.PerSecond(10)); err != nil {
		fmt.Println(err)
	}

	mux := http.NewServeMux()
	mux.Handle("/admin/", http.StripPrefix("/admin", admin.New(admin.Config{
		Authorize: func(r *http.Request, _ admin.Access) (string, error) {
			if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer secret")) != 1 {
				return "", admin.ErrUnauthenticated
			}
			return "ann", nil
		},
		Client:       client,
		RateLimiters: []string{"orders"},
		Logger:       exampleLog(),
	})))

	for _, token := range []string{"guessed", "secret"} {
		r := httptest.NewRequest(http.MethodPatch, "/admin/rate?name=orders", strings.NewReader(`{"rate": 20, "keepState": true}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// level=WARN msg="admin request refused" actor="" action=change kind=rate-limiter limiter=orders method=PATCH path=/rate error="not authenticated"
	// 401 {"title":"Unauthorized","status":401}
	// level=INFO msg="limit changed" actor=ann action=change kind=rate-limiter limiter=orders before.type=OVERALL before.rate=10 before.interval=1s before.keepAlive=0s after.type=OVERALL after.rate=20 after.interval=1s after.keepAlive=0s keepState=true
	// 200 {"type":"OVERALL","rate":20,"interval":"1s","keepAlive":"0s"}
}

// exampleLog writes no times.
func exampleLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}
