package limitertest

import (
	"context"
	"errors"
	"sync"
	"testing"
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
