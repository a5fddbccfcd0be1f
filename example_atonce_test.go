package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// Ten jobs at once in all programs, each for as long as it takes.
func ExampleReservation_Renew() {
	client, server, stop := connect()
	defer stop()
	jobs := client.RateLimiter("exports", rratelimiter.WithDefault(rratelimiter.PerMinute(10))) // 10 at once

	export := func(ctx context.Context, work func(context.Context) error) error {
		r, err := jobs.Reserve(ctx, 1, time.Hour)
		if err != nil || !r.Granted {
			return errors.Join(errors.New("not now"), err)
		}
		defer func() { _ = r.Cancel(ctx) }()

		working, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		go func() {
			for renewed := time.Now(); ; {
				select {
				case <-working.Done():
					return
				case <-time.After(20 * time.Second):
				}
				if err := r.Renew(ctx); err == nil {
					renewed = time.Now()
				} else if errors.Is(err, rratelimiter.ErrSettled) || time.Since(renewed) > 50*time.Second {
					stop(err) // others may have the place
				}
			}
		}()
		return work(working)
	}
	fmt.Println(export(ctx, func(context.Context) error {
		fmt.Println(jobs.AvailablePermits(ctx))
		return nil
	}))
	fmt.Println(jobs.AvailablePermits(ctx))

	r, _ := jobs.Reserve(ctx, 1, 0)
	server.SetTime(noon.Add(50 * time.Second))
	fmt.Println(r.Renew(ctx))
	server.SetTime(noon.Add(100 * time.Second))
	fmt.Println(jobs.AvailablePermits(ctx)) // it counts from the last Renew on
	server.SetTime(noon.Add(110 * time.Second))
	fmt.Println(errors.Is(r.Renew(ctx), rratelimiter.ErrSettled))
	// Output:
	// 9 <nil>
	// <nil>
	// 10 <nil>
	// <nil>
	// 9 <nil>
	// true
}

// A hundred requests a minute and ten at once: the second of these limits is free again when a request ends.
func ExampleClient_Keyed_inFlight() {
	client, _, stop := connect()
	defer stop()

	limits := httplimit.New(
		httplimit.Policy{Name: "rate", Limiter: client.Keyed("", rratelimiter.PerMinute(100))},
		httplimit.WithPolicy(httplimit.Policy{
			Name: "at-once", Limiter: client.Keyed("", rratelimiter.PerMinute(10)), InFlight: true,
		}),
		httplimit.WithKey(httplimit.Header("X-Account")), httplimit.WithHashTag(),
	)
	handler := limits.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		fmt.Println(w.Header().Get("RateLimit"))
	}
	// Output:
	// "rate";r=99;t=60, "at-once";r=9
	// "rate";r=98;t=60, "at-once";r=9
}

// Only failed logins count.
func ExampleClient_Keyed_byOutcome() {
	client, _, stop := connect()
	defer stop()

	logins := httplimit.Policy{Limiter: client.Keyed("", rratelimiter.PerHour(5)), Charge: func(_ *http.Request, status int) int64 {
		if status == http.StatusUnauthorized {
			return 1
		}
		return 0
	}}
	handler := httplimit.New(logins).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("password") != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, password := range []string{"secret", "guess", "secret"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/login?password="+password, http.NoBody))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "default";r=4;t=3600
	// 401 "default";r=4;t=3600
	// 200 "default";r=3;t=3600
}
