package limitertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// KindsOfContext are two, since calls have code of their own for contexts that can't end.
var KindsOfContext = map[string]func(context.Context) context.Context{
	"cancellable":     func(ctx context.Context) context.Context { return ctx },
	"not cancellable": context.WithoutCancel,
}

// EndedContext returns a context that has been cancelled.
func EndedContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Together lets each of that many callers do something at the same time.
func Together(callers int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// Granted returns an error if permits were not granted.
func Granted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("refused")
	}
	return err
}

// Go calls f in a goroutine, and returns a channel that is closed once it has returned.
func Go(f func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	return over
}

// Soon fails the test if something hangs.
func Soon(t testing.TB, over <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-over:
	case <-time.After(redistest.Patience(20 * time.Second)):
		require.FailNow(t, "it hangs", what)
	}
}
