package rratelimiter_test

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// refusals counts what each limiter refused. The methods that it lacks are those of
// NoObserver.
type refusals struct {
	limit.NoObserver
	permits map[string]int64
}

func (r *refusals) Decided(_ context.Context, d limit.Decided) {
	if d.Outcome == limit.Refused {
		r.permits[d.Limiter] += d.Permits // a program of several goroutines takes a lock
	}
}

func ExampleWithObserver() {
	observer := &refusals{permits: map[string]int64{}}
	client, _, stop := connect(rratelimiter.WithObserver(observer))
	defer stop()

	users := client.Keyed("users:", rratelimiter.PerMinute(2))
	for _, name := range []string{"ann", "bob", "ann", "ann"} {
		if _, err := users.Take(ctx, name, 1); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(observer.permits)
	// Output: map[users::1]
}
