package httplimit_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

type programObserver struct {
	limit.NoObserver

	decided func()
}

func (o programObserver) Decided(context.Context, limit.Decided) { o.decided() }

// While a function of the program's blocks, only its request waits. It may send requests itself, and close the Client.
func TestFunctionOfTheProgram_BlocksOnlyItsRequest(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Key", "User", "Cost", "Plan", "Skip", "Decided", "RefusalHandler", "ErrorHandler", "policy's Key", "policy's Cost", "policy's Plan"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := redistest.Mini(t)
			client := rratelimiter.New(rdb, limitertest.Patient())
			var do func()
			var done atomic.Bool
			called := func(of string) {
				if of == name && !done.Swap(true) {
					do()
				}
			}
			key := func(of string) httplimit.KeyFunc {
				return func(r *http.Request) (string, error) {
					called(of)
					return r.Header.Get("User"), nil
				}
			}
			cost := func(of string) func(*http.Request) (int64, error) {
				return func(*http.Request) (int64, error) {
					called(of)
					return 1, nil
				}
			}
			plan := func(of string) func(*http.Request) limit.Limiter {
				return func(r *http.Request) limit.Limiter {
					called(of)
					if r.Header.Get("User") == "bad" {
						return client.Keyed("bad:", rratelimiter.Config{}) // for the ErrorHandler
					}
					return client.Keyed("plan:", rratelimiter.PerHour(2))
				}
			}
			opts := []httplimit.Option{
				httplimit.WithKey(key("Key"), httplimit.User(func(r *http.Request) string {
					called("User")
					return r.Header.Get("User")
				})),
				httplimit.WithCost(cost("Cost")),
				httplimit.WithSkip(func(*http.Request) bool {
					called("Skip")
					return false
				}),
				httplimit.WithObserver(programObserver{decided: func() { called("Decided") }}),
				httplimit.WithRefusal(func(w http.ResponseWriter, _ *http.Request, _ httplimit.Refusal) {
					called("RefusalHandler")
					w.WriteHeader(http.StatusTooManyRequests)
				}),
				httplimit.WithErrorHandler(func(*http.Request, error) { called("ErrorHandler") }),
				httplimit.WithPolicy(httplimit.Policy{
					Name: "b", Limiter: client.Keyed("policy:", rratelimiter.PerHour(2)),
					Key: []httplimit.KeyFunc{key("policy's Key")}, Cost: cost("policy's Cost"), Plan: plan("policy's Plan"),
				}),
			}
			first := httplimit.Policy{Limiter: client.Keyed("default:", rratelimiter.PerHour(2)), Plan: plan("Plan")}
			handler := httplimit.New(first, opts...).Handler(hello)
			use := func(user string) {
				for range 3 {
					r := newRequest(t)
					r.Header.Set("User", user)
					serve(handler, r)
				}
			}
			useAndClose := func() {
				use("other")
				_ = client.Close(limitertest.EndedContext(t))
			}

			begun, free := make(chan struct{}), make(chan struct{})
			do = func() {
				useAndClose() // as the function itself
				close(begun)
				<-free
			}
			working := limitertest.Go(func() {
				use("ann")
				use("bad")
			})
			limitertest.Soon(t, begun, "it is called, and can use the limiters")
			limitertest.Soon(t, limitertest.Go(func() { use("third") }), "another request waits for it")
			close(free)
			limitertest.Soon(t, working, "the request goes on")
			assert.NoError(t, client.Close(t.Context()))
		})
	}
}
