package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

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

// The page is mounted in a server of one's own, behind its login.
func ExampleHandler() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
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
