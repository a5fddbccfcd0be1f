package dashboard_test

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/dashboard"
)

// user has logged in to the program that the page is part of.
type user struct {
	Name     string
	Operator bool
}

// login stands for a login of one's own, by a cookie.
func login(r *http.Request) *user {
	cookie, err := r.Cookie("session")
	if err != nil {
		return nil
	}
	return &user{Name: cookie.Value, Operator: cookie.Value == "ann"}
}

// connect returns a client of a Redis of the example's own.
func connect() (rdb *redis.Client, stop func()) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// The page is mounted in a server of one's own, behind its login.
func ExampleHandler() {
	rdb, stop := connect()
	defer stop()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()

	observer := &dashboard.Observer{}
	client := rratelimiter.New(rdb, rratelimiter.WithObserver(observer))
	mux.Handle("/limits/", http.StripPrefix("/limits", dashboard.Handler(dashboard.Config{
		Redis:    rdb,
		Hosts:    []string{"shop.example.com"}, // what browsers call this server
		Observer: observer,                     // reports refusals
		Write:    true,
		Authorize: func(r *http.Request, asked dashboard.Access) (string, error) {
			user := login(r)
			switch {
			case user == nil:
				return "", dashboard.ErrUnauthenticated
			case asked.Action == dashboard.Change && !user.Operator:
				return user.Name, errors.New("not an operator")
			}
			return user.Name, nil
		},
	})))

	ask := func(method, path, session string) {
		r := httptest.NewRequest(method, "https://shop.example.com"+path, http.NoBody)
		if session != "" {
			r.AddCookie(&http.Cookie{Name: "session", Value: session})
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(method, path, session, w.Code)
	}
	defer func() { _ = client.Close(context.Background()) }()
	ask(http.MethodGet, "/limits/", "")
	ask(http.MethodGet, "/limits/", "bob")
	ask(http.MethodGet, "/limits/api/limiters", "bob")
	ask(http.MethodPost, "/limits/api/change/delete?name=orders", "bob")
	// Output:
	// GET /limits/  401
	// GET /limits/ bob 200
	// GET /limits/api/limiters bob 200
	// POST /limits/api/change/delete?name=orders bob 403
}

// Programs change limits without the page. What Authorize allows may depend on the limiter.
func ExampleAPI() {
	rdb, stop := connect()
	defer stop()
	mux := http.NewServeMux()

	mux.Handle("/admin/", http.StripPrefix("/admin", dashboard.API(dashboard.Config{
		Redis: rdb,
		Hosts: []string{"shop.example.com"},
		Write: true,
		Authorize: func(r *http.Request, asked dashboard.Access) (string, error) {
			if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer secret")) != 1 {
				return "", dashboard.ErrUnauthenticated
			}
			if asked.Action == dashboard.Change && (asked.Verb != "rate" || asked.Limiter != "orders") {
				return "ann", errors.New("only the rate of orders")
			}
			return "ann", nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})))

	ask := func(path, token, body string) {
		r := httptest.NewRequest(http.MethodPost, "https://shop.example.com/admin"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(path, w.Code)
	}
	ask("/change/rate?name=orders", "guessed", `{"rate":20}`)
	ask("/change/rate?name=orders", "secret", `{"rate":20,"interval_ms":1000,"create":true}`)
	ask("/change/rate?name=orders", "secret", `{"rate":30}`)
	ask("/change/delete?name=orders", "secret", `{}`)
	client := rratelimiter.New(rdb)
	defer func() { _ = client.Close(context.Background()) }()
	fmt.Println(client.RateLimiter("orders").Config(context.Background()))
	// Output:
	// /change/rate?name=orders 401
	// /change/rate?name=orders 200
	// /change/rate?name=orders 200
	// /change/delete?name=orders 403
	// {OVERALL 30 1s 0s} <nil>
}
